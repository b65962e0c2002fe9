"""Two launchers on one local ledger share its tasks: none is done twice, and the outputs are those of one."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from ledgerbeam.ledger import Source
from ledgerbeam.ledger.model.claims import order_key
from ledgerbeam.ledger.opening import open_local_store
from tests.pipelines.conftest import Workspace
from tests.pipelines.jobs.test_restart import wait_for

pytestmark = pytest.mark.slow

WORK = """
import os, time
def slow(record):
    log = os.environ["DONE_LOG"]
    with open(log, "a") as file:
        file.write(f"{record['id']} {os.getpid()}\\n")
    time.sleep(0.15)
    while "WAITS" in os.environ and len({line.split()[1] for line in open(log)}) < 2:
        time.sleep(0.05)
    return record
"""
COMMAND = ("map", "sharing_work:slow", "in/*.jsonl", "--to", "jsonl", "--task-bytes", "1", "--audit=off")


def test_two_launchers_share_a_local_ledger(workspace: Workspace) -> None:
    (workspace.root / "sharing_work.py").write_text(WORK)
    for name in "abcd":
        workspace.jsonl(f"in/{name}.jsonl", 40)
    workspace.env["DONE_LOG"] = str(workspace.root / "clean-log")
    assert workspace.run(*COMMAND, "--output", "clean", "--workers", "2").status == 0
    workspace.env["DONE_LOG"] = str(workspace.root / "log")
    shared = (*COMMAND, "--output", "out", "--ledger", "L", "--workers", "1")
    first = workspace.start(*shared, env={"WAITS": "for the other one, however long its start takes"})
    log = workspace.root / "log"
    wait_for(log.exists, first)
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
    if str(record["id"]) == os.environ.get("STANDS"):
        open("reached", "w").close()
        while not os.path.exists("go-on"):
            time.sleep(0.05)
    return {"id": record["id"], "text": record["text"].upper()}
"""


def begin_with(source: Path, ordinal: int, tasks: int) -> None:
    """Give a source a time with which the first run of a ledger begins with this task of it: its identity decides."""
    size, time = source.stat().st_size, source.stat().st_mtime_ns
    while True:
        known = Source(str(source), size, str(time)).id
        if min(range(tasks), key=lambda task: order_key("000001", known, ((task, tasks),))) == ordinal:
            break
        time -= 1
    os.utime(source, ns=(time, time))


@pytest.mark.parametrize(
    ("text", "task", "stands", "status"),
    [
        pytest.param("y", 2, 5, 0, id="of the same size"),
        pytest.param("yy", 0, 25, 0, id="of another size"),
        pytest.param("yy", 2, 5, 3, id="of another size, an output of which has another name"),
    ],
)
def test_a_launcher_that_stood_still_does_not_bring_back_what_a_source_was(
    workspace: Workspace, text: str, task: int, stands: int, status: int
) -> None:
    """It published over what the other one had published of the new content, and both ended with status 0.

    It has done one task before. An output of that whose name the new content does not have is out of date. It stays
    while the first launcher lives, and the other one says so.
    """
    (workspace.root / "standing.py").write_text(STANDS)
    source = workspace.jsonl("in/a.jsonl", 40)
    begin_with(source, task, tasks=3)
    command = ("map", "standing:stands", "in/*.jsonl", "--to", "jsonl", "--task-bytes", "800", "--audit=off")
    shared = (*command, "--output", "out", "--ledger", "L", "--workers", "1")
    first = workspace.start(*shared, env={"STANDS": str(stands)})
    wait_for((workspace.root / "reached").exists, first)
    store = open_local_store(str(workspace.root / "L"), create=False, read_only=True)
    wait_for(lambda: store.output_count() > 0, first)
    before = {row.output.name for row in store.outputs()}
    store.close()
    assert before == set(workspace.files("out"))
    source.write_text(source.read_text().replace("xx", f"{text}x"))
    second = workspace.run(*shared)
    assert second.status == status, second.err
    assert ("2 outputs out of date left beside the right ones" in second.err) is bool(status)
    (workspace.root / "go-on").touch()
    said = first.communicate(timeout=120)[0]
    assert first.returncode == 0, said
    assert workspace.run(*command, "--output", "clean").status == 0
    assert workspace.files("out") == workspace.files("clean")
    assert bool(before - workspace.files("out").keys()) is bool(status)
    assert workspace.run("ledger", "verify", "L").status == 0
