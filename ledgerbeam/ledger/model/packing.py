"""Composite sources: many small sources packed into one unit of restart and one output shard.

Packs are cut by content, like content-defined chunking of a byte stream. Whether a member ends its pack depends on the
member alone: on the hash of its URL and on its share of the target size. So adding, removing or changing a member moves
only the boundaries of its own pack, and of its nearest neighbours if a size limit had cut them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ledgerbeam.errors import UsageError
from ledgerbeam.ledger.model.identity import url_key
from ledgerbeam.ledger.model.task import Source

MAX_MEMBERS = 50_000
"""Largest number of members of a pack. It bounds the memory of a task over empty or tiny sources."""

_HASH_RANGE = 2**64


def pack_sources(members: Iterable[Source], target_bytes: int, *, by_folder: bool = False) -> Iterator[Source]:
    """Pack a stream of sources into composite sources, in the given order.

    Args:
        members: Plain sources in a stable order, such as the order of a listing.
        target_bytes: Average size of packs, in bytes; at least 1. No pack exceeds twice this size unless a single
            member does. Only the last pack can be smaller than a quarter of it.
        by_folder: Whether a pack ends with the last of its consecutive members in one folder.

    Yields:
        Composite sources: ``members`` in order, made by `Source.pack`.

    Raises:
        UsageError: `target_bytes` is not positive.
    """
    if target_bytes < 1:
        raise UsageError(f"a pack needs a target size of at least 1 byte, found {target_bytes}")
    pack: list[Source] = []
    size = 0
    for member in members:
        is_apart = by_folder and bool(pack) and _folder(pack[-1]) != _folder(member)
        if pack and (is_apart or size + member.size > 2 * target_bytes or len(pack) == MAX_MEMBERS):
            yield Source.pack(pack)
            pack, size = [], 0
        pack.append(member)
        size += member.size
        if size >= target_bytes // 4 and _ends_pack(member, target_bytes):
            yield Source.pack(pack)
            pack, size = [], 0
    if pack:
        yield Source.pack(pack)


def _folder(member: Source) -> str:
    return member.url.rpartition("/")[0]


def _ends_pack(member: Source, target_bytes: int) -> bool:
    """Return whether a member ends its pack.

    It depends on the URL alone; the probability is the share of the target.
    """
    draw = int.from_bytes(url_key(member.url)[:8], "big")
    return draw * target_bytes < member.size * _HASH_RANGE
