"""What each host and its runs do: what they have recorded, how fast, what they have in work, and whether they live.

Clocks of hosts may be wrong. So whether a run that cannot be seen from here lives is judged by the clock of who looks,
from when it showed something new: that takes two looks. At the first look there are only the times that the run has
recorded by its own clock; a time to come counts as now.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any

from ledgerbeam._base.redaction import without_secrets
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger.claim_places import read_claims
from ledgerbeam.ledger.model.claims import Claims
from ledgerbeam.ledger.model.rows import HISTORY_SECONDS, HistoryRow
from ledgerbeam.pipelines.report.progress import RECENT_SECONDS, rates_of, recent_since
from ledgerbeam.pipelines.report.run_info import UNSEEN, Work

SHOWN_SPANS = 20
"""Spans in work of a run that are named."""


@dataclass(frozen=True)
class HostRun:
    """One run on a host.

    Attributes:
        run: Its id.
        engine: ``local``, or the Beam option that names the runner.
        state: As `run_state` says; of a run that cannot be seen from here ``running`` if it showed something new in the
            last minute, ``silent`` if it did not, and ``running, or killed`` while claims of it lie there of which one
            look does not tell how old they are.
        pid: Of its launcher.
        workers: How many it has; None if it did not say.
        began: Seconds since 1970 UTC, by its own clock.
        ended: The same; None if it has not.
        tasks: That it has recorded.
        records: Of these tasks.
        bytes: That they have written.
        sources: That became complete by them.
        failures: That it has recorded.
        rates: Of these numbers in a second, over the last minute; None unless it is at work.
        silent: Seconds since it showed something new; None if it has ended.
        spans: How many spans it says to have in work, or about to begin; None if it says nothing.
        in_work: Some of them: ``source``, ``start``, ``stop``.
    """

    run: str
    engine: str
    state: str
    pid: int | None
    workers: int | None
    began: float
    ended: float | None
    tasks: int
    records: int
    bytes: int
    sources: int
    failures: int
    rates: dict[str, float] | None = None
    silent: float | None = None
    spans: int | None = None
    in_work: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_at_work(self) -> bool:
        """Whether it is at work, as far as is known."""
        return self.state in ("running", UNSEEN)


@dataclass(frozen=True)
class Host:
    """A host, by the name that it gives itself, with its runs, oldest first."""

    host: str
    runs: Sequence[HostRun]

    @property
    def at_work(self) -> list[HostRun]:
        """The runs that are at work, as far as is known."""
        return [run for run in self.runs if run.is_at_work]

    def total(self, name: str) -> int:
        """Return the sum of a number of all runs."""
        return sum(getattr(run, name) for run in self.runs)

    def rate(self, name: str) -> float:
        """Return the sum of a rate of the runs that are at work."""
        return sum(run.rates[name] for run in self.runs if run.rates is not None)

    def values(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        sums = {name: self.total(name) for name in (*Work._fields, "failures")}
        return {"host": self.host, "at_work": len(self.at_work), **sums, "runs": [asdict(run) for run in self.runs]}


@dataclass
class _Sight:
    """What a run showed last, since when, and whether that was anything new to who looks."""

    shown: Any
    since: float
    is_news: bool = False
    done: list[tuple[float, Work]] = field(default_factory=list)


class Sightings:
    """What runs have shown to one who looks again and again, by the clock of who looks.

    Args:
        clock: Seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, _Sight] = {}

    def look(self, run: str, shown: Any, done: Work) -> None:
        """Note what a run shows now, and what it has done."""
        now = self._clock()
        seen = self._seen.setdefault(run, _Sight(shown, now))
        if seen.shown != shown:
            seen.shown, seen.since, seen.is_news = shown, now, True
        seen.done = [row for row in seen.done if row[0] >= now - RECENT_SECONDS] + [(now, done)]

    def silent(self, run: str, recorded: float) -> float:
        """Return for how many seconds a run has shown nothing new.

        Args:
            run: Its id.
            recorded: How long ago it has recorded something by its own clock, which may be wrong.
        """
        seen = self._seen[run]
        watched = self._clock() - seen.since
        return watched if seen.is_news else max(watched, recorded)

    def watched(self, run: str) -> float:
        """Return for how many seconds a run has shown the same."""
        return self._clock() - self._seen[run].since

    def rates(self, run: str) -> dict[str, float] | None:
        """Return what a run has done in a second since a minute ago; None before there are two looks."""
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
    """Return what each host and its runs do, the hosts by name.

    Args:
        store: The ledger, as of its last `refresh`.
        runs: What `shown_runs` gave.
        sightings: What was seen at former looks.
        claims: What launchers say that they have in work; None asks for it.

    Raises:
        StorageError: If the store does not answer.
    """
    sightings = Sightings() if sightings is None else sightings
    said = {found.run: found for found in (read_claims(store) if claims is None else claims)}
    recorded, recent = store.recorded(), store.recorded(recent_since(time.time()))
    urls = store.source_urls({span.source for found in said.values() for span in found.spans[:SHOWN_SPANS]})
    looks = (_HostLook(run, recorded.get(run["id"]), recent.get(run["id"]), said.get(run["id"]), urls) for run in runs)
    named = [(_host(look.found), look.run(sightings)) for look in looks]
    named.sort(key=lambda pair: pair[0])
    return [Host(name, [run for _, run in group]) for name, group in groupby(named, key=lambda pair: pair[0])]


