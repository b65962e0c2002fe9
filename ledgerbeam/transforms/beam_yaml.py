"""Transforms for Beam YAML: the chain, with arguments that are plain values of a YAML file.

    providers:
      - type: python
        config: {}
        transforms:
          SkipCompleted: ledgerbeam.transforms.beam_yaml.SkipCompleted

docs/beam-yaml.md has a complete file. In the file, the pipeline's options must name `ledgerbeam.LedgerRunner` and the
ledger. Elements are sources and tasks, not rows: from `ReadTasks` to `CommitTasks`, use only transforms of this module.

`ledgerbeam.transforms` documents the arguments, under the same names. In YAML a function is ``module:function``, a
format is its name, and the fields of a key are separated by commas.
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
    """List sources, as `MatchSources` does. In Beam YAML, the name of a transform without input starts with Read."""
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
    """List buckets, as `Gather` does. In Beam YAML, the name of a transform without input starts with Read."""
    return transforms.Gather(runs, ledger=ledger, whole_keys=whole_keys, keep_runs=keep_runs)


def SkipCompleted() -> Transform:
    """Drop the sources that are complete in the ledger."""
    return transforms.SkipCompleted()


def PlanTasks(task_bytes: int | None = None, task_records: int | None = None) -> Transform:
    """Divide sources into tasks and spread them over all workers."""
    return transforms.PlanTasks(task_bytes, task_records)


def ReadTasks(on_error: str = "fail") -> Transform:
    """Read the records of each task. To reject records that are not decodable, also set `on_error` of `MapRecords`."""
    return transforms.ReadTasks(cast(OnError, on_error))


def MapRecords(
    function: str | list[str],
    to: str,
    *,
    values: dict[str, Any] | None = None,
    batch: int | dict[str, int] | None = None,
    on_error: str = "fail",
    keep_dropped: bool = False,
    style: str | None = None,
) -> Transform:
    """Apply functions to every record, as ``ledgerbeam map`` does. `values` are their parameters, as ``--set``."""
    mapping = transforms.MapRecords(
        function,
        to,
        values=values,
        batch=batch,
        on_error=cast(OnError, on_error),
        keep_dropped=keep_dropped,
        style=style,
    )
    for one in mapping.functions:
        one.object.check()  # raises before anything runs
    return transforms.ProcessTask(mapping)


def KeepRecords(to: str) -> Transform:
    """Convert gathered records to the format `to`, in their order. The pipeline must start with `ReadBuckets`."""
    return transforms.ProcessTask(transforms.KeepRecords(to))


def GroupRecords(function: str, to: str, by: str) -> Transform:
    """Call a function with each key and its records, as ``ledgerbeam group`` does."""
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
    """Publish the records of each task as one run file, sorted by bucket and key."""
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
    """Publish the records of each task as one shard with its index."""
    return transforms.WriteTasks(output, to)


def CommitTasks() -> Transform:
    """Record published outputs in the ledger."""
    return transforms.CommitTasks()
