"""How many rounds an exchange takes: what is merged between its first and its last stage, so that none reads too much.

Each part of a bucket reads a slice of each run file. Where that would be too many slices, the first stage writes run
files of few wide ranges of buckets. A merge reads what some neighbouring run files, a group, hold of one range, and
writes it as one run file, with its narrower ranges apart. So run files become no larger and no more, but each range is
in fewer of them, and behind the last merge a bucket is read from the run files of its range alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar
from zlib import crc32

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
