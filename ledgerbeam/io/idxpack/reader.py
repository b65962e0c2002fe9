"""Layout and reading of `.idxpack` files, the indexes of many sources in one file.

The layout is that of versions 2 and 3 of `lhotse.index_pack` 2.0.0a7. All integers are little-endian. A segment is a
source and its index; in version 3 it can also be a vector of numbers without a source. A collection is a list of
segments. A header of 256 bytes is followed by the rows of collections, of their lists ("sequences") and of segments,
then by strings, and the payload: the bytes of each `.idx`.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, TypeAlias

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.errors import IndexMismatchError, IndexNotFoundError, UsageError
from ledgerbeam.io.formats.format import Reader
from ledgerbeam.io.formats.registry import recognize
from ledgerbeam.io.index.file import IndexFile, Offsets, three_columns
from ledgerbeam.io.index.reader import NumberedRecords, read_by_part
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.urls import canonical_url

MAGIC = b"IDXPACK2"  # magic number of both versions
# Magic, version, size of the header, offset and length of each section, hash of the layout.
HEADER = struct.Struct("<8sII10Q32s")
HEADER_BYTES = 256
ENTRY = 8  # size of an offset in bytes
ITEM = "<u4"  # NumPy type of a number in a vector
ITEM_BYTES = 4
PATHS_ONLY = 1  # flag of a collection or segment that only names sources, without offsets
ARRAY = 2  # flag of a collection or segment of numbers
Row: TypeAlias = list[tuple[str, str]]  # names and types of the fields of a row, in the form of a NumPy dtype

COLLECTION: Row = [
    ("key", "V32"),
    ("first", "<u8"),
    ("rows", "<u8"),
    ("records", "<u8"),
    ("kind", "<u8"),
    ("size", "<u4"),
    ("flags", "<u4"),
]

SEQUENCE: Row = [("segment", "<u8"), ("end", "<u8")]

SEGMENT: Row = [
    ("path", "<u8"),
    ("payload", "<u8"),
    ("path_size", "<u4"),
    ("flags", "<u4"),
    ("items", "<u8"),
    ("source_size", "<u8"),
    ("payload_size", "<u8"),
    ("crc", "<u4"),
    ("reserved", "<u4"),
]

_MOST_OPEN = 32


class IndexPack:
    """A pack of indexes. The constructor reads the header and the rows; offsets are read when they are needed.

    May be pickled, shared by threads and used after a fork.

    Args:
        url: The pack.
        options: Storage options of the pack and its sources.

    Raises:
        SourceNotFoundError: The pack does not exist.
        IndexMismatchError: The file is not a pack, has another version, is truncated, or its parts do not fit together.
    """

    def __init__(self, url: str, options: Options | None = None) -> None:
        self.url = canonical_url(url)
        self.options = options
        self._reader = RangeReader(self.url, options)
        if (size := self._reader.size) < HEADER_BYTES:
            raise self._damaged(f"expected a header of {HEADER_BYTES} bytes, found {size} bytes")
        magic, self.version, header, *sections, layout = HEADER.unpack(self._reader.read(0, HEADER.size))
        if magic != MAGIC or self.version not in (2, 3) or header != HEADER_BYTES:
            raise self._damaged(f"expected {MAGIC!r} of version 2 or 3, found {magic!r} of version {self.version}")
        self.layout_hash: bytes = layout
        self._take_catalog(sections, size)

    def __repr__(self) -> str:
        return f"IndexPack({self.url!r})"

    @property
    def keys(self) -> list[bytes]:
        """The keys of its collections, 32 bytes each, in the order of the pack."""
        return [bytes(key) for key in self._collections["key"]]

    def collection(self, key: bytes | str | None = None) -> PackedRecords:
        """Open a collection as a reader.

        Args:
            key: The key of the collection (`collection_key`), as bytes or hexadecimal. Default: the only collection.

        Raises:
            IndexNotFoundError: There is no such collection.
            UsageError: No key is given and there are several; or the collection has no offsets of records.
        """
        row = self._row(key)
        wanted = bytes(row["key"])
        if row["flags"]:
            raise UsageError(f"{self.url}: collection {wanted.hex()} has no offsets of records; name another one")
        sequences = self._rows_of(row)
        segments = self._segments[sequences["segment"]]
        ends = np.cumsum(segments["items"].astype(np.int64) - 1)
        if segments["flags"].any() or (segments["items"] == 0).any() or (ends != sequences["end"]).any():
            raise self._damaged(f"the record counts of collection {wanted.hex()} and of its indexes differ")
        return PackedRecords(self, wanted, sequences, int(segments["source_size"].sum()))

    def sources(self, key: bytes | str | None = None) -> list[str]:
        """Return the sources of a collection in order, as its writer named them; none for a collection of numbers.

        Raises:
            IndexNotFoundError: There is no such collection.
            UsageError: No key is given and there are several.
        """
        row = self._row(key)
        return [] if row["flags"] & ARRAY else list(map(self.source, self._rows_of(row)["segment"].tolist()))

    def array(self, key: bytes | str | None = None) -> list[NDArray[np.uint32]]:
        """Return the vectors of a collection of numbers (`PackArray.shards`), each as u32.

        Raises:
            IndexNotFoundError: There is no such collection.
            UsageError: No key is given and there are several, or the collection has no numbers.
        """
        row = self._row(key)
        if not row["flags"] & ARRAY:
            raise UsageError(f"{self.url}: collection {bytes(row['key']).hex()} has sources, not numbers")
        rows = self._segments[self._rows_of(row)["segment"]]
        starts = rows["payload"].astype(np.int64)
        found = self._reader.read_many(starts, starts + rows["payload_size"].astype(np.int64))
        return [np.frombuffer(data, ITEM) for data in found]

    def verify(self) -> None:
        """Read the whole pack and compare the checksum of each segment. IndexMismatchError if one differs."""
        for number, segment in enumerate(self._segments):
            start = int(segment["payload"])
            if zlib.crc32(self._reader.read(start, start + int(segment["payload_size"]))) != segment["crc"]:
                raise self._damaged(f"expected segment {number} to have CRC32 {segment['crc']:#010x}, found another")

    def source(self, segment: int) -> str:
        """Return the URL of a segment's source."""
        row = self._segments[segment]
        start = int(row["path"]) - self._strings_at
        path = self._strings[start : start + int(row["path_size"])]
        try:
            return path.decode()
        except UnicodeDecodeError as error:
            raise self._damaged(f"expected the path of segment {segment} in UTF-8, found {path!r:.80}") from error

    def index(self, segment: int) -> IndexFile:
        """Return the index of a segment's source."""
        row = self._segments[segment]
        return _PackedIndex(self.url, self.options, self.source(segment), int(row["payload"]), int(row["items"]) - 1)

    def reader(self, segment: int) -> Reader:
        """Open a segment's source.

        Raises:
            IndexMismatchError: The name has no known format; also the errors of the reader of its format.
        """
        url = self.source(segment)
        try:
            return recognize(url).plain().open(url, self.index(segment), self.options)
        except UsageError as error:
            raise self._damaged(f"segment {segment} names no source ({error})") from error

    def close(self) -> None:
        """Close the file, if it is open; a later read opens it again."""
        self._reader.close()

    def _row(self, key: bytes | str | None) -> Any:
        keys = self.keys
        if key is None and len(keys) != 1:
            raise UsageError(f"{self.url}: expected the key of one of {len(keys)} collections, found no key; give one")
        wanted = keys[0] if key is None else bytes.fromhex(key) if isinstance(key, str) else key
        if wanted not in keys:
            raise IndexNotFoundError(
                f"{self.url}: there is no collection {wanted.hex()}; it has {', '.join(known.hex() for known in keys)}"
            )
        return self._collections[keys.index(wanted)]

    def _rows_of(self, row: Any) -> NDArray[Any]:
        first, rows = int(row["first"]), int(row["rows"])
        return self._sequences[first : first + rows]

    def _take_catalog(self, sections: list[int], size: int) -> None:
        at = dict(zip(("collections", "sequences", "segments", "strings", "payload"), sections[::2], strict=True))
        counts = sections[1::2]
        ends = [
            at["collections"] + counts[0] * np.dtype(COLLECTION).itemsize,
            at["sequences"] + counts[1] * np.dtype(SEQUENCE).itemsize,
            at["segments"] + counts[2] * np.dtype(SEGMENT).itemsize,
            -(-(at["strings"] + counts[3]) // ENTRY) * ENTRY,
            at["payload"] + counts[4],
        ]
        if [HEADER_BYTES, *ends] != [*at.values(), size]:
            raise self._damaged(f"expected sections one after another up to byte {size}, found {sections}")
        data = self._reader.read(HEADER_BYTES, at["payload"])
        shift = HEADER_BYTES
        self._collections = np.frombuffer(data, COLLECTION, counts[0], at["collections"] - shift)
        self._sequences = np.frombuffer(data, SEQUENCE, counts[1], at["sequences"] - shift)
        self._segments = np.frombuffer(data, SEGMENT, counts[2], at["segments"] - shift)
        self._strings_at = at["strings"]
        self._strings = data[at["strings"] - shift : at["strings"] - shift + counts[3]]
        self._check_rows(at["payload"], size)

    def _check_rows(self, payload: int, size: int) -> None:
        rows, segments = self._collections["rows"].astype(np.int64), self._segments
        if not _follow(self._collections["first"], rows, 0, len(self._sequences)):
            raise self._damaged("expected each sequence in exactly one collection, found gaps or overlaps")
        if len(self._sequences) and int(self._sequences["segment"].max()) >= len(segments):
            raise self._damaged("a sequence names a segment that does not exist")
        sizes = segments["payload_size"].astype(np.int64)
        width = np.where(segments["flags"] & ARRAY, ITEM_BYTES, ENTRY)
        if not _follow(segments["payload"], sizes, payload, size):
            raise self._damaged("expected segments one after another, found gaps or overlaps")
        if (sizes // width != segments["items"]).any() or (sizes % width).any():
            raise self._damaged("the size of a segment does not fit its number of offsets")
        texts = segments["path"].astype(np.int64) - self._strings_at
        if ((texts < 0) | (texts + segments["path_size"] > len(self._strings))).any():
            raise self._damaged("the path of a segment is outside of the section of strings")

    def _damaged(self, what: str) -> IndexMismatchError:
        return IndexMismatchError(f"{self.url}: {what}; {_remedy(self.url)}")


class PackedRecords(NumberedRecords[Any]):
    """Random access to the records of all sources of a collection, one after the other.

    At most 32 sources are open at a time. Neighbours in a source share a request. Reads raise IndexMismatchError if a
    source is not the one that was packed: it must have the size that it had then.

    Attributes:
        url: The pack.
        key: The key of the collection, 32 bytes.
        size: Bytes of all its sources.
        ends: For each source the number of records up to its end: shape `(sources,)`, i64.
    """

    def __init__(self, pack: IndexPack, key: bytes, rows: NDArray[Any], size: int) -> None:
        self.pack = pack
        self.url = pack.url
        self.options = pack.options
        self.key = key
        self.size = size
        self.ends: NDArray[np.int64] = rows["end"].astype(np.int64)
        self._bounds = np.append(0, self.ends)
        self._segments: list[int] = rows["segment"].tolist()
        self._open: OrderedDict[int, Reader] = OrderedDict()

    def __repr__(self) -> str:
        return f"PackedRecords({self.url!r}, {self.key.hex()[:12]})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": OrderedDict()}

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def _read(self, records: list[int]) -> list[Any]:
        return read_by_part(records, self._bounds, lambda source, inside: self._reader(source).read_many(inside))

    def locate(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return for each number of a record the position of its source, and the number of the record in the source."""
        sources = self.ends.searchsorted(numbers, "right")
        return sources, numbers - np.where(sources > 0, self.ends[sources - 1], 0)

    def close(self) -> None:
        """Close the open files; a later read opens them again."""
        for reader in self._open.values():
            reader.close()
        self._open.clear()
        self.pack.close()

    def _reader(self, source: int) -> Reader:
        if (reader := self._open.pop(source, None)) is None:
            reader = self.pack.reader(self._segments[source])
            if len(self._open) >= _MOST_OPEN:
                self._open.popitem(last=False)[1].close()
        self._open[source] = reader
        return reader


class _PackedIndex(IndexFile):
    """The index of one source, which is a part of a pack."""

    __slots__ = ("_at", "_records")

    def __init__(self, url: str, options: Options | None, source: str, at: int, records: int) -> None:
        super().__init__(url, options, source=source)
        self._at = at
        self._records = records

    def __reduce__(self) -> tuple[Any, ...]:
        return _PackedIndex, (self.url, self.options, self.source, self._at, self._records)

    @property
    def count(self) -> int:
        return self._records

    def slice(self, start: int, stop: int) -> Offsets:
        if stop > self._records:
            raise self.mismatch(f"expected at least {stop} records, found {self._records}")
        return np.frombuffer(self._reader.read(self._at + start * ENTRY, self._at + (stop + 1) * ENTRY), "<u8")

    def ranges(self, records: NDArray[np.int64]) -> tuple[Offsets, Offsets, Offsets]:
        return three_columns(
            self._reader.read_many(self._at + np.maximum(records - 1, 0) * ENTRY, self._at + (records + 2) * ENTRY)
        )

    def first_and_last(self) -> tuple[int, int, int]:
        last = max(0, self._records - 1)
        return (
            int(self.slice(0, 0)[0]),
            int(self.slice(last, last)[0]),
            int(self.slice(self._records, self._records)[0]),
        )

    def mismatch(self, what: str) -> IndexMismatchError:
        return IndexMismatchError(f"{self.url} does not fit {self.source}: {what}; {_remedy(self.url)}")


def _follow(starts: NDArray[Any], sizes: NDArray[np.int64], first: int, stop: int) -> bool:
    """Return whether ranges follow each other from `first` to `stop`."""
    ends = np.cumsum(sizes) + first
    return not (sizes < 0).any() and not (ends - sizes != starts).any() and sizes.sum() == stop - first


def _remedy(url: str) -> str:
    """Return the remedy for a damaged pack. `ledgerbeam index` does not write packs."""
    return (
        f"write the pack again: if it is of the outputs of a job, ledgerbeam publish LEDGER --as idxpack --output {url}"
        ", which replaces this file, else write_index_pack in Python"
    )


def collection_key(role: str, kind: str, source_spec: Any) -> bytes:
    """Compute the key of a collection: SHA-256, 32 bytes, of these arguments as compact JSON with sorted keys.

    Args:
        role: Purpose, such as `"manifest"`.
        kind: Storage, such as `"json-lines"`.
        source_spec: Declaration of the sources, a JSON value.
    """
    declared = {"kind": kind, "role": role, "source_spec": _plain(source_spec)}
    text = json.dumps(declared, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(text.encode()).digest()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)
