"""One job, its folders and hosts, the launchers and workers that run it, and what must hold of what they leave."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import gc
import io
import os
import pickle
import random
import re
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, NamedTuple, cast
from unittest import mock

import ledgerbeam
from ledgerbeam.errors import LedgerbeamError
from ledgerbeam.io.storage import stat as watch
from ledgerbeam.ledger import NoneTask, Task
from ledgerbeam.ledger.lmdb import store as lmdb_store
from ledgerbeam.ledger.model.identity import source_ids
from ledgerbeam.ledger.model.rows import Mark
from ledgerbeam.ledger.opening import open_sink, open_store
from ledgerbeam.ledger.selection import PendingSource
from ledgerbeam.ledger.worker import run_folders
from ledgerbeam.ledger.worker.writer import LedgerWriter
from ledgerbeam.pipelines.cli import cli
from ledgerbeam.pipelines.outputs import recorded
from ledgerbeam.pipelines.outputs.owner import OutputOwner
from ledgerbeam.pipelines.runners import chain as workers
from ledgerbeam.pipelines.runners import run
from ledgerbeam.pipelines.runners.waves import WaveEnd
from ledgerbeam.sources import files
from ledgerbeam.user_code import objects as user_object
from tests.fault.baton import Actor, VanishingScheduler
from tests.fault.runs import function, runner
from tests.fault.runs.function import TASK_BYTES, clean_outputs
from tests.fault.runs.judge import Judge, SimulationError
from tests.fault.runs.runner import SimulatedHandle, SimulatedRunner, dofns, drive
from tests.fault.runs.sources import ChangingSources

STEPS = 120
KILL_SHARE = 0.01
SWITCH_SHARE = 0.01
CHANGE_SHARE = 0.002
BEGIN = 1_800_000_000.0
HOSTS = ("alpha", "beta")
JUMPS = (-400 * 86_400.0, -3600.0, 0.0, 0.0, 3600.0, 400 * 86_400.0)

_LIBRARY = os.path.dirname(ledgerbeam.__file__)
_TRACED = tuple(os.path.join(_LIBRARY, layer, "") for layer in ("io", "sources", "transforms", "pipelines"))
_DONE, _FAILED_TASKS, _ERROR = 0, 3, 1
_TO_FORGET = re.compile(r"source (\S+): task at .*`ledgerbeam ledger forget` on the source")
_PROCESS = re.compile(r"\(processes [\d, ]+\)")


class _Panic(BaseException):
    """What a function written in another language may raise."""


class Outcome(NamedTuple):
    """What came of a seed: what ran, a line for each step, and the error; empty if all was well."""

    schedule: list[str]
    error: str


class World:
    """One ledger, the folders of its job, and the launchers and workers that run."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed = seed
        self.choice = random.Random(f"{seed} runs")
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.output, self.ledger = folder / "out", folder / "ledger"
        self.scheduler = VanishingScheduler(random.Random(f"{seed} schedule"), KILL_SHARE, str(folder))
        self.is_quiet = False
        self.statuses = Counter[int]()
        self._names = Counter[str]()
        self._passed = 0.0
        self._offset = 0.0
        self._hosts: dict[Actor, str] = {}
        self._writers: dict[Actor, LedgerWriter] = {}
        self._workers: dict[Actor, list[Actor]] = {}
        self._in_work: dict[Actor, list[Task]] = {}
        self._errors: dict[Actor, BaseException] = {}
        self._running: set[Actor] = set()
        self._disturbed: set[Actor] = set()
        self.sources = ChangingSources(folder / "in", self.choice, self.time)
        self._trouble_share = self.choice.choice([0.0, 0.02, 0.1])
        self.judge = Judge(self.sources, self.output, self.ledger)

    @property
    def current(self) -> Actor | None:
        return self.scheduler.current

    # Time, hosts and chance

    monotonic = staticmethod(time.monotonic)

    def time(self) -> float:
        """Seconds since 1970: hosts are containers on one machine, whose clock they share, for the ledger is local."""
        self._passed += 0.01
        return BEGIN + self._passed + self._offset

    def stat(self, path: str) -> Any:
        """Look at a source; its inode has changed at the time of this clock."""
        found = os.stat(path)
        kept = {name: getattr(found, name) for name in ("st_mode", "st_size", "st_mtime_ns", "st_dev", "st_ino")}
        return SimpleNamespace(**kept, st_ctime_ns=round(self.sources.changed[Path(path)] * 1e9))

    def flock(self, descriptor: int, operation: int) -> None:
        """Lock a file; who has to wait for it lets others run."""
        while True:
            try:
                fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if operation & fcntl.LOCK_NB:
                    raise
                self.scheduler.point("flock")

    def uname(self) -> Any:
        return SimpleNamespace(nodename=self._hosts.get(self.current, HOSTS[0]) if self.current else HOSTS[0])

    def trouble(self) -> None:
        if not self.is_quiet and self.choice.random() < self._trouble_share:
            error = self.choice.choice([ValueError, MemoryError, SystemExit, KeyboardInterrupt, GeneratorExit, _Panic])
            self.note(f"function raises {error.__name__}")
            raise error("trouble")

    def note(self, what: str) -> None:
        self.scheduler.schedule.append(f"world: {what}")

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Let the library take its time, its host and its runner from here."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch.object(lmdb_store, "time", self))
            for module in (watch, recorded):
                stack.enter_context(mock.patch.object(module, "os", SimpleNamespace(**{**vars(os), "stat": self.stat})))
            locks = {name: getattr(fcntl, name) for name in dir(fcntl) if name.startswith("LOCK_")}
            for module in (run_folders, sys.modules["ledgerbeam.io.storage.publish"]):
                stack.enter_context(mock.patch.object(module, "fcntl", SimpleNamespace(**locks, flock=self.flock)))
            stack.enter_context(mock.patch.object(runner, "world", self))
            stack.enter_context(mock.patch.object(function, "trouble", self.trouble))
            stack.enter_context(mock.patch.object(os, "uname", self.uname))
            stack.enter_context(mock.patch.object(run, "LocalRunner", SimulatedRunner))
            stack.enter_context(mock.patch.object(workers, "LedgerHandle", SimulatedHandle))
            # Of each worker's own process: one that is killed here must not hold it for the others.
            stack.enter_context(mock.patch.object(user_object, "_lock", contextlib.nullcontext()))
            for name in ("stdout", "stderr"):
                stack.enter_context(mock.patch.object(sys, name, io.TextIOWrapper(io.BytesIO(), encoding="utf-8")))
            yield

    def _traced(self, frame: FrameType, event: str, argument: Any) -> None:
        """At a call inside the library, others may run, the caller may die, and the world may change."""
        code = frame.f_code
        if self.is_quiet:
            sys.settrace(None)
        elif code.co_name.startswith("<") or not code.co_filename.startswith(_TRACED):
            return
        else:
            self._between(os.path.relpath(code.co_filename, _LIBRARY), code.co_name)

    def _between(self, module: str, name: str) -> None:
        chance = self.choice.random()
        if chance < CHANGE_SHARE:
            self.change()
        elif chance < CHANGE_SHARE + SWITCH_SHARE:
            self.scheduler.point(f"{module} {name}")

    def change(self) -> None:
        if self.choice.random() < 0.15:
            self._offset = self.choice.choice(JUMPS)
            self.note(f"clock {self._offset:+.0f} s")
        else:
            self.note(self.sources.change())

    # Actors

    def begin(self, what: str, host: str, body: Any) -> Actor:
        self._names[what] += 1
        name = f"{what}-{self._names[what]}"

        def traced(actor: Actor) -> None:
            sys.settrace(self._traced)
            try:
                body(actor)
            finally:
                sys.settrace(None)

        actor = self.scheduler.start(name, name, traced, self._ended)
        self._hosts[actor] = host
        return actor

    def _ended(self, actor: Actor) -> None:
        writer = self._writers.pop(actor, None)
        if writer is not None and not actor.died:
            with contextlib.suppress(LedgerbeamError):
                writer.close()
        for worker in self._workers.pop(actor, []):
            worker.is_condemned = True  # it dies with its launcher
        self._running.discard(actor)

    def begin_run(self) -> Actor:
        """Start the job's command, beside others that run it or after them."""
        actor = self.begin("launcher", self.choice.choice(HOSTS), self._launch)
        self._disturbed |= self._running
        self._running.add(actor)
        if len(self._running) > 1:
            self._disturbed.add(actor)
        return actor

    def _launch(self, actor: Actor) -> None:
        status = cli.main(
            [
                *("map", "tests.fault.runs.function:work", f"{self.sources.folder}/*.jsonl", "--to", "jsonl"),
                *("--output", str(self.output), "--ledger", str(self.ledger), "--task-bytes", str(TASK_BYTES)),
                *("--workers", "2", "--audit=off"),
            ]
        )
        self.statuses[status] += 1
        said = self._said()
        self.note(f"{actor.name} ended with status {status}: {said}")
        if status not in (_DONE, _ERROR, _FAILED_TASKS) or "Traceback" in said:
            self.fail(f"the command ended with status {status}: {said}")
        self._follow(said)
        self.judge.check(alone=status == _DONE and actor not in self._disturbed)

    def _follow(self, said: str) -> None:
        """Do what a run tells its user to do."""
        if self.is_quiet and "that this ledger has not recorded" in said:
            self.judge.remove_unrecorded()
        for url in _TO_FORGET.findall(said):
            open_store(str(self.ledger), create=False).forget(url)

    def writer(self, handle: SimulatedHandle) -> LedgerWriter:
        actor = self.current
        assert actor is not None
        if actor not in self._writers:
            sink = open_sink(handle.url, handle.storage_options, job=handle.job, run=handle.run)
            self._writers[actor] = LedgerWriter(sink, 1e9, self.choice.randint(1, 4))
        return self._writers[actor]

    def wave(self, spec: Any, run_id: str, sources: Sequence[PendingSource]) -> WaveEnd:
        """Plans sources in two workers, then does their tasks in two."""
        launcher = self.current
        assert launcher is not None
        plan, *steps = dofns(spec, run_id)
        tasks: list[Any] = []
        found = self._pass(launcher, [plan], sources, tasks)
        if found is None:
            self.choice.shuffle(tasks)
            found = self._pass(launcher, steps, tasks, [])
        return found or WaveEnd()

    def _pass(self, launcher: Actor, steps: list[Any], elements: Sequence[Any], results: list[Any]) -> WaveEnd | None:
        host = self._hosts[launcher]
        shares = [elements[rank::2] for rank in range(2)]
        data = pickle.dumps(steps)
        workers: list[Actor] = []
        for share in shares:

            def body(actor: Actor, share: Sequence[Any] = share) -> None:
                try:
                    self._work(actor, pickle.loads(data), share, results)
                except BaseException as error:  # noqa: BLE001 - the launcher tells its user
                    self._errors[actor] = error
                if actor in self._errors:
                    for other in workers:
                        other.is_condemned = True  # the wave's processes are ended together

            workers.append(self.begin("worker", host, body))
        self._workers[launcher] = workers
        self.scheduler.wait_for(workers)
        errors = [self._errors[worker] for worker in workers if worker in self._errors]
        for error in errors:
            if isinstance(error, LedgerbeamError):
                raise error
            if isinstance(error, Exception):
                raise SimulationError(f"a worker raised {type(error).__name__}: {error}") from error
        died = [worker for worker in workers if worker.died or worker in self._errors]
        if not died:
            return None
        to_blame = [worker for worker in died if not worker.is_condemned or not errors][:1]
        marks = [
            Mark(task.source.id, task.node, task.name) for worker in to_blame for task in self._in_work.get(worker, [])
        ]
        return WaveEnd(f"{died[0].name} died", marks)

    def _work(self, actor: Actor, steps: list[Any], elements: Sequence[Any], results: list[Any]) -> None:
        """Take a share of the elements through some steps, and note what is in work."""

        def begin(element: Any) -> None:
            source = element.source if isinstance(element, PendingSource) else None
            of = Task(source, 0, 0) if source else element.task if isinstance(element, NoneTask) else element
            self._in_work[actor] = [of] if isinstance(of, Task) else []

        point = self.scheduler.point
        results.extend(drive(steps, elements, begin=begin, point=lambda step: point(type(step).__name__)))
        self._in_work[actor] = []

    # What must hold

    def fail(self, message: str) -> None:
        raise SimulationError(message)

    @staticmethod
    def _said() -> str:
        """Return what the commands have printed since the last call."""
        errors = sys.stderr
        errors.flush()
        printed = cast(io.BytesIO, errors.buffer)
        said = printed.getvalue().decode()
        printed.seek(0)
        printed.truncate()
        return _PROCESS.sub("(processes)", said)

    def finish(self) -> None:
        """Run the job undisturbed: it must end with what one clean run makes."""
        self.is_quiet = True
        self._offset = 0.0
        self.scheduler.kill_share = 0
        self.sources.settle()
        open_store(str(self.ledger), create=True).forget("*", failures_only=True)  # frees what was quarantined
        self.note("quiet")
        self.statuses.clear()
        for _ in range(4):
            self.begin_run()
            while self.scheduler.step():
                pass
        current = self.sources.now()
        sound = [version for version, data in current.items() if clean_outputs("", data) is not None]
        is_sound = len(sound) == len(current)
        expected = _DONE if is_sound else _FAILED_TASKS
        if self.statuses[expected] < 2:
            self.fail(f"undisturbed runs ended with {dict(self.statuses)}, expected {expected}")
        store = open_store(str(self.ledger), create=False, read_only=True)
        complete = {row.source_id for row in store.sources() if row.state == "complete"}
        for version in sound:
            (source,) = source_ids([version.path], [version.size], [str(version.time)])
            if source not in complete:
                self.fail(f"{version} is not complete after undisturbed runs")
        self.judge.check(alone=is_sound)


