"""Summaries of a ledger: the ordered shards of a dataset that its job has written, and merged statistics.

Formats with an index of a whole dataset make it from the shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ledgerbeam._base.names import check_route
from ledgerbeam.errors import FunctionError, LedgerDamagedError, LedgerError, UsageError
from ledgerbeam.ledger.model.accounts import FUNCTIONS, Statistic
from ledgerbeam.ledger.model.rows import OutputRow
from ledgerbeam.ledger.model.store import LedgerStore
from ledgerbeam.ledger.model.values import shown
from ledgerbeam.sketches import Merging, combined, merging
from ledgerbeam.stats import SEPARATOR

_INDEX_SUFFIX = ".idx"
_TOKENS_SUFFIX = ".bin"


@dataclass(frozen=True, slots=True)
class OutputShard:
    """One shard of a dataset.

    Attributes:
        name: Path relative to the output root of the job.
        size: Bytes.
        checksum: Checksum of its content; see `identity`.
        records: Number of its records.
        source: URL of the source that it was made from; for a pack the URL of the first member.
        first: The first record of the source that the shard was made from.
        index: Name of its index, if one was written with it.
        source_id: The 16 bytes of `Source.id`.
        source_version: Version of the source; empty for a pack.
        source_size: Bytes of the source.
    """

    name: str
    size: int
    checksum: str
    records: int
    source: str
    first: int
    index: str | None = None
    source_id: bytes = b""
    source_version: str = ""
    source_size: int = 0


@dataclass(frozen=True)
class DatasetManifest:
    """The shards of a dataset, ordered by source URL, then by first record in the source; see `dataset_manifest`.

    Each iteration reads the ledger again; the shards are never all in memory. If sources were completed or forgotten
    meanwhile, the iteration raises `LedgerError` at its end. So publish results only after the end.

    Attributes:
        root: URL that names are relative to; None if the job has no parameter ``output``.
        route: The route of the shards; empty for the main dataset.
        fingerprint: Fingerprint of the job.
        complete: Whether the job is complete; if not, the manifest has the shards of its complete sources.
    """

    root: str | None
    route: str
    fingerprint: str
    complete: bool
    _store: LedgerStore = field(repr=False, compare=False)

    def __iter__(self) -> Iterator[OutputShard]:
        before = self._state()
        pending: OutputRow | None = None
        for row in self._store.outputs():
            if not row.complete or row.output.route != self.route:
                continue
            if pending is not None:
                is_index = row.source_id == pending.source_id and _is_index(row.output.name, pending.output.name)
                yield self._shard(pending, row if is_index else None)
                pending = None if is_index else row
            else:
                pending = row
        if pending is not None:
            yield self._shard(pending, None)
        if self._state() != before:
            raise LedgerError(
                f"ledger {self._store.url}: it changed while its shards were listed; list them when no run is active"
            )

    def _shard(self, row: OutputRow, index: OutputRow | None) -> OutputShard:
        output, folder = row.output, f"{self.route}/" if self.route else ""
        return OutputShard(
            output.name.removeprefix(folder),
            output.size,
            output.checksum,
            output.records,
            row.url,
            output.first,
            None if index is None else index.output.name.removeprefix(folder),
            row.source_id,
            row.version,
            row.size,
        )

    def _state(self) -> tuple[object, ...]:
        return self._store.job(), self._store.completed_count(), self._store.totals()


def dataset_manifest(store: LedgerStore, *, route: str = "", allow_incomplete: bool = False) -> DatasetManifest:
    """Return the ordered shards of a complete job: of its main dataset, or of one of its routes.

    Rejected records are not a dataset.

    Args:
        store: The job's ledger.
        route: Name of the route, whose folder is the root of the names; empty for the main dataset.
        allow_incomplete: Whether the job may be incomplete. Then the dataset has the shards of its complete sources, so
            that no source is included in part.

    Raises:
        LedgerError: The ledger has no job yet, or its job is not complete.
        UsageError: The name of the route is invalid.
    """
    try:
        if route:
            check_route(route)
    except ValueError as error:
        raise UsageError(f"{error}; read rejected records from their folder") from None
    job = store.job()
    if job is None:
        raise LedgerError(f"ledger {store.url}: no job has used it yet; run a job first")
    status = store.status()
    if not status["complete"] and not allow_incomplete:
        sources = status["sources"]
        raise LedgerError(
            f"ledger {store.url}: its job is not complete, so the dataset would lack shards: expected a finished "
            f"listing and only complete sources, found {sources['complete']:,} complete, {sources['open']:,} open and "
            f"{sources['failed']:,} failed sources; run the job again until it ends with status 0"
        )
    root = job.parameters.get("output")
    place = (f"{root}/{route}" if route else root) if isinstance(root, str) else None
    return DatasetManifest(place, route, job.fingerprint, status["complete"], store)


def _is_index(name: str, data_name: str) -> bool:
    """Return whether a name is the name of an index: `x.jsonl.idx` of `x.jsonl`, `x.idx` of Megatron's `x.bin`."""
    return name in (data_name + _INDEX_SUFFIX, data_name.removesuffix(_TOKENS_SUFFIX) + _INDEX_SUFFIX)


