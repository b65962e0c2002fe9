"""A local ledger that somebody has changed: typed errors, whatever its rows are."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgerbeam.ledger.lmdb.tables import CUTOFFS, FOLDED, TABLES
from tests.fault.hostile_rows import all_rows, fuzz, make

LEDGERS = 150


def test_the_ledger_has_rows_in_every_table(tmp_path: Path) -> None:
    make(tmp_path / "whole")
    assert {table for table, _, _ in all_rows(tmp_path / "whole")} == {*TABLES} - {CUTOFFS, FOLDED}


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_hostile_rows_are_refused_by_typed_errors_only(tmp_path: Path, seed: int) -> None:
    counts = fuzz(LEDGERS, seed, tmp_path)
    assert counts["refused"] > LEDGERS
    assert counts["did"] > 10 * LEDGERS
