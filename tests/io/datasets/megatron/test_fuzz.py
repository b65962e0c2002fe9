"""A short run of `fuzz`, whose long one is for changes of the reader."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

from tests.io.datasets.megatron.fuzz import run

INPUTS = 1500
MOST_BYTES = 1_000_000
"""Far more than any of the inputs, of some 100 bytes, and far less than what their counts and lengths say."""


def test_damaged_datasets_give_typed_errors_and_take_little_memory(tmp_path: Path) -> None:
    run(50, 2, str(tmp_path))  # imports and caches
    tracemalloc.start()
    try:
        outcomes = run(INPUTS, 1, str(tmp_path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MOST_BYTES
    assert outcomes["read"] > INPUTS / 2
    assert outcomes["IndexMismatchError"] > INPUTS / 4
    assert outcomes["open: IndexMismatchError"] > INPUTS / 4
