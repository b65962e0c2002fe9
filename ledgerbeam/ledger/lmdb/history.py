"""What was recorded when, and how long tasks took: for people, not for restart. Forgetting a source takes nothing away.

History has a row for each run and ten seconds in which it recorded anything: its size follows from the time that runs
are at work, at most 1 MB a day for each, and not from the number of tasks. Durations are counted on a logarithmic
scale, eight steps to a doubling, so that the table stays small whatever a job does.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from operator import add

import numpy as np

from ledgerbeam.ledger.lmdb.decoding import read_run_key
from ledgerbeam.ledger.lmdb.tables import (
    DURATION_KEY,
    DURATION_ROW,
    DURATIONS,
    HISTORY,
    HISTORY_KEY,
    HISTORY_ROW,
    RUNS,
    STEP_KEY,
    Transaction,
)
from ledgerbeam.ledger.model.rows import HISTORY_SECONDS, HistoryRow, Totals

_SHORTEST = 1e-4  # seconds
_STEPS_A_DOUBLING = 8
_LAST_STEP = 8000  # is longer than any time, and still a number


def add_to_history(txn: Transaction, now: float, number: int, totals: Totals, *, completed: int, failures: int) -> None:
    """Add what one commit recorded to the step that `now` (seconds since 1970 UTC) falls into.

    Args:
        txn: Open for writing.
        now: When it was recorded.
        number: Of the run that recorded it, or of what came after its beginning.
        totals: Of the leaves.
        completed: Sources that became complete.
        failures: Number of them.
    """
    key = HISTORY_KEY.pack(int(now) // HISTORY_SECONDS, number)
    known = txn.get(HISTORY, key)
    before = HISTORY_ROW.unpack(known) if known is not None else (0,) * 7
    after = (*totals, completed, failures)
    txn.put(HISTORY, key, HISTORY_ROW.pack(*(was + more for was, more in zip(before, after, strict=True))))


def read_history(txn: Transaction) -> list[HistoryRow]:
    """Return what each run recorded in every step, in the order of time, then runs.

    What a host recorded whose clock was ahead belongs to no time before now: it is shown in the step of now. Of a
    remote ledger a row may have a number that is not that of a run: then the run before it was the newest.
    """
    now = int(time.time()) // HISTORY_SECONDS
    runs = [read_run_key(key) for key, _ in txn.rows(RUNS, b"")]
    numbers_of_runs = [int(run) for run in runs]
    found: dict[tuple[int, int], tuple[int, ...]] = {}
    for key, value in txn.rows(HISTORY, b""):
        numbers = HISTORY_ROW.unpack(value)
        if min(numbers) < 0:
            raise ValueError(f"expected what was recorded in a step of history, found {numbers}")
        step, number = history_key(key)
        place = (min(step, now), bisect_right(numbers_of_runs, number))
        known = found.get(place)
        found[place] = numbers if known is None else tuple(map(add, known, numbers))
    return [
        HistoryRow(step * HISTORY_SECONDS, runs[place - 1] if place else None, Totals(*totals), completed, failures)
        for (step, place), (*totals, completed, failures) in sorted(found.items())
    ]


def history_key(key: bytes) -> tuple[int, int]:
    """Read a key of `history`: the step, and the number of the run; 0 where none was noted."""
    if len(key) == STEP_KEY.size:
        return STEP_KEY.unpack(key)[0], 0
    step, number = HISTORY_KEY.unpack(key)
    return step, number


def is_without_runs(txn: Transaction) -> bool:
    """Return whether an older version has recorded history here, which did not tell runs apart."""
    return any(len(key) == STEP_KEY.size for key in txn.page_of_keys(HISTORY, b"", 1))


def duration_steps(seconds: Sequence[float]) -> dict[int, int]:
    """Count durations by step of the scale."""
    doublings = np.log2(np.maximum(np.asarray(seconds), _SHORTEST) / _SHORTEST)
    steps, counts = np.unique(np.minimum(np.rint(_STEPS_A_DOUBLING * doublings), _LAST_STEP), return_counts=True)
    return {int(step): count for step, count in zip(steps.tolist(), counts.tolist(), strict=True)}


def add_durations(txn: Transaction, steps: Mapping[int, int]) -> None:
    """Add to the number of tasks of each step."""
    for step, count in sorted(steps.items()):
        key = DURATION_KEY.pack(step)
        known = txn.get(DURATIONS, key)
        before = DURATION_ROW.unpack(known)[0] if known is not None else 0
        txn.put(DURATIONS, key, DURATION_ROW.pack(before + count))


def read_durations(txn: Transaction) -> dict[float, int]:
    """Return tasks by duration in seconds, ascending; a duration stands for those within half a step of it."""
    found = {DURATION_KEY.unpack(key)[0]: DURATION_ROW.unpack(value)[0] for key, value in txn.scan(DURATIONS, b"")}
    if found and (max(found) > _LAST_STEP or min(found.values()) < 0):
        raise ValueError(f"expected numbers of tasks by duration, found {max(found)}: {min(found.values())}")
    return {_SHORTEST * 2 ** (step / _STEPS_A_DOUBLING): tasks for step, tasks in found.items()}
