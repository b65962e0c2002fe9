"""Stored rows never change their format, and damaged tables raise errors."""

from __future__ import annotations

import copy
import errno
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lmdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledgerbeam._base.disk import REMEDIES
from ledgerbeam.errors import DiskFullError, LedgerbeamError, LedgerDamagedError, LedgerError, StorageError, UsageError
from ledgerbeam.ledger import Source
from ledgerbeam.ledger.lmdb import tables
from ledgerbeam.ledger.lmdb.accounts import (
    add_durations,
    decode_account,
    decode_statistics,
    encode_account,
    encode_statistics,
)
from ledgerbeam.ledger.lmdb.commit import PreparedLeaf, decode_output, decode_outputs, encode_output
from ledgerbeam.ledger.lmdb.errors import translated
from ledgerbeam.ledger.lmdb.failures import read_deaths, read_failure
from ledgerbeam.ledger.lmdb.jobs import decode_job, read_run, shallow
from ledgerbeam.ledger.lmdb.sources import read_source_fields
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.lmdb.tables import OUTPUTS, Transaction
from ledgerbeam.ledger.lmdb.withdrawal import read_retired
from ledgerbeam.ledger.model.accounts import RecordCounts, Statistic
from ledgerbeam.ledger.model.identity import name_key, run_id
from ledgerbeam.ledger.model.job import Job
from ledgerbeam.ledger.model.rows import HISTORY_SECONDS, HistoryRow, Leaf, Output, Totals
from ledgerbeam.ledger.model.values import encode
from ledgerbeam.pipelines.report.run_info import Work, work_by_run
from ledgerbeam.stats import MOST_NAMES
from tests.cases import each
from tests.disk import no_larger_than
from tests.ledger.builders import counted_leaf, leaf_of, plain
from tests.ledger.stores import numbered, registered, several


@pytest.mark.parametrize(
    ("tally", "size"),
    [(Totals(), 24), (Totals(1, 2, 2**32 - 1, 4, 5), 24), (Totals(1, 2, 2**32, 4, 5), 44), (Totals(2**63, 1), 44)],
)
def test_a_completion_is_read_as_it_was_written(tally: Totals, size: int) -> None:
    row = tables.pack_completion(1_700_000_000, tally)
    assert (len(row), tables.unpack_completion(row)) == (size, (1_700_000_000, tally))
    assert tables.unpack_completion(tables.pack_completion(2**32 + 5, tally))[0] == 5


def test_rows_stay_what_they_are_for_ever() -> None:
    # Every ledger that exists has rows of these forms.
    totals = Totals(1, 2, 3, 4, 5)
    assert tables.pack_completion(6, totals).hex() == "060000000100000002000000030000000400000005000000"
    assert tables.PENDING_ROW.pack(6, *totals)[:16].hex() == "06000000000000000100000000000000"
    assert tables.TALLY_ROW.size == 40
    assert tables.FORMAT == 3, "another number has a ledger whose rows are read otherwise"


def test_durations_are_counted_by_steps_that_stay_what_they_are(store: LmdbStore) -> None:
    store._write(lambda txn: add_durations(txn, [0.0, 1e-4, 0.01, 1.0, 1.0, 3600.0, 1e300]))
    rows = store._write(lambda txn: txn.scan(tables.DURATIONS, b""))
    found = {tables.DURATION_KEY.unpack(key)[0]: tables.DURATION_ROW.unpack(value)[0] for key, value in rows}
    assert found == {0: 2, 53: 1, 106: 2, 201: 1, 8000: 1}


LENGTHS = {
    **dict.fromkeys(["completed", "sources", "urls", "pending", "retired", "gone", "cutoffs"], 16),
    **dict.fromkeys(["applied", "failed", "attempts", "outputs", "counts", "statistics", "superseded"], 32),
    "counted": 17,
    "history": 12,
    "durations": 2,
}


