"""A few damages of local ledgers, and that the campaign can fail; the long form is ``python -m tests.fault.damage``."""

from __future__ import annotations

from collections.abc import Sequence
from unittest import mock

import pytest

from ledgerbeam.ledger.lmdb.tables import Row, StoredTable, Transaction
from tests.fault.damage import campaign

pytestmark = pytest.mark.slow

DAMAGES = 70


def test_no_damage_of_a_ledger_makes_a_run_end_well_with_other_outputs() -> None:
    found = campaign(DAMAGES, 7)
    assert not found.findings
    assert found.counts["right"] > DAMAGES // 10
    assert found.counts["refused"] > DAMAGES // 4


def test_a_ledger_without_checksums_is_noticed() -> None:
    def rows(self: StoredTable, found: Sequence[Row]) -> list[Row]:
        return [(key, summed[:-4]) for key, summed in found]

    unchecked = mock.patch.multiple(
        StoredTable, rows=rows, value=lambda self, key, summed: summed[:-4], check=lambda self, found: None
    )
    with unchecked, mock.patch.object(Transaction, "require_all"):
        found = campaign(90, 2)
    assert found.counts["wrong"] + found.counts["miscounted"]
