"""Functions that end their process, or start others: a launcher says so, and the job ends right and once."""

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


FORKS = """
import multiprocessing, os, subprocess, sys, threading

def returns(record):
    os.fork()
    return record

def batch(records):
    os.fork()
    return records

def exits(record):
    if record["id"] % 7 == 0 and os.fork() == 0:
        sys.exit(0)
    return record

def raises(record):
    if record["id"] % 7 == 0 and os.fork() == 0:
        raise ValueError("in the child")
    return record

class Built:
    def __init__(self):
        os.fork()
    def __call__(self, record):
        return record

def group(key, records):
    os.fork()
    return list(records)

def ends(record):
    if record["id"] % 7 == 0 and os.fork() == 0:
        os._exit(1)
    return record

def others(record):
    if record["id"] == 7:
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(abs, [-1]) == [1]
        assert subprocess.run(["true"]).returncode == 0
        subprocess.Popen(["sleep", "600"])
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    return record
"""
WORDS = ("--output", "out", "--to", "jsonl", "--ledger", "L", "--task-bytes", "800", "--workers", "2")


@pytest.mark.slow
@pytest.mark.parametrize(
    "function", ["returns", "exits", "raises", "Built", "ends", "others", "batch --batch 5", "group --by id"]
)
def test_children_of_a_function_are_of_no_consequence(workspace: Workspace, function: str) -> None:
    (workspace.root / "forks.py").write_text(FORKS)
    workspace.jsonl("in/a.jsonl", 40)
    name, *options = function.split()
    ran = workspace.succeed("group" if name == "group" else "map", f"forks:{name}", "in/*.jsonl", *options, *WORDS)
    assert sorted(record["id"] for record in workspace.records("out")) == list(range(40))
    assert ("ends now" in ran.err) == (name not in ("ends", "others"))
    assert "Traceback" not in ran.err
    assert workspace.run("ledger", "verify", "L").status == 0
