"""The tables of a ledger in LMDB: their names, the shape of their rows, and a transaction over them.

=========== ================================ ===============================================================
table       key                              value
=========== ================================ ===============================================================
meta        text                             format, id, job, fingerprint, totals, number of withdrawn completions
completed   source                           `pack_completion`: kept small, there are millions
sources     source                           JSON url, size, version, members of a pack, when files were changed last,
                                             in a sidecar numbers, see `registration`; not written when it completes
urls        `identity.url_key`               the source that this URL is now
pending     source, once a leaf arrived      `PENDING_ROW`: its count, then its tally
applied     source + node                    `DELTA`; behind the delta of a leaf a digest of its result, behind that of
                                             a fan-out, in a sidecar, `failures.PASSED`
failed      source + node                    JSON task, reason, error, attempts, last, number of the run
attempts    source + node                    JSON task, deaths: lists of `failures.Death`
outputs     source + `identity.name_key`     JSON of `store.Output` and the node
counts      source + node                    JSON: what became of the records of a task, its bytes and milliseconds;
                                             only of tasks that did not just write all that they read
statistics  source + node                    the sketches of a task, see `accounts`
counted     letter + `identity.name_key`     `COUNTED_ROW`, then a name: the sum of one number of all rows of `counts`
superseded  source + `identity.name_key`     `SUPERSEDED_ROW`, then the name of an output that the source had before
retired     source                           JSON list of a number and the URLs of a source that was replaced
gone        source                           empty: the last listing no longer had it
runs        `run_key`                        JSON
history     `HISTORY_KEY`                    `HISTORY_ROW`
durations   `DURATION_KEY`                   `DURATION_ROW`
cutoffs     source                           JSON; of a sidecar only, see `cutoffs`
folded      name of an object                empty, or what of it is due again; of a sidecar only
=========== ================================ ===============================================================

"source" and "node" are 16 bytes. The entry "source enters" is the existence of its row in `sources`, so that a
registered source costs two rows. Completed sources are always registered. Integers are little-endian.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from struct import Struct
from typing import Any

import lmdb

from ledgerbeam.ledger.model.identity import ID_BYTES
from ledgerbeam.ledger.model.rows import Totals

META = "meta"
COMPLETED = "completed"
SOURCES = "sources"
URLS = "urls"
PENDING = "pending"
APPLIED = "applied"
FAILED = "failed"
ATTEMPTS = "attempts"
OUTPUTS = "outputs"
COUNTS = "counts"
STATISTICS = "statistics"
COUNTED = "counted"
SUPERSEDED = "superseded"
RETIRED = "retired"
GONE = "gone"
RUNS = "runs"
HISTORY = "history"
DURATIONS = "durations"
CUTOFFS = "cutoffs"
FOLDED = "folded"

TABLES = (
    META,
    COMPLETED,
    SOURCES,
    URLS,
    PENDING,
    APPLIED,
    FAILED,
    ATTEMPTS,
    OUTPUTS,
    COUNTS,
    STATISTICS,
    COUNTED,
    SUPERSEDED,
    RETIRED,
    GONE,
    RUNS,
    HISTORY,
    DURATIONS,
    CUTOFFS,
    FOLDED,
)
"""Every table of a ledger."""

ADDED = (COUNTS, STATISTICS, COUNTED)
"""The tables that ledgers of older versions lack; opening a ledger for writing adds them."""

_KEY_BYTES = {
    **dict.fromkeys((COMPLETED, SOURCES, URLS, PENDING, RETIRED, GONE, CUTOFFS), ID_BYTES),
    **dict.fromkeys((APPLIED, FAILED, ATTEMPTS, OUTPUTS, COUNTS, STATISTICS, SUPERSEDED), 2 * ID_BYTES),
    COUNTED: 1 + ID_BYTES,
    HISTORY: 12,
    DURATIONS: 2,
}
"""The lengths of keys that are all of one length; but see `STEP_KEY`."""

_COMPLETED_ROW = Struct("<IIIIII")
_LARGE_COMPLETED_ROW = Struct("<IQQQQQ")

PENDING_ROW = Struct("<qqqqqq")
"""Live tasks; then the `store.Totals` of the source's recorded leaves."""

TALLY_ROW = Struct("<qqqqq")
"""`store.Totals`: of all sources, or of a step of history."""

HISTORY_KEY = Struct(">IQ")
"""Number of the step since 1970; then the number of the run that recorded, 0 if it is not known."""

STEP_KEY = Struct(">I")
"""The key of a step of history in ledgers of older versions, which did not tell runs apart."""

HISTORY_ROW = Struct("<qqqqqqq")
"""`store.Totals` of a step; then its completed sources and its failures."""

DURATION_KEY = Struct(">H")
"""Step of the scale of `history`."""

DURATION_ROW = Struct("<q")
"""Number of tasks."""

COUNTED_ROW = Struct("<q")
"""A number of records."""

SUPERSEDED_ROW = Struct("<Q")
"""Number with which it was superseded, in a remote ledger, see `superseded.supersede`; else 0."""

DELTA = Struct("<q")
"""What an entry added to the count of its source."""

KEY_FORMAT = b"format"
KEY_ID = b"id"
KEY_JOB = b"job"
KEY_FINGERPRINT = b"fingerprint"
KEY_TOTALS = b"totals"
KEY_WITHDRAWN = b"withdrawn"


def pack_completion(completed: int, tally: Totals) -> bytes:
    """Make a row of `completed`: when (seconds since 1970) and the sum of the source's leaves; 24 bytes, or 44."""
    kind = _COMPLETED_ROW if max(tally) < 2**32 else _LARGE_COMPLETED_ROW
    return kind.pack(completed % 2**32, *tally)


