"""The blocks of docs/compressed.md run, in order, in one folder, and print what stands there."""

from __future__ import annotations

import doctest
import re
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs" / "compressed.md"


def test_every_block_runs_and_prints_what_stands_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = "\n".join(re.findall(r"^```pycon\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL))
    test = doctest.DocTestParser().get_doctest(blocks, {}, PAGE.name, str(PAGE), 0)
    runner = doctest.DocTestRunner(optionflags=doctest.FAIL_FAST)
    assert len(test.examples) > 8
    runner.run(test, out=sys.stderr.write)
    assert not runner.failures
