"""The other side of the pages on migration: run in the peers' environment, it leaves the texts that ours leaves."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peer import peer_python
from tests.conformance.conftest import SKIPPED
from tests.pages import ROOT, environment, run_page


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "written", "text"),
    [
        ("datatrove", "documents/*.jsonl", lambda record: record["text"]),
        ("lhotse", "by_lhotse.jsonl", lambda record: record["supervisions"][0]["text"]),
    ],
)
def test_both_sides_leave_the_same_texts(
    page: str, written: str, text: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "LEDGERBEAM_CONFORMANCE" not in os.environ:
        pytest.skip(SKIPPED)
    monkeypatch.chdir(tmp_path)
    run_page(
        ROOT / "docs" / "migration" / f"{page}.md",
        tmp_path,
        environment(tmp_path / "cache"),
        not_run={f"# with_{page}.py"},
    )
    python = peer_python()
    assert python is not None, "the peers' environment is not complete: run scripts/peers.sh"
    subprocess.run([python, f"with_{page}.py"], check=True, timeout=120, capture_output=True)
    ours, theirs = texts("clean/*.jsonl", text), texts(written, text)
    assert len(ours) > 1000
    assert ours == theirs


def texts(pattern: str, text: Any) -> list[str]:
    lines = [line for path in Path().glob(pattern) for line in path.read_text(encoding="utf-8").splitlines()]
    return sorted(text(json.loads(line)) for line in lines)
