"""How a job goes to the processes that work on it: as JSON in a file, without secrets."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from ledgerbeam.ledger.model.json_rows import decode, encode
from ledgerbeam.pipelines.jobs.convert import ConvertJob, MaterializeJob
from ledgerbeam.pipelines.jobs.index import IndexJob
from ledgerbeam.pipelines.jobs.map import MapJob
from ledgerbeam.pipelines.jobs.pipeline import PipelineJob
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.jobs.tokenize import TokenizeJob

__all__ = ["JOBS", "dump_job", "load_job"]

JOBS: dict[str, type[JobSpec]] = {
    kind.command: kind for kind in (IndexJob, MapJob, ConvertJob, TokenizeJob, MaterializeJob, PipelineJob)
}
"""Every kind of job, by its command."""


def dump_job(job: JobSpec) -> bytes:
    """Return a job as JSON, without the storage options: they may hold credentials, and this goes to a file."""
    return encode({"command": job.command, "job": {**dataclasses.asdict(job), "storage_options": {}}})


def load_job(data: bytes, storage_options: dict[str, Any]) -> JobSpec:
    """Return the job that `dump_job` wrote."""
    found = decode(data)
    job: JobSpec = _built(JOBS[found["command"]], found["job"])
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
