"""What every call of an exchange does: its jobs one after the other, wherever the last run has ended."""

from __future__ import annotations

import dataclasses
import os
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self, cast

from ledgerbeam.errors import ChangedSourceError, LedgerNotFoundError
from ledgerbeam.io.exchange.partition import Partition
from ledgerbeam.io.listing.left_out import LeftOut
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.io.storage.urls import is_local
from ledgerbeam.opening import open_ledger
from ledgerbeam.pipelines.calls.result import Result
from ledgerbeam.pipelines.calls.running import (
    Ending,
    PreparedCall,
    RunOptions,
    checked_options,
    done_json,
    tell_doubts,
)
from ledgerbeam.pipelines.jobs.bucket_jobs import BucketsJob
from ledgerbeam.pipelines.jobs.buckets import Reading, RunFiles, RunWriter, are_complete, remove_internal
from ledgerbeam.pipelines.jobs.dedup import LIST_BUCKETS, DedupJob, ListedJob
from ledgerbeam.pipelines.jobs.earlier import EarlierSignatures
from ledgerbeam.pipelines.jobs.exchange import GatherJob, RunsJob
from ledgerbeam.pipelines.jobs.listing import listed_ids, listed_pages
from ledgerbeam.pipelines.jobs.opening import OpenedJob, open_job
from ledgerbeam.pipelines.jobs.preview import as_json, look_at_owner, preview_job
from ledgerbeam.pipelines.jobs.recorded import forget_lost
from ledgerbeam.pipelines.jobs.removal import remove_gone
from ledgerbeam.pipelines.jobs.retry import require_failed, sources_that_failed
from ledgerbeam.pipelines.jobs.spec import JobSpec, ShardJob
from ledgerbeam.pipelines.jobs.stages import merge_stage
from ledgerbeam.pipelines.report.accounts import shown_records
from ledgerbeam.pipelines.report.stages import every_ledger
from ledgerbeam.pipelines.run_console import RunConsole
from ledgerbeam.pipelines.run_progress import count
from ledgerbeam.pipelines.runners.run import RunOutcome, is_local_runner, run_job, warn_of_lost
from ledgerbeam.pipelines.runners.waves import Waves

__all__ = ["Stages", "dedup_result", "exchange_result"]

GATHER = "gather"
"""The last stage of an exchange that is all of a call."""


def exchange_result(
    job: GatherJob, how: RunOptions, console: RunConsole, *, keep_runs: bool = False, command: str = ""
) -> Result:
    """Run an exchange to its end.

    Args:
        job: Its second job, the ledger not yet resolved.
        how: How it is run.
        console: Told of it.
        keep_runs: Whether the run files stay once all is done.
        command: What was called for, if it is not that of the job.

    Raises:
        JobInterrupt: If Ctrl-C ended the run; its state is saved.
        LedgerError: If sources are left open though nothing failed.
        LedgerbeamError: What ended the run early. All that was recorded stays recorded.
        UsageError: If the options cannot mean anything together.
    """
    return ExchangeCall(job.resolve_ledger(how.ledger), how, keep_runs, command).result(console)


def dedup_result(job: DedupJob, how: RunOptions, console: RunConsole, *, keep_runs: bool = False) -> Result:
    """Run a deduplication to its end: an exchange that decides, then the job that writes; see `exchange_result`."""
    return DedupCall(job.resolve_ledger(how.ledger), how, keep_runs).result(console)


