"""Audits of a run: a sample of finished tasks is computed again in a fresh process, during the run and at its end."""

from __future__ import annotations

import math
import os
import pickle
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from itertools import islice
from operator import attrgetter

from ledgerbeam._base.forking import ProcessGroup, ServerProcess
from ledgerbeam.ledger import LedgerStore, Source, Totals
from ledgerbeam.ledger.model.rows import Audit, audit_of
from ledgerbeam.ledger.selection import AuditRequest, PendingSource
from ledgerbeam.ledger.worker.run_folders import file_errors
from ledgerbeam.pipelines.jobs.checks import AuditShare, difference_error
from ledgerbeam.pipelines.jobs.listing import listed_sources
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.runners.job_files import dump_job_file, environment_of

LEAST_TASKS = 2  # smallest number of audited tasks, if the run has as many
# Processor time of the audit of a small job, at most, and the longest run of a small job, in seconds.
SMALL_SECONDS, SMALL_RUN = 1.0, 60.0
MOST_SHARE = 0.02  # largest share of the workers' time that audits take in a longer run
_MAPPED_SECONDS = 0.2  # time for mapping the records of one task of a small job
_SECOND_AFTER = 10.0  # start of the second audit in a longer run, in seconds: by then state has built up
_LONGEST_SET_UP = 10.0  # longest set-up of user code for the audit of one task at the end of a small job, in seconds
_GRACE_SECONDS = 20.0  # longest wait for a bounded audit at the end of a run
_NOTE_SECONDS = 60.0
_SERVER, _JOB, _TMP = "ledgerbeam.pipelines.runners.audit_server", "audit.json", "audit-tmp"
_PAGE = 256
_AT_ONCE = 0.001


