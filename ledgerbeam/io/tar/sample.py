"""A sample of a tar archive: its members by extension, and members as JSON values.

As a JSON value a member is parsed if its extension ends with `json`. It is a string if its extension is in
`TEXT_EXTENSIONS` and its bytes are UTF-8. Otherwise it is `{"__base64__": "..."}`.
"""

from __future__ import annotations

import base64
import binascii
import io
import tarfile
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, SupportsIndex

from ledgerbeam.errors import ArchiveError, RecordError
from ledgerbeam.io.json_values import BASE64, dumps, loads
from ledgerbeam.io.tar.grouping import Grouping, name_sample
from ledgerbeam.io.tar.headers import BLOCK, Member, next_member, padded, plain_file

TEXT_EXTENSIONS = frozenset({"cls", "csv", "html", "md", "srt", "text", "transcript", "tsv", "txt", "vtt", "xml"})
"""A member becomes a string if the last part of its extension is one of these."""


def text_or_json(extension: str, data: bytes) -> Any:
    """Return the content of a member as a JSON value; see the module."""
    kind = extension.rpartition(".")[2].lower()
    try:
        if kind == "json":
            value = loads(data)
            if not (isinstance(value, dict) and BASE64 in value):  # would be read back as bytes
                return value
        elif kind in TEXT_EXTENSIONS:
            return data.decode()
    except ValueError:
        pass  # the content contradicts the extension: keep the bytes
    return {BASE64: base64.b64encode(data).decode()}


def text_or_bytes(extension: str, data: bytes) -> str | bytes:
    """Return the content of a member as a value of a column: text if the extension says so, else bytes."""
    if extension.rpartition(".")[2].lower() in TEXT_EXTENSIONS:
        try:
            return data.decode()
        except UnicodeDecodeError:
            pass
    return data


