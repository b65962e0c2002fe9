"""Beam pipelines of users that record their progress in a ledger: `Pipeline`, `run` and `LedgerRunner`."""

from __future__ import annotations

import argparse
import base64
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, Unpack, cast

import apache_beam as beam
import cloudpickle
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.runners.runner import PipelineResult, PipelineRunner, PipelineState

from ledgerbeam.errors import LedgerbeamError, UsageError
from ledgerbeam.io.exchange.order import By
from ledgerbeam.io.formats.registry import format_named, formats
from ledgerbeam.ledger.opening import open_store
from ledgerbeam.pipelines.calls.call import (
    begin,
    check_urls,
    errors_without_secrets,
    interruptible,
    public,
    refuse_in_worker,
)
from ledgerbeam.pipelines.calls.call_spec import Argument, CallSpec
from ledgerbeam.pipelines.calls.job_values import file_sources, key_choice, run_values_of
from ledgerbeam.pipelines.calls.options import PipelineRunOptions
from ledgerbeam.pipelines.calls.result import Result
from ledgerbeam.pipelines.exchange.buckets import remove_internal
from ledgerbeam.pipelines.exchange.partition import KeyChoice
from ledgerbeam.pipelines.jobs.checks import audit_text
from ledgerbeam.pipelines.jobs.pipeline import GatheredRuns, PipelineJob, ScatterChoice, proto_text
from ledgerbeam.pipelines.jobs.sources import GraphPasses, ListedFiles
from ledgerbeam.pipelines.outputs.owner import has_kept_nothing
from ledgerbeam.pipelines.runners.run import RunOptions
from ledgerbeam.pipelines.runners.stage_loop import PreparedCall
from ledgerbeam.transforms.exchange.gather import GroupRecords
from ledgerbeam.transforms.mapping.function import MapRecords
from ledgerbeam.transforms.on_beam import Gather, Scatter, WriteColumns
from ledgerbeam.transforms.shape import FoundChain, chain_alone, find_chain, rest_alone
from ledgerbeam.user_code.functions import code_identity, made_of

_RUN = CallSpec(
    "run",
    "",
    PipelineRunOptions,
    (
        Argument(
            "pipeline",
            beam.Pipeline,
            "PIPELINE",
            "pipeline that has not run, and is not used in a `with` statement; its options choose the runner",
            lambda value: value,
        ),
    ),
    is_job=False,
)

_COLUMNS = "schema of columns"  # parameter with the schema of `WriteColumns`
# Parameters of a job that follow from its pipeline.
_SAID = ("output", "to", "functions", "scatter", "partition", _COLUMNS)


class LedgerOptions(PipelineOptions):
    """Options of `LedgerRunner` among the options of a Beam pipeline, such as a pipeline of Beam YAML."""

    @classmethod
    def _add_argparse_args(cls, parser: Any) -> None:
        parser.add_argument("--ledger", help="URL of the ledger; it is created if it does not exist")
        parser.add_argument("--engine", help="Beam runner that runs the pipeline; by default ledgerbeam's local runner")
        parser.add_argument("--on_job_change", default="refuse", help="for a changed job: refuse, restart or accept")
        parser.add_argument("--existing", help="for shards of other jobs in the output folder: replace or keep")
        parser.add_argument("--workers", type=int, help="number of worker processes of the local runner")
        parser.add_argument("--audit", help="share of the finished tasks to run again and compare, such as 5%%, or off")
        parser.add_argument("--answers", help="folder that keeps the answers of ledgerbeam.remember for other jobs")
        parser.add_argument("--rate", action="append", help="most calls of ledgerbeam.remember in a time: 500/min")
        parser.add_argument("--budget", action="append", help="most calls of ledgerbeam.remember in all runs")
        parser.add_argument("--flush_interval", type=float, default=1.0, help="seconds between commits to the ledger")


class PipelineRun(PipelineResult):
    """The result of a pipeline.

    Attributes:
        outcome: The `Result` of the job, with the work of the run, the outputs, the failures and the ledger.
    """

    def __init__(self, outcome: Result) -> None:
        # A pipeline that is only staged has nothing to wait for, as a template of Beam.
        ended = outcome.complete or outcome.summary["submitted"]
        super().__init__(PipelineState.DONE if ended else PipelineState.FAILED)
        self.outcome = outcome

    @property
    def status(self) -> Mapping[str, Any]:
        """Counts of ``sources``, ``tasks`` and ``records`` of the job. Under ``done`` are the counts of this run."""
        return self.outcome.summary

    def raise_for_failures(self) -> Self:
        """Return the result if nothing failed.

        Raises:
            TasksFailedError: Tasks failed, or there are warnings; the message has the first errors.
        """
        self.outcome.raise_for_failures()
        return self


