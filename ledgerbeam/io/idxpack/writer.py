"""Write `.idxpack` files: the indexes of many sources are checked and copied into one file."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any, TypeAlias

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.errors import UsageError
from ledgerbeam.io.formats.registry import recognize
from ledgerbeam.io.idxpack.reader import (
    ARRAY,
    COLLECTION,
    ENTRY,
    HEADER,
    HEADER_BYTES,
    ITEM,
    ITEM_BYTES,
    MAGIC,
    PATHS_ONLY,
    SEGMENT,
    SEQUENCE,
    collection_key,
)
from ledgerbeam.io.index.file import IndexFile, IndexLocation, index_bytes
from ledgerbeam.io.storage.client import Options, map_ahead
from ledgerbeam.io.storage.publish import publish
from ledgerbeam.io.storage.stat import stat
from ledgerbeam.io.storage.urls import canonical_url

_THREADS = 16


@dataclass(frozen=True)
class PackSources:
    """A collection of sources.

    Attributes:
        role: Its purpose, for the key; not interpreted.
        kind: How the sources are stored, such as `"json-lines"`, for the key.
        source_spec: The declaration of the sources, for the key: a JSON value.
        sources: Paths or URLs in order. The pack stores them unchanged: a relative path is relative to the working
            folder of its reader.
        offsets: Whether the pack has the offsets of the records. If false, it only has the names of the sources.
    """

    role: str
    kind: str
    source_spec: Any
    sources: Sequence[str]
    offsets: bool = True


@dataclass(frozen=True)
class PackArray:
    """A collection of numbers, such as the position of each record in another source. It needs version 3 of the format.

    Attributes:
        role: Its purpose, for the key.
        kind: Kind of the numbers, for the key.
        source_spec: Declaration of their source, for the key: a JSON value.
        shards: Vectors of whole numbers from 0 to 2^32 - 1.
    """

    role: str
    kind: str
    source_spec: Any
    shards: Sequence[Sequence[int] | NDArray[Any]]


Collection: TypeAlias = PackSources | PackArray


@dataclass
class _Segment:
    """A part of a pack: a source with its index, or a vector of numbers."""

    path: str
    flags: int
    items: int
    values: NDArray[np.uint32] = field(default_factory=lambda: np.empty(0, ITEM))

    @property
    def size(self) -> int:
        return self.items * (ITEM_BYTES if self.flags & ARRAY else ENTRY)


def layout_hash(collections: Sequence[Collection]) -> bytes:
    """Return the SHA-256 of the keys and the names of sources, not of their content, for the header of a pack."""
    digest = hashlib.sha256()
    for collection in collections:
        digest.update(collection_key(collection.role, collection.kind, collection.source_spec))
        if isinstance(collection, PackArray):
            digest.update(b"\x02" + np.array([len(collection.shards), *map(len, collection.shards)], "<u8").tobytes())
            continue
        digest.update(bytes([collection.offsets]) + len(collection.sources).to_bytes(8, "little"))
        for source in collection.sources:
            name = source.encode()
            digest.update(len(name).to_bytes(8, "little") + name)
    return digest.digest()


def write_index_pack(
    url: str,
    collections: Sequence[Collection],
    options: Options | None = None,
    *,
    location: IndexLocation | None = None,
) -> bytes:
    """Publish a pack, and replace an earlier one.

    A source in several collections is packed once. The last offset of a source is its size, as lhotse requires, also if
    the index ends before the padding of an archive. Without arrays the pack has version 2.

    Args:
        url: URL of the pack, usually with the suffix `.idxpack`.
        collections: At least one, with different keys.
        options: Storage options of the pack, the sources and their indexes.
        location: Location of the indexes. Default: beside their sources.

    Returns:
        The hash of the layout.

    Raises:
        UsageError: There is no collection; or two have the same key; or a role or kind is empty. Or a number needs more
            than 32 bits, or a source has a format without an index of offsets.
        IndexNotFoundError: A source has no index.
        IndexMismatchError: An index does not fit its source.
        NotIndexableError: A source is compressed.
        SourceNotFoundError: A source does not exist; also StorageError. After any error, no pack is written.
    """
    url = canonical_url(url)
    keys = _keys(url, collections)
    packer = _Packer(options, location or IndexLocation())
    packer.gather(collections)
    layout = _Layout(collections, keys, packer)
    digest = layout_hash(collections)
    version = 3 if any(isinstance(collection, PackArray) for collection in collections) else 2
    with publish(url, options) as file:
        file.write(HEADER.pack(MAGIC, version, HEADER_BYTES, *layout.sections, digest).ljust(HEADER_BYTES, b"\0"))
        file.write(layout.collections.tobytes() + layout.sequences.tobytes())
        segments_at = file.tell()
        file.write(bytes(layout.segments.nbytes))  # overwritten once the checksums are computed
        file.write(layout.strings)
        for number, (data, source_size) in enumerate(packer.payloads()):
            layout.segments["source_size"][number] = source_size
            layout.segments["crc"][number] = zlib.crc32(data)
            file.write(data)
        file.seek(segments_at)
        file.write(layout.segments.tobytes())
    return digest


def _keys(url: str, collections: Sequence[Collection]) -> list[bytes]:
    if not collections or not all(collection.role and collection.kind for collection in collections):
        raise UsageError(f"{url}: expected at least one collection, each with a role and a kind")
    keys = [collection_key(collection.role, collection.kind, collection.source_spec) for collection in collections]
    for number, key in enumerate(keys):
        if key in keys[:number]:
            raise UsageError(
                f"{url}: collections {keys.index(key)} and {number} have the same role, kind and source_spec; "
                "these identify a collection, so change one"
            )
    return keys


def _flags(collection: Collection) -> int:
    if isinstance(collection, PackArray):
        return ARRAY
    return 0 if collection.offsets else PATHS_ONLY


class _Packer:
    """Collects the segments of a pack, each source once, and for each collection the numbers of its segments."""

    def __init__(self, options: Options | None, location: IndexLocation) -> None:
        self.segments: list[_Segment] = []
        self.numbers: list[list[int]] = []
        self._options = options
        self._location = location

    def gather(self, collections: Sequence[Collection]) -> None:
        known: dict[tuple[str, int], int] = {}
        for collection in collections:
            flags = _flags(collection)
            if isinstance(collection, PackArray):
                vectors = [_vector(shard, collection.role) for shard in collection.shards]
                self.numbers.append(list(range(len(self.segments), len(self.segments) + len(vectors))))
                self.segments += [_Segment("", flags, len(vector), vector) for vector in vectors]
                continue
            for source in collection.sources:
                if known.setdefault((source, flags), len(self.segments)) == len(self.segments):
                    self.segments.append(_Segment(source, flags, 1))
            self.numbers.append([known[source, flags] for source in collection.sources])
        indexed = [segment for segment in self.segments if not segment.flags]
        for segment, count in zip(indexed, map_ahead(self._count, indexed, _THREADS), strict=True):
            segment.items = count + 1

    def ends(self) -> Iterator[list[int]]:
        """Yield for each collection the number of records up to the end of each of its segments."""
        for numbers in self.numbers:
            segments = (self.segments[number] for number in numbers)
            yield list(accumulate(segment.items - (not segment.flags & ARRAY) for segment in segments))

    def payloads(self) -> Iterator[tuple[bytes, int]]:
        """Yield the bytes of each segment and the size of its source. A few segments are read in advance."""
        return map_ahead(self._payload, self.segments, _THREADS)

    def _count(self, segment: _Segment) -> int:
        if not recognize(segment.path).plain().is_indexable:
            raise UsageError(f"{segment.path}: this format has no index of offsets; leave this source out of the pack")
        return self._index(segment).count

    def _index(self, segment: _Segment) -> IndexFile:
        source = canonical_url(segment.path)
        return recognize(source).plain().index_file(source, self._location, self._options)

    def _payload(self, segment: _Segment) -> tuple[bytes, int]:
        if segment.flags & ARRAY:
            return segment.values.tobytes(), 0
        if segment.flags & PATHS_ONLY:
            return bytes(ENTRY), 0
        source = stat(segment.path, self._options)
        index = self._index(segment)
        recognize(source.url).plain().check_index(index, source, deep=True)
        offsets = index.load().copy()
        index.close()
        if len(offsets) != segment.items:
            raise index.mismatch(f"expected {segment.items} offsets, as at the start, found {len(offsets)}")
        offsets[-1] = source.size
        return index_bytes(offsets), source.size


class _Layout:
    """The rows and the strings of a pack. Checksums and the sizes of sources are still missing in `segments`."""

    def __init__(self, collections: Sequence[Collection], keys: Sequence[bytes], packer: _Packer) -> None:
        kinds = [collection.kind.encode() for collection in collections]
        paths = [segment.path.encode() for segment in packer.segments]
        texts = list(dict.fromkeys([*kinds, *paths]))  # each is stored once
        places = dict(zip(texts, accumulate(map(len, texts), initial=0), strict=False))
        strings = b"".join(texts)
        ends = list(packer.ends())
        sizes = [segment.size for segment in packer.segments]
        self.collections = np.zeros(len(collections), COLLECTION)
        self.sequences = np.zeros(sum(map(len, ends)), SEQUENCE)
        self.segments = np.zeros(len(packer.segments), SEGMENT)
        self.strings = strings.ljust(-(-len(strings) // ENTRY) * ENTRY, b"\0")
        parts = (self.collections.nbytes, self.sequences.nbytes, self.segments.nbytes, len(self.strings))
        starts = list(accumulate(parts, initial=HEADER_BYTES))
        counts = (len(collections), len(self.sequences), len(packer.segments), len(strings), sum(sizes))
        self.sections = [*chain.from_iterable(zip(starts, counts, strict=True))]  # start and number of rows or bytes
        strings_at, payload_at = starts[3:]
        first = 0
        for number, (collection, of_collection) in enumerate(zip(collections, ends, strict=True)):
            kind = kinds[number]
            records = of_collection[-1] if of_collection else 0
            place = (keys[number], first, len(of_collection), records)
            self.collections[number] = (*place, strings_at + places[kind], len(kind), _flags(collection))
            first += len(of_collection)
        self.sequences["segment"] = list(chain.from_iterable(packer.numbers))
        self.sequences["end"] = list(chain.from_iterable(ends))
        self.segments["path"] = [strings_at + places[path] for path in paths]
        self.segments["path_size"] = list(map(len, paths))
        self.segments["flags"] = [segment.flags for segment in packer.segments]
        self.segments["items"] = [segment.items for segment in packer.segments]
        self.segments["payload"] = list(accumulate(sizes, initial=payload_at))[:-1]
        self.segments["payload_size"] = sizes


def _vector(shard: Sequence[int] | NDArray[Any], role: str) -> NDArray[np.uint32]:
    values = np.asarray(shard if len(shard) else np.empty(0, ITEM))
    if (
        values.ndim != 1
        or values.dtype.kind not in "iu"
        or (len(values) and not 0 <= values.min() <= values.max() < 2**32)
    ):
        raise UsageError(f"array {role!r}: expected vectors of whole numbers from 0 to 2^32 - 1, found {values!r:.80}")
    return values.astype(ITEM)