@pytest.mark.parametrize("table", LENGTHS)
@pytest.mark.parametrize("difference", [-1, 1])
def test_keys_of_another_length_are_damage(store: LmdbStore, table: str, difference: int) -> None:
    length = LENGTHS[table]
    store._write(lambda txn: txn.put(table, bytes(length), b""))

    readers: list[Callable[[Transaction], object]] = [
        lambda txn: txn.page(table, b"", 10),
        lambda txn: txn.scan(table, b""),
        lambda txn: list(txn.prefixes(table, 1)),
    ]
    assert all(store._write(reader) for reader in readers)
    store._write(lambda txn: txn.put(table, b"\xff" * (length + difference), b""))
    for reader in readers:
        with pytest.raises(LedgerDamagedError, match=f"keys of {length} bytes in the table {table}"):
            store._write(reader)


def test_rows_are_read_by_their_prefix_and_deleted_by_it(store: LmdbStore) -> None:
    prefixes = [bytes([number]) * 16 for number in (1, 2, 255)]
    keys = [prefix + bytes([tail]) * 16 for prefix in prefixes for tail in (0, 7, 255)]
    store._write(lambda txn: txn.put_many(OUTPUTS, ((key, key[:1]) for key in reversed(keys))))
    with store._open().read() as txn:
        for number, prefix in enumerate(prefixes):
            assert [key for key, _ in txn.scan(OUTPUTS, prefix)] == keys[3 * number : 3 * number + 3]
        assert txn.scan(OUTPUTS, b"\3" * 16) == []
        assert list(txn.prefixes(OUTPUTS, 16)) == prefixes
        assert [key for key, _ in txn.page(OUTPUTS, keys[2], 4)] == keys[2:6]
        assert txn.page(OUTPUTS, b"\xff" * 33, 4) == []
        assert txn.get_many(OUTPUTS, [keys[8], keys[0], bytes(32)]) == {keys[0]: b"\1", keys[8]: b"\xff"}
        assert (txn.last(OUTPUTS), txn.last(tables.COMPLETED)) == ((keys[8], b"\xff"), None)
    assert store._write(lambda txn: [key for key, _ in txn.delete_prefix(OUTPUTS, prefixes[1])]) == keys[3:6]
    assert store._write(lambda txn: txn.delete_prefix(OUTPUTS, prefixes[1])) == []
    assert store.output_count() == 6
    assert store._write(lambda txn: txn.put(OUTPUTS, keys[0], b"new", overwrite=False)) is False
    store._write(lambda txn: txn.put_many(OUTPUTS, [(keys[0], b"new"), (keys[3], b"new")], overwrite=False))
    with store._open().read() as txn:
        assert txn.get_many(OUTPUTS, (keys[3], keys[0])) == {keys[0]: b"\1", keys[3]: b"new"}


@pytest.mark.parametrize(
    ("most_bytes", "expected"), [(None, 4), (1, 1), (10, 1), (11, 2), (20, 2), (21, 3), (30, 3), (31, 4), (99, 4)]
)
def test_a_page_ends_with_the_row_that_fills_it(store: LmdbStore, most_bytes: int | None, expected: int) -> None:
    rows = [(bytes([number]) * 32, b"x" * 10) for number in range(4)]
    store._write(lambda txn: txn.put_many(OUTPUTS, rows))
    with store._open().read() as txn:
        assert txn.page(OUTPUTS, b"", 10, most_bytes) == rows[:expected]
        assert txn.page(OUTPUTS, b"", 3, most_bytes) == rows[: min(3, expected)]
        assert txn.page(OUTPUTS, rows[1][0], 10, most_bytes) == rows[1 : 1 + expected]


