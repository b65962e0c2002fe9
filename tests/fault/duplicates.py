"""Near deduplication on S3, killed all over its stages: on this machine, on Flink, or on plain hosts.

    python -m tests.fault.duplicates [--documents N] [--kills K] [--on here|flink|hosts]

Which documents are duplicates is known from how they are made, so what must stay is not computed by the library. No
process may hold more than a gigabyte of memory. Ends with one line of JSON; the status is 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import s3fs

from benchmarks.scale_runs import tree
from ledgerbeam.errors import LedgerNotFoundError
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger.opening import open_store
from tests.fault.hosts import environment
from tests.servers import flink, hosts, s3
from tests.servers.flink import FlinkCluster, flink_cluster
from tests.servers.hosts import Hosts, two_hosts
from tests.servers.process import Process
from tests.servers.s3 import S3Server

FILES = 40
WORDS = 50
"""Of a document: a copy with one more shares 46 of 47 n-grams with it, and all of its bands with them but by a chance
of less than one to a thousand million."""

VOCABULARY = 200_000
COPIES = 0.2  # of the documents, those that are an earlier one; a half of them have one more word
MEMORY = 1_000_000_000
TASK_BYTES = 2_000_000
STAGES = {"scatter": "cluster/pairs/scatter", "pairs": "cluster/pairs", "cluster": "cluster", "dedup": ""}
"""The stages, and their ledgers below that of the job."""

_PATIENCE = 6.0
_MOST_TASKS = 40

ID_BYTES = 8


def text_of(record: dict[str, Any]) -> str:
    """Return the text of a document, and note that it was asked for."""
    if not _seen:
        _seen.append(os.open(os.environ[SEEN], os.O_WRONLY | os.O_APPEND))
    os.write(_seen[0], record["id"].to_bytes(ID_BYTES, "little"))
    text: str = record["text"]
    return text


_seen: list[int] = []


@dataclass
class Found:
    """What a campaign has found, here, on Flink, or on plain hosts."""

    on: str
    documents: int
    stay: int  # documents that must stay
    kills: int = 0
    killed: dict[str, int] = field(default_factory=dict)  # kills while each stage was at work
    again: int = 0  # documents that were signed more than once, counted once for each time
    again_at_most: int = 0  # those of the tasks that kills interrupted, and of those not yet recorded
    seconds: float = 0.0  # of all starts
    memory: int = 0  # the largest peak of resident memory of a process, in bytes
    wrong: list[str] = field(default_factory=list)


def documents(count: int, chance: random.Random) -> Iterator[tuple[int, str, bool]]:
    """Yield the number, text and fate of each document: whether it stays."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    vocabulary = ["".join(chance.choices(letters, k=chance.randint(3, 9))) for _ in range(VOCABULARY)]
    made: list[str] = []  # of those that others are copies of
    for number in range(count):
        if made and chance.random() < COPIES:
            more = f" {chance.choice(vocabulary)}" if chance.random() < 0.5 else ""
            yield number, chance.choice(made) + more, False
            continue
        text = " ".join(chance.choices(vocabulary, k=WORDS))
        if chance.random() < COPIES:
            made.append(text)
        yield number, text, True


