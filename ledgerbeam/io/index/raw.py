"""Records as they lie in their source, with their places."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

__all__ = ["NO_BYTES", "RawRecord", "raw_records"]

NO_BYTES = -1
"""Stands for the place of what has no bytes of its own."""


class RawRecord(NamedTuple):
    """A record as it lies in its source, with its place.

    Attributes:
        url: The source.
        record: The number of the record in it, from 0; blank JSONL lines count.
        start: Its first byte; of a compressed source in the decompressed data. Of a row of columns, which has no bytes
            of its own, `NO_BYTES`.
        stop: One past its last byte, or `NO_BYTES`. The newline that ends a line of JSONL is not among them.
        data: Its bytes; of a row its JSON.
    """

    url: str
    record: int
    start: int
    stop: int
    data: bytes


def raw_records(url: str, data: bytes, bounds: Sequence[int], record: int) -> list[RawRecord]:
    """Return consecutive records that are in memory.

    Args:
        url: The source.
        data: Their bytes, from the beginning of the first one.
        bounds: Where each begins in the source, and where the last one ends.
        record: The number of the first one.
    """
    first = bounds[0]
    return [
        RawRecord(url, number, start, stop, data[start - first : stop - first])
        for number, (start, stop) in enumerate(pairwise(bounds), record)
    ]
