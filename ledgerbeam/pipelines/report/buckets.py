"""Number, size and skew of the buckets of an exchange."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ledgerbeam.ledger import LedgerStore
from ledgerbeam.sources.kind import BUCKET_SCHEME


@dataclass(frozen=True)
class BucketSizes:
    """Sizes of the buckets of an exchange that have records.

    Attributes:
        number: Number of buckets.
        bytes: Total bytes of their records, which the second stage reads.
        median: Median size in bytes.
        largest: Size of the largest bucket in bytes.
        largest_bucket: Name of the largest bucket. The names of its shards start with it.
    """

    number: int
    bytes: int
    median: int
    largest: int
    largest_bucket: str

    @property
    def skew(self) -> float:
        """Size of the largest bucket divided by the mean size."""
        return self.largest * self.number / self.bytes

    def values(self) -> dict[str, Any]:
        """Return the sizes as a JSON object."""
        return {
            "number": self.number,
            "bytes": self.bytes,
            "median": self.median,
            "largest": self.largest,
            "largest_bucket": self.largest_bucket,
            "skew": self.skew,
        }


def bucket_sizes(store: LedgerStore) -> BucketSizes | None:
    """Return the sizes of the buckets that are the sources of a ledger; None if no source is a bucket with records."""
    first = next(iter(islice(store.sources(), 1)), None)
    if first is None or not first.url.startswith(BUCKET_SCHEME):
        return None
    sizes = [(row.size, row.url) for row in store.sources() if row.state != "gone" and row.size]
    if not sizes:
        return None
    largest, url = max(sizes)
    plain = [size for size, _ in sizes]
    return BucketSizes(len(sizes), sum(plain), int(statistics.median(plain)), largest, url.rpartition("/")[2])
