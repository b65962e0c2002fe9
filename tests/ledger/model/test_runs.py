"""Set-ups of user code are added up, and their row is read as it was written."""

from __future__ import annotations

from typing import Any

import pytest

from ledgerbeam.ledger.model.rows import SetUps, read_set_ups
from tests.cases import each


def test_set_ups_of_several_workers_are_added_up() -> None:
    one, other = SetUps.of([1.5, 0.25]), SetUps.of([2.0])
    assert (one, other) == (SetUps(2, 1.75, 1.5), SetUps(1, 2.0, 2.0))
    assert one.plus(other) == other.plus(one) == SetUps(3, 3.75, 2.0)
    assert SetUps.of([]) == SetUps() == SetUps(0, 0.0, 0.0)
    assert one.plus(SetUps()) == one


def test_the_row_of_set_ups_is_read_as_it_was_written() -> None:
    row = read_set_ups({"times": 2, "seconds": 3, "longest": 2.5})
    assert row == SetUps(2, 3.0, 2.5)._asdict()
    assert [type(value) for value in row.values()] == [int, float, float]


@each("changes", [{"times": -1}, {"times": 1.0}, {"seconds": -1}, {"longest": "1"}, {"shortest": 0.5}])
def test_a_row_that_is_none_of_set_ups_is_refused(changes: dict[str, Any]) -> None:
    row = SetUps(2, 3.0, 2.5)._asdict()
    with pytest.raises(ValueError, match="expected"):
        read_set_ups({**row, **changes})
    with pytest.raises(ValueError, match="expected"):
        read_set_ups([row])
    for name in row:
        with pytest.raises(ValueError, match="expected the set-ups of a run"):
            read_set_ups({other: row[other] for other in row if other != name})
