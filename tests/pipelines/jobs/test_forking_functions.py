"""Functions that fork, start processes or threads: the job ends, right, and once."""

from __future__ import annotations

import pytest

from tests.pipelines.conftest import Workspace

pytestmark = pytest.mark.slow

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


@pytest.mark.parametrize("function", ["returns", "exits", "raises", "Built", "ends", "others"])
def test_its_children_are_of_no_consequence(workspace: Workspace, function: str) -> None:
    (workspace.root / "forks.py").write_text(FORKS)
    workspace.jsonl("in/a.jsonl", 40)
    ran = workspace.succeed("map", f"forks:{function}", "in/*.jsonl", *WORDS)
    assert [record["id"] for record in workspace.records("out")] == list(range(40))
    assert ("it ends here" in ran.err) == (function not in ("ends", "others"))
    assert "Traceback" not in ran.err
    assert workspace.run("ledger", "verify", "L").status == 0


@pytest.mark.parametrize("words", [("map", "forks:batch", "--batch", "5"), ("group", "forks:group", "--by", "id")])
def test_nor_are_those_of_functions_of_many_records(workspace: Workspace, words: tuple[str, ...]) -> None:
    (workspace.root / "forks.py").write_text(FORKS)
    workspace.jsonl("in/a.jsonl", 40)
    ran = workspace.succeed(*words[:2], "in/*.jsonl", *words[2:], *WORDS)
    assert sorted(record["id"] for record in workspace.records("out")) == list(range(40))
    assert "it ends here" in ran.err
    assert "Traceback" not in ran.err
