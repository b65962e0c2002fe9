"""`ledger metrics`: the metrics equal the numbers of the status."""

from __future__ import annotations

import os

from prometheus_client.parser import text_string_to_metric_families

from ledgerbeam.pipelines.report.hosts import Host, HostRun
from ledgerbeam.pipelines.report.metrics import exposition, job_metrics
from ledgerbeam.pipelines.report.state import JobProgress, LedgerState
from tests.pipelines.conftest import Workspace


def test_prometheus_reads_what_the_status_says(failed_job: Workspace) -> None:
    status = failed_job.run("ledger", "status", "L", "--json").json
    printed = failed_job.run("ledger", "metrics", "L", "--prometheus", status=0)
    found = {
        (sample.name, sample.labels.get("state", ""), sample.labels.get("became", "")): sample.value
        for family in text_string_to_metric_families(printed.out)
        for sample in family.samples
    }
    for state, number in status["sources"].items():
        assert found["ledgerbeam_sources", state, ""] == number
    assert found["ledgerbeam_tasks", "failed", ""] == status["tasks"]["failed"] > 0
    assert found["ledgerbeam_records", "", "read"] == status["records"]["read"] > 0
    assert found["ledgerbeam_written_bytes", "", ""] == status["bytes"]
    assert (found["ledgerbeam_complete", "", ""], found["ledgerbeam_running", "", ""]) == (0, 0)
    (family, *_) = text_string_to_metric_families(printed.out)
    assert family.samples[0].labels["ledger"].endswith("/L")
    assert family.samples[0].labels["job"] == "map"
    assert "hunter2" not in printed.out


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
    printed = failed_job.run("ledger", "metrics", "L", "--prometheus").out
    found = {
        (sample.name, sample.labels["host"]): sample.value
        for family in text_string_to_metric_families(printed)
        for sample in family.samples
        if "host" in sample.labels
    }
    name = os.uname().nodename
    assert found["ledgerbeam_host_tasks", name] == status["tasks"]["done"]
    assert found["ledgerbeam_host_failures", name] == status["tasks"]["failed"]
    assert found["ledgerbeam_host_running", name] == 0
    assert not {metric for metric, _ in found} & {"ledgerbeam_host_rate", "ledgerbeam_host_silent_seconds"}


def host(number: int, state: str = "running") -> Host:
    rates = {"tasks": 1.0, "records": 2.0, "bytes": 3.0, "sources": 0.5}
    is_open = state == "running"
    numbers = (10 + number, 20, 30, 4, 5)
    run = HostRun(
        "000001", "local", state, 1, 2, 1.0, None, *numbers, rates if is_open else None, 7.0 if is_open else None
    )
    return Host(f"node{number:03d}", [run])


def test_hosts_beyond_a_hundred_are_counted_as_one() -> None:
    hosts = [host(number, "running" if number % 2 else "done") for number in range(250)]
    state = LedgerState(
        {
            "sources": {},
            "tasks": {},
            "filtered": 0,
            "gone": 0,
            "bytes": 0,
            "complete": False,
            "records": {"read": 0, "kept": 0, "dropped": {}, "rejected": {}, "written": {}},
        },
        [],
        JobProgress(running=True, minute=None, run=None, time_left=None),
        None,
    )
    metrics = [metric for metric in job_metrics(state, hosts) if "host" in metric.labels]
    by_host = {metric.labels["host"]: metric.value for metric in metrics if metric.name == "ledgerbeam_host_tasks"}
    assert len(by_host) == 101
    assert sum(by_host.values()) == sum(10 + number for number in range(250))
    assert all(int(name[4:]) % 2 for name in by_host if name != "others"), "those at work come first"
    rates = {
        m.labels["host"]: m.value for m in metrics if m.name == "ledgerbeam_host_rate" and m.labels["of"] == "tasks"
    }
    assert rates["others"] == 25
    assert sum(rates.values()) == 125
    names = [metric.name for metric in metrics]
    assert names == sorted(names, key=names.index), "those of one name one after the other"
    families = list(text_string_to_metric_families(exposition(metrics, {"ledger": "L"})))
    assert len({family.name for family in families}) == len(families) == len(set(names))
