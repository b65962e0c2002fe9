"""The chain for Beam YAML: each transform is built from plain values, as in a YAML file.

    providers:
      - type: python
        config: {}
        transforms:
          SkipCompleted: ledgerbeam.transforms.chain.beam_yaml.SkipCompleted

docs/beam-yaml.md has a complete file. Its options name `ledgerbeam.LedgerRunner` and the ledger: then the pipeline is
protected as one of a program is. Elements are sources and tasks, not rows: between `ReadTasks` and `CommitTasks` only
transforms of this module are possible.
"""

# ruff: noqa: N802 - a YAML file calls these by the names that stand for transforms
# Annotations are not postponed: Beam makes the schema of a transform's configuration of them.

from typing import Any, Literal, cast

import apache_beam as beam

from ledgerbeam import transforms
from ledgerbeam.io import Grouping
from ledgerbeam.io.exchange.order import Nulls
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
    """List sources: `MatchSources` by a name with which Beam YAML knows what has no input.

    Args:
        patterns: URLs with wildcards.
        sources_from: URL of a list of sources, in place of patterns.
        graph: ``module:function`` of an iterator graph, in place of both.
        epochs: How many passes of the graph.
        base: Folder that output names are relative to; by default the fixed part of the patterns.
        group: How tar members make samples: ``auto``, ``pairs`` or ``key``.
        index_root: Tree that holds the indexes; by default they lie beside their sources.
        columns: Which columns are read of files of columns; all by default.
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
    """List buckets: `Gather` by a name with which Beam YAML knows what has no input.

    Args:
        runs: Folder that `Scatter` has written to.
        ledger: URL of the ledger of the pipeline that has scattered.
        whole_keys: Whether all records of a key are in one task.
        keep_runs: Whether the run files stay when all is gathered.
    """
    return transforms.Gather(runs, ledger=ledger, whole_keys=whole_keys, keep_runs=keep_runs)


def SkipCompleted() -> Transform:
    """Drop the sources that the ledger holds as complete."""
    return transforms.SkipCompleted()


def PlanTasks(task_bytes: int | None = None, task_records: int | None = None) -> Transform:
    """Cut sources into tasks, which are spread over all workers.

    Args:
        task_bytes: Size of a task in bytes; 16 MiB if neither limit is given.
        task_records: Records of a task, at most.
    """
    return transforms.PlanTasks(task_bytes, task_records)


def ReadTasks(on_error: str = "fail") -> Transform:
    """Read the records of each task.

    Args:
        on_error: ``fail``, or ``reject``, which `MapRecords` needs, too, to set aside a record that cannot be decoded.
    """
    return transforms.ReadTasks(cast(OnError, on_error))


def MapRecords(
    function: str,
    to: str,
    *,
    values: dict[str, Any] | None = None,
    batch: int | None = None,
    on_error: str = "fail",
) -> Transform:
    """Apply a function to every record, as ``ledgerbeam map`` does.

    Args:
        function: ``module:object``: a function of a record or a batch, or a class.
        to: Name of the format that is written later.
        values: What the function is given, or the class when it is built, by name: as ``--set`` of ``map``.
        batch: Records of a batch, at most; without it the function takes single records.
        on_error: ``fail``, or ``reject``, as ``--on-error``, without a limit.
    """
    check_object(function, values or {})  # what is wrong with it is raised before anything runs
    mapping = transforms.MapRecords(function, to, values=values, batch=batch, on_error=cast(OnError, on_error))
    return transforms.ProcessTask(mapping)


def KeepRecords(to: str) -> Transform:
    """Write gathered records in their order.

    Args:
        to: Name of the format that is written later.
    """
    return transforms.ProcessTask(transforms.KeepRecords(to))


def GroupRecords(function: str, to: str, by: str) -> Transform:
    """Call a function with each key and its records, as ``ledgerbeam group`` does.

    Args:
        function: ``module:object``: a function of a key and an iterator of records, or a class.
        to: Name of the format that is written later.
        by: The key by which they are scattered.
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
    """Publish each task's records as one run file, by bucket and key.

    Args:
        runs: URL of the folder to write below.
        by: The key: names of fields with commas, or ``module:function``; by default records stay in their order.
        order: ``key``, or ``hash`` for the order of a hash of the key.
        descending: Whether the greatest key comes first.
        nulls: Where records stand whose key is null: ``first`` or ``last``.
        buckets: How many buckets.
        bucket_bytes: Size of a bucket, by the sources; 64 MiB if nothing says how many there are.
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
    """Publish each task's records as one shard with its index.

    Args:
        output: URL of the folder to write below.
        to: Name of the format.
    """
    return transforms.WriteTasks(output, to)


def CommitTasks() -> Transform:
    """Record in the ledger what is published."""
    return transforms.CommitTasks()
