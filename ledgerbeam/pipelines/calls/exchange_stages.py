"""The jobs of which a call of an exchange is made, run one after the other, wherever the last run has ended."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, Self, cast

from ledgerbeam.errors import ChangedSourceError, LedgerNotFoundError
from ledgerbeam.io.exchange.partition import Partition
from ledgerbeam.io.listing.left_out import LeftOut
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.io.storage.overwrite import refuse_links
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger.opening import open_store
from ledgerbeam.pipelines.calls.result import Result
from ledgerbeam.pipelines.calls.running import (
    Ending,
    RunOptions,
    done_json,
    tell_doubts,
)
from ledgerbeam.pipelines.console.run_console import PartConsole, RunConsole
from ledgerbeam.pipelines.console.run_progress import count
from ledgerbeam.pipelines.dedup.earlier import EarlierSignatures
from ledgerbeam.pipelines.dedup.exact import LIST_BUCKETS, ListedJob
from ledgerbeam.pipelines.exchange.bucket_jobs import BucketsJob
from ledgerbeam.pipelines.exchange.buckets import Reading, RunFiles, RunWriter, are_complete, remove_internal
from ledgerbeam.pipelines.exchange.jobs import GatherJob, RunsJob
from ledgerbeam.pipelines.exchange.stages import merge_stage
from ledgerbeam.pipelines.jobs.claim import OpenedJob, open_job
from ledgerbeam.pipelines.jobs.listing import listed_ids, listed_pages
from ledgerbeam.pipelines.jobs.retry import partial_run, require_failed, sources_that_failed
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.outputs.recorded import forget_lost
from ledgerbeam.pipelines.report.accounts import shown_records
from ledgerbeam.pipelines.report.stages import every_ledger, stage_ledgers, stage_tasks, stages_line
from ledgerbeam.pipelines.runners.run import RunOutcome, is_local_runner, run_job, warn_of_lost
from ledgerbeam.pipelines.runners.waves import Waves

GATHER = "gather"
"""The last stage of an exchange that is all of a call."""

_PAGE_SOURCES = 10_000
"""Of a ledger, sources that are looked at at once."""


def _require_scattered(job: ListedJob, pages: Sequence[Page], scatter: OpenedJob) -> None:
    """Raise ChangedSourceError unless a first stage has done what is listed but for files of earlier jobs, and no more.

    A file that is gone counts, too: of its records some stand for those of others, which would go without them.
    """
    if earlier := job.earlier_listed():
        pages = [page.select([url not in earlier for url in page.urls]) for page in pages]
    ids, store = listed_ids(scatter.job, pages), scatter.store
    scattered = {one for page in store.source_ids() for one in page} - store.gone_ids()
    if not all(store.completed_mask(ids)) or not scattered.issubset(ids):
        raise ChangedSourceError(
            f"{scatter.job.ledger}: sources have changed since they were scattered in this run; run the same command "
            "again"
        )


def _require_only(ids: Collection[bytes], opened: OpenedJob) -> None:
    """Make a ledger forget what a runner that lists for itself has found that was not scattered.

    Raises:
        ChangedSourceError: There was such a source.
    """
    store, known = opened.store, set(ids)
    gone = store.gone_ids()
    strange = {one for page in store.source_ids() for one in page} - known - gone
    if strange:
        store.forget_sources(strange)
        raise ChangedSourceError(
            f"{opened.job.ledger}: {count(len(strange), 'source')} changed while this run was at work; run the same "
            "command again"
        )


def _require_as_scattered(opened: OpenedJob, scatter: OpenedJob) -> None:
    """Make the first stage forget the files that a job with lists has read otherwise than they were scattered.

    Size and time of a file that takes the place of another may be those of that: then it is the same source by its
    identity, and what was decided of the other's records would be done to its own. With another list it is done again.

    Raises:
        ChangedSourceError: There was such a file.
    """
    scattered, read = ({url: time for url, time, _ in _file_times(one.store)} for one in (scatter, opened))
    written = {url for url, time in read.items() if time > scattered.get(url, time)}
    if not written:
        return
    scatter.store.forget_sources({source for url, _, source in _file_times(scatter.store) if url in written})
    raise ChangedSourceError(
        f"{opened.job.ledger}: {count(len(written), 'file')} such as {min(written)} was written since its records were "
        "scattered, though size and time are the same; run the same command again"
    )


def _file_times(store: LedgerStore) -> Iterator[tuple[str, int, bytes]]:
    """Yield the files of which a ledger has noted when they were last changed: with the time, and with their source."""
    rest = store.sources()
    while some := {row.source_id: row.member_urls or (row.url,) for row in islice(rest, _PAGE_SOURCES)}:
        for source, times in store.file_times(list(some)).items():
            yield from ((url, time, source) for url, time in zip(some[source], times, strict=True) if time)


@dataclasses.dataclass(frozen=True)
class Exchanged:
    """How an exchange has ended.

    Attributes:
        scatters: Its first jobs, as far as they were begun.
        scattered: How these have ended.
        writers: The jobs that have written what a further one reads; if it is complete, the last one alone.
        outcome: How the last one of these has ended.
        is_complete: Whether all of it is done.
        read: The run files that the last one has read; None if it has read sources.
    """

    scatters: list[OpenedJob]
    scattered: list[RunOutcome]
    writers: list[OpenedJob]
    outcome: RunOutcome
    is_complete: bool
    read: RunFiles | None = None

    @property
    def reached(self) -> OpenedJob:
        """The job that it came to; the last one, if it is complete."""
        return self.writers[-1]

    def joined(self) -> RunOutcome:
        """Return how all of it has ended: its sources are those of the first jobs."""
        scattered = self.scattered
        return dataclasses.replace(
            self.outcome,
            status={**self.outcome.status, "sources": _added([one.status["sources"] for one in scattered])},
            skipped=sum(one.skipped for one in scattered),
            completed=sum(one.completed for one in scattered),
        )


class _Reader(NamedTuple):
    """A job of an exchange that reads run files, as it is run.

    Attributes:
        opened: The job.
        whole: The last job of the exchange, which this one is, or comes before.
        name: Of the stage of that.
        keep_runs: Whether the run files stay.
    """

    opened: OpenedJob
    whole: GatherJob
    name: str
    keep_runs: bool

    @property
    def job(self) -> BucketsJob:
        """The job."""
        return cast(BucketsJob, self.opened.job)

    @property
    def level(self) -> int:
        """How many times the run files were merged that it reads."""
        return self.job.level

    @property
    def stage(self) -> str:
        """The name of its stage, which no other exchange of a call has."""
        if self.job.ledger == self.whole.ledger:
            return self.name
        merge = merge_stage(self.level + 1)
        return merge if self.name == GATHER else f"{self.name}/{merge}"

    def longer(self, job: BucketsJob) -> Self:
        """Return the last job of the exchange as it is to be done with more stages before it."""
        return self._replace(opened=dataclasses.replace(self.opened, job=job), whole=cast(GatherJob, job))


class Stages:
    """Runs the jobs of which a call is made, and tells of them.

    Args:
        how: How they are run.
        console: Told of it.
        beam_args: Beam options of the user.
        waves: Start those of all of them.
        command: What was called for.

    Attributes:
        writers: The ids of the ledgers of the jobs that were opened, if nobody else writes where they do.
    """

    def __init__(self, how: RunOptions, console: RunConsole, beam_args: list[str], waves: Waves, command: str) -> None:
        self._how = how
        self._console = console
        self._beam_args = beam_args
        self._waves = waves
        self._command = command
        self._left_out: dict[tuple[str, ...], LeftOut] = {}
        self._ran: list[RunOutcome] = []
        self._done: dict[str, dict[str, Any]] = {}
        self._complete: dict[str, Exchanged] = {}
        self._is_partial = False
        self._whole = ""
        self._output: str | None = None
        self.writers: set[str] = set()

    def exchange(self, whole: GatherJob, *, keep_runs: bool, name: str = GATHER) -> Exchanged:
        """Run what is left of all jobs of an exchange.

        Args:
            whole: The last one.
            keep_runs: Whether the run files stay.
            name: Of the last stage.
        """
        if whole.ledger in self._complete:
            return self._complete[whole.ledger]
        # Before anything is made: a wrong pattern is an error at once.
        pages = {scatter.ledger: self.listed(scatter) for scatter in (whole.scatters() if name == GATHER else ())}
        opened = self.open(whole)
        if name == GATHER:
            self.begin(opened, name)
        found = self._read_runs(_Reader(opened, cast(GatherJob, opened.job), name, keep_runs), pages)
        if found.is_complete:
            self._complete[whole.ledger] = found
        return found

    def _read_runs(self, reader: _Reader, pages: Mapping[str, Iterator[Page]]) -> Exchanged:
        """Run what is left of a job of an exchange that reads run files, and of all jobs before it."""
        console = self._console
        earlier = () if reader.level else reader.whole.earlier_signatures()
        before = self._write_runs(reader, pages)
        while before.is_complete and (longer := reader.job.after(before.writers)) is not None:
            reader = reader.longer(longer)
            before = self._write_runs(reader, {})
        opened, whole, job = reader.opened, reader.whole, reader.job
        if not before.is_complete:
            return before
        self._leave_out(job.unused(), job)
        if job.keeps_shards:
            warn_of_lost(forget_lost(job, opened.store), console)
        runs = _run_files(job, earlier, before)
        buckets = runs.known()
        if buckets is None or not are_complete(buckets, opened.store):
            if not job.keeps_shards:
                forget_lost(job, opened.store)  # what comes behind reads the others, too
            if lost := self._forget_lost(before.writers):
                console.warn(f"gone since earlier runs: {count(lost, 'run file')}; what each was made of is done again")
                before = self._write_runs(reader, {})
                if not before.is_complete:
                    return before
                runs = _run_files(job, earlier, before)
            for one in earlier:
                one.require_apart((writer.store for writer in before.writers), job.storage_options)
            buckets = runs.tabulate()
            made = count(len(buckets.sizes), runs.reading.unit)
            console.say(f"{count(len(runs), 'run file')} of {count(runs.size, 'byte')} -> {made}")
        opened = dataclasses.replace(opened, job=job.with_state(runs.state))
        outcome = self.run(reader.stage, opened, iter([buckets.page()]))
        if outcome.is_complete and not reader.keep_runs:
            runs.remove_tables(job.ledger)
            remove_internal(whole.spent(job), job, self.writers)
        return Exchanged(before.scatters, before.scattered, [opened], outcome, outcome.is_complete, runs)

    def _forget_lost(self, writers: Iterable[OpenedJob]) -> int:
        """Have jobs done again as far as what they have written is gone; return how many files are."""
        lost = sum(forget_lost(writer.job, writer.store) for writer in writers)
        if lost:
            self._complete.clear()
        return lost

    def _leave_out(self, ledgers: Iterator[str], job: BucketsJob) -> None:
        """Note in ledgers of stages that all of their sources are gone, up to the first that is not there."""
        for url in ledgers:
            try:
                store = open_store(url, job.storage_options, create=False)
            except LedgerNotFoundError:
                return
            known = {one for page in store.source_ids() for one in page}
            if known - store.gone_ids():
                store.note_listing(store.runs()[-1]["id"], listed=0, finished=True, gone=known)

    def listed_job(self, opened: OpenedJob, *, keep_runs: bool, name: str) -> Exchanged:
        """Run what is left of a job that reads files with lists, and of all jobs before it.

        Args:
            opened: The job.
            keep_runs: Whether run files stay.
            name: Of its stage.
        """
        job, store = cast(ListedJob, opened.job), opened.store
        found = self._lists(job, keep_runs=keep_runs)
        if not found.is_complete:
            return found
        if job.keeps_shards:
            warn_of_lost(forget_lost(job, store), self._console)
        lists = _list_files(job, found)
        job = job.with_state(lists.state)
        known = lists.known() is not None and job.earlier_listed() is not None
        # One listing for all: what was decided holds for the files that were scattered, and no others.
        pages = self._listed_again(job, found)
        ids = listed_ids(job, pages) if known else []  # what makes sources of files reads what is known
        if not known or not all(store.completed_mask(ids)):
            if not job.keeps_shards:
                forget_lost(job, store)  # what comes behind reads the others, too
            if self._forget_lost([found.reached]):
                found = self._lists(job, keep_runs=keep_runs)
                if not found.is_complete:
                    return found
                lists = _list_files(job, found)
                job = job.with_state(lists.state)
                pages = self._listed_again(job, found)
            lists.tabulate()
            if job.list_earlier():
                pages = self._listed_again(job, found)
            ids = listed_ids(job, pages)
        opened = dataclasses.replace(opened, job=job)
        outcome = self.run(name, opened, iter(pages))
        if outcome.is_complete:
            _require_only(ids, opened)
        if outcome.done.tasks:
            _require_as_scattered(opened, *found.scatters)
        return Exchanged(found.scatters, found.scattered, [opened], outcome, outcome.is_complete)

    def _listed_again(self, job: ListedJob, found: Exchanged) -> list[Page]:
        """Return the listing of a job, whose own files are those that were scattered."""
        pages, (scatter,) = list(self.listed(job)), found.scatters
        _require_scattered(job, pages, scatter)
        return pages

    def _lists(self, job: ListedJob, *, keep_runs: bool) -> Exchanged:
        """Run what is left of the exchange that writes the lists of a job."""
        decide = job.decide()
        return self.exchange(decide, keep_runs=keep_runs, name=decide.ledger.rpartition("/")[2])

    def _write_runs(self, reader: _Reader, pages: Mapping[str, Iterator[Page]]) -> Exchanged:
        """Run what is left of all that comes before a job, so that its run files are there.

        Args:
            reader: The job.
            pages: The listings of first jobs that were made, by the ledgers of these.
        """
        whole, level, keep_runs = reader.whole, reader.level, reader.keep_runs
        if level:
            merge = _Reader(self.open(whole.merge(level)), whole, reader.name, keep_runs)
            return self._read_runs(merge, pages)
        parts: list[Exchanged] = []
        for stage, writer in whole.first_writers().items():
            if isinstance(writer, GatherJob):
                parts.append(self.exchange(writer, keep_runs=keep_runs, name=stage))
            elif isinstance(writer, ListedJob):
                parts.append(self.listed_job(self.open(writer), keep_runs=keep_runs, name=stage))
            else:
                opened = self.open(writer)
                outcome = self.run(stage, opened, pages.get(writer.ledger) or self.listed(writer))
                parts.append(Exchanged([opened], [outcome], [opened], outcome, outcome.is_complete))
                if not outcome.is_complete:
                    self._console.warn(f"{whole.output}: nothing is written there before all sources are scattered")
                elif outcome.done.tasks:
                    tell_doubts(writer, opened.store, self._console)
            if not parts[-1].is_complete:
                break
        # Several may come from the same first jobs.
        scatters = {one.job.ledger: (one, done) for part in parts for one, done in _both(part)}
        return Exchanged(
            [one for one, _ in scatters.values()],
            [done for _, done in scatters.values()],
            [part.reached for part in parts],
            parts[-1].outcome,
            parts[-1].is_complete,
        )

    def begin(self, opened: OpenedJob, name: str) -> None:
        """Tell where the ledger is that the user asks about all of it, and how much of all stages is done.

        Args:
            opened: The last job.
            name: Of its stage.

        Raises:
            UsageError: What failed for a reason was to be done, and nothing in any stage has.
        """
        self._whole = url = opened.job.ledger
        pattern = self._how.only_failed
        shown = url if self._how.ledger else os.path.relpath(url)
        state = opened.state
        if state != "new":
            stages = stage_ledgers(opened.store, opened.job.storage_options)
            state = f"resuming: {stages_line({**stages, name: opened.store})}"
        self._console.say(f"ledger: {shown} ({state})")
        if pattern is not None:
            require_failed(every_ledger(opened.store, opened.job.storage_options), pattern)

    def listed(self, job: JobSpec) -> Iterator[Page]:
        """Return the listing of a job, whose first page was checked."""
        left_out = self._left_out[job.sources().names] = LeftOut()
        return listed_pages(job, self._console.say, left_out)

    def open(self, job: Any) -> OpenedJob:
        """Take the ledger of a job for it: first that of the last one, in whose output folder the others write.

        Raises:
            UsageError: If a link leads to the output folder of the job from that of the last one.
        """
        if self._output is None:
            self._output = job.output
        elif job.output.startswith(f"{self._output}/"):
            refuse_links(self._output, [job.output])
        opened = open_job(job, self._how.on_job_change, self._how.existing, self._console.say)
        if opened.owner is not None and opened.owner.is_alone:
            self.writers.add(opened.store.ledger_id())
        return opened

    def run(self, name: str, opened: OpenedJob, pages: Iterator[Page]) -> RunOutcome:
        """Run a job: what failed for the reason that was asked for, if something did; else all that is left of it."""
        how = self._how
        only, asked = frozenset[bytes](), None
        if how.only_failed is not None:
            asked = partial_run(opened.store, "failed", how.only_failed)
            only = sources_that_failed(opened.store, how.only_failed)
        self._is_partial = bool(only)
        is_begun = any(opened.store.status()["sources"].values())
        state = f"resuming: {stage_tasks(opened.store)} tasks done" if is_begun else "new"
        self._console.say(f"{name}: {state}")
        outcome = run_job(
            opened.job,
            opened.store,
            pages,
            PartConsole(self._console, name),
            self._beam_args,
            waves=self._waves,
            owner=opened.owner,
            only=only or None,
            asked=asked,
            debug=how.debug,
        )
        self._ran.append(outcome)
        self._done[name] = {
            "ledger": opened.job.ledger,
            "seconds": round(outcome.seconds, 3),
            "skipped": outcome.skipped,
            **{part: outcome.status[part] for part in ("complete", "sources", "tasks", "bytes")},
            "records": shown_records(outcome.records),
            "done": done_json(outcome),
        }
        return outcome

    def ended(self, opened: OpenedJob, outcome: RunOutcome) -> Result:
        """Return how all stages have ended, with the job that the call came to, and tell of it.

        Raises:
            JobInterrupt: If Ctrl-C ended the run.
            LedgerError: If sources are left open though nothing failed.
        """
        passed_over = sum(one.passed_over for one in self._left_out.values())
        every = dataclasses.replace(
            outcome,
            status={**outcome.status, "tasks": _added([stage["tasks"] for stage in self._done.values()])},
            done=outcome.done._replace(tasks=sum(one.done.tasks for one in self._ran)),
            seconds=sum(one.seconds for one in self._ran),
        )
        ending = Ending(
            opened.job,
            opened.store,
            every,
            passed_over=passed_over if is_local_runner(self._beam_args) else None,
            is_partial=self._is_partial,
            command=self._command,
            whole=self._whole,
            stages=self._done,
        )
        return ending.told(self._console)


def _both(found: Exchanged) -> Iterator[tuple[OpenedJob, RunOutcome]]:
    return zip(found.scatters, found.scattered, strict=True)


def _list_files(job: ListedJob, found: Exchanged) -> RunFiles:
    reading = Reading(job.lists_folder, job.listing_url, job.storage_options, Partition(LIST_BUCKETS))
    return RunFiles.written([_writer(found.reached)], reading)


def _writer(opened: OpenedJob) -> RunWriter:
    job = opened.job
    earlier = job.earlier_urls() if isinstance(job, RunsJob) else ()
    return RunWriter(job.identity(), str(job.output), opened.store, earlier_urls=earlier)


def _run_files(job: BucketsJob, earlier: Sequence[EarlierSignatures], before: Exchanged) -> RunFiles:
    if before.read is not None:
        merge = before.reached
        return before.read.merged(merge.store, merge.job.identity().fingerprint, job.reading())
    writers = [*(one.writer for one in earlier), *map(_writer, before.writers)]
    return RunFiles.written(writers, job.reading())


def _added(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    return {name: sum(one[name] for one in counts) for name in counts[0]}
