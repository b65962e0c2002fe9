"""Rows that lie in ledgers for ever, and the errors of what they lie in."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from ledgerbeam.errors import (
    DiskFullError,
    LedgerbeamError,
    LedgerDamagedError,
    LedgerError,
    StorageError,
    UsageError,
)
from ledgerbeam.ledger.lmdb_errors import translated
from ledgerbeam.ledger.lmdb_history import duration_steps
from ledgerbeam.ledger.lmdb_rows import (
    COMPLETED,
    OUTPUTS,
    PENDING_ROW,
    TALLY_ROW,
    Transaction,
    pack_completion,
    unpack_completion,
)
from ledgerbeam.ledger.lmdb_store import LmdbStore
from ledgerbeam.ledger.store import Totals


@pytest.mark.parametrize(
    ("tally", "size"),
    [(Totals(), 24), (Totals(1, 2, 2**32 - 1, 4, 5), 24), (Totals(1, 2, 2**32, 4, 5), 44), (Totals(2**63, 1), 44)],
)
def test_a_completion_is_read_as_it_was_written(tally: Totals, size: int) -> None:
    row = pack_completion(1_700_000_000, tally)
    assert (len(row), unpack_completion(row)) == (size, (1_700_000_000, tally))
    assert unpack_completion(pack_completion(2**32 + 5, tally))[0] == 5


def test_rows_stay_what_they_are_for_ever() -> None:
    # Every ledger that exists has rows of these forms.
    totals = Totals(1, 2, 3, 4, 5)
    assert pack_completion(6, totals).hex() == "060000000100000002000000030000000400000005000000"
    assert PENDING_ROW.pack(6, *totals)[:16].hex() == "06000000000000000100000000000000"
    assert TALLY_ROW.size == 40
    assert duration_steps([0.0, 1e-4, 0.01, 1.0, 1.0, 3600.0, 1e300]) == {0: 2, 53: 1, 106: 2, 201: 1, 8000: 1}


LENGTHS = {
    **dict.fromkeys(["completed", "sources", "urls", "pending", "retired", "gone", "floors"], 16),
    **dict.fromkeys(["applied", "failed", "attempts", "outputs", "superseded"], 32),
    "history": 4,
    "durations": 2,
}


@pytest.mark.parametrize("table", LENGTHS)
@pytest.mark.parametrize("difference", [-1, 1])
def test_keys_of_another_length_are_damage(store: LmdbStore, table: str, difference: int) -> None:
    length = LENGTHS[table]
    store._write(lambda txn: txn.put(table, bytes(length), b""))

    def readers(txn: Transaction) -> list[Callable[[], object]]:
        return [
            lambda: txn.page(table, b"", 10),
            lambda: txn.page_of_keys(table, b"", 10),
            lambda: txn.scan(table, b""),
            lambda: list(txn.prefixes(table, 1)),
        ]

    for number in range(4):
        with store._open().read() as txn:
            assert readers(txn)[number]()
    store._write(lambda txn: txn.put(table, b"\xff" * (length + difference), b""))
    for number in range(4):
        with (
            pytest.raises(LedgerDamagedError, match=f"keys of {length} bytes in the table {table}"),
            store._open().read() as txn,
        ):
            readers(txn)[number]()


def test_rows_are_read_by_their_prefix_and_deleted_by_it(store: LmdbStore) -> None:
    prefixes = [bytes([number]) * 16 for number in (1, 2, 255)]
    keys = [prefix + bytes([tail]) * 16 for prefix in prefixes for tail in (0, 7, 255)]
    store._write(lambda txn: txn.put_many(OUTPUTS, ((key, key[:1]) for key in reversed(keys))))
    with store._open().read() as txn:
        for number, prefix in enumerate(prefixes):
            assert [key for key, _ in txn.scan(OUTPUTS, prefix)] == keys[3 * number : 3 * number + 3]
        assert txn.scan(OUTPUTS, b"\3" * 16) == []
        assert list(txn.prefixes(OUTPUTS, 16)) == prefixes
        assert [key for key, _ in txn.page(OUTPUTS, keys[2], 4)] == txn.page_of_keys(OUTPUTS, keys[2], 4) == keys[2:6]
        assert (txn.page(OUTPUTS, b"\xff" * 33, 4), txn.page_of_keys(OUTPUTS, b"\xff" * 33, 4)) == ([], [])
        assert txn.get_many(OUTPUTS, [keys[8], keys[0], bytes(32)]) == {keys[0]: b"\1", keys[8]: b"\xff"}
        assert (txn.last(OUTPUTS), txn.last(COMPLETED)) == ((keys[8], b"\xff"), None)
    assert store._write(lambda txn: [key for key, _ in txn.delete_prefix(OUTPUTS, prefixes[1])]) == keys[3:6]
    assert store._write(lambda txn: txn.delete_prefix(OUTPUTS, prefixes[1])) == []
    assert store.output_count() == 6
    assert store._write(lambda txn: txn.put(OUTPUTS, keys[0], b"new", overwrite=False)) is False
    store._write(lambda txn: txn.put_many(OUTPUTS, [(keys[0], b"new"), (keys[3], b"new")], overwrite=False))
    with store._open().read() as txn:
        assert txn.get_many(OUTPUTS, (keys[3], keys[0])) == {keys[0]: b"\1", keys[3]: b"new"}


def of_lmdb(kind: type[lmdb.Error], code: int = -30_000) -> lmdb.Error:
    """An error as LMDB raises it."""
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
        (PermissionError(errno.EACCES, "x"), StorageError, "no permission"),
        (PermissionError(errno.EPERM, "x"), StorageError, "no permission"),
        (OSError(errno.EROFS, "x"), StorageError, "no permission"),
        (of_lmdb(lmdb.CorruptedError), LedgerDamagedError, "not a ledger that this version reads"),
        (of_lmdb(lmdb.InvalidError), LedgerDamagedError, "not a ledger that this version reads"),
        (of_lmdb(lmdb.VersionMismatchError), LedgerDamagedError, "not a ledger that this version reads"),
        (of_lmdb(lmdb.BadTxnError), LedgerError, "x"),
        (of_lmdb(lmdb.Error, errno.ENOSPC), DiskFullError, "no space"),
        (of_lmdb(lmdb.Error, errno.EACCES), StorageError, "no permission"),
        (ValueError("x"), LedgerDamagedError, "does not read"),
        (KeyError("x"), LedgerDamagedError, "does not read"),
        (UsageError("x"), UsageError, "x"),
    ],
)
def test_an_error_of_what_lies_below_is_one_of_ours(
    tmp_path: Path, error: Exception, kind: type[LedgerbeamError], says: str
) -> None:
    with pytest.raises(LedgerbeamError, match=says) as found, translated(str(tmp_path)):
        raise error
    assert type(found.value) is kind


@pytest.mark.parametrize("error", [lmdb.MapFullError("x"), lmdb.MapResizedError("x")])
def test_what_grows_the_map_is_left_to_who_began_the_transaction(error: lmdb.Error) -> None:
    with pytest.raises(type(error)), translated("/nowhere"):
        raise error


def test_an_input_error_where_nothing_can_be_seen_is_no_full_disk() -> None:
    with pytest.raises(StorageError), translated("/nowhere/at/all"):
        raise OSError(errno.EIO, "x")
