"""The plan of a flow: the work of the next run, by step and by reason. Planning writes nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ledgerbeam._base.redaction import printable, without_secrets
from ledgerbeam.errors import SourceNotFoundError
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.ledger import Source
from ledgerbeam.ledger.model.identity import content_version
from ledgerbeam.pipelines.console.run_progress import count
from ledgerbeam.pipelines.flows.step import PreparedStep, errors_at
from ledgerbeam.pipelines.jobs.claim import open_if_there
from ledgerbeam.pipelines.jobs.listing import listed_pages, listed_sources
from ledgerbeam.pipelines.jobs.sources import listed_files
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.outputs.recorded import lost_sources
from ledgerbeam.pipelines.preview.dry_run import KnownSources
from ledgerbeam.pipelines.runners.stage_loop import PreparedCall
from ledgerbeam.sources.kind import BUCKET_SCHEME
from ledgerbeam.sources.listing import RecordedOutputs, is_output, outputs_pages

REASONS = ("new", "changed", "upstream", "code", "options", "failed", "open", "lost")  # why a source is processed
PENDING = ""  # version of an output that a run will write; its content is not known yet
_CODE = re.compile(
    r"(?:functions .+? |\S+ )??(?:function|module|code|captured value|watched file)(?: [^:]*)?: (?:was |changed)"
)


@dataclass
class StepPlan:
    """The work of the next run in one step.

    Attributes:
        name: Name of the step.
        command: Its command.
        ledger: URL of its ledger.
        output: URL of its output folder.
        reasons: Number of sources to process, by reason; see `REASONS`.
        complete: Number of sources that are complete and stay complete.
        withdrawn: Number of sources that are gone. The run removes their outputs.
        is_estimate: Whether the numbers depend on outputs that earlier steps have not written yet. Outputs that are
            written again with the same content cause no work, so the numbers can be smaller.
        differences: Differences from the job in the ledger; see `Job.differences`.
        is_finished: Whether the last run left no work.
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
        """Number of sources to process."""
        return sum(self.reasons.values())

    @property
    def is_complete(self) -> bool:
        """Whether a run would do nothing."""
        return not self.sources and not self.withdrawn and self.is_finished

    def as_json(self) -> dict[str, Any]:
        """Return the plan as a JSON object."""
        reasons = {reason: self.reasons[reason] for reason in REASONS}
        return {
            "step": self.name,
            "command": self.command,
            "ledger": self.ledger,
            "output": self.output,
            "complete": self.is_complete,
            "sources": {"complete": self.complete, **reasons, "withdrawn": self.withdrawn},
            "estimate": self.is_estimate,
            "differences": self.differences,
        }

    def line(self) -> str:
        """Return the plan as one line of text."""
        if self.is_complete:
            return f"{self.name}: nothing to do, {count(self.complete, 'source')} complete"
        if not self.sources and not self.withdrawn:
            return f"{self.name}: no source to do, last run not finished, {count(self.complete, 'source')} complete"
        parts = [f"{self.reasons[reason]:,} {reason}" for reason in REASONS if self.reasons[reason]]
        about = "about " if self.is_estimate else ""
        why = f" ({', '.join(parts)})" if parts else ""
        gone = f", {self.withdrawn:,} withdrawn" if self.withdrawn else ""
        return f"{self.name}: {about}{count(self.sources, 'source')} to do{why}, {self.complete:,} complete{gone}"


@dataclass(frozen=True)
class FlowPlan:
    """The work of the next run of a flow.

    Attributes:
        flow: Name of the flow in messages.
        steps: The plan of each step, in order.
    """

    flow: str
    steps: Mapping[str, StepPlan]

    @property
    def is_complete(self) -> bool:
        """Whether a run would do nothing."""
        return all(step.is_complete for step in self.steps.values())

    def as_json(self) -> dict[str, Any]:
        """Return the plan as a JSON object."""
        steps = [step.as_json() for step in self.steps.values()]
        return {"flow": self.flow, "complete": self.is_complete, "steps": steps}

    def lines(self) -> Iterator[str]:
        """Yield the plan as lines of text."""
        for step in self.steps.values():
            yield printable(without_secrets(step.line()))
            yield from (f"  changed: {printable(without_secrets(line))}" for line in step.differences)

    def __str__(self) -> str:
        return "\n".join(self.lines())


def forecast(title: str, steps: Iterable[PreparedStep]) -> FlowPlan:
    """Plan the next run of steps, each after the steps that it reads. Nothing is written. Errors name the step."""
    found: dict[str, _Forecast] = {}
    for step in steps:
        with errors_at(step.step.place):
            found[step.name] = _Forecast(step, found)
    return FlowPlan(title, {name: one.plan for name, one in found.items()})


def job_changes(call: PreparedCall) -> list[str]:
    """Return the differences between the jobs of a call and the jobs in their ledgers, one line for each value.

    Values that a job sets itself when it starts are not compared.
    """
    lines: dict[str, None] = {}
    for job in call.stages():
        store = open_if_there(job, read_only=True)
        stored = None if store is None else store.job()
        if stored is not None:
            decided = ("partition", *job.decisions, *call.job.decisions)
            found = job.with_recorded(stored).identity().differences(stored)
            lines |= dict.fromkeys(line for line in found if not line.startswith(decided))
    return list(lines)