def test_results_are_known_again_for_ever() -> None:
    # Every ledger of an unfinished job has them.
    outputs = (Output("b", 1, "x", 1), Output("a", 2, "y", 1))
    for order in (outputs, outputs[::-1]):
        leaf = PreparedLeaf(Leaf(plain().id, ((0, 2),), "published", order))
        assert leaf.digest.hex() == "f68c9e6f7eefaacf"
        assert [decode_output(row)[0].name for _, row in leaf.outputs] == ["b", "a"]
        assert [key for key, _ in leaf.outputs] == [plain().id + name_key(name) for name in "ba"]
    assert PreparedLeaf(Leaf(plain().id, ((0, 2),), "filtered")).digest.hex() == "0e3c0f73fa14e753"
    assert PreparedLeaf(Leaf(plain().id, ((0, 2),), "published")).digest.hex() == "90c143a055fddf0c"


def put_history(txn: Transaction, rows: Mapping[tuple[int, int], Sequence[int]]) -> None:
    """Write rows of history by step and number of the run."""
    for (step, number), parts in rows.items():
        txn.put(tables.HISTORY, tables.HISTORY_KEY.pack(step, number), tables.HISTORY_ROW.pack(*parts))


def test_what_a_clock_that_is_ahead_recorded_is_shown_now(store: LmdbStore, monkeypatch: pytest.MonkeyPatch) -> None:
    step = 1_800_000_000 // HISTORY_SECONDS
    rows = {step - 2: 1, step - 1: 10, step: 100, step + 1: 1000, step + 99: 10_000}
    made = {(at, 0): [tasks * part for part in range(1, 8)] for at, tasks in rows.items()}
    store._write(lambda txn: put_history(txn, made))
    monkeypatch.setattr(time, "time", lambda: step * HISTORY_SECONDS + 1.0)
    assert store.history() == [
        HistoryRow(at * HISTORY_SECONDS, None, Totals(*(tasks * part for part in range(1, 6))), 6 * tasks, 7 * tasks)
        for at, tasks in ((step - 2, 1), (step - 1, 10), (step, 11_100))
    ]


