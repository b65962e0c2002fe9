"""Read-only views of a ledger: status, failures, sources, outputs, and which sources are complete.

A look-up of a random id in LMDB reads a random page, and pages that were read count as memory of the process. A rerun
of a large job looks up nearly all ids. So once enough ids were found one by one, all completed ids are read in key
order into two columns, 16 bytes an id. Later look-ups search the columns.

An id in the columns stays complete until a completion is withdrawn. The ledger counts withdrawals, and another number
makes the columns invalid. Other ids need a look-up in LMDB, since they may have been completed later.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from operator import attrgetter, itemgetter
from typing import Any, TypeAlias

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.ledger.lmdb import accounts, tables
from ledgerbeam.ledger.lmdb.commit import decode_output, decode_outputs, read_totals
from ledgerbeam.ledger.lmdb.environment import Environment, key_pages, row_pages
from ledgerbeam.ledger.lmdb.errors import translated
from ledgerbeam.ledger.lmdb.failures import TaskFailures, has_failed, read_failure
from ledgerbeam.ledger.lmdb.jobs import all_runs, last_run, read_job
from ledgerbeam.ledger.lmdb.sources import read_source_fields
from ledgerbeam.ledger.lmdb.tables import Transaction
from ledgerbeam.ledger.model.counting import is_done, require_count
from ledgerbeam.ledger.model.identity import ID_BYTES, ROOT, Lineage
from ledgerbeam.ledger.model.rows import (
    Audit,
    ContentColumns,
    FailureRow,
    Output,
    OutputColumns,
    OutputRow,
    SourceProgress,
    SourceRow,
    TaskCountsRow,
    Totals,
    audit_of,
)

_SOURCES_A_TRANSACTION = 256
_WITH_ROUTE = 8  # number of values in the row of an output that has a route


def gone_ids(txn: Transaction) -> set[bytes]:
    """Return the ids of the sources missing from the last finished listing."""
    return set(txn.prefixes(tables.GONE, ID_BYTES))


def status(txn: Transaction) -> dict[str, Any]:
    """Return the progress of the job; see `store.LedgerStore.status`."""
    job = read_job(txn)
    run = last_run(txn)
    totals = read_totals(txn)
    complete, known = txn.count(tables.COMPLETED), txn.count(tables.SOURCES)
    gone = gone_ids(txn)
    gone_open = sum(txn.get(tables.COMPLETED, source) is None for source in gone)
    with_failures = set(txn.prefixes(tables.FAILED, ID_BYTES))
    failed = len(with_failures - gone)
    failed_tasks = txn.count(tables.FAILED) - sum(
        len(txn.scan(tables.FAILED, source)) for source in with_failures & gone
    )
    still_open = known - complete - gone_open - failed
    if complete and txn.get(tables.META, tables.KEY_TOTALS) is None:
        raise ValueError(f"expected the sums of {complete} complete sources in the table {tables.META}, found none")
    if still_open < 0:
        raise ValueError(f"expected at least {known - still_open} rows of the table {tables.SOURCES}, found {known}")
    listed = run is not None and bool(run["listing_finished"])
    is_any = complete > 0 or (run is not None and run["listed"] == 0)  # else all sources were forgotten since
    audit = Audit() if job is None else audit_of(all_runs(txn), job.fingerprint)
    return {
        "job": None if job is None else {**job.as_dict(), "fingerprint": job.fingerprint},
        "sources": {"complete": complete, "open": still_open, "failed": failed},
        "tasks": {"done": totals.tasks, "failed": failed_tasks},
        "records": accounts.record_counts(txn, totals).as_dict(),
        "bytes": totals.bytes,
        "filtered": totals.filtered,
        "complete": listed and is_any and still_open == 0 and failed == 0,
        "listed": None if run is None else run["listed"],
        "gone": len(gone),
        "audit": {"tasks": audit.tasks, "differ": audit.differ},
        "last_run": run,
    }


def applied(txn: Transaction, source: bytes) -> dict[bytes, int]:
    """Return the recorded changes of an open source's count, by task id; see `store.LedgerStore.applied`."""
    if txn.get(tables.SOURCES, source) is None or txn.get(tables.COMPLETED, source) is not None:
        return {}
    row = txn.get(tables.PENDING, source)
    if row is None:
        return {ROOT: 1}
    found = {key[ID_BYTES:]: tables.DELTA.unpack_from(value)[0] for key, value in txn.scan(tables.APPLIED, source)}
    require_count(tables.PENDING_ROW.unpack(row)[0], found.values())
    return {ROOT: 1, **found}


