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
