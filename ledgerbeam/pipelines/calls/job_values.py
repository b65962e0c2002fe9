"""Fields of jobs, from the shared options of calls."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

from ledgerbeam._base.extensions import load_extension, load_reference
from ledgerbeam.errors import UsageError
from ledgerbeam.io.exchange.order import By, Nulls, Scheme, key_fields, key_function
from ledgerbeam.io.listing.patterns import canonical_pattern, common_base, files_of_folders
from ledgerbeam.io.storage.urls import canonical_url, is_local
from ledgerbeam.io.tar.grouping import Grouping
from ledgerbeam.ledger.worker.limits import parse_limits
from ledgerbeam.pipelines.calls.call import Values
from ledgerbeam.pipelines.calls.values import CONVERTED, MAPPED, TARS_WITH_METADATA, path, require_format
from ledgerbeam.pipelines.jobs.shard_job import parse_compression
from ledgerbeam.pipelines.jobs.sources import ListedFiles
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.outputs.columns import COLUMN_FORMATS, ColumnLayout, read_schema
from ledgerbeam.pipelines.runners.run import RunOptions
from ledgerbeam.pipelines.runners.stage_loop import PreparedCall
from ledgerbeam.sources.listing import RecordedOutputs
from ledgerbeam.sources.where import Where, read_where
from ledgerbeam.user_code.objects import check_object

if TYPE_CHECKING:  # brings NumPy
    from ledgerbeam.pipelines.exchange.partition import KeyChoice

Place = str | PathLike[str]

_FILE_OPTIONS = ("group", "index_root", "index_rule", "task_bytes", "columns", "no_index", "base", "pack", "pack_by")
_RUN_OPTIONS = tuple(option.name for option in dataclasses.fields(RunOptions))


def job_call(kind: Callable[..., JobSpec], values: Values, /, **fields: Any) -> PreparedCall:
    """Create a job with `kind`, from `fields` and the fields of `run_values_of`; return the call that runs it."""
    how = RunOptions(**{name: getattr(values, name) for name in _RUN_OPTIONS if hasattr(values, name)})
    return PreparedCall(kind(**fields, **run_values_of(values)).resolve_ledger(how.ledger), how)


def run_values_of(values: Values) -> dict[str, Any]:
    """Return the fields of `JobSpec` that do not shape the outputs."""
    profile = getattr(values, "profile", None)
    if profile is not None:
        profile = canonical_url(path(profile))
        if is_local(profile) and (os.path.isdir(profile) or not os.path.isdir(os.path.dirname(profile))):
            raise UsageError(f"--profile {profile}: expected a file in a folder that exists, such as profile.json")
    limits = {name: _listed(getattr(values, name, None)) for name in ("rate", "budget")}
    parse_limits(*limits.values())
    return {
        **limits,
        "storage_options": values.storage_options,
        "workers": len(os.sched_getaffinity(0)) if values.workers is None else values.workers,
        "flush_interval": values.flush_interval,
        "log_level": getattr(values, "log_level", "warning"),
        "task_limit": getattr(values, "limit_tasks", None),
        "profile": profile,
        "answers": None if getattr(values, "answers", None) is None else folder(values.answers),
    }


def _listed(values: object) -> tuple[str, ...]:
    if values is None:
        return ()
    return tuple(str(value) for value in (values if isinstance(values, (list, tuple)) else [values]))


def folder(url: Place) -> str:
    """Return the canonical URL of a folder."""
    return canonical_url(path(url)).rstrip("/")


def file_sources_of(values: Values, notes: str = "", **others: Any) -> ListedFiles:
    """Return the files that the job of a call reads. `notes` names a column with notes; `others` replace values."""
    given = {name: getattr(values, name) for name in _FILE_OPTIONS if hasattr(values, name)}
    given |= {
        "patterns": getattr(values, "patterns", ()),
        "sources_from": getattr(values, "sources_from", None),
        "read_as": getattr(values, "from_", None),
    }
    files = file_sources(**{**given, **others})
    folders = tuple(dict.fromkeys(map(folder, getattr(values, "with_", ()))))
    return _selected(files, folders, getattr(values, "where", None), notes, values.storage_options)


def _selected(
    files: ListedFiles,
    folders: tuple[str, ...],
    where: str | Callable[..., Any] | None,
    notes: str,
    options: Mapping[str, Any],
) -> ListedFiles:
    """Return the files with a condition over columns, and a column with notes. The job reads only selected records."""
    used = where is not None or bool(notes)
    if not used and not folders:
        return files
    if notes and not folders:
        raise UsageError(f"--cut takes ranges from a column, {notes}: give the folder that has it, --with URL")
    if not used or not folders:
        raise UsageError("--with URL gives columns, and --where CONDITION chooses records by them: give both, or none")
    if files.pack_bytes is not None:
        raise UsageError("--pack reads whole files, and --where some of their records: leave one of them out")
    from ledgerbeam.sources.columns import ColumnFolder, conditioned

    def made(function: str | Callable[..., Any]) -> Where:
        from ledgerbeam.pipelines.jobs.user_function import user_function

        found = user_function(function)
        return Where(function=found.reference, made_of=found.made_of)

    condition, needed = conditioned([ColumnFolder(url, options) for url in folders], read_where(where, made), notes)
    return dataclasses.replace(files, beside=needed, where=condition, notes=notes)


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
    """Return the files that a job reads, from the options with these names. UsageError: options exclude each other."""
    if bool(patterns) == bool(sources_from):
        raise UsageError("give source patterns, or a list with --sources-from FILE (one of the two)")
    recorded = tuple(one for one in patterns if isinstance(one, RecordedOutputs))
    listed = tuple(canonical_pattern(one) for one in patterns if not isinstance(one, RecordedOutputs))
    if recorded and (listed or read_as is not None):
        raise UsageError("outputs of other jobs cannot be read together with patterns or with --from: leave these out")
    if pack_by == "folder" and pack is None:
        raise UsageError("--pack-by folder needs the size of a pack: give --pack BYTES, too")
    if read_as is not None:  # folders of Shar datasets
        if pack or group != "auto" or columns:
            raise UsageError(
                "--from shar reads whole shards and pairs their members: leave --pack, --group and --columns out"
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


def shards(values: Values, formats: Sequence[str]) -> dict[str, Any]:
    """Return the fields of `ShardJob` that shape shards, and `published`: the metadata to write beside them.

    Raises:
        UsageError: An option belongs to another format, or the format is neither known nor one of `formats`.
    """
    require_format(values.to, formats)
    is_tar = values.to in TARS_WITH_METADATA
    return {
        **table_shards(values, values.to),
        "to": "tar" if is_tar else values.to,
        "published": values.to if is_tar else None,
        "compression": parse_compression(values.compress, values.frame, values.to),
    }


def table_shards(values: Values, to: str) -> dict[str, Any]:
    """Return the fields of `ShardJob` for the options of tables. UsageError: an option belongs to another format."""
    sizes = {"row_group_bytes": values.row_group_bytes, "page_bytes": values.page_bytes}
    return {"to": to, "layout": _layout(to, values.schema, sizes, values.storage_options)}


def _layout(
    to: str, schema: str | None, sizes: Mapping[str, int | None], storage_options: Mapping[str, Any]
) -> ColumnLayout | None:
    """Return the layout of Parquet or Arrow files; None for other formats. UsageError: an option does not fit."""
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


def conversion(values: Values) -> dict[str, Any]:
    """Return the output fields of a job that converts records. It raises the errors of `shards`."""
    written, to = shards(values, CONVERTED), values.to
    merged = None
    if to == "megatron":
        product = load_extension("ledgerbeam.products", to)
        merged = product.of_options(path(values.output), values.dtype or "int32", ("",), drop=values.drop_parts)
    elif values.dtype or values.drop_parts:
        raise UsageError(f"--dtype and --drop-parts are for --to megatron, found --to {to}")
    if to != "shar" and values.fields is not None:
        raise UsageError(f"--fields is for --to shar, found --to {to}")
    return {
        **written,
        "output": folder(values.output) if merged is None else merged.folder,
        "dataset": merged,
        "fields": load_extension("ledgerbeam.encoders", to).parse_fields(values.fields) if to == "shar" else (),
    }


def decision_values(values: Values, columns: str, *, mark: bool = False) -> dict[str, Any]:
    """Return the output fields of a `MarkingJob`.

    Args:
        values: The options of the call.
        columns: ``module:function`` that returns the schema of the decisions; imported only if columns are written.
        mark: Whether columns are written in any case.

    Raises:
        UsageError: An option does not fit columns, or records have no format.
    """
    if not (values.mark or mark):
        if values.to is None:
            raise UsageError("expected a format of the records: give --to FORMAT, or --mark for columns")
        return output_values(values)
    records_only = {name: getattr(values, name) for name in ("to", "pack", "compress", "frame", "schema")}
    if given := [f"--{name}" for name, value in records_only.items() if value is not None]:
        raise UsageError(f"--mark writes columns: leave {' and '.join(given)} out")
    written = table_shards(values, "parquet")
    from ledgerbeam.io.columns.schema import JobSchema  # brings pyarrow

    layout = written["layout"].decided(JobSchema({"": load_reference(columns)()}))
    return {"output": folder(values.output), **written, "layout": layout, "mark": True}


def output_values(values: Values) -> dict[str, Any]:
    """Return the output fields of a job that writes records unchanged. UsageError: `to` is a tar with metadata."""
    if values.to in TARS_WITH_METADATA:
        raise UsageError(
            f"to: this job cannot write the metadata of {values.to!r}; write --to tar, then run: ledgerbeam publish "
            f"LEDGER --as {values.to}"
        )
    written = shards(values, MAPPED)
    del written["published"]
    return {"output": folder(values.output), **written}


def gather_values(values: Values, files: ListedFiles | None = None) -> dict[str, Any]:
    """Return the fields of `GatherJob`, the last job of an exchange. `files` is the left side of a join."""
    return {
        "files": file_sources_of(values) if files is None else files,
        **output_values(values),
        "bucket_bytes": values.bucket_bytes,
        "shard_bytes": values.shard_bytes,
        "max_slices": values.max_slices,
    }


def key_choice(
    by: By, scheme: Scheme, *, descending: bool = False, nulls: Nulls = "last", option: str = "by"
) -> KeyChoice:
    """Return the key of records; `option` is its name in messages.

    Raises:
        FunctionError: A function cannot be imported, or cannot be sent to other processes.
        UsageError: The names of fields are invalid.
    """
    from ledgerbeam.pipelines.exchange.partition import KeyChoice
    from ledgerbeam.pipelines.jobs.user_function import user_function

    fields = key_fields(by, option)
    if fields:
        return KeyChoice(scheme, fields, descending=descending, nulls=nulls)
    found = user_function(key_function(by, option))
    check_object(found.reference, {})
    return KeyChoice(scheme, function=found.reference, made_of=found.made_of, descending=descending, nulls=nulls)
