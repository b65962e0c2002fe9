"""From the options that the calls of exchanges share to the values of their jobs."""

from __future__ import annotations

from typing import Any, TypedDict

from ledgerbeam.errors import UsageError
from ledgerbeam.io.exchange.order import By, Nulls, Scheme, key_fields, key_function
from ledgerbeam.pipelines.calls.call import Values
from ledgerbeam.pipelines.calls.job_values import file_sources_of, folder, run_values_of, shards
from ledgerbeam.pipelines.calls.values import MAPPED, TARS_WITH_METADATA
from ledgerbeam.pipelines.exchange.partition import KeyChoice
from ledgerbeam.pipelines.jobs.shard_job import OutputCompression
from ledgerbeam.pipelines.jobs.sources import ListedFiles
from ledgerbeam.pipelines.jobs.user_function import user_function
from ledgerbeam.pipelines.outputs.columns import ColumnLayout
from ledgerbeam.user_code.objects import check_object


class OutputValues(TypedDict):
    """Fields of `ShardJob` for jobs that leave records unchanged."""

    output: str
    to: str
    layout: ColumnLayout | None
    compression: OutputCompression | None


def gather_values(values: Values, files: ListedFiles | None = None) -> dict[str, Any]:
    """Return the fields of the last job of an exchange, by the names of `GatherJob`.

    Args:
        values: Values of the call.
        files: Files that the exchange reads, if the call has several sides.

    Raises:
        UsageError: The options exclude each other.
    """
    return {
        "files": file_sources_of(values) if files is None else files,
        **output_values(values),
        "bucket_bytes": values.bucket_bytes,
        "shard_bytes": values.shard_bytes,
        "max_slices": values.max_slices,
        **run_values_of(values),
    }


def output_values(values: Values) -> OutputValues:
    """Return the output fields of a job that leaves records unchanged.

    Raises:
        UsageError: The options exclude each other.
    """
    require_plain_format(values.to)
    written = shards(values, MAPPED)
    return {
        "output": folder(values.output),
        "to": written["to"],
        "layout": written["layout"],
        "compression": written["compression"],
    }


def require_plain_format(to: str) -> None:
    """Refuse a format that is a tar with metadata.

    Raises:
        UsageError: It is one.
    """
    if to in TARS_WITH_METADATA:
        raise UsageError(
            f"to: expected a format of files, found {to!r}: write --to tar, then its metadata with ledgerbeam publish "
            f"--as {to}"
        )


def key_choice(
    by: By, scheme: Scheme, *, descending: bool = False, nulls: Nulls = "last", option: str = "by"
) -> KeyChoice:
    """Return what records are ordered by.

    Args:
        by: The key.
        scheme: How keys are compared.
        descending: Whether the greatest key comes first.
        nulls: Where records without a key come.
        option: The name of the option, for messages.

    Raises:
        FunctionError: A function cannot be imported, or cannot travel to other processes.
        UsageError: The names of fields cannot be names.
    """
    fields = key_fields(by, option)
    if fields:
        return KeyChoice(scheme, fields, descending=descending, nulls=nulls)
    found = user_function(key_function(by, option))
    check_object(found.reference, {})
    return KeyChoice(scheme, function=found.reference, made_of=found.made_of, descending=descending, nulls=nulls)
