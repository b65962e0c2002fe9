"""Record counts, metrics and statistics: every command shows the same numbers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ledgerbeam.errors import LedgerError
from ledgerbeam.ledger import Job, LedgerStore, Source
from ledgerbeam.ledger.model.accounts import RecordCounts, Statistic
from ledgerbeam.ledger.model.rows import Leaf
from ledgerbeam.ledger.opening import open_local_store
from ledgerbeam.pipelines.calls.result import Result
from ledgerbeam.pipelines.cli.call import summary_lines
from ledgerbeam.pipelines.cli.ledger.rows import exposition, job_metrics
from ledgerbeam.pipelines.report.accounts import account_lines, account_table, shown_records
from ledgerbeam.pipelines.report.hosts import Host, HostRun
from ledgerbeam.pipelines.report.state import JobProgress, LedgerState
from tests.ledger.builders import counted_leaf, leaf_of, plain
from tests.pipelines.cli.ledger.test_report import needs_extra
from tests.pipelines.conftest import Workspace, make_workspace

RECORDS = {
    "read": 17,
    "kept": 13,
    "dropped": {"why 0": 1, "why 1": 1},
    "rejected": {"bad": 2},
    "written": {"": 11, "de": 4},
}


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A ledger with a plain and two counted tasks."""
    workspace = make_workspace(tmp_path_factory.mktemp("records"))
    store = open_local_store(str(workspace.root / "L"), create=True)
    store.open_job(Job("map", {}))
    store.register([plain()])
    leaves = [counted_leaf(plain(), ((0, 3),)), counted_leaf(plain(), ((1, 3),)), leaf_of(plain(), ((2, 3),))]
    store.commit(leaves)
    store.close()
    return workspace


def test_the_status_says_what_became_of_records(counted: Workspace) -> None:
    assert counted.run("ledger", "status", "L", "--json").json["records"] == RECORDS
    text = " ".join(counted.run("ledger", "status", "L").out.split())
    assert "records 17 read, 13 kept, 2 dropped, 2 rejected; 15 written (150 bytes)" in text
    assert "dropped why 0 1, why 1 1 rejected bad 2 routes (no route) 11, de 4" in text


@needs_extra
def test_the_report_says_what_became_of_records(counted: Workspace, tmp_path: Path) -> None:
    assert counted.run("ledger", "report", "L", "--output", tmp_path / "r.html").status == 0
    page = (tmp_path / "r.html").read_text()
    for words in ("Outcomes of records", "why 0", "bad", "(no route)", "de", "2 dropped, 2 rejected"):
        assert words in page
    assert "76.5 %" in page, "share of kept records"


