"""The job whose ledger is damaged, in several states, and its command, run in a fork of this process."""

from __future__ import annotations

import gc
import io
import json
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import orjson

from ledgerbeam.errors import LedgerbeamError
from ledgerbeam.io.native import enable_crash_message
from ledgerbeam.ledger import FailedTask, LedgerStore
from ledgerbeam.ledger.lmdb.files import DATA_FILE
from ledgerbeam.ledger.model.rows import CommitResult, Failure, Leaf
from ledgerbeam.ledger.opening import open_sink, open_store
from ledgerbeam.ledger.selection import PendingSource
from ledgerbeam.ledger.worker.writer import LedgerWriter
from ledgerbeam.pipelines.cli import cli
from ledgerbeam.pipelines.runners import chain as workers
from ledgerbeam.pipelines.runners import run
from ledgerbeam.pipelines.runners.local import LocalRunner
from ledgerbeam.pipelines.runners.waves import WaveEnd
from ledgerbeam.transforms.chain.base import LedgerHandle
from tests.fault.runs.runner import dofns, drive

LARGE, SMALL = 5, 90
"""Sources of several tasks, and of one: so many that tables have several pages."""

GONE = "small-001"
"""The source that goes, in some states. What it had yielded stays."""

LIMIT_SECONDS = 60
TROUBLE = "LEDGERBEAM_DAMAGE_TROUBLE"

_ENTRIES = 12  # of a commit
_KILLED = 137


@dataclass
class _Committing:
    """The sink of a worker, which tells of each commit."""

    store: Any
    committed: Callable[[], object]

    def commit(self, leaves: Sequence[Leaf], failures: Sequence[Failure] = ()) -> CommitResult:
        result: CommitResult = self.store.commit(leaves, failures)
        self.committed()
        return result

    def close(self) -> None:
        self.store.close()


_writers: dict[str, LedgerWriter] = {}
_committed: Callable[[], object] = int


class Handle(LedgerHandle):
    """How the worker reaches the ledger: by a group commit that does not commit by time."""

    def store(self) -> LedgerStore:
        return open_store(self.url, self.storage_options, create=False, job=self.job, run=self.run)

    def writer(self) -> LedgerWriter:
        if self.run not in _writers:
            sink = open_sink(self.url, self.storage_options, job=self.job, run=self.run)
            _writers[self.run] = LedgerWriter(_Committing(sink, _committed), 1e9, _ENTRIES)
        return _writers[self.run]


class Runner(LocalRunner):
    """The local runner with one worker, in its own process."""

    def _pass(self, sources: Sequence[PendingSource], listed: Any) -> WaveEnd:
        plan, *steps = dofns(self.spec, listed.run)
        tasks = list(drive([plan], sources))
        if TROUBLE in os.environ:
            tasks[::9] = [FailedTask(task, "ValueError", "trouble", task.start == 0) for task in tasks[::9]]
        list(drive(steps, tasks))
        for writer in _writers.values():
            writer.flush()
        return WaveEnd()


