"""`ledger metrics`: what a monitor collects is what the status says."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from tests.pipelines.conftest import Workspace


def test_prometheus_reads_what_the_status_says(failed_job: Workspace) -> None:
    status = failed_job.run("ledger", "status", "L", "--json").json
    printed = failed_job.run("ledger", "metrics", "L", "--prometheus")
    assert printed.status == 0, printed.err
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