def is_finished(txn: Transaction, source: bytes, lineage: Lineage) -> bool:
    """Return whether a task and all tasks that it fanned out into are done. Only the rows of these tasks are read."""
    if txn.get(tables.COMPLETED, source) is not None:
        return True
    if txn.get(tables.PENDING, source) is None:
        return False

    def delta(node: bytes) -> int | None:
        row = txn.get(tables.APPLIED, source + node)
        return None if row is None else int(tables.DELTA.unpack_from(row)[0])

    return is_done(lineage, source, delta, txn.count(tables.APPLIED))


def attempts(txn: Transaction, source: bytes) -> dict[bytes, int]:
    """Return the worker deaths of a source's unfinished tasks, by node."""
    if not txn.count(tables.ATTEMPTS):
        return {}
    return {key[ID_BYTES:]: len(TaskFailures.of(None, row).deaths) for key, row in txn.scan(tables.ATTEMPTS, source)}


def progress(txn: Transaction, source: bytes) -> SourceProgress | None:
    """Return the progress of an open source; None for a complete one."""
    known = applied(txn, source)
    row = txn.get(tables.SOURCES, source)
    if not known or row is None:
        return None
    return SourceProgress(known, attempts(txn, source), read_source_fields(row).get("replaces") is True)


def sources(environment: Environment) -> Iterator[SourceRow]:
    """Yield every registered source and its progress, by id."""
    for page in row_pages(environment, tables.SOURCES):
        with environment.read() as txn:
            failed = set(txn.prefixes(tables.FAILED, ID_BYTES)) if txn.count(tables.FAILED) else set()
            rows = [_source_row(txn, source, read_source_fields(row), failed) for source, row in page]
        yield from rows


def _source_row(txn: Transaction, source: bytes, fields: dict[str, Any], failed: set[bytes]) -> SourceRow:
    row = txn.get(tables.COMPLETED, source)
    members = tuple(member[0] for member in fields.get("members", ()))
    about = (source, fields["url"], fields["size"], len(members))
    if row is not None:
        completed, done = tables.unpack_completion(row)
        return SourceRow(*about, "complete", completed, done, members, accounts.source_counts(txn, source, done))
    pending = txn.get(tables.PENDING, source)
    done = Totals() if pending is None else Totals(*tables.PENDING_ROW.unpack(pending)[1:])
    counts = accounts.source_counts(txn, source, done)
    if txn.get(tables.GONE, source) is not None:
        return SourceRow(*about, "gone", 0, done, members, counts)
    return SourceRow(*about, "failed" if source in failed else "open", 0, done, members, counts)


def failures(environment: Environment) -> Iterator[FailureRow]:
    """Yield the recorded failures, by source URL, then task. One page of messages is in memory at a time."""
    sources: list[tuple[str, bytes]] = []
    for page in key_pages(environment, tables.FAILED, _SOURCES_A_TRANSACTION):
        found = {key[:ID_BYTES] for key in page} - {source for _, source in sources[-1:]}
        with environment.read() as txn:
            sources += [(url_of(txn, source), source) for source in sorted(found)]
    sources.sort()
    for start in range(0, len(sources), _SOURCES_A_TRANSACTION):
        keys: list[tuple[str, bytes]] = []
        with environment.read() as txn:
            for url, source in sources[start : start + _SOURCES_A_TRANSACTION]:
                named = sorted((read_failure(row)["task"], key) for key, row in txn.rows(tables.FAILED, source))
                keys += ((url, key) for _, key in named)
        for first in range(0, len(keys), _SOURCES_A_TRANSACTION):
            with environment.read() as txn:
                some = keys[first : first + _SOURCES_A_TRANSACTION]
                rows = [
                    TaskFailures.of(row, txn.get(tables.ATTEMPTS, key)).shown(url, key)
                    for url, key in some
                    if (row := txn.get(tables.FAILED, key)) is not None  # else the task has succeeded meanwhile
                ]
            yield from rows
            environment.trim()


