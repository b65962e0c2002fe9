"""From the options that the calls of exchanges share to the values of their jobs."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any, TypedDict

from ledgerbeam.errors import UsageError
from ledgerbeam.io.exchange.order import By, Nulls, Scheme, key_fields, key_function
from ledgerbeam.pipelines.calls.job_values import folder, shards
from ledgerbeam.pipelines.calls.values import MAPPED, TARS_WITH_METADATA, given, parse_count, parse_size
from ledgerbeam.pipelines.exchange.partition import KeyChoice
from ledgerbeam.pipelines.jobs.user_function import user_function
from ledgerbeam.pipelines.outputs.columns import ColumnLayout
from ledgerbeam.pipelines.outputs.compression import OutputCompression
from ledgerbeam.user_code.objects import check_object


class OutputValues(TypedDict):
    """What a job writes that leaves its records as they are, by the names of `ShardJob`."""

    output: str
    to: str
    layout: ColumnLayout | None
    compression: OutputCompression | None


class GatherValues(OutputValues):
    """What an exchange writes and how, by the names of `GatherJob`."""

    bucket_bytes: int | None
    shard_bytes: int
    max_slices: int


def gather_values(
    *, shard_bytes: int | str, bucket_bytes: int | str | None, max_slices: int, **written: Any
) -> GatherValues:
    """Return what an exchange writes, and how.

    Args:
        shard_bytes: Size of a shard.
        bucket_bytes: Size of a bucket.
        max_slices: Slices of run files that a stage reads at most.
        written: Those of `output_values`.

    Raises:
        UsageError: If the options cannot mean anything together.
    """
    return {
        **output_values(**written),
        "bucket_bytes": None if bucket_bytes is None else given("bucket_bytes", bucket_bytes, parse_size),
        "shard_bytes": given("shard_bytes", shard_bytes, parse_size),
        "max_slices": given("max_slices", max_slices, parse_count),
    }


def output_values(
    to: str,
    output: str | PathLike[str],
    storage_options: Mapping[str, Any],
    *,
    schema: str | PathLike[str] | None,
    row_group_bytes: int | str | None,
    page_bytes: int | str | None,
    compress: str | None,
    frame: int | str | None,
) -> OutputValues:
    """Return what a job writes that leaves its records as they are.

    Raises:
        UsageError: If the options cannot mean anything together.
    """
    require_plain_format(to)
    written = shards(
        to,
        MAPPED,
        storage_options,
        schema=schema,
        row_group_bytes=row_group_bytes,
        page_bytes=page_bytes,
        compress=compress,
        frame=frame,
    )
    return {
        "output": folder(output),
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


class JoinedFields(TypedDict):
    """How a record of the right side of a join comes into that of the left side, by the names of `JoinJob`."""

    suffix: str | None
    under: str | None


def joined_fields(how: str, suffix: str | None, under: str | None) -> JoinedFields:
    """Return how records of a join are made.

    Raises:
        UsageError: The options cannot mean anything together.
    """
    if how in ("semi", "anti") and not suffix is under is None:
        raise UsageError(f"--how {how} writes records of the left side alone: leave --suffix and --as out")
    if suffix is not None and under is not None:
        raise UsageError("--as gives all of the right side one field, and --suffix its fields other names: give one")
    if "" in (suffix, under):
        raise UsageError("expected a text behind --suffix and --as, found none")
    return {"suffix": suffix, "under": under}


def dedup_key(by: By | None, *, content: bool, near: By | None) -> KeyChoice:
    """Return by what duplicates are found.

    Raises:
        UsageError: Not just one of a key, the content and a text is given; also as `key_choice`.
    """
    if (by is not None) + content + (near is not None) != 1:
        raise UsageError(
            "give what equal records have in common, --by KEY or --content, or the text by which they are near, --near "
            "FIELD (one of the three)"
        )
    if near is not None:
        if len(key_fields(near, "near")) > 1:
            raise UsageError(f"near: expected one field or function that gives a text, found {near!r:.80}")
        return key_choice(near, "digest", option="near")
    return KeyChoice("content") if by is None else key_choice(by, "digest")


def require_marks(to: str, written: OutputValues) -> str:
    """Return the format of a list of duplicates.

    Raises:
        UsageError: It was to be another one, or compressed.
    """
    if to != "jsonl" or written["compression"] is not None:
        raise UsageError(f"--mark writes plain lines: give --to jsonl without --compress, found --to {to}")
    return to
