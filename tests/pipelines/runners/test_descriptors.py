"""Standard descriptors that are closed: no file of a ledger or an output may get their numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import chain, combinations
from pathlib import Path

import pytest

from tests.pipelines.conftest import Workspace

pytestmark = pytest.mark.long

CLOSED = list(chain.from_iterable(combinations(("<&-", ">&-", "2>&-"), count) for count in (1, 2, 3)))

LOUD = """
import os, subprocess, sys

def loud(record):
    print("printed", record["id"] * 1000, flush=True)
    print("complained", record["id"] * 1000, file=sys.stderr, flush=True)
    for descriptor in (1, 2):
        os.write(descriptor, b"written " * 500)
    if record["id"] == 3:
        subprocess.run(["sh", "-c", "echo from a child; echo from a child >&2; cat"], check=True)
    return record
"""

OWN = """
import os, sys
from ledgerbeam.ledger import Job, Source
from ledgerbeam.ledger.model.rows import Leaf
from ledgerbeam.ledger.opening import open_local_store

store = open_local_store("L", create=True)
store.open_job(Job("own", {}))
source = Source("/data/a", 1, "1")
store.register([source])
for descriptor in (1, 2):
    os.write(descriptor, b"written " * 5000)
print("printed " * 5000, flush=True)
print("printed " * 5000, flush=True, file=sys.stderr)
store.commit([Leaf(source.id, ())])
store.close()
store = open_local_store("L", create=False)
os._exit(0 if store.completed_count() == 1 else 7)
"""


def run_closed(workspace: Workspace, closed: tuple[str, ...], *command: str | Path) -> subprocess.CompletedProcess[str]:
    shell = f'exec "$@" {" ".join(closed)}'
    return subprocess.run(
        ["sh", "-c", shell, "sh", sys.executable, *command],
        cwd=workspace.root,
        env=workspace.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


RUNS = [pytest.param(closed, "1", id="".join(closed)) for closed in CLOSED] + [
    pytest.param(closed, "2", id=f"{''.join(closed)}-2", marks=pytest.mark.slow) for closed in CLOSED
]


@pytest.mark.parametrize(("closed", "workers"), RUNS)
def test_a_job_that_prints_to_closed_descriptors_is_right(
    workspace: Workspace, closed: tuple[str, ...], workers: str
) -> None:
    (workspace.root / "loud_functions.py").write_text(LOUD)
    for name in "ab":
        workspace.jsonl(f"in/{name}.jsonl", 5)
    job = ("-m", "ledgerbeam", "map", "loud_functions:loud", "in/*.jsonl", "--output", "out", "--to", "jsonl")
    ran = run_closed(workspace, closed, *job, "--ledger", "L", "--workers", workers)
    assert ran.returncode == 0, ran.stderr + ran.stdout
    assert "Traceback" not in ran.stderr + ran.stdout
    status = workspace.run("ledger", "status", "L", "--json")
    assert status.json["complete"] is True, status.err
    verified = workspace.run("ledger", "verify", "L")
    assert verified.status == 0, verified.out + verified.err
    assert [record["id"] for record in workspace.records("out")] == 2 * list(range(5))


COMMANDS = [("status", "L"), ("status", "L", "--json"), ("outputs", "L"), ("verify", "L"), ("status", "missing")]


@pytest.mark.parametrize("closed", [(">&-",), ("2>&-",), CLOSED[-1]], ids="".join)
def test_what_is_told_to_a_closed_stream_is_dropped(failed_job: Workspace, closed: tuple[str, ...]) -> None:
    for command in COMMANDS:
        ran = run_closed(failed_job, closed, "-m", "ledgerbeam", "ledger", *command)
        missing = "missing" in command
        assert ran.returncode == int(missing), ran.stderr + ran.stdout
        assert (ran.stdout == "") == (">&-" in closed or missing)
        assert (ran.stderr == "") == ("2>&-" in closed or not missing)


@pytest.mark.parametrize("command", [*COMMANDS[:3], ("outputs", "L", "--json"), ("failures", "L")], ids=" ".join)
def test_what_is_told_to_a_full_disk_is_an_error_of_one_line(failed_job: Workspace, command: tuple[str, ...]) -> None:
    ran = run_closed(failed_job, (">/dev/full",), "-m", "ledgerbeam", "ledger", *command)
    assert ran.returncode == 1
    (line,) = ran.stderr.splitlines()
    assert line.startswith("ledgerbeam: error: standard output: No space left on device; give it room, or")


def run_unread(workspace: Workspace, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command whose output goes to a pipe that nobody reads any more."""
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, "-m", "ledgerbeam", *command]
    with os.fdopen(writing, "wb") as unread:
        return subprocess.run(
            words, cwd=workspace.root, env=workspace.env, stdout=unread, stderr=subprocess.PIPE, text=True, check=False
        )


@pytest.mark.parametrize("command", [*COMMANDS[:3], ("failures", "L"), ("metrics", "L")], ids=" ".join)
def test_whoever_reads_no_more_was_given_what_he_wanted_to_see(failed_job: Workspace, command: tuple[str, ...]) -> None:
    ran = run_unread(failed_job, "ledger", *command)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_of_what_does_something_the_status_is_not_that_of_its_reader(failed_job: Workspace) -> None:
    """A job ended at its first line, with nothing done and status 0."""
    job = ("map", "functions:keep", "in/*.jsonl", "--output", "kept", "--to", "jsonl", "--workers", "1")
    for command in (job, ("ledger", "verify", "L"), ("ledger", "forget", "L", "*")):
        ran = run_unread(failed_job, *command)
        assert ran.returncode == 1, command
        assert "standard output: its reader has gone (broken pipe); send it elsewhere" in ran.stderr
    assert failed_job.run(*job).status == 0
    assert failed_job.files("kept")


@pytest.mark.parametrize("closed", CLOSED, ids="".join)
def test_a_program_of_its_own_that_opens_a_ledger_keeps_it_whole(workspace: Workspace, closed: tuple[str, ...]) -> None:
    ran = run_closed(workspace, closed, "-c", OWN)
    assert ran.returncode == 0, ran.stderr + ran.stdout
    assert workspace.run("ledger", "status", "L", "--json").json["sources"]["complete"] == 1
