"""Previews, which only read: of a run for ``--dry-run``, and of a function for ``map --sample``.

A preview of a run has pending work, removed outputs and refusals. It tries the function on some records for its speed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
from numpy.typing import NDArray

from ledgerbeam._base.redaction import plain_value
from ledgerbeam.errors import LedgerbeamError, UsageError
from ledgerbeam.io.compression.streams import Expansion
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.ledger import LedgerStore, Source
from ledgerbeam.ledger.model.accounts import FUNCTIONS, Statistic
from ledgerbeam.ledger.model.rows import SourceRow
from ledgerbeam.ledger.summaries import full_name, joined_statistics
from ledgerbeam.pipelines.calls.result import Result
from ledgerbeam.pipelines.console.reporter import RunConsole
from ledgerbeam.pipelines.jobs.claim import open_if_there
from ledgerbeam.pipelines.jobs.listing import listed_pages, listed_sources
from ledgerbeam.pipelines.jobs.map import MapJob
from ledgerbeam.pipelines.jobs.shard_job import ShardJob
from ledgerbeam.pipelines.jobs.spec import JobSpec, Stage
from ledgerbeam.pipelines.outputs.owner import Existing, OutputOwner
from ledgerbeam.pipelines.preview.costs import Cost, CostShape, CostTally, Speed, pace_of
from ledgerbeam.pipelines.preview.sample import SampleRun, Tracer, sampled_records, try_function, without_contents
from ledgerbeam.sketches import merging
from ledgerbeam.sources.columns import SelectedSources
from ledgerbeam.user_code.objects import close_objects

if TYPE_CHECKING:
    from ledgerbeam.pipelines.runners.run import RunOptions

WORK = ("new", "changed", "failed", "open")  # states of sources that have work left

EXAMPLES = 5

_RECORDS, _SOURCES, _BYTES = 64, 8, 1 << 20  # at most, in the sample that measures speed
_SECONDS = 1.0  # after this time, without set-up, no further record is tried


@dataclass
class SelectedSize:
    """The size of the selected records, found from the columns alone."""

    records: int = 0  # number of selected records
    of_records: int = 0  # number of all records
    bytes: int = 0  # approximate size of the selected records, from the size of the sources
    of_bytes: int = 0  # size of the sources
    ranges: int = 0  # number of runs of consecutive selected records; neighbouring ones may share a request

    def add(self, opened: SelectedSources, source: Source) -> int:
        """Count a source, and return the approximate size of its selected records."""
        plain = opened.parts(source)[0].size
        selected, total, ranges = opened.counted(source)
        size = plain * selected // max(1, total)
        self.records += selected
        self.of_records += total
        self.bytes += size
        self.of_bytes += plain
        self.ranges += ranges
        return size


@dataclass
class JobPreview:
    """A preview of a run."""

    ledger: str
    is_new: bool = True  # whether the ledger does not exist yet
    # Differences between the job and the job in the ledger, one line each.
    differences: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)  # reasons why the run would be refused; empty if it would start
    # Number of sources by state: ``complete``, the states of `WORK`, and ``gone``: recorded but not listed.
    sources: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)  # up to `EXAMPLES` URLs by state
    tasks: int = 0  # expected number of remaining tasks of the sources with work left, from their sizes
    # Up to `EXAMPLES` names of outputs that the run would remove at its end.
    outputs: list[str] = field(default_factory=list)
    removed: int = 0
    selected: SelectedSize | None = None  # selected records of the sources with work left
    schema: dict[str, Any] | None = None  # schemas of the outputs as JSON, if they are column files
    costs: list[Cost] = field(default_factory=list)  # estimated costs: first of the job as it is, then of alternatives

    def found(self, state: str, url: str) -> None:
        """Count a source."""
        self.sources[state] += 1
        examples = self.examples.setdefault(state, [])
        if len(examples) < EXAMPLES:
            examples.append(url)

    def add(self, other: JobPreview) -> None:
        """Add the preview of another stage of the same job that reads sources."""
        self.is_new = self.is_new and other.is_new
        self.differences += other.differences
        self.refusals += other.refusals
        self.sources += other.sources
        for state, urls in other.examples.items():
            self.examples[state] = [*self.examples.get(state, []), *urls][:EXAMPLES]
        self.tasks += other.tasks
        self.outputs = [*self.outputs, *other.outputs][:EXAMPLES]
        self.removed += other.removed
        self.costs = [self.costs[0].with_another(other.costs[0])]

    def values(self) -> dict[str, Any]:
        """Return the preview as a JSON object."""
        return {
            "ledger": self.ledger,
            "new": self.is_new,
            "differences": self.differences,
            "refused": self.refusals,
            "sources": {state: self.sources[state] for state in ("complete", *WORK, "gone")},
            "examples": self.examples,
            "tasks": self.tasks,
            "costs": [asdict(cost) for cost in self.costs],
            "removed": {"count": self.removed, "examples": self.outputs},
            **({} if self.selected is None else {"selected": asdict(self.selected)}),
            **({} if self.schema is None else {"schema": self.schema}),
        }

    def removes(self, name: str) -> None:
        """Count an output that the run would remove."""
        self.removed += 1
        if len(self.outputs) < EXAMPLES:
            self.outputs.append(name)


def preview_plan(
    plan: Sequence[Stage], list_pages: Callable[[JobSpec], Iterator[Page]], how: RunOptions, say: Callable[[str], None]
) -> JobPreview:
    """Return a preview of the stages of a job that read its sources. Nothing is written.

    The preview includes reasons why the next stage would refuse to run. LedgerError: a ledger cannot be read.
    """
    if len(plan) == 1:
        return _preview_job(plan[0].job, list_pages(plan[0].job), how, say)
    reader = next(stage for stage in plan if stage.inputs())
    listed = [list_pages(stage.job) for stage in reader.inputs()]
    store = open_if_there(reader.job, read_only=True)
    decided = reader.with_job(reader.job.decided(None if store is None else store.job(), how.on_job_change, say))
    inputs = decided.inputs()
    while any(one.inputs() for one in inputs):  # stages that merge
        inputs = [below for one in inputs for below in one.inputs()]
    preview, *others = (
        _preview_job(stage.job, pages, how, lambda _: None) for stage, pages in zip(inputs, listed, strict=True)
    )
    for other in others:
        preview.add(other)
    _look_at_owner(decided.job, store, how.existing, preview)
    preview.schema = decided.job.schemas_json()
    return preview


def _preview_job(job: JobSpec, pages: Iterator[Page], how: RunOptions, say: Callable[[str], None]) -> JobPreview:
    preview = JobPreview(job.ledger)
    store = open_if_there(job, read_only=True)
    _look_at_owner(job, store, how.existing, preview)
    stored = None if store is None else store.job()
    decided = job.decided(stored, how.on_job_change, say)
    preview.schema = decided.schemas_json()
    if store is not None and stored is not None:
        preview.is_new = False
        preview.differences = decided.identity().differences(stored)
        if preview.differences and how.on_job_change == "refuse":
            preview.refusals.append(
                "the ledger holds another job; use --on-job-change restart to repeat all, or accept to keep progress"
            )
        if preview.differences and how.on_job_change == "restart":
            for row in store.outputs(ordered=False):
                preview.removes(row.output.name)
            store = None  # its results no longer count
    known = KnownSources(store)
    pace = pace_of(store)
    tally = CostTally(CostShape.of_job(decided), pace, None if pace else measured_speed(decided))
    expansion = Expansion(job.storage_options)
    opened = job.sources().opened(job.storage_options)
    changed: set[str] = set()
    for sources in listed_sources(job, pages):
        for source, recorded, done in known.states(sources):
            state = "open" if how.force and recorded == "complete" else recorded
            preview.found(state, source.url)
            if state in WORK and isinstance(opened, SelectedSources):
                preview.selected = preview.selected or SelectedSize()
                size = preview.selected.add(opened, source)
                preview.tasks += tally.add(size, 0, done)
            elif state in WORK:
                held = source.size if source.members else expansion.held_bytes(source.url, source.size)
                preview.tasks += tally.add(source.size, len(source.members), done, held)
            if state == "changed":
                changed.update(source.urls)
    preview.costs = [tally.cost(), *tally.other_ways()]
    if store is not None:
        for one in known.gone():
            preview.found("gone", one.url)
        for name in store.stale_outputs():
            preview.removes(name)
        if changed:
            for row in store.outputs(ordered=False):
                if row.url in changed:
                    preview.removes(row.output.name)
    return preview


def _look_at_owner(job: JobSpec, store: LedgerStore | None, existing: Existing | None, preview: JobPreview) -> None:
    """Check the owner of the output folder; add a refusal, or the existing shards that the run would remove."""
    if job.output is None:
        return
    owner = OutputOwner(job, existing)
    try:
        owner.check(store)
    except UsageError as error:
        preview.refusals.append(str(error))
        return
    for name in owner.shards() if owner.replaces else ():
        preview.removes(name)


def measured_speed(job: JobSpec) -> Speed | None:
    """Return the measured speed of a job's function; None if the job has no function, or no record was processed."""
    if not isinstance(job, ShardJob) or job.command not in ("map", "annotate", "tokenize"):
        return None
    if job.calls_are_async:  # a call may cost money
        return None
    set_ups: list[float] = []
    size, seconds, began = 0, 0.0, time.perf_counter()
    try:
        opened, pages = job.sources().opened(job.storage_options), islice(job.pages(), 1)
        sampled = list(sampled_records(opened, pages, _RECORDS, sources=_SOURCES, most_bytes=_BYTES))
        for run in try_function(job.trial_work(), sampled, set_ups.append, nullcontext()):
            if run.outcome != "unreadable":
                records = run.sampled.records
                size += sum(map(_record_size, records)) if isinstance(records, list) else 0  # tables have no size
                seconds += run.seconds
            if time.perf_counter() - began > _SECONDS + sum(set_ups):
                break
    except (LedgerbeamError, TypeError):  # the run reports library errors; records of other types have no size
        return None
    finally:
        close_objects()
    return Speed(sum(set_ups), seconds / size) if size else None


