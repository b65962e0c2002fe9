"""`ledger stats`: the statistics equal the result of one process."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.errors import LedgerError
from ledgerbeam.ledger import Job, Source
from ledgerbeam.ledger.model.accounts import Statistic
from ledgerbeam.ledger.model.rows import Leaf
from ledgerbeam.ledger.opening import open_local_store
from tests.pipelines.conftest import Workspace

OBSERVING = """
import time
from ledgerbeam import stats

def clean(record):
    time.sleep(record.get("wait", 0))
    stats.count("characters", len(record["text"]))
    stats.observe("length", len(record["text"]))
    stats.distinct("words", record["text"].split()[1])
    stats.top("rests", record["id"] % 7)
    return record if record["id"] % 3 else None
"""
COMMAND = (
    *("map", "observing:clean", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L"),
    *("--task-bytes", "4000"),
)


def write(workspace: Workspace, name: str, count: int, first: int = 0, wait: float = 0) -> None:
    (workspace.root / "observing.py").write_text(OBSERVING)
    path = workspace.root / "in" / name
    path.parent.mkdir(exist_ok=True)
    rows = [{"id": n, "text": "x " + "y" * (1 + n % 99), "wait": wait} for n in range(first, first + count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def computed(workspace: Workspace) -> dict[str, Any]:
    rows = [
        json.loads(line) for path in (workspace.root / "in").glob("*.jsonl") for line in path.read_text().splitlines()
    ]
    lengths = sorted(len(row["text"]) for row in rows)
    return {
        "characters": sum(lengths),
        "length": {
            "count": len(lengths),
            "min": lengths[0],
            "max": lengths[-1],
            "mean": sum(lengths) / len(lengths),
            "p50": lengths[(len(lengths) - 1) // 2],
            "p99": lengths[-(-99 * len(lengths) // 100) - 1],
        },
        "rests": [
            {"value": value, "estimate": number, "lower": number, "upper": number}
            for value, number in sorted(Counter(row["id"] % 7 for row in rows).items(), key=lambda row: (-row[1], row))
        ],
        "words": len({row["text"].split()[1] for row in rows}),
    }


def stats(workspace: Workspace, *options: str) -> Any:
    ran = workspace.run("ledger", "stats", "L", "--json", *options, status=0)
    return ran.json


@pytest.mark.slow
def test_a_job_that_was_killed_and_changed_counts_as_one_computation(workspace: Workspace) -> None:
    write(workspace, "a.jsonl", 600, first=1)
    write(workspace, "b.jsonl", 300, first=101, wait=0.05)
    running = workspace.start(*COMMAND, "--workers", "2", "--flush-interval", "0.05")
    deadline = time.monotonic() + 60
    done = 0
    while done < 3 and running.poll() is None and time.monotonic() < deadline:
        time.sleep(0.2)
        with contextlib.suppress(LedgerError):  # the ledger does not exist yet
            done = open_local_store(str(workspace.root / "L"), create=False, read_only=True).totals().tasks
    running.send_signal(signal.SIGKILL)
    running.communicate()
    assert done >= 3
    part = stats(workspace)
    assert 0 < part["characters"] < computed(workspace)["characters"]
    workspace.run(*COMMAND, "--workers", "2", status=0)
    assert stats(workspace) == computed(workspace)
    write(workspace, "b.jsonl", 40, first=1)
    assert workspace.run(*COMMAND).status == 0
    assert stats(workspace) == computed(workspace)
    assert list(stats(workspace, "--name", "words")) == ["words"]


@pytest.mark.slow
def test_the_table_says_what_each_is_and_the_report_shows_it(workspace: Workspace) -> None:
    write(workspace, "a.jsonl", 50, first=1)
    assert workspace.run(*COMMAND).status == 0
    ran = workspace.run("ledger", "stats", "L", status=0)
    lines = ran.out.splitlines()
    assert lines[0].split() == ["name", "kind", "tasks", "value", "off", "by"]
    assert "characters" in lines[1]
    assert any("length" in line and "50 values: min 4, p50 28, mean 28.5, p99 53, max 53" in line for line in lines)
    missing = workspace.run("ledger", "stats", "L", "--name", "nothing")
    assert missing.status == 2
    assert "no recorded task has a statistic 'nothing'" in missing.err
    pytest.importorskip("jinja2")
    pytest.importorskip("vl_convert")
    assert workspace.run("ledger", "report", "L", "--output", "report.html").status == 0
    page = (workspace.root / "report.html").read_text()
    assert "50 values: min 4, p50 28" in page


def test_a_job_without_statistics_says_so(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 5)
    job = ("map", "functions:keep", "in/a.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L")
    assert workspace.run(*job).status == 0
    assert stats(workspace) == {}
    assert workspace.run("ledger", "stats", "L").out.startswith("no statistics")


def test_the_table_says_of_how_many_tasks_a_statistic_is(workspace: Workspace, tmp_path: Path) -> None:
    store = open_local_store(str(tmp_path / "L"), create=True)
    store.open_job(Job("test", {}))
    source = Source("/in/a.jsonl", 1, "1")
    store.register([source])
    seen, late = Statistic("count", b"1"), Statistic("count", b"5")
    store.commit([Leaf(source.id, ((0, 3),), "filtered", statistics={"seen": seen})])
    store.commit([Leaf(source.id, ((1, 3),), "filtered", statistics={"seen": seen, "late": late})])
    late_row, seen_row = workspace.run("ledger", "stats", "L").out.splitlines()[1:]
    assert late_row.split() == ["late", "count", "1", "of", "2", "5"]
    assert seen_row.split() == ["seen", "count", "2", "2"]


def test_hostile_names_and_sketches_are_shown_safely(workspace: Workspace, tmp_path: Path) -> None:
    store = open_local_store(str(tmp_path / "L"), create=True)
    store.open_job(Job("test", {}))
    source = Source("/in/a.jsonl", 1, "1")
    store.register([source])
    hostile = {"\x1b[2J\u202e": Statistic("count", b"1")}
    store.commit([Leaf(source.id, ((0, 2),), "filtered", statistics=hostile)])
    ran = workspace.run("ledger", "stats", "L", status=0)
    assert "\x1b" not in ran.out
    assert "\u202e" not in ran.out
    broken = {"x": Statistic("observe", b"\x02broken")}
    store.commit([Leaf(source.id, ((1, 2),), "filtered", statistics=broken)])
    ran = workspace.run("ledger", "stats", "L", status=1, err="the statistic 'x' of a task cannot be decoded")
    assert "Traceback" not in ran.err
