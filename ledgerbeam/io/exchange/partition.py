"""How the order of the records of an exchange is cut into buckets; it belongs to what the exchange is."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self, TypeGuard

import orjson

from ledgerbeam.errors import LedgerDamagedError
from ledgerbeam.io.exchange.run_file import BLOCK_BYTES, Cuts

__all__ = ["MOST_REQUESTS", "Partition"]

MOST_REQUESTS = 10_000_000
"""Reads of slices of an exchange, at most: one for each run file and part of a bucket."""


@dataclass(frozen=True)
class Partition:
    """How an order is cut into buckets.

    Attributes:
        buckets: How many there are.
        sampled: The cuts between them, packed; empty if the keys begin with a hash, which is cut evenly.
        block_bytes: Size of the blocks of run files: how finely a bucket can be cut into parts.
    """

    buckets: int
    sampled: str = ""
    block_bytes: int = BLOCK_BYTES

    @classmethod
    def of_cuts(cls, cuts: Cuts, block_bytes: int = BLOCK_BYTES) -> Self:
        """Return a partition by cuts, ascending."""
        packed = zlib.compress(orjson.dumps([cut.hex() for cut in cuts]), 9)
        return cls(len(cuts) + 1, base64.b85encode(packed).decode(), block_bytes)

    @classmethod
    def recorded(cls, parameters: Mapping[str, Any]) -> Self | None:
        """Return the partition among the parameters of a job; None if there is none that a job could have decided."""
        found = parameters.get("partition")
        if not isinstance(found, Mapping):
            return None
        buckets, cuts, block_bytes = found.get("buckets"), found.get("cuts", ""), found.get("block_bytes", BLOCK_BYTES)
        if not _is_number(buckets) or not _is_number(block_bytes) or not isinstance(cuts, str):
            return None
        return cls(buckets, cuts, block_bytes)

    def parameters(self) -> dict[str, Any]:
        """Return what of it shapes the outputs."""
        found: dict[str, Any] = {"buckets": self.buckets, "block_bytes": self.block_bytes}
        return {"partition": found | ({"cuts": self.sampled} if self.sampled else {})}

    def cuts(self) -> Cuts:
        """Return the least key of each bucket but the first.

        Raises:
            LedgerDamagedError: They do not read.
        """
        if not self.sampled:
            return [(bucket * 2**64 // self.buckets).to_bytes(8, "big") for bucket in range(1, self.buckets)]
        try:
            found = [bytes.fromhex(cut) for cut in orjson.loads(zlib.decompress(base64.b85decode(self.sampled)))]
            if len(found) != self.buckets - 1 or any(one >= other for one, other in pairwise(found)):
                raise ValueError(f"expected {self.buckets - 1:,} in ascending order, found {len(found):,}")
        except (ValueError, TypeError, zlib.error) as error:
            raise LedgerDamagedError(f"the cuts between the buckets of this job do not read: {error}") from error
        return found


def _is_number(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 < value <= MOST_REQUESTS
