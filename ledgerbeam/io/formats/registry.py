"""The formats that have a `.idx`, behind one small interface.

    format_of("s3://bucket/cuts.000001.jsonl").build_index(url, options)

A job asks `format_of` once for a source's format and needs no other branch on it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from ledgerbeam.errors import NotIndexableError, UsageError
from ledgerbeam.io.compression.streams import decompressed
from ledgerbeam.io.index.file import IndexFile, Offsets, check_index
from ledgerbeam.io.index.location import IndexLocation
from ledgerbeam.io.jsonl import newlines
from ledgerbeam.io.jsonl import reader as jsonl
from ledgerbeam.io.megatron.documents import DocumentOffsets, MegatronDocuments
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.stat import FileInfo
from ledgerbeam.io.storage.urls import canonical_url
from ledgerbeam.io.tar import encode
from ledgerbeam.io.tar import reader as tar
from ledgerbeam.io.tar.grouping import Grouping

__all__ = ["FORMATS", "Format", "Reader", "WritableFormat", "format_of", "is_compressed", "stream_records"]

_COMPRESSED = {".gz": "gunzip", ".tgz": "gunzip", ".bz2": "bunzip2", ".xz": "unxz", ".zst": "unzstd", ".lz4": "unlz4"}
_BY_SUFFIX = {".jsonl": "jsonl", ".json": "jsonl", ".ndjson": "jsonl", ".tar": "tar", ".bin": "megatron"}


class Reader(Protocol):
    """Random access to the records of one source.

    Deterministic, picklable, and safe to share between threads and to carry through a fork.
    """

    @property
    def url(self) -> str:
        """The canonical URL of the source."""

    def __len__(self) -> int: ...

    def __getitem__(self, item: Any, /) -> Any:
        """One record for an int (negative counts from the end), a list of records for a slice."""

    def __iter__(self) -> Iterator[Any]: ...

    def read_many(self, indices: Sequence[int]) -> list[Any]:
        """Records by number, in the order asked; neighbours share a request."""

    def raw(self, index: int) -> bytes:
        """The bytes of one record as they lie in the source."""

    def read_span(self, start: int, stop: int) -> list[Any]:
        """The records `[start, stop)`: one ranged read of the index, one of the source.

        Blank JSONL lines are left out: `stop - start - len(result)` of them were skipped.
        """

    def close(self) -> None:
        """Closes what is open; a later read opens it again."""


class Format(Protocol):
    """What a job needs to know of a format."""

    @property
    def name(self) -> str:
        """`"jsonl"`, `"tar"` or `"megatron"`."""

    @property
    def rebuildable(self) -> bool:
        """Whether an index can be built from its source."""

    def index_file(self, url: str, location: IndexLocation, options: Options | None = None) -> IndexFile:
        """Gives the index of a source, unopened; a format that brings its own has it beside the source."""

    def build_index(
        self,
        url: str,
        options: Options | None = None,
        *,
        threads: int = 1,
        group: Grouping = "auto",
        listed: FileInfo | None = None,
    ) -> Offsets:
        """Finds the offsets of all records: `N + 1` of them, u64, the last a sentinel.

        Raises:
            ChangedSourceError: The source is not what was `listed`.
            NotIndexableError: The format is not `rebuildable`.
        """

    def check_index(self, index: IndexFile, source: FileInfo, *, deep: bool = False) -> None:
        """Raises IndexNotFoundError or IndexMismatchError when the index does not fit the source."""

    def open(
        self,
        url: str,
        index: IndexFile | str | None = None,
        options: Options | None = None,
        *,
        group: Grouping = "auto",
        check: bool = True,
        listed: FileInfo | None = None,
    ) -> Reader:
        """Opens a source for random access. `index` defaults to `<url>.idx`; `listed` is as in `RangeReader`."""


class WritableFormat(Format, Protocol):
    """A format of which a shard is one file and a `.idx` of offsets."""

    @property
    def suffix(self) -> str:
        """What the names of outputs end with, dot included."""

    def encode(self, records: Sequence[Any], *, group: Grouping = "auto") -> tuple[bytes, Offsets]:
        """Encodes records as a whole file: its bytes and its offsets, `N + 1` of them."""

    def split(self, data: bytes, url: str, *, group: Grouping = "auto") -> list[Any]:
        """Decodes a whole file that is already in memory; `url` is for messages.

        Raises:
            SourceError: A record cannot be decoded.
        """


class _Jsonl:
    """JSON lines: a record is a line."""

    name = "jsonl"
    suffix = ".jsonl"
    rebuildable = True

    def index_file(self, url: str, location: IndexLocation, options: Options | None = None) -> IndexFile:
        return IndexFile(location.url_for(url), options, source=url)

    def build_index(
        self,
        url: str,
        options: Options | None = None,
        *,
        threads: int = 1,
        group: Grouping = "auto",
        listed: FileInfo | None = None,
    ) -> Offsets:
        del group  # lines need no grouping
        return newlines.build_jsonl_index(url, options, threads=threads, listed=listed)

    def check_index(self, index: IndexFile, source: FileInfo, *, deep: bool = False) -> None:
        check_index(index, source, "jsonl", deep=deep)

    def open(
        self,
        url: str,
        index: IndexFile | str | None = None,
        options: Options | None = None,
        *,
        group: Grouping = "auto",
        check: bool = True,
        listed: FileInfo | None = None,
    ) -> Reader:
        del group
        return jsonl.JsonlReader(url, index, options, check=check, listed=listed)

    def encode(self, records: Sequence[Any], *, group: Grouping = "auto") -> tuple[bytes, Offsets]:
        del group
        return jsonl.encode_jsonl(records)

    def split(self, data: bytes, url: str, *, group: Grouping = "auto") -> list[Any]:
        del group
        return jsonl.split_jsonl(data, url)


class _Tar:
    """Tar archives: a record is a sample, a run of members that belong together."""

    name = "tar"
    suffix = ".tar"
    rebuildable = True

    def index_file(self, url: str, location: IndexLocation, options: Options | None = None) -> IndexFile:
        return IndexFile(location.url_for(url), options, source=url)

    def build_index(
        self,
        url: str,
        options: Options | None = None,
        *,
        threads: int = 1,
        group: Grouping = "auto",
        listed: FileInfo | None = None,
    ) -> Offsets:
        del threads  # the chain of headers is followed by one
        return tar.build_tar_index(url, options, group, listed=listed)

    def check_index(self, index: IndexFile, source: FileInfo, *, deep: bool = False) -> None:
        check_index(index, source, "tar", deep=deep)

    def open(
        self,
        url: str,
        index: IndexFile | str | None = None,
        options: Options | None = None,
        *,
        group: Grouping = "auto",
        check: bool = True,
        listed: FileInfo | None = None,
    ) -> Reader:
        return tar.TarReader(url, index, options, group=group, check=check, listed=listed)

    def encode(self, records: Sequence[Any], *, group: Grouping = "auto") -> tuple[bytes, Offsets]:
        return encode.encode_tar(records, group=group)

    def split(self, data: bytes, url: str, *, group: Grouping = "auto") -> list[Any]:
        return tar.split_tar(data, url, group=group)


class _Megatron:
    """Megatron datasets: a record is a document. The `.idx` is a part of the dataset and lies beside the `.bin`."""

    name = "megatron"
    rebuildable = False

    def index_file(self, url: str, location: IndexLocation, options: Options | None = None) -> IndexFile:
        del location  # the two files of a dataset share a prefix
        return DocumentOffsets(url, options)

    def build_index(
        self,
        url: str,
        options: Options | None = None,
        *,
        threads: int = 1,
        group: Grouping = "auto",
        listed: FileInfo | None = None,
    ) -> Offsets:
        del options, threads, group, listed
        raise NotIndexableError(
            f"{url}: the .idx of a Megatron dataset cannot be built from its .bin, which is tokens and nothing else; "
            "copy it too, or write the dataset again."
        )

    def check_index(self, index: IndexFile, source: FileInfo, *, deep: bool = False) -> None:
        DocumentOffsets(index.source, index.options).check(source.size, deep=deep)

    def open(
        self,
        url: str,
        index: IndexFile | str | None = None,
        options: Options | None = None,
        *,
        group: Grouping = "auto",
        check: bool = True,
        listed: FileInfo | None = None,
    ) -> Reader:
        del index, group  # beside the `.bin`; tokens need no grouping
        return MegatronDocuments(url, options, check=check, listed=listed)


FORMATS: dict[str, WritableFormat] = {"jsonl": _Jsonl(), "tar": _Tar()}
"""The formats that are read and written file by file, by name."""

_READ: dict[str, Format] = {**FORMATS, "megatron": _Megatron()}


def _suffixes(url: str) -> list[str]:
    return ["." + part for part in os.path.basename(url).lower().split(".")[1:]]


def is_compressed(url: str) -> bool:
    """Tells by name whether a source is compressed: one of its last two suffixes is `.gz`, `.tgz`, `.bz2`, ..."""
    return any(suffix in _COMPRESSED for suffix in _suffixes(url)[-2:])


def format_of(url: str) -> Format:
    """Finds the format of a source by its name.

    Any suffix counts, and the last one that is known decides, so that `cuts.jsonl.000001` is JSONL and `x.tar.0` a tar:
    `.jsonl`, `.json` and `.ndjson` are JSONL, `.tar` is tar, `.bin` is Megatron.

    Raises:
        NotIndexableError: The name is that of a compressed file, or a pipe.
        UsageError: The name tells no known format, compressed or not.
    """
    if url.startswith("pipe:"):
        raise NotIndexableError(f"{url}: a pipe has no byte offsets to index; write its output to a file first.")
    suffixes = _suffixes(url)
    known = any(suffix in _BY_SUFFIX for suffix in (*suffixes, ".tar" if ".tgz" in suffixes else ""))
    for suffix in suffixes[-2:]:
        if suffix in _COMPRESSED and known:
            raise NotIndexableError(
                f"{url}: {suffix} is compressed and has no byte offsets to index: map, convert and tokenize read "
                f"it from its begin; for the rest decompress it, e.g. {_COMPRESSED[suffix]} {os.path.basename(url)}"
            )
    for suffix in reversed(suffixes):
        if suffix in _BY_SUFFIX and not is_compressed(url):
            return _READ[_BY_SUFFIX[suffix]]
    raise UsageError(f"{url}: the name tells no known format; expected a suffix .jsonl, .json, .ndjson, .tar or .bin.")


def stream_records(url: str, options: Options | None = None) -> Iterator[Any]:
    """Reads a JSONL source from its begin to its end, plain or compressed (`compression`).

    Args:
        url: The source.
        options: Storage options.

    Yields:
        The decoded records; blank lines are left out.

    Raises:
        RecordError: A line that cannot be decoded; its byte range is that of the decompressed text.
        SourceError: The compressed data is damaged or cut off.
        SourceNotFoundError: There is no such source; also StorageError.
        UsageError: It is compressed in a way that takes a package that is not installed.
    """
    url = canonical_url(url)
    record = start = 0
    line = bytearray()
    for block in decompressed(url, options):
        pieces = block.split(b"\n")
        for piece in pieces[:-1]:
            whole = bytes(line) + piece if line else piece
            line.clear()
            if whole.strip():
                yield jsonl.decode_line(whole, url, record, start)
            record += 1
            start += len(whole) + 1
        line += pieces[-1]
    if line.strip():
        yield jsonl.decode_line(bytes(line), url, record, start)
