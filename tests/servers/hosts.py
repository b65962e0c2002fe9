"""Hosts on one machine: network namespaces that share nothing but an S3 server, on links that can be cut.

```
   this machine            switch                       host-1   host-2
   10.213.N.254 ------ bridge 10.213.N.1 (S3 server) ---- .11     .12
```

Each host has its own network, its own name, and its own disk under one path that is the same on all (`folder`). The
namespaces belong to processes on leashes, so that they are gone, with their links, when this process is.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.servers import s3
from tests.servers.process import Process, name_of, server_folder
from tests.servers.s3 import S3Server, s3_server

COUNT = 2
READY_SECONDS = 10.0
_BRIDGE = "switch"


@dataclass
class Hosts:
    """Hosts, two unless more are asked for, with numbers from 1."""

    s3: S3Server
    folder: Path  # under this path each host, and this machine, has a disk of its own
    logs: Path
    _switch: Process
    _holders: list[Process]
    _network: str
    _stack: contextlib.ExitStack = field(repr=False)
    _started: int = 0

    def address(self, host: int) -> str:
        """Return the network address of a host; 0 is this machine."""
        return f"{self._network}.{10 + host if host else 254}"

    def prefix(self, host: int) -> list[str]:
        """Return the command that runs another one on a host, in this process's working folder."""
        holder = self._holders[host - 1].pid
        return ["nsenter", "-t", str(holder), "-n", "-m", "-u", "env", "-C", os.getcwd()]

    def run(self, command: Sequence[str], *, host: int, env: Mapping[str, str] | None = None) -> Process:
        """Start a command on a host, which can reach the store; it and all that it starts end with the hosts."""
        self._started += 1
        own = {**self.s3.env, "TMPDIR": str(self.folder), "HOME": str(self.folder), **(env or {})}
        name = f"host-{host}-{self._started}"
        process = Process([*self.prefix(host), *command], name=name, folder=self.logs, env=own)
        return self._stack.enter_context(process)

    def disk(self, host: int) -> Path:
        """Return what a host has on its disk, as this machine sees it."""
        return self.logs / f"host-{host}-disk"

    def hide(self, folder: Path) -> None:
        """Make a folder of this machine look empty on all hosts: what they need of it, they must be sent."""
        for holder in self._holders:
            _run("nsenter", "-t", str(holder.pid), "-m", "mount", "-t", "tmpfs", "-o", "ro", "none", str(folder))

    def cut(self, host: int) -> None:
        """Cut the link of a host: what is sent is lost, and nobody is told."""
        _inside(self._switch, "ip", "link", "set", f"host{host}", "down")

    def heal(self, host: int) -> None:
        """Make the link of a host whole again."""
        _inside(self._switch, "ip", "link", "set", f"host{host}", "up")


def missing() -> str | None:
    """Return what is missing to make hosts; None when nothing is."""
    for program in ("ip", "nsenter", "unshare"):
        if shutil.which(program) is None:
            return f"no {program}: install iproute2 and util-linux"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--uts", "true"], capture_output=True, text=True, check=False
    )
    if os.geteuid() != 0 or tried.returncode:
        return f"hosts are network namespaces, which need root: run the tests as root ({tried.stderr.strip()})"
    return s3.missing()


@contextlib.contextmanager
def two_hosts(folder: Path | None = None, *, count: int = COUNT) -> Iterator[Hosts]:
    """Make two hosts, or more, and an S3 server between them."""
    with server_folder("hosts", folder) as logs, contextlib.ExitStack() as stack:
        disk = logs / "disk"
        disk.mkdir()
        network = _free_network()
        switch = stack.enter_context(_namespace("switch", logs, "--net"))
        _inside(switch, "ip", "link", "set", "lo", "up")
        _inside(switch, "ip", "link", "add", _BRIDGE, "type", "bridge")
        _inside(switch, "ip", "address", "add", f"{network}.1/24", "dev", _BRIDGE)
        _inside(switch, "ip", "link", "set", _BRIDGE, "up")
        _plug_in_this_machine(switch, network)
        holders = []
        for number in range(1, count + 1):
            holder = stack.enter_context(_namespace(f"host-{number}", logs, "--net", "--mount", "--uts"))
            holders.append(holder)
            _plug_in(switch, holder, number, f"{network}.{10 + number}")
            _furnish(holder, f"host-{number}", logs, disk)
        inside = ["nsenter", "-t", str(switch.pid), "-n"]
        store = stack.enter_context(s3_server(logs / "store", address=f"{network}.1", prefix=inside))
        yield Hosts(store, disk, logs, switch, holders, network, stack)


def _namespace(name: str, logs: Path, *kinds: str) -> Process:
    here = os.readlink("/proc/self/ns/net")
    process = Process(["unshare", *kinds, "sleep", "infinity"], name=name, folder=logs)
    return process.wait_until(
        lambda: os.readlink(f"/proc/{process.pid}/ns/net") != here and name_of(process.pid) == "sleep",
        seconds=READY_SECONDS,
    )


def _plug_in_this_machine(switch: Process, network: str) -> None:
    name = f"lb{switch.pid}"
    _run("ip", "link", "add", name, "type", "veth", "peer", "name", "uplink", "netns", str(switch.pid))
    _run("ip", "address", "add", f"{network}.254/24", "dev", name)
    _run("ip", "link", "set", name, "up")
    _inside(switch, "ip", "link", "set", "uplink", "master", _BRIDGE, "up")


def _plug_in(switch: Process, holder: Process, number: int, address: str) -> None:
    port = f"host{number}"
    _inside(switch, "ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
    _inside(switch, "ip", "link", "set", port, "master", _BRIDGE, "up")
    _inside(holder, "ip", "link", "set", "lo", "up")
    _inside(holder, "ip", "address", "add", f"{address}/24", "dev", "eth0")
    _inside(holder, "ip", "link", "set", "eth0", "up")


def _furnish(holder: Process, name: str, logs: Path, disk: Path) -> None:
    """Give a host its name and its disk."""
    _run("nsenter", "-t", str(holder.pid), "-u", "hostname", name)
    own = logs / f"{name}-disk"
    own.mkdir()
    names = logs / f"{name}-names"
    names.write_text(f"127.0.0.1 localhost {name}\n")
    for source, target in ((own, disk), (names, Path("/etc/hosts"))):
        _run("nsenter", "-t", str(holder.pid), "-m", "mount", "--bind", str(source), str(target))


def _inside(process: Process, *command: str) -> None:
    _run("nsenter", "-t", str(process.pid), "-n", *command)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: exit status {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def _free_network() -> str:
    taken = _run("ip", "-4", "route")
    while True:
        network = f"10.213.{random.randint(0, 255)}"
        if f"{network}." not in taken:
            return network
