"""``ledgerbeam ledger`` failures, rejects, outputs, stats and metrics: print what tasks have recorded.

Metrics are named numbers with labels, for Prometheus. They are gauges, because the counts of a source are subtracted
when the source changes.
"""

from __future__ import annotations

import argparse
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ledgerbeam._base.extensions import install_command
from ledgerbeam._base.names import DROPPED, REJECTS
from ledgerbeam._base.redaction import HIDDEN, plain_value, printable, without_secrets
from ledgerbeam.errors import UsageError
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.ledger.model.rows import FailureRow
from ledgerbeam.pipelines.console.reporter import print_json, print_json_stream, print_table, timestamp
from ledgerbeam.pipelines.console.run_progress import count
from ledgerbeam.pipelines.report.accounts import account_table, statistic_rows
from ledgerbeam.pipelines.report.hosts import Host, hosts_of
from ledgerbeam.pipelines.report.ledger import failure_values, grouped_failures, output_values, set_aside_rows
from ledgerbeam.pipelines.report.state import LedgerState, every_ledger, ledger_state, stage_statistics

SHOWN_ROWS = 5  # maximum number of failures printed per reason
_SHOWN_ERROR = 300  # maximum number of characters printed of an error
MOST_HOSTS = 100  # maximum number of hosts with their own metrics: active hosts first, then hosts with the most tasks
OTHERS = "others"  # host label of the sum over all further hosts


def failures(store: LedgerStore, args: argparse.Namespace) -> int:
    """Print the failures of a job by stage and reason, largest groups first. Returns 0."""
    ledgers = every_ledger(store, args.storage_options)
    found = (grouped_failures(ledger.failures(), store.url, ledger.status()["last_run"]) for ledger in ledgers)
    groups = list(zip(ledgers, found, strict=True))
    every = [group for _, of_stage in groups for group in of_stage]
    if args.json:
        rows = (failure_values(row) for ledger in ledgers for row in ledger.failures())
        print_json_stream({"groups": every}, "failures", rows)
        return 0
    if not every:
        print("no failures")
        return 0
    for ledger, of_stage in groups:
        _print_groups(ledger, of_stage)
    print(
        "\nTo retry all tasks that are not quarantined, run the same command again. After an edit of the function, "
        "add --on-job-change=accept, in Python on_job_change='accept'."
    )
    if any(HIDDEN in (group["retry"] or "") for group in every):
        print(f"Ledgers do not store secrets: replace {HIDDEN} with yours.")
    return 0


def _print_groups(store: LedgerStore, groups: Sequence[Mapping[str, Any]]) -> None:
    first: defaultdict[str, list[FailureRow]] = defaultdict(list)
    for row in store.failures():
        if len(shown := first[without_secrets(row.reason)]) < SHOWN_ROWS:
            shown.append(row)
    for group in groups:
        quarantined = f", {group['quarantined']:,} quarantined" if group["quarantined"] else ""
        sizes = f"{count(group['count'], 'task')} of {count(group['sources'], 'source')}"
        print(f"{sizes}: {printable(group['reason'])}{quarantined}")
        for row in first[group["reason"]]:
            print(f"  {_failure_line(row)}")
        more = group["count"] - len(first[group["reason"]])
        if more > 0:
            print(f"  and {more:,} more; --json has all")
        print(f"  to retry: {group['retry'] or 'run the job again'}")


def _failure_line(row: FailureRow) -> str:
    """Return a failure as a line: the error, after the name of the task unless the error names the source."""
    error = row.error or row.reason
    named = error if row.url in error else f"{row.task}: {error}"
    again = f" (tried {row.attempts:,} times, last at {timestamp(row.last)})" if row.attempts > 1 else ""
    return printable(without_secrets(named)) + again