def _host(run: Mapping[str, Any]) -> str:
    return str(run["info"].get("host") or "?")


@dataclass(frozen=True)
class _HostLook:
    """One look at one run."""

    found: Mapping[str, Any]
    recorded: HistoryRow | None
    recent: HistoryRow | None
    said: Claims | None
    urls: Mapping[bytes, str]

    def run(self, sightings: Sightings) -> HostRun:
        info, work = self.found["info"], Work.of(filter(None, [self.recorded]))
        failures = 0 if self.recorded is None else self.recorded.failures
        has_ended = self.found["ended"] is not None
        shown = (work, failures, None if self.said is None else (self.said.number, self.said.spans))
        sightings.look(self.found["id"], shown, work)
        silent = None if has_ended else sightings.silent(self.found["id"], self._recorded())
        state = self._state(sightings, silent)
        rates = None
        if state in ("running", UNSEEN):
            rates = sightings.rates(self.found["id"]) or self._recent()
        return HostRun(
            self.found["id"],
            str(info.get("runner") or "?"),
            state,
            info.get("pid"),
            info.get("workers"),
            self.found["began"],
            self.found["ended"],
            *(work.tasks, work.records, work.bytes, work.sources, failures),
            rates,
            silent,
            None if self.said is None or has_ended else len(self.said.spans),
            [] if self.said is None or has_ended else self._in_work(),
        )

    def _recorded(self) -> float:
        """Return how many seconds ago the run has recorded something, by its own clock."""
        last = self.found["began"] if self.recorded is None else self.recorded.time + HISTORY_SECONDS
        return max(0.0, time.time() - max(last, self.found["began"]))

    def _recent(self) -> dict[str, float]:
        """Return what was done in a second of the last minute, by the times that were recorded."""
        now = time.time()
        since = recent_since(now)
        work = Work.of(filter(None, [self.recent]))
        return rates_of(work, now - max(since, min(self.found["began"], now - 1)))

    def _state(self, sightings: Sightings, silent: float | None) -> str:
        state: str = self.found["state"]
        if state != UNSEEN or silent is None:
            return state
        if silent < RECENT_SECONDS:
            return "running"
        is_unknown = self.said is not None and sightings.watched(self.found["id"]) < self.said.seconds
        return UNSEEN if is_unknown else "silent"

    def _in_work(self) -> list[dict[str, Any]]:
        spans = [] if self.said is None else self.said.spans[:SHOWN_SPANS]
        named = ((self.urls.get(span.source, span.source.hex()), span) for span in spans)
        return [{"source": without_secrets(url), "start": span.start, "stop": span.stop} for url, span in named]
