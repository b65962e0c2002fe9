"""One job on any engine: started as a user would, killed, and compared with what it left elsewhere."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from ledgerbeam.io.storage.objects import ObjectFolder
from tests.servers import leash, pins
from tests.servers.engine import Engine
from tests.servers.gcs import GcsServer
from tests.servers.process import resident_mebibytes, wait_until
from tests.servers.s3 import S3Server

SOURCES = 16
RECORDS = 60
TASK_BYTES, BUCKET_BYTES = "1500", "6000"
LIMIT_SECONDS = 240.0
SAMPLE_SECONDS = 0.5


Contents: TypeAlias = dict[str, bytes | None]
Store: TypeAlias = S3Server | GcsServer

# Patterns are below the bucket.
EXCHANGES: dict[str, tuple[str, ...]] = {
    "sort": ("sort", "{}/in/0*.jsonl", "--by", "tests.matrix.work:ending"),
    "dedup": ("dedup", "{}/in/0*.jsonl", "--by", "tests.matrix.work:ending"),
    "marks": ("dedup", "{}/in/0*.jsonl", "--by", "tests.matrix.work:ending", "--mark"),
    "join": ("join", "{}/in/0[0-4].jsonl", "{}/in/0[5-9].jsonl", "--by", "tests.matrix.work:ending", "--as", "other"),
}


@dataclass
class Row:
    """What is told of an engine."""

    engine: str
    passed: dict[str, bool] = field(default_factory=dict)  # by column
    killed: int = 0  # processes, all of which it survived
    seconds: float = 0.0  # of the clean run
    mebibytes: float = 0.0  # most memory that the launcher and the engine held at once, in the clean run


class Jobs:
    """The jobs of one engine.

    Args:
        folder: Where launchers work and log.
        root: URL of the bucket with the sources, as `write_sources` left them.
        name: Of the engine; a part of the names of outputs and ledgers.
        options: Words of the command line that choose the engine.
        engine: To kill parts of; None for the local runner.
    """

    def __init__(
        self,
        folder: Path,
        server: Store,
        root: str,
        *,
        name: str,
        options: Sequence[str],
        engine: Engine | None,
        python: str = sys.executable,
        env: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.server = server
        self.root = root
        self._objects = ObjectFolder(root, server.options)
        self._python = python
        self._name = name
        self._options = options
        self._env = pins.environment({**server.env, **(env or {}), "LEDGERBEAM_CACHE": str(folder / "cache")})
        self._started = 0
        self.engine = engine
        self.row = Row(name)

    def start(self, output: str) -> Launcher:
        """Start the job, with outputs and ledger of its own below `output`."""
        command = ("map", "tests.matrix.work:work", f"{self.root}/in/*.jsonl", *self._places(output))
        return self._launch(*command, "--flush-interval", "0.3", "--task-bytes", TASK_BYTES, "--on-error", "reject")

    def start_exchange(self, name: str) -> Launcher:
        """Start one of `EXCHANGES`, with outputs and ledger of its own below its name."""
        words = [word.format(self.root) for word in EXCHANGES[name]]
        command = [*words, *self._places(name, None if "--mark" in words else "jsonl")]
        sizes = ("--task-bytes", TASK_BYTES, "--bucket-bytes", BUCKET_BYTES)
        return self._launch(*command, "--flush-interval", "0.3", *sizes)

    def exchange(self, name: str) -> Contents:
        """Run what is left of an exchange; return what it has written."""
        self._until_done(lambda: self.start_exchange(name))
        return self.contents(name)

    def index(self) -> int:
        """Index one source in ranges, with the indexes in a tree of their own; return the exit status."""
        root = f"{self.root}/{self._name}/idx"
        command = ("index", f"{self.root}/large.jsonl", "--ledger", f"{root}-ledger", "--index-root", root)
        return self._launch(*command, "--task-bytes", "20000").end()

    def convert(self) -> Contents:
        """Write the sources as tar shards; return what lies there."""
        launcher = self._launch("convert", f"{self.root}/in/[0-9]*.jsonl", *self._places("tar", "tar"))
        assert launcher.end() == 0, launcher.log()
        return self.contents("tar")

    def left(self, output: str) -> Contents:
        """Return `contents`, and as two more files what the ledger has counted, as far as it is exact."""
        records = self._ask("status", output)["records"]
        statistics = self._ask("stats", output)
        for value in statistics.values():
            if isinstance(value, dict):  # quantiles are estimated
                del value["p50"], value["p99"]
        return {
            **self.contents(output),
            "(records)": json.dumps(records, sort_keys=True).encode(),
            "(statistics)": json.dumps(statistics, sort_keys=True).encode(),
        }

    def _ask(self, action: str, output: str) -> Any:
        ledger = f"{self.root}/{self._name}/{output}-ledger"
        command = [sys.executable, "-m", "ledgerbeam", "ledger", action, ledger, "--json"]
        told = subprocess.run(command, cwd=self._folder, env=self._env, capture_output=True, check=True)
        return json.loads(told.stdout)

    def _places(self, output: str, to: str | None = "jsonl") -> tuple[str, ...]:
        place = f"{self.root}/{self._name}/{output}"
        return "--output", place, "--ledger", f"{place}-ledger", *(("--to", to) if to else ())

    def _launch(self, *command: str) -> Launcher:
        self._started += 1
        log = self._folder / f"launcher-{self._started:02d}.log"
        return Launcher([*command, *self._options], self._folder, self._env, log, python=self._python)

    def finish(self, output: str) -> Launcher:
        """Start the job until it ends well, as one does whose engine is still at work for a killed launcher."""
        return self._until_done(lambda: self.start(output))

    def _until_done(self, start: Callable[[], Launcher]) -> Launcher:
        limit = time.monotonic() + LIMIT_SECONDS
        while time.monotonic() < limit:
            launcher = start()
            if launcher.end() == 0:
                return launcher
        raise AssertionError(f"not done within {LIMIT_SECONDS:.0f} s:\n{launcher.log()}")

    def wait_for_outputs(self, output: str, launcher: Launcher, count: int = 4) -> None:
        """Wait until a job has published something, and recorded something."""
        assert wait_until(
            lambda: launcher.ended or (len(self.names(output)) >= count and bool(self.segments(output))),
            seconds=LIMIT_SECONDS,
        )
        assert not launcher.ended, launcher.log()

    def segments(self, output: str) -> list[str]:
        return [name for name in self._objects.names(f"{self._name}/{output}-ledger/segments") if "/t-" in name]

    def names(self, output: str) -> list[str]:
        names = self._objects.names(f"{self._name}/{output}")
        return [name for name in names if "/_ledgerbeam/" not in name]

    def contents(self, output: str) -> Contents:
        """Return what lies below an output folder, by relative name."""
        prefix = f"{self._name}/{output}/"
        names = [name for name in self.names(output) if name.startswith(prefix)]
        return {name[len(prefix) :]: data for name, data in zip(names, self._objects.read(names), strict=True)}


class Launcher:
    """A started command of ledgerbeam, with all that it starts on this machine."""

    def __init__(
        self, command: Sequence[str], folder: Path, env: Mapping[str, str], log: Path, *, python: str = sys.executable
    ) -> None:
        self._log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [python, "-m", "ledgerbeam", *command],
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> int:
        """Wait for its end; return its exit status."""
        try:
            return self.process.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"does not end:\n{self.log()}") from None


@contextlib.contextmanager
def most_memory(pids: Callable[[], Sequence[int]], row: Row) -> Iterator[None]:
    """Note the most memory that processes hold together while the body runs."""
    done = threading.Event()

    def sample() -> None:
        while not done.wait(SAMPLE_SECONDS):
            row.mebibytes = max(row.mebibytes, resident_mebibytes(pids()))

    thread = threading.Thread(target=sample)
    thread.start()
    started = time.monotonic()
    try:
        yield
    finally:
        row.seconds = time.monotonic() - started
        done.set()
        thread.join()


def descendants(pid: int) -> list[int]:
    """Return a process and all that it has started, as far as they live."""
    return [pid, *leash.descendants(pid)]


def write_sources(server: Store) -> str:
    """Make a bucket with sources; return its URL."""
    root = server.place()
    objects = ObjectFolder(root, server.options)

    def lines(first: int, count: int) -> bytes:
        return b"".join(b'{"id": %d, "text": "text %d"}\n' % (i, i) for i in range(first, first + count))

    for number in range(SOURCES):
        objects.create(f"in/{number:02d}.jsonl", lines(number * RECORDS, RECORDS))
    broken = lines(SOURCES * RECORDS, RECORDS).splitlines(keepends=True)
    broken[3::7] = [line[:-3] + b"\n" for line in broken[3::7]]
    objects.create("in/broken.jsonl", b"".join(broken))
    objects.create("large.jsonl", lines(0, 3000))
    return root