class LedgerRunner(PipelineRunner):
    """A Beam runner that records the progress of a pipeline in a ledger. Another runner does the work.

    The default is the local runner, which replaces dead workers. Options that are not given are read from the
    options of the pipeline; `LedgerOptions` and `job_name` are such options. So a Beam program that takes options runs
    with ``--runner=ledgerbeam.LedgerRunner --ledger=... --job_name=...``.

    Args:
        options: Options of `run`.
    """

    def __init__(self, **options: Unpack[PipelineRunOptions]) -> None:
        super().__init__()
        _RUN.signature.bind(None, **options)
        self._options = options

    def run_pipeline(self, pipeline: beam.Pipeline, options: PipelineOptions) -> PipelineRun:
        """Run a pipeline to its end.

        Raises:
            UnsupportedShapeError: The ledger cannot follow tasks through these transforms. Nothing was started.
            JobMismatchError: The ledger belongs to another job.
            LedgerbeamError: The run ended early. Everything that was recorded stays recorded.
            KeyboardInterrupt: Ctrl-C ended the run; its state is saved.
        """
        asked = options.view_as(LedgerOptions)
        named = options.get_all_options(retain_unknown_options=True).get("job_name")
        return PipelineRun(_outcome(pipeline, options, _merged(self._options, asked, named)))


def _merged(given: PipelineRunOptions, asked: LedgerOptions, name: str | None) -> dict[str, Any]:
    """Return the options given to the runner. Options that were not given come from the options of the pipeline."""
    found: dict[str, Any] = {option: value for option, value in given.items() if value is not None}
    names = ("ledger", "on_job_change", "existing", "workers", "flush_interval", "audit", "answers", "rate", "budget")
    for option in names:
        found.setdefault(option, getattr(asked, option))
    found.setdefault("name", name)
    return found


@interruptible
@errors_without_secrets()
def _outcome(pipeline: beam.Pipeline, options: PipelineOptions, given: Mapping[str, Any]) -> Result:
    refuse_in_worker()
    values, console = begin(_RUN, (pipeline,), given)
    parameters = dict(values.parameters or {})
    if not values.name:
        raise UsageError("the pipeline has no name; give one with name=..., or with the option --job_name")
    taken = sorted(set(parameters) & set(_SAID))
    if taken:
        raise UsageError(f"parameters: {', '.join(taken)}: the pipeline sets these itself; use other names")
    chain = find_chain(pipeline)
    match, write = chain.match, chain.write
    check_urls({"patterns": match.patterns, "output": write.output})
    storage_options = values.storage_options
    proto = pipeline.to_runner_api()
    scatter = _scatter(write, chain) if isinstance(write, Scatter) else None
    columns = isinstance(write, WriteColumns)
    if isinstance(write, WriteColumns):
        parameters[_COLUMNS] = {field.name: str(field.type) for field in write.schema}
    job = PipelineJob(
        name=values.name,
        output=write.output,
        to=write.to if isinstance(write.to, str) else "parquet" if columns else _described(write.to),
        published="columns" if columns else None,
        functions=_made_of(chain),
        given=parameters,
        whole=proto_text(proto),
        chain=proto_text(chain_alone(proto, chain.labels)),
        steps=chain.steps,
        rest=proto_text(rest_alone(proto, chain.labels)) if chain.has_downstream else None,
        audits=_audits(chain) if scatter is None else None,
        audit=audit_text(values.audit),
        scatter=scatter,
        **_sources(chain, storage_options, as_read=scatter is not None and scatter.as_read),
        **run_values_of(values),
    )
    how = RunOptions(
        ledger=values.ledger, on_job_change=values.on_job_change, existing=values.existing, options=_words(options)
    )
    result = PreparedCall(job.resolve_ledger(how.ledger), how).result(console)
    if isinstance(match, Gather) and result.complete and not match.keep_runs:
        scattered = open_store(match.ledger, storage_options)
        writers = [scattered.ledger_id()] if has_kept_nothing(scattered) else []
        remove_internal([match.runs], job.resolve_ledger(values.ledger), writers)
    return result