def test_each_commit_adds_to_its_step_and_to_the_durations(store: LmdbStore, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = numbered(store, 6)
    step = 1_800_000_000 // HISTORY_SECONDS
    for number, source in enumerate(sources):
        at = (step + number // 3) * HISTORY_SECONDS + 0.5
        monkeypatch.setattr(time, "time", lambda at=at: at)
        store.commit([replace(leaf_of(source), seconds=1.0)])
    assert [(row.time, row.totals.tasks, row.completed, row.failures) for row in store.history()] == [
        (step * HISTORY_SECONDS, 3, 3, 0),
        ((step + 1) * HISTORY_SECONDS, 3, 3, 0),
    ]
    (row,) = store.recorded().values()
    assert (row.time, row.totals.tasks) == ((step + 1) * HISTORY_SECONDS, 6)
    assert list(store.durations().values()) == [6]


def test_history_from_before_the_first_run_is_of_no_run(store: LmdbStore) -> None:
    store._write(lambda txn: put_history(txn, {(170_000_000, 0): range(1, 8)}))
    early, late = several(store, "a", "b")
    store.commit([leaf_of(early)])
    run = store.begin_run({})
    store.commit([leaf_of(late)])
    rows = [(row.run, row.totals.tasks) for row in store.history()]
    assert rows == [(None, 1), (None, 1), (run, 1)]
    assert store.history()[0].time == 1_700_000_000
    runs = [{**found, "began": found["began"] - ahead} for found in store.runs() for ahead in (10**9, 0)]
    of_old, of_new = work_by_run([{**runs[0], "id": "000000"}, runs[1]], store.recorded())
    assert (of_old, of_new) == (None, Work(1, 5, 50, 1))


def test_history_is_whole_however_many_pages_it_takes(store: LmdbStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledgerbeam.ledger.lmdb.tables.PAGE_ROWS", 2)
    store._write(lambda txn: put_history(txn, {(step, 0): range(step, step + 7) for step in range(1, 6)}))
    assert [row.totals.tasks for row in store.history()] == [1, 2, 3, 4, 5]
    assert [row.totals.tasks for row in store.recorded().values()] == [15]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.dictionaries(st.tuples(st.integers(8, 14), st.integers(0, 5)), st.integers(1, 9), min_size=1))
def test_history_adds_up_what_each_run_has_recorded(
    store: LmdbStore, monkeypatch: pytest.MonkeyPatch, rows: dict[tuple[int, int], int]
) -> None:
    """With any clocks: steps of the future count as the current step."""
    now = 12
    monkeypatch.setattr(time, "time", lambda: now * HISTORY_SECONDS + 1.0)
    while len(store.runs()) < 3:
        store.begin_run({})

    def write(txn: Transaction) -> None:
        txn.clear(tables.HISTORY)
        put_history(txn, {key: [tasks] * 7 for key, tasks in rows.items()})

    store._write(write)
    by_step, by_run, last = Counter[tuple[int, str]](), Counter[str](), dict[str, int]()
    for (step, number), tasks in rows.items():
        run, shown = f"{min(number, 3):06d}", min(step, now)
        by_step[shown, run] += tasks
        by_run[run] += tasks
        last[run] = max(last.get(run, 0), shown)
    assert [(row.time // HISTORY_SECONDS, row.run or "000000", row.totals.tasks) for row in store.history()] == [
        (*key, tasks) for key, tasks in sorted(by_step.items())
    ]
    assert {run or "000000": (row.time // HISTORY_SECONDS, row.failures) for run, row in store.recorded().items()} == {
        run: (last[run], tasks) for run, tasks in by_run.items()
    }


@pytest.mark.parametrize(
    ("since", "first"), [(-1e30, 0), (0, 0), (9.9, 0), (10, 1), (29.9, 2), (30, 3), (2.0**32 * 10, 3), (1e30, 3)]
)
def test_history_is_told_from_the_step_on_that_a_time_falls_into(store: LmdbStore, since: float, first: int) -> None:
    store._write(lambda txn: put_history(txn, {(step, 0): [1] * 7 for step in range(3)}))
    assert [row.time for row in store.history(since)] == [10 * step for step in range(first, 3)]


def test_history_of_rows_of_another_length_is_damage(store: LmdbStore) -> None:
    for step, count in ((1, 2), (2, 1)):  # together they are as long as three
        row = tables.HISTORY_ROW.pack(*[1] * 7) * count
        store._write(lambda txn, step=step, row=row: txn.put(tables.HISTORY, tables.HISTORY_KEY.pack(step, 1), row))  # type: ignore[misc]
    with pytest.raises(LedgerDamagedError, match="expected 56 bytes in each row of history"):
        store.history()


@pytest.mark.parametrize("place", range(7))
def test_history_that_cannot_be_is_damage(store: LmdbStore, place: int) -> None:
    store._write(lambda txn: put_history(txn, {(1, 1): [-1 if part == place else 1 for part in range(7)]}))
    with pytest.raises(LedgerDamagedError, match="expected numbers >= 0 in the table history"):
        store.history()


@pytest.mark.parametrize(("step", "tasks"), [(8001, 1), (1, -1)])
def test_durations_that_cannot_be_are_damage(store: LmdbStore, step: int, tasks: int) -> None:
    assert store.durations() == {}
    store._write(lambda txn: txn.put(tables.DURATIONS, tables.DURATION_KEY.pack(8000), tables.DURATION_ROW.pack(0)))
    assert len(store.durations()) == 1
    store._write(lambda txn: txn.put(tables.DURATIONS, tables.DURATION_KEY.pack(step), tables.DURATION_ROW.pack(tasks)))
    with pytest.raises(LedgerDamagedError, match="expected numbers >= 0 and keys up to"):
        store.durations()


def test_the_account_of_a_task_is_read_as_it_was_written_and_has_no_more_names_than_one_may_have() -> None:
    leaf = counted_leaf(plain())
    row = encode_account(leaf)
    assert row is not None
    assert decode_account(row) == (leaf.counts, leaf.bytes, 250)
    for names in (MOST_NAMES, MOST_NAMES + 1):
        dropped = [[f"{name}", 1] for name in range(names)]
        row = encode([names, 0, dropped, [], [], 5, 6])
        if names == MOST_NAMES:
            assert decode_account(row).counts.read == names
            continue
        with pytest.raises(ValueError, match=f"at most {MOST_NAMES} names in dropped"):
            decode_account(row)


def test_statistics_are_read_as_they_were_written_in_the_order_of_their_names() -> None:
    statistics = {"b": Statistic("kll", b"\0"), "a\udc80": Statistic("count", b""), "": Statistic("count", b"12")}
    row = encode_statistics(statistics)
    assert row is not None
    assert row == encode_statistics(dict(reversed(statistics.items())))
    assert list(decode_statistics(row).items()) == sorted(statistics.items())
    assert encode_statistics({}) is None
    for damaged in (row[:-1], row + b"\0"):
        with pytest.raises(ValueError, match="expected 3 statistics"):
            decode_statistics(damaged)
    many = encode_statistics({f"{name}": Statistic("count", b"") for name in range(MOST_NAMES + 1)})
    assert many is not None
    with pytest.raises(ValueError, match=f"at most {MOST_NAMES} statistics"):
        decode_statistics(many)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (b"d" + name_key("why"), tables.COUNTED_ROW.pack(1) + b"why not", "under its own key in counted"),
        (b"d" + name_key("why"), tables.COUNTED_ROW.pack(1) + b"why", "number of records read to be the sum"),
        (b"w" + name_key("de"), tables.COUNTED_ROW.pack(9) + b"de", "expected at most 5 records written, found 9"),
    ],
    ids=["name", "sum", "most"],
)
def test_sums_that_cannot_be_are_damage(store: LmdbStore, key: bytes, value: bytes, message: str) -> None:
    source = registered(store)
    store.commit([leaf_of(source)])
    assert store.status()["records"] == RecordCounts.plain(5).as_dict()
    store._write(lambda txn: txn.put(tables.COUNTED, key, value))
    with pytest.raises(LedgerDamagedError, match=message):
        store.status()


def test_of_names_that_no_record_has_any_more_nothing_is_kept(store: LmdbStore) -> None:
    source = plain()
    for _ in range(2):
        store.register([source])
        store.commit([counted_leaf(source)])
        store.forget(source.url)
        with store._open().read() as txn:
            assert txn.count(tables.COUNTED) == 0


@pytest.mark.parametrize(
    "row", [["a", 1, 7, 1, 0, 0, "00" * 16], ["a", 1, "x", 1, 0, 0, 7, "00" * 16], ["a", 1, 7, 1, 0, 0, "", "00" * 16]]
)
def test_a_content_that_is_named_by_no_text_is_damage(store: LmdbStore, row: list[object]) -> None:
    store._write(lambda txn: txn.put(OUTPUTS, bytes(32), encode(row)))
    with pytest.raises(LedgerDamagedError, match="checksum and the route of each output as text"):
        list(store.content_columns())


def of_lmdb(kind: type[lmdb.Error], code: int = -30_000) -> lmdb.Error:
    """Return an error as LMDB raises it."""
    error = kind("x")
    error.code = code  # type: ignore[misc]
    return error


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (of_lmdb(lmdb.DiskError), DiskFullError, "no space"),
        (OSError(errno.ENOSPC, "x"), DiskFullError, "no space"),
        (OSError(errno.EDQUOT, "x"), DiskFullError, "no space"),
        (OSError(errno.EIO, "x"), StorageError, "x"),
        (OSError("x"), StorageError, "x"),
        (of_lmdb(lmdb.ReadonlyError), StorageError, "no permission"),
        (PermissionError(errno.EACCES, "x"), StorageError, r"no permission.*For a new job, give a --ledger"),
        (PermissionError(errno.EPERM, "x"), StorageError, "no permission"),
        (OSError(errno.EROFS, "x"), StorageError, "no permission"),
        (of_lmdb(lmdb.CorruptedError), LedgerDamagedError, "not a ledger that this version reads"),
        (of_lmdb(lmdb.InvalidError), LedgerDamagedError, "not a ledger that this version reads"),
        (of_lmdb(lmdb.VersionMismatchError), LedgerDamagedError, "not a ledger that this version reads"),
        (of_lmdb(lmdb.BadTxnError), LedgerError, "x"),
        (of_lmdb(lmdb.Error, errno.ENOSPC), DiskFullError, "no space"),
        (of_lmdb(lmdb.Error, errno.EACCES), StorageError, "no permission"),
        (ValueError("x"), LedgerDamagedError, "is damaged"),
        (KeyError("x"), LedgerDamagedError, "is damaged"),
        (SystemError("x"), LedgerDamagedError, "is damaged"),
        (UsageError("x"), UsageError, "x"),
    ],
)
def test_errors_from_below_are_ours(tmp_path: Path, error: Exception, kind: type[LedgerbeamError], says: str) -> None:
    with pytest.raises(LedgerbeamError, match=says) as found, translated(str(tmp_path)):
        raise error
    assert type(found.value) is kind