@dataclass(eq=False)
class RunAudit:
    """The audits of one run.

    Args:
        before: Totals of the ledger before the run. The share counts later tasks only.
        is_separate: Whether the audit is made outside of a run. If such an audit finds no difference, it clears the
            difference that an earlier audit has recorded. Audits in runs do not clear it.
    """

    spec: JobSpec
    store: LedgerStore
    share: AuditShare
    _: KW_ONLY
    folder: str
    before: Totals
    warn: Callable[[str], None]
    is_separate: bool = False

    def __post_init__(self) -> None:
        self.is_bounded = self.share.is_bounded  # whether audits stop after a limited share of the workers' time
        self._server: ServerProcess | None = None
        self._process: ProcessGroup | None = None
        self._request: tuple[bytes, str] = (b"", "")  # id of the source, path of the answer
        self._number = 0
        self._began = time.monotonic()
        self._spent = 0.0
        self._audited: dict[bytes, frozenset[bytes]] = {}  # nodes of audited tasks, by source
        self._exhausted: set[bytes] = set()
        self._problems = 0
        self._isolates = False  # whether audits call user code in another process, because it has ended theirs
        runs, job = self.store.runs(), self.spec.identity().fingerprint
        self._recorded = audit_of([row for row in runs if row["id"] == self.spec.run], job)
        self._earlier = Audit() if self.is_separate else audit_of(runs, job)
        self._recorded_at = 0.0
        self.found = Audit()

    def prepare(self) -> ServerProcess:
        """Start the process that audits are forked from, while the workers start, and return the process."""
        if self._server is None:
            path, tmp = (os.path.join(self.folder, name) for name in (_JOB, _TMP))
            with file_errors(path), suppress(FileExistsError):  # a server has died before
                dump_job_file(path, self.spec)
                os.mkdir(tmp, 0o700)
            device = {"CUDA_VISIBLE_DEVICES": self.spec.devices[0]} if self.spec.devices else {}
            environment = {**environment_of(self.spec), **device, "TMPDIR": tmp}
            self._server = ServerProcess(_SERVER, [path], environment)
        return self._server

    def leave_out(self, sources: Iterable[PendingSource]) -> None:
        """Exclude tasks of earlier runs from audits, because their job may have been different."""
        for one in sources:
            if len(one.applied) > 1:  # one entry is the whole source
                self._audited[one.source.id] = self._audited.get(one.source.id, frozenset()) | frozenset(one.applied)

    def tick(self, sources: Sequence[Source], set_up: float) -> None:
        """Read the answer of a finished audit, and start the next one if it is due.

        `set_up` is the longest set-up of user code so far, in seconds.
        """
        if self._process is not None and not self._process.wait(_AT_ONCE):
            return
        self._read_answer()
        # While the workers run, a second copy of a model might exhaust memory or the device.
        if set_up <= SMALL_SECONDS and not self.spec.devices and self._is_due(set_up):
            self._start(sources)

    def settle(self, sources: Sequence[Source], set_up: float, part: float = 1.0) -> None:
        """Audit finished tasks of sources until the share that the job asks for is reached.

        `set_up` is the longest set-up of the function, in seconds. `part` is the share of sources in all calls so far.
        """
        while True:
            while self._process is not None and not self._process.wait(_GRACE_SECONDS):
                if self.is_bounded:
                    self._process.end()
                    break
            self._read_answer()
            if not self._is_due(set_up, part, at_end=True) or not self._start(sources):
                self._record()
                return

    def settle_listed(self) -> None:
        """List all sources again, audit their finished tasks until the share of the job is reached, and end."""
        total, seen = max(1, self.store.source_count()), 0
        try:
            for page in listed_sources(self.spec, self.spec.pages()):
                seen += len(page)
                # IDs are hashes, so this order is a sample of all sources.
                self.settle(sorted(page, key=attrgetter("id")), 0.0, min(1.0, seen / total))
        finally:
            self.end()

    def end(self) -> None:
        """End the audit in progress, and the server that audits are forked from."""
        if self._process is not None:
            self._process.end()
            self._process = None
        if self._server is not None:
            self._server.end()
            self._server = None

    def _is_due(self, set_up: float, part: float = 1.0, *, at_end: bool = False) -> bool:
        done, audited = self.store.totals().tasks - self.before.tasks, self.found.tasks + self._problems
        is_late = at_end or time.monotonic() - self._began > _SECOND_AFTER
        least = min(LEAST_TASKS if is_late else 1, done)
        if not self.is_bounded:
            return audited < max(least, math.ceil(self.share.share * done * part))
        if audited < least:
            is_first = at_end and not audited
            if is_first and set_up > _LONGEST_SET_UP:
                self._problems += least
                took = f"the set-up of the function takes {set_up:.0f} s"
                self.warn(f"no task was audited: {took}; to audit anyway, use --audit 1%")
            return set_up <= (_LONGEST_SET_UP if is_first else max(SMALL_SECONDS, self._left()))
        return audited < self.share.share * done and set_up + _MAPPED_SECONDS <= self._left()

    def _left(self) -> float:
        """Return the time that is left for audits, in seconds."""
        worked = (self.store.totals().milliseconds - self.before.milliseconds) / 1000
        is_small = time.monotonic() - self._began < SMALL_RUN
        most = SMALL_SECONDS if is_small else max(SMALL_SECONDS, MOST_SHARE * worked)
        return most - self._spent

    def _start(self, sources: Sequence[Source]) -> bool:
        """Start the next audit. Return whether there is a task to audit."""
        request = self._next_request(sources)
        if request is None:
            return False
        if self._server is not None and not self._server.lives:
            self._server.end()
            self._server = None
        self._number += 1
        self._request = request.source.source.id, os.path.join(self.folder, f"audit-{self._number:04d}")
        self._process = self.prepare().ask(pickle.dumps((self._request[1], request)))
        return True

    def _next_request(self, sources: Sequence[Source]) -> AuditRequest | None:
        """Return the task to audit next: first an early one, then the newest, because their workers hold most state."""
        newest = bool(self.found.tasks)
        rest = iter(reversed(sources) if newest else sources)
        while page := list(islice(rest, _PAGE)):
            ids = [source.id for source in page]
            complete = self.store.completed_mask(ids)
            progress = self.store.progress(ids)
            for source, is_complete, known in zip(page, complete, progress, strict=True):
                done = is_complete or (known is not None and len(known.applied) > 1)  # one entry is the whole source
                if done and source.id not in self._exhausted:
                    pending = PendingSource(source) if known is None else PendingSource(source, *known)
                    outputs = tuple(self.store.source_outputs(source.id))
                    audited = self._audited.get(source.id, frozenset())
                    is_small = time.monotonic() - self._began < SMALL_RUN
                    seconds = _MAPPED_SECONDS if is_small else max(_MAPPED_SECONDS, self._left())
                    limit = seconds if self.is_bounded else None
                    return AuditRequest(pending, is_complete, outputs, audited, newest, limit, self._isolates)
        return None

    def _read_answer(self) -> None:
        """Read the answer of a process that has ended; raises NonDeterministicTaskError for a difference."""
        process, self._process = self._process, None
        if process is None:
            return
        process.end()
        source, path = self._request
        try:
            with open(path, "rb") as file:
                answer, cpu, started = pickle.load(file)  # noqa: S301 - of our own process, in the folder of the run
        except FileNotFoundError:
            if process.status is not None and not self._isolates:  # it died: audit a task again
                self._isolates = True
                return
            self._problems += 1
            self._exhausted.add(source)
            how = "took too long" if process.status is None else f"ended with status {process.status}"
            self.warn(f"a task could not be audited: its process {how}; to run without audits, use --audit off")
            return
        os.unlink(path)
        self._spent += cpu + (started if self._number == 1 else 0.0)
        node, difference, problem = answer
        if difference and not self.store.source_urls({source}):  # replaced since the audit started
            self._exhausted.add(source)
            return
        if node is None:
            self._exhausted.add(source)
            self._problems += bool(problem)
        else:
            self._audited[source] = self._audited.get(source, frozenset()) | {node}
            self._problems += bool(problem)
            if not problem:
                tasks, differ = self.found.tasks + 1, self.found.differ + bool(difference)
                self.found = Audit(tasks, differ, difference, self.spec.identity().fingerprint)
                if difference or time.monotonic() - self._recorded_at > _NOTE_SECONDS:
                    self._record()
        if problem:
            self.warn(f"a task could not be audited: {problem}")
        if difference:
            raise difference_error(difference)

    def _record(self) -> None:
        """Record the audits so far. Each record is an object in a remote ledger, so this is not done for each task."""
        self._recorded_at = time.monotonic()
        if self.found.tasks:
            tasks, differ, text, job = self.found
            known = Audit(self._recorded.tasks + tasks, self._earlier.differ + differ, text or self._earlier.found, job)
            self.store.note(self.spec.run, known)
