"""The buckets of an exchange, and the rounds that move records to them.

Each part of a bucket reads a slice of each run file. If that makes too many slices, the first stage writes run files
with few wide ranges of buckets. A merge reads one range from a group of neighbouring run files. It writes one run file,
divided into narrower ranges. So the run files stay as large and as many, but each range is in fewer of them. After the
last merge a bucket is read from the run files of its range alone.

The partition is part of a job's identity.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self, TypeGuard, TypeVar
from zlib import crc32

import orjson

from ledgerbeam.errors import LedgerDamagedError
from ledgerbeam.io.exchange.run_file import BLOCK_BYTES, Cuts

MOST_SLICES = 10_000_000
"""Default limit of the slices of run files that a stage reads."""

MOST_MERGES = 16

_Run = TypeVar("_Run")


@dataclass(frozen=True)
class Merges:
    """The merges of run files before the last stage of an exchange.

    Attributes:
        number: Number of successive merges.
        fan: Number of ranges into which each merge divides a range of buckets, and about the number of run files that
            become one.
    """

    number: int = 0
    fan: int = 1


NO_MERGES = Merges()


def _group_sizes(fan: int) -> range:
    """Return the range of the number of run files in a group."""
    least = max(2, -(-2 * fan // 3))
    return range(least, max(least, 4 * fan // 3) + 1)


def neighbours(runs: Iterable[tuple[_Run, str]], fan: int) -> Iterator[list[_Run]]:
    """Yield groups of neighbouring run files. Only the last group may be small.

    The names of run files decide where a group ends. So a run file that is added or removed changes only the groups
    around it.

    Args:
        runs: The run files, in order, each with its name.
        fan: Approximate number of run files in a group.
    """
    sizes = _group_sizes(fan)
    group: list[_Run] = []
    for run, name in runs:
        group.append(run)
        ends = crc32(name.encode("utf-8", "surrogateescape")) % max(1, len(sizes) // 2) == 0
        if len(group) >= sizes.start and (ends or len(group) == sizes.stop - 1):
            yield group
            group = []
    if group:
        yield group


def slices_read(merges: Merges, runs: int, buckets: int, parts: int, sides: int = 1) -> Iterator[int]:
    """Yield the number of slices that each stage after the first one reads, at most, if records are spread evenly.

    Args:
        merges: The merges of run files.
        runs: Number of run files that the first stage writes.
        buckets: Number of buckets.
        parts: Number of parts of all buckets together.
        sides: Number of jobs that write run files. Run files of different jobs are not merged with each other.
    """
    least = _group_sizes(merges.fan).start
    files = together = runs
    ranges = 1
    for _ in range(merges.number):
        yield files * merges.fan
        together = min(together, -(-together // least) + sides - 1)
        ranges = min(buckets, ranges * merges.fan)
        files = max(runs, ranges * together)
    yield parts * -(-files // ranges)


def plan_merges(runs: int, buckets: int, parts: int, most: int, sides: int = 1) -> Merges | None:
    """Return the plan with the fewest merges in which no stage reads more slices than allowed.

    Of several such plans it is the one that reads the fewest slices in all.

    Args:
        runs: Number of run files that the first stage writes.
        buckets: Number of buckets.
        parts: Number of parts of all buckets together.
        most: Number of slices that a stage may read.
        sides: See `slices_read`.

    Returns:
        The merges; None if no number of merges suffices.
    """
    if runs * parts <= most:
        return NO_MERGES
    for number in range(1, MOST_MERGES + 1):
        plans = (Merges(number, fan) for fan in range(2, min(runs, most // runs) + 1))
        read = ((list(slices_read(plan, runs, buckets, parts, sides)), plan) for plan in plans)
        found = [(sum(slices), plan.fan, plan) for slices, plan in read if max(slices) <= most]
        if found:
            return min(found)[2]
    return None


MOST_BUCKETS = 10_000_000


@dataclass(frozen=True)
class Partition:
    """The division of an order into buckets.

    Attributes:
        buckets: Number of buckets.
        sampled: The cuts between buckets, packed; empty if the keys begin with a hash, which is divided evenly.
        block_bytes: Size of the blocks of run files, which limits how finely a bucket can be divided into parts.
        merges: The merges of run files before the buckets are read.
    """

    buckets: int
    sampled: str = ""
    block_bytes: int = BLOCK_BYTES
    merges: Merges = NO_MERGES

    @classmethod
    def of_cuts(cls, cuts: Cuts, block_bytes: int = BLOCK_BYTES) -> Self:
        """Return the partition with given cuts, in ascending order."""
        packed = zlib.compress(orjson.dumps([cut.hex() for cut in cuts]), 9)
        return cls(len(cuts) + 1, base64.b85encode(packed).decode(), block_bytes)

    @classmethod
    def recorded(cls, parameters: Mapping[str, Any]) -> Self | None:
        """Return the partition among the parameters of a job; None if they have no valid partition."""
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
        """Return the parameters that shape the outputs."""
        found: dict[str, Any] = {"buckets": self.buckets, "block_bytes": self.block_bytes}
        if self.merges.number:
            found |= {"merges": self.merges.number, "fan": self.merges.fan}
        return {"partition": found | ({"cuts": self.sampled} if self.sampled else {})}

    def ranges(self, level: int) -> list[int]:
        """Return the first bucket of each range of a level, and the end of the last range.

        Args:
            level: Number of times that the run files were merged. Each run file has records of one range of its level.
                Its buckets are the ranges of the next level in this range; after the last level they are the buckets
                themselves.
        """
        ranges = min(self.buckets, self.merges.fan**level) if level <= self.merges.number else self.buckets
        return [place * self.buckets // ranges for place in range(ranges + 1)]

    def inner(self, level: int) -> list[range]:
        """Return for each range of a level its ranges of the next level; see `ranges`."""
        places = {bucket: place for place, bucket in enumerate(self.ranges(level + 1))}
        return [range(places[first], places[last]) for first, last in pairwise(self.ranges(level))]

    def cuts_of(self, level: int) -> Cuts:
        """Return the least key of each range of a level except the first; see `ranges`."""
        cuts = self.cuts()
        return [cuts[bucket - 1] for bucket in self.ranges(level)[1:-1]]

    def cuts(self) -> Cuts:
        """Return the least key of each bucket except the first.

        Raises:
            LedgerDamagedError: The cuts cannot be decoded.
        """
        if not self.sampled:
            return [(bucket * 2**64 // self.buckets).to_bytes(8, "big") for bucket in range(1, self.buckets)]
        try:
            found = [bytes.fromhex(cut) for cut in orjson.loads(zlib.decompress(base64.b85decode(self.sampled)))]
            if len(found) != self.buckets - 1 or any(one >= other for one, other in pairwise(found)):
                raise ValueError(f"expected {self.buckets - 1:,} in ascending order, found {len(found):,}")
        except (ValueError, TypeError, zlib.error) as error:
            raise LedgerDamagedError(f"the cuts between the buckets of this job cannot be decoded: {error}") from error
        return found


def _is_number(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 < value <= MOST_BUCKETS
