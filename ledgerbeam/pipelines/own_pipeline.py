"""Pipelines that users build, under the protection of a ledger: `Pipeline`, `run`, and the runner behind both."""

from __future__ import annotations

import argparse
import base64
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, cast

import apache_beam as beam
from apache_beam.internal.cloudpickle import cloudpickle
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.runners.runner import PipelineResult, PipelineRunner, PipelineState

from ledgerbeam.errors import LedgerbeamError, UsageError
from ledgerbeam.io.exchange.order import By
from ledgerbeam.io.formats.registry import format_named, formats
from ledgerbeam.ledger.model.job import Json, OnJobChange
from ledgerbeam.ledger.opening import open_store
from ledgerbeam.pipelines.calls.beginning import begin_call, call
from ledgerbeam.pipelines.calls.exchange_values import key_choice
from ledgerbeam.pipelines.calls.job_values import file_sources, run_values
from ledgerbeam.pipelines.calls.result import Result
from ledgerbeam.pipelines.exchange.buckets import remove_internal
from ledgerbeam.pipelines.exchange.partition import KeyChoice
from ledgerbeam.pipelines.exchange.pipeline_exchange import GatheredRuns, ScatterChoice
from ledgerbeam.pipelines.jobs.audit_share import audit_text
from ledgerbeam.pipelines.jobs.pipeline import PipelineJob, proto_text
from ledgerbeam.pipelines.jobs.sources import GraphPasses, ListedFiles
from ledgerbeam.pipelines.outputs.owner import Existing, has_kept_nothing
from ledgerbeam.pipelines.runners.prepared_call import job_result
from ledgerbeam.pipelines.runners.run_options import RunOptions
from ledgerbeam.transforms.chain.match import MatchSources
from ledgerbeam.transforms.chain.pipeline_parts import chain_alone, rest_alone
from ledgerbeam.transforms.chain.plan import PlanTasks
from ledgerbeam.transforms.chain.shape import FoundChain, find_chain
from ledgerbeam.transforms.exchange.gather import Gather, GroupRecords
from ledgerbeam.transforms.exchange.scatter import Scatter
from ledgerbeam.transforms.mapping.function import MapRecords
from ledgerbeam.user_code.functions import code_identity, made_of

_SAID = ("output", "to", "functions", "scatter", "partition")
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
        parser.add_argument("--audit", help="share of the finished tasks that are computed again, or off")
        parser.add_argument("--flush_interval", type=float, default=1.0, help="seconds between two commits")


class PipelineRun(PipelineResult):
    """How a pipeline has run.

    Args:
        outcome: Of its job.

    Attributes:
        outcome: Of its job, as of those of the command line: what the run did, its outputs and failures, the ledger.
    """

    def __init__(self, outcome: Result) -> None:
        # Of a pipeline that is only staged there is nothing to wait for, as of a template of Beam's own.
        ended = outcome.complete or outcome.summary["submitted"]
        super().__init__(PipelineState.DONE if ended else PipelineState.FAILED)
        self.outcome = outcome

    @property
    def status(self) -> Mapping[str, Any]:
        """How far the job is: numbers of ``sources``, ``tasks`` and ``records``; what the run did is under ``done``."""
        return self.outcome.summary

    def raise_for_failures(self) -> Self:
        """Return how the pipeline has run if nothing failed.

        Raises:
            TasksFailedError: If tasks failed, or outputs are not as they should be; the message has the first errors.
        """
        self.outcome.raise_for_failures()
        return self


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
        audit: Share of the finished tasks whose `MapRecords` or `GroupRecords` is computed again in a fresh process, to
            see that results depend on their records only: ``"5%"``, 0.05, or ``"off"``. None for 1 %, at least two
            tasks, as far as it takes at most 2 % of the time of the workers. Chains with other functions are not
            audited.
        progress: Whether progress is shown on standard error; None shows it on a terminal and in a notebook.
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
        audit: str | float | None = None,
        progress: bool | None = None,
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
        self._audit = audit
        self._progress = progress

    def run_pipeline(self, pipeline: beam.Pipeline, options: PipelineOptions) -> PipelineRun:
        """Run a pipeline to its end.

        Raises:
            UnsupportedShapeError: If the ledger could not protect it. Nothing was started.
            JobMismatchError: If the ledger is of another job.
            LedgerbeamError: What ended the run early. All that was recorded stays recorded.
            KeyboardInterrupt: If it was interrupted; the state is saved.
        """
        asked = options.view_as(LedgerOptions)
        outcome = _outcome(
            pipeline,
            options,
            ledger=self._ledger or asked.ledger,
            name=self._name or options.get_all_options(retain_unknown_options=True).get("job_name"),
            parameters=self._parameters,
            on_job_change=self._on_job_change or asked.on_job_change,
            existing=self._existing or asked.existing,
            workers=self._workers or asked.workers,
            storage_options=self._storage_options,
            flush_interval=self._flush_interval or asked.flush_interval,
            audit=asked.audit if self._audit is None else self._audit,
            progress=self._progress,
        )
        return PipelineRun(outcome)


