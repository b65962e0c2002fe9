"""``ledgerbeam ledger watch``: repeated view of all hosts of a job until the job is complete."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ledgerbeam._base.interrupts import INTERRUPTED
from ledgerbeam._base.redaction import plain_value, without_secrets
from ledgerbeam.errors import StorageError
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger.model.claims import Claims
from ledgerbeam.ledger.worker.sharing import read_claims
from ledgerbeam.pipelines.cli.ledger.status import HEADS, host_rows
from ledgerbeam.pipelines.console.reporter import json_bytes, plain_console, print_facts, print_table, timestamp
from ledgerbeam.pipelines.console.run_progress import count, duration
from ledgerbeam.pipelines.report.hosts import Host, Sightings, hosts_of
from ledgerbeam.pipelines.report.state import LedgerState, ledger_state, stage_ledgers, state_values

# Seconds between two reads of claims: the interval of launchers, and longer for more than `CROWD` launchers.
CLAIM_SECONDS, CROWD = 10.0, 10
BAR_WIDTH = 40
MOST_ROWS = 60  # maximum number of rows of hosts on a terminal


def watch(store: LedgerStore, args: argparse.Namespace) -> int:
    """Show the hosts of a ledger until its job is complete. If the store does not answer, try again.

    Returns 0, or 130 after Ctrl-C.
    """
    with suppress(KeyboardInterrupt), _output(as_json=args.json) as out:
        watcher = _Watcher(store, args.storage_options)
        while True:
            is_complete = False
            try:
                view = watcher.look()
            except StorageError as error:
                if args.once:
                    raise
                out.lost(error)
            else:
                out.show(view)
                is_complete = view.is_complete
            if is_complete or args.once:
                return 0
            time.sleep(args.interval)
    return INTERRUPTED


@dataclass(frozen=True)
class _View:
    """State of a job at one update."""

    ledger: str
    last: LedgerState  # of the job, or of its last stage
    stages: Mapping[str, LedgerState]  # of the earlier stages, by name
    state: LedgerState  # of the current stage
    hosts: Sequence[Host]  # of the current stage

    @property
    def is_complete(self) -> bool:
        return all(stage.found["complete"] for stage in (self.last, *self.stages.values()))

    def values(self) -> dict[str, Any]:
        values = _without_runs(state_values(self.last, self.stages))
        return {"at": time.time(), **values, "hosts": [host.values() for host in self.hosts]}

    @property
    def share(self) -> float:
        """Share of done tasks, or of complete sources if the number of tasks is not known."""
        found, rest = self.state.found, self.state.rest
        if found["complete"]:
            return 1.0
        if rest is not None:
            done = found["tasks"]["done"]
            return float(done / max(1, done + rest.tasks))
        sources = found["sources"]
        return float(sources["complete"] / max(1, sum(sources.values())))

    def facts(self) -> list[tuple[str, str]]:
        found, rest, progress = self.state.found, self.state.rest, self.state.progress
        tasks, sources = found["tasks"], found["sources"]
        of = "" if rest is None else f" of about {tasks['done'] + rest.tasks:,}"
        failed = sum(run.failures for host in self.hosts for run in host.runs)
        rejected = sum(found["records"]["rejected"].values())
        done = f"{tasks['done']:,}{of} done ({100 * self.share:.1f} %), {tasks['failed']:,} failed"
        if failed > tasks["failed"]:
            done = f"{done} ({failed:,} failures in all, each host tries a task once)"
        rows = [
            ("ledger", without_secrets(self.ledger)),
            *((name, _stage_line(stage.found)) for name, stage in self.stages.items()),
            ("tasks", done),
            ("sources", f"{sources['complete']:,} of {sum(sources.values()):,} complete, {sources['failed']:,} failed"),
            ("records", f"{found['records']['kept']:,} kept, {rejected:,} rejected ({decimal(found['bytes'])})"),
        ]
        if progress.minute is not None:
            rates = progress.minute
            per_second = f"{rates['tasks']:,.1f} tasks/s, {rates['records']:,.1f} records/s"
            rows.append(("last minute", f"{per_second}, {decimal(int(rates['bytes']))}/s"))
        working = [host.at_work for host in self.hosts if host.at_work]
        rows.append(("at work", f"{count(sum(map(len, working)), 'run')} on {count(len(working), 'host')}"))
        left = progress.time_left
        if self.is_complete:
            rows.append(("state", "complete"))
        elif working:
            rows.append(("time left", "not known yet" if left is None else f"about {duration(left)}"))
        return rows


def _without_runs(values: dict[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in values.items() if name not in ("runs", "last_run")}
    if "stages" in found:
        found["stages"] = {name: _without_runs(stage) for name, stage in found["stages"].items()}
    return found


def _stage_line(found: Mapping[str, Any]) -> str:
    tasks, sources = found["tasks"], found["sources"]
    done = f"{sources['complete']:,} of {sum(sources.values()):,} sources complete"
    state = "complete" if found["complete"] else done
    return f"{state}; {count(tasks['done'], 'task')} done, {tasks['failed']:,} failed"


@dataclass(eq=False)
class _WatchedLedger:
    """Repeated views of one ledger."""

    store: LedgerStore
    _sightings: Sightings = field(default_factory=Sightings)
    _claims: Sequence[Claims] = ()
    _next_claims: float = 0.0
    _is_first: bool = True  # the ledger was opened, and so refreshed, just now

    def look(self) -> LedgerState:
        if not self._is_first:
            self.store.refresh()
        self._is_first = False
        return ledger_state(self.store)

    def hosts(self, state: LedgerState) -> list[Host]:
        now = time.monotonic()
        if now >= self._next_claims:
            self._claims = read_claims(self.store)
            self._next_claims = now + CLAIM_SECONDS * max(1.0, len(self._claims) / CROWD)
        return hosts_of(self.store, state.runs, self._sightings, self._claims)


class _Watcher:
    """Repeated views of the ledgers of all stages of a job."""

    def __init__(self, store: LedgerStore, storage_options: Mapping[str, Any]) -> None:
        self._last = _WatchedLedger(store)
        self._options = storage_options
        self._stages: dict[str, _WatchedLedger] = {}

    def look(self) -> _View:
        last = self._last.look()
        opened = {name: stage.store for name, stage in self._stages.items()}
        for name, store in stage_ledgers(self._last.store, self._options, besides=opened).items():
            self._stages[name] = _WatchedLedger(store)
        stages = {name: stage.look() for name, stage in self._stages.items()}
        looks = [*zip(self._stages.values(), stages.values(), strict=True), (self._last, last)]
        ledger, state = next((look for look in looks if not look[1].found["complete"]), looks[-1])
        return _View(self._last.store.url, last, stages, state, ledger.hosts(state))


class _PrintedLooks:
    """Output for pipes and files: a block of lines per view."""

    def show(self, view: _View) -> None:
        print(timestamp(time.time()))
        print_facts(view.facts())
        if view.hosts:
            print()
            print_table(HEADS, list(host_rows(view.hosts)))
        print(flush=True)

    def lost(self, error: StorageError) -> None:
        print(f"{timestamp(time.time())} {_lost(error)}", file=sys.stderr, flush=True)


class _JsonLines(_PrintedLooks):
    """JSON output: one object per view, one per line."""

    def show(self, view: _View) -> None:
        sys.stdout.buffer.write(json_bytes(plain_value(view.values())) + b"\n")
        sys.stdout.flush()


class _Screen:
    """Terminal output: the last view, and below it a line if the store does not answer."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self.last: RenderableType = Text("")

    def show(self, view: _View) -> None:
        self.last = _drawn(view)
        self._live.update(Group(self.last, Text("Ctrl-C ends")), refresh=True)

    def lost(self, error: StorageError) -> None:
        self._live.update(Group(self.last, Text(_lost(error), style="bold")), refresh=True)


def _lost(error: StorageError) -> str:
    return without_secrets(f"the store does not answer, trying again: {error}")


def _drawn(view: _View) -> RenderableType:
    facts = Table.grid(padding=(0, 2))
    for row in view.facts():
        facts.add_row(*map(Text, row))
    table = Table(*HEADS, box=None, pad_edge=False, header_style="bold")
    rows = list(host_rows(view.hosts))
    for cells in rows[:MOST_ROWS]:
        table.add_row(*map(Text, cells))
    more = [Text(f"and {len(rows) - MOST_ROWS:,} lines more; --json has all")] if len(rows) > MOST_ROWS else []
    bar = ProgressBar(total=1.0, completed=view.share, width=BAR_WIDTH)
    return Group(bar, facts, Text(""), *([table] if rows else []), *more)


@contextmanager
def _output(*, as_json: bool) -> Iterator[_PrintedLooks | _Screen]:
    if as_json:
        yield _JsonLines()
    elif sys.stdout.isatty():
        with Live(Text("reading"), console=plain_console(), auto_refresh=False, redirect_stderr=True) as live:
            screen = _Screen(live)
            try:
                yield screen
            finally:
                live.update(screen.last, refresh=True)
    else:
        yield _PrintedLooks()
