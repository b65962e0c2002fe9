"""Forked processes: environment, status, memory, and their end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar, NoReturn

import pytest

from ledgerbeam._base.forking import NUMBER, ForkServer, ProcessGroup, ask, fork_to
from ledgerbeam.ledger import Source, Task
from ledgerbeam.ledger.worker.inflight import InflightMarks
from ledgerbeam.pipelines.runners.waves import Waves, run_wave
from tests.cases import each
from tests.pipelines.conftest import Workspace
from tests.pipelines.jobs.test_restart import processes_below, tasks_done, wait_for
from tests.servers.process import command_of, has_let_go, name_of, wait_until


class _Obeying(ForkServer):
    """Forks processes that do what the request says."""

    name: ClassVar[str] = "obeying"
    leads: ClassVar[bool] = True

    def work(self, request: bytes, descriptors: list[int]) -> int:
        what, _, value = request.decode().partition(" ")
        if what == "write":
            os.write(descriptors[0], value.encode())
        elif what == "sleep":
            time.sleep(float(value))
        elif what == "die":
            os.kill(os.getpid(), int(value))
        elif what == "raise":
            raise ValueError(value)
        elif what == "close":
            for stream in (sys.stdout, sys.stderr):
                stream.close()
        elif what == "drop":
            sys.stdout = sys.stderr = None
        return 3 if what == "leave" else 0


@contextmanager
def obeying(lifeline: tuple[int, int] | None = None) -> Iterator[tuple[int, Callable[..., socket.socket]]]:
    """Have a server; yield its process id, and what asks it."""
    address = f"\0test-{os.getpid()}-{time.monotonic_ns()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(address)
        listener.listen()
        server = _Obeying(listener)

        def serve() -> int:
            if lifeline is not None:
                os.close(lifeline[1])
            server.serve(None if lifeline is None else lifeline[0])

        pid = fork_to(serve, "server")

    def asked(request: str, *descriptors: int) -> socket.socket:
        asker = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        asker.connect(address)
        ask(asker, request.encode(), descriptors)
        return asker

    try:
        yield pid, asked
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def status_of(wave: ProcessGroup) -> int | None:
    assert wave.wait(10)
    assert wave.pid is not None
    wave.end()
    return wave.status


def death_of(wave: ProcessGroup, folder: Path) -> str:
    """Wait for the death of a wave that leaves no task marked as in work; return what is told of it."""
    end = run_wave(wave, str(folder), on_tick=lambda: None)
    assert end.died is not None
    assert end.marks == []
    return end.died


def is_gone(pid: int) -> bool:
    return wait_until(lambda: not Path(f"/proc/{pid}").exists(), seconds=5)


@each(
    ("request_", "status"),
    [("nothing", 0), ("leave", 3), ("die 9", -9), ("die 15", -15), ("raise it", 1), ("close", 0), ("drop", 0)],
)
def test_who_asks_is_told_how_it_ended(request_: str, status: int) -> None:
    with obeying() as (_, asked):
        assert status_of(ProcessGroup(asked(request_))) == status


def test_descriptors_are_those_of_who_asks() -> None:
    read, write = os.pipe()
    with obeying() as (_, asked), asked("write here", write) as told:
        assert len(told.recv(2 * NUMBER.size, socket.MSG_WAITALL)) == 2 * NUMBER.size
    assert os.read(read, 10) == b"here"
    os.close(read)
    os.close(write)


def test_several_are_served_at_once_and_each_leads_a_group() -> None:
    with obeying() as (server, asked):
        slow, fast = ProcessGroup(asked("sleep 60")), ProcessGroup(asked("nothing"))
        assert fast.wait(10)
        assert not slow.wait(0.2)
        assert slow.pid is not None
        assert name_of(slow.pid) == "obeying"
        assert os.getpgid(slow.pid) == slow.pid != os.getpgid(server)
        fast.end()
        slow.end()
        assert is_gone(slow.pid)


def test_what_nobody_waits_for_is_ended() -> None:
    with obeying() as (_, asked):
        told = asked("sleep 60")
        (pid,) = NUMBER.unpack(told.recv(NUMBER.size))
        told.close()
        assert is_gone(pid)
        assert status_of(ProcessGroup(asked("leave"))) == 3


def test_who_leaves_without_a_request_disturbs_nobody() -> None:
    with obeying() as (_, asked):
        asked("").close()
        assert status_of(ProcessGroup(asked("leave"))) == 3


def test_all_end_with_the_server_and_it_ends_with_its_lifeline() -> None:
    read, write = os.pipe()
    with obeying((read, write)) as (server, asked):
        wave = ProcessGroup(asked("sleep 60"))
        assert wait_until(lambda: not wave.wait(0.05) and wave.pid is not None, seconds=20)
        assert wave.pid is not None
        os.close(write)
        assert wave.wait(10)
        assert wave.status is None
        assert is_gone(wave.pid)
        wave.end()
        assert os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT) is not None
    os.close(read)


@each(
    ("asks", "told"),
    [
        (f"die {signal.SIGKILL:d}", "was killed by SIGKILL"),
        (f"die {signal.SIGRTMIN + 1:d}", f"was killed by signal {signal.SIGRTMIN + 1:d}"),
        ("leave", "exited with status 3"),
        ("nothing", "exited with status 0"),  # in good order, before it is done
    ],
)
def test_what_ended_a_wave_is_told(tmp_path: Path, asks: str, told: str) -> None:
    with obeying() as (_, asked):
        assert told in death_of(ProcessGroup(asked(asks)), tmp_path)


def test_a_server_that_died_is_told_as_a_death_and_another_is_begun(tmp_path: Path) -> None:
    with Waves("warning") as waves:
        waves.prepare("chain")
        assert waves._server is not None
        first = waves._server._process
        first.kill()
        told = death_of(waves._server.ask(b"{}"), tmp_path)
        assert "the process that starts workers ended" in told
        first.wait()
        waves.prepare("chain")
        second = waves._server._process
        assert second.pid != first.pid
        waves.prepare("chain")
        assert waves._server._process is second
        waves.prepare("beam")
        assert waves._server._process is not second
    assert second.returncode == -signal.SIGKILL


def die_at_work(folder: Path) -> NoReturn:
    with InflightMarks(str(folder)).working_on([Task(Source("/in/a", 1, "1"), 0, 1)]):
        os._exit(1)


def test_what_another_process_had_in_work_is_not_laid_to_a_wave_that_has_ended(tmp_path: Path) -> None:
    other = fork_to(lambda: die_at_work(tmp_path), "other")
    os.waitpid(other, 0)
    with obeying() as (_, asked):
        assert "exited with status 3" in death_of(ProcessGroup(asked("leave")), tmp_path)


def test_the_client_of_a_store_is_imported_without_a_thread() -> None:
    program = (
        "import os, sys\n"
        "from ledgerbeam.io.storage.client import import_client\n"
        "before = len(os.listdir('/proc/self/task'))\n"
        "import_client('s3'), import_client('gs'), import_client('file')\n"
        "print(len(os.listdir('/proc/self/task')) - before, 's3fs' in sys.modules, 'gcsfs' in sys.modules)\n"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "0 True False\n"


FUNCTION = """
import gc
import os
from pathlib import Path

