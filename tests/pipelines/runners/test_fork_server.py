"""Workers are forked: each is a process of its own, and none outlives what stands for it or made it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Sequence

import pytest

from tests.pipelines.conftest import Workspace
from tests.pipelines.jobs.test_restart import processes_below, tasks_done, wait_for
from tests.servers.process import command_of, has_let_go, name_of, wait_until

pytestmark = pytest.mark.slow

SLOW = (
    *("map", "functions:slow", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L"),
    *("--workers", "2", "--task-bytes", "2000", "--flush-interval", "0.1"),
)

ALONE = tuple("1" if before == "--workers" else word for before, word in zip(("", *SLOW), SLOW, strict=False))
"""The same with one worker: it is the wave itself."""

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


def write_sources(workspace: Workspace) -> None:
    for number in range(8):
        workspace.jsonl(f"in/{number}.jsonl", 200, first=1000 * number)


def start_and_hold(workspace: Workspace, command: Sequence[str]) -> subprocess.Popen[str]:
    """Start a job, and return it once each of its workers is on a task; they go on when there is a file ``go``."""
    (workspace.root / "holds.py").write_text(HOLDS)
    process = workspace.start("map", "holds:hold", *command[2:])
    workers = int(command[command.index("--workers") + 1])
    wait_for(lambda: len(list(workspace.root.glob("held-*"))) == workers, process)
    return process


@pytest.mark.parametrize(
    ("is_killed", "blamed"),
    [
        (lambda pid: "worker_relay" in command_of(pid), 1),
        (lambda pid: name_of(pid) == "ledgerbeam-work", 1),
        (lambda pid: name_of(pid) == "ledgerbeam-fork", 2),
        (lambda pid: name_of(pid) == "ledgerbeam-wave", 0),
        (lambda pid: "runners.wave" in command_of(pid) and not name_of(pid).startswith("ledgerbeam"), 0),
    ],
    ids=["relay", "worker", "server", "wave", "server of waves"],
)
def test_whichever_is_killed_the_workers_go_and_the_job_ends_well(
    workspace: Workspace, is_killed: Callable[[int], bool], blamed: int
) -> None:
    """A task that a worker was on is blamed, but not if the worker went with what it was forked from."""
    write_sources(workspace)
    process = start_and_hold(workspace, SLOW)
    below = processes_below(process.pid)
    workers = [pid for pid in below if name_of(pid) == "ledgerbeam-work"]
    assert len(workers) == 2
    os.kill(next(filter(is_killed, below)), signal.SIGKILL)
    assert wait_until(lambda: not all(map(command_of, workers)), seconds=5)
    (workspace.root / "go").touch()
    out = process.communicate(timeout=120)[0]
    assert (process.returncode, "starting again with what is left" in out) == (0, True), out
    assert out.count("(death 1 of 3)") == blamed, out
    assert len(workspace.records("out")) == 1600
    assert not any(map(command_of, below))


def test_a_worker_that_goes_with_the_server_of_waves_is_not_blamed(workspace: Workspace) -> None:
    """One worker is the wave itself. The launcher sees both of them gone at once, as when a host has no memory left."""
    write_sources(workspace)
    process = start_and_hold(workspace, ALONE)
    below = processes_below(process.pid)
    (server,) = (
        pid for pid in below if "runners.wave" in command_of(pid) and not name_of(pid).startswith("ledgerbeam")
    )
    (worker,) = (pid for pid in below if name_of(pid) == "ledgerbeam-wave")
    os.kill(process.pid, signal.SIGSTOP)
    for pid in (server, worker):
        os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: has_let_go(worker), seconds=5)
    (workspace.root / "go").touch()
    os.kill(process.pid, signal.SIGCONT)
    out = process.communicate(timeout=120)[0]
    assert (process.returncode, "the process that waves are forked from ended" in out) == (0, True), out
    assert "(death" not in out
    assert len(workspace.records("out")) == 1600


def test_a_job_goes_on_without_what_makes_indexes_ahead(workspace: Workspace) -> None:
    write_sources(workspace)
    process = workspace.start(*SLOW)
    wait_for(lambda: tasks_done(workspace) > 3, process)
    (server,) = (pid for pid in processes_below(process.pid) if name_of(pid) == "ledgerbeam-idxs")
    os.kill(server, signal.SIGKILL)
    out = process.communicate(timeout=120)[0]
    assert (process.returncode, "starting again" in out) == (0, False), out
    assert len(workspace.records("out")) == 1600


def are_all_different(records: list[dict[str, float]]) -> bool:
    drawn = [{record[key] for record in records} for key in ("numpy", "python")]
    return [len(records), *map(len, drawn)] == [1600] * 3


def test_workers_draw_random_numbers_of_their_own(workspace: Workspace) -> None:
    write_sources(workspace)
    (workspace.root / "draws.py").write_text(DRAWS)
    command = ("map", "draws:draw", *SLOW[2:], "--audit=off")
    workspace.succeed(*command)
    records = workspace.records("out")
    assert len({record["pid"] for record in records}) == 2
    assert are_all_different(records)


def test_so_does_the_one_that_comes_after_a_death(workspace: Workspace) -> None:
    write_sources(workspace)
    (workspace.root / "draws.py").write_text(DRAWS)
    process = workspace.start("map", "draws:draw", *ALONE[2:], "--audit=off")
    wait_for(lambda: tasks_done(workspace) > 3, process)
    os.kill(next(pid for pid in processes_below(process.pid) if name_of(pid) == "ledgerbeam-wave"), signal.SIGKILL)
    out = process.communicate(timeout=120)[0]
    assert (process.returncode, "starting again with what is left" in out) == (0, True), out
    records = workspace.records("out")
    assert len({record["pid"] for record in records}) == 2
    assert are_all_different(records)