class _Forecast:
    """A forecast for the sources of a step, and for its outputs, which are sources of later steps."""

    plan: StepPlan

    def __init__(self, step: PreparedStep, before: Mapping[str, _Forecast]) -> None:
        self._step, self._before = step, before
        self._call = call = step.call
        self._store = open_if_there(call.job, read_only=True)
        # Whether earlier steps will write columns beside the sources, or datasets that are the sources.
        self._files_change = any(not before[name].plan.is_complete for name in step.reads_files_of)
        if step.problem is not None and not self._files_change:
            raise step.problem
        differences = [] if self._files_change else job_changes(call)
        self._reason = "code" if any(map(_CODE.match, differences)) else "options" if differences else None
        self.plan = StepPlan(
            step.name, step.step.command, call.job.ledger, str(call.job.output), differences=differences
        )
        self.fresh = 0  # estimated number of outputs of new sources
        self._lost: set[bytes] = set()
        if self._store is not None and self._reason is None and call.job.keeps_shards:
            self._lost = lost_sources(call.job, self._store)
        self._readers = [self._read(reader) for reader in call.readers()]
        status = None if self._store is None else self._store.status()
        is_single = not call.has_stages
        is_ended = is_single or self._has_reached_its_end()
        self.plan.is_finished = is_ended and status is not None and bool(status["complete"]) and self._is_made()
        if not is_single:
            self._spread(status)
        if not is_single and call.command != "dedup" and self._store is not None and self._store.output_count():
            self.fresh = 0  # records of new sources go into existing buckets
        # Outputs that depend on all sources are written again if one source is processed.
        self._is_made_again = not is_single and bool(self.plan.sources or self.plan.withdrawn)

    def _read(self, reader: JobSpec) -> KnownSources:
        """Count the sources of a job by reason, and return the sources that its ledger has recorded."""
        store = open_if_there(reader, read_only=True)
        known = KnownSources(store)
        if self._files_change:
            self._read_before_change(reader, known)
        else:
            for sources in listed_sources(reader, self._pages(reader)):
                for source, state, _ in known.states(sources):
                    self._count(reader, source, state)
        for outputs in self._read_from(reader):
            fresh = self._before[self._step.reads[outputs]].fresh
            self.plan.reasons["upstream"] += fresh
            self.fresh += fresh
            self.plan.is_estimate |= fresh > 0
        if self._files_change:
            return known
        # A source that was already gone in the last listing counts only if its outputs are still recorded.
        before = frozenset() if store is None else store.gone_ids()
        owes = not self._call.has_stages
        gone = [row for row in known.gone() if row.source_id not in before or (owes and row.state == "complete")]
        self.plan.withdrawn += len(gone)
        return known

    def _read_before_change(self, reader: JobSpec, known: KnownSources) -> None:
        """Count all sources as work, because they, or the columns beside them, will change."""
        try:
            for page in self._pages(reader):
                for source, state, _ in known.states([*listed_files([page])]):
                    self.plan.reasons["new" if state == "new" else "upstream"] += 1
                    self.fresh += reader.sources().expected_tasks(source) if state == "new" else 0
        except SourceNotFoundError:  # the datasets are not there yet
            self.plan.reasons["upstream"] += len(self._step.waits_for)
        self.plan.is_estimate = True

    def _read_from(self, reader: JobSpec) -> tuple[RecordedOutputs, ...]:
        return getattr(reader.sources(), "recorded", ())

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
        """Return whether the product of the job was made from the present outputs. True for a job without a product."""
        product = self._call.job.product()
        return product is None or self._store is None or product.is_made(self._call.job, self._store)

    def _has_reached_its_end(self) -> bool:
        """Return whether the last run of the step started the last stage. A run starts stages one after the other."""
        stores = (open_if_there(reader, read_only=True) for reader in self._call.readers())
        ran = [store.runs() for store in stores if store is not None]
        last = [] if self._store is None else self._store.runs()
        return bool(last) and all(runs and runs[-1]["began"] <= last[-1]["began"] for runs in ran)

    def _spread(self, status: Mapping[str, Any] | None) -> None:
        """Count all sources of a step with several stages as work, if a later stage has work left."""
        if self._lost:
            why = "lost"
        elif self.plan.sources or self.plan.withdrawn or self.plan.is_finished:
            return
        else:
            why = "failed" if status is not None and status["tasks"]["failed"] else "open"
        self.plan.reasons[why] += self.plan.complete
        self.plan.complete = 0

    def outputs(self, outputs: RecordedOutputs) -> Iterator[Page]:
        """Yield the known outputs after the next run. An output that the run will write has the version `PENDING`."""
        found: list[tuple[str, int, str]] = []
        for page in () if self._store is None else self._store.content_columns():
            stay = self._staying(page.source_ids)
            # Outputs that do not stay are removed with their sources, or written again.
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
        """Return for each source whether its outputs stay unchanged."""
        if self._call.has_stages:
            return [not self._is_made_again] * len(sources)
        if self._reason is not None or self._files_change:
            return [False] * len(sources)
        (known,) = self._readers
        stay: list[bool] = known.staying(sources).tolist()
        return [stays and source not in self._lost for source, stays in zip(sources, stay, strict=True)]

    def _is_listed(self, source: bytes, url: str) -> bool:
        """Return whether the source of an output still exists, or is a bucket."""
        is_there = any(known.lists(url) for known in self._readers)
        return is_there or url.startswith(BUCKET_SCHEME) or any(known.staying([source])[0] for known in self._readers)
