"""``ledgerbeam ledger status``: progress, rates, runs and hosts of a job."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, Literal, NamedTuple

from rich.filesize import decimal

from ledgerbeam._base.redaction import printable, without_secrets
from ledgerbeam.errors import SourceNotFoundError, UsageError
from ledgerbeam.io import Options
from ledgerbeam.io.storage.client import CONCURRENCY
from ledgerbeam.io.storage.urls import is_local
from ledgerbeam.iterators.job_source import GRAPH_SCHEME
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.ledger.model.identity import pack_id, source_id
from ledgerbeam.ledger.model.job import flat_parameters
from ledgerbeam.ledger.model.rows import SourceRow
from ledgerbeam.pipelines.cli.call import cost_line
from ledgerbeam.pipelines.console.reporter import (
    counting,
    print_facts,
    print_json,
    print_table,
    timestamp,
)
from ledgerbeam.pipelines.console.run_progress import count, duration
from ledgerbeam.pipelines.jobs.sources import CONTENT
from ledgerbeam.pipelines.report.accounts import account_lines, describe_time, function_lines, function_values
from ledgerbeam.pipelines.report.hosts import Host, HostRun, hosts_of
from ledgerbeam.pipelines.report.state import (
    BucketSizes,
    ledger_state,
    shown_job,
    shown_runs,
    stage_states,
    status_values,
)
from ledgerbeam.sources.kind import BUCKET_SCHEME
from ledgerbeam.sources.listing import stat_source

SHOWN_RUNS = 10
SHOWN_CHANGES = 10
SHOWN_COMMAND, SHOWN_VALUE = 1000, 300  # characters
PAGE_SOURCES = 1000
HEADS = ["host", "run", "engine", "state", "tasks", "records", "written", "rate", "in work", "failed", "last news"]
ENDED_RUNS = 2  # number of the newest ended runs that are shown for a host; its sum counts all runs
MOST_HOSTS = 200


def status(store: LedgerStore, args: argparse.Namespace) -> int:
    """Print the state of the job of a ledger, or of its hosts. Returns 0."""
    if args.by_host and args.check_sources:
        raise UsageError("--by-host cannot be used with --check-sources; run the command once for each")
    if args.by_host:
        hosts = hosts_of(store, shown_runs(store))
        if args.json:
            print_json({"hosts": [host.values() for host in hosts]})
        else:
            _print_hosts(hosts)
        return 0
    state = ledger_state(store)
    found, runs, progress = state.found, state.runs, state.progress
    changes = list(changed_sources(store, args.storage_options)) if args.check_sources else []
    kinds = Counter(change.problem for change in changes)
    stages = stage_states(store, args.storage_options)
    if args.json:
        urls = [{"source": without_secrets(change.url), "problem": change.problem} for change in changes]
        since = {"changed": kinds["changed"], "missing": kinds["missing"], "sources": urls}
        print_json(status_values(store, state, stages) | ({"changed_since": since} if args.check_sources else {}))
        return 0
    job = shown_job(found["job"]) or {"pipeline": "none yet", "parameters": {}}
    rows = [("job", job["pipeline"])]
    for name, value in sorted(flat_parameters(job["parameters"])):
        if value is not None:
            rows.append((f"  {name}", _cut(f"{value}")))
    if runs and (steps := runs[-1]["info"].get("steps")):
        rows.append(("steps", " -> ".join(steps)))
    for name, stage in stages.items():
        counted = _count_rows(stage.found, RecordCounts(**stage.found["records"]))
        of_stage = dict([*counted, *_bucket_rows(stage.buckets)])
        rows += [(name, of_stage.pop("state")), *((f"  {what}", said) for what, said in of_stage.items())]
    gone = "".join(store.source_urls(sorted(store.gone_ids())[:1]).values())
    rows += [*_count_rows(found, RecordCounts(**found["records"]), gone), *_bucket_rows(state.buckets)]
    rows += [row for one in function_values(store) for row in function_lines(one)]
    if args.check_sources:
        line = f"{count(kinds['changed'], 'source')} changed (done again by the next run), {kinds['missing']:,} missing"
        rows.append(("changed", line if changes else "no source since it was listed"))
    for name, rates in (
        ("last minute", progress.minute),
        (f"{'this' if progress.running else 'last'} run", progress.run),
    ):
        if rates is not None:
            tasks, sources = (f"{rates[part]:,.1f} {part}/s" for part in ("tasks", "sources"))
            seconds = duration(rates["seconds"])
            rows.append((name, f"{tasks}, {sources}, {decimal(int(rates['bytes']))}/s over {seconds}"))
    if (audit := found["audit"])["tasks"]:
        rows.append(("audit", f"audited {count(audit['tasks'], 'task')}, {audit['differ']:,} differ"))
    if runs and runs[-1]["set_ups"]:
        set_ups = runs[-1]["set_ups"]
        times, took = count(set_ups["times"], "time"), duration(set_ups["seconds"])
        rows.append(("set-up", f"{times}, {took} in all, the longest {duration(set_ups['longest'])}"))
    if runs and runs[-1]["time"]:
        rows.append(("time", describe_time(runs[-1]["time"])))
    if progress.running:
        left = progress.time_left
        rows.append(("time left", "not known yet" if left is None else f"about {duration(left)}"))
    if state.rest is not None:
        rows.append(("rest", cost_line(dataclasses.asdict(state.rest))))
    print_facts(rows)
    if changes:
        print()
        for change in changes[:SHOWN_CHANGES]:
            print(f"{change.problem}: {without_secrets(change.url)}")
    if runs:
        print()
        _print_runs(runs)
    return 0


def _cut(value: str) -> str:
    return value if len(value) <= SHOWN_VALUE else f"{value[:SHOWN_VALUE]} ... ({count(len(value), 'character')})"


def _bucket_rows(sizes: BucketSizes | None) -> list[tuple[str, str]]:
    if sizes is None:
        return []
    most = f"the largest, {sizes.largest_bucket}, {decimal(sizes.largest)}: {sizes.skew:,.1f} x the mean"
    return [("buckets", f"{sizes.number:,} of {decimal(sizes.bytes)}; {most}")]


def _count_rows(found: dict[str, Any], records: RecordCounts, gone: str = "") -> list[tuple[str, str]]:
    sources, tasks = found["sources"], found["tasks"]
    rows = [
        ("state", "complete" if found["complete"] else "not complete"),
        ("sources", f"{sources['complete']:,} complete, {sources['open']:,} open, {sources['failed']:,} failed"),
    ]
    if found["gone"]:
        shown = f", such as {printable(without_secrets(gone))}" if gone else ""
        rows.append(("gone", f"{found['gone']:,} not in the last listing{shown}"))
    done, failed, filtered = tasks["done"], tasks["failed"], found["filtered"]
    rows.append(("tasks", f"{done:,} done, {failed:,} failed, {filtered:,} without output"))
    (name, line), *more = account_lines(records)
    rows += [(name, f"{line} ({count(found['bytes'], 'byte')})"), *more]
    if "nulled" in found:
        text = "that JSON does not have (NaN, infinities) written as null"
        rows.append(("null", f"{count(found['nulled'], 'number')} {text}"))
    return rows


def _print_runs(runs: list[dict[str, Any]]) -> None:
    cells = []
    for run in runs[-SHOWN_RUNS:]:
        info, work = run["info"], run["done"]
        took = "" if run["seconds"] is None else duration(run["seconds"])
        listed = "" if run["listed"] is None else f"{run['listed']:,}"
        done = ["?", "?"] if work is None else [f"{work['tasks']:,}", f"{work['sources']:,}"]
        where = f"{info.get('pid', '?')} on {info.get('host', '?')}"
        cells.append([run["id"], timestamp(run["began"]), took, run["state"], listed, *done, where])
    print_table(["run", "began", "took", "outcome", "listed", "tasks", "sources", "process"], cells)
    if len(runs) > SHOWN_RUNS:
        print(f"and {count(len(runs) - SHOWN_RUNS, 'run')} before; --json has all")
    command = shlex.join(runs[-1]["info"].get("command", ()))
    if command:
        shown = command if len(command) <= SHOWN_COMMAND else f"{command[:SHOWN_COMMAND]} ..."
        print(f"\nlast command, in {runs[-1]['info'].get('folder')}:\n  {shown}")


class ChangedSource(NamedTuple):
    """A source that has changed since the last listing: in size or version, or because it does not exist any more."""

    url: str  # of the source, or of the first member of a pack
    problem: Literal["changed", "missing"]


def changed_sources(store: LedgerStore, options: Options) -> Iterator[ChangedSource]:
    """Yield the changed sources of the last listing. Each check is a system call, or a request to a store."""
    job = store.job()
    if job is not None and CONTENT in job.parameters:
        raise UsageError(
            f"{store.url}: its sources are outputs of other jobs, identified by the checksums in their ledgers; to "
            "see changes in a flow, run: ledgerbeam plan FILE"
        )
    rows = (row for row in store.sources() if row.state != "gone")
    with ThreadPoolExecutor(CONCURRENCY, "ledgerbeam-stat") as pool, counting("source") as advance:
        while page := list(islice(rows, PAGE_SOURCES)):
            remote = not all(is_local(row.url) for row in page)
            found = pool.map(lambda row: _look(row, options), page) if remote else (_look(row, options) for row in page)
            for row, now in zip(page, found, strict=True):
                if now != row.source_id:
                    yield ChangedSource(row.url, "missing" if now is None else "changed")
            advance(len(page), 0)


def _look(row: SourceRow, options: Options) -> bytes | None:
    """Return the current ID of a source; None if a part of the source is missing."""
    if row.url.startswith(BUCKET_SCHEME):
        raise UsageError(
            f"{row.url}: a bucket of an exchange cannot be checked; check the ledger of the first stage, in the folder "
            "`scatter` below this ledger"
        )
    if row.url.startswith(GRAPH_SCHEME):
        raise UsageError(
            f"{row.url}: a pass of a graph cannot be checked, because its data depend on code; run the job again: a "
            "changed pass is then a new source"
        )
    try:
        found = [stat_source(url, options) for url in row.member_urls or (row.url,)]
    except SourceNotFoundError:
        return None
    ids = [source_id(now.url, now.size, now.version) for now in found]
    return pack_id(ids) if row.member_urls else ids[0]


def _print_hosts(hosts: Sequence[Host]) -> None:
    if not hosts:
        print("no run has started yet")
        return
    print_table(HEADS, list(host_rows(hosts)))
    if len(hosts) > MOST_HOSTS:
        print(f"and {count(len(hosts) - MOST_HOSTS, 'host')} more; --json has all")


def host_rows(hosts: Sequence[Host]) -> Iterator[list[str]]:
    """Yield the rows of the table of hosts, active hosts first."""
    ordered = sorted(hosts, key=lambda host: (not host.at_work, host.host))
    for host in ordered[:MOST_HOSTS]:
        ended = [run for run in host.runs if not _is_open(run)]
        shown = [run for run in host.runs if _is_open(run)] or ended[-1:]
        by_id = {run.run: run for run in [*shown, *ended[-ENDED_RUNS:]]}
        shown = sorted(by_id.values(), key=lambda run: (len(run.run), run.run))
        name = printable(host.host)
        if len(host.runs) > 1:
            rate = f"{host.rate('tasks'):,.1f}/s" if host.at_work else ""
            numbers = [f"{host.total('tasks'):,}", f"{host.total('records'):,}", decimal(host.total("bytes"))]
            state, failed = f"{len(host.at_work)} at work", f"{host.total('failures'):,}"
            yield [name, count(len(host.runs), "run"), "", state, *numbers, rate, "", failed, ""]
        for run in shown:
            rate = "" if run.rates is None else f"{run.rates['tasks']:,.1f}/s"
            numbers = [f"{run.tasks:,}", f"{run.records:,}", decimal(run.bytes)]
            news = "" if run.silent is None else f"{duration(run.silent)} ago"
            name = name if len(host.runs) == 1 else ""
            yield [name, run.run, run.engine, run.state, *numbers, rate, _in_work(run), f"{run.failures:,}", news]


def _is_open(run: HostRun) -> bool:
    return run.is_at_work or run.state == "silent"


def _in_work(run: HostRun) -> str:
    """Return the first span in progress, and the number of further spans."""
    if not run.spans:
        return ""
    first: dict[str, Any] = run.in_work[0]
    text = f"{printable(first['source'].rpartition('/')[2])} {first['start']}-{first['stop']}"
    return text if run.spans == 1 else f"{text} and {run.spans - 1:,} more"