def look(record):
    began = Path("/proc/self/environ").read_bytes().decode().split("\\0")
    found = dict(row.partition("=")[::2] for row in began)
    names = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
    return {"began": [*map(found.get, names)], "sees": [*map(os.environ.get, names)], "frozen": gc.get_freeze_count()}
"""


@pytest.mark.slow
@pytest.mark.parametrize(("own", "began"), [(None, "4194304"), ("5000000", "5000000")])
def test_workers_keep_little_of_what_they_have_freed(workspace: Workspace, own: str | None, began: str) -> None:
    (workspace.root / "arenas.py").write_text(FUNCTION)
    workspace.jsonl("in/a.jsonl", 1)
    if own is not None:
        workspace.env["MALLOC_MMAP_THRESHOLD_"] = own
    workspace.succeed("map", "arenas:look", "in/a.jsonl", "--output", "out", "--to", "jsonl", "--audit=off")
    (shard,) = (workspace.root / "out").glob("*.jsonl")
    found = json.loads(shard.read_text())
    assert found["began"] == [began, "33554432"]
    assert found["sees"] == [own, None]
    assert found["frozen"] > 20_000, "what is imported before the fork is no garbage"


ON_BEAM = ("--", "--runner=FnApiRunner")
SLOW = (
    *("map", "functions:slow", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L"),
    *("--workers", "2", "--task-bytes", "2000", "--flush-interval", "0.1"),
)

# The same with one worker: it is the wave itself.
ALONE = tuple("1" if before == "--workers" else word for before, word in zip(("", *SLOW), SLOW, strict=False))

HOLDS = """
import os, pathlib, time

def hold(record):
    pathlib.Path(f"held-{os.getpid()}").touch()
    while not pathlib.Path("go").exists():
        time.sleep(0.01)
    return record
"""

DRAWS = """
import os, random, time
import numpy as np