def _record_size(record: Any) -> int:
    """Return the approximate size of a record in its source, in bytes."""
    if isinstance(record, (bytes, str)):
        return len(record)
    parts = list(record.values()) if isinstance(record, Mapping) else []
    if any(isinstance(part, bytes) for part in parts):  # members of a sample
        return sum(len(part) for part in parts if isinstance(part, bytes))
    return len(orjson.dumps(record, str, orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY)) + 1


class KnownSources:
    """The sources recorded in a ledger, about 18 bytes each: short hashes of the ID and the URLs, and flags.

    Args:
        store: The ledger; None if it does not exist yet.
    """

    def __init__(self, store: LedgerStore | None) -> None:
        self._store = store
        ids: list[int] = []
        urls: list[int] = []
        for row in () if store is None else store.sources():
            ids.append(_short(row.source_id))
            urls.extend(_short_url(url) for url in row.member_urls or (row.url,))
        self._ids: NDArray[np.uint64] = np.unique(np.array(ids, np.uint64))
        self._urls: NDArray[np.uint64] = np.unique(np.array(urls, np.uint64))
        self._listed = np.zeros(len(self._ids), bool)
        self._stays = np.zeros(len(self._ids), bool)
        self._listed_urls = np.zeros(len(self._urls), bool)

    def states(self, sources: Sequence[Source]) -> Iterator[tuple[Source, str, int]]:
        """Yield each source with its state and its number of done tasks."""
        store = self._store
        ids = [source.id for source in sources]
        if store is None or not ids:
            yield from ((source, "new", 0) for source in sources)
            return
        columns = store.completed_mask(ids), store.failed_mask(ids), store.progress(ids)
        for source, complete, failed, progress in zip(sources, *columns, strict=True):
            place = _find(self._ids, _short(source.id))
            if place is not None:
                self._listed[place] = True
            places = [_find(self._urls, _short_url(url)) for url in source.urls]
            for known in places:
                if known is not None:
                    self._listed_urls[known] = True
            if complete:
                if place is not None:
                    self._stays[place] = True
                yield source, "complete", 0
            elif place is None:
                yield source, "changed" if any(known is not None for known in places) else "new", 0
            else:
                done = 0 if progress is None else sum(delta < 0 for delta in progress.applied.values())
                yield source, "failed" if failed else "open", done

    def staying(self, ids: Sequence[bytes]) -> NDArray[np.bool_]:
        """Return for each ID whether its source is complete and listed, so that its results are kept."""
        if not len(self._ids):
            return np.zeros(len(ids), np.bool_)
        wanted = np.array([_short(one) for one in ids], np.uint64)
        places = np.minimum(np.searchsorted(self._ids, wanted), len(self._ids) - 1)
        return (self._ids[places] == wanted) & self._stays[places]

    def lists(self, url: str) -> bool:
        """Return whether a source of this URL is recorded, and a source of this URL was listed."""
        place = _find(self._urls, _short_url(url))
        return place is not None and bool(self._listed_urls[place])

    def gone(self) -> Iterator[SourceRow]:
        """Yield the recorded sources that are neither listed nor replaced."""
        if self._store is None or self._listed.all():
            return
        for row in self._store.sources():
            place = _find(self._ids, _short(row.source_id))
            urls = [_find(self._urls, _short_url(url)) for url in row.member_urls or (row.url,)]
            replaced = any(url is not None and self._listed_urls[url] for url in urls)
            if place is not None and not self._listed[place] and not replaced:
                yield row


