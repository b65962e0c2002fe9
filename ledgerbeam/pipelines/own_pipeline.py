"""Pipelines that users build, under the protection of a ledger: `Pipeline`, `run`, and the runner behind both."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Self, cast, get_args

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.runners.runner import PipelineResult, PipelineRunner, PipelineState

from ledgerbeam.errors import LedgerbeamError, LedgerError, UsageError
from ledgerbeam.io import common_base
from ledgerbeam.io.formats.registry import formats
from ledgerbeam.ledger import code_identity
from ledgerbeam.ledger.model.function_parts import made_of
from ledgerbeam.ledger.model.job import Json, OnJobChange
from ledgerbeam.ledger.worker.writer import INTERVAL
from ledgerbeam.pipelines.console import Reporter, count
from ledgerbeam.pipelines.jobs.listing import listed_pages
from ledgerbeam.pipelines.jobs.opening import open_job
from ledgerbeam.pipelines.jobs.owner import Existing
from ledgerbeam.pipelines.jobs.pipeline import PipelineJob, graph_text
from ledgerbeam.pipelines.jobs.sources import GraphPasses, ListedFiles
from ledgerbeam.pipelines.runners.beam import check_options, check_reach
from ledgerbeam.pipelines.runners.run import RunOutcome, run_job
from ledgerbeam.redaction import know_environment, know_secrets
from ledgerbeam.transforms.graph_parts import chain_alone, rest_alone
from ledgerbeam.transforms.match import MatchSources
from ledgerbeam.transforms.plan import PlanTasks
from ledgerbeam.transforms.shape import FoundChain, find_chain

__all__ = ["LedgerOptions", "LedgerRunner", "Pipeline", "PipelineRun", "run"]

_SAID = ("output", "to", "functions")
"""Parameters of a job that follow from its pipeline."""


class LedgerOptions(PipelineOptions):
    """What `LedgerRunner` is told by the options of a pipeline, as of a file of Beam YAML."""

    @classmethod
    def _add_argparse_args(cls, parser: Any) -> None:
        parser.add_argument("--ledger", help="URL of the ledger; made if it is not there")
        parser.add_argument("--engine", help="Beam runner that does the work; the local one by default")
        parser.add_argument("--on_job_change", default="refuse", help="refuse, restart or accept")
        parser.add_argument("--existing", help="what becomes of shards of others in the output folder: replace or keep")
        parser.add_argument("--workers", type=int, help="worker processes of the local runner")
        parser.add_argument("--flush_interval", type=float, default=INTERVAL, help="seconds between two commits")


class PipelineRun(PipelineResult):
    """How a pipeline has run.

    Args:
        ledger: URL of the ledger.
        outcome: Of the run.
        failures: The first messages of failed tasks.

    Attributes:
        ledger: URL of the ledger.
        outcome: What the run did, and how far the job is: `status`, `done`, `skipped`, `seconds`.
    """

    def __init__(self, ledger: str, outcome: RunOutcome, failures: Sequence[str] = ()) -> None:
        # Of a pipeline that is only staged there is nothing to wait for, as of a template of Beam's own.
        ended = outcome.is_complete or outcome.submitted
        super().__init__(PipelineState.DONE if ended else PipelineState.FAILED)
        self.ledger = ledger
        self.outcome = outcome
        self._failures = list(failures)

    @property
    def status(self) -> dict[str, Any]:
        """How far the job is, as ``ledgerbeam ledger status --json`` prints it."""
        return self.outcome.status

    def raise_for_failures(self) -> None:
        """Raise if tasks have failed.

        Raises:
            LedgerbeamError: With the first of their messages.
        """
        failed = self.outcome.status["tasks"]["failed"]
        if failed:
            first = "".join(f"\n  {message}" for message in self._failures)
            raise LedgerbeamError(
                f"{count(failed, 'task')} failed; run the pipeline again to retry; to see all: ledgerbeam ledger "
                f"failures {self.ledger}{first}"
            )


class LedgerRunner(PipelineRunner):
    """A Beam runner that protects a pipeline by a ledger, and leaves the work to another runner.

    Without another one, that is the local runner with its watched workers. What is None is taken from the options of
    the pipeline: `ledger`, `job_name`, `on_job_change`, `existing`, `workers`, `flush_interval` and `engine`. So any
    program of Beam that takes options can be told ``--runner=ledgerbeam.LedgerRunner --ledger=... --job_name=...``.

    Args:
        ledger: URL of the ledger; by default a folder below ``.ledgerbeam`` in the working folder.
        name: Of what the pipeline does. It is a part of the job's identity.
        parameters: What else shapes the outputs: the ledger of a job with others is refused.
        on_job_change: What to do with the ledger of another job: ``refuse``, ``restart`` or ``accept``.
        existing: What to do with shards of others in the output folder: ``replace``, ``keep``; None refuses them.
        workers: Worker processes of the local runner; by default one for each core.
        storage_options: How stores are reached; passed to fsspec unchanged.
        flush_interval: Longest time that a completion waits for its commit, in seconds.
        progress: Whether lines of progress go to standard error.
    """

    def __init__(
        self,
        *,
        ledger: str | None = None,
        name: str | None = None,
        parameters: Mapping[str, Json] | None = None,
        on_job_change: OnJobChange | None = None,
        existing: Existing | None = None,
        workers: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        flush_interval: float | None = None,
        progress: bool = True,
    ) -> None:
        super().__init__()
        self._ledger = ledger
        self._name = name
        self._parameters = dict(parameters or {})
        self._on_job_change = on_job_change
        self._existing = existing
        self._workers = workers
        self._storage_options = dict(storage_options or {})
        self._flush_interval = flush_interval
        self._progress = progress

    def run_pipeline(self, pipeline: beam.Pipeline, options: PipelineOptions) -> PipelineRun:
        """Run a pipeline to its end.

        Raises:
            UnsupportedShapeError: If the ledger could not protect it. Nothing was started.
            JobMismatchError: If the ledger is of another job.
            LedgerbeamError: What ended the run early. All that was recorded stays recorded.
            KeyboardInterrupt: If it was interrupted; the state is saved.
        """
        know_environment()
        know_secrets(self._storage_options)
        asked = options.view_as(LedgerOptions)
        on_change = _chosen("on_job_change", self._on_job_change or asked.on_job_change, get_args(OnJobChange))
        existing = _chosen("existing", self._existing or asked.existing, (None, *get_args(Existing)))
        beam_args = _words(options)
        job = self._job(pipeline, options).resolve_ledger(self._ledger or asked.ledger)
        if beam_args:
            check_options(beam_args)
            check_reach(job, beam_args)
        reporter = Reporter(as_json=True, quiet=not self._progress)  # standard output is the program's
        with reporter.progress():
            say = reporter.warn if self._progress else _keep_silent
            pages = listed_pages(job, say)
            opened = open_job(job, cast(OnJobChange, on_change), cast(Existing | None, existing), say)
            say(f"ledger: {opened.job.ledger} ({opened.state})")
            outcome = run_job(opened.job, opened.store, pages, reporter, beam_args, owner=opened.owner)
        if outcome.interrupted:
            raise KeyboardInterrupt
        left = outcome.status["sources"]["open"]
        if left and not outcome.submitted:
            raise LedgerError(
                f"{job.ledger}: {count(left, 'source')} left open, though nothing failed: a transform between "
                "ReadTasks and WriteTasks has dropped tasks, or another run has taken the ledger over; let a function "
                "of ProcessTask return None for what is to be left out, then run the pipeline again"
            )
        failures = [row.error or row.reason for row, _ in zip(opened.store.failures(), range(3), strict=False)]
        return PipelineRun(job.ledger, outcome, failures)

    def _job(self, pipeline: beam.Pipeline, options: PipelineOptions) -> PipelineJob:
        asked = options.view_as(LedgerOptions)
        name = self._name or options.get_all_options(retain_unknown_options=True).get("job_name")
        if not name:
            raise UsageError("the pipeline has no name: give one with name=..., or with the option --job_name")
        taken = sorted(set(self._parameters) & set(_SAID))
        if taken:
            raise UsageError(f"parameters: {', '.join(taken)} follow from the pipeline; leave them out")
        chain = find_chain(pipeline)
        graph = pipeline.to_runner_api()
        to = chain.write.to
        return PipelineJob(
            name=name,
            output=chain.write.output,
            to=to if isinstance(to, str) else _described(to),
            functions=_made_of(chain),
            given=self._parameters,
            whole=graph_text(graph.SerializeToString()),
            chain=graph_text(chain_alone(graph, chain.labels).SerializeToString()),
            rest=graph_text(rest_alone(graph, chain.labels).SerializeToString()) if chain.goes_on else None,
            storage_options=self._storage_options,
            workers=self._workers or asked.workers or len(os.sched_getaffinity(0)),
            flush_interval=self._flush_interval or asked.flush_interval,
            import_path=tuple(map(os.path.abspath, sys.path)),
            files=_files(chain.match, chain.plan),
            passes=_passes(chain.match, chain.plan),
        )


class Pipeline(beam.Pipeline):
    """A Beam pipeline that goes on where it was when it is started again.

        with ledgerbeam.Pipeline(ledger="progress", name="clean") as pipeline:
            pipeline | MatchSources("texts/*.jsonl") | SkipCompleted() | ... | CommitTasks()

    Its chain from `MatchSources` to `CommitTasks` gets the ledger from it. With the local runner workers are watched,
    sources run in waves, and tasks that end their workers again and again are set aside; with every runner runs are
    recorded, and outputs that are out of date removed. At the end `result` is a `PipelineRun`.

    Args:
        ledger: As of `LedgerRunner`, as are the others.
        name: Likewise.
        options: Beam options: words, or `PipelineOptions`; ``--runner`` chooses another runner than the local one.
        parameters: As of `LedgerRunner`.
        on_job_change: Likewise.
        existing: Likewise.
        workers: Likewise.
        storage_options: Likewise.
        flush_interval: Likewise.
        progress: Likewise.
    """

    result: PipelineRun

    def __enter__(self) -> Self:
        """Return the pipeline, which runs at the end of the ``with`` statement."""
        super().__enter__()
        return self

    def __init__(
        self,
        *,
        ledger: str | None = None,
        name: str | None = None,
        options: Sequence[str] | PipelineOptions = (),
        parameters: Mapping[str, Json] | None = None,
        on_job_change: OnJobChange | None = None,
        existing: Existing | None = None,
        workers: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        flush_interval: float | None = None,
        progress: bool = True,
    ) -> None:
        runner = LedgerRunner(
            ledger=ledger,
            name=name,
            parameters=parameters,
            on_job_change=on_job_change,
            existing=existing,
            workers=workers,
            storage_options=storage_options,
            flush_interval=flush_interval,
            progress=progress,
        )
        given = options if isinstance(options, PipelineOptions) else PipelineOptions(list(options))
        super().__init__(runner, given)


def run(
    pipeline: beam.Pipeline,
    *,
    ledger: str | None = None,
    name: str | None = None,
    parameters: Mapping[str, Json] | None = None,
    on_job_change: OnJobChange | None = None,
    existing: Existing | None = None,
    workers: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    flush_interval: float | None = None,
    progress: bool = True,
) -> PipelineRun:
    """Run a pipeline that was built with `beam.Pipeline`, under the protection of a ledger.

    Args:
        pipeline: Not yet run, and not used in a ``with`` statement, which would run it. Its options choose the runner.
        ledger: As of `LedgerRunner`, as are the others.
        name: Likewise.
        parameters: Likewise.
        on_job_change: Likewise.
        existing: Likewise.
        workers: Likewise.
        storage_options: Likewise.
        flush_interval: Likewise.
        progress: Likewise.

    Raises:
        LedgerbeamError: As `LedgerRunner.run_pipeline`.
    """
    pipeline.runner = LedgerRunner(
        ledger=ledger,
        name=name,
        parameters=parameters,
        on_job_change=on_job_change,
        existing=existing,
        workers=workers,
        storage_options=storage_options,
        flush_interval=flush_interval,
        progress=progress,
    )
    return cast(PipelineRun, pipeline.run())


def _keep_silent(line: str) -> None:
    del line


def _words(options: PipelineOptions) -> list[str]:
    """Return options as words of a command line, without those of `LedgerRunner`; its engine is the runner."""
    found = options.get_all_options(drop_default=True, retain_unknown_options=True)
    engine = found.get("engine")
    own = LedgerOptions().get_all_options(current_only=True)
    kept = {name: value for name, value in found.items() if name not in own}
    runner = str(options.view_as(StandardOptions).runner or "")
    if runner.rpartition(".")[2] == LedgerRunner.__name__:
        del kept["runner"]
    if engine:
        kept["runner"] = engine
    kept["experiments"] = [word for word in kept.get("experiments") or () if word != "beam_fn_api"]  # Beam adds it
    words: list[str] = PipelineOptions.from_dictionary(kept)._flags  # noqa: SLF001 - as they were given
    return words


def _chosen(name: str, value: Any, choices: Sequence[Any]) -> Any:
    if value not in choices:
        raise UsageError(f"{name}: expected one of {', '.join(map(str, filter(None, choices)))}, found {value!r}")
    return value


def _sizes(plan: PlanTasks) -> dict[str, int]:
    sizes = {"task_records": plan.task_records, "task_bytes": plan.task_bytes}
    return {name: size for name, size in sizes.items() if size is not None}


def _passes(match: MatchSources, plan: PlanTasks) -> GraphPasses | None:
    """Return the passes of a graph that a chain reads; None if it reads files."""
    if match.graph is None:
        return None
    return GraphPasses(reference=match.graph, made_of=made_of(match.graph), epochs=match.epochs, **_sizes(plan))


def _files(match: MatchSources, plan: PlanTasks) -> ListedFiles | None:
    """Return the files that a chain reads; None if it reads passes of a graph."""
    if match.graph is not None:
        return None
    if not match.patterns and not match.sources_from:
        raise UsageError("MatchSources: give patterns, or sources_from, or graph")
    patterns = tuple(f"{pattern.rstrip('/')}/*" for pattern in match.patterns) if match.shar else match.patterns
    base = match.base or common_base(patterns)
    return ListedFiles(
        patterns=patterns,
        sources_from=match.sources_from,
        base=base and base.rstrip("/") + "/",
        index_root=match.index_root,
        build_index=match.build_index,
        group="pairs" if match.shar else match.group,
        pack_bytes=match.pack,
        read_as="shar" if match.shar else None,
        columns=match.columns,
        **_sizes(plan),  # type: ignore[arg-type] # they are sizes of tasks
    )


def _made_of(chain: FoundChain) -> dict[str, Any]:
    """Return what the functions of a chain are made of; those that say it themselves are asked."""
    found: dict[str, Any] = {}
    plain = []
    for function in chain.functions:
        if callable(says := getattr(function, "identity", None)) and not isinstance(function, type):
            found[repr(function)] = says()
        elif not (isinstance(function, type) and function.__module__.startswith("ledgerbeam.")):
            plain.append(function)
    return {**found, **code_identity(*plain)}


def _described(encoder: Any) -> str:
    """Return what describes an encoder, the same in every process."""
    named = [name for name, known in formats().items() if known == encoder]
    if named:
        return named[0]
    kind = type(encoder)
    says = "__repr__" in {name for base in kind.__mro__[:-1] for name in vars(base)}
    return repr(encoder) if says else f"{kind.__module__}.{kind.__qualname__}"
