"""The user function of the suite: slow enough to be killed in, and every call leaves a line in a trace."""

from __future__ import annotations

import functools
import os
import time
from typing import Any

from ledgerbeam import Drop, Reject, Route, stats

TRACE_VARIABLE = "LEDGERBEAM_TEST_TRACE"
"""Names the trace; every line is ``<record id> <pid> <CLOCK_MONOTONIC in ns>``, written when the record is done."""

RECORD_SECONDS = 0.006  # how long a record takes in a whole job; the forked writers of `writers` do not wait


def work(record: dict[str, Any]) -> Any:
    """Map a record to none, one or two, as its content says."""
    time.sleep(RECORD_SECONDS)
    return quick(record)


def quick(record: dict[str, Any]) -> Any:
    """Do what `work` does, without waiting."""
    os.write(_trace(), f"{record['id']} {os.getpid()} {time.monotonic_ns()}\n".encode())
    return result(record)


def result(record: dict[str, Any]) -> Any:
    """Return what `work` returns, without its effects but for its statistics, which are none outside of a job."""
    number = int(record["id"].partition("-")[2])
    stats.count("characters", len(record["id"]))
    stats.observe("number", number)
    stats.distinct("ids", record["id"])
    mapped = {**record, "text": record["text"].upper()}
    match record["fate"]:
        case "drop":
            return Drop("even" if number % 2 == 0 else "odd")
        case "reject":
            return Reject("unfit", f"{record['id']} does not fit")
        case "raise":
            raise ValueError(f"{record['id']} cannot be mapped")
        case "route":
            return Route("aside", mapped)
    return {0: None, 1: mapped, 2: [mapped, {**mapped, "copy": True}]}[record["copies"]]


@functools.cache
def _trace() -> int:
    return os.open(os.environ[TRACE_VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