@functools.cache
def warm_up() -> None:
    """Run once undisturbed: what is imported and kept at its first use makes no difference to a seed then."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        world = World(0, Path(folder) / "job")
        with world.installed():
            world.finish()
    gc.collect()
    gc.disable()  # what is called as garbage goes would come at any time


@contextlib.contextmanager
def folder_of(seed: int) -> Iterator[Path]:
    """Return a seed its folder in memory, of one name: the ids of sources, and so their order, come from URLs."""
    root = Path(f"/dev/shm/ledgerbeam-runs-{os.getuid()}")
    root.mkdir(exist_ok=True)
    with (root / f"{seed}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may run the same seed
        folder = root / f"{seed}"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def simulate(seed: int, steps: int = STEPS) -> Outcome:
    """Run one seed in a process of its own, a fork of this one: actors that were killed stand still in it for good."""
    warm_up()
    with folder_of(seed) as folder:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                with os.fdopen(writing, "wb") as file:
                    pickle.dump(_simulate(seed, folder, steps), file)
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as file:
            data = file.read()
        os.waitpid(child, 0)
    return pickle.loads(data) if data else Outcome([], "the process of the simulation has died")


def _simulate(seed: int, folder: Path, steps: int) -> Outcome:
    world = World(seed, folder)
    error: BaseException | None = None
    with world.installed():
        try:
            for _ in range(steps):
                if not world.scheduler.step() or world.choice.random() < 0.01:
                    world.begin_run()
                if world.choice.random() < 0.02:
                    world.change()
            if world.choice.random() < 0.5:
                world.scheduler.kill_all()
            world.scheduler.kill_share = 0
            while world.scheduler.step():
                pass
            world.finish()
        except BaseException as raised:  # noqa: BLE001 - told whatever it is
            error = raised
    return Outcome(world.scheduler.schedule, "" if error is None else "".join(traceback.format_exception(error)))


# Without any look in planning the tasks of a local run would still carry the time that its launcher saw.
BREAKAGES: dict[str, AbstractContextManager[Any]] = {
    "no look in planning": mock.patch.object(files, "with_file_marks", lambda source, _: replace(source, changed_ns=0)),
    "parts of two files": mock.patch.object(recorded, "_differ", return_value=False),
    "no look for unrecorded shards": mock.patch.object(OutputOwner, "strangers", return_value=[]),
}
