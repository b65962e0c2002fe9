"""Speed of the function of a job for ``--dry-run``, measured in this process with some records."""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import islice
from typing import Any

import orjson

from ledgerbeam.errors import LedgerbeamError
from ledgerbeam.pipelines.jobs.shard_job import ShardJob
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.preview.costs import Speed
from ledgerbeam.pipelines.preview.sample import sampled_records, try_function
from ledgerbeam.user_code.objects import close_objects

_RECORDS, _SOURCES, _BYTES = 64, 8, 1 << 20
"""Maximum number of records, sources and bytes of the sample."""

_SECONDS = 1.0
"""Time limit of the trial in seconds, without set-up. After it, no further record is tried."""


def measured_speed(job: JobSpec) -> Speed | None:
    """Return the measured speed of a job's function; None if the job has no function, or no record was processed."""
    if not isinstance(job, ShardJob) or job.command not in ("map", "tokenize"):
        return None
    set_ups: list[float] = []
    size, seconds, began = 0, 0.0, time.perf_counter()
    try:
        sampled = list(sampled_records(job, islice(job.pages(), 1), _RECORDS, sources=_SOURCES, most_bytes=_BYTES))
        for run in try_function(job, sampled, set_ups.append, read_back=False):
            if run.outcome != "unreadable":
                size += _size(run.sampled.records)
                seconds += run.seconds
            if time.perf_counter() - began > _SECONDS + sum(set_ups):
                break
    except (LedgerbeamError, TypeError):  # the run reports library errors; records of other types have no size
        return None
    finally:
        close_objects()
    return Speed(sum(set_ups), seconds / size) if size else None


def _size(records: Any) -> int:
    """Return the approximate size of records in their source, in bytes; 0 for tables."""
    return sum(map(_record_size, records)) if isinstance(records, list) else 0


def _record_size(record: Any) -> int:
    if isinstance(record, (bytes, str)):
        return len(record)
    parts = list(record.values()) if isinstance(record, Mapping) else []
    if any(isinstance(part, bytes) for part in parts):  # members of a sample
        return sum(len(part) for part in parts if isinstance(part, bytes))
    return len(orjson.dumps(record, str, orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY)) + 1
