"""History of recorded work, and durations of tasks: for people, not for restart.

Forgetting a source does not reduce the history. It has a row for each run and each step of ten seconds in which the run
recorded anything. Its size depends on the working time of runs, at most 1 MB a day for each run, and not on the number
of tasks. Durations are counted on a logarithmic scale, eight steps to a doubling, so that the table stays small.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import TypeAlias

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.ledger.lmdb.decoding import read_run_key
from ledgerbeam.ledger.lmdb.tables import (
    DURATION_KEY,
    DURATION_ROW,
    DURATIONS,
    HISTORY,
    HISTORY_KEY,
    HISTORY_ROW,
    RUNS,
    Transaction,
)
from ledgerbeam.ledger.model.rows import HISTORY_SECONDS, HistoryRow, Totals

_SHORTEST = 1e-4  # seconds
_STEPS_A_DOUBLING = 8
_STEP = Struct(">I")  # first part of a key
_KEY = [("step", ">u4"), ("run", ">u8")]
_PAGE_ROWS = 10_000
_LAST_STEP = 8000  # longer than any duration, and still a finite number


def add_to_history(txn: Transaction, now: float, number: int, totals: Totals, *, completed: int, failures: int) -> None:
    """Add the work recorded by one commit to the step of `now`.

    Args:
        txn: Open for writing.
        now: Time of the commit, in seconds since 1970 UTC.
        number: Number of the run that recorded it, or of a later control object.
        totals: Totals of the leaves.
        completed: Number of sources that became complete.
        failures: Number of failures.
    """
    key = HISTORY_KEY.pack(int(now) // HISTORY_SECONDS, number)
    known = txn.get(HISTORY, key)
    before = HISTORY_ROW.unpack(known) if known is not None else (0,) * 7
    after = (*totals, completed, failures)
    txn.put(HISTORY, key, HISTORY_ROW.pack(*(was + more for was, more in zip(before, after, strict=True))))


def read_history(txn: Transaction, since: float = 0.0) -> list[HistoryRow]:
    """Return the work that each run recorded in each step, by time, then run.

    Work of a host whose clock is ahead is shown in the current step, since it has no valid time before now. In a
    remote ledger, a row may have a number that is not the number of a run: then the run before it was the newest.

    Args:
        txn: An open transaction.
        since: Seconds since 1970 UTC. Rows start with the step of this time.
    """
    runs, steps, places, numbers = _columns(txn, since)
    return _summed(runs, steps, places, numbers, np.lexsort((places, steps)), by_step=True)


def read_recorded(txn: Transaction, since: float = 0.0) -> dict[str | None, HistoryRow]:
    """Return the work of each run, summed over all steps, with the time of its last step; see `read_history`."""
    runs, steps, places, numbers = _columns(txn, since)
    order = np.argsort(places, kind="stable")  # rows are already ordered by step
    found = _summed(runs, steps, places, numbers, order, by_step=False)
    return {row.run: row for row in found}


_Integers: TypeAlias = "NDArray[np.int64]"


def _columns(txn: Transaction, since: float) -> tuple[list[str], _Integers, _Integers, _Integers]:
    """Return the ids of all runs, and columns of all rows: step, index of the run from 1, numbers."""
    runs = [read_run_key(key) for key, _ in txn.rows(RUNS, b"")]
    start = _STEP.pack(min(max(int(since) // HISTORY_SECONDS, 0), 2**32 - 1))
    keys, values = [np.empty(0, _KEY)], [np.empty((0, 7), np.int64)]
    while page := txn.page(HISTORY, start, _PAGE_ROWS):
        start = page[-1][0] + b"\0"
        keys.append(np.frombuffer(b"".join(key for key, _ in page), _KEY))
        if {len(value) for _, value in page} != {HISTORY_ROW.size}:
            raise ValueError(f"expected steps of history of {HISTORY_ROW.size} bytes, found others")
        values.append(np.frombuffer(b"".join(value for _, value in page), "<i8").reshape(-1, 7))
    key, numbers = np.concatenate(keys), np.concatenate(values)
    if numbers.size and numbers.min() < 0:
        raise ValueError(f"expected what was recorded in a step of history, found {numbers.min()}")
    steps = np.minimum(key["step"].astype(np.int64), int(time.time()) // HISTORY_SECONDS)
    ids = np.array([int(run) for run in runs], np.uint64)
    return runs, steps, np.searchsorted(ids, key["run"].astype(np.uint64), "right").astype(np.int64), numbers


def _summed(
    runs: list[str], steps: _Integers, places: _Integers, numbers: _Integers, order: NDArray[np.intp], *, by_step: bool
) -> list[HistoryRow]:
    """Sum consecutive rows, in the given order, of the same run; with `by_step` also of the same step."""
    if not len(order):
        return []
    steps, places, numbers = steps[order], places[order], numbers[order]
    differs = places[1:] != places[:-1]
    if by_step:
        differs = differs | (steps[1:] != steps[:-1])
    starts = np.flatnonzero(np.concatenate([[True], differs]))
    lasts = np.append(starts[1:], len(order)) - 1
    sums = np.add.reduceat(numbers, starts, axis=0).tolist()
    times = (steps[lasts] * HISTORY_SECONDS).tolist()
    names = [None, *runs]
    return [
        HistoryRow(at, names[place], Totals(*totals), completed, failures)
        for at, place, (*totals, completed, failures) in zip(times, places[starts].tolist(), sums, strict=True)
    ]


def duration_steps(seconds: Sequence[float]) -> dict[int, int]:
    """Count durations, in seconds, by step of the scale."""
    doublings = np.log2(np.maximum(np.asarray(seconds), _SHORTEST) / _SHORTEST)
    steps, counts = np.unique(np.minimum(np.rint(_STEPS_A_DOUBLING * doublings), _LAST_STEP), return_counts=True)
    return {int(step): count for step, count in zip(steps.tolist(), counts.tolist(), strict=True)}


def add_durations(txn: Transaction, steps: Mapping[int, int]) -> None:
    """Add numbers of tasks to the steps."""
    for step, count in steps.items():
        key = DURATION_KEY.pack(step)
        known = txn.get(DURATIONS, key)
        before = DURATION_ROW.unpack(known)[0] if known is not None else 0
        txn.put(DURATIONS, key, DURATION_ROW.pack(before + count))


def read_durations(txn: Transaction) -> dict[float, int]:
    """Return the number of tasks by duration in seconds, ascending; a step includes durations within half a step."""
    found = {DURATION_KEY.unpack(key)[0]: DURATION_ROW.unpack(value)[0] for key, value in txn.scan(DURATIONS, b"")}
    if found and (max(found) > _LAST_STEP or min(found.values()) < 0):
        raise ValueError(f"expected numbers of tasks by duration, found {max(found)}: {min(found.values())}")
    return {_SHORTEST * 2 ** (step / _STEPS_A_DOUBLING): tasks for step, tasks in found.items()}
