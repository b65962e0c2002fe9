"""The raw bytes of records, with their positions in the source."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

NO_BYTES = -1
"""The position of a record that has no bytes of its own."""


class RawRecord(NamedTuple):
    """The raw bytes of a record, with its position in the source.

    Attributes:
        url: The source.
        record: Number of the record in it, from 0; blank JSONL lines count.
        start: Its first byte; for a compressed source in the decompressed data. `NO_BYTES` for a row of columns, which
            has no bytes of its own.
        stop: One past its last byte, or `NO_BYTES`. The newline at the end of a line of JSONL is not included.
        data: Its bytes; for a row of columns its JSON.
    """

    url: str
    record: int
    start: int
    stop: int
    data: bytes


def raw_records(url: str, data: bytes, bounds: Sequence[int], record: int) -> list[RawRecord]:
    """Return consecutive records in memory as `RawRecord`.

    Args:
        url: The source.
        data: Their bytes, from the start of the first one on.
        bounds: Offset of each in the source, and the end of the last one.
        record: Number of the first one.
    """
    first = bounds[0]
    return [
        RawRecord(url, number, start, stop, data[start - first : stop - first])
        for number, (start, stop) in enumerate(pairwise(bounds), record)
    ]
