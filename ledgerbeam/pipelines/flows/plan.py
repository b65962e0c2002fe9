"""What a run of a flow would do, step by step and why, found out by reading alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ledgerbeam._base.redaction import printable, without_secrets
from ledgerbeam.errors import LedgerNotFoundError
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.ledger import LedgerStore, Source
from ledgerbeam.ledger.model.identity import content_version
from ledgerbeam.ledger.opening import open_store
from ledgerbeam.pipelines.console.run_progress import count
from ledgerbeam.pipelines.flows.step import PreparedStep, said_of
from ledgerbeam.pipelines.jobs.listing import listed_pages, listed_sources
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.outputs.recorded import lost_sources
from ledgerbeam.pipelines.preview.dry_run import KnownSources
from ledgerbeam.pipelines.runners.prepared_call import PreparedCall
from ledgerbeam.sources.kind import BUCKET_SCHEME
from ledgerbeam.sources.listing import RecordedOutputs, is_output, outputs_pages

REASONS = ("new", "changed", "upstream", "code", "options", "failed", "open", "lost")
"""Why a source runs."""

PENDING = ""
"""The version of an output that a run would write again: nobody knows its content yet."""

_CODE = re.compile(r"(?:\S+ )??(?:function|module|code|captured value|watched file)(?: [^:]*)?: (?:was |changed)")


@dataclass
class StepPlan:
    """What a run would do in one step.

    Attributes:
        name: Of the step.
        command: Its command.
        ledger: URL of its ledger.
        output: Where its outputs lie.
        reasons: How many sources would run, by the reasons of `REASONS`.
        complete: How many sources are complete, and stay so.
        withdrawn: How many sources are gone, whose outputs would go, too.
        is_estimate: Whether earlier steps decide how many there are: then it is about so many, and outputs that are
            written again with the same content start nothing.
        differences: In what the step differs from what its ledger holds; see `Job.differences`.
        is_finished: Whether its last run has done all that there was.
    """

    name: str
    command: str
    ledger: str
    output: str
    reasons: Counter[str] = field(default_factory=Counter)
    complete: int = 0
    withdrawn: int = 0
    is_estimate: bool = False
    differences: list[str] = field(default_factory=list)
    is_finished: bool = False

    @property
    def sources(self) -> int:
        """How many sources would run."""
        return sum(self.reasons.values())

    @property
    def is_complete(self) -> bool:
        """Whether a run would do nothing."""
        return not self.sources and not self.withdrawn and self.is_finished

    def as_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "step": self.name,
            "command": self.command,
            "ledger": self.ledger,
            "output": self.output,
            "complete": self.is_complete,
            "sources": {
                "complete": self.complete,
                **{reason: self.reasons[reason] for reason in REASONS},
                "withdrawn": self.withdrawn,
            },
            "estimate": self.is_estimate,
            "differences": self.differences,
        }

    def line(self) -> str:
        """Return it as a line."""
        if self.is_complete:
            return f"{self.name}: nothing to do, {count(self.complete, 'source')} complete"
        if not self.sources and not self.withdrawn:
            return f"{self.name}: to be finished, {count(self.complete, 'source')} complete"
        parts = [f"{self.reasons[reason]:,} {reason}" for reason in REASONS if self.reasons[reason]]
        about = "about " if self.is_estimate else ""
        why = f" ({', '.join(parts)})" if parts else ""
        gone = f", {self.withdrawn:,} withdrawn" if self.withdrawn else ""
        return f"{self.name}: {about}{count(self.sources, 'source')} to do{why}, {self.complete:,} complete{gone}"


@dataclass(frozen=True)
class FlowPlan:
    """What a run of a flow would do.

    Attributes:
        flow: What messages call the flow.
        steps: Of each step, in order.
    """

    flow: str
    steps: Mapping[str, StepPlan]

    @property
    def is_complete(self) -> bool:
        """Whether a run would do nothing."""
        return all(step.is_complete for step in self.steps.values())

    def as_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "flow": self.flow,
            "complete": self.is_complete,
            "steps": [step.as_json() for step in self.steps.values()],
        }

    def lines(self) -> Iterator[str]:
        """Yield it as lines for people."""
        for step in self.steps.values():
            yield printable(without_secrets(step.line()))
            yield from (f"  changed: {printable(without_secrets(line))}" for line in step.differences)

    def __str__(self) -> str:
        return "\n".join(self.lines())


def forecast(title: str, steps: Iterable[PreparedStep]) -> FlowPlan:
    """Return what a run of steps would do, and why. Nothing is written.

    Args:
        title: Name of the flow in messages.
        steps: The steps, each after those that it reads.

    Raises:
        LedgerbeamError: The sources of a step cannot be listed; the message names the step.
    """
    found: dict[str, _Forecast] = {}
    for step in steps:
        with said_of(step.step.place):
            found[step.name] = _Forecast(step, found)
    return FlowPlan(title, {name: one.plan for name, one in found.items()})


def job_changes(call: PreparedCall) -> list[str]:
    """Return in what the jobs of a call differ from those that their ledgers hold, a line for each value.

    What is decided as a job begins is left out.
    """
    lines: dict[str, None] = {}
    for job in call.stages():
        store = _store_of(job)
        stored = None if store is None else store.job()
        if stored is not None:
            decided = ("partition", *job.decisions, *call.job.decisions)
            found = job.with_recorded(stored).identity().differences(stored)
            lines |= dict.fromkeys(line for line in found if not line.startswith(decided))
    return list(lines)


def _store_of(job: JobSpec) -> LedgerStore | None:
    try:
        return open_store(job.ledger, job.storage_options, create=False, read_only=True)
    except LedgerNotFoundError:
        return None


class _Forecast:
    """What becomes of the sources of a step, and of its outputs, which are the sources of later ones.

    Args:
        step: The step.
        before: Of the steps before it.

    Attributes:
        plan: What a run would do.
        fresh: About how many outputs there would be of sources that are not known yet.
    """

    def __init__(self, step: PreparedStep, before: Mapping[str, _Forecast]) -> None:
        self._step, self._before = step, before
        self._call = call = step.call
        self._store = _store_of(call.job)
        differences = job_changes(call)
        self._reason = "code" if any(map(_CODE.match, differences)) else "options" if differences else None
        self.plan = StepPlan(step.name, call.command, call.job.ledger, str(call.job.output), differences=differences)
        self.fresh = 0
        self._lost = self._lost_sources()
        self._readers = [self._read(reader) for reader in call.readers()]
        status = None if self._store is None else self._store.status()
        is_single = not call.has_stages
        is_ended = is_single or self._has_reached_its_end()
        self.plan.is_finished = is_ended and status is not None and bool(status["complete"]) and self._is_made()
        if not is_single:
            self._spread(status)
        if not is_single and call.command != "dedup" and self._store is not None and self._store.output_count():
            self.fresh = 0  # new sources go to buckets that are there
        # What is made of all sources is made again if one of them runs.
        self._is_made_again = not is_single and bool(self.plan.sources or self.plan.withdrawn)

    def _lost_sources(self) -> set[bytes]:
        job, store = self._call.job, self._store
        is_asked = store is not None and self._reason is None and job.keeps_shards
        return lost_sources(job, store) if is_asked and store is not None else set()

    def _read(self, reader: JobSpec) -> KnownSources:
        """Count what becomes of the sources of a job that reads them."""
        store = _store_of(reader)
        known = KnownSources(store)
        for sources in listed_sources(reader, self._pages(reader)):
            for source, state, _ in known.states(sources):
                self._count(reader, source, state)
        for outputs in self._read_from(reader):
            fresh = self._before[self._step.reads[outputs]].fresh
            self.plan.reasons["upstream"] += fresh
            self.fresh += fresh
            self.plan.is_estimate |= fresh > 0
        # What was gone in the last listing, too, is withdrawn already, once its outputs are.
        before = frozenset() if store is None else store.gone_ids()
        owes = not self._call.has_stages
        gone = [row for row in known.gone() if row.source_id not in before or (owes and row.state == "complete")]
        self.plan.withdrawn += len(gone)
        return known

    def _read_from(self, reader: JobSpec) -> tuple[RecordedOutputs, ...]:
        found: tuple[RecordedOutputs, ...] = getattr(reader.sources(), "recorded", ())
        return found

    def _pages(self, reader: JobSpec) -> Iterator[Page]:
        recorded = self._read_from(reader)
        if not recorded:
            yield from listed_pages(reader, lambda _: None)
        for outputs in recorded:
            yield from self._before[self._step.reads[outputs]].outputs(outputs)

    def _count(self, reader: JobSpec, source: Source, state: str) -> None:
        versions = [member.version for member in source.members] or [source.version]
        from_upstream = bool(self._read_from(reader))
        is_pending = from_upstream and PENDING in versions
        self.plan.is_estimate |= is_pending
        if state == "new":
            self.fresh += reader.sources().expected_tasks(source)
        if state in ("new", "changed"):
            state = "upstream" if from_upstream else state
        elif self._reason is not None:
            state = self._reason
        elif state == "complete":
            if source.id not in self._lost or self._call.has_stages:
                self.plan.complete += 1
                return
            state = "lost"
        self.plan.reasons[state] += 1

    def _is_made(self) -> bool:
        """Return whether what is made of all outputs is made of those that there are."""
        product = self._call.job.product()
        return product is None or self._store is None or product.is_made(self._call.job, self._store)

    def _has_reached_its_end(self) -> bool:
        """Return whether the last stage has run since the first ones have: each run comes to each of them in turn."""
        ran = [store.runs() for store in map(_store_of, self._call.readers()) if store is not None]
        last = [] if self._store is None else self._store.runs()
        return bool(last) and all(runs and runs[-1]["began"] <= last[-1]["began"] for runs in ran)

    def _spread(self, status: Mapping[str, Any] | None) -> None:
        """Count all sources of a step of several stages as to be done, if more than their own stage has work left."""
        if self._lost:
            why = "lost"
        elif self.plan.sources or self.plan.withdrawn or self.plan.is_finished:
            return
        else:
            why = "failed" if status is not None and status["tasks"]["failed"] else "open"
        self.plan.reasons[why] += self.plan.complete
        self.plan.complete = 0

    def outputs(self, outputs: RecordedOutputs) -> Iterator[Page]:
        """Yield the outputs that there will be, as far as they are known; `PENDING` for those that a run writes."""
        found: list[tuple[str, int, str]] = []
        for page in () if self._store is None else self._store.content_columns():
            stay = self._staying(page.source_ids)
            # Of those that do not stay, some go with their sources, and the others are written again.
            unsure = {source for source, stays in zip(page.source_ids, stay, strict=True) if not stays}
            urls = self._store.source_urls(unsure) if unsure and self._store is not None else {}
            again = {source for source, url in urls.items() if self._is_listed(source, url)}
            for source, stays, name, size, checksum, route in zip(
                page.source_ids, stay, page.names, page.sizes, page.checksums, page.routes, strict=True
            ):
                if is_output(outputs, name, route) and (stays or source in again):
                    found.append((name, size, content_version(checksum) if stays else PENDING))
        return outputs_pages(outputs, found)

    def _staying(self, sources: Sequence[bytes]) -> Sequence[bool]:
        """Return for each source whether what has come of it stays as it is."""
        if self._call.has_stages:
            return [not self._is_made_again] * len(sources)
        if self._reason is not None:
            return [False] * len(sources)
        (known,) = self._readers
        stay: list[bool] = known.staying(sources).tolist()
        return [stays and source not in self._lost for source, stays in zip(sources, stay, strict=True)]

    def _is_listed(self, source: bytes, url: str) -> bool:
        """Return whether the source of an output is still there, or is a bucket."""
        is_there = any(known.lists(url) for known in self._readers)
        return is_there or url.startswith(BUCKET_SCHEME) or any(known.staying([source])[0] for known in self._readers)
