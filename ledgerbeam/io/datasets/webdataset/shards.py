"""What the metadata of a dataset is made from: its shards, with counts and sizes."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from ledgerbeam.errors import UsageError


class ShardLike(Protocol):
    """A shard as a job's manifest has it, or a `Shard`."""

    @property
    def name(self) -> str:
        """Path relative to the root of the dataset."""

    @property
    def records(self) -> int:
        """How many samples it holds."""

    @property
    def size(self) -> int:
        """Bytes."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard of a dataset.

    Attributes:
        name: Path relative to the root of the dataset.
        records: How many samples it holds.
        size: Bytes.
        md5: MD5 sum of its bytes in hexadecimal, if known.
    """

    name: str
    records: int
    size: int
    md5: str | None = None


def filled(shards: Iterable[ShardLike], root: str) -> Iterator[ShardLike]:
    """Return the shards that hold samples: the peers call one without any an error.

    Args:
        shards: In any order.
        root: Of the dataset, for messages.

    Raises:
        UsageError: A name is empty, absolute or a URL, leads out of the root, or comes twice.
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
