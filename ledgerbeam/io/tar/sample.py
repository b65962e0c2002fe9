"""A sample of a tar archive: its members by extension, taken out of the bytes of its range."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ledgerbeam.errors import ArchiveError, RecordError
from ledgerbeam.io.tar.grouping import Grouping, name_sample
from ledgerbeam.io.tar.headers import BLOCK, Member, next_member, padded, plain_file
from ledgerbeam.io.tar.members import text_or_json

__all__ = ["KEY", "MOST_EXPANSION", "Sample", "Taken", "take_sample"]

MOST_EXPANSION = 1024
"""How many times as long as what an archive stores of it a sparse member may be: a few bytes can claim any length."""


KEY = "__key__"
"""What the key of a sample is called where it is a JSON value."""


class Sample(dict[str, bytes]):
    """The members of one sample: extension, without its leading dot, to content, in the order of the archive.

    Args:
        key: What the names of its members begin with: `Sample("a/1", {"wav": b"..."})` is a member `a/1.wav`.
        members: The content by extension.
    """

    __slots__ = ("key",)

    key: str

    def __init__(self, key: str, members: Mapping[str, bytes] | Iterable[tuple[str, bytes]] = ()) -> None:
        super().__init__(members)
        self.key = key

    def __repr__(self) -> str:
        members = ", ".join(f"{extension!r}: {len(content)} bytes" for extension, content in self.items())
        return f"Sample({self.key!r}, {{{members}}})"

    def as_json(self) -> dict[str, Any]:
        """Return it as a JSON value: `{"__key__": key, extension: value, ...}`, values as `io/tar/members.py` says.

        Raises:
            RecordError: It has a member called ``__key__``.
        """
        if KEY in self:
            raise RecordError(f"sample {self.key!r} has a member with the extension {KEY!r}; rename it")
        return {KEY: self.key, **{extension: text_or_json(extension, data) for extension, data in self.items()}}


class Taken(NamedTuple):
    """A sample with the data that shows whether its range is that of one sample.

    Attributes:
        sample: The sample.
        members: Of all members of the range, in order, the name and whether it is a file with content.
        end: Where the range ends; less, if it does so with the zeros that end an archive.
    """

    sample: Sample
    members: list[tuple[str, bool]]
    end: int


def take_sample(data: bytes, base: int, start: int, stop: int, *, url: str, group: Grouping) -> Taken:
    """Take a sample out of bytes of an archive.

    Args:
        data: Some of the archive.
        base: Where `data` begins in the archive.
        start: Where the sample's first header is, in the archive.
        stop: Its end: the next sample's first header, or a sentinel. Zeros before it, and a global header, are passed
            over; nothing beyond it is looked at.
        url: The archive, for messages.
        group: How the members are named.

    Raises:
        ArchiveError: There are no headers there, members reach past `stop`, or they are not one sample.
    """
    files: list[tuple[str, bytes]] = []
    members: list[tuple[str, bool]] = []
    defaults: dict[str, bytes] = {}
    asked = start

    def read(place: int, size: int) -> bytes:
        nonlocal asked
        asked = place
        return data[place - base : min(place + size, stop) - base]

    position = start
    while position < stop:
        at = position - base
        plain = plain_file(data[at : at + BLOCK]) if at + BLOCK <= len(data) and not defaults else None
        if plain is not None:
            size, raw = plain
            name, end = raw.decode("utf-8", "surrogateescape"), position + BLOCK + padded(size)
            content: bytes | None = data[at + BLOCK : at + BLOCK + size]
        else:
            member = next_member(read, position, defaults, url)
            if member is None:
                position = asked  # behind a global header, which is no member
                break
            end = member.end
            name, content = member.name, _content(data, base, member, url) if member.regular else None
        if end > stop:
            raise ArchiveError(f"{url}: member {name!r} at byte {position} ends at {end}, its sample at {stop}")
        members.append((name, content is not None))
        if content is not None:
            files.append((name, content))
        position = end
    return Taken(_assemble(files, start, position, url, group), members, position)


def _assemble(files: list[tuple[str, bytes]], start: int, stop: int, url: str, group: Grouping) -> Sample:
    named = name_sample([name for name, _ in files], group)
    if named is None:
        names = [name for name, _ in files]
        raise ArchiveError(f"{url}: the files in bytes [{start}, {stop}) are not one sample: {names}")
    key, extensions = named
    sample = Sample(key)
    for (_, content), extension in zip(files, extensions, strict=True):
        if extension in sample:
            raise ArchiveError(f"{url}: sample {key!r} at byte {start} has two members with extension {extension!r}")
        if extension is not None:
            sample[extension] = content
    return sample


def _content(data: bytes, base: int, member: Member, url: str) -> bytes:
    if not member.sparse:
        return data[member.data_offset - base : member.data_offset - base + member.size]
    stored = data[member.header_offset - base : member.end - base]
    try:
        return _with_holes(stored)
    except MemoryError:
        raise
    except Exception as error:  # tarfile has errors of many kinds, and those of reading numbers besides
        raise ArchiveError(
            f"{url}: the sparse member {member.name!r} at byte {member.header_offset} is damaged ({error!r:.300}); "
            "write the archive again, without --sparse"
        ) from error


def _with_holes(stored: bytes) -> bytes:
    """Read the only member of an archive, a sparse one; the standard library knows all layouts of holes."""
    with tarfile.open(fileobj=io.BytesIO(stored + bytes(2 * BLOCK)), mode="r:") as tar:
        member = tar.getmembers()[0]
        if member.size > MOST_EXPANSION * len(stored):
            raise ValueError(
                f"expected at most {MOST_EXPANSION * len(stored):,} bytes of what is stored in {len(stored):,}, found "
                f"{member.size:,}"
            )
        file = tar.extractfile(member)
        return b"" if file is None else file.read()
