"""The chain for Beam YAML: each transform is built from plain values, as in a YAML file.

    providers:
      - type: python
        config: {}
        transforms:
          SkipCompleted: ledgerbeam.transforms.beam_yaml.SkipCompleted

docs/engines.md has a complete file. Elements are sources and tasks, not rows: between `ReadTasks` and `CommitTasks`
only transforms of this module are possible. There is no launcher beside the pipeline, so outputs that are out of date
stay.
"""

# ruff: noqa: N802 - a YAML file calls these by the names that stand for transforms
# Annotations are not postponed: Beam makes the schema of a transform's configuration of them.

from collections.abc import Mapping
from typing import Any, cast

import apache_beam as beam
from apache_beam.pvalue import PCollection

from ledgerbeam import transforms
from ledgerbeam.errors import LedgerError, UsageError
from ledgerbeam.io import Grouping, IndexLocation, SourceListing, TarFormat, canonical_url, common_base
from ledgerbeam.iterators.job_source import GraphSource
from ledgerbeam.ledger import Job, OnJobChange
from ledgerbeam.ledger.model.job import Json
from ledgerbeam.ledger.model.user_modules import user_modules
from ledgerbeam.ledger.model.user_objects import check_object, depends_on_batches
from ledgerbeam.opening import open_ledger
from ledgerbeam.sources import FileSources, Sources
from ledgerbeam.sources.forms import OnError

__all__ = ["CommitTasks", "MapRecords", "PlanTasks", "ReadListing", "ReadTasks", "SkipCompleted", "WriteTasks"]

Options = Mapping[str, Any]
Transform = beam.PTransform[Any, Any]

_VALUES = "set"
"""The parameter of a job that holds the values of its functions, as of ``map``."""


def ReadListing(
    patterns: list[str] | None = None,
    sources_from: str | None = None,
    graph: str | None = None,
    epochs: int = 1,
    storage_options: dict[str, Any] | None = None,
) -> Transform:
    """List sources: `MatchSources` by a name with which Beam YAML knows what has no input.

    Args:
        patterns: URLs with wildcards.
        sources_from: URL of a list of sources, in place of patterns.
        graph: ``module:function`` of an iterator graph, in place of both.
        epochs: How many passes of the graph.
        storage_options: Passed to fsspec unchanged.
    """
    if graph is not None:
        if patterns or sources_from:
            raise UsageError(f"graph {graph!r}: give it without patterns and sources_from, or them without it")
        return transforms.MatchSources(GraphSource(graph, epochs))
    listed = tuple(canonical_url(pattern) for pattern in patterns or ())
    list_url = canonical_url(sources_from) if sources_from else None
    return transforms.MatchSources(SourceListing(listed, list_url, storage_options or {}))


def SkipCompleted(
    ledger: str,
    job: str,
    *,
    parameters: dict[str, Any] | None = None,
    functions: list[str] | None = None,
    values: dict[str, Any] | None = None,
    on_job_change: str = "refuse",
    storage_options: dict[str, Any] | None = None,
) -> Transform:
    """Open the ledger for the job, and drop the sources that it holds as complete.

    The other transforms find the job in the ledger, so this one comes before them.

    Args:
        ledger: URL of the ledger; made if it is not there.
        job: Name of what the pipeline does.
        parameters: What shapes the outputs: a ledger of a job with others is refused.
        functions: ``module:object`` of user code; so is one of which a module has changed: its own, or one that it
            imports from the user's own files.
        values: What `MapRecords` gives its function, or the class when it is built, by name: as ``--set`` of ``map``.
        on_job_change: ``refuse``, ``restart`` or ``accept``.
        storage_options: How a remote ledger is reached; passed to fsspec untouched.
    """
    if on_job_change not in ("refuse", "restart", "accept"):
        raise UsageError(f"on_job_change: expected refuse, restart or accept, found {on_job_change!r}")
    made_of: dict[str, Json] = {name: dict(user_modules(name)) for name in functions or ()}
    given: dict[str, Json] = {_VALUES: values} if values else {}
    described = Job(job, {**(parameters or {}), **given, "functions": made_of})
    store = open_ledger(canonical_url(ledger).rstrip("/"), storage_options or {}, create=True)
    store.open_job(described, on_change=cast(OnJobChange, on_job_change))
    return transforms.SkipCompleted(_handle(ledger, storage_options))


class SpreadPlan(beam.PTransform[PCollection[Any], PCollection[Any]]):
    """Cuts sources into tasks, both spread over all workers.

    Args:
        plan: The transform that cuts them.
    """

    def __init__(self, plan: transforms.PlanTasks) -> None:
        super().__init__()
        self.plan = plan

    def expand(self, sources: PCollection[Any]) -> PCollection[Any]:
        """Apply the transform to the output of `SkipCompleted`."""
        planned = sources | "SpreadSources" >> beam.Reshuffle() | self.plan
        tasks: PCollection[Any] = planned | "SpreadTasks" >> beam.Reshuffle()
        return tasks


