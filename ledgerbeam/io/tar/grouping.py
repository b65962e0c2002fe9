"""Groups of members of a tar archive that form samples, and their names in the sample.

- `pairs` (lhotse Shar): every two consecutive members, of any kind. The extension follows the last dot.
- `key` (WebDataset): adjacent files whose paths are equal up to the first dot of the base name; the rest is the
  extension, in lower case. Folders, links, hidden files, names without a dot and `__x__` names belong to no sample.
- `auto`: `pairs` if the names look like pairs, else `key`. Names that can be both are refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, TypeAlias

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam._base.process import library_logger
from ledgerbeam.errors import ArchiveError
from ledgerbeam.io import native
from ledgerbeam.io.tar.walk import TarMembers

_log = library_logger(__name__)

_META = re.compile(r"__[^/]*__($|/)")

Grouping: TypeAlias = Literal["auto", "pairs", "key"]  # the rule that makes samples of members


def split_stem(name: str) -> tuple[str, str]:
    """Split a name at the last dot of its base name: `a/b.c.wav` -> (`a/b.c`, `wav`); no extension without a dot."""
    stem, _, extension = name.rpartition(".")
    if not stem or "/" in extension or stem.endswith("/"):
        return name, ""
    return stem, extension


def split_key(name: str) -> tuple[str, str] | None:
    """Split a name at the first dot of its base name: `a/b.seg.png` -> (`a/b`, `seg.png`).

    The extension keeps its case. None for a name of no sample: hidden, without a dot, or its first part is `__x__`.
    """
    length = _key_length(name)
    return (name[:length], name[length + 1 :]) if length else None


def _key_length(name: str) -> int:
    """Return the length of a name's key; 0 for names that belong to no sample."""
    base = name.rfind("/") + 1
    dot = name.find(".", base)
    return 0 if dot <= base or (name.startswith("__") and _META.match(name)) else dot