@call
def _outcome(
    pipeline: beam.Pipeline,
    options: PipelineOptions,
    *,
    ledger: str | None,
    name: str | None,
    parameters: Mapping[str, Json],
    on_job_change: OnJobChange,
    existing: Existing | None,
    workers: int | None,
    storage_options: dict[str, Any],
    flush_interval: float,
    audit: str | float | None,
    progress: bool | None,
) -> Result:
    if not name:
        raise UsageError("the pipeline has no name: give one with name=..., or with the option --job_name")
    taken = sorted(set(parameters) & set(_SAID))
    if taken:
        raise UsageError(f"parameters: {', '.join(taken)} follow from the pipeline; leave them out")
    chain = find_chain(pipeline)
    match, write = chain.match, chain.write
    places = {"runs": match.runs, "scattered": match.ledger} if isinstance(match, Gather) else {}
    console = begin_call(
        progress, storage_options, patterns=match.patterns, output=write.output, ledger=ledger, **places
    )
    proto = pipeline.to_runner_api()
    scatter = _scatter(write, chain) if isinstance(write, Scatter) else None
    job = PipelineJob(
        name=name,
        output=write.output,
        to=write.to if isinstance(write.to, str) else _described(write.to),
        functions=_made_of(chain),
        given=dict(parameters),
        whole=proto_text(proto),
        chain=proto_text(chain_alone(proto, chain.labels)),
        steps=chain.steps,
        rest=proto_text(rest_alone(proto, chain.labels)) if chain.has_downstream else None,
        audits=_audits(chain) if scatter is None else None,
        audit=audit_text(audit),
        scatter=scatter,
        **_sources(chain, storage_options, as_read=scatter is not None and scatter.as_read),
        **run_values(storage_options, workers, flush_interval, "warning"),
    )
    how = RunOptions(ledger=ledger, on_job_change=on_job_change, existing=existing, options=_words(options))
    result = job_result(job, how, console)
    if isinstance(match, Gather) and result.complete and not match.keep_runs:
        scattered = open_store(match.ledger, storage_options)
        writers = [scattered.ledger_id()] if has_kept_nothing(scattered) else []
        remove_internal([match.runs], job.resolve_ledger(ledger), writers)
    return result


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
        audit: Likewise.
        progress: Likewise.
    """

    result: PipelineRun

    def __enter__(self) -> Self:
        """Return the pipeline, which runs at the end of the ``with`` statement."""
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Run the pipeline. An error of ours ends the traceback here: the message has all that a user can change."""
        try:
            super().__exit__(kind, error, where)
        except LedgerbeamError as refused:
            raise refused.with_traceback(None) from refused.__cause__

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
        audit: str | float | None = None,
        progress: bool | None = None,
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
            audit=audit,
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
    audit: str | float | None = None,
    progress: bool | None = None,
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
        audit: Likewise.
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
        audit=audit,
        progress=progress,
    )
    try:
        return cast(PipelineRun, pipeline.run())
    except LedgerbeamError as refused:  # as of `Pipeline.__exit__`
        raise refused.with_traceback(None) from refused.__cause__


def _option_names(kind: type[PipelineOptions]) -> set[str]:
    """Return the names of the options that a class adds."""
    parser: Any = argparse.ArgumentParser()
    kind._add_argparse_args(parser)  # noqa: SLF001 - the method of Beam that classes of options define
    return set(vars(parser.parse_args([])))


def _words(options: PipelineOptions) -> list[str]:
    """Return options as words of a command line, without those of `LedgerRunner`; its engine is the runner."""
    found = options.get_all_options(drop_default=True, retain_unknown_options=True)
    engine = found.get("engine")
    own = _option_names(LedgerOptions)
    kept = {name: value for name, value in found.items() if name not in own}
    runner = str(options.view_as(StandardOptions).runner or "")
    if runner.rpartition(".")[2] == LedgerRunner.__name__:
        del kept["runner"]
    if engine:
        kept["runner"] = engine
    kept["experiments"] = [word for word in kept.get("experiments") or () if word != "beam_fn_api"]  # Beam adds it
    words: list[str] = PipelineOptions.from_dictionary(kept)._flags  # noqa: SLF001 - as they were given
    return words


def _scatter(write: Scatter, chain: FoundChain) -> ScatterChoice:
    match = chain.match
    are_files = not isinstance(match, Gather) and match.graph is None and not match.shar
    if write.by is None:
        key = KeyChoice("place")
    else:
        key = key_choice(write.by, write.scheme, descending=write.order.descending, nulls=write.order.nulls)
    cuts = tuple(cut.hex() for cut in write.cuts)
    sizes = {"buckets": write.buckets, "bucket_bytes": write.bucket_bytes}
    return ScatterChoice(key=key, cuts=cuts, as_read=are_files and not chain.functions, **sizes)