@pytest.mark.parametrize("error", [lmdb.MapFullError("x"), lmdb.MapResizedError("x")])
def test_what_grows_the_map_is_left_to_who_began_the_transaction(error: lmdb.Error) -> None:
    with pytest.raises(type(error)), translated("/nowhere"):
        raise error


@pytest.mark.parametrize(("blocks", "kind"), [(0, DiskFullError), (255, DiskFullError), (256, StorageError)])
def test_an_input_error_on_a_full_disk_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: int, kind: type[LedgerbeamError]
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=blocks, f_frsize=4096))
    with pytest.raises(kind) as found, translated(str(tmp_path)):
        raise OSError(errno.EIO, "x")  # so LMDB reports a write that was cut short
    assert type(found.value) is kind
    with pytest.raises(StorageError) as other, translated(str(tmp_path)):
        raise OSError(errno.EXDEV, "x")
    assert type(other.value) is StorageError


@pytest.mark.parametrize(
    ("sizes", "limit", "says"),
    [
        ([10, 5000], (1 << 20) + 4999, "ulimit -f"),
        ([10, 5000], (1 << 20) + 5000, "its disk or its file system failed"),
        ([], (1 << 20) - 1, "ulimit -f"),
        ([], 1 << 20, "its disk or its file system failed"),
    ],
)
def test_an_input_error_near_the_size_limit_names_it(tmp_path: Path, sizes: list[int], limit: int, says: str) -> None:
    for number, size in enumerate(sizes):
        (tmp_path / str(number)).write_bytes(bytes(size))
    for path in [tmp_path] if sizes else [tmp_path, tmp_path / "not there"]:
        with pytest.raises(StorageError, match=says) as found, no_larger_than(limit), translated(str(path)):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        assert type(found.value) is StorageError


