"""Shards of a dataset as its metadata describes them, and short forms of long lists of numbered names."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from ledgerbeam.errors import UsageError

_NUMBER = re.compile(r"([0-9]+)")


def collapse_names(names: Iterable[str]) -> list[str]:
    """Write neighbouring names that count up as a range: `a-0.tar`, `a-1.tar` as `a-{0..1}.tar`.

    `expand_braces` of the results, concatenated, returns the list again, in its order. The ranges are the same as in
    Energon 7.4.1.

    Args:
        names: Names without braces.
    """
    found: list[str] = []
    run: list[list[str]] = []
    place = -1
    for name in names:
        parts = _NUMBER.split(name)
        step = _counting_position(run[-1], parts) if run else -1
        if step >= 0 and (len(run) == 1 or step == place):
            run.append(parts)
            place = step
            continue
        found += _format_run(run, place)
        run, place = [parts], -1
    return found + _format_run(run, place)


def _counting_position(before: list[str], after: list[str]) -> int:
    """Return the position of the only difference, a number that is one more and as wide; -1 for other differences."""
    if len(before) != len(after):
        return -1
    changed = [at for at, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    if len(changed) != 1 or changed[0] % 2 == 0:
        return -1
    old, new = before[changed[0]], after[changed[0]]
    return changed[0] if len(old) == len(new) and int(new) == int(old) + 1 else -1


def _format_run(run: list[list[str]], place: int) -> list[str]:
    if len(run) < 2:
        return ["".join(parts) for parts in run]
    parts = list(run[0])
    parts[place] = f"{{{parts[place]}..{run[-1][place]}}}"
    return ["".join(parts)]


class ShardLike(Protocol):
    """A shard in the manifest of a job, or a `Shard`."""

    @property
    def name(self) -> str:
        """Path relative to the root of the dataset."""

    @property
    def records(self) -> int:
        """Number of samples."""

    @property
    def size(self) -> int:
        """Size in bytes."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard of a dataset.

    Attributes:
        name: Path relative to the root of the dataset.
        records: Number of samples.
        size: Size in bytes.
        md5: MD5 sum of its bytes in hexadecimal, if known.
    """

    name: str
    records: int
    size: int
    md5: str | None = None


def filled(shards: Iterable[ShardLike], root: str) -> Iterator[ShardLike]:
    """Return the shards that have samples. Other readers refuse shards without samples.

    Args:
        shards: Shards in any order.
        root: Root of the dataset, for messages.

    Raises:
        UsageError: A name is empty, absolute, a URL or a duplicate, or leaves the root.
    """
    seen = set()
    for shard in shards:
        name = shard.name
        if not name or name in seen or "://" in name or posixpath.normpath(f"/./{name}") != f"/{name}":
            found = "again" if name in seen else "as a name"
            raise UsageError(
                f"{root}: found {name!r} {found}; expected the path of each shard once, relative to the root"
            )
        seen.add(name)
        if shard.records:
            yield shard
