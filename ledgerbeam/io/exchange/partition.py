"""The buckets of an exchange, and the rounds in which records reach them.

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
"""Slices of run files that a stage reads, at most, unless another number is given."""

MOST_MERGES = 16

_Run = TypeVar("_Run")


@dataclass(frozen=True)
class Merges:
    """How run files are merged before the last stage of an exchange.

    Attributes:
        number: How many times, one behind the other.
        fan: Into how many ranges each range of buckets is cut by each, and about how many run files make one.
    """

    number: int = 0
    fan: int = 1


NO_MERGES = Merges()


def _group_sizes(fan: int) -> range:
    """Return how many run files make a group: at least, and at most."""
    least = max(2, -(-2 * fan // 3))
    return range(least, max(least, 4 * fan // 3) + 1)


def neighbours(runs: Iterable[tuple[_Run, str]], fan: int) -> Iterator[list[_Run]]:
    """Yield groups of neighbouring run files, of which only the last one may be small.

    Where a group ends, the names of its run files say: so a run file that comes or goes changes the groups around it,
    and no others.

    Args:
        runs: The run files, in order, each with its name.
        fan: How many make a group, about.
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
    """Yield how many slices each stage behind the first one reads, at most where records are spread evenly.

    Args:
        merges: How run files are merged.
        runs: How many the first stage writes.
        buckets: How many buckets there are.
        parts: How many parts these have together.
        sides: How many jobs write them, whose run files are not merged with each other.
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
    """Return the fewest merges with which no stage reads more slices than is allowed, and of these what reads least.

    Args:
        runs: How many run files the first stage writes.
        buckets: How many buckets there are.
        parts: How many parts these have together.
        most: How many slices a stage may read.
        sides: See `slices_read`.

    Returns:
        The merges; None if there are none.
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