def test_where_a_file_can_hardly_grow_other_errors_are_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no permission"), no_larger_than(1), translated(str(tmp_path)):
        raise PermissionError(errno.EACCES, "x")


@pytest.mark.parametrize("number", [*sorted(REMEDIES.keys() - {errno.EROFS}), errno.EXDEV, None])
def test_an_error_has_the_remedy_that_is_known_for_it(tmp_path: Path, number: int | None) -> None:
    with pytest.raises(StorageError) as found, translated(str(tmp_path)):
        raise OSError("x") if number is None else OSError(number, "x")
    known = REMEDIES.get(number) if number is not None else None
    assert str(found.value).endswith(f"; {known}. Nothing that was recorded is lost" if known else "x")


@pytest.mark.parametrize(
    "error", [of_lmdb(lmdb.Error, errno.ENOSPC), of_lmdb(lmdb.DiskError, errno.ENOSPC), OSError(errno.EIO, "x")]
)
def test_a_write_that_the_limit_of_the_process_cuts_is_told_as_that(tmp_path: Path, error: Exception) -> None:
    (tmp_path / "data.mdb").write_bytes(bytes(4096))
    limited = pytest.raises(StorageError, match=r"ulimit -f.*raise the limit")
    with no_larger_than(8192), limited as found, translated(str(tmp_path)):
        raise error
    assert "dmesg" not in str(found.value)
    assert type(found.value) is StorageError


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_full_disk_is_told_near_a_limit_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=0, f_frsize=4096))
    with no_larger_than(8192), pytest.raises(DiskFullError, match="no space"), translated(str(tmp_path)):
        raise OSError(code, "x")