@dataclass
class MergedStatistic:
    """A statistic merged over all recorded tasks.

    Attributes:
        kind: ``count``, ``observe``, ``distinct`` or ``top``.
        sketch: The merged sketch of the tasks.
        tasks: Number of tasks that have the statistic.
        of: Number of recorded tasks of the ledger.
    """

    kind: str
    sketch: Merging
    tasks: int = 0
    of: int = 0

    def value(self) -> Any:
        """Return the value for JSON: a number, an object of ``observe``, or a list of ``top``."""
        return self.sketch.value()

    def bounds(self) -> str:
        """Return the error bounds of the value, for people; empty if it is exact."""
        return self.sketch.bounds()


def merged_statistics(store: LedgerStore, name: str | None = None) -> dict[str, MergedStatistic]:
    """Merge the statistics of all recorded tasks of a ledger. Return them by name; with `name` only this statistic.

    A statistic of one of several functions has the name ``label.name``; `name` may be this one, or a name alone. Tasks
    are merged in a fixed order, so the result is reproducible. Each task counts once, regardless of retries. Tasks of
    replaced sources do not count.

    Raises:
        LedgerDamagedError: A sketch cannot be decoded.
        LedgerError: Tasks have statistics of different kinds under one name.
    """
    is_named = (lambda each: name in (full_name(each), each.rpartition(SEPARATOR)[2])) if name else bool
    merged = _merged(store, lambda each: each != FUNCTIONS and is_named(each))
    return {full_name(each): found for each, found in merged.items()}


def function_summaries(store: LedgerStore) -> list[dict[str, Any]]:
    """Return the counts and statistics of the functions of a job of several functions, in order.

    Each has ``function`` (its label), ``received``, ``returned``, ``dropped`` and ``rejected`` (numbers by reason), and
    ``statistics`` (values by name). The list is empty for one function. Raises like `merged_statistics`.
    """
    merged = _merged(store, lambda each: SEPARATOR in each)
    counts = merged.get(FUNCTIONS)
    named = [(each.partition(SEPARATOR), found) for each, found in merged.items() if each != FUNCTIONS]
    return [
        {**row, "statistics": {name: found.value() for (label, _, name), found in named if label == row["function"]}}
        for row in (counts.value() if counts else ())
    ]


def full_name(name: str) -> str:
    """Return ``label.name`` for the name under which tasks have a statistic of one of several functions."""
    return name.replace(SEPARATOR, ".")


def _merged(store: LedgerStore, is_wanted: Callable[[str], bool]) -> dict[str, MergedStatistic]:
    found: dict[str, MergedStatistic] = {}
    recorded = store.totals().tasks
    for each, (kind, data) in store.statistics():
        if not is_wanted(each):
            continue
        known, name = found.get(each), shown(full_name(each))
        try:
            if known is None:
                known = found[each] = MergedStatistic(kind, merging(kind), of=recorded)
            if known.kind == kind:
                known.sketch.take(data)
                known.tasks += 1
        except (ValueError, ArithmeticError) as error:
            raise LedgerDamagedError(
                f"{store.url}: the statistic {name} of a task cannot be decoded ({error}); restore the ledger "
                "from a copy, or run `ledgerbeam ledger forget` on the sources, and the job again"
            ) from error
        if known.kind != kind:
            raise LedgerError(
                f"{store.url}: the statistic {name} was made by stats.{known.kind} in some tasks and by "
                f"stats.{kind} in others, because the function has changed; run `ledgerbeam ledger forget` on the "
                "sources, and the job again; or choose another statistic with --name"
            )
    return dict(sorted(found.items()))


def joined_statistics(one: Mapping[str, Statistic], other: Mapping[str, Statistic]) -> Mapping[str, Statistic]:
    """Merge the statistics of two steps of one task; arguments and result are by name.

    Raises FunctionError if both made a statistic of the same name, but of different kinds.
    """
    if not (one and other):
        return one or other
    joined = {**one, **other}
    for name in one.keys() & other.keys():
        if one[name].kind != other[name].kind:
            raise FunctionError(
                f"two functions made the statistic {shown(name)} for one task, one by stats.{one[name].kind} and one "
                f"by stats.{other[name].kind}; give one of the two statistics another name"
            )
        joined[name] = Statistic(one[name].kind, combined(one[name].kind, [one[name].data, other[name].data]))
    return joined