@pytest.mark.slow
def test_a_run_says_what_became_of_records_in_it_and_in_all(workspace: Workspace) -> None:
    def records(number: int) -> dict[str, object]:
        return {"read": number, "kept": number, "dropped": {}, "rejected": {}, "written": {"": number}}

    workspace.jsonl("in/a.jsonl", 20)
    command = ["map", "functions:keep", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L", "--json"]
    first = workspace.run(*command, status=0)
    assert first.json["records"] == first.json["done"]["records"] == records(20)
    workspace.jsonl("in/b.jsonl", 5)
    second = workspace.run(*command).json
    assert (second["records"], second["done"]["records"], second["done"]["tasks"]) == (records(25), records(5), 1)


def test_plain_counts_are_one_number() -> None:
    assert account_lines(RecordCounts.plain(1234)) == [("records", "1,234")]
    assert account_lines(RecordCounts()) == [("records", "0")]
    assert account_table(RecordCounts.plain(3)) == [("read", "", 3), ("kept", "", 3), ("written", "", 3)]


def test_names_are_shown_without_secrets_and_without_what_steers_a_terminal() -> None:
    names = {"https://me:hunter2@host/a": 1, "https://me:hunter3@host/a": 2, "\x1b[2J": 3}
    counts = RecordCounts(6, 0, names)
    shown = shown_records(counts)["dropped"]
    assert sorted(shown.values()) == [3, 3], "names that are the same without their secrets are added up"
    text = f"{account_lines(counts)}"
    assert "hunter" not in f"{shown}{text}"
    assert "\x1b" not in "".join(line for _, line in account_lines(counts))


def test_only_the_most_frequent_names_are_listed() -> None:
    counts = RecordCounts(sum(range(13)), 0, {f"r{n}": n for n in range(1, 13)})
    (_, line) = account_lines(counts)[1]
    assert line.startswith("r12 12, r11 11")
    assert line.endswith("r3 3, 2 more 3")


def samples_of(workspace: Workspace) -> list[Any]:
    """Return what Prometheus reads of the metrics."""
    printed = workspace.run("ledger", "metrics", "L", "--prometheus", status=0).out
    return [sample for family in text_string_to_metric_families(printed) for sample in family.samples]


def test_prometheus_reads_what_the_status_says(failed_job: Workspace) -> None:
    status = failed_job.run("ledger", "status", "L", "--json").json
    samples = samples_of(failed_job)
    found = {(one.name, one.labels.get("state", ""), one.labels.get("became", "")): one.value for one in samples}
    for state, number in status["sources"].items():
        assert found["ledgerbeam_sources", state, ""] == number
    assert found["ledgerbeam_tasks", "failed", ""] == status["tasks"]["failed"] > 0
    assert found["ledgerbeam_records", "", "read"] == status["records"]["read"] > 0
    assert found["ledgerbeam_written_bytes", "", ""] == status["bytes"]
    assert (found["ledgerbeam_complete", "", ""], found["ledgerbeam_running", "", ""]) == (0, 0)
    assert samples[0].labels["ledger"].endswith("/L")
    assert samples[0].labels["job"] == "map"
    assert "hunter2" not in repr(samples)


def test_they_are_printed_for_people_and_as_json(failed_job: Workspace) -> None:
    lines = failed_job.run("ledger", "metrics", "L").out.splitlines()
    assert any(line.split() == ["ledgerbeam_sources", "state=failed", "2"] for line in lines), lines
    (metric,) = [
        metric
        for metric in failed_job.run("ledger", "metrics", "L", "--json").json
        if (metric["name"], metric["labels"]) == ("ledgerbeam_sources", {"state": "failed"})
    ]
    assert metric["value"] == 2


def test_each_host_has_its_numbers_and_there_are_never_many(failed_job: Workspace) -> None:
    status = failed_job.run("ledger", "status", "L", "--json").json
    found = {(one.name, one.labels["host"]): one.value for one in samples_of(failed_job) if "host" in one.labels}
    name = os.uname().nodename
    assert found["ledgerbeam_host_tasks", name] == status["tasks"]["done"]
    assert found["ledgerbeam_host_failures", name] == status["tasks"]["failed"]
    assert found["ledgerbeam_host_running", name] == 0
    assert not {metric for metric, _ in found} & {"ledgerbeam_host_rate", "ledgerbeam_host_silent_seconds"}


def host(number: int, state: str = "running") -> Host:
    rates = {"tasks": 1.0, "records": 2.0, "bytes": 3.0, "sources": 0.5}
    is_open = state == "running"
    numbers = (10 + number, 20, 30, 4, 5)
    open_ = (rates, 7.0) if is_open else (None, None)
    run = HostRun("000001", "local", state, 1, 2, 1.0, None, *numbers, *open_)
    return Host(f"node{number:03d}", [run])


def test_hosts_beyond_a_hundred_are_counted_as_one() -> None:
    hosts = [host(number, "running" if number % 2 else "done") for number in range(250)]
    status = {"sources": {}, "tasks": {}, "filtered": 0, "gone": 0, "bytes": 0, "complete": False}
    progress = JobProgress(running=True, minute=None, run=None, time_left=None)
    state = LedgerState({**status, "records": RecordCounts().as_dict()}, [], progress, None)
    metrics = [metric for metric in job_metrics(state, hosts) if "host" in metric.labels]
    by_host = {metric.labels["host"]: metric.value for metric in metrics if metric.name == "ledgerbeam_host_tasks"}
    assert len(by_host) == 101
    assert sum(by_host.values()) == sum(10 + number for number in range(250))
    assert all(int(name[4:]) % 2 for name in by_host if name != "others"), "those at work come first"
    of_tasks = [one for one in metrics if one.name == "ledgerbeam_host_rate" and one.labels["of"] == "tasks"]
    rates = {one.labels["host"]: one.value for one in of_tasks}
    assert rates["others"] == 25
    assert sum(rates.values()) == 125
    names = [metric.name for metric in metrics]
    assert names == sorted(names, key=names.index), "those of one name one after the other"
    families = list(text_string_to_metric_families(exposition(metrics, {"ledger": "L"})))
    assert len({family.name for family in families}) == len(families) == len(set(names))


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
    rows = [{"id": n, "text": "x " + "y" * (1 + n % 99), "wait": wait} for n in range(first, first + count)]
    workspace.write(f"in/{name}", rows)


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


SOURCE = Source("/in/a.jsonl", 1, "1")


@pytest.fixture
def store(workspace: Workspace) -> LedgerStore:
    """The ledger of a job that has done nothing yet of one source."""
    store = open_local_store(str(workspace.root / "L"), create=True)
    store.open_job(Job("test", {}))
    store.register([SOURCE])
    return store


def test_the_table_says_of_how_many_tasks_a_statistic_is(workspace: Workspace, store: LedgerStore) -> None:
    assert stats(workspace) == {}
    assert workspace.run("ledger", "stats", "L").out.startswith("no statistics")
    seen, late = Statistic("count", b"1"), Statistic("count", b"5")
    store.commit([Leaf(SOURCE.id, ((0, 3),), "filtered", statistics={"seen": seen})])
    store.commit([Leaf(SOURCE.id, ((1, 3),), "filtered", statistics={"seen": seen, "late": late})])
    late_row, seen_row = workspace.run("ledger", "stats", "L").out.splitlines()[1:]
    assert late_row.split() == ["late", "count", "1", "of", "2", "5"]
    assert seen_row.split() == ["seen", "count", "2", "2"]


def test_hostile_names_and_sketches_are_shown_safely(workspace: Workspace, store: LedgerStore) -> None:
    hostile = {"\x1b[2J\u202e": Statistic("count", b"1")}
    store.commit([Leaf(SOURCE.id, ((0, 2),), "filtered", statistics=hostile)])
    ran = workspace.run("ledger", "stats", "L", status=0)
    assert "\x1b" not in ran.out
    assert "\u202e" not in ran.out
    broken = {"x": Statistic("observe", b"\x02broken")}
    store.commit([Leaf(SOURCE.id, ((1, 2),), "filtered", statistics=broken)])
    ran = workspace.run("ledger", "stats", "L", status=1, err="the statistic 'x' of a task cannot be decoded")
    assert "Traceback" not in ran.err


def test_an_exchange_that_is_not_complete_is_told_by_its_stages() -> None:
    summary = {
        "submitted": False,
        "skipped": 0,
        "gone": 0,
        "records": RecordCounts().as_dict(),
        "sources": {"complete": 0, "open": 8, "failed": 0},
        "tasks": {"done": 15, "failed": 1},
        "done": {"tasks": 3, "written": 5},
        "stages": {
            "scatter": {"complete": True, "tasks": {"done": 12, "failed": 0}},
            "gather": {"complete": False, "tasks": {"done": 3, "failed": 0}},
        },
    }
    for interrupted, word in ((True, "interrupted: "), (False, "finished: ")):
        result = Result("sort", complete=False, summary=summary, interrupted=interrupted)
        (line,) = summary_lines(result, ["sort"])
        assert line.startswith(f"{word}scatter (complete), gather (3 tasks)")
        assert "0 sources" not in line
