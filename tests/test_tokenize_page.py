"""The blocks of docs/tokenize.md run, in order, in one folder, and print what stands there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_readme import ROOT, blocks, commands, environment, type_in

__all__ = ["environment"]

PAGE = ROOT / "docs" / "tokenize.md"


@pytest.mark.slow
def test_every_block_of_the_page_on_tokenizing_runs_and_prints_what_stands_there(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    run = 0
    for block in blocks(PAGE, "console"):
        for command in commands(block):
            type_in(command, tmp_path, environment)
            run += 1
    assert run > 7