def unpack_completion(row: bytes) -> tuple[int, Totals]:
    """Read a row of `completed`."""
    kind = _COMPLETED_ROW if len(row) == _COMPLETED_ROW.size else _LARGE_COMPLETED_ROW
    completed, *tally = kind.unpack(row)
    return completed, Totals(*tally)


Handles = dict[str, Any]
"""LMDB's handle of each table."""


class Transaction:
    """One LMDB transaction with the tables by name. Rows are bytes; see the module's table."""

    __slots__ = ("_handles", "_txn")

    def __init__(self, txn: lmdb.Transaction[bytes], handles: Handles) -> None:
        self._txn = txn
        self._handles = handles

    def get(self, table: str, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        return self._txn.get(key, db=self._handles[table])

    def put(self, table: str, key: bytes, value: bytes, *, overwrite: bool = True) -> bool:
        """Write a row; False if it exists and must not be overwritten."""
        return self._txn.put(key, value, overwrite=overwrite, db=self._handles[table])

    def put_many(self, table: str, rows: Iterable[tuple[bytes, bytes]], *, overwrite: bool = True) -> None:
        """Write rows of different keys; those that exist stay if they must not be overwritten."""
        with self._txn.cursor(self._handles[table]) as cursor:
            cursor.putmulti(sorted(rows), overwrite=overwrite)

    def get_many(self, table: str, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the rows that exist among `keys`."""
        with self._txn.cursor(self._handles[table]) as cursor:
            return dict(cursor.getmulti(sorted(keys)))

    def pop(self, table: str, key: bytes) -> bytes | None:
        """Delete a row and give its value, or None."""
        return self._txn.pop(key, db=self._handles[table])

    def delete(self, table: str, key: bytes) -> bool:
        """Delete a row; False if there was none."""
        return self._txn.delete(key, db=self._handles[table])

    def count(self, table: str) -> int:
        """Return number of rows; costs nothing."""
        return self._txn.stat(self._handles[table])["entries"]

    def clear(self, table: str) -> None:
        """Delete every row."""
        self._txn.drop(self._handles[table], delete=False)

    def scan(self, table: str, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """Return every row whose key starts with `prefix`, in key order."""
        return list(self.rows(table, prefix))

    def rows(self, table: str, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the results of `scan` one by one; nothing may be written meanwhile."""
        with self._txn.cursor(self._handles[table]) as cursor:
            if cursor.set_range(prefix):
                for key, value in cursor.iternext():
                    if not key.startswith(prefix):
                        return
                    _check_keys(table, [key])
                    yield key, value

    def page(self, table: str, start: bytes, size: int, most_bytes: int | None = None) -> list[tuple[bytes, bytes]]:
        """Return at most `size` rows in key order, from the first key >= `start`.

        Args:
            table: Of the rows.
            start: Where to begin.
            size: Rows at most.
            most_bytes: The page ends with the row that makes its values so large; None does not look.
        """
        with self._txn.cursor(self._handles[table]) as cursor:
            found = islice(cursor.iternext(), size) if cursor.set_range(start) else iter(())
            rows = list(found if most_bytes is None else _up_to(found, most_bytes))
        _check_keys(table, (key for key, _ in rows))
        return rows

    def page_of_keys(self, table: str, start: bytes, size: int) -> list[bytes]:
        """Return the keys of `page`."""
        with self._txn.cursor(self._handles[table]) as cursor:
            keys = list(islice(cursor.iternext(values=False), size)) if cursor.set_range(start) else []
        _check_keys(table, keys)
        return keys

    def last(self, table: str) -> tuple[bytes, bytes] | None:
        """Return the row with the greatest key, or None."""
        with self._txn.cursor(self._handles[table]) as cursor:
            return cursor.item() if cursor.last() else None

    def prefixes(self, table: str, length: int) -> Iterator[bytes]:
        """Return the distinct first `length` bytes of the keys, in order, without reading all rows."""
        with self._txn.cursor(self._handles[table]) as cursor:
            found = cursor.first()
            while found:
                key = cursor.key()
                _check_keys(table, [key])
                prefix = key[:length]
                yield prefix
                found = cursor.set_range(prefix + b"\xff" * 64)

    def drop_prefix(self, table: str, prefix: bytes) -> None:
        """Delete every row whose key starts with `prefix`, however large the rows are together."""
        with self._txn.cursor(self._handles[table]) as cursor:
            found = cursor.set_range(prefix)
            while found and cursor.key().startswith(prefix):
                found = cursor.delete()

    def delete_prefix(self, table: str, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """Delete every row with a key that starts with `prefix`, and return the rows."""
        rows: list[tuple[bytes, bytes]] = []
        with self._txn.cursor(self._handles[table]) as cursor:
            found = cursor.set_range(prefix)
            while found and cursor.key().startswith(prefix):
                rows.append(cursor.item())
                found = cursor.delete()
        return rows


def _up_to(rows: Iterable[tuple[bytes, bytes]], most_bytes: int) -> Iterator[tuple[bytes, bytes]]:
    size = 0
    for key, value in rows:
        yield key, value
        size += len(value)
        if size >= most_bytes:
            return


def _check_keys(table: str, keys: Iterable[bytes]) -> None:
    """Check the lengths of keys. Raises ValueError."""
    expected = _KEY_BYTES.get(table)
    if expected is None:
        return
    lengths = set(map(len, keys))
    if table == HISTORY:
        lengths.discard(STEP_KEY.size)
    if not lengths <= {expected}:
        raise ValueError(f"expected keys of {expected} bytes in the table {table}, found others")
