"""Transfer of jobs to other processes, as JSON in a file, without secrets."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from importlib import import_module
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from ledgerbeam.errors import LedgerError, SourceNotFoundError
from ledgerbeam.io import publish_bytes
from ledgerbeam.io.storage.files import read_bytes
from ledgerbeam.ledger.model.values import decode, encode
from ledgerbeam.pipelines.jobs.spec import JobSpec, work_folder_of

KINDS = {
    "candidates": ("dedup.near", "CandidatesJob"),
    "cluster": ("dedup.near", "ClusterJob"),
    "convert": ("jobs.convert", "ConvertJob"),
    "decide": ("dedup.exact", "DecideJob"),
    "dedup": ("dedup.exact", "DedupJob"),
    "group": ("exchange.orders", "GroupJob"),
    "index": ("jobs.index", "IndexJob"),
    "join": ("exchange.join", "JoinJob"),
    "labels": ("dedup.stars", "LabelsJob"),
    "large-stars": ("dedup.stars", "LargeStarsJob"),
    "map": ("jobs.map", "MapJob"),
    "materialize": ("jobs.convert", "MaterializeJob"),
    "merge": ("exchange.bucket_jobs", "MergeJob"),
    "near": ("dedup.near", "NearJob"),
    "pairs": ("dedup.pairs", "PairsJob"),
    "pipeline": ("jobs.pipeline", "PipelineJob"),
    "repartition": ("exchange.orders", "RepartitionJob"),
    "scatter": ("exchange.jobs", "ScatterJob"),
    "shuffle": ("exchange.orders", "ShuffleJob"),
    "sign": ("dedup.pairs", "SignJob"),
    "small-stars": ("dedup.stars", "SmallStarsJob"),
    "sort": ("exchange.orders", "SortJob"),
    "split": ("exchange.split", "SplitJob"),
    "stars": ("dedup.stars", "StarsJob"),
    "texts": ("dedup.near", "TextsJob"),
    "tokenize": ("jobs.tokenize", "TokenizeJob"),
    "verify": ("dedup.near", "VerifyJob"),
}
"""Module and class of every kind of job, by command. A process imports only the module of its job."""


def dump_job(job: JobSpec) -> bytes:
    """Return a job as JSON, without the storage options, which may hold credentials and must not be in a file."""
    return encode({"command": job.command, "job": {**dataclasses.asdict(job), "storage_options": {}}})


def load_job(data: bytes, storage_options: dict[str, Any]) -> JobSpec:
    """Return the job that `dump_job` wrote."""
    found = decode(data)
    module, kind = KINDS[found["command"]]
    job: JobSpec = _built(getattr(import_module(f"ledgerbeam.pipelines.{module}"), kind), found["job"])
    return dataclasses.replace(job, storage_options=storage_options)


def keep_job(job: JobSpec) -> None:
    """Write a job beside its ledger, for `kept_job`."""
    publish_bytes(f"{job.work_folder}/{_KEPT}", dump_job(job), job.storage_options)


def kept_job(ledger: str, storage_options: dict[str, Any]) -> JobSpec:
    """Return the job of the last run of a ledger.

    Raises:
        LedgerError: The ledger has no stored job.
    """
    url = f"{work_folder_of(ledger)}/{_KEPT}"
    try:
        data = read_bytes(url, storage_options)
    except SourceNotFoundError:
        raise LedgerError(
            f"{url}: there is no such file, since no run has finished a task of a job that calls a function; run the "
            "job first"
        ) from None
    return load_job(data, storage_options)


_KEPT = "job.json"


def _built(kind: Any, value: Any) -> Any:
    """Convert a value of JSON to the type of a field's annotation: dataclasses, tuples, or itself."""
    if get_origin(kind) is UnionType:
        others = [other for other in get_args(kind) if other is not NoneType]
        # Of a name or an object that stands for one: objects are mappings here.
        (kind, *_) = sorted(others, key=lambda other: dataclasses.is_dataclass(other) != isinstance(value, Mapping))
    if dataclasses.is_dataclass(kind) and isinstance(value, Mapping):
        hints = get_type_hints(kind)
        return kind(**{name: _built(hints[name], part) for name, part in value.items()})  # type: ignore[operator]
    if get_origin(kind) is tuple:
        return tuple(_built(get_args(kind)[0], part) for part in value)
    return value
