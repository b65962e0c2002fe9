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
from ledgerbeam.io.exchange.rounds import MOST_MERGES, NO_MERGES, Merges
from ledgerbeam.io.exchange.run_file import BLOCK_BYTES, Cuts

MOST_BUCKETS = 10_000_000


@dataclass(frozen=True)
class Partition:
    """How an order is cut into buckets.

    Attributes:
        buckets: How many there are.
        sampled: The cuts between them, packed; empty if the keys begin with a hash, which is cut evenly.
        block_bytes: Size of the blocks of run files: how finely a bucket can be cut into parts.
        merges: How run files are merged before the buckets are read.
    """

    buckets: int
    sampled: str = ""
    block_bytes: int = BLOCK_BYTES
    merges: Merges = NO_MERGES

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
        number, fan = found.get("merges", 0), found.get("fan", 1)
        if type(number) is not int or not 0 <= number <= MOST_MERGES or not _is_number(fan) or (number and fan < 2):
            return None
        return cls(buckets, cuts, block_bytes, Merges(number, fan))

    def parameters(self) -> dict[str, Any]:
        """Return what of it shapes the outputs."""
        found: dict[str, Any] = {"buckets": self.buckets, "block_bytes": self.block_bytes}
        if self.merges.number:
            found |= {"merges": self.merges.number, "fan": self.merges.fan}
        return {"partition": found | ({"cuts": self.sampled} if self.sampled else {})}

    def ranges(self, level: int) -> list[int]:
        """Return where each range of buckets begins that some run files have, and where the last one ends.

        Args:
            level: How many times these run files were merged. Those of each have records of one range of their level,
                and as their buckets the ranges of the next one that are in it; behind the last level these are the
                buckets themselves.
        """
        ranges = min(self.buckets, self.merges.fan**level) if level <= self.merges.number else self.buckets
        return [place * self.buckets // ranges for place in range(ranges + 1)]

    def inner(self, level: int) -> list[range]:
        """Return for each range of a level which ranges of the next one are in it; see `ranges`."""
        places = {bucket: place for place, bucket in enumerate(self.ranges(level + 1))}
        return [range(places[first], places[last]) for first, last in pairwise(self.ranges(level))]

    def cuts_of(self, level: int) -> Cuts:
        """Return the least key of each range of a level but the first; see `ranges`."""
        cuts = self.cuts()
        return [cuts[bucket - 1] for bucket in self.ranges(level)[1:-1]]

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
    return type(value) is int and 0 < value <= MOST_BUCKETS