def failed_mask(environment: Environment, ids: Sequence[bytes], number: int) -> list[bool]:
    """Return for each source of a page whether it has a failure; see `failures.has_failed`."""
    found = [False] * len(ids)
    for start in range(0, len(ids), _SOURCES_A_TRANSACTION):
        with environment.read() as txn:
            if not txn.count(tables.FAILED):
                break
            page = ids[start : start + _SOURCES_A_TRANSACTION]
            found[start : start + len(page)] = [has_failed(txn, source, number) for source in page]
        environment.trim()
    return found


def ordered_outputs(environment: Environment) -> Iterator[OutputRow]:
    """Yield the recorded outputs, by source URL, then first record, then name."""
    seen = 0
    with environment.read() as txn:
        first = txn.moment  # before the listing of the sources whose outputs are read
    with translated(environment.path):
        sources = [
            (*_file_of(read_source_fields(row)), source)
            for page in row_pages(environment, tables.SOURCES)
            for source, row in page
        ]
    sources.sort()
    for start in range(0, len(sources), _SOURCES_A_TRANSACTION):
        rows: list[OutputRow] = []
        with environment.read() as txn:
            for *file, source in sources[start : start + _SOURCES_A_TRANSACTION]:
                of_source = _output_rows(txn, source, file, [row for _, row in txn.scan(tables.OUTPUTS, source)])
                rows += sorted(of_source, key=attrgetter("output.first", "output.name"))
            seen += len(rows)
            if start + _SOURCES_A_TRANSACTION >= len(sources) and txn.moment == first:
                txn.require_all(tables.OUTPUTS, seen)  # nothing was written meanwhile
        yield from rows
        environment.trim()


def outputs(environment: Environment) -> Iterator[OutputRow]:
    """Yield the recorded outputs in arbitrary order."""
    for page in row_pages(environment, tables.OUTPUTS):
        rows: list[OutputRow] = []
        with environment.read() as txn:
            for source, group in groupby(page, key=lambda item: item[0][:ID_BYTES]):
                fields = txn.get(tables.SOURCES, source)
                file = ("", "", 0) if fields is None else _file_of(read_source_fields(fields))
                rows += _output_rows(txn, source, file, map(itemgetter(1), group))
        yield from rows


def output_columns(environment: Environment) -> Iterator[OutputColumns]:
    """Yield the recorded outputs in pages of columns, in arbitrary order."""
    for page in row_pages(environment, tables.OUTPUTS):
        with translated(environment.path):
            rows = decode_outputs([row for _, row in page])
            yield OutputColumns([key[:ID_BYTES] for key, _ in page], [row[0] for row in rows], [row[1] for row in rows])


def content_columns(environment: Environment) -> Iterator[ContentColumns]:
    """Yield the recorded outputs with their checksums in pages of columns, in arbitrary order."""
    for page in row_pages(environment, tables.OUTPUTS):
        with translated(environment.path):
            rows = decode_outputs([row for _, row in page])
            checksums = [row[2] for row in rows]
            routes = [row[6] if len(row) == _WITH_ROUTE else "" for row in rows]
            if not all(type(value) is str for value in chain(checksums, routes)):
                raise ValueError("expected the checksum and the route of each output as text, found another value")
            names, sizes = [row[0] for row in rows], [row[1] for row in rows]
            yield ContentColumns([key[:ID_BYTES] for key, _ in page], names, sizes, checksums, routes)


def source_outputs(txn: Transaction, source: bytes) -> list[Output]:
    """Return the recorded outputs of a source."""
    return [decode_output(row)[0] for _, row in txn.scan(tables.OUTPUTS, source)]


def task_counts(environment: Environment) -> Iterator[TaskCountsRow]:
    """Yield the record counts of tasks, by source id; see `store.LedgerStore.task_counts`."""
    sums = accounts.PartSums()
    with environment.read() as txn:
        first = txn.moment
    for page in row_pages(environment, tables.COUNTS):
        with environment.read() as txn:
            urls = {source: url_of(txn, source) for source in {key[:ID_BYTES] for key, _ in page}}
            rows = [
                TaskCountsRow(
                    urls[key[:ID_BYTES]], key[:ID_BYTES], key[ID_BYTES:], accounts.decode_account(value).counts
                )
                for key, value in page
            ]
        sums += accounts.sum_parts(row.counts for row in rows)
        yield from rows
    with environment.read() as txn:
        if txn.moment == first:
            accounts.require_counted(txn, sums)


