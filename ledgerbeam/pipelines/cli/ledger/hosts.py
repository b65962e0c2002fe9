"""Hosts of a job as a table: a line for each active or recent run, and a sum for hosts with several runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.filesize import decimal

from ledgerbeam._base.redaction import printable
from ledgerbeam.pipelines.console.reporter import print_table
from ledgerbeam.pipelines.console.run_progress import count, duration
from ledgerbeam.pipelines.report.hosts import Host, HostRun

HEADS = ["host", "run", "engine", "state", "tasks", "records", "written", "rate", "in work", "failed", "last news"]

ENDED_RUNS = 2
"""Number of the newest ended runs that are shown for a host. Its sum counts all runs."""

MOST_HOSTS = 200


def print_hosts(hosts: Sequence[Host]) -> None:
    """Print the table of hosts."""
    if not hosts:
        print("no run has started yet")
        return
    print_table(HEADS, list(host_rows(hosts)))
    if len(hosts) > MOST_HOSTS:
        print(f"and {count(len(hosts) - MOST_HOSTS, 'host')} more; --json has all")


def host_rows(hosts: Sequence[Host]) -> Iterator[list[str]]:
    """Yield the rows of the table, active hosts first."""
    ordered = sorted(hosts, key=lambda host: (not host.at_work, host.host))
    for host in ordered[:MOST_HOSTS]:
        ended = [run for run in host.runs if not _is_open(run)]
        shown = [run for run in host.runs if _is_open(run)] or ended[-1:]
        shown = sorted({run.run: run for run in [*shown, *ended[-ENDED_RUNS:]]}.values(), key=_number)
        name = printable(host.host)
        if len(host.runs) > 1:
            yield _sum_row(name, host)
        for run in shown:
            yield _run_row(name if len(host.runs) == 1 else "", run)


def _number(run: HostRun) -> tuple[int, str]:
    return len(run.run), run.run


def _is_open(run: HostRun) -> bool:
    return run.is_at_work or run.state == "silent"


def _sum_row(name: str, host: Host) -> list[str]:
    rate = f"{host.rate('tasks'):,.1f}/s" if host.at_work else ""
    numbers = [f"{host.total('tasks'):,}", f"{host.total('records'):,}", decimal(host.total("bytes"))]
    state = f"{len(host.at_work)} at work"
    return [name, count(len(host.runs), "run"), "", state, *numbers, rate, "", f"{host.total('failures'):,}", ""]


def _run_row(name: str, run: HostRun) -> list[str]:
    rate = "" if run.rates is None else f"{run.rates['tasks']:,.1f}/s"
    numbers = [f"{run.tasks:,}", f"{run.records:,}", decimal(run.bytes)]
    news = "" if run.silent is None else f"{duration(run.silent)} ago"
    return [name, run.run, run.engine, run.state, *numbers, rate, _in_work(run), f"{run.failures:,}", news]


def _in_work(run: HostRun) -> str:
    """Return the first span in progress, and the number of further spans."""
    if not run.spans:
        return ""
    first: dict[str, Any] = run.in_work[0]
    text = f"{printable(first['source'].rpartition('/')[2])} {first['start']}-{first['stop']}"
    return text if run.spans == 1 else f"{text} and {run.spans - 1:,} more"