def PlanTasks(
    ledger: str,
    *,
    task_bytes: int | None = None,
    task_records: int | None = None,
    group: str = "auto",
    index_root: str | None = None,
    graph: str | None = None,
    storage_options: dict[str, Any] | None = None,
) -> Transform:
    """Cut sources into tasks, which are spread over all workers.

    Args:
        ledger: As of `SkipCompleted`.
        task_bytes: Size of a task in bytes; 16 MiB if neither limit is given.
        task_records: Records of a task, at most.
        group: How tar members make samples: ``auto``, ``pairs`` or ``key``.
        index_root: Tree that holds the indexes; by default they lie beside their sources.
        graph: As of `ReadListing`.
        storage_options: Passed to fsspec unchanged.
    """
    opened = _sources(group, index_root, graph, storage_options)
    return SpreadPlan(transforms.PlanTasks(_handle(ledger, storage_options), opened, task_bytes, task_records))


def ReadTasks(
    ledger: str,
    *,
    group: str = "auto",
    index_root: str | None = None,
    graph: str | None = None,
    on_error: str = "fail",
    storage_options: dict[str, Any] | None = None,
) -> Transform:
    """Read the records of each task.

    Args:
        ledger: As of `SkipCompleted`.
        group: As of `PlanTasks`.
        index_root: As of `PlanTasks`.
        graph: As of `ReadListing`.
        on_error: ``fail``, or ``reject``, which `MapRecords` needs, too, to set aside a record that cannot be decoded.
        storage_options: Passed to fsspec unchanged.
    """
    opened = _sources(group, index_root, graph, storage_options)
    return transforms.ReadTasks(opened, _handle(ledger, storage_options), cast(OnError, on_error))


def MapRecords(
    ledger: str,
    function: str,
    to: str,
    *,
    batch: int | None = None,
    on_error: str = "fail",
    storage_options: dict[str, Any] | None = None,
) -> Transform:
    """Apply a function to every record, as ``ledgerbeam map`` does, with the `values` of `SkipCompleted`.

    Args:
        ledger: As of `SkipCompleted`, whose `functions` must name this one too, or edits of it would not be seen.
        function: ``module:object``: a function of a record or a batch, or a class.
        to: Name of the format that is written later.
        batch: Records of a batch, at most; without it the function takes single records. If results depend on it
            (`batch_invariant`), the `parameters` of `SkipCompleted` must have it as ``batch``.
        on_error: ``fail``, or ``reject``, as ``--on-error``, without a limit.
        storage_options: Passed to fsspec unchanged.
    """
    job = _job(ledger, storage_options)
    values = cast(dict[str, Any], job.parameters.get(_VALUES, {}))
    target = check_object(function, values)  # what is wrong with it is raised before anything runs
    if function not in cast(dict[str, Any], job.parameters.get("functions", {})):
        raise UsageError(
            f"MapRecords: expected {function!r} among the functions of SkipCompleted, so that a ledger is refused when "
            "its code has changed; name it there"
        )
    if depends_on_batches(target) and job.parameters.get("batch") != batch:
        raise UsageError(
            f"MapRecords: the results of {function} depend on the size of batches: expected batch: {batch} among the "
            f"parameters of SkipCompleted, found {job.parameters.get('batch')}"
        )
    mapping = transforms.MapRecords(
        function,
        to,
        values=values,
        batch=batch,
        storage_options=storage_options or {},
        on_error=cast(OnError, on_error),
    )
    return transforms.ProcessTask(mapping, _handle(ledger, storage_options))


def WriteTasks(
    ledger: str,
    output: str,
    to: str,
    *,
    base: str | None = None,
    patterns: list[str] | None = None,
    graph: str | None = None,
    storage_options: dict[str, Any] | None = None,
) -> Transform:
    """Publish each task's records as one shard with its index.

    Args:
        ledger: As of `SkipCompleted`.
        output: URL of the folder to write below.
        to: Name of the format.
        base: Folder that output names are relative to.
        patterns: As of `ReadListing`: their fixed part is the base then.
        graph: As of `ReadListing`: names are relative to it then.
        storage_options: Passed to fsspec unchanged.
    """
    if graph is not None:
        folder: str | None = GraphSource(graph).base
    elif base is not None:
        folder = canonical_url(base)
    else:
        folder = common_base(tuple(canonical_url(pattern) for pattern in patterns or ()))
    return transforms.WriteTasks(output, to, folder, storage_options or {}, _handle(ledger, storage_options))


def CommitTasks(ledger: str, storage_options: dict[str, Any] | None = None) -> Transform:
    """Record in the ledger what is published.

    Args:
        ledger: As of `SkipCompleted`.
        storage_options: Passed to fsspec unchanged.
    """
    return transforms.CommitTasks(_handle(ledger, storage_options))


def _job(ledger: str, options: Options | None) -> Job:
    url = canonical_url(ledger).rstrip("/")
    job = open_ledger(url, options or {}, create=True).job()
    if job is None:
        raise LedgerError(f"ledger {url}: no job has opened it; SkipCompleted of the same ledger must come before")
    return job


def _handle(ledger: str, options: Options | None) -> transforms.LedgerHandle:
    job = _job(ledger, options)
    return transforms.LedgerHandle(canonical_url(ledger).rstrip("/"), job.fingerprint, storage_options=options or {})


def _sources(group: str, index_root: str | None, graph: str | None, options: Options | None) -> Sources:
    if graph is not None:
        return GraphSource(graph)
    if group not in ("auto", "pairs", "key"):
        raise UsageError(f"group: expected auto, pairs or key, found {group!r}")
    root = index_root and canonical_url(index_root).rstrip("/")
    return FileSources((TarFormat(cast(Grouping, group)),), IndexLocation(root=root), storage_options=options or {})