@dataclasses.dataclass(frozen=True)
class StagedCall(PreparedCall):
    """A call of several jobs, one after the other.

    Attributes:
        keep_runs: Whether the run files stay once all is done.
    """

    keep_runs: bool = False

    @property
    @abstractmethod
    def exchange(self) -> GatherJob:
        """The exchange that it begins with."""

    def exchanges(self) -> list[GatherJob]:
        """Return the exchanges that it needs, from that which it begins with to that which reads the sources."""
        found = [self.exchange]
        while isinstance(before := next(iter(found[-1].first_writers().values())), GatherJob | ListedJob):
            found.append(before if isinstance(before, GatherJob) else before.decide())
        return found

    def readers(self) -> list[JobSpec]:
        """Return the first stages."""
        return [*self.exchanges()[-1].scatters()]

    def stages(self) -> list[JobSpec]:
        """Return the job, the exchanges that it needs, and the first stages."""
        return list({job.ledger: job for job in [self.job, *self.exchanges(), *self.readers()]}.values())

    def previewed(self, console: RunConsole) -> Result:
        """Find out what a run of the first stages would do, and whether the one behind them would begin."""
        return _previewed(self.exchanges()[-1], self.how, console, cast(ShardJob, self.job))


@dataclasses.dataclass(frozen=True)
class ExchangeCall(StagedCall):
    """A call that is an exchange.

    Attributes:
        asked_for: What was called for, if it is not the command of the job.
    """

    asked_for: str = ""

    @property
    def command(self) -> str:
        """What was called for."""
        return self.asked_for or self.job.command

    @property
    def exchange(self) -> GatherJob:
        """The job."""
        return cast(GatherJob, self.job)

    def checked_options(self) -> list[str]:
        """Return the Beam options, which can mean something for all first stages."""
        *_, found = (checked_options(scatter, self.how) for scatter in self.exchange.scatters())
        return found

    def run(self, console: RunConsole, beam_args: list[str], waves: Waves) -> Result:
        """Run what is left of all stages."""
        with console.progress():
            stages = Stages(self.how, console, beam_args, waves, self.command)
            found = stages.exchange(self.exchange, keep_runs=self.keep_runs)
        if not found.is_complete:
            return stages.ended(found.reached, found.outcome)
        remove_gone(found.reached.job, found.reached.store)
        return stages.ended(found.reached, _joined(found))


@dataclasses.dataclass(frozen=True)
class DedupCall(StagedCall):
    """A call that writes files without their duplicates."""

    @property
    def exchange(self) -> GatherJob:
        """The exchange that decides."""
        return cast(DedupJob, self.job).decide()

    def checked_options(self) -> list[str]:
        """Return the Beam options, which can mean something for the job that writes."""
        return checked_options(self.job, self.how)

    def run(self, console: RunConsole, beam_args: list[str], waves: Waves) -> Result:
        """Run what is left of all stages."""
        with console.progress():
            stages = Stages(self.how, console, beam_args, waves, "dedup")
            stages.listed(self.job)  # before anything is made: a wrong pattern is an error at once
            opened = stages.open(self.job)
            stages.begin(opened)
            found = stages.listed_job(opened, keep_runs=self.keep_runs, name="dedup")
            outcome = found.outcome
            if found.is_complete:
                last = found.reached
                if remove_gone(last.job, last.store):
                    outcome = dataclasses.replace(outcome, status=last.store.status())
                if not self.keep_runs:
                    remove_internal([cast(DedupJob, self.job).lists_folder], last.job, stages.writers)
        return stages.ended(found.reached, outcome)


