"""The example of an exchange by two pipelines does what it says; `pipelines.exchanges.test_own_exchange` kills it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from examples import own_exchange
from ledgerbeam.ledger.worker.writer import close_shared_writers

PAGES = {
    "a": [("u1", " one "), ("u2", "two"), ("u3", "  ")],
    "b": [("u1", "one and more"), ("u2", "owt"), ("u4", "four")],
}


def run(folder: Path) -> int:
    arguments = [str(folder / "pages" / "*.jsonl"), "--size", "1K"]
    for name in ("output", "runs", "ledger"):
        arguments += [f"--{name}", str(folder / name)]
    try:
        return own_exchange.main(arguments)
    finally:
        close_shared_writers()


@pytest.mark.slow
def test_it_keeps_the_longest_page_of_each_url(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pages").mkdir()
    for name, pages in PAGES.items():
        lines = (json.dumps({"url": url, "text": text}) + "\n" for url, text in pages)
        (tmp_path / "pages" / f"{name}.jsonl").write_text("".join(lines))
    assert run(tmp_path) == 0
    assert capsys.readouterr().out == "5 pages gathered, 3 written\n"
    written = [line for path in (tmp_path / "output").glob("*.jsonl") for line in path.read_text().splitlines()]
    found = {page["url"]: page["text"] for page in map(json.loads, written)}
    assert found == {"u1": "one and more", "u2": "two", "u4": "four"}
    assert run(tmp_path) == 0
    assert capsys.readouterr().out == "5 pages gathered, 3 written\n"