def _sources(chain: FoundChain, storage_options: dict[str, Any], *, as_read: bool) -> dict[str, Any]:
    """Return what a pipeline reads, by the names of `PipelineJob`.

    Args:
        chain: Of the pipeline.
        storage_options: Of the stores.
        as_read: Whether records are scattered as they are read, and so with their places.

    Raises:
        ScatterIncompleteError: Not all that is to be gathered is scattered.
        UsageError: The transforms cannot mean anything together.
    """
    match, plan = chain.match, chain.plan
    if isinstance(match, Gather):
        return {"gathered": _gathered(chain, match, storage_options)}
    if match.graph is not None:
        return {"passes": _passes(match.graph, match.epochs, plan)}
    files = _files(match, plan)
    return {"files": replace(files, form="placed") if as_read else files}


def _gathered(chain: FoundChain, match: Gather, storage_options: dict[str, Any]) -> GatheredRuns:
    size = chain.plan.task_bytes
    if chain.plan.task_records is not None or size is None:
        raise UsageError("PlanTasks: behind Gather a task has a size in bytes: give task_bytes, no task_records")
    found = GatheredRuns.found(match.runs, match.ledger, storage_options, task_bytes=size, whole_keys=match.whole_keys)
    for function in chain.functions:
        if isinstance(function, GroupRecords):
            if not match.whole_keys:
                raise UsageError(
                    f"{function!r} takes all records of a key at once: leave whole_keys=False out of Gather"
                )
            _check_key(function, found)
    return found


def _check_key(function: GroupRecords, found: GatheredRuns) -> None:
    """Refuse groups by another key than that by which the records lie together."""
    key = key_choice(cast(By, function.by), "hash")
    for name, value in key.parameters().items():
        if name not in ("order", "exchange") and found.key.get(name) != value:
            raise UsageError(
                f"{function!r}: expected the key by which {found.ledger} has scattered, {found.key.get('by')}, found "
                f"{key}{'' if name == 'by' else ', whose code has changed'}; give both the same"
            )


def _audits(chain: FoundChain) -> str | None:
    """Return the function of a chain that is audited, with the encoder, as `PipelineJob` has it; None if none is."""
    to = chain.write.to
    functions = [one for one in chain.functions if one is not to]
    if len(functions) != 1 or not isinstance(functions[0], MapRecords | GroupRecords):
        return None
    encoder = format_named(to) if isinstance(to, str) else to
    return base64.b85encode(cloudpickle.dumps((functions[0], encoder))).decode("ascii")


def _sizes(plan: PlanTasks) -> dict[str, int]:
    sizes = {"task_records": plan.task_records, "task_bytes": plan.task_bytes}
    return {name: size for name, size in sizes.items() if size is not None}


def _passes(graph: str, epochs: int, plan: PlanTasks) -> GraphPasses:
    return GraphPasses(reference=graph, made_of=made_of(graph), epochs=epochs, **_sizes(plan))


def _files(match: MatchSources, plan: PlanTasks) -> ListedFiles:
    files = file_sources(
        match.patterns,
        match.sources_from,
        group=match.group,
        index_root=match.index_root,
        index_rule="scheme",
        task_bytes=plan.task_bytes or ListedFiles.task_bytes,
        columns=match.columns,
        no_index=not match.build_index,
        base=match.base,
        pack=match.pack,
        read_as="shar" if match.shar else None,
    )
    return replace(files, task_records=plan.task_records)


def _made_of(chain: FoundChain) -> dict[str, Any]:
    """Return what the functions of a chain are made of, and their order; those that say it themselves are asked."""
    own = [
        one for one in chain.functions if type(one).__module__.startswith("ledgerbeam.") and hasattr(one, "identity")
    ]
    says = {id(one): one.identity() for one in own}
    found = code_identity(*(one for one in chain.functions if id(one) not in says))
    names, others = Counter[str](), iter(found["order"])
    said: dict[int, str] = {}
    order = []
    for one in chain.functions:
        if id(one) in says and id(one) not in said:
            names[repr(one)] += 1
            said[id(one)] = repr(one) if names[repr(one)] == 1 else f"{one!r} ({names[repr(one)]})"
        order.append(said[id(one)] if id(one) in says else next(others))
    return {**found, **{name: says[place] for place, name in said.items()}, "order": order}


def _described(encoder: Any) -> str:
    """Return what describes an encoder, the same in every process."""
    named = [name for name, known in formats().items() if known == encoder]
    if named:
        return named[0]
    kind = type(encoder)
    says = "__repr__" in {name for base in kind.__mro__[:-1] for name in vars(base)}
    return repr(encoder) if says else f"{kind.__module__}.{kind.__qualname__}"