def _require_scattered(job: ListedJob, pages: Sequence[Page], scatter: OpenedJob) -> None:
    """Raise ChangedSourceError unless a first stage has done all that is listed but for files of earlier jobs."""
    if earlier := job.earlier_listed():
        pages = [page.select([url not in earlier for url in page.urls]) for page in pages]
    if not scatter.store.completed_mask(listed_ids(scatter.job, pages)).all():
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
            self.begin(opened)
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
                console.warn(f"{count(lost, 'run file')} of earlier runs are gone; their sources are done again")
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
            spent = whole.spent(job)
            if job.runs_folder not in spent:
                remove_internal([job.runs_folder], job, self.writers, but_runs=True)
            remove_internal(spent, job, self.writers)
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
                store = open_ledger(url, job.storage_options, create=False)
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
        if not known or not store.completed_mask(ids).all():
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
        return Exchanged(found.scatters, found.scattered, [opened], outcome, outcome.is_complete)

    def _listed_again(self, job: ListedJob, found: Exchanged) -> list[Page]:
        """Return the listing of a job, whose own files are those that were scattered."""
        pages = list(self.listed(job))
        _require_scattered(job, pages, found.scatters[-1])
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

    def begin(self, opened: OpenedJob) -> None:
        """Tell where the ledger is that the user asks about all of it.

        Raises:
            UsageError: What failed for a reason was to be done, and nothing in any stage has.
        """
        self._whole = url = opened.job.ledger
        pattern = self._how.only_failed
        shown = os.path.relpath(url) if is_local(url) and not self._how.ledger else url
        self._console.say(f"ledger: {shown} ({opened.state})")
        if pattern is not None:
            require_failed(every_ledger(opened.store, opened.job.storage_options), pattern)

    def listed(self, job: JobSpec) -> Iterator[Page]:
        """Return the listing of a job, whose first page was checked."""
        left_out = self._left_out[job.sources().names] = LeftOut()
        return listed_pages(job, self._console.say, left_out)

    def open(self, job: Any) -> OpenedJob:
        """Take the ledger of a job for it."""
        opened = open_job(job, self._how.on_job_change, self._how.existing, self._console.say)
        if opened.owner is not None and opened.owner.is_alone:
            self.writers.add(opened.store.ledger_id())
        return opened

    def run(self, name: str, opened: OpenedJob, pages: Iterator[Page]) -> RunOutcome:
        """Run a job: what failed for the reason that was asked for, if something did; else all that is left of it."""
        how = self._how
        only = frozenset() if how.only_failed is None else sources_that_failed(opened.store, how.only_failed)
        self._is_partial = bool(only)
        self._console.say(f"{name}: {opened.state}")
        outcome = run_job(
            opened.job,
            opened.store,
            pages,
            self._console,
            self._beam_args,
            waves=self._waves,
            owner=opened.owner,
            force=how.force,
            only=only or None,
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
    if job.level and before.read is not None:
        merge = before.reached
        return before.read.merged(merge.store, merge.job.identity().fingerprint, job.reading())
    writers = [*(one.writer for one in earlier), *map(_writer, before.writers)]
    return RunFiles.written(writers, job.reading())


def _joined(found: Exchanged) -> RunOutcome:
    """Return how an exchange has ended: its sources are those of the first jobs."""
    scattered = found.scattered
    return dataclasses.replace(
        found.outcome,
        status={**found.outcome.status, "sources": _added([one.status["sources"] for one in scattered])},
        skipped=sum(one.skipped for one in scattered),
        completed=sum(one.completed for one in scattered),
    )


def _added(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    return {name: sum(one[name] for one in counts) for name in counts[0]}


def _previewed(job: GatherJob, how: RunOptions, console: RunConsole, whole: ShardJob) -> Result:
    """Find out what a run of the first jobs would do, and whether the one behind them would begin.

    Args:
        job: An exchange.
        how: How it is to be run.
        console: Told of it.
        whole: The job that the exchange is a part of, or is.
    """
    left_out = LeftOut()
    listed = [listed_pages(scatter, console.say, left_out) for scatter in job.scatters()]
    try:
        store = open_ledger(job.ledger, job.storage_options, create=False, read_only=True)
    except LedgerNotFoundError:
        store = None
    stored = None if store is None else store.job()
    decided = job.decided(stored, how.on_job_change, console.say)
    preview, *others = (
        preview_job(scatter, pages, how.on_job_change, how.existing, say=console.say)
        for scatter, pages in zip(decided.scatters(), listed, strict=True)
    )
    for other in others:
        preview.add(other)
    look_at_owner(decided, store, how.existing, preview)
    preview.schema = decided.schemas_json()
    left = sum(number for state, number in preview.sources.items() if state not in ("complete", "gone"))
    summary = {**as_json(preview), "ledger": whole.ledger, "passed_over": left_out.passed_over}
    return Result(whole.command, complete=not left, ledger=whole.ledger, output=whole.output, summary=summary)
