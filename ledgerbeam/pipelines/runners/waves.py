"""Waves in the launcher: their sources, their start and supervision, and indexes that are built ahead of them.

Waves are forked from one process that has imported Beam and the clients of stores once. The process that builds indexes
ahead is forked from another one, which does not wait for these imports.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, Self

from ledgerbeam._base.process import BeamParts
from ledgerbeam._base.redaction import without_secrets
from ledgerbeam.errors import LedgerbeamError, StorageError
from ledgerbeam.ledger import Source
from ledgerbeam.ledger.model.rows import Mark
from ledgerbeam.ledger.selection import PendingSource
from ledgerbeam.ledger.worker.inflight import DeadWorker, dead_marks
from ledgerbeam.ledger.worker.reports import reported_errors
from ledgerbeam.ledger.worker.run_folders import building_index, file_errors
from ledgerbeam.pipelines.console.run_progress import count
from ledgerbeam.pipelines.jobs.sources import JobSources
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.runners.forking import ServerProcess, Wave
from ledgerbeam.pipelines.runners.job_files import (
    DIED,
    DONE,
    TRACEBACK,
    dump_job_file,
    dump_sources,
    environment_of,
    load_job_file,
    load_sources,
    read_text,
)

Forked = Literal["wave", "ahead"]

# Number of files that a process of a wave may have open: a worker up to 50, the first process 25 and 4 for each
# worker. The rest is for functions and files of Python modules.
_DESCRIPTORS, _DESCRIPTORS_OF_WORKER = 64, 4
POLL_SECONDS = 0.1
GRACE_SECONDS = 4.0  # that a wave may outlive one of its workers; at the end of a pipeline the workers end first
# Maximum numbers of sources, members and expected tasks of a wave. FnApiRunner holds the data between stages in
# memory, some kilobytes for each task.
WAVE_SOURCES = 100_000
WAVE_MEMBERS = 300_000  # of packs; a member takes a third of the memory of a source
WAVE_TASKS = 200_000
# Maximum number of bytes to index for the first wave, and for later waves per byte of the waves before. A wave has
# at least one source for each worker. No task of a wave starts before all its sources are indexed, so a small first
# wave shows faults of a function or an output early.
FIRST_BYTES = 1 << 30
WAVE_GROWTH = 4
LEAST_BYTES = 8 << 20  # minimum size of a source for an index ahead; workers plan several smaller ones at once

_JOB = "ahead.json"
_AT_ONCE = 0.001


class Waves:
    """The waves of a call, likely to use stores of some URL schemes. The context ends the server that forks them."""

    def __init__(self, log_level: str, schemes: Sequence[str] = ()) -> None:
        self._log_level = log_level
        self._schemes = schemes
        self._server: ServerProcess | None = None
        self._parts: BeamParts | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.end()

    def prepare(self, parts: BeamParts) -> None:
        """Start the imports for waves in the background."""
        if self._server is not None and not (self._server.lives and self._parts == parts):
            self._server.end()
            self._server = None
        if self._server is None:
            self._parts = parts
            arguments = [parts, self._log_level, *self._schemes]
            self._server = ServerProcess("ledgerbeam.pipelines.runners.wave", ("wave", "ahead"), arguments)

    def start(
        self, parts: BeamParts, arguments: Sequence[str], environment: Mapping[str, str], what: Forked = "wave"
    ) -> Wave:
        """Start a wave, or a process that builds indexes ahead."""
        self.prepare(parts)
        if self._server is None:
            raise AssertionError("a server was begun")
        request = json.dumps({"arguments": arguments, "environment": dict(environment)}).encode()
        return self._server.ask(what, request)


def require_descriptors(workers: int) -> None:
    """Raise the soft limit of open files to what a wave needs, if it may be: gRPC would wait forever for one more."""
    needed = _DESCRIPTORS + _DESCRIPTORS_OF_WORKER * workers
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        most = (hard - _DESCRIPTORS) // _DESCRIPTORS_OF_WORKER
        fewer = f", or give --workers {most} or fewer," if most > 0 else ""
        raise StorageError(
            f"the limit of open files (ulimit -n) is {hard}, and a run with {count(workers, 'local worker')} needs "
            f"{needed}: raise the limit{fewer} and run the same command again"
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


class WaveSources:
    """The open sources of a job, wave by wave, from pages that may be empty.

    `most_tasks` returns the number of tasks still wanted when a wave is gathered, None for all. A wave has at least one
    source.
    """

    def __init__(
        self,
        pages: Iterable[list[Source]],
        of: JobSources,
        workers: int,
        most_tasks: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._steps = _gathered(pages, of, workers, most_tasks)
        self._next: list[Source] = []
        self._error: LedgerbeamError | None = None

    def take(self) -> list[Source]:
        """Return the sources of the next wave; empty if there are no more.

        Raises:
            LedgerbeamError: The listing failed, now or during `look_ahead`.
        """
        while not self._next:
            if self._error is not None:
                raise self._error
            if (found := next(self._steps, None)) is None:
                return []
            self._next = found
        wave, self._next = self._next, []
        return wave

    def look_ahead(self) -> list[Source]:
        """Gather one more page. Return the sources of the next wave if they are complete, otherwise an empty list."""
        if not self._next:
            try:
                self._next = next(self._steps, [])
            except LedgerbeamError as error:  # the error does not concern the current wave
                self._error = error
        return self._next


def _gathered(
    pages: Iterable[list[Source]], of: JobSources, workers: int, most_tasks: Callable[[], int | None]
) -> Iterator[list[Source]]:
    """Yield each wave when it is complete, and an empty list after each page."""
    wave: list[Source] = []
    tasks = members = indexed = before = 0
    for page in pages:
        for source in page:
            more, within, read = of.expected_tasks(source), len(source.members), indexed_bytes(of, source)
            wanted = most_tasks()
            most = WAVE_TASKS if wanted is None else min(WAVE_TASKS, wanted)
            is_full = len(wave) == WAVE_SOURCES or tasks + more > most or members + within > WAVE_MEMBERS
            is_large = len(wave) >= workers and indexed + read > max(FIRST_BYTES, WAVE_GROWTH * before)
            if wave and (is_full or is_large):
                yield wave
                before += indexed
                wave, tasks, members, indexed = [], 0, 0, 0
            wave.append(source)
            tasks += more
            members += within
            indexed += read
        yield []
    if wave:
        yield wave


def indexed_bytes(of: JobSources, source: Source) -> int:
    """Return how many bytes of a source are read before its first task begins, if it has no index; at most."""
    return 0 if of.as_files is None else of.as_files.indexed_bytes(source)


@dataclass(frozen=True)
class WaveEnd:
    """The end of a wave."""

    died: str | None = None  # description of the dead process, for users; None if the wave ran to its end
    marks: list[Mark] = field(default_factory=list)  # tasks that dead workers had in progress


def run_wave(wave: Wave, run_dir: str, *, on_tick: Callable[[], None], debug: bool = False) -> WaveEnd:
    """Watch one wave until its end. All its processes are gone when this returns or raises.

    FnApiRunner waits forever if one of its worker processes is killed. So the launcher watches the processes from
    outside: it detects the death and ends the group, and the caller starts the remaining work again.

    Args:
        run_dir: Folder of this wave alone, in which its processes leave marks and errors.
        on_tick: Called about every 0.1 s.

    Raises:
        LedgerbeamError: The error with which a worker ended the wave.
        KeyboardInterrupt: The launcher was interrupted.
    """
    try:
        has_ended = _wait(wave, run_dir, on_tick)
        # Read before the group is killed, to exclude processes that die with the group or with the process that
        # they were forked from.
        dead = [] if has_ended and wave.status is None else dead_marks(run_dir)
        if has_ended:
            dead = [worker for worker in dead if worker.pid == wave.pid]
    finally:
        wave.end()
    for error in reported_errors(run_dir):
        raise error
    if not has_ended:
        return WaveEnd(_describe_workers(dead, run_dir), [mark for worker in dead for mark in worker.marks])
    if os.path.exists(os.path.join(run_dir, DONE)):
        return WaveEnd()
    if text := read_text(run_dir, TRACEBACK):
        failed = LedgerbeamError(text if debug else f"the pipeline failed: {text.strip().splitlines()[-1]}")
        failed.add_note(without_secrets(text))  # Python shows it; the command line only with --debug
        raise failed
    return WaveEnd(_describe_exit(wave), [mark for worker in dead for mark in worker.marks])


def _wait(wave: Wave, run_dir: str, on_tick: Callable[[], None]) -> bool:
    """Wait for the end of the wave or the death of a worker that the wave outlives; return whether the wave ended."""
    gone_since: float | None = None
    while not wave.wait(POLL_SECONDS):
        on_tick()
        if os.path.exists(os.path.join(run_dir, DIED)):
            return False
        if dead_marks(run_dir):
            gone_since = gone_since or time.monotonic()
            if time.monotonic() - gone_since > GRACE_SECONDS:
                return False
    return True


def _describe_workers(dead: list[DeadWorker], run_dir: str) -> str:
    if not dead:
        return read_text(run_dir, DIED).strip() or "a worker process ended"
    how = "ended without an error message (killed? out of memory?)"
    return ", ".join(f"worker process {worker.pid} {how}" for worker in dead)


def _describe_exit(wave: Wave) -> str:
    if wave.status is None:
        return "the process that waves are forked from ended without an error message (killed? out of memory?)"
    if wave.status >= 0:
        return f"worker process {wave.pid} exited with status {wave.status}"
    return f"worker process {wave.pid} was killed by {_signal_name(-wave.status)}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"


class IndexesAhead:
    """Builds indexes of large sources ahead of the waves of a run, for one wave at a time.

    It does so while the workers of the wave start, or during the wave before. The process that builds may die, and
    leaves faulty sources to the worker that plans them, which builds missing indexes itself.
    """

    def __init__(self, spec: JobSpec, waves: Waves, folder: str) -> None:
        self._spec = spec
        self._waves = waves
        self._folder = folder
        self._of: list[Source] = []
        self._list = ""
        self._lists = 0
        self._process: Wave | None = None

    def begin(self, sources: list[Source]) -> None:
        """Start the indexes of a wave, unless they are started, or an index of the wave before is still being built."""
        if self._of is sources or (self._process is not None and not self._process.wait(_AT_ONCE)):
            return
        self.end()
        self._of = sources
        of = self._spec.sources()
        large = [PendingSource(one) for one in sources if indexed_bytes(of, one) >= LEAST_BYTES]
        if not large:
            return
        job = os.path.join(self._folder, _JOB)
        self._lists += 1
        self._list = os.path.join(self._folder, f"ahead-{self._lists:04d}")
        with file_errors(self._list):
            if self._lists == 1:
                dump_job_file(job, self._spec)
            dump_sources(self._list, large)
        arguments, environment = [job, self._list], environment_of(self._spec)
        self._process = self._waves.start(self._spec.parts_of_beam(), arguments, environment, "ahead")

    def leave(self, sources: list[Source]) -> None:
        """Stop before the next index of a wave, because its workers have started. The current index is completed."""
        if self._of is sources and self._list:
            with suppress(OSError):  # it was removed before, or the folder is gone, which is reported elsewhere
                os.unlink(self._list)

    def end(self) -> None:
        """End the process that builds indexes."""
        if self._process is not None:
            self._process.end()
            self._process = None


def make_indexes(job: str, path: str) -> None:
    """Build the missing indexes of the sources in a list of the run's folder, one by one, until it is removed."""
    spec = load_job_file(job)
    sources = spec.sources().opened(spec.storage_options)
    for pending in load_sources(path):
        if not os.path.exists(path):
            return
        with suppress(LedgerbeamError), building_index(os.path.dirname(path), pending.source):
            sources.kind_of(pending.source).make_index(pending.source)
