"""Signals as parents hand them down: ignored by `nohup` and by a shell's ``&``, blocked by threads of supervisors."""

from __future__ import annotations

import signal
import subprocess

import pytest

from tests.pipelines.conftest import Workspace
from tests.pipelines.jobs.test_restart import wait_for

pytestmark = pytest.mark.long

SLOW = (
    *("map", "functions:slow", "in/*.jsonl", "--output", "out", "--to", "jsonl"),
    *("--task-bytes", "4000", "--ledger", "L"),
)


@pytest.fixture
def records(workspace: Workspace) -> int:
    """Makes sources that take some seconds; gives how many records they have."""
    for number in range(2):
        workspace.jsonl(f"in/{number}.jsonl", 500, first=1000 * number)
    return 1000


def inheriting(workspace: Workspace, *how: str) -> Workspace:
    """Return the same folder, in which commands start with signals set as ``env`` of coreutils says."""
    return Workspace(workspace.root, workspace.env, ("env", *how))


def started(workspace: Workspace, process: subprocess.Popen[str]) -> None:
    """Wait until a job has published something."""
    wait_for(lambda: any((workspace.root / "out").glob("**/*.jsonl")), process)


@pytest.mark.parametrize("how", ["--ignore-signal=INT,TERM,QUIT", "--block-signal=INT,TERM", "--ignore-signal"])
def test_sigterm_ends_a_job_however_its_parent_had_set_it(workspace: Workspace, records: int, how: str) -> None:
    inherited = inheriting(workspace, how)
    process = inherited.start(*SLOW)
    started(workspace, process)
    process.send_signal(signal.SIGTERM)
    out = process.communicate(timeout=120)[0]
    assert process.returncode == 130, out
    assert "to resume, run the same command again" in out
    assert inherited.run(*SLOW).status == 0
    assert len(workspace.records("out")) == records


def test_a_job_in_the_background_does_not_mind_ctrl_c(workspace: Workspace, records: int) -> None:
    process = inheriting(workspace, "--ignore-signal=INT").start(*SLOW)
    started(workspace, process)
    process.send_signal(signal.SIGINT)
    out = process.communicate(timeout=120)[0]
    assert process.returncode == 0, out
    assert len(workspace.records("out")) == records


@pytest.mark.parametrize("how", ["--ignore-signal", "--block-signal"])
def test_deaths_are_noticed_whatever_signals_are_ignored_or_blocked(workspace: Workspace, how: str) -> None:
    workspace.jsonl("in/a.jsonl", 20)
    command = ("map", "functions:poison", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L")
    ran = inheriting(workspace, how).run(*command, "--workers", "2")
    assert ran.status == 3, ran.err
    assert "quarantined, since its worker died 3 times" in ran.err
    assert "Traceback" not in ran.err
