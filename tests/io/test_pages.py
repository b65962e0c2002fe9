"""The blocks of a format's page run, in order, in one folder, and print what stands there."""

from __future__ import annotations

import doctest
import re
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize(
    ("name", "more_than", "flags"),
    [
        ("compressed.md", 8, 0),
        ("lit.md", 8, 0),
        ("shar.md", 8, 0),
        ("webdataset.md", 8, 0),
        ("megatron.md", 15, doctest.ELLIPSIS),
    ],
)
def test_every_block_runs_and_prints_what_stands_there(
    name: str, more_than: int, flags: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = DOCS / name
    blocks = "\n".join(re.findall(r"^```pycon\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL))
    test = doctest.DocTestParser().get_doctest(blocks, {}, name, str(page), 0)
    runner = doctest.DocTestRunner(optionflags=doctest.FAIL_FAST | flags)
    assert len(test.examples) > more_than
    runner.run(test, out=sys.stderr.write)
    assert not runner.failures
