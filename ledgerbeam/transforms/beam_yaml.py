"""The chain for Beam YAML: each transform is built from plain values, as in a YAML file.

    providers:
      - type: python
        config: {}
        transforms:
          SkipCompleted: ledgerbeam.transforms.beam_yaml.SkipCompleted

docs/beam-yaml.md has a complete file. Its options name `ledgerbeam.LedgerRunner` and the ledger that protects the
pipeline. Elements are sources and tasks, not rows: between `ReadTasks` and `CommitTasks` only transforms of this module
are allowed.
"""

# ruff: noqa: N802 - YAML files use these names as transforms
# No postponed annotations: Beam derives the schema of a transform's configuration from them.

from typing import Any, Literal, cast

import apache_beam as beam

from ledgerbeam import transforms
from ledgerbeam.io.exchange.order import Nulls
from ledgerbeam.io.tar.grouping import Grouping
from ledgerbeam.sources.forms import OnError
from ledgerbeam.user_code.objects import OF_A_GROUP, check_object

Transform = beam.PTransform[Any, Any]


def ReadListing(
    patterns: list[str] | None = None,
    *,
    sources_from: str | None = None,
    graph: str | None = None,
    epochs: int = 1,
    base: str | None = None,
    group: str = "auto",
    index_root: str | None = None,
    columns: list[str] | None = None,
) -> Transform:
    """List sources, as `MatchSources`. Beam YAML expects transforms without input to have names like this one.

    Args:
        patterns: URLs with wildcards.
        sources_from: URL of a file that lists the sources, instead of patterns.
        graph: ``module:function`` of an iterator graph, instead of both.
        epochs: Number of passes of the graph.
        base: Folder that output names are relative to. Default: the fixed part of the patterns.
        group: Grouping of tar members into samples: ``auto``, ``pairs`` or ``key``.
        index_root: Root of the tree of index files. Default: each index is beside its source.
        columns: Columns to read from Parquet and Arrow files. Default: all.
    """
    return transforms.MatchSources(
        patterns or (),
        sources_from=sources_from,
        graph=graph,
        epochs=epochs,
        base=base,
        group=cast(Grouping, group),
        index_root=index_root,
        columns=columns or (),
    )


def ReadBuckets(runs: str, ledger: str, *, whole_keys: bool = True, keep_runs: bool = False) -> Transform:
    """List buckets, as `Gather`. Beam YAML expects transforms without input to have names like this one.

    Args:
        runs: Folder that `Scatter` wrote to.
        ledger: URL of the ledger of the pipeline with `Scatter`.
        whole_keys: Whether all records of a key are in one task.
        keep_runs: Whether to keep the run files after all records are gathered.
    """
    return transforms.Gather(runs, ledger=ledger, whole_keys=whole_keys, keep_runs=keep_runs)


def SkipCompleted() -> Transform:
    """Drop the sources that are complete in the ledger."""
    return transforms.SkipCompleted()


def PlanTasks(task_bytes: int | None = None, task_records: int | None = None) -> Transform:
    """Divide sources into tasks and spread them over all workers.

    Args:
        task_bytes: Size of a task in bytes. Default if neither limit is given: 16 MiB.
        task_records: Maximum number of records of a task.
    """
    return transforms.PlanTasks(task_bytes, task_records)


def ReadTasks(on_error: str = "fail") -> Transform:
    """Read the records of each task.

    Args:
        on_error: ``fail`` or ``reject``. To reject records that cannot be decoded, set it here and in `MapRecords`.
    """
    return transforms.ReadTasks(cast(OnError, on_error))


def MapRecords(
    function: str, to: str, *, values: dict[str, Any] | None = None, batch: int | None = None, on_error: str = "fail"
) -> Transform:
    """Apply a function to every record, as ``ledgerbeam map`` does.

    Args:
        function: ``module:object``: a function of a record or a batch, or a class.
        to: Name of the format of `WriteTasks`.
        values: Keyword arguments of the function, or of the constructor of the class, as ``--set`` of ``map``.
        batch: Maximum number of records in a batch. None passes single records.
        on_error: ``fail`` or ``reject``, as ``--on-error`` without a limit.
    """
    check_object(function, values or {})  # raises before anything runs
    mapping = transforms.MapRecords(function, to, values=values, batch=batch, on_error=cast(OnError, on_error))
    return transforms.ProcessTask(mapping)


def KeepRecords(to: str) -> Transform:
    """Write gathered records in their order.

    Args:
        to: Name of the format of `WriteTasks`.
    """
    return transforms.ProcessTask(transforms.KeepRecords(to))


def GroupRecords(function: str, to: str, by: str) -> Transform:
    """Call a function with each key and its records, as ``ledgerbeam group`` does.

    Args:
        function: ``module:object``: a function of a key and an iterator of records, or a class.
        to: Name of the format of `WriteTasks`.
        by: The key of `Scatter`.
    """
    check_object(function, {}, OF_A_GROUP)
    return transforms.ProcessTask(transforms.GroupRecords(function, to, by=by))


def Scatter(
    runs: str,
    by: str | None = None,
    *,
    order: str = "key",
    descending: bool = False,
    nulls: str = "last",
    buckets: int | None = None,
    bucket_bytes: int | None = None,
) -> Transform:
    """Publish the records of each task as one run file, sorted by bucket and key.

    Args:
        runs: URL of the folder to write below.
        by: The key: field names separated by commas, or ``module:function``. Default: the order of the records.
        order: ``key``, or ``hash`` for the order of a hash of the key.
        descending: Whether the greatest key comes first.
        nulls: Position of records whose key is null: ``first`` or ``last``.
        buckets: Number of buckets.
        bucket_bytes: Approximate size of a bucket in bytes of the sources. Default without `buckets`: 64 MiB.
    """
    return transforms.Scatter(
        runs,
        by,
        order=cast(Literal["key", "hash"], order),
        descending=descending,
        nulls=cast(Nulls, nulls),
        buckets=buckets,
        bucket_bytes=bucket_bytes,
    )


def WriteTasks(output: str, to: str) -> Transform:
    """Publish the records of each task as one shard with its index.

    Args:
        output: URL of the folder to write below.
        to: Name of the format.
    """
    return transforms.WriteTasks(output, to)


def CommitTasks() -> Transform:
    """Record published outputs in the ledger."""
    return transforms.CommitTasks()