def _file_of(fields: dict[str, Any]) -> tuple[str, str, int]:
    return fields["url"], fields["version"], fields["size"]


def _output_rows(txn: Transaction, source: bytes, file: Sequence[Any], rows: Any) -> list[OutputRow]:
    (url, version, size), complete = file, txn.get(tables.COMPLETED, source) is not None
    return [OutputRow(url, source, complete, decode_output(row)[0], version, size) for row in rows]


def url_of(txn: Transaction, source: bytes) -> str:
    """Return the URL of a registered source; empty for an unknown one."""
    row = txn.get(tables.SOURCES, source)
    return "" if row is None else str(read_source_fields(row)["url"])


_LOOKUPS = 250  # look-ups between two calls of `trim`
_LOADED_ROWS = 100_000
_PATIENCE = 64  # read all ids once 1/64 of them were found one by one

Column: TypeAlias = "NDArray[np.uint64]"


class CompletedIds:
    """This process's cache of the completed sources of one ledger. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._environment: Environment | None = None
        self._clear(b"")

    def _clear(self, withdrawals: bytes) -> None:
        self._columns: tuple[Column, Column] | None = None  # the halves of all ids, in order
        self._withdrawals = withdrawals
        self._found_singly = 0

    def mask(self, environment: Environment, ids: Sequence[bytes]) -> list[bool]:
        """Return for each id whether the source is complete; see `store.LedgerStore.completed_mask`."""
        if not ids:
            return []
        with self._lock:
            with environment.read() as txn:
                withdrawals = txn.get(tables.META, tables.KEY_WITHDRAWN) or b""
                count = txn.count(tables.COMPLETED)
            if withdrawals != self._withdrawals or environment is not self._environment:
                self._environment = environment
                self._clear(withdrawals)
            if self._found_singly * _PATIENCE > count:
                self._load(environment, count)
            mask = self._search(ids)
            missing = [source for source, is_complete in zip(ids, mask, strict=True) if not is_complete]
            if count and missing:
                found = iter(self._look_up(environment, missing))
                mask = [is_complete or next(found) for is_complete in mask]
            return mask

    def _load(self, environment: Environment, count: int) -> None:
        """Read all completed ids. The next call of `mask` detects a withdrawal that happens meanwhile."""
        self._clear(self._withdrawals)
        high, low = np.empty(count, np.uint64), np.empty(count, np.uint64)
        filled = 0
        for keys in key_pages(environment, tables.COMPLETED, _LOADED_ROWS):
            columns = _columns(keys[: count - filled])
            high[filled : filled + len(columns)] = columns[:, 0]
            low[filled : filled + len(columns)] = columns[:, 1]
            filled += len(columns)
            if filled == count:
                break
        self._columns = high[:filled], low[:filled]

    def _search(self, ids: Sequence[bytes]) -> list[bool]:
        if self._columns is None or not len(self._columns[0]):
            return [False] * len(ids)
        high, low = self._columns
        columns = _columns(ids)
        order = np.argsort(columns[:, 0])
        asked = columns[order]
        places = np.searchsorted(high, asked[:, 0])
        np.minimum(places, len(high) - 1, out=places)
        # Of two ids with the same first half only the first is found here; the other needs a look-up in LMDB.
        found = (high[places] == asked[:, 0]) & (low[places] == asked[:, 1])
        mask = np.empty(len(ids), np.bool_)
        mask[order] = found
        return mask.tolist()

    def _look_up(self, environment: Environment, ids: list[bytes]) -> list[bool]:
        ordered = sorted(ids)
        present: set[bytes] = set()
        for start in range(0, len(ordered), _LOOKUPS):
            with environment.read() as txn:
                present.update(txn.get_many(tables.COMPLETED, ordered[start : start + _LOOKUPS]))
            environment.trim()
        self._found_singly += len(present)
        return [source in present for source in ids]


def _columns(ids: Sequence[bytes]) -> NDArray[np.uint64]:
    """Convert ids to rows of two numbers that sort in the order of the ids."""
    return np.frombuffer(b"".join(ids), ">u8").reshape(-1, 2).astype(np.uint64)