def rejects(store: LedgerStore, args: argparse.Namespace) -> int:
    """Print the rejected or the dropped records by reason, largest groups first. Returns 0.

    Memory does not depend on their number.
    """
    outcome, folder = ("dropped", DROPPED) if args.dropped else ("rejected", REJECTS)
    numbers: Counter[str] = Counter()
    sources: defaultdict[str, set[int]] = defaultdict(set)
    examples: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in set_aside_rows(store, folder, args.storage_options, reason=args.reason, source=args.source):
        reason = str(row["reason"])
        numbers[reason] += 1
        sources[reason].add(hash(row["source"]))
        if len(examples[reason]) < args.limit:
            examples[reason].append(row)
    reasons = sorted(numbers, key=lambda reason: (-numbers[reason], reason))
    if args.json:
        shown_rows = [row for reason in reasons for row in examples[reason]]
        print_json(plain_value({outcome: {reason: numbers[reason] for reason in reasons}, "examples": shown_rows}))
        return 0
    if not reasons:
        print(
            "no stored dropped records: a job stores them with --keep-dropped"
            if args.dropped
            else "no rejected records"
        )
        return 0
    for reason in reasons:
        shown = printable(without_secrets(reason))
        print(f"{count(numbers[reason], 'record')} of {count(len(sources[reason]), 'source')}: {shown}")
        for row in examples[reason]:
            print(f"  {_set_aside_line(row)}")
        more = numbers[reason] - len(examples[reason])
        if more > 0:
            print(f"  and {more:,} more; --limit {numbers[reason]} shows all")
        if not args.dropped:
            print(f"  to do them again: --only-rejected {shlex.quote(shown)}")
    if not args.dropped:
        print(
            "\nAdd this option to the job's command to repeat only the tasks of these records. After an edit of the "
            "function, add --on-job-change=accept, too."
        )
    return 0


def _set_aside_line(row: Mapping[str, Any]) -> str:
    """Return a record as a line: its place and function, then its error. The error does not repeat the place."""
    place = f"{row['source']}: record {row['record']}"
    if row["bytes"] is not None:  # None for a row of a column file
        place += ", bytes [{}, {})".format(*row["bytes"])
    error = " ".join(str(row.get("error", "")).split()).removeprefix(f"{place}: ")
    at = f" (at {row['at']})" if row.get("at") else ""
    place += f", in {row['function']}" if row.get("function") else ""
    cut = error if len(error) <= _SHOWN_ERROR else f"{error[:_SHOWN_ERROR]} ..."
    return printable(without_secrets(f"{place}{': ' if cut else ''}{cut}{at}"))


def outputs(store: LedgerStore, args: argparse.Namespace) -> int:
    """Print a line for each output, or one JSON object. Memory does not depend on their number. Returns 0."""
    rows = store.outputs()
    if args.json:
        job = store.job()
        root = job.parameters.get("output") if job else None
        head = {"complete": store.status()["complete"], "output": root if isinstance(root, str) else None}
        print_json_stream(head, "outputs", map(output_values, rows))
        return 0
    for row in rows:
        output = row.output
        numbers = (output.records, output.size, output.checksum)
        texts = [without_secrets(text) for text in (row.url, *([output.route] if output.route else []))]
        print(without_secrets(output.name), *numbers, *texts, sep="\t")
    return 0


def stats(store: LedgerStore, args: argparse.Namespace) -> int:
    """Print the statistics over all recorded tasks. Returns 0."""
    found = stage_statistics(store, args.storage_options, args.name)
    if args.name is not None and not found:
        raise UsageError(f"{store.url}: no recorded task has a statistic {args.name!r}; leave --name out to see all")
    if args.json:
        print_json({name: merged.value() for name, merged in found.items()})
    elif found:
        rows = [row for name, merged in found.items() for row in statistic_rows(name, merged)]
        cells = [[printable(without_secrets(cell)) for cell in row] for row in rows]
        print_table(["name", "kind", "tasks", "value", "off by"], cells)
    else:
        print("no statistics: the function has not called ledgerbeam.stats in any recorded task")
    return 0


def metrics(store: LedgerStore, args: argparse.Namespace) -> int:
    """Print the metrics of a ledger. Returns 0."""
    state = ledger_state(store)
    found = job_metrics(state, hosts_of(store, state.runs))
    if args.prometheus:
        job = state.found["job"]
        labels = {"ledger": without_secrets(store.url), "job": "" if job is None else job["pipeline"]}
        print(exposition(found, labels), end="")
    elif args.json:
        print_json([metric._asdict() for metric in found])
    else:
        rows = []
        for name, _, labels, value in found:
            shown = ", ".join(f"{label}={without_secrets(text)}" for label, text in labels.items() if text)
            rows.append([name, shown, f"{value:,.2f}".removesuffix(".00")])
        print_table(["metric", "labels", "value"], rows)
    return 0


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
        from prometheus_client import CollectorRegistry, Gauge, generate_latest
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