def draw(record):
    time.sleep(0.01)
    return {"pid": os.getpid(), "numpy": np.random.random(), "python": random.random()}
"""


@pytest.fixture
def working(workspace: Workspace) -> Workspace:
    """A folder with 1,600 records."""
    for number in range(8):
        workspace.jsonl(f"in/{number}.jsonl", 200, first=1000 * number)
    return workspace


def finish(workspace: Workspace, process: subprocess.Popen[str], told: str, *, times: int = 1) -> str:
    """Wait for the end of a job that does all of its work; check how often it tells something; return its output."""
    out = process.communicate(timeout=120)[0]
    assert (process.returncode, out.count(told)) == (0, times), out
    assert len(workspace.records("out")) == 1600
    return out


def start_and_hold(workspace: Workspace, command: Sequence[str]) -> subprocess.Popen[str]:
    """Start a job, and return it once each of its workers is on a task; they go on when there is a file ``go``."""
    (workspace.root / "holds.py").write_text(HOLDS)
    process = workspace.start("map", "holds:hold", *command[2:])
    workers = int(command[command.index("--workers") + 1])
    wait_for(lambda: len(list(workspace.root.glob("held-*"))) == workers, process)
    return process


@pytest.mark.slow
@pytest.mark.parametrize(
    ("is_killed", "blamed", "options"),
    [
        (lambda pid: "worker_relay" in command_of(pid), 1, ON_BEAM),
        (lambda pid: name_of(pid) == "ledgerbeam-work", 1, ON_BEAM),
        (lambda pid: name_of(pid) == "ledgerbeam-fork", 2, ON_BEAM),
        (lambda pid: name_of(pid) == "ledgerbeam-work", 1, ()),
        (lambda pid: name_of(pid) == "ledgerbeam-wave", 0, ()),
        (lambda pid: "runners.wave" in command_of(pid) and not name_of(pid).startswith("ledgerbeam"), 0, ()),
    ],
    ids=["relay", "worker on Beam", "server", "worker", "wave", "server of waves"],
)
def test_whichever_is_killed_the_workers_go_and_the_job_ends_well(
    working: Workspace, is_killed: Callable[[int], bool], blamed: int, options: tuple[str, ...]
) -> None:
    """A task that a worker was on is blamed, but not if the worker went with what it was forked from."""
    process = start_and_hold(working, (*SLOW, *options))
    below = processes_below(process.pid)
    workers = [pid for pid in below if name_of(pid) == "ledgerbeam-work"]
    assert len(workers) == 2
    os.kill(next(filter(is_killed, below)), signal.SIGKILL)
    assert wait_until(lambda: not all(map(command_of, workers)), seconds=5)
    (working.root / "go").touch()
    out = finish(working, process, "(death 1 of 3)", times=blamed)
    assert "starting again with what is left" in out
    assert not any(map(command_of, below))


@pytest.mark.slow
def test_a_worker_that_goes_with_the_server_of_waves_is_not_blamed(working: Workspace) -> None:
    """One worker is the wave itself. The launcher sees both of them gone at once, as when a host has no memory left."""
    process = start_and_hold(working, ALONE)
    below = processes_below(process.pid)
    (server,) = (
        pid for pid in below if "runners.wave" in command_of(pid) and not name_of(pid).startswith("ledgerbeam")
    )
    (worker,) = (pid for pid in below if name_of(pid) == "ledgerbeam-wave")
    os.kill(process.pid, signal.SIGSTOP)
    for pid in (server, worker):
        os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: has_let_go(worker), seconds=5)
    (working.root / "go").touch()
    os.kill(process.pid, signal.SIGCONT)
    out = finish(working, process, "(death", times=0)
    assert "the process that starts workers ended" in out


@pytest.mark.slow
@pytest.mark.parametrize("dies", [False, True])
def test_workers_draw_random_numbers_of_their_own(working: Workspace, dies: bool) -> None:
    """Two work beside each other, or the second comes after the death of the first."""
    (working.root / "draws.py").write_text(DRAWS)
    process = working.start("map", "draws:draw", *(ALONE if dies else SLOW)[2:], "--audit=off")
    if dies:
        wait_for(lambda: tasks_done(working) > 3, process)
        os.kill(next(pid for pid in processes_below(process.pid) if name_of(pid) == "ledgerbeam-wave"), signal.SIGKILL)
    finish(working, process, "starting again with what is left", times=int(dies))
    records = working.records("out")
    assert len({record["pid"] for record in records}) == (3 if dies else 2)  # one maps the task of the dead one alone
    assert all(len({record[key] for record in records}) == 1600 for key in ("numpy", "python"))
