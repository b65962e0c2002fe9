"""The tables of a ledger in LMDB: their names, the layout of their rows, and a transaction over them.

=========== ================================ ===============================================================
table       key                              value
=========== ================================ ===============================================================
meta        text                             format, id, job, fingerprint, totals, number of withdrawn completions
completed   source                           `pack_completion`: kept small, since there are millions
sources     source                           JSON url, size, version, members of a pack, last change of its files,
                                             in a sidecar numbers, see `registration`; not written when it completes
urls        `identity.url_key`               the source that now owns this URL
pending     source, once a leaf arrived      `PENDING_ROW`: its count, then the sum of its leaves
applied     source + node                    `DELTA`; then for a leaf a digest of its result, for a fan-out in a
                                             sidecar `failures.PASSED`
failed      source + node                    JSON task, reason, error, attempts, last, number of the run
attempts    source + node                    JSON task, deaths: lists of `failures.Death`
outputs     source + `identity.name_key`     JSON of `store.Output` and the node
counts      source + node                    JSON: the record counts of a task, its bytes and milliseconds; no row if
                                             the task wrote exactly the records that it read
statistics  source + node                    the sketches of a task, see `accounts`
counted     letter + `identity.name_key`     `COUNTED_ROW`, then a name: the sum of one number of all rows of `counts`
superseded  source + `identity.name_key`     `SUPERSEDED_ROW`, then the name of a former output of the source
withdrawn   source                           JSON of `rows.Withdrawn`, until the source is complete
retired     source                           JSON list: number with which it was replaced, then its URLs
gone        source                           empty: missing from the last listing
runs        `run_key`                        JSON
history     `HISTORY_KEY`                    `HISTORY_ROW`
durations   `DURATION_KEY`                   `DURATION_ROW`
cutoffs     source                           JSON, in sidecars only; see `registration.Cutoff`
folded      name of an object                empty, or the part to be folded again; in sidecars only
=========== ================================ ===============================================================

Each value is followed by a checksum of the ledger's id, the table, the key and the value: a disk may return other bytes
than were written, and LMDB's pages have no checksums. This does not detect a row that a damaged page hides. Where a row
must exist, or must not exist, the reader checks it. Any program that can write to a ledger can put damaged rows into
it: each function that decodes a row raises ValueError for a row that no ledger writes. `errors.translated` converts
this to LedgerDamagedError.

"source" and "node" are the ids of a source and of a task, 16 bytes each. A registered source has a row in `sources`,
and one in `urls` for each of its URLs. Its entry `identity.ROOT` follows from these rows, and is not in `applied`.
Completed sources are always registered. Integers are little-endian.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, repeat
from operator import itemgetter, lt
from struct import Struct
from typing import Any, NamedTuple
from zlib import crc32

import lmdb

from ledgerbeam.ledger.model.identity import ID_BYTES
from ledgerbeam.ledger.model.rows import Totals

FORMAT = 3
"""Version of the tables and their rows. Remote ledgers have their own version, since their sidecars can be rebuilt."""

META, COMPLETED, SOURCES, URLS, PENDING, APPLIED = "meta", "completed", "sources", "urls", "pending", "applied"
FAILED, ATTEMPTS, OUTPUTS, COUNTS, STATISTICS = "failed", "attempts", "outputs", "counts", "statistics"
COUNTED, SUPERSEDED, WITHDRAWN, RETIRED, GONE = "counted", "superseded", "withdrawn", "retired", "gone"
RUNS, HISTORY, DURATIONS, CUTOFFS, FOLDED = "runs", "history", "durations", "cutoffs", "folded"
TABLES = (
    *(META, COMPLETED, SOURCES, URLS, PENDING, APPLIED, FAILED, ATTEMPTS, OUTPUTS, COUNTS, STATISTICS),
    *(COUNTED, SUPERSEDED, WITHDRAWN, RETIRED, GONE, RUNS, HISTORY, DURATIONS, CUTOFFS, FOLDED),
)
"""Every table of a ledger."""

OF_A_JOB = (
    *(WITHDRAWN, COMPLETED, SOURCES, PENDING, APPLIED, FAILED, ATTEMPTS, OUTPUTS, COUNTS, STATISTICS),
    *(COUNTED, RETIRED, GONE),
)
"""Tables that a restart with another job clears."""

_KEY_BYTES = {
    **dict.fromkeys((COMPLETED, SOURCES, URLS, PENDING, WITHDRAWN, RETIRED, GONE, CUTOFFS), ID_BYTES),
    **dict.fromkeys((APPLIED, FAILED, ATTEMPTS, OUTPUTS, COUNTS, STATISTICS, SUPERSEDED), 2 * ID_BYTES),
    COUNTED: 1 + ID_BYTES,
    HISTORY: 12,
    DURATIONS: 2,
}
"""Lengths of keys, for tables whose keys all have the same length."""

_COMPLETED_ROW = Struct("<IIIIII")
_LARGE_COMPLETED_ROW = Struct("<IQQQQQ")

PENDING_ROW = Struct("<qqqqqq")  # live tasks; then the `store.Totals` of the source's recorded leaves
TALLY_ROW = Struct("<qqqqq")  # `store.Totals`: of all sources, or of a step of history

HISTORY_KEY = Struct(">IQ")
"""Number of the step since 1970; then the number of the run that recorded it, 0 if it is not known."""

HISTORY_ROW = Struct("<qqqqqqq")  # `store.Totals` of a step; then its completed sources and its failures
DURATION_KEY = Struct(">H")  # step of the scale of `accounts`
DURATION_ROW = Struct("<q")  # number of tasks
COUNTED_ROW = Struct("<q")  # a number of records

SUPERSEDED_ROW = Struct("<Q")
"""Number with which it was superseded, in a remote ledger; else 0. See `withdrawal.supersede`."""

DELTA = Struct("<q")  # the change of the count of a source by an entry

KEY_FORMAT, KEY_ID, KEY_JOB, KEY_FINGERPRINT = b"format", b"id", b"job", b"fingerprint"
KEY_TOTALS, KEY_WITHDRAWN = b"totals", b"withdrawn"


def pack_completion(completed: int, tally: Totals) -> bytes:
    """Encode a row of `completed`: time (seconds since 1970) and the sum of the source's leaves; 24 bytes, or 44."""
    kind = _COMPLETED_ROW if max(tally) < 2**32 else _LARGE_COMPLETED_ROW
    return kind.pack(completed % 2**32, *tally)


