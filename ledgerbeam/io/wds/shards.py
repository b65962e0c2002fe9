"""What the metadata of a dataset is made from: its shards, with counts and sizes."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from ledgerbeam.errors import UsageError
from ledgerbeam.io.remote import split_scheme
from ledgerbeam.io.storage import canonical_url, is_local

__all__ = ["Shard", "ShardLike", "filled", "join_url"]


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
    """Gives the shards that hold samples: the peers call one without any an error.

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
                f"{root}: found {name!r} {found}; expected the path of each shard once, relative to the root."
            )
        seen.add(name)
        if shard.records:
            yield shard


def join_url(base: str, name: str) -> str:
    """Resolves a path or URL against a folder as wids does.

    Args:
        base: A folder.
        name: A URL, which stands for itself; an absolute path, which stays in the bucket of `base`; or a relative one.

    Returns:
        A canonical URL.
    """
    if re.match(r"[A-Za-z][\w+.-]*://", name):
        return canonical_url(name)
    if is_local(base):
        return canonical_url(posixpath.join(canonical_url(base), name))
    scheme, rest = split_scheme(base)
    bucket, _, path = rest.partition("/")
    return f"{scheme}://{bucket}{posixpath.normpath(posixpath.join('/' + path, name))}"