@pytest.mark.parametrize("size", [4096, 65536])
def test_a_ledger_that_the_limit_of_the_process_lets_not_grow_names_it(tmp_path: Path, size: int) -> None:
    store = LmdbStore(str(tmp_path / "L"))

    def fill() -> None:
        store.open(create=True)
        store.register([Source(f"/data/{number}", 1, "1") for number in range(2000)])

    with no_larger_than(size), pytest.raises(StorageError, match=r"ulimit -f.*raise the limit"):
        fill()
    store.close()


SOURCE: dict[str, Any] = {"url": "/a", "size": 1, "version": "v", "number": 2, "back": 3, "changed": [4]}
SOURCE |= {"members": [["/a", 1, "v"], ["/b", 0, "w"]]}
RETIRED: list[Any] = [7, "/a", "/b"]
FAILURE: dict[str, Any] = {"task": "t", "reason": "r", "error": "e", "attempts": 2, "number": 3, "last": 4.5}
DEATHS: dict[str, Any] = {"task": "t", "deaths": [[1, 2.5, 0, True], [1, 2.5, 1, False]]}
JOB: dict[str, Any] = {"pipeline": "map", "parameters": {"a": [1]}}
INFO: dict[str, Any] = {"host": "h", "runner": "r", "folder": "f", "place": "p", "pid": 1, "workers": 2, "free": None}
INFO |= {"command": ["a", "b"]}
RUN: dict[str, Any] = {"began": 1.5, "ended": 2.5, "outcome": "done", "tidied": True, "listed": 3, "info": INFO}
RUN |= {"listing_finished": True, "set_ups": {"times": 2, "seconds": 1.5, "longest": 1.0}}
RUN |= {"time": {"workers": 2, "seconds": {"read": 1.5, "wait": 0.5}, "cpu": {"read": 1.0}}}
RUN |= {"audit": {"tasks": 2, "differ": 1, "found": "a record", "job": "f"}}

READ: dict[Callable[[bytes], Any], tuple[Any, Any]] = {
    read_source_fields: (SOURCE, SOURCE),
    read_retired: (RETIRED, (7, ["/a", "/b"])),
    read_failure: (FAILURE, FAILURE),
    read_deaths: (DEATHS, ("t", [(1, 2.5, 0, True), (1, 2.5, 1, False)])),
    decode_job: (JOB, Job("map", {"a": [1]})),
    read_run: (RUN, RUN),
}
MAY_LACK: dict[Callable[[bytes], Any], set[str]] = {
    read_source_fields: {"number", "back", "changed", "members"},
    read_run: {"tidied", "ended", "outcome", "listed", "set_ups", "time", "read", "wait", "audit", *INFO},
}
MAY_BE_NONE = {"ended", "outcome", "tidied", "listed", "set_ups", "time", "audit", "free", "a"}
FREE = ("free", "a")


@each("read", READ)
def test_a_row_is_read_as_it_was_written(read: Callable[[bytes], Any]) -> None:
    row, expected = READ[read]
    assert read(encode(row)) == expected


def places(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values inside a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, item in inner for found in [(*above, key), *places(item, (*above, key))]]


