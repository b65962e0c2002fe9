"""Exchanges by several launchers with one ledger: they share every stage, and write what one of them would."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import S3Server
from tests.pipelines.conftest import Workspace
from tests.pipelines.exchanges.killing import OnStore, tasks_done
from tests.pipelines.exchanges.stages import write_jsonl
from tests.servers.process import wait_until

SLOW_KEY = """
import time

def slow_key(record):
    time.sleep(0.002)
    return record["k"]

def slow_text(record):
    time.sleep(0.002)
    return record["text"]
"""
PLACES = ("--output", "out", "--to", "jsonl", "--ledger", "L", "--task-bytes", "4000")
SORT = ("sort", "in/*.jsonl", "--by", "keys:slow_key", *PLACES, "--shard-bytes", "8000")
NEAR = ("dedup", "in/*.jsonl", "--near", "keys:slow_text", *PLACES, "--bucket-bytes", "20000")
MERGED = (*SORT, "--max-slices", "100")
ROUNDS = (*NEAR, "--cluster-bytes", "2000")
LEDGERS: dict[tuple[str, ...], tuple[str, ...]] = {
    SORT: ("L/scatter", "L"),
    MERGED: ("L/scatter", "L/merge-1", "L"),
    NEAR: ("L/cluster/pairs/scatter", "L/cluster/pairs", "L/cluster", "L"),
    ROUNDS: (
        *("L/cluster/pairs/scatter", "L/cluster/pairs", "L/cluster/stars", "L/cluster/round-1", "L/cluster/labels"),
        *("L/cluster", "L"),
    ),
}

pytestmark = pytest.mark.slow


def write_sources(root: Path) -> None:
    (root / "keys.py").write_text(SLOW_KEY)
    for file, name in enumerate("abcdef"):
        rows = [(150 * file + n, f"of {n % 40} and all that follows from it, {n % 40} times") for n in range(150)]
        write_jsonl(root / "in" / f"{name}.jsonl", [{"k": -number, "text": text} for number, text in rows])


@pytest.fixture(params=[SORT, MERGED, NEAR, ROUNDS], ids=["sort", "merged", "near", "rounds"])
def command(request: pytest.FixtureRequest) -> Sequence[str]:
    found: Sequence[str] = request.param
    return found


@pytest.fixture
def alone(workspace: Workspace, command: Sequence[str]) -> dict[str, bytes]:
    """What one launcher writes."""
    write_sources(workspace.root)
    workspace.succeed(*command, "--output", "alone", "--ledger", "alone.ledger")
    for ledger in LEDGERS[tuple(command)]:
        assert (workspace.root / f"alone.ledger{ledger.removeprefix('L')}").exists()
    return workspace.files("alone")


def done_by(process: subprocess.Popen[str]) -> int:
    """Wait for a launcher that printed JSON; return how many tasks it has done."""
    out = process.communicate(timeout=300)[0]
    assert process.returncode == 0, out
    done: int = json.loads(out[out.index("\n{") :] if not out.startswith("{") else out)["done"]["tasks"]
    return done


def test_two_launchers_share_all_stages(workspace: Workspace, command: Sequence[str], alone: dict[str, bytes]) -> None:
    both = [workspace.start(*command, "--json", "--quiet") for _ in range(2)]
    done = [done_by(process) for process in both]
    assert workspace.files("out") == alone
    assert sum(done) <= 1.5 * tasks_done(workspace, LEDGERS[tuple(command)])


def test_the_other_launcher_does_what_a_killed_one_has_left(
    workspace: Workspace, command: Sequence[str], alone: dict[str, bytes]
) -> None:
    killed = workspace.start(*command, "--flush-interval", "0.01")
    assert wait_until(lambda: tasks_done(workspace, LEDGERS[tuple(command)]) >= 2, seconds=60)
    other = workspace.start(*command, "--json", "--quiet")
    time.sleep(1.5)
    killed.kill()
    killed.communicate()
    assert done_by(other)
    assert workspace.files("out") == alone


def test_hosts_that_share_a_store(
    workspace: Workspace, s3: S3Server, command: Sequence[str], alone: dict[str, bytes]
) -> None:
    on_store = OnStore(workspace, s3, command)
    both = [on_store.start("--json", "--quiet") for _ in range(2)]
    for process in both:
        done_by(process)
    rows = [json.loads(line) for name in sorted(alone) if name.endswith(".jsonl") for line in alone[name].splitlines()]
    assert on_store.records() == rows
