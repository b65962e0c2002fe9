"""Functions of one record that the tables map."""

from __future__ import annotations

from typing import Any

TENTH = int(0.9 * (1 << 48))
"""Numbers above it are a tenth of all."""

RECORD_LOOPS = 100_000
"""Number of loops for a record: about 5 ms of pure Python."""


def keep(record: dict[str, Any]) -> dict[str, Any]:
    """Change nothing."""
    return record


def number(record: dict[str, Any]) -> dict[str, Any]:
    """Return the number of a record as a column beside it."""
    return {"number": record["id"]}


def keep_tenth(record: dict[str, Any]) -> dict[str, Any] | None:
    """Keep a tenth of the records."""
    return record if record["id"] > TENTH else None


def count_loops(record: dict[str, Any]) -> dict[str, Any]:
    """Do a fixed amount of work, so that a slower core takes longer."""
    total = 0
    for number in range(RECORD_LOOPS):
        total += number & 7
    return {**record, "total": total}


def describe(record: dict[str, Any]) -> dict[str, Any]:
    """Count words and letters: about 7 us for a line of 600 bytes."""
    words = record["text"].split()
    lengths = [*map(len, words)]
    return {**record, "words": len(words), "letters": sum(lengths), "longest": max(lengths, default=0)}