def unpack_completion(row: bytes) -> tuple[int, Totals]:
    """Decode a row of `completed`."""
    kind = _COMPLETED_ROW if len(row) == _COMPLETED_ROW.size else _LARGE_COMPLETED_ROW
    completed, *tally = kind.unpack(row)
    return completed, Totals(*tally)


_SUM = Struct("<I")
_WHOLE = crc32(_SUM.pack(0))  # the CRC of any row followed by its own checksum

Row = tuple[bytes, bytes]  # a key and its value

PAGE_ROWS = 10_000  # number of rows of a page


class StoredTable(NamedTuple):
    """A table of one ledger: LMDB's handle, and the seed of the checksums of its rows."""

    name: str
    handle: Any
    seed: int

    @classmethod
    def of(cls, name: str, handle: Any, ledger: bytes) -> StoredTable:
        """Return a table of the ledger with the id `ledger`. The id is empty for the table `meta`, which stores it."""
        return cls(name, handle, crc32(name.encode(), crc32(b"" if name == META else ledger)))

    def summed(self, key: bytes, value: bytes) -> bytes:
        """Return a value followed by its checksum."""
        return value + _SUM.pack(crc32(value, crc32(key, self.seed)))

    def value(self, key: bytes, summed: bytes) -> bytes:
        """Return a stored value without its checksum. Raises ValueError if the checksum is wrong."""
        if crc32(summed, crc32(key, self.seed)) != _WHOLE:
            raise self._damage()
        return summed[: -_SUM.size]

    def rows(self, found: Sequence[Row]) -> list[Row]:
        """Return rows without their checksums; raises like `value`."""
        seeds = map(crc32, map(itemgetter(0), found), repeat(self.seed))
        if not {_WHOLE}.issuperset(map(crc32, map(itemgetter(1), found), seeds)):
            raise self._damage()
        return [(key, summed[: -_SUM.size]) for key, summed in found]

    def _damage(self) -> ValueError:
        return ValueError(f"expected a row of the table {self.name} with its checksum, found another checksum")