class Pipeline(beam.Pipeline):
    """A Beam pipeline that resumes when it is started again.

        with ledgerbeam.Pipeline(ledger="progress", name="clean") as pipeline:
            pipeline | MatchSources("texts/*.jsonl") | SkipCompleted() | ... | CommitTasks()

    The transforms from `MatchSources` to `CommitTasks` use the ledger of the pipeline. The local runner replaces dead
    workers, and quarantines tasks that crash their workers several times. With every runner, runs are recorded, and
    outdated outputs are removed. At the end, `result` is a `PipelineRun`.

    Args:
        options: Beam options, as words of a command line or `PipelineOptions`; ``--runner`` replaces the local runner.
        run_options: Options of `run`.
    """

    result: PipelineRun

    def __enter__(self) -> Self:
        """Return the pipeline, which runs at the end of the ``with`` statement."""
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Run the pipeline. A `LedgerbeamError` has no traceback into this library: its message has the remedy."""
        try:
            super().__exit__(kind, error, where)
        except LedgerbeamError as refused:
            raise refused.with_traceback(None) from refused.__cause__

    def __init__(
        self, *, options: Sequence[str] | PipelineOptions = (), **run_options: Unpack[PipelineRunOptions]
    ) -> None:
        given = options if isinstance(options, PipelineOptions) else PipelineOptions(list(options))
        super().__init__(LedgerRunner(**run_options), given)


@public(_RUN)
def run(pipeline: beam.Pipeline, **options: Unpack[PipelineRunOptions]) -> PipelineRun:
    """Run a pipeline that was built with `beam.Pipeline`, and record its progress in a ledger.

    Returns:
        The run. `PipelineRun.raise_for_failures` raises if tasks failed.

    Raises:
        JobMismatchError: The ledger belongs to another job.
        KeyboardInterrupt: Ctrl-C ended the run; its state is saved.
        LedgerbeamError: The run ended early. Everything that was recorded stays recorded.
        UnsupportedShapeError: The ledger cannot follow tasks through these transforms. Nothing was started.
    """
    pipeline.runner = LedgerRunner(**options)
    try:
        return cast(PipelineRun, pipeline.run())
    except LedgerbeamError as refused:  # as of `Pipeline.__exit__`
        raise refused.with_traceback(None) from refused.__cause__


def _words(options: PipelineOptions) -> list[str]:
    """Return Beam options as words of a command line, except `LedgerOptions`. ``engine`` becomes ``--runner``."""
    found = options.get_all_options(drop_default=True, retain_unknown_options=True)
    engine = found.get("engine")
    parser: Any = argparse.ArgumentParser()
    LedgerOptions._add_argparse_args(parser)  # noqa: SLF001 - the method of Beam that classes of options define
    own = vars(parser.parse_args([]))
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
    """Return the fields of `PipelineJob` with its sources.

    Args:
        chain: Chain of the pipeline.
        storage_options: Options of the stores.
        as_read: Whether records are scattered unchanged. Then each record is read with its position.

    Raises:
        ScatterIncompleteError: The scattered records are not complete.
        UsageError: The transforms cannot be combined.
    """
    match, plan = chain.match, chain.plan
    if isinstance(match, Gather):
        return {"gathered": _gathered(chain, match, storage_options)}
    if match.graph is not None:
        sizes = {"task_records": plan.task_records, "task_bytes": plan.task_bytes}
        given = {name: size for name, size in sizes.items() if size is not None}
        passes = GraphPasses(reference=match.graph, made_of=made_of(match.graph), epochs=match.epochs, **given)
        return {"passes": passes}
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
    return {"files": replace(files, task_records=plan.task_records, form="placed" if as_read else files.form)}


def _gathered(chain: FoundChain, match: Gather, storage_options: dict[str, Any]) -> GatheredRuns:
    size = chain.plan.task_bytes
    if chain.plan.task_records is not None or size is None:
        raise UsageError("PlanTasks: after Gather, the size of a task is in bytes; give task_bytes, not task_records")
    found = GatheredRuns.found(match.runs, match.ledger, storage_options, task_bytes=size, whole_keys=match.whole_keys)
    for function in chain.functions:
        if isinstance(function, GroupRecords):
            if not match.whole_keys:
                raise UsageError(
                    f"{function!r}: it needs all records of a key in one task; leave whole_keys=False out of Gather"
                )
            _check_key(function, found)
    return found


def _check_key(function: GroupRecords, found: GatheredRuns) -> None:
    """Raise UsageError if a function groups by one key, and the records were scattered by another key."""
    key = key_choice(cast(By, function.by), "hash")
    for name, value in key.parameters().items():
        if name not in ("order", "exchange") and found.key.get(name) != value:
            raise UsageError(
                f"{function!r}: expected the key of Scatter in {found.ledger}, {found.key.get('by')}, found {key}"
                f"{'' if name == 'by' else ', whose code has changed'}; use the same key in both pipelines"
            )


def _audits(chain: FoundChain) -> str | None:
    """Return the function to audit and the encoder, pickled, in base 85; None if no single function can be audited."""
    to = chain.write.to
    functions = [one for one in chain.functions if one is not to]
    if len(functions) != 1 or not isinstance(functions[0], MapRecords | GroupRecords):
        return None
    encoder = format_named(to) if isinstance(to, str) else to
    return base64.b85encode(cloudpickle.dumps((functions[0], encoder))).decode("ascii")


def _made_of(chain: FoundChain) -> dict[str, Any]:
    """Return the identity of each function of a chain (`identity()` or its code) by name, and the names in order."""
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
    """Return a description of an encoder that is the same in every process."""
    named = [name for name, known in formats().items() if known == encoder]
    if named:
        return named[0]
    kind = type(encoder)
    says = "__repr__" in {name for base in kind.__mro__[:-1] for name in vars(base)}
    return repr(encoder) if says else f"{kind.__module__}.{kind.__qualname__}"
