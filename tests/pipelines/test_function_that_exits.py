"""Functions that end the process that calls them: the launcher, which looks at samples, says so and is never done."""

from __future__ import annotations

import pytest

from ledgerbeam.io.storage.publish import TEMPORARY_SUFFIX
from tests.pipelines.conftest import Workspace

ENDING = """
import os

def ends(record):
    if record["id"] == 7:
        os._exit(0)
    return record

def key(record):
    return ends(record)["id"]
"""

RAISING_THEN_ENDING = """
import os, pathlib, signal, time

bad, seen = pathlib.Path("bad"), []

def work(record):
    seen.append(record["id"])
    if len(seen) == 10 and not bad.exists():
        bad.write_text(str(record["id"]))
    if bad.exists() and record["id"] == int(bad.read_text()):
        raise ValueError("no")
    if bad.exists() and not os.path.exists("was-killed"):
        open("was-killed", "w").close()
        time.sleep(0.5)  # the failure is recorded
        os.kill(os.getpid(), signal.SIGKILL)
    return record
"""

ENDING_IN_A_WRITE = f"""
import os, signal

def work(record):
    if not os.path.exists("was-killed"):
        open("was-killed", "w").close()
        open("out/.a.jsonl.1-2{TEMPORARY_SUFFIX}", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return record
"""


def test_a_function_that_ends_the_launcher_is_told_by_record(workspace: Workspace) -> None:
    (workspace.root / "ending.py").write_text(ENDING)
    workspace.jsonl("in/a.jsonl", 20)
    ran = workspace.run("map", "ending:ends", "in/*", "--output", "out", "--to", "jsonl", "--sample", "20")
    assert "SystemExit: os._exit(0)" in ran.out, ran.err
    (workspace.root / "at_import.py").write_text("import os\nos._exit(0)")
    ran = workspace.run("map", "at_import:f", "in/*", "--output", "out", "--to", "jsonl")
    assert ran.status != 0
    assert "cannot be imported: SystemExit: os._exit(0)" in ran.err


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("map", "ending:ends", "in/*.jsonl", "--to", "parquet"),
        ("sort", "in/*.jsonl", "--by", "ending:key", "--to", "jsonl", "--shard-bytes", "300"),
    ],
)
def test_a_job_whose_function_ends_processes_is_not_done(workspace: Workspace, command: tuple[str, ...]) -> None:
    (workspace.root / "ending.py").write_text(ENDING)
    workspace.jsonl("in/a.jsonl", 20)
    workspace.run(*command, "--output", "out", "--ledger", "L", status=3, err="a.jsonl")


@pytest.mark.slow
def test_a_death_after_a_failure_leaves_no_other_task_of_the_source(workspace: Workspace) -> None:
    (workspace.root / "ending.py").write_text(RAISING_THEN_ENDING)
    workspace.jsonl("in/a.jsonl", 60)
    command = ("map", "ending:work", "in/*.jsonl", "--to", "jsonl", "--output", "out", "--ledger", "L")
    options = ("--workers", "1", "--task-bytes", "200", "--flush-interval", "0.1", "--audit=off")
    workspace.run(*command, *options, status=3, err="starting again with what is left")
    tasks = workspace.run("ledger", "status", "L", "--json").json["tasks"]
    assert tasks["failed"] == 1
    done = tasks["done"]
    (workspace.root / "ending.py").write_text(RAISING_THEN_ENDING.replace('raise ValueError("no")', "return record"))
    ran = workspace.run(*command, *options, "--on-job-change", "accept", "--json")
    assert (ran.status, ran.json["tasks"]["done"]) == (0, done + 1), ran.err


@pytest.mark.slow
def test_what_a_worker_that_died_was_writing_goes_at_the_end_of_the_run(workspace: Workspace) -> None:
    (workspace.root / "ending.py").write_text(ENDING_IN_A_WRITE)
    workspace.jsonl("in/a.jsonl", 20)
    ran = workspace.run("map", "ending:work", "in/*.jsonl", "--to", "jsonl", "--output", "out", status=0)
    assert "starting again with what is left" in ran.err
    assert [path.name for path in (workspace.root / "out").rglob(f"*{TEMPORARY_SUFFIX}")] == []
