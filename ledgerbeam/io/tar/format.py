"""The format tar: a record is a sample, which is a group of neighbouring members."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from ledgerbeam._base.lazy import np
from ledgerbeam.errors import ArchiveError, RecordError
from ledgerbeam.io.compression.streams import Stream
from ledgerbeam.io.formats import base
from ledgerbeam.io.formats.base import IndexedFormat, changed_span, require_size
from ledgerbeam.io.formats.format import Reader, ShardFile, StreamedRecords, StreamSpan
from ledgerbeam.io.index.file import Offsets
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.content_kind import require_head
from ledgerbeam.io.storage.stat import FileInfo
from ledgerbeam.io.tar.grouping import Grouping, group_key, group_members, group_pairs
from ledgerbeam.io.tar.headers import PlainHeaderScan, Run
from ledgerbeam.io.tar.reader import TarLayout, TarReader, build_tar_index, sample_offsets
from ledgerbeam.io.tar.sample import Sample, take_sample
from ledgerbeam.io.tar.walk import HeaderSource, walk_bytes, walk_source
from ledgerbeam.io.tar.writer import encoded_samples

_MOST_HEADER = 1 << 24


@dataclass(frozen=True)
class TarFormat(IndexedFormat):
    """Tar archives.

    Attributes:
        group: The rule that makes samples of members: ``auto``, ``pairs`` (lhotse Shar) or ``key`` (WebDataset).
        paired: Whether the samples of a stream are pairs; set by `scan`.
    """

    name = "tar"
    suffixes = (".tar",)
    layout = TarLayout()

    group: Grouping = "auto"
    paired: bool = False

    def build_index(self, url: str, options: Options | None = None, *, listed: FileInfo | None = None) -> Offsets:
        """Find the offsets of all samples; see `OffsetFormat`."""
        try:
            return build_tar_index(url, options, self.group, listed=listed)
        except ArchiveError:
            require_head(url, options, listed, self.name)
            raise

    def _reader(self, *source: Any, **how: Any) -> Reader:
        return TarReader(*source, group=self.group, **how)

    def scan(self, stream: Stream) -> StreamedRecords:
        """Find the samples of a compressed archive in one pass; see `OffsetFormat`.

        Raises:
            ArchiveError: The archive is damaged, or its members cannot be grouped in this way.
        """
        members = walk_source(_StreamHeaders(stream), stream.url)
        starts, paired = group_members(members, stream.url, self.group)
        found = np.append(members.header_offset[starts], np.array([members.end], np.uint64))
        stream.drain()
        require_size(found, stream.url, 0, base.MOST_RECORD)
        return StreamedRecords(found, replace(self, paired=paired))

    def split(self, data: bytes, url: str, span: StreamSpan | None = None) -> list[Any]:
        """Decode consecutive samples from bytes in memory; see `OffsetFormat`."""
        bounds = self._bounds_of(data, url, span)
        return [take_sample(data, 0, start, stop, url=url, group=self.group).sample for start, stop in pairwise(bounds)]

    def _bounds_of(self, data: bytes, url: str, span: StreamSpan | None) -> list[int]:
        if span is None:
            return list(map(int, sample_offsets(walk_bytes(data, url), url, self.group)))
        members = walk_bytes(data, url)
        starts = group_pairs(members, url) if self.paired else group_key(members, url)
        bounds = [*members.header_offset[starts].tolist(), members.end]
        if len(starts) != span.records or bounds[0]:
            raise changed_span(url, span)
        return bounds

    def encode(self, records: Sequence[Sample]) -> list[ShardFile]:
        """Encode samples as the files of a shard: the archive and its index. `TarSamples` are already encoded.

        With `auto`, the index of samples of two members is grouped by key, so that Energon can read it.
        """
        encoded = encoded_samples(records)
        # Grouped by key, samples of two members with simple extensions are the same pairs.
        plain = all(len(extensions) == 2 and "." not in "".join(extensions) for _, extensions in encoded.outlines)
        if self.group == "auto" and plain:
            try:
                return self.shard(encoded.data, encoded.offsets("key"))
            except RecordError:  # keys with a dot can only be read as pairs
                pass
        return self.shard(encoded.data, encoded.offsets(self.group))


class _StreamHeaders(HeaderSource):
    """A compressed archive as a `HeaderSource`; its size is not known in advance."""

    def __init__(self, stream: Stream) -> None:
        self.size = 1 << 62 if stream.read(0, 1) else 0
        self._stream = stream
        self._scan = PlainHeaderScan()

    def read(self, position: int, size: int) -> bytes:
        if size > _MOST_HEADER:
            raise ArchiveError(
                f"{self._stream.url}: expected an extension header of at most {_MOST_HEADER:,} bytes, found {size:,} "
                f"bytes at byte {position} of the decompressed data; write the archive again"
            )
        data = self._stream.read(position, position + size)
        if self._stream.reached < position:
            raise ArchiveError(
                f"{self._stream.url}: the archive is cut off: expected a member to end at byte {position} of the "
                f"decompressed data, found the end at {self._stream.reached}; write it again"
            )
        return data

    def headers(self, position: int) -> Run:
        data, kept = self._stream.window(position)
        return self._scan.scan_bytes_headers(data, position - kept)
