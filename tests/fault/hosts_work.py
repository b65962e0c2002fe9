"""The function of the job of `hosts`: takes as long as its record says, and notes on its host's disk that it ran."""

from __future__ import annotations

import os
import time
from typing import Any

LOG = "LEDGERBEAM_HOSTS_LOG"
PACE = "LEDGERBEAM_HOSTS_PACE"


def work(record: dict[str, Any]) -> dict[str, Any]:
    _note(f"begin {record['id']}")
    time.sleep(record["seconds"] * float(os.environ.get(PACE, "1")))
    _note(f"end {record['id']}")
    return {"id": record["id"], "text": f"took {record['seconds']}"}


def _note(line: str) -> None:
    if path := os.environ.get(LOG):
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{line} {time.time():.3f}\n")