def changed(row: Any, place: tuple[Any, ...], value: Any) -> bytes:
    made = copy.deepcopy(row)
    inner = made
    for key in place[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return encode(made)


def wrong(value: Any) -> list[Any]:
    """Values of other types than a value, and such as no ledger writes."""
    others: list[Any] = ["x", -1, -0.5, True, None, [[]], {"x": {}}]
    kind = float if isinstance(value, float) else type(value)
    return [other for other in others if type(other) is not kind or other in (-1, -0.5)]


@each(
    ("read", "place"),
    [(read, place) for read, (row, _) in READ.items() for place in places(row) if not {*FREE} & {*place}],
)
def test_a_row_with_a_value_that_cannot_be_is_refused(read: Callable[[bytes], Any], place: tuple[Any, ...]) -> None:
    row: Any = READ[read][0]
    value = row
    for key in place:
        value = value[key]
    for other in wrong(value):
        if other is None and place[-1] in MAY_BE_NONE:
            continue
        with pytest.raises(ValueError, match=r"expected|values to unpack"):
            read(changed(row, place, other))
    if isinstance(place[-1], str):
        lacking = changed(row, place, ...)
        if place[-1] in MAY_LACK.get(read, set()):
            read(lacking)
        else:
            with pytest.raises(ValueError, match="expected"):
                read(lacking)


@each(
    ("read", "row"),
    [
        (read_source_fields, {**SOURCE, "members": [["/a", 1]]}),
        (read_source_fields, [SOURCE]),
        (read_retired, []),
        (read_deaths, {**DEATHS, "deaths": [[1, 2.5, 0]]}),
        (read_deaths, {**DEATHS, "deaths": [[1, 2.5, 0, True, 5]]}),
        (decode_output, ["a", 1, "x", 1, 0]),
        (decode_output, []),
    ],
)
def test_a_row_of_another_shape_is_refused(read: Callable[[bytes], Any], row: Any) -> None:
    with pytest.raises(ValueError, match=r"expected|values to unpack"):
        read(encode(row))


def test_a_run_does_not_name_itself() -> None:
    assert read_run(encode({**RUN, "id": "000077"})) == RUN


def test_the_id_of_a_run_is_a_number() -> None:
    for key in (b"", b"x", b"12x", b"1" * 13, b"-1", b"1000000", b"b1000000", b"a000012", b"aa100000", b"a\xff"):
        with pytest.raises(ValueError, match="expected the id of a run"):
            tables.read_run_key(key)


def test_runs_are_in_the_order_of_their_numbers() -> None:
    numbers = [0, 1, 12, 999_999, 1_000_000, 1_000_001, 9_999_999, 10_000_000, 99_999_999_999, 999_999_999_999]
    keys = [tables.run_key(run_id(number)) for number in numbers]
    assert keys == sorted(keys)
    assert keys[:4] == [b"000000", b"000001", b"000012", b"999999"], "as in every ledger that exists"
    assert [int(tables.read_run_key(key)) for key in keys] == numbers


def test_what_a_run_says_is_no_deeper_than_can_be_followed() -> None:
    value: Any = 1
    for _ in range(63):
        value = [value]
    shallow(value)
    for deeper in ([value], {"a": value}, [1, [value]], {"b": 1, "a": {"c": value}}):
        with pytest.raises(ValueError, match="at most 64 levels"):
            shallow(deeper)


def test_many_outputs_are_read_at_once_as_one_by_one() -> None:
    outputs = [Output("a", 1, "x", 2, 3), Output("b\udcff", 0, "y", 0, 0, nulled=5)]
    rows = [encode_output(output, "00" * 16) for output in outputs]
    assert [decode_output(row) for row in rows] == [(output, "00" * 16) for output in outputs]
    assert [tuple(row[:2]) for row in decode_outputs(rows)] == [(output.name, output.size) for output in outputs]
    assert decode_outputs([]) == []
    for bad in (b"[]", b"1", b"{}", b'["a", "1", "x", 1, 0, ""]', b'[1, 1, "x", 1, 0, ""]', b'["a", 1, "x", 1, ""]'):
        with pytest.raises(ValueError, match="expected the name of an output, its size"):
            decode_outputs([rows[0], bad])
    for bad in (b"", b"1, 2", rows[0] + b"," + rows[0]):
        with pytest.raises(ValueError, match="xpect"):
            decode_outputs([rows[0], bad])
