"""The local runner: it runs the waves of a job in worker processes until no work is open.

A pass starts the workers once, for the open sources of a wave. A wave with open work after a pass has another pass.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from glob import glob
from itertools import chain, compress
from operator import not_, or_
from typing import ClassVar

from ledgerbeam.errors import BudgetSpentError, LedgerbeamError, WorkerDiedError
from ledgerbeam.io import publish_bytes
from ledgerbeam.io.compression.streams import Expansion
from ledgerbeam.ledger import LedgerStore, Source, Totals
from ledgerbeam.ledger.answer_files import AnswersPlace
from ledgerbeam.ledger.answer_index import AnswerIndex
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.ledger.model.rows import SetUps, WorkTime
from ledgerbeam.ledger.model.store import MAX_ATTEMPTS
from ledgerbeam.ledger.selection import PendingSource
from ledgerbeam.ledger.worker.inflight import has_tasks_in_work
from ledgerbeam.ledger.worker.limit_shares import limit_shares
from ledgerbeam.ledger.worker.reports import read_reports, reported_set_ups, reported_times
from ledgerbeam.ledger.worker.run_folders import (
    ALL_TASKS,
    CRASHED_TASKS,
    ISOLATION,
    RunFolder,
    TaskBudget,
    committed_notes,
    file_errors,
)
from ledgerbeam.ledger.worker.sharing import Sharing, WaitingTasks, claim_place
from ledgerbeam.ledger.worker.task_board import Board, BoardTask, task_board
from ledgerbeam.pipelines.console.reporter import RunConsole
from ledgerbeam.pipelines.console.run_progress import RunProgress, Stage, count
from ledgerbeam.pipelines.jobs.listing import JobListing
from ledgerbeam.pipelines.jobs.spec import JobSpec, Part
from ledgerbeam.pipelines.outputs.recorded import look_at_files
from ledgerbeam.pipelines.runners.audit import RunAudit
from ledgerbeam.pipelines.runners.job_files import (
    STARTED,
    dump_job_file,
    dump_rows,
    environment_of,
    launched_job,
    touch,
)
from ledgerbeam.pipelines.runners.profiles import PROFILE_SUFFIX, refuse_no_profile, speedscope
from ledgerbeam.pipelines.runners.waves import BEAM, WaveEnd, Waves, gathered_waves, imports_of, run_wave

FRUITLESS_PASSES = 3  # consecutive passes with a dead worker and no progress after which the run ends with an error
PROGRESS_SECONDS = 0.5
_NUMBERED = "pass-{}"  # name of the folder of a pass, in the folder of the run
_JOB, _TMP = "job.json", "tmp"  # names in the folder of a pass: the job file, and the folder for temporary files
# Interval at which the launcher records the workers' time while they work, in seconds: a launcher may be killed.
TIME_SECONDS = 60.0
# Interval at which the launcher folds the workers' records of a remote ledger and checks the rejects, in seconds.
REFRESH_SECONDS = 5.0
_LOOKED_AT = 10_000  # sources whose rows in the ledger are in memory together


@dataclasses.dataclass(eq=False)
class LocalRunner:
    """The local runner of one run."""

    spec: JobSpec
    store: LedgerStore
    reporter: RunConsole
    beam_args: Sequence[str]
    _: dataclasses.KW_ONLY
    folder: RunFolder
    waves: Waves
    debug: bool
    submitted: ClassVar[bool] = False  # always False: the runner itself runs the job

    def __post_init__(self) -> None:
        spec = self.spec
        self._imports = imports_of(spec, self.beam_args)
        self._passes = 0
        self._pass_folder = ""
        self._next_tick = 0.0
        self._next_refresh = 0.0
        self._left = spec.task_limit  # None for no limit
        self._before = Totals()
        self._in_work: list[Source] = []
        self._started_at: float | None = None
        self._expected = 0
        self._expansion = Expansion(spec.storage_options)
        self._last_share = 0.0  # share of the work in the last report
        self._board: Board | None = None  # of the current wave
        self._not_drawn: list[BoardTask] = []  # of the last pass
        self._tasks_of_others: list[BoardTask] = []  # of all waves so far
        self.deaths = 0
        self.stopped = False  # whether the limit of tasks, or a budget, ended the run with work left
        self.spent = ""  # this budget, in words; empty for none
        self._set_ups = SetUps()
        self._set_ups_before = SetUps()
        self._time = WorkTime()  # of the passes that have ended
        self._next_time = time.monotonic() + TIME_SECONDS
        self.records = RecordCounts()
        self._audit: RunAudit | None = None
        place = AnswersPlace.of(spec.ledger, spec.answers, spec.storage_options)
        self._answers = AnswerIndex(place) if place.is_kept else None

    def run(self, listed: JobListing) -> None:
        """Run the open sources of a listing, in waves, so that memory does not grow with the number of sources.

        Transforms after the chain run once, after the last wave, with everything that the waves have committed.

        Raises:
            RejectLimitError: More records are rejected than the job allows.
            WorkerDiedError: Workers die repeatedly without progress, or a worker dies in transforms after the chain.
            LedgerbeamError: The error with which a worker or the listing ended the run.
        """
        self._before = self.store.totals()
        place = claim_place(self.store, self.folder, listed.run)
        is_paid = self.spec.calls_are_async  # perhaps
        self._sharing = Sharing(self.store, place, listed.run, workers=self.spec.workers, exclusive=is_paid)
        self._limits = limit_shares(self.store, self.spec.limits) if is_paid else None
        try:
            self._run_all(listed)
            if self._audit is not None:
                self._audit.settle(self._in_work, self._set_ups.longest)
        finally:
            if self._audit is not None:
                self._audit.end()
            self._sharing.close()
            if self._limits is not None:
                self._limits.close()
                is_unused = self.store.totals().tasks > self._before.tasks and not self._limits.was_asked
                if self.spec.limits and is_unused:
                    self.reporter.warn("--rate and --budget limited nothing: no function called ledgerbeam.remember")
            with suppress(LedgerbeamError):  # as below
                self._note_time("", listed.run)
            if self.spec.profile is not None:
                self._write_profile(self.spec.profile, listed.run)
        if self.spec.has_downstream:  # no limit of tasks can have stopped it: own pipelines have none
            self._run_downstream(listed)

    def _run_all(self, listed: JobListing) -> None:
        """Run all waves. Then wait for tasks of other launchers, and run the tasks that they release."""
        left: list[Source] = []
        listing, workers = self._listing(listed), self.spec.workers
        for wave in gathered_waves(listing, self.spec.sources(), workers, lambda: self._left):
            self.stopped = self.stopped or self._left == 0
            if self.stopped:
                return
            self._check_rejects()  # after changed sources have subtracted their former totals
            self._in_work = wave
            self._prepare_audit(listed)
            if self._answers is not None:
                self._answers.update()
            left += self._run_wave(wave, listed)
            if self._audit is not None and not self._audit.is_bounded:
                self._audit.settle(wave, self._set_ups.longest)  # sources of a wave are not kept
        while left and not self.stopped:
            self._wait_for_others(listed)
            self._tasks_of_others.clear()
            left = self._run_wave(self._unfinished(left, None), listed)

    def _prepare_audit(self, listed: JobListing) -> None:
        share = self.spec.audit_share
        if share is None or self._audit is not None:
            return
        folder, warn = self.folder.path, self.reporter.warn
        spec = launched_job(self.spec, listed.run, self.reporter, folder)
        self._audit = RunAudit(spec, self.store, share, folder=folder, before=self._before, warn=warn)
        self._audit.prepare()

    def _wait_for_others(self, listed: JobListing) -> None:
        """Wait while all remaining tasks are in progress on other hosts, or with other launchers on this host."""
        has_warned = False
        while True:
            self._refresh()
            self._tasks_of_others, held = self._sharing.open_tasks(self._tasks_of_others)
            if held.free or not held.tasks:
                return
            self._sharing.publish_idle()
            if self._limits is not None:
                self._limits.close()
            if not has_warned:
                self.reporter.warn(f"{held.text()}; this launcher takes over tasks that they leave unfinished")
                has_warned = True
            self._report("waiting", listed, held)
            time.sleep(PROGRESS_SECONDS)

    def _refresh(self, *, at_once: bool = False) -> bool:
        """Refresh the ledger and check the limit of rejects, if `REFRESH_SECONDS` have passed or `at_once` is true."""
        now = time.monotonic()
        if now < self._next_refresh and not at_once:
            return False
        self._next_refresh = now + REFRESH_SECONDS
        self.store.refresh()
        self._check_rejects()
        return True

    def _listing(self, listed: JobListing) -> Iterator[list[Source]]:
        for page in listed.open_sources():
            self._expected += sum(map(self._expected_tasks, page))
            if self._board is None:
                self._report("listing", listed)
            yield page

    def _expected_tasks(self, source: Source) -> int:
        """Estimate the number of tasks of a source from its size, for a compressed source after decompression."""
        held = source.size if source.members else self._expansion.held_bytes(source.url, source.size)
        known = source if held == source.size else dataclasses.replace(source, size=held)
        return self.spec.sources().expected_tasks(known)

    def _pending(self, sources: Sequence[Source], *, is_first: bool) -> list[PendingSource]:
        parts = (sources[start : start + _LOOKED_AT] for start in range(0, len(sources), _LOOKED_AT))
        found = [row for part in parts for row in look_at_files(part, self.store)]
        if is_first and self._audit is not None:
            self._audit.leave_out(found)
        if is_first:  # this run does not repeat tasks of earlier runs
            for row in found:
                expected = self._expected_tasks(row.source)
                self._expected -= min(max(len(row.applied) - 1, 0), expected - 1)  # one entry is the whole source
        return found

    def _run_wave(self, sources: Sequence[Source], listed: JobListing) -> list[Source]:
        """Run the tasks of `sources` until each source is complete, has a recorded failure, or is left to others.

        Return the sources with tasks in progress at other launchers.

        A source may need several passes. The index of a large file is assembled after its ranges are scanned, and a
        pass with a dead worker leaves work to the next pass.
        """
        fruitless, is_first = 0, True
        while sources and not self.stopped:
            before, records_before, failed = self.store.totals(), self.store.records(), self._failed()
            try:
                end = self._pass(self._pending(sources, is_first=is_first), listed)
                is_first = False
            except BudgetSpentError as spent:
                end, self.stopped, self.spent = WaveEnd(), True, str(spent)
            finally:
                self.store.refresh()
                self._note_committed()
                fresh = self.store.totals().minus(before)
                self.records = self.records.plus(self.store.records().since(records_before))
            if self._left is not None:  # subtract the started tasks, or after a death, the ended ones
                ended = fresh.tasks + max(0, self._failed() - failed)
                self._left = max(0, self._left - ended if end.died else TaskBudget.below(self._pass_folder).left())
            fruitless = 0 if end.marks or fresh.tasks else fruitless + 1
            if end.died:
                self.deaths += 1
                self._record_deaths(end)
                if fruitless == FRUITLESS_PASSES:
                    raise WorkerDiedError(
                        f"{end.died}, {fruitless} times in a row before any task was done. Recorded work is kept; "
                        "find out what ends the workers (out of memory?), then run the same command again"
                    )
            with_others = {} if end.died else self._find_tasks_of_others()
            self._check_rejects()
            sources = self._unfinished(sources, None if end.died else listed.run, with_others)
            if fruitless and not end.died:
                sources = [source for source in sources if source.id in with_others]
            self.stopped = self.stopped or (self._left == 0 and bool(sources))
            if sources and all(source.id in with_others for source in sources):
                self._tasks_of_others += chain.from_iterable(with_others.values())
                return list(sources)
        return []

    def _find_tasks_of_others(self) -> dict[bytes, list[BoardTask]]:
        """Return the tasks that the last pass has left to other launchers, by source."""
        found: dict[bytes, list[BoardTask]] = {}
        for task in self._sharing.open_tasks(self._not_drawn)[0]:
            found.setdefault(task.span.source, []).append(task)
        return found

    def _failed(self) -> int:
        """Return the number of failed tasks; 0 without a limit of tasks, because counting reads the whole ledger."""
        return 0 if self._left is None else self.store.status()["tasks"]["failed"]

    def _pass(self, sources: Sequence[PendingSource], listed: JobListing) -> WaveEnd:
        folder = self._new_folder(listed)
        wave = os.path.join(folder, "wave")
        with file_errors(folder):
            dump_rows(wave, sources)
            if self._left is not None:
                TaskBudget.below(folder).make(self._left)
        if any(source.attempts for source in sources):
            touch(folder, ISOLATION, ALL_TASKS if self.deaths >= MAX_ATTEMPTS else CRASHED_TASKS)
        self._started_at = self._started_at or time.monotonic()
        board = self._board = task_board(folder)
        try:
            self._sharing.begin(board)
            if self._imports != BEAM:
                board.plan(len(sources))
            end = self._wave("chain", folder, wave, listed)
            self._not_drawn = board.undrawn()
            return end
        finally:
            self._board = None
            board.close()
            with suppress(LedgerbeamError):  # a later step that needs more space reports the error
                self._note_set_ups(folder, listed.run)
            self._set_ups_before = self._set_ups
            self._time = WorkTime.summed([self._time, reported_times(folder)])

    def _new_folder(self, listed: JobListing) -> str:
        """Create the folder of the next pass. Processes of the last pass may still use their folder."""
        self._passes += 1
        folder = self._pass_folder = os.path.join(self.folder.path, _NUMBERED.format(f"{self._passes:04d}"))
        self.folder.check()
        with file_errors(folder):
            os.mkdir(folder, 0o700)
            os.mkdir(os.path.join(folder, _TMP), 0o700)
            job = launched_job(self.spec, listed.run, self.reporter, folder)
            dump_job_file(os.path.join(folder, _JOB), job)
        return folder

    def _wave(self, part: Part, folder: str, path: str, listed: JobListing) -> WaveEnd:
        tmp = os.path.join(folder, _TMP)  # Beam leaves its own folder there when it is killed
        arguments = [os.path.join(folder, _JOB), part, path, *self.beam_args]
        environment = {**environment_of(self.spec), "TMPDIR": tmp}
        wave = self.waves.start(self._imports, arguments, environment)
        end = run_wave(wave, folder, on_tick=lambda: self._tick(listed, folder), debug=self.debug)
        self.folder.check()
        return end

    @property
    def _committed(self) -> str:
        """Path of the file with the tasks that all passes of the run have committed."""
        return os.path.join(self.folder.path, "committed")

    def _note_committed(self) -> None:
        """Store the tasks that a pass has committed, also tasks of dead workers, for the transforms after the chain."""
        if self.spec.has_downstream and os.path.isdir(self._pass_folder):
            with file_errors(self.folder.path):
                dump_rows(self._committed, committed_notes(self._pass_folder, self.store), adds=True)

    def _run_downstream(self, listed: JobListing) -> None:
        with file_errors(self.folder.path):
            dump_rows(self._committed, (), adds=True)
        end = self._wave("rest", self._new_folder(listed), self._committed, listed)
        if end.died:
            raise WorkerDiedError(
                f"{end.died}, after CommitTasks. All tasks of this run are recorded, but the transforms after "
                "CommitTasks have not finished, and the next run does not pass these tasks to them; compute their "
                "results from the recorded outputs"
            )

    def _unfinished(
        self, sources: Sequence[Source], run: str | None, with_others: Collection[bytes] = ()
    ) -> list[Source]:
        """Return the sources that need another pass.

        `run` is the ID of this run after a complete pass, else None. Sources with failures of this run need no other
        pass, except those in `with_others`. Failures of earlier runs do not count: their tasks may no longer exist.
        """
        ids = [source.id for source in sources]
        ended = self.store.completed_mask(ids)
        if run is not None:
            failed = self.store.failed_mask(ids, run)
            had_their_turn = [has and known not in with_others for has, known in zip(failed, ids, strict=True)]
            ended = list(map(or_, ended, had_their_turn))
        return list(compress(sources, map(not_, ended)))

    def _record_deaths(self, end: WaveEnd) -> None:
        quarantined = {mark.node for mark in self.store.record_deaths(end.marks)} if end.marks else set()
        self.reporter.warn(f"{end.died}; starting again with what is left")
        for mark in end.marks:
            if mark.node in quarantined:
                self.reporter.warn(f"  quarantined, since its worker died {MAX_ATTEMPTS} times: {mark.name}")
            else:
                deaths = self.store.attempts(mark.source_id).get(mark.node, 0)
                self.reporter.warn(f"  it was working on {mark.name} (death {deaths} of {MAX_ATTEMPTS})")

    def _check_rejects(self) -> None:
        if self.spec.reject_limit is not None:
            self.spec.reject_limit.check(self.store, ended=False)

    def _note_set_ups(self, folder: str, run: str) -> None:
        found = self._set_ups_before.plus(reported_set_ups(folder))
        if found.times > self._set_ups.times:
            self._set_ups = found
            self.store.note(run, found)

    def _note_time(self, folder: str, run: str) -> None:
        """Record the time of workers: in all passes that have ended, and in the pass of this folder."""
        self._next_time = time.monotonic() + TIME_SECONDS
        found = WorkTime.summed([self._time, reported_times(folder)])
        if found.workers:
            self.store.note(run, found)

    def _write_profile(self, url: str, run: str) -> None:
        """Write the profiles of all workers, after success and failure."""
        folders = sorted(glob(os.path.join(self.folder.path, _NUMBERED.format("*"))))
        # A process without stacks ended before any work.
        found = [row for folder in folders for row in read_reports(folder, PROFILE_SUFFIX) if row["stacks"]]
        if not found:
            self.reporter.warn(f"{url}: the profile was not written, because no worker ran long enough")
            return
        try:
            refuse_no_profile(url, self.spec.storage_options)
            publish_bytes(url, speedscope(found, f"{self.spec.command}, run {run}"), self.spec.storage_options)
        except LedgerbeamError as error:  # the work is done, and recorded
            self.reporter.warn(f"the profile was not written: {error}")
            return
        self.reporter.warn(f"profile: {url} ({count(len(found), 'worker')}); open it at https://www.speedscope.app")

    def _tick(self, listed: JobListing, folder: str) -> None:
        now, board = time.monotonic(), self._board
        is_due = board is not None and self._sharing.is_due(board)
        if now < self._next_tick and not is_due:
            return
        self._next_tick = now + PROGRESS_SECONDS
        if self._refresh(at_once=is_due):
            self._note_set_ups(folder, listed.run)
        if now >= self._next_time:
            self._note_time(folder, listed.run)
        if board is not None:
            self._sharing.turn(board)
        if self._limits is not None:
            self._limits.turn()
        if self._audit is not None:
            self._audit.tick(self._in_work, max(self._set_ups.longest, reported_set_ups(folder).longest))
        self._report(self._stage(folder), listed)

    def _stage(self, folder: str) -> Stage:
        if self.store.totals().tasks > self._before.tasks or has_tasks_in_work(folder):
            return "working"
        return "indexing" if os.path.exists(os.path.join(folder, STARTED)) else "starting workers"

    def _report(self, stage: Stage, listed: JobListing, held: WaitingTasks | None = None) -> None:
        done = self.store.totals().minus(self._before)
        now = RunProgress(
            stage=stage,
            sources_done=self.store.completed_count(),
            sources=listed.found,
            skipped=listed.skipped,
            is_listed=listed.finished,
            tasks=max(done.tasks, 0),
            bytes=max(done.bytes, 0),
            expected=self._expected,
            seconds=0.0 if self._started_at is None else time.monotonic() - self._started_at,
            elsewhere="" if held is None else held.text(),
            failed=self.store.failure_count(),
            least=self._last_share,
        )
        self._last_share = now.share or self._last_share
        self.reporter.update(now)
