"""The user function of the matrix: slow enough to be killed in."""

from __future__ import annotations

import os
import time
from typing import Any

from ledgerbeam import Drop, Reject, Route, stats

RECORD_SECONDS = 0.01


def work(record: dict[str, Any]) -> Any:
    """Map a record to none, one or two, here or aside, or find it unfit."""
    time.sleep(RECORD_SECONDS)
    number = record["id"]
    stats.count("characters", len(record["text"]))
    stats.observe("number", number)
    stats.distinct("ends", number % 100)
    mapped = {**record, "text": record["text"].upper()}
    if number % 11 == 3:
        return None
    if number % 13 == 4:
        return Drop("even" if number % 2 == 0 else "odd")
    if number % 17 == 6:
        return Reject("unfit")
    if number % 19 == 8:
        raise ValueError(f"{number} cannot be mapped")
    if number % 7 == 1:
        return Route("aside", mapped)
    return [mapped, {**mapped, "copy": True}] if number % 11 == 5 else mapped


def count(record: dict[str, Any]) -> Any:
    """Return even records."""
    return record if record["id"] % 2 == 0 else None


def burn(record: dict[str, Any]) -> Any:
    """Compute for some 20 ms, and note who did, when, and for how many seconds of processor time."""
    began, used = time.monotonic(), time.thread_time()
    total = 0
    for number in range(400_000):
        total += number & 7
    done = {"total": total, "process": os.getpid(), "seconds": time.thread_time() - used}
    return {**record, **done, "began": began, "ended": time.monotonic()}


def ending(record: dict[str, Any]) -> str:
    """Return a key that many records have."""
    return str(record["text"])[-2:]
