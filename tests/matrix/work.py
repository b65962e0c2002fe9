"""The user function of the matrix: slow enough to be killed in."""

from __future__ import annotations

import time
from typing import Any

RECORD_SECONDS = 0.01


def work(record: dict[str, Any]) -> Any:
    """Maps a record to none, one or two."""
    time.sleep(RECORD_SECONDS)
    number = record["id"]
    mapped = {**record, "text": record["text"].upper()}
    if number % 11 == 3:
        return None
    return [mapped, {**mapped, "copy": True}] if number % 11 == 5 else mapped
