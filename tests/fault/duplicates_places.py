"""Where the command of `tests.fault.duplicates` runs, and what of it is killed there."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.scale_runs import tree
from tests.fault.hosts import environment
from tests.servers import flink, hosts, s3
from tests.servers.flink import FlinkCluster, flink_cluster
from tests.servers.hosts import Hosts, two_hosts
from tests.servers.process import Process
from tests.servers.s3 import S3Server

SEEN = "SEEN_DOCUMENTS"
"""Environment variable: the file to which `text_of` writes which documents it was given."""

HOSTS = 3
_FAILS_SECONDS = 60.0

Command: TypeAlias = Callable[[str], Sequence[str]]
"""The command for the URL of a ledger."""


class Place(ABC):
    pause = 0.02
    """Seconds between two looks."""

    shared = 0.0
    """How much of all work may be done twice without any kill."""

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
        """Start what has not ended well and does not run."""
        if self._launcher is None or self._launcher.poll():
            with self._log.open("ab") as log:
                self._launcher = subprocess.Popen(
                    self._command, env=self._env, stdout=log, stderr=log, start_new_session=True
                )

    def status(self) -> int | None:
        assert self._launcher is not None
        return self._launcher.poll()

    def kill(self, chance: random.Random) -> None:
        assert self._launcher is not None
        os.kill(self._launcher.pid, signal.SIGKILL)
        self._launcher.wait()

    def pids(self) -> list[int]:
        """Return the Python processes that work for it."""
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
        """Kill a task manager, and start one more where it was."""
        assert self._launcher is not None
        os.kill(chance.choice(self._cluster.executors), signal.SIGKILL)
        self._cluster.add_task_manager()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it was between two stages
            self._launcher.wait(_FAILS_SECONDS)

    def pids(self) -> list[int]:
        """Return the Python processes that work for it."""
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
        """Start what has not ended well and does not run."""
        for host in range(1, HOSTS + 1):
            if self._ended.get(host) == 0 or (host in self._launchers and self._launchers[host].alive):
                continue
            own = str(self._machines.folder)
            env = {**environment(), SEEN: str(self.seen), "LEDGERBEAM_CACHE": f"{own}/cache"}
            self._ended.pop(host, None)
            self._launchers[host] = self._machines.run(self._command, host=host, env=env)

    def status(self) -> int | None:
        """Return None while it works, then its exit status: one that is not 0 if there is one."""
        for host, launcher in self._launchers.items():
            if host not in self._ended and not launcher.alive:
                self._ended[host] = launcher.wait(1)
        return max(self._ended.values()) if len(self._ended) == HOSTS else None

    def kill(self, chance: random.Random) -> None:
        """Kill what runs on one host, all at once."""
        alive = [launcher for host, launcher in self._launchers.items() if host not in self._ended]
        if alive:
            chosen = chance.choice(alive)
            chosen.signal_all(signal.SIGKILL)
            chosen.kill()

    def pids(self) -> list[int]:
        """Return the Python processes that work for it."""
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
