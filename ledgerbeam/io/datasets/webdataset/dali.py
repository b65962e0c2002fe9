"""DALI's index of a shard: a text file with the offset and size of every file of every sample.

Source: `wds2idx.py` of NVIDIA DALI, index version v1.2. The first line is `v1.2 <samples>`. Each other line has
`extension offset size name` for each file of a sample, all separated by blanks. Offsets point to the contents. Names
are in the form that `tar --list` prints.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ledgerbeam.errors import ArchiveError, IndexMismatchError, IndexNotFoundError, SourceNotFoundError
from ledgerbeam.io.compression.content import age_fault
from ledgerbeam.io.index.reader import NumberedRecords
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.files import read_bytes
from ledgerbeam.io.storage.publish import publish_bytes
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import stat
from ledgerbeam.io.storage.urls import canonical_url
from ledgerbeam.io.tar.grouping import group_key, split_key
from ledgerbeam.io.tar.headers import BLOCK, Member, next_member, plain_file
from ledgerbeam.io.tar.sample import Sample
from ledgerbeam.io.tar.walk import walk_tar

_VERSION = "v1.2"

_BEFORE = 4 * 1024  # most bytes that are read before the content of a file: its header, and headers of a long name
_QUOTED = re.compile(rb"\\([0-3][0-7]{2}|.)")
_LETTERS = dict(zip((b"a", b"b", b"f", b"n", b"r", b"t", b"v"), b"\a\b\f\n\r\t\v", strict=True))


def dali_index_url(url: str) -> str:
    """Return the URL of a shard's index, as DALI's `wds2idx.py` names it: `a/b.c.tar` has `a/b.idx`."""
    base = url.rfind("/") + 1
    dot = url.find(".", base + 1)
    return f"{url[:dot] if dot > 0 else url}.idx"


def write_dali_index(url: str, index: str | None = None, options: Options | None = None) -> int:
    """Read the headers of a shard and publish its index for DALI. Return the number of samples.

    Args:
        index: URL of the index. Default: `dali_index_url`.

    Raises:
        ArchiveError: The shard is damaged, has no samples, repeats an extension in a sample, or has a name with white
            space or outside UTF-8, which the format cannot hold.
        ChangedSourceError: The shard changed while it was read.
        SourceNotFoundError: The shard does not exist; also StorageError.
    """
    url = canonical_url(url)
    source = stat(url, options)
    members = walk_tar(url, options, source)
    if not (firsts := group_key(members, url).tolist()):
        raise ArchiveError(f"{url}: the shard has no samples, and DALI refuses an empty shard; leave it out")
    names = members.names
    regular, places, sizes = members.regular.tolist(), members.data_offset.tolist(), members.size.tolist()
    lines = [f"{_VERSION} {len(firsts)}"]
    for first, stop in itertools.pairwise([*firsts, len(members)]):
        fields = []
        for number in range(first, stop):
            parts = split_key(names[number]) if regular[number] else None
            if parts is not None:
                fields.append(f"{parts[1]} {places[number]} {sizes[number]} {names[number]}")
                if len(fields[-1].split()) != 4:
                    raise ArchiveError(
                        f"{url}: DALI's index cannot hold the name {names[number]!r} with its blanks; rename the member"
                    )
        lines.append(" ".join(fields))
    try:
        content = "".join(f"{line}\n" for line in lines).encode()
    except UnicodeEncodeError as error:
        raise ArchiveError(f"{url}: a name is not UTF-8: {error.object[error.start - 20 : error.end]!r}") from error
    publish_bytes(index or dali_index_url(url), content, options, not_before_ns=source.modified_ns)
    return len(firsts)


@dataclass(frozen=True, slots=True)
class _Files:
    """The files of a shard, as columns of equal length. Sample `i` has the files `[bounds[i], bounds[i + 1])`."""

    bounds: NDArray[np.int64]
    before: NDArray[np.int64]  # for each file the end of the previous file in the shard, padding included
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    extensions: list[str]
    names: list[str]


class DaliReader(NumberedRecords[Sample]):
    """Random access to the samples of a shard through DALI's index, which is loaded immediately.

    Each read of a file includes the header before it; name and size in the header must match the index. Deterministic,
    picklable, safe to share between threads and to use after a fork.

    Args:
        index: URL of the index. Default: `dali_index_url`.

    Raises:
        IndexNotFoundError: The index does not exist.
        IndexMismatchError: The index has another version than v1.2, is older than the shard, or does not fit its size.
            Reads also raise it if the shard has another file at an offset.
        SourceNotFoundError: The shard does not exist; also StorageError.
    """

    def __init__(self, url: str, index: str | None = None, options: Options | None = None) -> None:
        self.url = canonical_url(url)
        self.index_url = canonical_url(index or dali_index_url(self.url))
        self.options = options
        self._reader = RangeReader(self.url, options)
        self._files = self._load()

    def __repr__(self) -> str:
        return f"DaliReader({self.url!r}, index={self.index_url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.url, self.index_url, self.options)

    def __len__(self) -> int:
        return len(self._files.bounds) - 1

    def close(self) -> None:
        self._reader.close()

    def _read(self, records: list[int]) -> list[Sample]:
        files, bounds = self._files, self._files.bounds
        spans = [range(bounds[record], bounds[record + 1]) for record in records]
        wanted = np.fromiter(itertools.chain.from_iterable(spans), np.int64)
        firsts = np.maximum(files.before[wanted], files.starts[wanted] - _BEFORE)
        found = iter(self._reader.read_many(firsts, files.stops[wanted]))
        samples = []
        for span in spans:
            extensions = files.extensions[span.start : span.stop]
            names, contents = zip(*[self._take(number, next(found)) for number in span], strict=True)
            samples.append(Sample(names[0].removesuffix(f".{extensions[0]}"), zip(extensions, contents, strict=True)))
        return samples

    def _take(self, number: int, data: bytes) -> tuple[str, bytes]:
        """Return the name and content of a file from bytes that start before its header."""
        start, listed = int(self._files.starts[number]), self._files.names[number]
        size = int(self._files.stops[number]) - start
        at = len(data) - size
        if at == BLOCK and plain_file(data[:BLOCK]) == (size, listed.encode()):
            return listed, data[BLOCK:]
        if (member := _member_of(data[:at], start, self.url)) is not None and member.sparse:
            raise ArchiveError(
                f"{self.url}: the member {member.name!r} at byte {member.header_offset} is sparse, and DALI cannot "
                "read sparse files; write the archive again, without --sparse"
            )
        if member is not None and member.regular and member.size == size and member.name in (listed, _unquoted(listed)):
            return member.name, data[at:]
        found = "no header before it"
        if member is not None:
            found = f"{member.name!r}" + (f" of {member.size} bytes" if member.regular else ", which is no file")
        raise self._mismatch(f"expected {listed!r} of {size} bytes at byte {start}, found {found}")

    def _load(self) -> _Files:
        try:
            text = read_bytes(self.index_url, self.options).decode()
        except SourceNotFoundError as error:
            raise IndexNotFoundError(
                f"{self.url} has no index at {self.index_url}; make it with wds2idx or write_dali_index"
            ) from error
        except UnicodeDecodeError as error:
            raise self._mismatch(f"expected text, found {error.object[:20]!r}") from error
        head, *lines = text.split("\n")
        if head.split()[:1] != [_VERSION] or lines[-1:] != [""] or head.split()[1:] != [str(len(lines) - 1)]:
            raise self._mismatch(f"expected '{_VERSION} N' and N lines, found {head!r:.60} and {len(lines)} line ends")
        rows = [line.split(" ") for line in lines[:-1]]
        for number, row in enumerate(rows):
            if len(row) % 4 or not row[0] or not all(map(_is_number, [*row[1::4], *row[2::4]])):
                raise self._mismatch(f"sample {number}: expected 'extension offset size name', found {row!r:.80}")
        fields = list(itertools.chain.from_iterable(rows))
        starts = np.array([int(field) for field in fields[1::4]], np.int64)
        stops = starts + np.array([int(field) for field in fields[2::4]], np.int64)
        source = stat(self.url, self.options)
        if fault := age_fault(stat(self.index_url, self.options), source):
            raise self._mismatch(fault)
        if len(wrong := np.flatnonzero(stops > source.size)):
            at = wrong[0]
            raise self._mismatch(
                f"expected files that end by byte {source.size}, found {fields[4 * at + 3]!r} to end at {stops[at]}"
            )
        order = np.argsort(starts, kind="stable")
        before = np.zeros_like(starts)
        before[order[1:]] = (stops[order[:-1]] + BLOCK - 1) & -BLOCK
        if len(wrong := np.flatnonzero((starts % BLOCK != 0) | (starts - before < BLOCK))):
            at = wrong[0]
            raise self._mismatch(
                f"expected the content of {fields[4 * at + 3]!r} at a multiple of 512, from byte {before[at] + BLOCK} "
                f"on, found it at byte {starts[at]}"
            )
        bounds = np.cumsum([0, *(len(row) // 4 for row in rows)])
        return _Files(bounds, before, starts, stops, fields[::4], fields[3::4])

    def _mismatch(self, what: str) -> IndexMismatchError:
        return IndexMismatchError(
            f"{self.index_url} does not fit {self.url}: {what}. Make the index again with wds2idx or write_dali_index"
        )


def _member_of(before: bytes, start: int, url: str) -> Member | None:
    """Find the member whose content starts at the offset `start`, in the bytes `before` it; None if it is not there.

    The first header of the member may be in any block of these bytes, after other members and before more headers.
    """
    base = start - len(before)
    for place in range(base, start, BLOCK):
        with contextlib.suppress(ArchiveError):
            member = next_member(lambda first, size: before[first - base : first - base + size], place, url)
            if member is not None and member.data_offset == start:
                return member
    return None


def _is_number(field: str) -> bool:
    """Return whether a text is a number of at most 18 digits, so that a sum of two fits in 64 bits."""
    return field.isascii() and field.isdigit() and len(field) <= 18


def _unquoted(name: str) -> str:
    """Return the name of a member from the listing of GNU tar, which in some locales quotes all except ASCII."""

    def character(found: re.Match[bytes]) -> bytes:
        code = found[1]
        return bytes([int(code, 8) if len(code) == 3 else _LETTERS.get(code, code[0])])

    return _QUOTED.sub(character, name.encode()).decode("utf-8", "surrogateescape")
