"""Accounts of recorded work: counts and statistics by task, history by time, and durations of tasks.

The rows of a task are kept as long as the task counts in the totals. A task is plain if it wrote exactly the records
that it read. It has no row in `counts`: the totals have its number of records. So a ledger of millions of plain tasks
needs no rows. The table `counted` holds the sums of all rows of `counts`. The same transaction changes rows, sums and
totals.

History and durations are for people, not for restart: forgetting a source does not reduce them. History has a row for
each run and each step of ten seconds in which the run recorded anything. So its size depends on the working time of
runs, at most 1 MB a day for each run, and not on the number of tasks. Durations are counted on a logarithmic scale,
eight steps to a doubling, so that the table stays small.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import add
from struct import Struct
from typing import Any, NamedTuple, TypeAlias

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.errors import UnsupportedShapeError
from ledgerbeam.ledger.lmdb import tables
from ledgerbeam.ledger.lmdb.environment import Environment, row_pages
from ledgerbeam.ledger.lmdb.errors import translated
from ledgerbeam.ledger.lmdb.tables import Transaction
from ledgerbeam.ledger.model import accounts as model_accounts
from ledgerbeam.ledger.model.identity import ID_BYTES, name_key
from ledgerbeam.ledger.model.rows import HISTORY_SECONDS, HistoryRow, Leaf, Totals
from ledgerbeam.ledger.model.values import decode, encode, integer, row, rows, text

_STATISTICS_PAGE_BYTES = 16 << 20  # bytes of sketches in memory at a time, when the sketches of all tasks are read

_HEADER = Struct("<I")
_LETTERS = dict(zip(model_accounts.PARTS, (b"r", b"k", b"d", b"j", b"w"), strict=True))
_PARTS = {letter: part for part, letter in _LETTERS.items()}

PartSums = Counter[model_accounts.Part]  # sums of numbers of `RecordCounts`, by the keys of `RecordCounts.parts`


class TaskAccount(NamedTuple):
    """A row of `counts`: the record counts of a task, and the bytes and milliseconds that it adds to the totals."""

    counts: model_accounts.RecordCounts
    bytes: int
    milliseconds: int

    def share(self, *, filtered: bool) -> Totals:
        """Return the amounts that the task adds to the totals of the ledger."""
        return Totals(1, self.counts.records, self.bytes, int(filtered), self.milliseconds)


def encode_account(leaf: Leaf) -> bytes | None:
    """Encode the row of `counts` of a leaf; None for a leaf that wrote exactly the records that it read."""
    counts = leaf.special_counts()
    if counts is None:
        return None
    share = leaf.share()
    return encode([*model_accounts.counts_row(counts), share.bytes, share.milliseconds])


def decode_account(value: bytes) -> TaskAccount:
    """Decode a row of `counts`. Raises ValueError."""
    return read_account(decode(value))


def read_account(value: Any) -> TaskAccount:
    """Check the JSON value of a row of `counts`. Raises ValueError."""
    *numbers, size, milliseconds = row(rows(value), 7)
    try:
        counts = model_accounts.read_counts(numbers)
    except UnsupportedShapeError as error:
        raise ValueError(str(error)) from None
    model_accounts.task_counts(counts, counts.records)
    return TaskAccount(counts, integer(size), integer(milliseconds))


def encode_statistics(statistics: Mapping[str, model_accounts.Statistic]) -> bytes | None:
    """Encode the row of `statistics` of a task; None for a task without statistics.

    The row is the length of a JSON list, the list of name, kind and size of each sketch, and then the sketches.
    """
    if not statistics:
        return None
    ordered = sorted(statistics.items())
    about = encode([[name, kind, len(data)] for name, (kind, data) in ordered])
    return b"".join([_HEADER.pack(len(about)), about, *(data for _, (_, data) in ordered)])


def decode_statistics(value: bytes) -> dict[str, model_accounts.Statistic]:
    """Decode a row of `statistics`. Raises ValueError, struct.error."""
    (length,) = _HEADER.unpack_from(value)
    place = _HEADER.size + length
    found: dict[str, model_accounts.Statistic] = {}
    about = [row(item, 3) for item in rows(decode(value[_HEADER.size : place]))]
    for name, kind, size in about:
        found[text(name)] = model_accounts.Statistic(text(kind), value[place : place + integer(size)])
        place += size
    if place != len(value) or len(found) != len(about):
        raise ValueError(f"expected {len(about)} statistics in {place} bytes, found {len(found)} in {len(value)}")
    model_accounts.task_statistics(found)
    return found


def sum_parts(counts: Iterable[model_accounts.RecordCounts]) -> PartSums:
    """Return the sum of counts, separately for each number."""
    sums = PartSums()
    for each in counts:
        for part, number in each.parts():
            sums[part] += number
    return sums


def add_counted(txn: Transaction, sums: PartSums, sign: int) -> None:
    """Add `sums` to the table `counted`, the sums of all rows of `counts`; a sign of -1 subtracts."""
    for (part, name), number in sorted(sums.items()):
        key = _LETTERS[part] + name_key(name)
        known = txn.get(tables.COUNTED, key)
        after = sign * number + (0 if known is None else int(tables.COUNTED_ROW.unpack_from(known)[0]))
        if after:
            txn.put(tables.COUNTED, key, tables.COUNTED_ROW.pack(after) + name.encode("utf-8", "surrogateescape"))
        elif known is not None:
            txn.delete(tables.COUNTED, key)


def require_counted(txn: Transaction, sums: PartSums) -> None:
    """Check that `sums`, added up from all rows of `counts`, equal the table `counted`. Raises ValueError.

    They differ if a row had a damaged key when its source was replaced or forgotten: its numbers stay in `counted`.
    """
    if _counted(txn) != sums:
        raise ValueError(
            f"expected the table {tables.COUNTED} to hold the sums of the table {tables.COUNTS}, found other numbers"
        )


def drop_accounts(txn: Transaction, source: bytes) -> None:
    """Delete the counts and statistics of a source whose tasks no longer count."""
    if txn.count(tables.COUNTS):
        gone = [decode_account(value).counts for _, value in txn.delete_prefix(tables.COUNTS, source)]
        add_counted(txn, sum_parts(gone), -1)
    if txn.count(tables.STATISTICS):
        txn.drop_prefix(tables.STATISTICS, source)


def record_counts(txn: Transaction, totals: Totals) -> model_accounts.RecordCounts:
    """Return the record counts of the ledger, whose totals are `totals`."""
    return _with_plain(_counted(txn), totals)


def source_counts(txn: Transaction, source: bytes, totals: Totals) -> model_accounts.RecordCounts:
    """Return the record counts of a source, whose totals are `totals`."""
    rows_of = txn.rows(tables.COUNTS, source) if txn.count(tables.COUNTS) else ()
    return counts_of((decode_account(value) for _, value in rows_of), totals)


def counts_of(accounts: Iterable[TaskAccount], totals: Totals) -> model_accounts.RecordCounts:
    """Return the record counts of a source, from its rows of `counts` and its totals. ValueError: they contradict."""
    return _with_plain(sum_parts(account.counts for account in accounts), totals)


def _counted(txn: Transaction) -> PartSums:
    sums = PartSums()
    for key, value in txn.rows(tables.COUNTED, b""):
        name = value[tables.COUNTED_ROW.size :].decode("utf-8", "surrogateescape")
        if key[1:] != name_key(name):
            raise ValueError(f"expected the name {name!r:.80} under its own key in {tables.COUNTED}, found another key")
        sums[_PARTS[key[:1]], name] = tables.COUNTED_ROW.unpack_from(value)[0]
    return sums


def _with_plain(counted: PartSums, totals: Totals) -> model_accounts.RecordCounts:
    """Return the counts `counted`, plus the records of plain tasks: the rest of the records in `totals`."""
    plain = totals.records - sum(number for (part, _), number in counted.items() if part == "written")
    for part in ("read", "kept", "written"):
        counted[part, ""] += plain
    try:
        if plain < 0:
            raise ValueError(f"expected at most {totals.records} records written, found {totals.records - plain}")
        return model_accounts.RecordCounts.from_parts(counted)
    except UnsupportedShapeError as error:
        raise ValueError(str(error)) from None


def all_statistics(environment: Environment) -> Iterator[tuple[str, model_accounts.Statistic]]:
    """Yield the statistics of all tasks with their names, by source, in pages of bounded size."""
    for page in row_pages(environment, tables.STATISTICS, _STATISTICS_PAGE_BYTES):
        for _, value in page:
            with translated(environment.path):
                found = decode_statistics(value)
            yield from found.items()


def rejected_tasks(environment: Environment, reason: str | None = None) -> Iterator[tuple[bytes, list[bytes]]]:
    """Yield source ids, each with the ids of its tasks that rejected records; see `LedgerStore.rejected_tasks`."""

    def keys() -> Iterator[bytes]:
        for page in row_pages(environment, tables.COUNTS):
            with translated(environment.path):
                rejected = ((key, decode_account(value).counts.rejected) for key, value in page)
                found = [key for key, of in rejected if (any(of.values()) if reason is None else of.get(reason))]
            yield from found

    for source, group in groupby(keys(), key=lambda key: key[:ID_BYTES]):
        yield source, [key[ID_BYTES:] for key in group]


_SHORTEST = 1e-4  # seconds
_STEPS_A_DOUBLING = 8
_STEP = Struct(">I")  # first part of a key
_KEY = [("step", ">u4"), ("run", ">u8")]
_LAST_STEP = 8000  # longer than any duration, and still a finite number


def add_to_history(txn: Transaction, now: float, number: int, totals: Totals, *, completed: int, failures: int) -> None:
    """Add the work of a commit to the history: to the row of the step at `now`, and of the run or control `number`."""
    key = tables.HISTORY_KEY.pack(int(now) // HISTORY_SECONDS, number)
    combine_row(txn, tables.HISTORY, key, tables.HISTORY_ROW, (*totals, completed, failures), how=add)


def combine_row(
    txn: Transaction, table: str, key: bytes, layout: Struct, numbers: Sequence[int], *, how: Callable[[int, int], int]
) -> None:
    """Combine numbers, one by one, with the numbers in a row; with zeros if the row does not exist."""
    known = txn.get(table, key)
    before = layout.unpack(known) if known is not None else (0,) * len(numbers)
    txn.put(table, key, layout.pack(*map(how, before, numbers)))


def read_history(txn: Transaction, since: float = 0.0) -> list[HistoryRow]:
    """Return the work that each run recorded in each step, by time, then run.

    Rows start with the step of `since`, in seconds since 1970 UTC. Work of a host whose clock is ahead is shown in the
    current step. In a remote ledger, the number of a row may be that of a later control object. Then the work belongs
    to the newest run before this object.
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
    """Return the ids of all runs, and columns of rows: step, 1 + position of the run in the ids or 0, and numbers."""
    runs = [tables.read_run_key(key) for key, _ in txn.rows(tables.RUNS, b"")]
    start = _STEP.pack(min(max(int(since) // HISTORY_SECONDS, 0), 2**32 - 1))
    keys, values = [np.empty(0, _KEY)], [np.empty((0, 7), np.int64)]
    for page in txn.pages(tables.HISTORY, start):
        keys.append(np.frombuffer(b"".join(key for key, _ in page), _KEY))
        if {len(value) for _, value in page} != {tables.HISTORY_ROW.size}:
            raise ValueError(f"expected {tables.HISTORY_ROW.size} bytes in each row of {tables.HISTORY}, found others")
        values.append(np.frombuffer(b"".join(value for _, value in page), "<i8").reshape(-1, 7))
    key, numbers = np.concatenate(keys), np.concatenate(values)
    if numbers.size and numbers.min() < 0:
        raise ValueError(f"expected numbers >= 0 in the table {tables.HISTORY}, found {numbers.min()}")
    steps = np.minimum(key["step"].astype(np.int64), int(time.time()) // HISTORY_SECONDS)
    ids = np.array([int(run) for run in runs], np.uint64)
    return runs, steps, np.searchsorted(ids, key["run"].astype(np.uint64), "right").astype(np.int64), numbers


def _summed(
    runs: list[str], steps: _Integers, places: _Integers, numbers: _Integers, order: NDArray[np.intp], *, by_step: bool
) -> list[HistoryRow]:
    """Take rows in `order`, and sum consecutive rows of the same run; with `by_step` only rows of the same step."""
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


def add_durations(txn: Transaction, seconds: Sequence[float]) -> None:
    """Add the durations of tasks, in seconds, to the table `durations`."""
    doublings = np.log2(np.maximum(np.asarray(seconds), _SHORTEST) / _SHORTEST)
    steps, counts = np.unique(np.minimum(np.rint(_STEPS_A_DOUBLING * doublings), _LAST_STEP), return_counts=True)
    for step, count in zip(steps.astype(np.int64).tolist(), counts.tolist(), strict=True):
        combine_row(txn, tables.DURATIONS, tables.DURATION_KEY.pack(step), tables.DURATION_ROW, [count], how=add)


def read_durations(txn: Transaction) -> dict[float, int]:
    """Return the number of tasks by duration in seconds, ascending. Durations are rounded to steps of the scale."""
    found = {
        tables.DURATION_KEY.unpack(key)[0]: tables.DURATION_ROW.unpack(value)[0]
        for key, value in txn.scan(tables.DURATIONS, b"")
    }
    if found and (max(found) > _LAST_STEP or min(found.values()) < 0):
        raise ValueError(
            f"expected numbers >= 0 and keys up to {_LAST_STEP} in the table {tables.DURATIONS}, found the number "
            f"{min(found.values())} and the key {max(found)}"
        )
    return {_SHORTEST * 2 ** (step / _STEPS_A_DOUBLING): tasks for step, tasks in found.items()}
