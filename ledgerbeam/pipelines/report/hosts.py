"""Hosts and their runs: recorded work, rates, spans in progress and liveness.

Clocks of hosts may be wrong. The liveness of a run on another host is judged by the observer's clock: from the time
of the last observed progress, which takes two observations. The first observation has only times of the run's own
clock; a time in the future counts as now.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any

from ledgerbeam._base.redaction import without_secrets
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger.model.claims import Claims
from ledgerbeam.ledger.model.rows import HISTORY_SECONDS, HistoryRow
from ledgerbeam.ledger.worker.sharing import read_claims
from ledgerbeam.pipelines.report.run_info import UNSEEN, Work
from ledgerbeam.pipelines.report.state import RECENT_SECONDS, rates_of, recent_since

SHOWN_SPANS = 20  # maximum number of spans in progress that are listed for a run


@dataclass(frozen=True)
class HostRun:
    """One run on a host, with the numbers that it recorded.

    `state` is the result of `run_state`. A run that cannot be observed from here is ``running`` if it made progress in
    the last minute, otherwise ``silent``. Until its claims have certainly expired, it is ``running, or killed`` instead
    of ``silent``: the age of the claims is not known at the first observation.
    """

    run: str
    engine: str  # ``local``, or the name of the runner in the Beam options
    state: str
    pid: int | None
    workers: int | None  # None if the run did not record it
    began: float  # in seconds since 1970 UTC, by the host's clock
    ended: float | None  # the same; None if the run has not ended
    tasks: int
    records: int
    bytes: int
    sources: int
    failures: int
    rates: dict[str, float] | None = None  # these numbers per second over the last minute; None unless it is active
    silent: float | None = None  # seconds since the last progress; None if the run has ended
    spans: int | None = None  # number of spans that the run claims; None if it publishes no claims
    in_work: list[dict[str, Any]] = field(default_factory=list)  # some of these spans: ``source``, ``start``, ``stop``

    @property
    def is_at_work(self) -> bool:
        """Whether the run is active, as far as is known."""
        return self.state in ("running", UNSEEN)


@dataclass(frozen=True)
class Host:
    """A host, by its own host name, and its runs, oldest first."""

    host: str
    runs: Sequence[HostRun]

    @property
    def at_work(self) -> list[HostRun]:
        """The active runs, as far as is known."""
        return [run for run in self.runs if run.is_at_work]

    def total(self, name: str) -> int:
        """Return the sum of an attribute over all runs."""
        return sum(getattr(run, name) for run in self.runs)

    def rate(self, name: str) -> float:
        """Return the sum of a rate over the active runs."""
        return sum(run.rates[name] for run in self.runs if run.rates is not None)

    def values(self) -> dict[str, Any]:
        """Return the host as a JSON object."""
        sums = {name: self.total(name) for name in (*Work._fields, "failures")}
        return {"host": self.host, "at_work": len(self.at_work), **sums, "runs": [asdict(run) for run in self.runs]}


@dataclass
class _Sight:
    """Last observation of a run: its content, the time of its last change, and whether a change was observed."""

    shown: Any
    since: float
    is_news: bool = False
    done: list[tuple[float, Work]] = field(default_factory=list)


class Sightings:
    """Repeated observations of runs, by the observer's clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, _Sight] = {}

    def look(self, run: str, shown: Any, done: Work) -> None:
        """Record an observation of a run, and its work so far."""
        now = self._clock()
        seen = self._seen.setdefault(run, _Sight(shown, now))
        if seen.shown != shown:
            seen.shown, seen.since, seen.is_news = shown, now, True
        seen.done = [row for row in seen.done if row[0] >= now - RECENT_SECONDS] + [(now, done)]

    def silent(self, run: str, recorded: float) -> float:
        """Return the seconds since the last progress of a run; `recorded` is the same number by the run's own clock."""
        seen = self._seen[run]
        watched = self._clock() - seen.since
        return watched if seen.is_news else max(watched, recorded)

    def watched(self, run: str) -> float:
        """Return the seconds since the last observed change of a run."""
        return self._clock() - self._seen[run].since

    def rates(self, run: str) -> dict[str, float] | None:
        """Return the rates of a run over the last minute; None before two observations."""
        done = self._seen[run].done
        (began, before), (now, by_now) = done[0], done[-1]
        if now - began < 1:
            return None
        return rates_of(Work(*(max(0, n - m) for n, m in zip(by_now, before, strict=True))), now - began)


def hosts_of(
    store: LedgerStore,
    runs: Sequence[Mapping[str, Any]],
    sightings: Sightings | None = None,
    claims: Sequence[Claims] | None = None,
) -> list[Host]:
    """Return the hosts of a job and the state of their `shown_runs`, hosts sorted by name.

    `sightings` are earlier observations. Without `claims`, the claims of launchers are read.
    """
    sightings = Sightings() if sightings is None else sightings
    said = {found.run: found for found in (read_claims(store) if claims is None else claims)}
    recorded, recent = store.recorded(), store.recorded(recent_since(time.time()))
    urls = store.source_urls({span.source for found in said.values() for span in found.spans[:SHOWN_SPANS]})
    named = []
    for run in runs:
        name = str(run["info"].get("host") or "?")
        rows = recorded.get(run["id"]), recent.get(run["id"])
        named.append((name, _host_run(run, rows, said.get(run["id"]), urls, sightings)))
    named.sort(key=lambda pair: pair[0])
    return [Host(name, [run for _, run in group]) for name, group in groupby(named, key=lambda pair: pair[0])]


def _host_run(
    run: Mapping[str, Any],
    rows: tuple[HistoryRow | None, HistoryRow | None],
    claims: Claims | None,
    urls: Mapping[bytes, str],
    sightings: Sightings,
) -> HostRun:
    """Observe a run. `rows` are two sums of its history: of all rows, and of the rows of the last minute."""
    recorded, recent = rows
    now, name, info = time.time(), run["id"], run["info"]
    work = Work.of(filter(None, [recorded]))
    failures = 0 if recorded is None else recorded.failures
    sightings.look(name, (work, failures, None if claims is None else (claims.number, claims.spans)), work)
    silent = spans = None
    if run["ended"] is None:
        last = 0 if recorded is None else recorded.time + HISTORY_SECONDS
        silent = sightings.silent(name, max(0.0, now - max(last, run["began"])))
        spans = None if claims is None else claims.spans
    state: str = run["state"]
    if state == UNSEEN and silent is not None:
        if silent < RECENT_SECONDS:
            state = "running"
        elif claims is None or sightings.watched(name) >= claims.seconds:
            state = "silent"
    rates = None
    if state in ("running", UNSEEN):
        seconds = now - max(recent_since(now), min(run["began"], now - 1))
        rates = sightings.rates(name) or rates_of(Work.of(filter(None, [recent])), seconds)
    in_work = [
        {"source": without_secrets(urls.get(s.source, s.source.hex())), "start": s.start, "stop": s.stop}
        for s in (spans or ())[:SHOWN_SPANS]
    ]
    return HostRun(
        name,
        str(info.get("runner") or "?"),
        state,
        *(info.get("pid"), info.get("workers")),
        *(run["began"], run["ended"]),
        *(work.tasks, work.records, work.bytes, work.sources, failures),
        rates,
        silent,
        None if spans is None else len(spans),
        in_work,
    )
