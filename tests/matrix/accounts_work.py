"""The user function of `tests.matrix.accounts`, and what it must leave, computed without any of the library.

Each record is decided by its number alone, so that the two can be compared.
"""

from __future__ import annotations

import collections
import json
import os
import time
from collections.abc import Iterable
from typing import Any

from ledgerbeam import Drop, Route, stats

# Environment variables.
SECONDS = "ACCOUNTS_RECORD_SECONDS"  # how long a record takes, so that there is time to kill something
MENDED = "ACCOUNTS_MENDED"  # set when the function no longer raises
REASONS = ("empty", "short", "long", "twin", "foreign", "odd")
ROUTES = ("aside", "later", "small")
RAISING = 11
BROKEN = 37


def is_chosen(number: int, lines: int, chosen: int, shift: int) -> bool:
    """Return whether a line is one of `chosen` that are spread over all."""
    step = lines // chosen
    return number % step == shift and number // step < chosen


def line(number: int, lines: int) -> bytes:
    """Return a line of the sources, broken or whole."""
    whole = {"id": number, "lines": lines, "text": f"text {number} " + "x" * (number % 50)}
    data = json.dumps(whole).encode()
    return (data[:-4] if is_chosen(number, lines, BROKEN, 5) else data) + b"\n"


def work(record: dict[str, Any]) -> Any:
    """Keep, drop or send aside a record, or raise."""
    time.sleep(float(os.environ.get(SECONDS, "0")))
    number, lines = record["id"], record["lines"]
    stats.count("characters", len(record["text"]))
    stats.distinct("lengths", len(record["text"]))
    if is_chosen(number, lines, RAISING, 9) and MENDED not in os.environ:
        raise ValueError(f"{number} cannot be mapped")
    if number % 10 < len(REASONS):
        return Drop(REASONS[number % 10]) if number % 20 < 10 else record
    if number % 10 == 7:
        return Route(ROUTES[number // 10 % len(ROUTES)], record)
    return record


def expected_counts(numbers: Iterable[int], lines: int, *, mended: bool) -> dict[str, Any]:
    """Return what `ledger status --json` must say of the records of some lines."""
    dropped: collections.Counter[str] = collections.Counter()
    rejected: collections.Counter[str] = collections.Counter()
    written: collections.Counter[str] = collections.Counter()
    read = 0
    for number in numbers:
        read += 1
        if is_chosen(number, lines, BROKEN, 5):
            rejected["not decoded"] += 1
        elif is_chosen(number, lines, RAISING, 9) and not mended:
            rejected["ValueError"] += 1
        elif number % 20 < len(REASONS):
            dropped[REASONS[number % 10]] += 1
        elif number % 10 == 7:
            written[ROUTES[number // 10 % len(ROUTES)]] += 1
        else:
            written[""] += 1
    kept = read - dropped.total() - rejected.total()
    return {
        "read": read, "kept": kept, "dropped": dict(dropped), "rejected": dict(rejected), "written": dict(written)
    }  # fmt: skip


def expected_statistics(lines: int) -> dict[str, int]:
    """Return what `work` observes, also before it raises: the characters, and the number of different lengths."""
    lengths = [
        len(f"text {number} ") + number % 50 for number in range(lines) if not is_chosen(number, lines, BROKEN, 5)
    ]
    return {"characters": sum(lengths), "lengths": len(set(lengths))}
