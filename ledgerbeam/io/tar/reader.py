"""Samples of tar archives: building an index, and random access through it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.errors import ArchiveError
from ledgerbeam.io import native
from ledgerbeam.io.index.file import IndexFile, Offsets
from ledgerbeam.io.index.reader import IndexedRecords, RawRecord, raw_records, require_span
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.stat import FileInfo
from ledgerbeam.io.storage.urls import canonical_url
from ledgerbeam.io.tar.grouping import Grouping, group_members
from ledgerbeam.io.tar.headers import BLOCK
from ledgerbeam.io.tar.layout import TarLayout
from ledgerbeam.io.tar.neighbours import is_sample, members_between, next_members
from ledgerbeam.io.tar.sample import Sample, Taken, take_sample
from ledgerbeam.io.tar.walk import TarMembers, walk_bytes, walk_tar

_AFTER = 2 * 1024
"""Bytes that are read after a sample: the header of the next one, with its pax header if it has one."""

_PIECE = 256 * 1024
"""Bytes of the samples of a local archive that are read together."""

_NEAR = 64 * 1024
"""In an object, the previous sample is read together with the requested one if it has at most this many bytes."""


def build_tar_index(
    url: str, options: Options | None = None, group: Grouping = "auto", *, listed: FileInfo | None = None
) -> Offsets:
    """Find the samples of a tar archive.

    Args:
        url: The archive, uncompressed.
        options: Storage options.
        group: How members form samples; see `grouping`.
        listed: The listed properties of the source; see `RangeReader`.

    Returns:
        The header offset of the first member of each sample, and a sentinel: `N + 1` in all, u64. `pairs`: equal to
        the result of `lhotse.indexing.create_tar_index` (2.0.0a7), whose sentinel is the position up to which tarfile
        reads. `key`: equal to Energon's `.tar.idx`, whose last entry is the end of the last member.

    Raises:
        ArchiveError: The archive is truncated or damaged, or its members cannot be grouped in this way.
        ChangedSourceError: It changed since it was listed.
        SourceNotFoundError: There is no such source; also StorageError.
    """
    members = walk_tar(url, options, listed)
    return _offsets(members, canonical_url(url), group)


def _offsets(members: TarMembers, url: str, group: Grouping) -> Offsets:
    starts, paired = group_members(members, url, group)
    sentinel = members.consumed if paired else members.end
    return np.append(members.header_offset[starts], np.array([sentinel], np.uint64))


def split_tar(data: bytes, url: str, *, group: Grouping = "auto") -> list[Sample]:
    """Decode the samples of a whole archive in memory.

    Args:
        data: The archive.
        url: Its name, for messages.
        group: How members form samples.

    Raises:
        ArchiveError: As in `build_tar_index`.
    """
    bounds = tar_bounds(data, url, group=group)
    return [take_sample(data, 0, start, stop, url=url, group=group).sample for start, stop in pairwise(bounds)]


def tar_bounds(data: bytes, url: str, *, group: Grouping = "auto") -> list[int]:
    """Return where the samples of a whole archive in memory begin, and where the last one ends.

    Args:
        data: The archive.
        url: Its name, for messages.
        group: How members form samples.

    Raises:
        ArchiveError: As in `build_tar_index`.
    """
    return list(map(int, _offsets(walk_bytes(data, url), url, group)))


class TarReader(IndexedRecords[Sample]):
    """Random access to the samples of a tar archive: one ranged read each, or for a whole span.

    Every read checks that a range of the index is one whole sample, by its members and those before and after it. So an
    index of another archive raises an error, and never returns a part of a sample or two samples as one. In an object,
    the range before a single sample is checked if it has at most 64 KiB.

    With `group="auto"`, a sample of exactly two members with the same name up to the last dot is split there, any other
    at the first dot; so the samples are the same through an index of either grouping. See `IndexedRecords` for the
    methods.

    Args:
        url: The archive.
        index: Its index, or the URL of that. Default: `<url>.idx`.
        options: Storage options of both.
        group: How members form samples.
        check: Whether to check now that the index fits the archive.
        listed: As in `IndexedRecords`.
    """

    layout = TarLayout()

    def __init__(
        self,
        url: str,
        index: IndexFile | str | None = None,
        options: Options | None = None,
        *,
        group: Grouping = "auto",
        check: bool = True,
        listed: FileInfo | None = None,
    ) -> None:
        super().__init__(url, index, options, check=check, listed=listed)
        self.group: Grouping = group

    def _read_one(self, entries: memoryview[int], record: int) -> Sample:
        start, stop, previous = entries[record], entries[record + 1], entries[record - 1] if record else 0
        if self.is_local:
            bounds = np.array([[previous if record else start, start, stop]], np.uint64)
            return next(self._read_local([record], bounds))[0]
        base = previous if start - previous <= _NEAR else start
        data = self._reader.read_near(base, stop + _AFTER)
        return self._take(data, base, previous, [start, stop], record)[0]

    def _read_pieces(
        self, records: NDArray[np.int64], starts: Offsets, stops: Offsets, before: Offsets
    ) -> Iterator[list[Sample]]:
        if self.is_local:
            known = np.where(records > 0, before, starts)
            yield from self._read_local(records.tolist(), np.stack((known, starts, stops), 1))
            return
        rows = zip(records.tolist(), starts.tolist(), stops.tolist(), before.tolist(), strict=True)
        bases = np.where(starts - before <= np.uint64(_NEAR), before, starts)
        ends = np.minimum(stops + np.uint64(_AFTER), np.uint64(max(self._reader.size, int(stops.max(initial=0)))))
        blocks = self._reader.iterate_many(bases, ends)
        for (record, start, stop, previous), base, data in zip(rows, bases.tolist(), blocks, strict=True):
            # Of an object, the headers of a large sample before it would cost a request each.
            yield self._take(data, base, previous if base == previous else None, [start, stop], record)

    def _read_local(self, records: list[int], bounds: Offsets) -> Iterator[list[Sample]]:
        """Read samples of a local archive in pieces.

        Args:
            records: Their numbers.
            bounds: Of each the offset of the one before (of the first sample its own), its own, and its end: `(n, 3)`.
        """
        place = 0
        while place < len(records):
            piece = self._read_plain(bounds[place:])
            if not piece:
                record, (previous, start, stop) = records[place], bounds[place].tolist()
                data = self._reader.read_near(start, stop + _AFTER)
                piece = self._take(data, start, previous if record else 0, [start, stop], record)
            yield piece
            place += len(piece)

    def _read_plain(self, bounds: Offsets) -> list[Sample]:
        """Read samples by the compiled module: those before the first one that it leaves to `take`.

        The first sample of an archive is left, as members of no sample may precede it.
        """
        compiled = native.compiled
        descriptor = None if compiled is None or self.group == "pairs" else self._reader.descriptor()
        if compiled is None or descriptor is None:
            return []
        return compiled.read_samples(descriptor, bounds, _PIECE, self.group == "auto", Sample)

    def _read_span(self, start: int, stop: int) -> list[Sample]:
        return list(self.read_blocks(start, stop).samples())

    def read_blocks(self, start: int, stop: int) -> TarBlocks:
        """Return the samples `[start, stop)`. Each pass decodes them one after the other; see `BlockedReader`."""
        require_span(start, stop, self.url)
        if start == stop:
            return TarBlocks(self, b"", 0, None, [], start)
        before = 1 if start else 0
        bounds: list[int] = self._span_offsets(start - before, stop).tolist()
        previous = bounds.pop(0) if before else 0
        near = max(_NEAR, (bounds[-1] - bounds[0]) // 8) if self._reader.local_path is None else 0
        base = previous if bounds[0] - previous <= near else bounds[0]
        data = self._reader.read_near(base, bounds[-1] + _AFTER)
        if base + len(data) < bounds[-1]:
            self._reader.read(base, bounds[-1])  # raises
        return TarBlocks(self, data, base, previous, bounds, start)

    def _read_raw(self, start: int, stop: int) -> list[RawRecord]:
        self._read_span(start, stop)  # raises if the index splits a sample
        bounds: list[int] = self._span_offsets(start, stop).tolist()
        return raw_records(self.url, self._reader.read(bounds[0], bounds[-1]), bounds, start)

    def _take(self, data: bytes, base: int, previous: int | None, bounds: list[int], first_record: int) -> list[Sample]:
        return list(self.take(data, base, previous, bounds, first_record))

    def take(
        self, data: bytes, base: int, previous: int | None, bounds: list[int], first_record: int
    ) -> Iterator[Sample]:
        """Decode consecutive samples from bytes of the archive, and check that each range is one sample.

        Args:
            data: The bytes.
            base: Their offset in the archive.
            previous: Offset of the range before the first sample; None to skip its check.
            bounds: Offset of each sample, and the end of the last.
            first_record: Number of the first sample.
        """
        if base + len(data) < bounds[-1]:
            self._reader.read(base, bounds[-1])  # raises
        url, group = self.url, self.group

        def read(place: int, size: int) -> bytes:
            if base <= place and place + size <= base + len(data):
                return data[place - base : place - base + size]
            return self._reader.read_near(place, place + size)

        record, start, stop = first_record, bounds[0], bounds[1]
        try:
            before = None if previous is None else members_between(read, previous, start, url)
            taken = take_sample(data, base, start, stop, url=url, group=group)
            for record, (start, stop) in enumerate(pairwise(bounds), first_record):  # noqa: B007 - for the message
                following: Taken | None = None
                if stop != bounds[-1]:
                    end = bounds[record - first_record + 2]
                    following = take_sample(data, base, stop, end, url=url, group=group)
                ended = taken.end != stop  # ends with zeros: the sentinel of lhotse lies after them
                after = partial(_following, read, url, following, None if ended else stop)
                is_whole = is_sample(taken.members, before, after, first=record == 0, group=group, ends_archive=ended)
                if (ended and following) or not is_whole:
                    names = [name for name, _ in taken.members]
                    raise ArchiveError(f"the members {names} are a part of one, or more than one")
                yield taken.sample
                if following:
                    before, taken = taken.members, following
        except ArchiveError as error:
            raise self.index.mismatch(f"expected sample {record} at bytes [{start}, {stop}): {error}") from error


@dataclass(frozen=True)
class TarBlocks:
    """Consecutive samples of an archive, whose bytes are in memory; each is a block, as it may be large.

    Attributes:
        reader: Checks and decodes them.
        data: Bytes of the archive.
        base: Their offset in it.
        previous: See `TarReader.take`.
        bounds: See `TarReader.take`; none of no samples.
        record: Number of the first sample.
    """

    reader: TarReader
    data: bytes
    base: int
    previous: int | None
    bounds: list[int]
    record: int

    def samples(self) -> Iterator[Sample]:
        """Yield the samples.

        Raises:
            IndexMismatchError: A range is not one sample.
        """
        if self.bounds:
            yield from self.reader.take(self.data, self.base, self.previous, self.bounds, self.record)

    def decoded(self, *, each: bool = False) -> Iterator[list[Sample]]:
        """Yield the samples; see `Blocks`."""
        del each  # an error of a sample is an error of its archive
        for sample in self.samples():
            yield [sample]


def _following(
    read: Callable[[int, int], bytes], url: str, known: Taken | None, place: int | None, count: int
) -> Sequence[tuple[str, bool]]:
    """Return up to `count` members from an offset on (None: the end). The next sample has some if it is given."""
    if place is None or len(read(place, BLOCK)) < BLOCK:
        return ()
    if known and count <= len(known.members):
        return known.members[:count]
    return next_members(read, place, count, url)
