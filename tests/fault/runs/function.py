"""The user's function of the simulated job, and what one clean run of it makes of a source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import orjson

from ledgerbeam.sources.kind import plan_spans

TASK_BYTES = 45
trouble: Callable[[], None] | None = None  # called before each record: what it raises, the function raises


def work(record: dict[str, Any]) -> Any:
    """The user's function: it drops some records and doubles some; the world may have it raise."""
    if trouble is not None:
        trouble()
    return worked(record)


def worked(record: dict[str, Any]) -> Any:
    """Return what the function makes of a record."""
    number = int(record["id"][-1])
    return {0: record, 1: record, 2: [record, record], 3: None}[number % 4]


def clean_outputs(name: str, data: bytes) -> dict[str, bytes] | None:
    """Return what one undisturbed run makes of a source; None if it fails."""
    lines = data.splitlines(keepends=True)
    offsets = np.cumsum([0, *map(len, lines)], dtype=np.uint64)
    made: dict[str, bytes] = {}
    for start, stop in plan_spans(offsets, task_bytes=TASK_BYTES) if lines else []:
        try:
            records = [orjson.loads(line) for line in lines[start:stop] if line.strip()]
            results = [worked(record) for record in records]
        except (orjson.JSONDecodeError, TypeError, KeyError, ValueError, IndexError):
            return None
        rows = [
            row for result in results for row in (result if isinstance(result, list) else [result] if result else [])
        ]
        encoded = [orjson.dumps(row) + b"\n" for row in rows if row is not None]
        if encoded:
            output = f"{name}-{start:010d}.jsonl"
            made[output] = b"".join(encoded)
            made[f"{output}.idx"] = np.cumsum([0, *map(len, encoded)], dtype="<u8").tobytes()
    return made
