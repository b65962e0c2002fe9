"""The blocks of docs/ledger.md run, in order, in one folder, and print what stands there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.test_readme import BLOCK, ROOT, Command, commands, environment, run_doctest, type_in, write_named_file

__all__ = ["environment"]

PAGE = ROOT / "docs" / "ledger.md"
HOST = "node7"
"""Stands on the page for the host on which its commands run."""


@pytest.mark.slow
def test_every_block_of_the_ledger_page_runs_and_prints_what_stands_there(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = 0
    for language, block in BLOCK.findall(PAGE.read_text()):
        if language == "python":
            write_named_file(block, tmp_path)
        elif language == "pycon":
            run_doctest(block)
        elif language == "console":
            for command in commands(block):
                printed = command.printed.replace(HOST, os.uname().nodename)
                type_in(Command(command.text, printed), tmp_path, environment)
                run += 1
    assert run > 10
