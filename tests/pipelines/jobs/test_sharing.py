"""Two launchers on one local ledger share its tasks: none is done twice, and the outputs are those of one."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.pipelines.conftest import Workspace
from tests.pipelines.jobs.test_restart import wait_for

pytestmark = pytest.mark.slow

WORK = """
import os, time
def slow(record):
    with open(os.environ["DONE_LOG"], "a") as file:
        file.write(f"{record['id']} {os.getpid()}\\n")
    time.sleep(0.15)
    return record
"""
COMMAND = ("map", "sharing_work:slow", "in/*.jsonl", "--to", "jsonl", "--task-bytes", "1", "--no-purity-check")


def test_two_launchers_share_a_local_ledger(workspace: Workspace) -> None:
    (workspace.root / "sharing_work.py").write_text(WORK)
    for name in "abcd":
        workspace.jsonl(f"in/{name}.jsonl", 40)
    workspace.env["DONE_LOG"] = str(workspace.root / "clean-log")
    assert workspace.run(*COMMAND, "--output", "clean", "--workers", "2").status == 0
    workspace.env["DONE_LOG"] = str(workspace.root / "log")
    shared = (*COMMAND, "--output", "out", "--ledger", "L", "--workers", "1")
    first = workspace.start(*shared)
    log = workspace.root / "log"
    wait_for(lambda: log.exists() and len(log.read_text().splitlines()) > 3, first)
    second = workspace.run(*shared)
    assert second.status == 0, second.err
    assert "they share its tasks" in second.err
    said = first.communicate(timeout=120)[0]
    assert first.returncode == 0, said
    lines = [line.split() for line in log.read_text().splitlines()]
    assert len(lines) <= 1.05 * 160
    assert min(Counter(pid for _, pid in lines).values()) > 30  # each has done its part
    assert workspace.files("out") == workspace.files("clean")


STANDS = """
import os, time
def stands(record):
    if "STANDS" in os.environ and record["id"] == 25:
        open("reached", "w").close()
        while not os.path.exists("go-on"):
            time.sleep(0.05)
    return {"id": record["id"], "text": record["text"].upper()}
"""


@pytest.mark.parametrize("text", ["y", "yy"], ids=["of the same size", "of another size"])
def test_a_launcher_that_stood_still_does_not_bring_back_what_a_source_was(workspace: Workspace, text: str) -> None:
    """It published over what the other one had published of the new content, and both ended with status 0."""
    (workspace.root / "standing.py").write_text(STANDS)
    source = workspace.jsonl("in/a.jsonl", 40)
    command = ("map", "standing:stands", "in/*.jsonl", "--to", "jsonl", "--task-bytes", "800", "--no-purity-check")
    shared = (*command, "--output", "out", "--ledger", "L", "--workers", "1")
    first = workspace.start(*shared, env={"STANDS": "1"})
    wait_for((workspace.root / "reached").exists, first)
    source.write_text(source.read_text().replace("xx", f"{text}x"))
    second = workspace.run(*shared)
    assert second.status == 0, second.err
    (workspace.root / "go-on").touch()
    said = first.communicate(timeout=120)[0]
    assert first.returncode == 0, said
    assert workspace.run(*command, "--output", "clean").status == 0
    assert workspace.files("out") == workspace.files("clean")
    assert workspace.run("ledger", "verify", "L").status == 0