@dataclass(frozen=True)
class Ran:
    status: int
    said: str
    numbers: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    folder: Path

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger"

    @property
    def data(self) -> Path:
        return self.ledger / DATA_FILE

    @property
    def output(self) -> Path:
        return self.folder / "out"

    @property
    def history(self) -> Path:
        """What the ledger's file was after each commit."""
        return self.folder / "history"

    def write(self, name: str, lines: int, letter: str = "x") -> None:
        rows = (orjson.dumps({"n": n, "of": name, "text": letter * (n % 40)}) for n in range(lines))
        (self.folder / "in").mkdir(parents=True, exist_ok=True)
        path = self.folder / "in" / f"{name}.jsonl"
        path.write_bytes(b"\n".join([*rows, b""]))
        time = 1_700_000_000 + ord(letter)  # of its own: ids of sources, and so their order, are the same each time
        os.utime(path, (time, time))

    def make_sources(self) -> None:
        """Write all sources, and files of others where the job works."""
        for number in range(LARGE):
            self.write(f"large-{number}", 40 + 5 * number)
        for number in range(SMALL):
            self.write(f"small-{number:03d}", 1 + number % 3)
        self.output.mkdir()
        (self.output / "notes.txt").write_text("mine")

    def run(self, *words: str, commits: int | None = None, keep: bool = False, trouble: bool = False) -> Ran:
        """Run the job's command in a fork."""
        said, numbers = self.folder / "said", self.folder / "numbers"
        numbers.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            status = 70
            try:
                enable_crash_message()  # as the command does
                signal.alarm(LIMIT_SECONDS)
                os.environ.update({TROUBLE: "1"} if trouble else {})
                with said.open("wb") as file:
                    os.dup2(file.fileno(), 1)
                    os.dup2(file.fileno(), 2)
                sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - those of pytest are elsewhere
                sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - the same
                status = self.run_here(words, commits, keep=keep)
                sys.stdout.flush()
                sys.stderr.flush()
                if status == 0:
                    numbers.write_text(json.dumps(self.numbers()))
            except BaseException as error:  # noqa: BLE001 - told as what a traceback would be
                os.write(2, f"Traceback: {type(error).__name__}: {error}".encode())
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        text = said.read_text(errors="replace")
        return Ran(status, text, json.loads(numbers.read_text()) if numbers.exists() else {})

    def run_here(self, words: Sequence[str] = (), commits: int | None = None, *, keep: bool = False) -> int:
        """Run the job's command in this process; see `run`. Returns its status."""
        global _committed  # noqa: PLW0603 - of this fork
        done = 0

        def committed() -> None:
            nonlocal done
            done += 1
            if keep:
                self.keep()
            if done == commits:
                os._exit(_KILLED)

        _committed = committed
        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(run, "LocalRunner", Runner))
            stack.enter_context(mock.patch.object(workers, "LedgerHandle", Handle))
            return cli.main([*self.command(), *words])

    def command(self) -> list[str]:
        return [
            *("map", "tests.fault.damage_work:work", f"{self.folder}/in/*.jsonl", "--to", "jsonl"),
            *("--output", str(self.output), "--ledger", str(self.ledger), "--task-bytes", "300", "--workers", "1"),
            *("--on-error", "reject", "--audit=off"),
        ]

    def numbers(self) -> dict[str, Any]:
        """Return what the ledger says of the job, but for what depends on how often it ran."""
        with closing(open_store(str(self.ledger), create=False, read_only=True)) as store:
            try:
                status = store.status()
                kept = {name: status[name] for name in ("sources", "tasks", "records", "bytes", "filtered", "complete")}
                outputs = sorted(row.output.name for row in store.outputs())
                return {**kept, "outputs": outputs, "statistics": len(list(store.statistics()))}
            except LedgerbeamError as error:
                return {"error": str(error)}  # the command has ended with 0, and the next one will not

    def keep(self) -> None:
        self.history.mkdir(exist_ok=True)
        shutil.copy(self.data, self.history / f"{len(list(self.history.iterdir())):04d}")

    def outputs(self) -> dict[str, bytes]:
        """Return all files below the output folder but the marks."""
        files = (path for path in self.output.rglob("*") if path.is_file())
        ours = (path for path in files if "_ledgerbeam" not in path.parts)
        return {str(path.relative_to(self.output)): path.read_bytes() for path in ours}


def half(place: Place) -> None:
    """Kill a run in its middle."""
    place.run(commits=6, keep=True)


def finished(place: Place) -> None:
    """Run to the end, twice."""
    place.run(keep=True)
    place.keep()
    place.run()


def failed(place: Place) -> None:
    """Let tasks fail in a run, and kill the next."""
    place.run(keep=True, trouble=True)
    place.run(keep=True, trouble=True, commits=2)


def replaced(place: Place) -> None:
    """Replace sources of a finished job, and kill the run that does them."""
    finished(place)
    _replace(place)
    place.run(commits=1, keep=True)


def changed(place: Place) -> None:
    """Replace sources of a job that is finished, and has replaced some before: the next run does them."""
    finished(place)
    _replace(place)
    place.run(keep=True)
    for number in range(0, SMALL, 3):
        place.write(f"small-{number:03d}", 1, "z")
    place.write("large-1", 11, "z")


def _replace(place: Place) -> None:
    for number in range(0, SMALL, 4):
        place.write(f"small-{number:03d}", 1 + (number + 1) % 3, "y")
    place.write("large-0", 12, "y")  # of its outputs some are stale
    place.write("large-2", 60, "y")
    (place.folder / "in" / f"{GONE}.jsonl").unlink()


def robbed(place: Place) -> None:
    """Finish, and lose some outputs."""
    finished(place)
    gone = [path for path in sorted(place.output.rglob("*.jsonl")) if "_rejects" not in path.parts]
    for path in random.Random(1).sample(gone, 5):
        path.unlink()


def restarted(place: Place) -> None:
    """Finish as another job, begin anew as this one, and kill that."""
    place.run("--flush-interval", "2", "--nan", "null", keep=True)
    place.run("--on-job-change", "restart", commits=5, keep=True)


STATES: dict[str, Callable[[Place], None]] = {
    made.__name__: made for made in (half, finished, failed, replaced, changed, robbed, restarted)
}
"""What makes a state of the job, by its name."""


def warm_up(folder: Path) -> None:
    """Run once in this process: its forks need to import nothing."""
    place = Place(folder / "warm")
    place.folder.mkdir()
    place.make_sources()
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as said:
        for _ in range(2):
            if place.run_here():
                raise AssertionError(said.getvalue())
    place.numbers()
    for writer in _writers.values():
        writer.close()
    _writers.clear()
    gc.collect()
    gc.freeze()