def are_pairs(names: Sequence[str]) -> bool:
    """Return whether the names, two by two, are pairs with the same stem.

    Four neighbours with the same stem and different extensions are a WebDataset sample, not two pairs.
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
        if first[dot:].lower() == second[dot:].lower():
            return False
        if first[:dot] == before and len({name[dot:] for name in names[number - 2 : number + 2]}) == 4:
            return False
        before = first[:dot]
    return True


def name_sample(names: Sequence[str], group: Grouping) -> tuple[str, list[str | None]] | None:
    """Return the key of a sample and the extensions of its members, given their full names in order.

    With `auto`, the names of two members with the same stem are split at the last dot, all others at the first. Except
    with `pairs`, extensions are in lower case, as webdataset reads them. A member that belongs to no sample has the
    extension None. The result is None if no member belongs to a sample, or if their keys differ.
    """
    if group == "pairs" or (group == "auto" and len(names) == 2):
        stems = [split_stem(name) for name in names]
        if group == "pairs" or (stems[0][0] == stems[1][0] and stems[0][1] and stems[1][1]):
            return _one_key(stems, lower=group != "pairs")
    return _one_key([split_key(name) for name in names], lower=True)


def _one_key(parts: Sequence[tuple[str, str] | None], *, lower: bool) -> tuple[str, list[str | None]] | None:
    key = None
    for part in parts:
        if part is not None and part[0] != key:
            if key is not None:
                return None
            key = part[0]
    if key is None:
        return None
    return key, [part and (part[1].lower() if lower else part[1]) for part in parts]


def group_pairs(members: TarMembers, url: str) -> NDArray[np.intp]:
    """Return the number of the first member of each pair in a Shar archive. ArchiveError: the last member is alone."""
    if len(members) % 2:
        raise ArchiveError(
            f"{url}: expected pairs of members, found {len(members)} members, the last one {members.names[-1]!r} "
            "alone; it is not a Shar archive, or its last member is missing. Use --group key, or write it again"
        )
    return np.arange(0, len(members), 2)


def group_key(members: TarMembers, url: str) -> NDArray[np.intp]:
    """Return the number of the first member of each WebDataset sample of an archive.

    ArchiveError: a sample has an extension twice, or its members are not adjacent.
    """
    starts = _starts_of_keys(members, url)
    _require_adjacent(members, starts.tolist(), url)
    return starts


def _starts_of_keys(members: TarMembers, url: str) -> NDArray[np.intp]:
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
        extension = name[length:].lower()
        if name[:length] != current:
            starts.append(number)
            current, run = name[:length], {extension}
        elif extension in run:
            raise ArchiveError(
                f"{url}: member {name!r} at byte {members.header_offset[number]} repeats an extension of sample "
                f"{current!r}; expected each extension once, whatever its case. Give the samples different keys"
            )
        else:
            run.add(extension)
    return np.array(starts, np.intp)


def _require_adjacent(members: TarMembers, starts: list[int], url: str) -> None:
    """Raise ArchiveError if the members of one sample are in several places.

    Members with the same key in several places are separate samples if they repeat an extension.
    """
    keys = [_key(members.names[start]) for start in starts]
    if len(set(keys)) == len(keys):
        return
    seen: dict[str, tuple[int, set[str]]] = {}
    for key, start, stop in zip(keys, starts, [*starts[1:], len(members)], strict=True):
        files = zip(members.names[start:stop], members.regular[start:stop].tolist(), strict=True)
        extensions = {parts[1].lower() for name, regular in files if regular and (parts := split_key(name))}
        first, known = seen.setdefault(key, (start, extensions))
        if first != start and not known & extensions:
            raise ArchiveError(
                f"{url}: expected the members of a sample next to each other, found those of sample {key!r} apart: "
                f"{members.names[first]!r} at byte {members.header_offset[first]}, {members.names[start]!r} at byte "
                f"{members.header_offset[start]}; write the archive again, sorted: tar --sort=name"
            )
        known |= extensions


def group_members(members: TarMembers, url: str, group: Grouping) -> tuple[NDArray[np.intp], bool]:
    """Return the number of the first member of each sample of a whole archive, and whether the samples are pairs.

    Hidden files are left out, with a warning. ArchiveError: the members cannot be grouped by the rule `group`; or it is
    `auto`, and they can be grouped in two ways.
    """
    paired = group == "pairs" or (group == "auto" and are_pairs(members.names))
    if paired:
        if group == "auto":
            _require_one_meaning(members.names, url)
        return group_pairs(members, url), True
    hidden = [
        name
        for name, regular in zip(members.names, members.regular.tolist(), strict=True)
        if regular and name.startswith(".", name.rfind("/") + 1)
    ]
    if hidden:
        _log.warning("%s: hidden files are in no sample and are left out: %d, such as %r", url, len(hidden), hidden[0])
    starts = group_key(members, url)
    if group == "auto":
        _warn_of_stems(members, starts, url)
    return starts, False


def _require_one_meaning(names: Sequence[str], url: str) -> None:
    """Raise ArchiveError if two pairs are one sample for WebDataset. Warn if WebDataset names all pairs differently."""
    joined = _first_joined(names)
    if joined is not None:
        one, other = names[joined], names[joined + 2]
        raise ArchiveError(
            f"{url}: {one!r} and {other!r} are members of one sample for webdataset, {_key(one)!r}, and of two for "
            f"lhotse Shar, {split_stem(one)[0]!r} and {split_stem(other)[0]!r}; give --group key or --group pairs"
        )
    parts = {split_stem(name)[0][len(_key(name)) + 1 :] for name in names[::2]}
    part = parts.pop() if len(parts) == 1 else ""
    if part and not part.isdecimal():
        _warn_of_stem(names[0], url)


def _warn_of_stems(members: TarMembers, starts: NDArray[np.intp], url: str) -> None:
    """Warn if a sample of two files, which `auto` names by their stem, has another key for WebDataset."""
    files = np.add.reduceat(members.regular.astype(np.int64), starts) if len(starts) else starts
    for sample in np.flatnonzero(files == 2).tolist():
        stop = starts[sample + 1] if sample + 1 < len(starts) else len(members)
        run = range(int(starts[sample]), int(stop))
        names = [members.names[number] for number in run if members.regular[number]]
        if name_sample(names, "auto") != name_sample(names, "key"):
            _warn_of_stem(names[0], url)
            return


def _warn_of_stem(name: str, url: str) -> None:
    (stem, extension), (key, rest) = split_stem(name), split_key(name) or ("", "")
    _log.warning(
        "%s: member %r is read as %r of sample %r, by webdataset as %r of sample %r; give --group key or --group pairs",
        *(url, name, extension, stem, rest, key),
    )


def are_only_pairs(names: Sequence[str]) -> bool:
    """Return whether names look like pairs that WebDataset does not join to larger samples."""
    return are_pairs(names) and _first_joined(names) is None


def _first_joined(names: Sequence[str]) -> int | None:
    """Return the number of the first name of two pairs that are one sample for WebDataset; None without such pairs."""
    before = ""
    for number in range(0, len(names), 2):
        stem, key = split_stem(names[number])[0], _key(names[number])
        if key and before.startswith(f"{key}.") and _key(before) == key and stem != before:
            return number - 2
        before = stem
    return None


def _key(name: str) -> str:
    return name[: _key_length(name)]