Tables = dict[str, StoredTable]  # all tables of a ledger by name


class Transaction:
    """One LMDB transaction with the tables by name. Rows are bytes; see the module's table."""

    __slots__ = ("_tables", "_txn")

    def __init__(self, txn: lmdb.Transaction[bytes], tables: Tables) -> None:
        self._txn = txn
        self._tables = tables

    @property
    def moment(self) -> int:
        """Number of the newest commit that the transaction sees."""
        return self._txn.id()

    def get(self, table: str, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        of = self._tables[table]
        found = self._txn.get(key, db=of.handle)
        return None if found is None else of.value(key, found)

    def put(self, table: str, key: bytes, value: bytes, *, overwrite: bool = True) -> bool:
        """Write a row; return False if it exists and must not be overwritten."""
        of = self._tables[table]
        return self._txn.put(key, of.summed(key, value), overwrite=overwrite, db=of.handle)

    def put_many(self, table: str, rows: Iterable[Row], *, overwrite: bool = True) -> int:
        """Write rows of different keys; return the number of new rows. Without `overwrite`, existing rows stay."""
        of = self._tables[table]
        summed = [(key, of.summed(key, value)) for key, value in sorted(rows)]
        with self._txn.cursor(of.handle) as cursor:
            return cursor.putmulti(summed, overwrite=overwrite)[1]

    def get_many(self, table: str, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the rows that exist among `keys`."""
        of = self._tables[table]
        with self._txn.cursor(of.handle) as cursor:
            return dict(of.rows(cursor.getmulti(sorted(keys))))

    def pop(self, table: str, key: bytes) -> bytes | None:
        """Delete a row and return its value; None if it does not exist."""
        of = self._tables[table]
        found = self._txn.pop(key, db=of.handle)
        return None if found is None else of.value(key, found)

    def delete(self, table: str, key: bytes) -> bool:
        """Delete a row; return False if it does not exist."""
        return self._txn.delete(key, db=self._tables[table].handle)

    def count(self, table: str) -> int:
        """Return the number of rows, in constant time."""
        about = self._txn.stat(self._tables[table].handle)
        if bool(about["entries"]) != bool(about["depth"]):
            what = f"expected pages for {about['entries']} rows of the table {table}"
            raise ValueError(f"{what}, found a page tree of depth {about['depth']}")
        return about["entries"]

    def clear(self, table: str) -> None:
        """Delete every row."""
        self._txn.drop(self._tables[table].handle, delete=False)

    def scan(self, table: str, prefix: bytes) -> list[Row]:
        """Return every row whose key starts with `prefix`, in key order."""
        return list(self.rows(table, prefix))

    def rows(self, table: str, prefix: bytes) -> Iterator[Row]:
        """Yield the rows of `scan` one by one. The caller must write nothing until the end."""
        of, seen, last = self._tables[table], 0, b""
        with self._txn.cursor(of.handle) as cursor:
            for key, summed in cursor.iternext() if cursor.set_range(prefix) else ():
                if not key.startswith(prefix):
                    break
                _check_keys(table, [key], last)
                yield key, of.value(key, summed)
                seen, last = seen + 1, key + b"\0"
        if not prefix:
            self.require_all(table, seen)

    def require_all(self, table: str, seen: int) -> None:
        """Check that `seen`, the rows found by a complete pass, are all rows of the table. Raises ValueError."""
        if seen != self.count(table):
            raise ValueError(f"expected {self.count(table):,} rows of the table {table}, found {seen:,}")

    def page(self, table: str, start: bytes, size: int, most_bytes: int | None = None) -> list[Row]:
        """Return at most `size` rows in key order, from the first key >= `start`.

        The page ends with the row at which its values reach `most_bytes`, if it is given.
        """
        with self._txn.cursor(self._tables[table].handle) as cursor:
            found = islice(cursor.iternext(), size) if cursor.set_range(start) else iter(())
            rows = list(found if most_bytes is None else _up_to(found, most_bytes))
        _check_keys(table, [key for key, _ in rows], start)
        return self._tables[table].rows(rows)

    def pages(self, table: str, start: bytes = b"", most_bytes: int | None = None) -> Iterator[list[Row]]:
        """Yield all rows of a table from the first key >= `start`, in pages; see `page`.

        Other tables may be changed meanwhile.
        """
        seen, is_whole = 0, not start
        while page := self.page(table, start, PAGE_ROWS, most_bytes):
            yield page
            seen, start = seen + len(page), page[-1][0] + b"\0"  # the least key after the last one
        if is_whole:
            self.require_all(table, seen)

    def last(self, table: str) -> Row | None:
        """Return the row with the greatest key; None if the table is empty."""
        of = self._tables[table]
        with self._txn.cursor(of.handle) as cursor:
            return of.rows([cursor.item()])[0] if cursor.last() else None

    def prefixes(self, table: str, length: int) -> Iterator[bytes]:
        """Yield the distinct first `length` bytes of the keys, in order, without reading all rows."""
        of, prefix = self._tables[table], b""
        with self._txn.cursor(of.handle) as cursor:
            found = cursor.first()
            while found:
                row = cursor.item()
                of.rows([row])
                _check_keys(table, [row[0]], prefix)
                prefix = row[0][:length]
                yield prefix
                found = cursor.set_range(prefix + b"\xff" * 64)

    def drop_prefix(self, table: str, prefix: bytes) -> None:
        """Delete every row whose key starts with `prefix`, without holding the rows in memory."""
        with self._txn.cursor(self._tables[table].handle) as cursor:
            found = cursor.set_range(prefix)
            while found and cursor.key().startswith(prefix):
                found = cursor.delete()

    def delete_prefix(self, table: str, prefix: bytes) -> list[Row]:
        """Delete every row with a key that starts with `prefix`, and return the rows."""
        of, found = self._tables[table], list[Row]()
        with self._txn.cursor(of.handle) as cursor:
            more = cursor.set_range(prefix)
            while more and cursor.key().startswith(prefix):
                found.append(cursor.item())
                more = cursor.delete()
        return of.rows(found)


def _up_to(rows: Iterable[tuple[bytes, bytes]], most_bytes: int) -> Iterator[tuple[bytes, bytes]]:
    size = 0
    for key, value in rows:
        yield key, value
        size += len(value) - _SUM.size
        if size >= most_bytes:
            return


def _check_keys(table: str, keys: Sequence[bytes], start: bytes) -> None:
    """Check the lengths of keys, and that they ascend from `start`. Raises ValueError."""
    expected = _KEY_BYTES.get(table)
    if expected is not None and not set(map(len, keys)) <= {expected}:
        raise ValueError(f"expected keys of {expected} bytes in the table {table}, found a key of another length")
    if keys and (keys[0] < start or not all(map(lt, keys, islice(keys, 1, None)))):
        raise ValueError(f"expected the keys of the table {table} in ascending order, found another order")


_RUN_KEY = re.compile(rb"[0-9]{1,6}|[a-f][0-9]{7,12}")


_RUN_DIGITS = 6  # least number of digits of an id


def run_key(run: str) -> bytes:
    """Return the key of `runs` for the id of a run.

    The key is the id. An id of more than six digits has a letter for its length in front: keys sort as numbers.
    """
    more = len(run) - _RUN_DIGITS
    letter = chr(ord("a") + more - 1) if 0 < more <= _RUN_DIGITS else ""
    return (letter + run).encode("utf-8", "surrogatepass")


def read_run_key(key: bytes) -> str:
    """Decode a key of `runs`: the id of the run."""
    run = key.lstrip(b"abcdef").decode("utf-8", "replace")
    if _RUN_KEY.fullmatch(key) is None or run_key(run) != key:
        raise ValueError(f"expected the id of a run as a key of the table {RUNS}, found {key[:80]!r}")
    return run
