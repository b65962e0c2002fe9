"""Check that a range of an archive is one sample, by its members and those before and after it.

An index does not name its archive. An index of an older archive of the same size passes every check of sizes and times;
but if it splits a sample or joins two, the names of the members show it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ledgerbeam.errors import ArchiveError
from ledgerbeam.io.tar.grouping import Grouping, are_pairs, split_key, split_stem
from ledgerbeam.io.tar.headers import BLOCK, next_member, padded, plain_file

Members = Sequence[tuple[str, bool]]
"""Members in order: the name of each, and whether it is a file with content."""

_Read = Callable[[int, int], bytes]


def members_between(read: _Read, start: int, stop: int, url: str) -> list[tuple[str, bool]]:
    """Return the members between two offsets, from their headers.

    Args:
        read: `read(place, size)` returns bytes of the archive, fewer at its end.
        start: Start of the first member.
        stop: End of the last member.
        url: The archive, for messages.

    Raises:
        ArchiveError: There are no headers, or no member ends at `stop`.
    """
    found: list[tuple[str, bool]] = []
    position = asked = start

    def bounded(place: int, size: int) -> bytes:
        nonlocal asked
        asked = place
        return read(place, min(size, stop - place))

    while position < stop:
        plain = plain_file(block) if len(block := read(position, BLOCK)) == BLOCK else None
        if plain is not None:
            size, raw = plain
            found.append((raw.decode("utf-8", "surrogateescape"), True))
            position += BLOCK + padded(size)
            continue
        member = next_member(bounded, position, url)
        if member is None:
            position = asked
            break
        found.append((member.name, member.regular))
        position = member.end
    if position != stop:
        raise ArchiveError(
            f"{url}: expected a member to end at byte {stop}, found one or the archive end at {position}"
        )
    return found


def next_members(read: _Read, place: int, count: int, url: str) -> list[tuple[str, bool]]:
    """Return up to `count` members from an offset on, fewer at the end of the archive; see `members_between`."""
    found: list[tuple[str, bool]] = []
    while len(found) < count:
        member = next_member(read, place, url)
        if member is None:
            break
        found.append((member.name, member.regular))
        place = member.end
    return found


def is_sample(
    members: Members,
    before: Members | None,
    after: Callable[[int], Members],
    *,
    first: bool,
    group: Grouping,
    ends_archive: bool,
) -> bool:
    """Return whether a range is one whole sample, as in a correct index of the archive.

    Args:
        members: Its members, at least one.
        before: The members of the previous range; for the first sample all members before it. None if not known.
        after: Returns the given number of members after it, fewer at the end of the archive.
        first: Whether it is the first sample.
        group: How members form samples; with `auto` either way is accepted.
        ends_archive: Whether the range reaches beyond its members, to the end of the archive. Only lhotse has such an
            index, of pairs.
    """
    is_by_pairs = group == "pairs" or (ends_archive and group == "auto")
    if not is_by_pairs and _is_keyed(members, before, after, first=first):
        return True
    return group != "key" and _is_pair(members, before, after, first=first, group=group)


def _is_keyed(members: Members, before: Members | None, after: Callable[[int], Members], *, first: bool) -> bool:
    own = _key(members[0])
    if own is None or any(_key(member) not in (None, own) for member in members):
        return False
    if before is not None:
        last = next((key for key in map(_key, reversed(before)) if key is not None), None)
        if last == own or (last is None) != first or not (first or _key(before[0])):
            return False
    following = after(1)
    return not following or _key(following[0]) not in (None, own)


def _is_pair(
    members: Members, before: Members | None, after: Callable[[int], Members], *, first: bool, group: Grouping
) -> bool:
    if len(members) != 2 or (before is not None and len(before) != (0 if first else 2)):
        return False
    if group == "pairs":
        return True
    names = [name for name, _ in members]
    if not are_pairs([*(name for name, _ in before or ()), *names]):
        return False
    following = after(1)
    # Of one stem it would be a sample of four members; of one key alone, one of more than two if no pair follows.
    if following and (split_stem(following[0][0])[0] == split_stem(names[0])[0] or _is_one_key(following[0], members)):
        return are_pairs([*names, *(name for name, _ in after(2))])
    return True


def _is_one_key(member: tuple[str, bool], members: Members) -> bool:
    return (key := _key(member)) is not None and key == _key(members[0])


def _key(member: tuple[str, bool]) -> str | None:
    name, regular = member
    parts = split_key(name) if regular else None
    return None if parts is None else parts[0]