def run(count: int, kills: int, seed: int, folder: Path, on: str = "here") -> Found:
    """Deduplicate documents with so many kills, then again in one piece on this machine; return what was found."""
    chance = random.Random(seed)
    with places(on, folder) as (server, place_of):
        place = server.place()
        store = s3fs.S3FileSystem(**server.options)
        stay = []
        each = -(-count // FILES)
        made = documents(count, chance)
        for number in range(FILES):
            some = list(islice(made, each))
            lines = [json.dumps({"id": one, "text": text}) + "\n" for one, text, _ in some]
            store.pipe_file(f"{place}/in/{number:03d}.jsonl", "".join(lines).encode())
            stay += [one for one, _, stays in some if stays]
        found = Found(on, count, len(stay))
        campaign = _Campaign(place_of(folder / on, partial(_command, place, "out")), found)
        campaign.kill_all_over(kills, chance)
        written = _written(store, f"{place}/out")
        if written[0] != stay:
            odd = sorted(set(written[0]) ^ set(stay))[:5]
            found.wrong.append(f"expected {len(stay)} documents to stay, found {len(written[0])}; differ in {odd}")
        campaign.count_again(count)
        campaign.check_memory()
        whole = Here(folder / "whole", server, partial(_command, place, "whole"), str(folder / "whole" / "ledger"))
        whole.start()
        while whole.status() is None:
            time.sleep(0.1)
        if _written(store, f"{place}/whole")[1] != written[1]:
            found.wrong.append("a run in one piece has written other bytes")
    return found


def _command(place: str, output: str, ledger: str) -> list[str]:
    sources = (f"{place}/in/*.jsonl", "--output", f"{place}/{output}", "--to", "jsonl", "--ledger", ledger)
    sizes = ("--task-bytes", str(TASK_BYTES), "--bucket-bytes", "64M", "--workers", "2", "--flush-interval", "0.2")
    near = ("--near", "tests.fault.duplicates:text_of")
    return [sys.executable, "-m", "ledgerbeam", "dedup", *sources, *near, *sizes]


class _Campaign:
    """The command, killed all over its stages."""

    def __init__(self, place: Place, found: Found) -> None:
        self._place = place
        self._found = found

    def kill_all_over(self, kills: int, chance: random.Random) -> None:
        """Start it until it ends, and kill some of it in each stage as often, after some tasks or a while.

        A stage that ends too soon leaves its kills to the next one.
        """
        started = time.monotonic()
        quota, patience, status = 0, _PATIENCE, None
        while status is None:
            _, before = self._progress()
            self._place.start()
            most, until = chance.randint(1, _MOST_TASKS), time.monotonic() + chance.uniform(1.0, patience)
            while (status := self._place.status()) is None:
                self._look()
                stage, done = self._progress()
                quota = kills * (list(STAGES).index(stage) + 1) // len(STAGES)
                enough = sum(done) >= sum(before) + most or time.monotonic() > until
                if enough and self._found.kills < quota:
                    self._place.kill(chance)
                    self._found.killed[stage] = self._found.killed.get(stage, 0) + 1
                    self._found.kills += 1
                    patience = _PATIENCE if sum(done) > sum(before) else patience * 1.3
                    break
                time.sleep(self._place.pause)
        self._found.seconds = round(time.monotonic() - started, 1)
        if status:
            self._found.wrong.append(f"it ended with {status}: {self._place.tail()}")

    def count_again(self, count: int) -> None:
        seen = self._place.seen.stat().st_size // ID_BYTES
        self._found.again = seen - count
        # In each kill while documents are signed: a task of each worker, one that it has drawn ahead, and those of a
        # flush interval.
        task = count // max(1, self._progress()[1][0])
        shared = int(self._place.shared * count)
        self._found.again_at_most = (1 + self._found.killed.get("scatter", 0)) * 6 * task + shared
        if not 0 <= self._found.again <= self._found.again_at_most:
            self._found.wrong.append(
                f"expected at most {self._found.again_at_most} documents to be signed again, found {self._found.again}"
            )

    def check_memory(self) -> None:
        if self._found.memory > MEMORY:
            self._found.wrong.append(f"expected at most {MEMORY} bytes in a process, found {self._found.memory}")

    def _progress(self) -> tuple[str, list[int]]:
        """Return the last stage that has begun a run, and how many tasks of each stage are done."""
        begun, done = next(iter(STAGES)), []
        for name in STAGES:
            ledger = self._ledger(name)
            begun = name if ledger is not None and ledger.runs() else begun
            done.append(0 if ledger is None else ledger.totals().tasks)
        return begun, done

    def _ledger(self, stage: str) -> LedgerStore | None:
        url = f"{self._place.ledger}/{STAGES[stage]}".rstrip("/")
        try:
            return open_store(url, self._place.options, create=False, read_only=True)
        except (FileNotFoundError, LedgerNotFoundError):
            return None

    def _look(self) -> None:
        for pid in self._place.pids():
            with suppress(OSError):  # it has ended
                status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
                if "VmHWM:" in status:
                    peak = int(status.partition("VmHWM:")[2].split()[0]) * 1024
                    self._found.memory = max(self._found.memory, peak)


def _written(store: s3fs.S3FileSystem, folder: str) -> tuple[list[int], str]:
    """Return the numbers of the documents of a folder, in order, and a hash of its files."""
    store.invalidate_cache()
    numbers: list[int] = []
    digest = blake2b()
    for name in sorted(store.glob(f"{folder}/*.jsonl")):
        data = store.cat_file(name)
        digest.update(f"{Path(name).name} {len(data)}\n".encode() + data)
        numbers += [json.loads(line)["id"] for line in data.splitlines()]
    return numbers, digest.hexdigest()


SEEN = "SEEN_DOCUMENTS"  # environment variable: the file to which `text_of` writes which documents it was given
HOSTS = 3
_FAILS_SECONDS = 60.0
Command: TypeAlias = Callable[[str], Sequence[str]]  # the command for the URL of a ledger


class Place(ABC):
    pause = 0.02  # seconds between two looks
    shared = 0.0  # part of all work that may be done twice without any kill

    def __init__(self, folder: Path, server: S3Server, command: Command, ledger: str | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self.seen = folder / "seen"
        self.seen.touch()
        self.ledger = ledger or f"{server.place()}/ledger"
        self.options: Mapping[str, Any] = server.options
        self._log = folder / "log"
        self._env = {**os.environ, **server.env, SEEN: str(self.seen), "LEDGERBEAM_CACHE": str(folder / "cache")}
        self._command = [*command(self.ledger)]

    @abstractmethod
    def start(self) -> None:
        """Start what has not ended well and does not run."""

    @abstractmethod
    def status(self) -> int | None:
        """Return None while it works, then its exit status."""

    @abstractmethod
    def kill(self, chance: random.Random) -> None:
        """Kill a part of it."""

    @abstractmethod
    def pids(self) -> list[int]:
        """Return the Python processes that work for it."""

    def tail(self) -> str:
        return self._log.read_bytes()[-2000:].decode(errors="replace")


class Here(Place):
    """This machine: the launcher is killed."""

    _launcher: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self._launcher is None or self._launcher.poll():
            with self._log.open("ab") as log:
                words = self._command
                self._launcher = subprocess.Popen(words, env=self._env, stdout=log, stderr=log, start_new_session=True)

    def status(self) -> int | None:
        assert self._launcher is not None
        return self._launcher.poll()

    def kill(self, chance: random.Random) -> None:
        assert self._launcher is not None
        os.kill(self._launcher.pid, signal.SIGKILL)
        self._launcher.wait()

    def pids(self) -> list[int]:
        assert self._launcher is not None
        return tree(self._launcher.pid)


class OnFlink(Here):
    """A Flink cluster that does the work, with a remote ledger: a task manager is killed, and another one started."""

    pause = 0.5

    def __init__(self, folder: Path, server: S3Server, command: Command, cluster: FlinkCluster) -> None:
        super().__init__(folder, server, command)
        self._cluster = cluster
        self._command += ["--", *cluster.options]

    def kill(self, chance: random.Random) -> None:
        assert self._launcher is not None
        os.kill(chance.choice(self._cluster.executors), signal.SIGKILL)
        self._cluster.add_task_manager()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it was between two stages
            self._launcher.wait(_FAILS_SECONDS)

    def pids(self) -> list[int]:
        return [*super().pids(), *self._cluster.workers]


class OnHosts(Place):
    """Plain hosts that share a remote ledger: a host dies with all that runs there, and comes again."""

    pause = 0.5
    shared = 0.05

    def __init__(self, folder: Path, command: Command, machines: Hosts) -> None:
        super().__init__(folder, machines.s3, command)
        self._machines = machines
        self._launchers: dict[int, Process] = {}
        self._ended: dict[int, int] = {}

    def start(self) -> None:
        for host in range(1, HOSTS + 1):
            if self._ended.get(host) == 0 or (host in self._launchers and self._launchers[host].alive):
                continue
            own = str(self._machines.folder)
            env = {**environment(), SEEN: str(self.seen), "LEDGERBEAM_CACHE": f"{own}/cache"}
            self._ended.pop(host, None)
            self._launchers[host] = self._machines.run(self._command, host=host, env=env)

    def status(self) -> int | None:
        for host, launcher in self._launchers.items():
            if host not in self._ended and not launcher.alive:
                self._ended[host] = launcher.wait(1)
        return max(self._ended.values()) if len(self._ended) == HOSTS else None

    def kill(self, chance: random.Random) -> None:
        alive = [launcher for host, launcher in self._launchers.items() if host not in self._ended]
        if alive:
            chosen = chance.choice(alive)
            chosen.signal_all(signal.SIGKILL)
            chosen.kill()

    def pids(self) -> list[int]:
        alive = [launcher for host, launcher in self._launchers.items() if host not in self._ended]
        return [pid for launcher in alive for pid in [launcher.pid, *launcher.descendants()]]

    def tail(self) -> str:
        return "\n".join(launcher.tail() for launcher in self._launchers.values())


Maker: TypeAlias = Callable[[Path, Command], Place]


@contextlib.contextmanager
def places(name: str, folder: Path) -> Iterator[tuple[S3Server, Maker]]:
    """Run what a place needs: ``here``, ``flink`` or ``hosts``."""
    with contextlib.ExitStack() as stack:
        if name == "hosts":
            machines = stack.enter_context(two_hosts(folder / "hosts", count=HOSTS))
            yield machines.s3, lambda own, command: OnHosts(own, command, machines)
            return
        server = stack.enter_context(s3.s3_server())
        if name == "here":
            yield server, lambda own, command: Here(own, server, command, str(own / "ledger"))
            return
        env = {**server.env, SEEN: str(folder / name / "seen"), "LEDGERBEAM_CACHE": str(folder / "workers")}
        cluster = stack.enter_context(flink_cluster(folder / "cluster", env=env))
        yield server, lambda own, command: OnFlink(own, server, command, cluster)


def missing(name: str) -> str | None:
    """Return what a place needs and is missing; None when nothing is."""
    return {"here": s3.missing, "flink": flink.missing, "hosts": hosts.missing}[name]()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=2_000_000)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--on", choices=("here", "flink", "hosts"), default="here")
    args = parser.parse_args()
    if (needed := missing(args.on)) is not None:
        parser.error(needed)
    with tempfile.TemporaryDirectory(prefix="duplicates-") as folder:
        found = run(args.documents, args.kills, args.seed, Path(folder), args.on)
    print(json.dumps(asdict(found)))
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
