"""Waves in the launcher: their sources, their start and supervision.

One process imports the chain, the clients of stores and, if needed, Beam. All waves are forked from this process.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, Literal, Self

from ledgerbeam._base.forking import ProcessGroup, ServerProcess
from ledgerbeam._base.redaction import without_secrets
from ledgerbeam.errors import LedgerbeamError, StorageError
from ledgerbeam.ledger import Source
from ledgerbeam.ledger.model.rows import Mark
from ledgerbeam.ledger.worker.inflight import DeadWorker, dead_marks
from ledgerbeam.ledger.worker.reports import reported_errors
from ledgerbeam.pipelines.console.run_progress import count
from ledgerbeam.pipelines.jobs.sources import JobSources
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.runners.job_files import DIED, DONE, TRACEBACK, read_text

Imports = Literal["chain", "beam"]  # what the processes of a wave import: the chain alone, or Beam too
BEAM: Final = "beam"

# Number of files that a process of a wave may have open: a worker up to 50, the first process 25 and 4 for each
# worker. The rest is for functions and files of Python modules.
_DESCRIPTORS, _DESCRIPTORS_OF_WORKER = 64, 4
POLL_SECONDS = 0.1
GRACE_SECONDS = 4.0  # that a wave may outlive one of its workers; at the end of a pipeline the workers end first
# Maximum numbers of sources, members and expected tasks of a wave. FnApiRunner, on which pipelines of users run, holds
# the data between stages in memory, some kilobytes for each task.
WAVE_SOURCES = 100_000
WAVE_MEMBERS = 300_000  # of packs; a member takes a third of the memory of a source
WAVE_TASKS = 200_000
# Maximum number of bytes to index for the first wave, and for later waves per byte of the waves before. A wave has
# at least one source for each worker. On FnApiRunner no task of a wave starts before all its sources are indexed, so a
# small first wave shows faults of a function or an output early.
FIRST_BYTES = 1 << 30
WAVE_GROWTH = 4


@dataclass(eq=False)
class Waves:
    """Starts the waves of a call from a fork server, which imports the clients of `schemes`. `with` ends the server."""

    log_level: str
    schemes: Sequence[str] = ()
    _server: ServerProcess | None = None
    _imports: str = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.end()

    def prepare(self, imports: Imports) -> ServerProcess:
        """Start the imports for waves in the background, in the fork server, and return the server."""
        if self._server is not None and not (self._server.lives and self._imports in (imports, BEAM)):
            self._server.end()
            self._server = None
        if self._server is None:
            self._imports = imports
            arguments = [imports, self.log_level, *self.schemes]
            self._server = ServerProcess("ledgerbeam.pipelines.runners.wave", arguments)
        return self._server

    def start(self, imports: Imports, arguments: Sequence[str], environment: Mapping[str, str]) -> ProcessGroup:
        """Start a wave."""
        request = json.dumps({"arguments": arguments, "environment": dict(environment)}).encode()
        return self.prepare(imports).ask(request)


def imports_of(spec: JobSpec, beam_args: Sequence[str]) -> Imports:
    """Return what the processes of a local job import: Beam for pipelines of users and calls with options of Beam."""
    return BEAM if spec.is_pipeline or beam_args else "chain"


def require_descriptors(workers: int) -> None:
    """Raise the soft limit of open files to the number that a wave needs. StorageError: the hard limit is lower."""
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
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))  # gRPC would wait forever for one more


def gathered_waves(
    pages: Iterable[list[Source]], of: JobSources, workers: int, most_tasks: Callable[[], int | None] = lambda: None
) -> Iterator[list[Source]]:
    """Yield the open sources of a job, wave by wave, from pages that may be empty.

    `most_tasks` returns the number of tasks still wanted when a wave is gathered; None for all. No wave is empty.
    """
    wave: list[Source] = []
    tasks = members = indexed = before = 0
    for source in chain.from_iterable(pages):
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
    if wave:
        yield wave


def indexed_bytes(of: JobSources, source: Source) -> int:
    """Return the maximum number of bytes of a source that are read before its first task, as if it had no index."""
    return 0 if of.as_files is None else of.as_files.indexed_bytes(source)


@dataclass(frozen=True)
class WaveEnd:
    """The end of a wave."""

    died: str | None = None  # description of the dead process, for users; None if the wave ran to its end
    marks: list[Mark] = field(default_factory=list)  # tasks that dead workers had in progress


def run_wave(wave: ProcessGroup, run_dir: str, *, on_tick: Callable[[], None], debug: bool = False) -> WaveEnd:
    """Watch one wave until its end. All its processes are gone when this returns or raises.

    FnApiRunner waits forever if one of its worker processes is killed. So the launcher watches the processes from
    outside: it detects the death and ends the group, and the caller starts the remaining work again.

    Args:
        run_dir: Folder of this wave alone, in which its processes record tasks in progress, and errors.
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


def _wait(wave: ProcessGroup, run_dir: str, on_tick: Callable[[], None]) -> bool:
    """Wait until the wave ends, or for `GRACE_SECONDS` after a worker has died. Return whether the wave has ended."""
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


def _describe_exit(wave: ProcessGroup) -> str:
    if wave.status is None:
        return "the process that starts workers ended without an error message (killed? out of memory?)"
    if wave.status >= 0:
        return f"worker process {wave.pid} exited with status {wave.status}"
    return f"worker process {wave.pid} was killed by {_signal_name(-wave.status)}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"
