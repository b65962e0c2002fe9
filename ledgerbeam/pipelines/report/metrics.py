"""How far a job is, as metrics: named numbers with labels, as Prometheus collects them.

They are gauges, since a source that changes takes back what was counted for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ledgerbeam._base.extras import install_command
from ledgerbeam.errors import UsageError
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.pipelines.report.accounts import account_table
from ledgerbeam.pipelines.report.hosts import Host
from ledgerbeam.pipelines.report.state import LedgerState


class Metric(NamedTuple):
    """One number.

    Attributes:
        name: Of the metric.
        text: What it is, for people.
        labels: Names and values that tell this number from others of the metric.
        value: The number.
    """

    name: str
    text: str
    labels: dict[str, str]
    value: float


MOST_HOSTS = 100
"""Hosts that have metrics of their own: those at work first, then those that did most."""

OTHERS = "others"
"""The label of all further hosts."""


def job_metrics(state: LedgerState, hosts: Sequence[Host] = ()) -> list[Metric]:
    """Return the metrics of the job of a ledger, those of one name one after the other.

    What is not known has no metric: rates when no run is at work, the time left before it can be estimated.

    Args:
        state: How far the job is.
        hosts: What each host does.
    """
    return [*_counts(state), *_records(state), *_course(state), *_hosts(hosts)]


def _counts(state: LedgerState) -> Iterator[Metric]:
    found = state.found
    for name, value in found["sources"].items():
        yield Metric("ledgerbeam_sources", "Sources of the last listing, by state", {"state": name}, value)
    yield Metric("ledgerbeam_sources_gone", "Known sources that the last listing lacked", {}, found["gone"])
    for name, value in {**found["tasks"], "filtered": found["filtered"]}.items():
        yield Metric("ledgerbeam_tasks", "Recorded tasks, by state", {"state": name}, value)
    yield Metric("ledgerbeam_written_bytes", "Bytes that recorded tasks have written", {}, found["bytes"])
    yield Metric("ledgerbeam_complete", "1 if every source is complete, else 0", {}, int(found["complete"]))


def _records(state: LedgerState) -> Iterator[Metric]:
    counts = RecordCounts(**state.found["records"])
    for became, name, number in account_table(counts):
        yield Metric("ledgerbeam_records", "Records by what became of them", {"became": became, "name": name}, number)


def _course(state: LedgerState) -> Iterator[Metric]:
    progress = state.progress
    yield Metric("ledgerbeam_runs", "Runs of the job so far", {}, len(state.runs))
    yield Metric("ledgerbeam_running", "1 if the last run is at work as far as is known, else 0", {}, progress.running)
    if progress.minute is not None:
        for name in ("tasks", "records", "bytes", "sources"):
            text = "Recorded in a second, over the last minute"
            yield Metric("ledgerbeam_rate", text, {"of": name}, progress.minute[name])
    if progress.time_left is not None:
        yield Metric("ledgerbeam_time_left_seconds", "Until every source is complete", {}, progress.time_left)
    if state.runs:
        yield Metric(
            "ledgerbeam_last_run_began_seconds", "When the last run began, since 1970 UTC", {}, state.runs[-1]["began"]
        )


def _hosts(hosts: Sequence[Host]) -> Iterator[Metric]:
    ordered = sorted(hosts, key=lambda host: (not host.at_work, -host.total("tasks"), host.host))
    named = [(host.host, [host]) for host in ordered[:MOST_HOSTS]]
    named += [(OTHERS, ordered[MOST_HOSTS:])] if len(ordered) > MOST_HOSTS else []
    for name, of_name in named:
        running = sum(len(host.at_work) for host in of_name)
        yield Metric("ledgerbeam_host_running", "Runs of a host that are at work", {"host": name}, running)
    for kind in ("tasks", "records", "bytes", "sources", "failures"):
        text = f"Recorded by the runs of a host: {kind}"
        for name, of_name in named:
            yield Metric(f"ledgerbeam_host_{kind}", text, {"host": name}, sum(host.total(kind) for host in of_name))
    for name, of_name in named:
        for kind in ("tasks", "records", "bytes", "sources") if any(host.at_work for host in of_name) else ():
            text = "Recorded in a second by the runs of a host, over the last minute"
            value = sum(host.rate(kind) for host in of_name)
            yield Metric("ledgerbeam_host_rate", text, {"host": name, "of": kind}, value)
    for name, of_name in named:
        silent = [run.silent for host in of_name for run in host.runs if run.silent is not None]
        if silent:
            text = "Since a run of a host that has not ended showed something new, by its own clock"
            yield Metric("ledgerbeam_host_silent_seconds", text, {"host": name}, min(silent))


def exposition(metrics: Sequence[Metric], labels: dict[str, str]) -> str:
    """Return metrics in the text format of Prometheus.

    Args:
        metrics: Those of one name one after the other.
        labels: Of all of them.

    Raises:
        UsageError: The client library of Prometheus is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry, Gauge, generate_latest  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise UsageError(f"metrics for Prometheus need its client: {install_command('metrics')}") from error
    registry = CollectorRegistry()
    gauges: dict[str, Gauge] = {}
    for metric in metrics:
        names = [*labels, *metric.labels]
        gauge = gauges.get(metric.name)
        if gauge is None:
            gauge = gauges[metric.name] = Gauge(metric.name, metric.text, names, registry=registry)
        gauge.labels(**labels, **metric.labels).set(metric.value)
    return generate_latest(registry).decode()
