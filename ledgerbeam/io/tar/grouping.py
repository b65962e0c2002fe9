"""Which members of a tar archive form a sample, and their names in it.

- `pairs` (lhotse Shar): every two consecutive members, of any kind. The extension follows the last dot.
- `key` (WebDataset): adjacent files whose paths are equal up to the first dot of the base name; the rest is the
  extension, with its case. Folders, links, hidden files, names without a dot and `__x__` names belong to no sample.
- `auto`: `pairs` if the names look like pairs, else `key`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, TypeAlias

from ledgerbeam.errors import ArchiveError
from ledgerbeam.io import native
from ledgerbeam.io.tar.walk import TarMembers
from ledgerbeam.late_numpy import NDArray, np

__all__ = ["Grouping", "are_pairs", "group_key", "group_pairs", "name_sample", "split_key", "split_stem"]

_META = re.compile(r"__[^/]*__($|/)")

Grouping: TypeAlias = Literal["auto", "pairs", "key"]
"""How members of an archive are grouped into samples."""


def split_stem(name: str) -> tuple[str, str]:
    """Split a name at the last dot of its base name: `a/b.c.wav` -> (`a/b.c`, `wav`); no extension without a dot."""
    stem, _, extension = name.rpartition(".")
    if not stem or "/" in extension or stem.endswith("/"):
        return name, ""
    return stem, extension


def split_key(name: str) -> tuple[str, str] | None:
    """Split a name at the first dot of its base name: `a/b.seg.png` -> (`a/b`, `seg.png`).

    Returns:
        Key and extension; None for names that belong to no sample: hidden files, names without a dot, and names whose
        first part is `__x__`. The key of a hidden file in a folder is the folder: `d/.jpg` -> (`d/`, `jpg`).
    """
    length = _key_length(name)
    return (name[:length], name[length + 1 :]) if length else None


def _key_length(name: str) -> int:
    """Return the length of a name's key; 0 for names that belong to no sample."""
    base = name.rfind("/") + 1
    dot = name.find(".", base)
    if dot < 0 or (name.startswith("__") and _META.match(name)):
        return 0
    if dot > base:
        return dot
    # A base name that begins with the dot: webdataset uses its folder as the key, if the folder has no dot.
    folder = name[name.rfind("/", 0, max(base - 1, 0)) + 1 : base]
    return dot if folder and "." not in folder else 0


def are_pairs(names: Sequence[str]) -> bool:
    """Return whether every two consecutive names have the same stem, and no four of them are one sample.

    Four members with the same stem and different extensions are a WebDataset sample, not two pairs.
    """
    if len(names) % 2:
        return False
    before = ""
    for number in range(0, len(names), 2):
        first, second = names[number], names[number + 1]
        dot, slash = first.rfind("."), first.rfind("/")
        if dot <= slash + 1 or dot != second.rfind(".") or first[:dot] != second[:dot]:
            return False
        if len(first) == dot + 1 or len(second) == dot + 1 or second.rfind("/") != slash:
            return False
        if first[:dot] == before and len({name[dot:] for name in names[number - 2 : number + 2]}) == 4:
            return False
        before = first[:dot]
    return True


def name_sample(names: Sequence[str], group: Grouping) -> tuple[str, list[str | None]] | None:
    """Return the key of a sample and the extensions of its members.

    Args:
        names: The full names of its members, in order.
        group: With `auto`, two members of one stem are split at the last dot, all others at the first.

    Returns:
        The key, and for each member its extension or None if it belongs to no sample. None if no member belongs to a
        sample, or if their keys differ.
    """
    if group == "pairs" or (group == "auto" and len(names) == 2):
        stems = [split_stem(name) for name in names]
        if group == "pairs" or (stems[0][0] == stems[1][0] and stems[0][1] and stems[1][1]):
            return _one_key(stems)
    return _one_key([split_key(name) for name in names])


def _one_key(parts: Sequence[tuple[str, str] | None]) -> tuple[str, list[str | None]] | None:
    key = None
    for part in parts:
        if part is not None and part[0] != key:
            if key is not None:
                return None
            key = part[0]
    return None if key is None else (key, [part and part[1] for part in parts])


def group_pairs(members: TarMembers, url: str) -> NDArray[np.intp]:
    """Return the number of the first member of each sample of a Shar archive: every other one.

    Args:
        members: The members of the archive.
        url: The archive, for messages.

    Raises:
        ArchiveError: The number of members is odd.
    """
    if len(members) % 2:
        raise ArchiveError(
            f"{url}: expected pairs of members, found {len(members)} members, the last one {members.names[-1]!r} "
            "alone; it is not a Shar archive, or its last member is missing. Group it by key, or write it again"
        )
    return np.arange(0, len(members), 2)


def group_key(members: TarMembers, url: str) -> NDArray[np.intp]:
    """Return the number of the first member of each WebDataset sample of an archive.

    Args:
        members: The members of the archive.
        url: The archive, for messages.

    Raises:
        ArchiveError: A sample has an extension twice.
    """
    if native.compiled is not None:
        found = np.empty(len(members), np.int64)
        count = native.compiled.group_names(members.names, members.regular, found)
        if count is not None:
            return found[:count].astype(np.intp)
    starts: list[int] = []
    current = ""
    run: set[str] = set()
    for number, (name, regular) in enumerate(zip(members.names, members.regular.tolist(), strict=True)):
        length = _key_length(name) if regular else 0
        if not length:
            continue
        if name[:length] != current:
            starts.append(number)
            current, run = name[:length], {name}
        elif name in run:
            raise ArchiveError(
                f"{url}: member {name!r} at byte {members.header_offset[number]} repeats an extension of sample "
                f"{current!r}; expected each once. Give the samples different keys"
            )
        else:
            run.add(name)
    return np.array(starts, np.intp)
