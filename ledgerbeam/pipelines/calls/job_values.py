"""From the options that calls share to the values of the jobs that they ask for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from ledgerbeam._base.lazy import np
from ledgerbeam.errors import UsageError
from ledgerbeam.io.datasets.megatron.layout import dataset_prefix, dtype_code
from ledgerbeam.io.listing.patterns import canonical_pattern, common_base, files_of_folders
from ledgerbeam.io.storage.urls import canonical_url, is_local
from ledgerbeam.io.tar.grouping import Grouping
from ledgerbeam.pipelines.calls.values import (
    TARS_WITH_METADATA,
    given,
    parse_columns,
    parse_count,
    parse_seconds,
    parse_size,
    path,
    require_format,
)
from ledgerbeam.pipelines.jobs.sources import ListedFiles
from ledgerbeam.pipelines.outputs.columns import COLUMN_FORMATS, ColumnLayout, read_schema
from ledgerbeam.pipelines.outputs.compression import OutputCompression, parse_compression
from ledgerbeam.sources.recorded import RecordedOutputs

if TYPE_CHECKING:  # jobs that make no such dataset start sooner without it
    from ledgerbeam.pipelines.datasets.megatron_parts import MergedParts


Size = int | str
Place = str | PathLike[str]


def folder(url: Place) -> str:
    """Return the canonical URL of a folder."""
    return canonical_url(path(url)).rstrip("/")


class RunValues(TypedDict):
    """How a job runs, by the names of `JobSpec`; nothing of it shapes the outputs."""

    storage_options: dict[str, Any]
    workers: int
    flush_interval: float
    log_level: str
    task_limit: int | None
    profile: str | None


def run_values(
    storage_options: dict[str, Any],
    workers: int | None,
    flush_interval: float,
    log_level: str,
    *,
    limit_tasks: int | None = None,
    profile: Place | None = None,
) -> RunValues:
    """Return how a job runs.

    Raises:
        UsageError: A value cannot mean anything.
    """
    return {
        "storage_options": storage_options,
        "workers": len(os.sched_getaffinity(0)) if workers is None else given("workers", workers, parse_count),
        "flush_interval": given("flush_interval", flush_interval, parse_seconds),
        "log_level": log_level,
        "task_limit": None if limit_tasks is None else given("limit_tasks", limit_tasks, parse_count),
        "profile": None if profile is None else _profile(profile),
    }


def _profile(place: Place) -> str:
    url = canonical_url(path(place))
    if is_local(url) and (os.path.isdir(url) or not os.path.isdir(os.path.dirname(url))):
        raise UsageError(f"{url}: expected a file in a folder that exists, such as profile.json, for --profile")
    return url


def file_sources(
    patterns: Sequence[str | RecordedOutputs],
    sources_from: Place | None,
    *,
    group: Grouping,
    index_root: Place | None,
    index_rule: Literal["scheme", "lhotse"],
    task_bytes: Size,
    columns: str | Iterable[str] = (),
    no_index: bool = False,
    base: Place | None = None,
    pack: Size | None = None,
    pack_by: Literal["order", "folder"] = "order",
    read_as: Literal["shar"] | None = None,
) -> ListedFiles:
    """Return the files that a job reads.

    Args:
        patterns: Patterns, or what other jobs have written.
        sources_from: A list, in place of both.
        group: As of the calls, as are the others.
        index_root: Likewise.
        index_rule: Likewise.
        task_bytes: Likewise.
        columns: Likewise.
        no_index: Likewise.
        base: Likewise.
        pack: Likewise.
        pack_by: Likewise.
        read_as: Likewise.

    Raises:
        UsageError: If the options cannot mean anything together.
    """
    if bool(patterns) == bool(sources_from):
        raise UsageError("give source patterns, or a list with --sources-from FILE (one of the two)")
    recorded = tuple(one for one in patterns if isinstance(one, RecordedOutputs))
    listed = tuple(canonical_pattern(one) for one in patterns if not isinstance(one, RecordedOutputs))
    if recorded and (listed or read_as is not None):
        raise UsageError("outputs of other jobs are read alone, and not as Shar: leave patterns and --from shar out")
    if pack_by == "folder" and pack is None:
        raise UsageError("--pack-by folder says how sources are packed: give --pack BYTES, too")
    chosen = given("columns", columns, parse_columns) if columns else ()
    if read_as is not None:  # folders of Shar datasets
        if pack or group != "auto" or chosen:
            raise UsageError(
                "--from shar reads whole shards, with payloads in pairs: leave --pack, --group and --columns out"
            )
        listed, group = tuple(map(files_of_folders, listed)), "pairs"
    below = canonical_url(path(base)) if base else common_base(listed or [f"{one.folder}/*" for one in recorded])
    return ListedFiles(
        patterns=listed,
        sources_from=canonical_url(path(sources_from)) if sources_from else None,
        recorded=recorded,
        base=below and below.rstrip("/") + "/",
        index_root=folder(index_root) if index_root else None,
        index_rule=index_rule,
        build_index=not no_index,
        group=group,
        task_bytes=given("task_bytes", task_bytes, parse_size),
        pack_bytes=None if pack is None else given("pack", pack, parse_size),
        pack_by_folder=pack_by == "folder",
        read_as=read_as,
        columns=chosen,
    )


def target(word: str) -> tuple[str, str | None]:
    """Return the format that ``--to`` asks for, and what is published of it: the job is the same either way."""
    return ("tar", word) if word in TARS_WITH_METADATA else (word, None)


class Written(TypedDict):
    """How shards are written, by the names of `ShardJob`."""

    to: str
    published: str | None
    layout: ColumnLayout | None
    compression: OutputCompression | None


class Conversion(Written):
    """How any record is written, by the names of the jobs that convert."""

    output: str
    dataset: MergedParts | None
    fields: tuple[tuple[str, str], ...]


def shards(
    to: str,
    formats: Sequence[str],
    storage_options: Mapping[str, Any],
    *,
    schema: Place | None,
    row_group_bytes: Size | None,
    page_bytes: Size | None,
    compress: str | None,
    frame: Size | None,
) -> Written:
    """Return how shards are written as ``--to`` asks.

    Raises:
        UsageError: If an option is of another format, or there is no such format among `formats`.
    """
    require_format(to, formats)
    plain, published = target(to)
    sizes = {
        name: None if size is None else given(name, size, parse_size)
        for name, size in (("row_group_bytes", row_group_bytes), ("page_bytes", page_bytes))
    }
    return {
        "to": plain,
        "published": published,
        "layout": _layout(to, None if schema is None else path(schema), sizes, storage_options),
        "compression": parse_compression(compress, None if frame is None else given("frame", frame, parse_size), to),
    }


def _layout(
    to: str, schema: str | None, sizes: Mapping[str, int | None], storage_options: Mapping[str, Any]
) -> ColumnLayout | None:
    """Return how files of columns are written; None for other formats."""
    of_columns = to in COLUMN_FORMATS
    for name, value in {"schema": schema, **sizes}.items():
        if value is not None and not (of_columns and (name != "page_bytes" or to == "parquet")):
            where = "parquet" if name == "page_bytes" else " and ".join(COLUMN_FORMATS)
            raise UsageError(f"--{name.replace('_', '-')} is for --to {where}, found --to {to}")
    if not of_columns:
        return None
    chosen: dict[str, Any] = {name: size for name, size in sizes.items() if size is not None}
    made = ColumnLayout(**chosen)
    return made if schema is None else made.decided(read_schema(schema, dict(storage_options)))


def conversion(
    written: Written,
    output: Place,
    *,
    dtype: str | None,
    drop_parts: bool,
    fields: str | Mapping[str, str] | None,
) -> Conversion:
    """Return how any record is written.

    Args:
        written: What `shards` returned.
        output: Where to.
        dtype: Of a Megatron dataset.
        drop_parts: Whether the parts of a Megatron dataset go once they are merged.
        fields: Of a Shar dataset.

    Raises:
        UsageError: If an option is of another format.
    """
    to = written["published"] or written["to"]
    merged = None
    if to == "megatron":
        merged, place = dataset(output, dtype_name(dtype or "int32"), ("",), drop=drop_parts)
    elif dtype or drop_parts:
        raise UsageError(f"--dtype and --drop-parts are for --to megatron, found --to {to}")
    else:
        place = folder(output)
    if to != "shar" and fields is not None:
        raise UsageError(f"--fields is for --to shar, found --to {to}")
    return {**written, "output": place, "dataset": merged, "fields": _fields(fields) if to == "shar" else ()}


def _fields(fields: str | Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    """Return the fields of Shar and their extensions."""
    from ledgerbeam.io.datasets.shar.cuts import parse_fields

    if isinstance(fields, Mapping):
        fields = ",".join(f"{name}={extension}" for name, extension in fields.items())
    return tuple(parse_fields(fields or "").items())


def dataset(output: Place, dtype: str, suffixes: tuple[str, ...], *, drop: bool) -> tuple[MergedParts, str]:
    """Return the Megatron dataset that ``--output`` names, and the folder of its parts."""
    from ledgerbeam.pipelines.datasets.megatron_parts import PARTS_SUFFIX, MergedParts

    place = path(output)
    if place.endswith("/"):
        raise UsageError(f"--output {place}: expected the prefix of two files, found a folder")
    prefix = dataset_prefix(place)
    return MergedParts(prefix, suffixes, dtype, drop), prefix + PARTS_SUFFIX


def dtype_name(name: str) -> str:
    """Return the name of a dtype of Megatron as numpy writes it.

    Raises:
        UsageError: Megatron has no such dtype.
    """
    try:
        dtype_code(name)
    except UsageError as error:
        raise UsageError(f"dtype: {error}") from None
    return np.dtype(name).name