def _find(values: NDArray[np.uint64], value: int) -> int | None:
    place = int(np.searchsorted(values, np.uint64(value)))
    return place if place < len(values) and int(values[place]) == value else None


def _short(source_id: bytes) -> int:
    return int.from_bytes(source_id[:8], "big")


def _short_url(url: str) -> int:
    return _short(blake2b(url.encode("utf-8", "surrogateescape"), digest_size=8).digest())


@dataclass(frozen=True)
class SampleCall:
    """A call that tries a function on some records."""

    job: MapJob
    number: int

    def result(self, console: RunConsole) -> Result:
        """Call the function with records from all over the sources, and return the results."""
        started = time.perf_counter()
        runs: list[SampleRun] = []
        statistics: Mapping[str, Statistic] = {}
        set_ups: list[float] = []
        tracer = Tracer() if len(self.job.functions) > 1 else None
        work = self.job.trial_work(None if tracer is None else tracer.traced)
        opened = self.job.sources().opened(self.job.storage_options)
        sampled = sampled_records(opened, listed_pages(self.job, console.say), self.number)
        answers = self.job.answers_of_sample()
        for run in try_function(work, sampled, set_ups.append, answers, to=self.job.to, tracer=tracer):
            runs.append(run)
            statistics = joined_statistics(statistics, run.statistics)
        called = sorted(run.seconds for run in runs if run.outcome != "unreadable")
        seconds = time.perf_counter() - started
        outcomes = Counter(run.outcome for run in runs)
        summary = {
            "records": dict(sorted(outcomes.items())),
            "seconds": {
                "all": round(seconds, 6),
                "set_up": round(sum(set_ups), 6),
                "median": round(called[len(called) // 2], 6) if called else None,
                "longest": round(called[-1], 6) if called else None,
            },
            "statistics": {
                full_name(name): _value(statistic)
                for name, statistic in sorted(statistics.items())
                if name != FUNCTIONS
            },
            "sample": [_as_json(run) for run in runs],
        }
        return Result(self.job.command, complete=False, seconds=seconds, output=self.job.output, summary=summary)


def _value(statistic: Statistic) -> Any:
    merged = merging(statistic.kind)
    merged.take(statistic.data)
    return merged.value()


def _as_json(run: SampleRun) -> dict[str, Any]:
    found: dict[str, Any] = plain_value(
        {
            "source": run.sampled.source.url,
            "record": run.sampled.number,
            "outcome": run.outcome,
            "reason": run.reason,
            "error": run.error,
            "seconds": round(run.seconds, 6),
        }
    )
    found["results"] = {route: [without_contents(one) for one in rows] for route, rows in run.results.items()}
    return {**found, "functions": [asdict(one) for one in run.trials]} if run.trials else found