def member_bytes(extension: str, value: Any) -> bytes:
    """Return the content of a member, given a result of `text_or_json` or `text_or_bytes`; else RecordError."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, dict) and value.keys() == {BASE64}:
        try:
            return base64.b64decode(value[BASE64], validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise RecordError(f"expected base64 under {extension!r}: {error}") from error
    if extension.rpartition(".")[2].lower() == "json":
        return json_bytes(value)
    if isinstance(value, str):
        return value.encode()
    raise RecordError(
        f"expected text or {{{BASE64!r}: ...}} under {extension!r} of a record with a '__key__', found "
        f"{type(value).__name__}; only members whose extension ends with json hold other values"
    )


def json_bytes(value: Any) -> bytes:
    """Return a value as JSON text; raises RecordError if it cannot be written as JSON."""
    try:
        return dumps(value)
    except TypeError as error:
        raise RecordError(
            f"a value of type {type(value).__name__} cannot be written as JSON: {error}; change or drop such records "
            "with a function (ledgerbeam map)"
        ) from error


MOST_EXPANSION = 1024  # largest length of a sparse member / its stored bytes; few bytes could describe any length


KEY = "__key__"  # name of the key in a sample as a JSON value


class Sample(dict[str, bytes]):
    """A dict of the members of one sample: their contents by extension (without its dot), in the order of the archive.

    Args:
        key: The start of the names of all members: `Sample("a/1", {"wav": b"..."})` has a member `a/1.wav`.
        members: The contents by extension.
    """

    __slots__ = ("key",)

    key: str

    def __init__(self, key: str, members: Mapping[str, bytes] | Iterable[tuple[str, bytes]] = ()) -> None:
        super().__init__(members)
        self.key = key

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        """Pickle the key and a dict: this takes a quarter of the time of pickling items of a subclass one by one."""
        return (Sample, (self.key, dict(self))) if type(self) is Sample else super().__reduce_ex__(protocol)

    def __repr__(self) -> str:
        members = ", ".join(f"{extension!r}: {len(content)} bytes" for extension, content in self.items())
        return f"Sample({self.key!r}, {{{members}}})"

    def as_json(self) -> dict[str, Any]:
        """Return the sample as a JSON value `{"__key__": key, extension: value, ...}`; see the module for the values.

        Raises:
            RecordError: The sample has a member called ``__key__``, or one whose name is not UTF-8.
        """
        if KEY in self:
            raise RecordError(f"sample {self.key!r} has a member with the extension {KEY!r}; rename it")
        require_text(self)
        return {KEY: self.key, **{extension: text_or_json(extension, data) for extension, data in self.items()}}


def require_text(sample: Sample) -> None:
    """Raise RecordError, which names the member, unless the names of all members of a sample are UTF-8."""
    for extension in sample or ("",):
        name = f"{sample.key}.{extension}"
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise RecordError(
                f"member {name.encode('utf-8', 'surrogateescape')!r}: expected a name in UTF-8; rename it in a "
                "function, or write the archive again with names in UTF-8"
            ) from error


class Taken(NamedTuple):
    """A sample, and the data with which `is_sample` checks that its range is one sample."""

    sample: Sample
    members: list[tuple[str, bool]]  # all of the range in order: name, and whether it is a file with content
    end: int  # end of the last member: the end of the range, or less if the range ends with the zeros of an archive


def take_sample(data: bytes, base: int, start: int, stop: int, *, url: str, group: Grouping) -> Taken:
    """Decode the sample in bytes `[start, stop)` of an archive. `data` starts at the offset `base` of the archive.

    `stop` is the first header of the next sample, or the sentinel. Zeros and a global header before it are skipped.
    ArchiveError: a member ends after `stop`, or the members are not one sample.
    """
    files: list[tuple[str, bytes]] = []
    members: list[tuple[str, bool]] = []
    asked = start

    def read(place: int, size: int) -> bytes:
        nonlocal asked
        asked = place
        return data[place - base : min(place + size, stop) - base]

    position = start
    while position < stop:
        at = position - base
        plain = plain_file(data[at : at + BLOCK]) if at + BLOCK <= len(data) else None
        if plain is not None:
            size, raw = plain
            name, end = raw.decode("utf-8", "surrogateescape"), position + BLOCK + padded(size)
            content: bytes | None = data[at + BLOCK : at + BLOCK + size]
        else:
            member = next_member(read, position, url)
            if member is None:
                position = asked  # after a global header, which is not a member
                break
            end = member.end
            name, content = member.name, _content(data, base, member, url) if member.regular else None
        if end > stop:
            raise ArchiveError(f"{url}: member {name!r} at byte {position} ends at {end}, but its sample at {stop}")
        members.append((name, content is not None))
        if content is not None:
            files.append((name, content))
        position = end
    names = [name for name, _ in files]
    if (named := name_sample(names, group)) is None:
        raise ArchiveError(f"{url}: the files in bytes [{start}, {position}) are not one sample: {names}")
    key, extensions = named
    sample = Sample(key)
    for (_, content), extension in zip(files, extensions, strict=True):
        if extension in sample:
            raise ArchiveError(f"{url}: sample {key!r} at byte {start} has two members with extension {extension!r}")
        if extension is not None:
            sample[extension] = content
    return Taken(sample, members, position)


def _content(data: bytes, base: int, member: Member, url: str) -> bytes:
    if not member.sparse:
        return data[member.data_offset - base : member.data_offset - base + member.size]
    stored = data[member.header_offset - base : member.end - base]
    try:
        with tarfile.open(fileobj=io.BytesIO(stored + bytes(2 * BLOCK)), mode="r:") as tar:
            found = tar.getmembers()[0]
            if found.size > MOST_EXPANSION * len(stored):
                raise ValueError(
                    f"expected at most {MOST_EXPANSION * len(stored):,} bytes of content for {len(stored):,} stored "
                    f"bytes, found {found.size:,}"
                )
            file = tar.extractfile(found)  # with zeros in its holes
            return b"" if file is None else file.read()
    except MemoryError:
        raise
    except Exception as error:  # tarfile raises errors of many types
        raise ArchiveError(
            f"{url}: the sparse member {member.name!r} at byte {member.header_offset} is damaged ({error!r:.300}); "
            "write the archive again, without --sparse"
        ) from error
