"""The user function of the suite: slow enough to be killed in, and every call leaves a line in a trace."""

from __future__ import annotations

import functools
import os
import time
from typing import Any

TRACE_VARIABLE = "LEDGERBEAM_TEST_TRACE"
"""Names the trace; every line is ``<record id> <pid> <CLOCK_MONOTONIC in ns>``, written when the record is done."""

RECORD_SECONDS = 0.006
"""How long a record takes in a whole job; the forked writers of `writers` do not wait."""


def work(record: dict[str, Any]) -> Any:
    """Map a record to none, one or two, as its content says."""
    time.sleep(RECORD_SECONDS)
    return quick(record)


def quick(record: dict[str, Any]) -> Any:
    """Do what `work` does, without waiting."""
    os.write(_trace(), f"{record['id']} {os.getpid()} {time.monotonic_ns()}\n".encode())
    return result(record)


def result(record: dict[str, Any]) -> Any:
    """Return what `work` returns, without its effects."""
    mapped = {**record, "text": record["text"].upper()}
    return {0: None, 1: mapped, 2: [mapped, {**mapped, "copy": True}]}[record["copies"]]


@functools.cache
def _trace() -> int:
    return os.open(os.environ[TRACE_VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
