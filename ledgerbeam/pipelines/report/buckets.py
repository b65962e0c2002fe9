"""The buckets of an exchange: how many there are, how large, and how unequal."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ledgerbeam.ledger import LedgerStore
from ledgerbeam.sources.kind import BUCKET_SCHEME


@dataclass(frozen=True)
class BucketSizes:
    """The buckets of an exchange that have records.

    Attributes:
        number: How many there are.
        bytes: Of their records: what the second stage reads.
        median: Bytes of the one in the middle.
        largest: Bytes of the largest.
        largest_bucket: Its name, which the names of its shards begin with.
    """

    number: int
    bytes: int
    median: int
    largest: int
    largest_bucket: str

    @property
    def skew(self) -> float:
        """How many times larger than the mean the largest is."""
        return self.largest * self.number / self.bytes

    def values(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "number": self.number,
            "bytes": self.bytes,
            "median": self.median,
            "largest": self.largest,
            "largest_bucket": self.largest_bucket,
            "skew": self.skew,
        }


def bucket_sizes(store: LedgerStore) -> BucketSizes | None:
    """Return the sizes of the buckets that a ledger has as its sources; None if its sources are others, or none."""
    first = next(iter(islice(store.sources(), 1)), None)
    if first is None or not first.url.startswith(BUCKET_SCHEME):
        return None
    sizes = [(row.size, row.url) for row in store.sources() if row.state != "gone" and row.size]
    if not sizes:
        return None
    largest, url = max(sizes)
    plain = [size for size, _ in sizes]
    return BucketSizes(len(sizes), sum(plain), int(statistics.median(plain)), largest, url.rpartition("/")[2])
