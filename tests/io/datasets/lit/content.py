"""Samples for the tests of LIT datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ledgerbeam.io.datasets.lit import LitWriter


def sample(number: int) -> dict[str, Any]:
    """Return a sample of five modalities; every third has no `scene.cls`."""
    chance = np.random.default_rng(number)
    found: dict[str, Any] = {
        "__key__": f"d/k{number:04d}",
        "jpg": b"not looked at %d" % number * (number * 17 % 90),
        "semantic.seg16": chance.integers(0, 2**16, (3, 4), dtype=np.uint16),
        "instance.seg8": chance.integers(0, 2**8, (4, 3), dtype=np.uint8),
        "info.json": {"number": number, "text": "ü"},
    }
    if number % 3:
        found["scene.cls"] = number
    return found


def write(folder: Path | str, count: int, size: int = 7, options: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Write a dataset of one fold, `train`, and return its samples."""
    samples = [sample(number) for number in range(count)]
    with LitWriter(str(folder), options, metadata={"classes": 5}, max_samples=size) as writer:
        for one in samples:
            writer.write(one)
    return samples
