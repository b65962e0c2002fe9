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
from ledgerbeam.ledger.model.user_code import function_identity
from ledgerbeam.opening import open_ledger
from ledgerbeam.sources import FileSources, Sources

__all__ = ["CommitTasks", "MapRecords", "PlanTasks", "ReadListing", "ReadTasks", "SkipCompleted", "WriteTasks"]

Options = Mapping[str, Any]
Transform = beam.PTransform[Any, Any]


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
    on_job_change: str = "refuse",
    storage_options: dict[str, Any] | None = None,
) -> Transform:
    """Open the ledger for the job, and drop the sources that it holds as complete.

    The other transforms find the job in the ledger, so this one comes before them.

    Args:
        ledger: URL of the ledger; made if it is not there.
        job: Name of what the pipeline does.
        parameters: What shapes the outputs: a ledger of a job with others is refused.
        functions: ``module:function`` of user code; so are those of which the source has changed.
        on_job_change: ``refuse``, ``restart`` or ``accept``.
        storage_options: How a remote ledger is reached; passed to fsspec untouched.
    """
    if on_job_change not in ("refuse", "restart", "accept"):
        raise UsageError(f"on_job_change: expected refuse, restart or accept, found {on_job_change!r}")
    identities = {name: function_identity(name)["function_source"] for name in functions or ()}
    described = Job(job, {**(parameters or {}), "functions": identities})
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
    group: str = "auto",
    index_root: str | None = None,
    graph: str | None = None,
    storage_options: dict[str, Any] | None = None,
) -> Transform:
    """Read the records of each task.

    Args:
        ledger: As of `SkipCompleted`.
        group: As of `PlanTasks`.
        index_root: As of `PlanTasks`.
        graph: As of `ReadListing`.
        storage_options: Passed to fsspec unchanged.
    """
    return transforms.ReadTasks(_sources(group, index_root, graph, storage_options), _handle(ledger, storage_options))


def MapRecords(ledger: str, function: str, to: str, storage_options: dict[str, Any] | None = None) -> Transform:
    """Apply a function to every record, as ``ledgerbeam map`` does.

    Args:
        ledger: As of `SkipCompleted`, whose `functions` must name this one too, or edits of it would not be seen.
        function: ``module:function`` that takes a record and returns one, None or a list.
        to: Name of the format that is written later.
        storage_options: Passed to fsspec unchanged.
    """
    function_identity(function)  # an import error is raised before anything runs
    if function not in _job(ledger, storage_options).parameters.get("functions", {}):  # type: ignore[operator]
        raise UsageError(
            f"MapRecords: expected {function!r} among the functions of SkipCompleted, so that a ledger is refused when "
            "its code has changed; name it there"
        )
    return transforms.ProcessTask(transforms.MapRecords(function, to), _handle(ledger, storage_options))


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
