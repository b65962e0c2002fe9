"""Values of jobs from the shared options of calls."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from ledgerbeam._base.lazy import np
from ledgerbeam.errors import UsageError
from ledgerbeam.io.datasets.megatron.layout import dataset_prefix, dtype_code
from ledgerbeam.io.listing.patterns import canonical_pattern, common_base, files_of_folders
from ledgerbeam.io.storage.urls import canonical_url, is_local
from ledgerbeam.io.tar.grouping import Grouping
from ledgerbeam.pipelines.calls.call import Values
from ledgerbeam.pipelines.calls.values import CONVERTED, TARS_WITH_METADATA, path, require_format
from ledgerbeam.pipelines.jobs.shard_job import OutputCompression, parse_compression
from ledgerbeam.pipelines.jobs.sources import ListedFiles
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.outputs.columns import COLUMN_FORMATS, ColumnLayout, read_schema
from ledgerbeam.pipelines.runners.run import RunOptions
from ledgerbeam.pipelines.runners.stage_loop import PreparedCall
from ledgerbeam.sources.listing import RecordedOutputs

if TYPE_CHECKING:  # jobs that make no such dataset start sooner without it
    from ledgerbeam.pipelines.datasets.megatron import MergedParts


Place = str | PathLike[str]

_FILE_OPTIONS = ("group", "index_root", "index_rule", "task_bytes", "columns", "no_index", "base", "pack", "pack_by")
_RUN_OPTIONS = tuple(option.name for option in dataclasses.fields(RunOptions))


def run_options(values: Values) -> RunOptions:
    """Return how the job of a call is run."""
    return RunOptions(**{name: getattr(values, name) for name in _RUN_OPTIONS if hasattr(values, name)})


def job_call(job: JobSpec, values: Values) -> PreparedCall:
    """Return the call of a job.

    Args:
        job: The job, its ledger not yet resolved.
        values: Values of the call.
    """
    how = run_options(values)
    return PreparedCall(job.resolve_ledger(how.ledger), how)


def folder(url: Place) -> str:
    """Return the canonical URL of a folder."""
    return canonical_url(path(url)).rstrip("/")


class RunValues(TypedDict):
    """Fields of `JobSpec` that do not shape the outputs."""

    storage_options: dict[str, Any]
    workers: int
    flush_interval: float
    log_level: str
    task_limit: int | None
    profile: str | None


def run_values_of(values: Values) -> RunValues:
    """Return how the job of a call runs.

    Raises:
        UsageError: The profile cannot be written.
    """
    profile = getattr(values, "profile", None)
    return {
        "storage_options": values.storage_options,
        "workers": len(os.sched_getaffinity(0)) if values.workers is None else values.workers,
        "flush_interval": values.flush_interval,
        "log_level": getattr(values, "log_level", "warning"),
        "task_limit": getattr(values, "limit_tasks", None),
        "profile": None if profile is None else _profile(profile),
    }


def _profile(place: Place) -> str:
    url = canonical_url(path(place))
    if is_local(url) and (os.path.isdir(url) or not os.path.isdir(os.path.dirname(url))):
        raise UsageError(f"{url}: expected a file in a folder that exists, such as profile.json, for --profile")
    return url


def file_sources_of(values: Values, **others: Any) -> ListedFiles:
    """Return the files that the job of a call reads.

    Args:
        values: Values of the call.
        others: Values in place of the values of the call.

    Raises:
        UsageError: The options exclude each other.
    """
    given = {name: getattr(values, name) for name in _FILE_OPTIONS if hasattr(values, name)}
    given |= {
        "patterns": getattr(values, "patterns", ()),
        "sources_from": getattr(values, "sources_from", None),
        "read_as": getattr(values, "from_", None),
    }
    return file_sources(**{**given, **others})


def file_sources(
    patterns: Sequence[str | RecordedOutputs],
    sources_from: str | None,
    *,
    group: Grouping,
    index_root: str | None,
    index_rule: Literal["scheme", "lhotse"],
    task_bytes: int,
    columns: tuple[str, ...] = (),
    no_index: bool = False,
    base: str | None = None,
    pack: int | None = None,
    pack_by: Literal["order", "folder"] = "order",
    read_as: Literal["shar"] | None = None,
) -> ListedFiles:
    """Return the files that a job reads; arguments are the values of the options of these names.

    Raises:
        UsageError: The options exclude each other.
    """
    if bool(patterns) == bool(sources_from):
        raise UsageError("give source patterns, or a list with --sources-from FILE (one of the two)")
    recorded = tuple(one for one in patterns if isinstance(one, RecordedOutputs))
    listed = tuple(canonical_pattern(one) for one in patterns if not isinstance(one, RecordedOutputs))
    if recorded and (listed or read_as is not None):
        raise UsageError("outputs of other jobs are read alone, and not as Shar: leave patterns and --from shar out")
    if pack_by == "folder" and pack is None:
        raise UsageError("--pack-by folder says how sources are packed: give --pack BYTES, too")
    if read_as is not None:  # folders of Shar datasets
        if pack or group != "auto" or columns:
            raise UsageError(
                "--from shar reads whole shards, with payloads in pairs: leave --pack, --group and --columns out"
            )
        listed, group = tuple(map(files_of_folders, listed)), "pairs"
    below = canonical_url(base) if base else common_base(listed or [f"{one.folder}/*" for one in recorded])
    return ListedFiles(
        patterns=listed,
        sources_from=canonical_url(sources_from) if sources_from else None,
        recorded=recorded,
        base=below and below.rstrip("/") + "/",
        index_root=folder(index_root) if index_root else None,
        index_rule=index_rule,
        build_index=not no_index,
        group=group,
        task_bytes=task_bytes,
        pack_bytes=pack,
        pack_by_folder=pack_by == "folder",
        read_as=read_as,
        columns=columns,
    )


def target(word: str) -> tuple[str, str | None]:
    """Return the format of the shards for ``--to``, and the metadata to publish, which does not change the job."""
    return ("tar", word) if word in TARS_WITH_METADATA else (word, None)


class Written(TypedDict):
    """Fields of `ShardJob` that shape shards."""

    to: str
    published: str | None
    layout: ColumnLayout | None
    compression: OutputCompression | None


class Conversion(Written):
    """Fields of converting jobs that shape outputs."""

    output: str
    dataset: MergedParts | None
    fields: tuple[tuple[str, str], ...]


def shards(values: Values, formats: Sequence[str]) -> Written:
    """Return how the job of a call writes shards.

    Args:
        values: Values of the call.
        formats: Names of our own formats that the call can write.

    Raises:
        UsageError: An option belongs to another format, or the format is unknown.
    """
    require_format(values.to, formats)
    plain, published = target(values.to)
    sizes = {"row_group_bytes": values.row_group_bytes, "page_bytes": values.page_bytes}
    return {
        "to": plain,
        "published": published,
        "layout": _layout(values.to, values.schema, sizes, values.storage_options),
        "compression": parse_compression(values.compress, values.frame, values.to),
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


def conversion(values: Values) -> Conversion:
    """Return how the job of a call writes any records.

    Raises:
        UsageError: An option belongs to another format, or the format is unknown.
    """
    written, to = shards(values, CONVERTED), values.to
    merged = None
    if to == "megatron":
        merged, place = dataset(values.output, dtype_name(values.dtype or "int32"), ("",), drop=values.drop_parts)
    elif values.dtype or values.drop_parts:
        raise UsageError(f"--dtype and --drop-parts are for --to megatron, found --to {to}")
    else:
        place = folder(values.output)
    if to != "shar" and values.fields is not None:
        raise UsageError(f"--fields is for --to shar, found --to {to}")
    fields = _fields(values.fields) if to == "shar" else ()
    return {**written, "output": place, "dataset": merged, "fields": fields}


def _fields(fields: str | Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    """Return the fields of Shar and their extensions."""
    from ledgerbeam.io.datasets.shar.format import parse_fields

    if isinstance(fields, Mapping):
        fields = ",".join(f"{name}={extension}" for name, extension in fields.items())
    return tuple(parse_fields(fields or "").items())


def dataset(output: Place, dtype: str, suffixes: tuple[str, ...], *, drop: bool) -> tuple[MergedParts, str]:
    """Return the Megatron dataset that ``--output`` names, and the folder of its parts."""
    from ledgerbeam.pipelines.datasets.megatron import PARTS_SUFFIX, MergedParts

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
