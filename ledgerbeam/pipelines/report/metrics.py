"""Metrics of a job for Prometheus: named numbers with labels.

They are gauges, because the counts of a source are subtracted when the source changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ledgerbeam._base.extensions import install_command
from ledgerbeam.errors import UsageError
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.pipelines.report.accounts import account_table
from ledgerbeam.pipelines.report.hosts import Host
from ledgerbeam.pipelines.report.state import LedgerState

MOST_HOSTS = 100  # maximum number of hosts with their own metrics: active hosts first, then hosts with the most tasks
OTHERS = "others"  # host label of the sum over all further hosts


class Metric(NamedTuple):
    """One value of a metric."""

    name: str
    text: str
    labels: dict[str, str]  # of this value, unique within the metric
    value: float


def job_metrics(state: LedgerState, hosts: Sequence[Host] = ()) -> list[Metric]:
    """Return the metrics of a job, grouped by name.

    Unknown values have no metric: rates while no run is active, and the time left before it can be estimated.
    """
    return [*_job(state), *_hosts(hosts)]


def _job(state: LedgerState) -> Iterator[Metric]:
    found, progress = state.found, state.progress
    for name, value in found["sources"].items():
        yield Metric("ledgerbeam_sources", "Sources of the last listing, by state", {"state": name}, value)
    yield Metric("ledgerbeam_sources_gone", "Sources missing from the last listing", {}, found["gone"])
    for name, value in {**found["tasks"], "filtered": found["filtered"]}.items():
        yield Metric("ledgerbeam_tasks", "Recorded tasks, by state", {"state": name}, value)
    yield Metric("ledgerbeam_written_bytes", "Bytes written by recorded tasks", {}, found["bytes"])
    yield Metric("ledgerbeam_complete", "1 if every source is complete, else 0", {}, int(found["complete"]))
    for became, name, number in account_table(RecordCounts(**found["records"])):
        yield Metric("ledgerbeam_records", "Records by outcome", {"became": became, "name": name}, number)
    yield Metric("ledgerbeam_runs", "Runs of the job so far", {}, len(state.runs))
    yield Metric("ledgerbeam_running", "1 if a run is active as far as is known, else 0", {}, progress.running)
    if progress.minute is not None:
        for name in ("tasks", "records", "bytes", "sources"):
            text = "Recorded per second, over the last minute"
            yield Metric("ledgerbeam_rate", text, {"of": name}, progress.minute[name])
    if progress.time_left is not None:
        yield Metric("ledgerbeam_time_left_seconds", "Estimate until every source is complete", {}, progress.time_left)
    if state.runs:
        began = state.runs[-1]["began"]
        yield Metric("ledgerbeam_last_run_began_seconds", "Start of the last run, since 1970 UTC", {}, began)


def _hosts(hosts: Sequence[Host]) -> Iterator[Metric]:
    ordered = sorted(hosts, key=lambda host: (not host.at_work, -host.total("tasks"), host.host))
    named = [(host.host, [host]) for host in ordered[:MOST_HOSTS]]
    named += [(OTHERS, ordered[MOST_HOSTS:])] if len(ordered) > MOST_HOSTS else []
    for name, of_name in named:
        running = sum(len(host.at_work) for host in of_name)
        yield Metric("ledgerbeam_host_running", "Active runs of a host", {"host": name}, running)
    for kind in ("tasks", "records", "bytes", "sources", "failures"):
        text = f"Recorded by the runs of a host: {kind}"
        for name, of_name in named:
            yield Metric(f"ledgerbeam_host_{kind}", text, {"host": name}, sum(host.total(kind) for host in of_name))
    for name, of_name in named:
        for kind in ("tasks", "records", "bytes", "sources") if any(host.at_work for host in of_name) else ():
            text = "Recorded per second by the runs of a host, over the last minute"
            value = sum(host.rate(kind) for host in of_name)
            yield Metric("ledgerbeam_host_rate", text, {"host": name, "of": kind}, value)
    for name, of_name in named:
        silent = [run.silent for host in of_name for run in host.runs if run.silent is not None]
        if silent:
            text = "Time since the last progress of a run of the host that has not ended"
            yield Metric("ledgerbeam_host_silent_seconds", text, {"host": name}, min(silent))


def exposition(metrics: Sequence[Metric], labels: dict[str, str]) -> str:
    """Return metrics, grouped by name, in the text format of Prometheus; `labels` are added to all of them."""
    try:
        from prometheus_client import CollectorRegistry, Gauge, generate_latest  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise UsageError(f"the Prometheus client is not installed: {install_command('metrics')}") from error
    registry = CollectorRegistry()
    gauges: dict[str, Gauge] = {}
    for metric in metrics:
        names = [*labels, *metric.labels]
        if metric.name not in gauges:
            gauges[metric.name] = Gauge(metric.name, metric.text, names, registry=registry)
        gauges[metric.name].labels(**labels, **metric.labels).set(metric.value)
    return generate_latest(registry).decode()
