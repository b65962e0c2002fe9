"""`--only-rejected` and `--only-failed` that are killed: the same command continues, and so does one without them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

import ledgerbeam as lb
from tests.conftest import S3Server
from tests.pipelines.conftest import Ran, Workspace

pytestmark = pytest.mark.slow

FUNCTION = """
import os, time

def clean(record):
    with open("calls", "a") as file:
        file.write(record["source"])
    while record["source"] == "c" and os.path.exists("gate"):
        time.sleep(0.02)
    WHAT
    return {**record, "done": True}
"""

RAISES = "if record['id'] == 3: raise KeyError('title')"
MENDED = "pass"
DIES = "if record['id'] == 3: os._exit(1)"

SOURCES, RECORDS = "abc", 4

Command = Callable[..., Ran]


def write(workspace: Workspace, what: str) -> None:
    (workspace.root / "cleaning.py").write_text(FUNCTION.replace("WHAT", what))
    (workspace.root / "calls").unlink(missing_ok=True)


def calls(workspace: Workspace) -> str:
    """Return of which sources records were mapped since the function was written."""
    path = workspace.root / "calls"
    return "".join(sorted(set(path.read_text()))) if path.exists() else ""


@pytest.fixture
def job(workspace: Workspace) -> Workspace:
    for source in SOURCES:
        workspace.write(f"in/{source}.jsonl", ({"source": source, "id": number} for number in range(RECORDS)))
    write(workspace, RAISES)
    return workspace


def command(*more: str, ledger: str = "L") -> tuple[str, ...]:
    words = ("map", "cleaning:clean", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", ledger)
    return (*words, "--flush-interval", "0.05", "--json", *more)


def is_whole(ran: Ran, workspace: Workspace) -> bool:
    shards = sorted((workspace.root / "out").glob("*.jsonl"))
    records = [json.loads(line) for shard in shards for line in shard.read_text().splitlines()]
    read = ran.json["records"]["read"]
    return ran.json["complete"] and read == len(records) == len(SOURCES) * RECORDS


REJECTS = ("--on-error", "reject")
ONLY_REJECTED = (*REJECTS, "--only-rejected", "KeyError", "--on-job-change", "accept")


@pytest.mark.parametrize("point", ["withdraw.forgotten:1", "withdraw.forgotten:3", "run.worked:1"])
@pytest.mark.parametrize("continues", [True, False])
def test_a_killed_rerun_of_rejects_is_completed(job: Workspace, point: str, continues: bool) -> None:
    assert job.run(*command(*REJECTS)).status == 0
    write(job, MENDED)
    assert job.run(*command(*ONLY_REJECTED), env={"LEDGERBEAM_FAULT": point}).status == -9
    ran = job.run(*command(*(ONLY_REJECTED if continues else REJECTS)), status=0)
    if continues or point != "withdraw.forgotten:1":
        assert is_whole(ran, job)
    assert ran.json["sources"] == {"complete": 3, "open": 0, "failed": 0}
    if continues:  # and has nothing to do once it has continued
        again = job.run(*command(*ONLY_REJECTED), status=0)
        assert is_whole(again, job)


def kill_half_done(workspace: Workspace, words: tuple[str, ...], ledger: str, **options: Any) -> None:
    """Kill a run of two workers once the other sources are complete again; the last one is held up by a file."""
    (workspace.root / "gate").touch()
    running = workspace.start(*words, "--workers", "2")
    deadline = time.monotonic() + 60
    while "c" not in calls(workspace) or lb.open_ledger(ledger, **options).status()["sources"]["complete"] != 2:
        assert time.monotonic() < deadline
        assert running.poll() is None, running.communicate()
        time.sleep(0.1)
    running.kill()
    running.communicate()
    (workspace.root / "gate").unlink()
    (workspace.root / "calls").unlink()


def test_a_rerun_of_rejects_that_rejects_again_continues_where_it_was_killed(job: Workspace) -> None:
    assert job.run(*command(*REJECTS)).status == 0
    write(job, f"{RAISES}  # still")
    kill_half_done(job, command(*ONLY_REJECTED), str(job.root / "L"))
    ran = job.run(*command(*ONLY_REJECTED), status=0)
    assert calls(job) == "c", "the others were done again already"
    assert (ran.json["complete"], ran.json["records"]["rejected"]) == (True, {"KeyError": 3})


def test_a_killed_rerun_of_rejects_continues_elsewhere(workspace: Workspace, job: Workspace, s3: S3Server) -> None:
    ledger, options = f"s3://{s3.bucket()}/L", ("--storage-options", json.dumps(s3.options))
    first = command(*REJECTS, *options, ledger=ledger)
    rerun = command(*ONLY_REJECTED, *options, ledger=ledger)
    assert job.run(*first).status == 0
    write(job, MENDED)
    kill_half_done(job, rerun, ledger, storage_options=s3.options)
    elsewhere = {"XDG_CACHE_HOME": str(job.root / "other-host")}
    ran = job.run(*rerun, env=elsewhere, status=0)
    assert calls(job) == "c", ran.err
    assert is_whole(ran, job)
    assert job.run(*rerun, env=elsewhere).status == 0


@pytest.mark.parametrize("what", [RAISES, DIES])
def test_a_killed_rerun_of_failures_is_completed(job: Workspace, what: str) -> None:
    """Also of tasks whose function has ended the process."""
    write(job, what)
    reason = "KeyError" if what == RAISES else "exit status 1"
    job.run(*command(), status=3)
    write(job, MENDED)
    rerun = command("--only-failed", reason, "--on-job-change", "accept")
    kill_half_done(job, rerun, str(job.root / "L"))
    for _ in range(2):  # the second has nothing to do
        ran = job.run(*rerun, status=0)
        assert is_whole(ran, job)


def test_a_rerun_of_some_sources_that_leaves_others_open_says_so(job: Workspace) -> None:
    assert job.run(*command(*REJECTS, "--limit-tasks", "1")).status == 0
    write(job, MENDED)
    ran = job.run(*command(*ONLY_REJECTED))
    assert (ran.status, ran.json["sources"]) == (3, {"complete": 1, "open": 2, "failed": 0})
    assert "2 sources left open" in ran.err
    assert calls(job) == "a"
    assert job.run(*command(*ONLY_REJECTED)).status == 3
    assert is_whole(job.run(*command(*REJECTS)), job)


def test_a_reason_that_was_never_given_is_refused(job: Workspace) -> None:
    assert job.run(*command(*REJECTS)).status == 0
    for option in ("--only-rejected", "--only-failed"):
        job.run(*command(*REJECTS, option, "IndexError"), status=2, err=f"{option} IndexError: no ")
