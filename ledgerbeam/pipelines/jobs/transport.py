"""How a job goes to the processes that work on it: as JSON in a file, without secrets."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from importlib import import_module
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from ledgerbeam.ledger.model.json_rows import decode, encode
from ledgerbeam.pipelines.jobs.spec import JobSpec

__all__ = ["KINDS", "dump_job", "load_job"]

KINDS = {
    "candidates": ("near", "CandidatesJob"),
    "cluster": ("near", "ClusterJob"),
    "convert": ("convert", "ConvertJob"),
    "decide": ("dedup", "DecideJob"),
    "dedup": ("dedup", "DedupJob"),
    "group": ("orders", "GroupJob"),
    "index": ("index", "IndexJob"),
    "join": ("join", "JoinJob"),
    "labels": ("stars", "LabelsJob"),
    "large-stars": ("stars", "LargeStarsJob"),
    "map": ("map", "MapJob"),
    "materialize": ("convert", "MaterializeJob"),
    "merge": ("bucket_jobs", "MergeJob"),
    "near": ("near", "NearJob"),
    "pairs": ("pairs", "PairsJob"),
    "pipeline": ("pipeline", "PipelineJob"),
    "repartition": ("orders", "RepartitionJob"),
    "scatter": ("exchange", "ScatterJob"),
    "shuffle": ("orders", "ShuffleJob"),
    "sign": ("pairs", "SignJob"),
    "small-stars": ("stars", "SmallStarsJob"),
    "sort": ("orders", "SortJob"),
    "split": ("split", "SplitJob"),
    "stars": ("stars", "StarsJob"),
    "texts": ("near", "TextsJob"),
    "tokenize": ("tokenize", "TokenizeJob"),
    "verify": ("near", "VerifyJob"),
}
"""Module and class of every kind of job, by its command: a process imports what its job needs."""


def dump_job(job: JobSpec) -> bytes:
    """Return a job as JSON, without the storage options: they may hold credentials, and this goes to a file."""
    return encode({"command": job.command, "job": {**dataclasses.asdict(job), "storage_options": {}}})


def load_job(data: bytes, storage_options: dict[str, Any]) -> JobSpec:
    """Return the job that `dump_job` wrote."""
    found = decode(data)
    module, kind = KINDS[found["command"]]
    job: JobSpec = _built(getattr(import_module(f"ledgerbeam.pipelines.jobs.{module}"), kind), found["job"])
    return dataclasses.replace(job, storage_options=storage_options)


def _built(kind: Any, value: Any) -> Any:
    """Return a value of JSON as what the annotation of a field says: dataclasses, tuples, or itself."""
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
