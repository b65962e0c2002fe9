"""Read-only Python view of a ledger: the job's progress and recorded rows, as plain values and Arrow tables."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any

from ledgerbeam._base import redaction
from ledgerbeam._base.names import DROPPED, REJECTS
from ledgerbeam._base.redaction import plain_value, without_secrets
from ledgerbeam.errors import LedgerbeamError, StorageError, UsageError
from ledgerbeam.io import Options
from ledgerbeam.io.lines.jsonl import stream_records
from ledgerbeam.io.storage.urls import canonical_url
from ledgerbeam.ledger import DatasetManifest, LedgerStore, dataset_manifest
from ledgerbeam.ledger.model.rows import FailureRow, OutputRow
from ledgerbeam.ledger.opening import open_store
from ledgerbeam.pipelines.calls.call import interruptible
from ledgerbeam.pipelines.calls.result import html_table
from ledgerbeam.pipelines.console.reporter import timestamp
from ledgerbeam.pipelines.report.run_info import retry_command
from ledgerbeam.pipelines.report.state import (
    every_ledger,
    ledger_state,
    shown_runs,
    stage_states,
    stage_statistics,
    status_values,
)

if TYPE_CHECKING:
    import pyarrow as pa


class LedgerRows:
    """Rows of a ledger. Each iteration reads the current rows, page by page.

    Iteration yields a dict for each row. `len` does not read the rows, except for rejected records of a reason.
    """

    def __init__(
        self,
        noun: str,
        number: Callable[[], int],
        rows: Callable[[], Iterator[dict[str, Any]]],
        arrow: Callable[[], pa.Table],
    ) -> None:
        self._noun, self._number, self._rows, self._arrow = noun, number, rows, arrow

    def __len__(self) -> int:
        return self._number()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self._rows()

    def __repr__(self) -> str:
        return f"<{self._number():,} {self._noun}>"

    def to_arrow(self) -> pa.Table:
        """Return all rows as a `pyarrow.Table`."""
        return self._arrow()


class Ledger:
    """A ledger that is open for reading, also while its job runs. `ledgerbeam.open_ledger` opens one.

    Args:
        store: The ledger.
        storage_options: Storage options of the job's outputs.
    """

    def __init__(self, store: LedgerStore, storage_options: Mapping[str, Any] | None = None) -> None:
        self._store = store
        self._options = dict(storage_options or {})

    @property
    def url(self) -> str:
        """URL of the ledger."""
        return self._store.url

    def __repr__(self) -> str:
        return f"<Ledger {self.url}>"

    def _repr_html_(self) -> str:
        try:
            state = self.status()
        except LedgerbeamError as error:  # a notebook shows the error instead
            return html_table("ledgerbeam ledger", [("ledger", self.url), ("error", str(error))])
        sources, tasks, records = state["sources"], state["tasks"], state["records"]
        dropped, rejected = (sum(records[name].values()) for name in ("dropped", "rejected"))
        became = f"{records['read']:,} read, {records['kept']:,} kept, {dropped:,} dropped, {rejected:,} rejected"
        rows = [
            ("job", (state["job"] or {}).get("pipeline")),
            ("sources", f"{sources['complete']:,} complete, {sources['open']:,} open, {sources['failed']:,} failed"),
            ("tasks", f"{tasks['done']:,} done, {tasks['failed']:,} failed"),
            ("records", became),
            ("complete", "yes" if state["complete"] else "no"),
            ("ledger", self.url),
        ]
        return html_table("ledgerbeam ledger", rows)

    def status(self) -> dict[str, Any]:
        """Return progress, rates and runs of the job, as ``ledger status --json`` prints them."""
        self._store.refresh()
        return status_values(self._store, ledger_state(self._store), stage_states(self._store, self._options))

    def hosts(self) -> list[dict[str, Any]]:
        """Return the hosts and the state of their runs, as ``ledger status --by-host --json`` prints them."""
        from ledgerbeam.pipelines.report.hosts import hosts_of  # noqa: PLC0415 - few programs need it

        self._store.refresh()
        return plain_value([host.values() for host in hosts_of(self._store, shown_runs(self._store))])

    def outputs(self) -> LedgerRows:
        """Return the outputs of the job, in order.

        A row has ``name`` (relative to the job's output), ``size``, ``checksum``, ``records``, ``first`` (number of
        its task's first record), ``nulled`` (NaN and infinities written as null), ``route``, ``source`` and
        ``complete``: whether the source is complete.
        """
        store = self._store
        rows = (store.output_count, lambda: map(output_values, store.outputs()))
        return LedgerRows("outputs", *rows, self._table("outputs"))

    def failures(self) -> LedgerRows:
        """Return the failed tasks of all stages of the job, with their errors.

        A row has ``source``, ``task``, ``reason``, ``error``, ``attempts``, ``last`` (time) and ``quarantined``.
        """
        ledgers = partial(every_ledger, self._store, self._options)
        return LedgerRows(
            "failures",
            lambda: sum(int(each.status()["tasks"]["failed"]) for each in ledgers()),
            lambda: (failure_values(row) for each in ledgers() for row in each.failures()),
            self._table("failures", ledgers),
        )

    def rejects(self, reason: str | None = None) -> LedgerRows:
        """Return the rejected records, read from the files that store them.

        A row has ``source``, ``record`` (number), ``bytes`` (start and end), ``reason``, ``error``, ``at`` (code line),
        ``raw`` or ``raw_base64``, ``raw_truncated`` if these bytes were cut, and ``file``, the name of the output. In a
        job of several functions it has ``function``, the label of the function that rejected the record.

        Args:
            reason: Shell pattern. Only records with a matching reason are returned.
        """
        return self._set_aside("rejected", REJECTS, reason)

    def dropped(self, reason: str | None = None) -> LedgerRows:
        """Return the dropped records of a job with ``keep_dropped``, read from the files that store them.

        A row has the keys of a row of `rejects`, always with ``function``.

        Args:
            reason: Shell pattern. Only records with a matching reason are returned.
        """
        return self._set_aside("dropped", DROPPED, reason)

    def _set_aside(self, outcome: str, folder: str, reason: str | None) -> LedgerRows:
        def rows() -> Iterator[dict[str, Any]]:
            return set_aside_rows(self._store, folder, self._options, reason=reason)

        def number() -> int:
            if reason is not None or folder == DROPPED:  # the counts also have dropped records that were not stored
                return sum(1 for _ in rows())
            return sum(self._store.status()["records"][outcome].values())

        return LedgerRows(f"{outcome} records", number, rows, lambda: _set_aside_table(rows()))

    def stats(self) -> dict[str, Any]:
        """Return the statistics that the job's functions recorded with `ledgerbeam.stats`, by name.

        In a job of several functions, names are ``LABEL.NAME``.
        """
        return {name: merged.value() for name, merged in stage_statistics(self._store, self._options).items()}

    def manifest(self, *, route: str = "", allow_incomplete: bool = False) -> DatasetManifest:
        """Return the shards of a dataset of the job; see `ledgerbeam.ledger.dataset_manifest`."""
        return dataset_manifest(self._store, route=route, allow_incomplete=allow_incomplete)

    def to_arrow(self, table: str) -> pa.Table:
        """Return a table of the ledger, as ``ledger export`` writes it.

        Args:
            table: ``sources``, ``counts``, ``outputs``, ``failures``, ``runs``, ``history`` or ``durations``.

        Raises:
            UsageError: No table has this name.
        """
        from ledgerbeam.pipelines.report.tables import TABLES  # noqa: PLC0415 - few programs need it

        if table not in TABLES:
            raise UsageError(f"unknown table {table!r}: expected one of {', '.join(TABLES)}")
        return self._table(table)()

    def _table(self, name: str, ledgers: Callable[[], Sequence[LedgerStore]] | None = None) -> Callable[[], pa.Table]:
        def read() -> pa.Table:
            import pyarrow as pa  # noqa: PLC0415 - slow to import

            from ledgerbeam.pipelines.report.tables import TABLES, arrow_batches, arrow_schema  # noqa: PLC0415

            table = TABLES[name]
            stores = [self._store] if ledgers is None else ledgers()
            batches = (batch for store in stores for batch in arrow_batches(table, store))
            return pa.Table.from_batches(batches, arrow_schema(table))

        return read


@interruptible
def open_ledger(url: str | PathLike[str], storage_options: Mapping[str, Any] | None = None) -> Ledger:
    """Open a ledger for reading.

    Args:
        url: A local folder, or the URL of a folder on an object store.
        storage_options: Options for fsspec, passed on unchanged.

    Returns:
        A `Ledger`, with `status()`, `hosts()`, `outputs()`, `failures()`, `rejects()` and `stats()`.

    Raises:
        LedgerNotFoundError: The ledger does not exist.
        LedgerVersionError: Another version of ledgerbeam wrote the ledger.
        LedgerDamagedError: The folder is not a ledger, or the ledger is damaged.
        StorageError: There is no permission, or the store does not answer.
    """
    redaction.register_environment()
    redaction.register_secrets(storage_options or {})
    place = canonical_url(redaction.refuse_secrets(os.fspath(url), "a ledger")).rstrip("/")
    return Ledger(open_store(place, storage_options, create=False, read_only=True), storage_options)


def output_values(row: OutputRow) -> dict[str, Any]:
    """Return an output as a JSON object, without secrets."""
    return plain_value({**dataclasses.asdict(row.output), "source": row.url, "complete": row.complete})


def _set_aside_table(rows: Iterator[dict[str, Any]]) -> pa.Table:
    import base64  # noqa: PLC0415

    import pyarrow as pa  # noqa: PLC0415

    texts = [(name, pa.string()) for name in ("source", "function", "reason", "error", "at", "file")]
    numbers = [(name, pa.int64()) for name in ("record", "start", "stop")]
    schema = pa.schema([*texts, *numbers, ("raw", pa.binary())])
    made = []
    for row in rows:
        start, stop = row["bytes"] or (None, None)
        raw = base64.b64decode(row["raw_base64"]) if "raw_base64" in row else str(row["raw"]).encode()
        made.append({**row, "start": start, "stop": stop, "raw": raw})
    return pa.Table.from_pylist(made, schema)


def grouped_failures(rows: Iterable[FailureRow], ledger: str, last_run: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return the failures by reason, largest group first; groups of equal size are sorted by reason.

    ``example`` of a group is its first failure. ``retry`` is a shell command that processes the failed sources of the
    group again, with quarantined tasks; None if `last_run` has no command. Memory holds one row for each reason.
    """
    groups: dict[str, dict[str, Any]] = {}
    last_source: dict[str, bytes] = {}
    for row in rows:
        group = groups.get(row.reason)
        if group is None:
            counts = {"count": 0, "sources": 0, "quarantined": 0}
            retry = retry_command(last_run, ledger, row.reason)
            group = {"reason": without_secrets(row.reason), **counts, "example": failure_values(row), "retry": retry}
            groups[row.reason] = group
        group["count"] += 1
        group["quarantined"] += row.quarantined
        if row.source_id != last_source.get(row.reason):  # failures are ordered by source
            group["sources"] += 1
            last_source[row.reason] = row.source_id
    return [group for _, group in sorted(groups.items(), key=lambda item: (-item[1]["count"], item[0]))]


def failure_values(row: FailureRow) -> dict[str, Any]:
    """Return a failure as a JSON object, without secrets."""
    return {
        "source": without_secrets(row.url),
        "task": without_secrets(row.task),
        "reason": without_secrets(row.reason),
        "error": without_secrets(row.error),
        "attempts": row.attempts,
        "last": timestamp(row.last),
        "quarantined": row.quarantined,
    }


def set_aside_rows(
    store: LedgerStore,
    folder: str,
    options: Options | None = None,
    *,
    reason: str | None = None,
    source: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the rejected or dropped records of a ledger, each with the name of the ``file`` that stores it.

    `folder` is one of `names.ASIDE`. `reason` and `source` are shell patterns.
    """
    job = store.job()
    root = job.parameters.get("output") if job else None
    asked = [(name, pattern) for name, pattern in (("reason", reason), ("source", source)) if pattern is not None]
    for found in store.outputs():
        if found.output.route != folder:
            continue
        try:
            for row in stream_records(f"{root}/{found.output.name}", options):
                if all(row[name] == pattern or fnmatchcase(row[name], pattern) for name, pattern in asked):
                    yield {**row, "file": found.output.name}
        except StorageError as error:
            remedy = "the ledger has recorded this file: to write it again, run the job's command again"
            raise StorageError(f"{error}; {remedy}") from error
