"""Samples of tar archives: building an index, and random access through it.

An index does not name its archive. An index of an older archive of the same size passes every check of sizes and times.
If it splits a sample or joins two, the reader detects this from the names of the members.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.errors import ArchiveError
from ledgerbeam.io import native
from ledgerbeam.io.index.file import IndexFile, Offsets, RecordLayout
from ledgerbeam.io.index.reader import IndexedRecords, RawRecord, raw_records, require_span
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import FileInfo
from ledgerbeam.io.storage.urls import canonical_url
from ledgerbeam.io.tar.grouping import Grouping, are_pairs, group_members, split_key, split_stem
from ledgerbeam.io.tar.headers import BLOCK, Member, next_member, padded, plain_file
from ledgerbeam.io.tar.sample import Sample, Taken, take_sample
from ledgerbeam.io.tar.walk import TarMembers, walk_tar

_AFTER = 2 * 1024  # bytes that are read after a sample: the header of the next one, with its pax header if it has one
Members = Sequence[tuple[str, bool]]  # members in order: the name of each, and whether it is a file with content
_Read = Callable[[int, int], bytes]  # reads a number of bytes at an offset
_PIECE = 256 * 1024  # bytes of the samples of a local archive that are read together

_NEAR = 64 * 1024  # up to this size, the previous sample of an object is read together with the requested one


def build_tar_index(
    url: str, options: Options | None = None, group: Grouping = "auto", *, listed: FileInfo | None = None
) -> Offsets:
    """Find the samples of an uncompressed tar archive.

    Returns:
        The header offset of the first member of each sample, and a sentinel: `N + 1` in all, u64. `pairs`: equal to
        the result of `lhotse.indexing.create_tar_index` (2.0.0a7), whose sentinel is the position up to which tarfile
        reads. `key`: equal to Energon's `.tar.idx`, whose last entry is the end of the last member.

    Raises:
        ArchiveError: The archive is truncated or damaged, or its members cannot be grouped in this way.
        ChangedSourceError: The archive changed since it was listed.
        SourceNotFoundError: The archive does not exist; also StorageError.
    """
    members = walk_tar(url, options, listed)
    return sample_offsets(members, canonical_url(url), group)


def sample_offsets(members: TarMembers, url: str, group: Grouping) -> Offsets:
    """Return the offsets of the samples of an archive, given its members; see `build_tar_index`."""
    starts, paired = group_members(members, url, group)
    sentinel = members.consumed if paired else members.end
    return np.append(members.header_offset[starts], np.array([sentinel], np.uint64))


class TarLayout(RecordLayout):
    """Checks the positions of samples in an archive, which are multiples of 512 bytes.

    Members of no sample may precede the first sample. The last sample ends before the padding of the archive.
    """

    def check_ends(self, index: IndexFile, first: int, last: int, sentinel: int, content: RangeReader) -> None:
        """Check the first and last offsets of an index, with one request for the end of the archive."""
        if not index.count:
            try:
                for member in _members(_bounded(content), 0, content.url):
                    if member.regular and split_key(member.name) is not None:
                        at = member.header_offset
                        raise index.mismatch(f"expected no samples, found the member {member.name!r} at byte {at}")
            except ArchiveError as error:
                raise index.mismatch(f"expected an archive without samples: {error}") from error
            return
        if first % BLOCK:
            raise index.mismatch(f"expected the first sample at a multiple of 512, found it at byte {first}")
        if sentinel > content.size or last >= content.size:
            raise index.mismatch(
                f"expected offsets up to the size of the source, {content.size}, found {max(last, sentinel)}"
            )
        if sentinel <= last:
            raise index.mismatch(f"expected the end of the last sample after its start at {last}, found {sentinel}")
        # The sentinel lies before the zeros that end an archive (Energon), or between or after them (lhotse).
        around = content.read(sentinel - min(sentinel, BLOCK), min(sentinel + BLOCK, content.size))
        if sentinel < content.size and any(around[BLOCK:]):
            start = sentinel if any(around[:BLOCK]) else last  # zeros before it may belong to a payload
            try:
                members = any(member.end > sentinel for member in _members(_bounded(content), start, content.url))
            except ArchiveError as error:
                raise index.mismatch(f"expected the end of the archive at byte {sentinel}: {error}") from error
            if members:
                raise index.mismatch(f"expected the end of the archive at byte {sentinel}, found more members")

    def check_offsets(self, offsets: Offsets, index: IndexFile, *, first_record: int = 0) -> None:
        """Check that offsets increase and are multiples of 512: O(N)."""
        super().check_offsets(offsets, index, first_record=first_record)
        wrong = np.flatnonzero(offsets[:-1] % np.uint64(BLOCK))
        if len(wrong):
            at = int(wrong[0])
            raise index.mismatch(
                f"expected samples at multiples of 512, found sample {first_record + at} at byte {offsets[at]}"
            )


def _members(read: _Read, position: int, url: str) -> Iterator[Member]:
    while member := next_member(read, position, url):
        yield member
        position = member.end


def _bounded(source: RangeReader) -> _Read:
    return lambda place, size: source.read(min(place, source.size), min(place + size, source.size))


class TarReader(IndexedRecords[Sample]):
    """Random access to the samples of a tar archive: one ranged read each, or for a whole span.

    Every read checks that a range of the index is one whole sample, by its members and those before and after it. So an
    index of another archive raises an error, and never returns a part of a sample or two samples as one. In an object,
    the range before a single sample is checked if it has at most 64 KiB.

    With `group="auto"`, names of two members that are equal up to the last dot are split there, other names at the
    first dot. So an index of pairs and an index of keys give the same samples. See `IndexedRecords` for the methods.

    Args:
        index: The index of the archive, or the URL of the index. Default: `<url>.idx`.
        check: Whether to check now that the index fits the archive.
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
        return next(self.take(data, base, previous, [start, stop], record))

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
            yield list(self.take(data, base, previous if base == previous else None, [start, stop], record))

    def _read_local(self, records: list[int], bounds: Offsets) -> Iterator[list[Sample]]:
        """Read samples of a local archive in pieces.

        A row of `bounds`, `(n, 3)`, has the offset of the previous sample, or for the first its own; its own; its end.
        """
        place = 0
        while place < len(records):
            piece = self._read_plain(bounds[place:])
            if not piece:
                record, (previous, start, stop) = records[place], bounds[place].tolist()
                data = self._reader.read_near(start, stop + _AFTER)
                piece = list(self.take(data, start, previous if record else 0, [start, stop], record))
            yield piece
            place += len(piece)

    def _read_plain(self, bounds: Offsets) -> list[Sample]:
        """Read samples with the compiled module, up to the first one that it cannot read; `take` can read that one.

        It does not read the first sample of an archive, because members of no sample may precede this sample.
        """
        compiled = native.compiled
        descriptor = None if compiled is None or self.group == "pairs" else self._reader.descriptor()
        if compiled is None or descriptor is None:
            return []
        return compiled.read_samples(descriptor, bounds, _PIECE, self.group == "auto", Sample)

    def _read_span(self, start: int, stop: int) -> list[Sample]:
        return [sample for (sample,) in self.read_blocks(start, stop).decoded()]

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

    def take(
        self, data: bytes, base: int, previous: int | None, bounds: list[int], first_record: int
    ) -> Iterator[Sample]:
        """Decode consecutive samples from bytes of the archive, and check that each range is one sample.

        `data` starts at the offset `base`. `bounds` has the offset of each sample, and the end of the last. `previous`
        is the offset of the range before the first sample; None skips its check.
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
            before = None if previous is None else _members_between(read, previous, start, url)
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
                    raise ArchiveError(f"found the members {names}, which are not one whole sample")
                yield taken.sample
                if following:
                    before, taken = taken.members, following
        except ArchiveError as error:
            raise self.index.mismatch(f"expected sample {record} at bytes [{start}, {stop}): {error}") from error


@dataclass(frozen=True)
class TarBlocks:
    """Consecutive samples of an archive, with their bytes in memory. Each sample is a block, since it may be large."""

    reader: TarReader  # checks and decodes them
    data: bytes  # bytes of the archive
    base: int  # their offset in it
    previous: int | None  # see `TarReader.take`
    bounds: list[int]  # see `TarReader.take`; none of no samples
    record: int  # number of the first sample

    def decoded(self, *, each: bool = False) -> Iterator[list[Sample]]:
        """Yield the samples; see `Blocks`. IndexMismatchError: a range is not one sample."""
        del each  # an error of a sample is an error of its archive
        if self.bounds:
            for sample in self.reader.take(self.data, self.base, self.previous, self.bounds, self.record):
                yield [sample]


def _following(read: _Read, url: str, known: Taken | None, place: int | None, count: int) -> Members:
    """Return up to `count` members from offset `place` on; none if it is None. `known`: a decoded sample at `place`."""
    if place is None or len(read(place, BLOCK)) < BLOCK:
        return ()
    if known and count <= len(known.members):
        return known.members[:count]
    return [(member.name, member.regular) for member in islice(_members(read, place, url), count)]


def _members_between(read: _Read, start: int, stop: int, url: str) -> list[tuple[str, bool]]:
    """Return the members of a range, from their headers. ArchiveError if no member ends at `stop`."""
    found: list[tuple[str, bool]] = []
    position = asked = start

    def bounded(place: int, size: int) -> bytes:
        nonlocal asked
        asked = place
        return read(place, min(size, stop - place))

    while position < stop:
        plain = plain_file(block) if len(block := read(position, BLOCK)) == BLOCK else None
        if plain is not None:
            size, raw = plain
            found.append((raw.decode("utf-8", "surrogateescape"), True))
            position += BLOCK + padded(size)
            continue
        member = next_member(bounded, position, url)
        if member is None:
            position = asked
            break
        found.append((member.name, member.regular))
        position = member.end
    if position != stop:
        raise ArchiveError(
            f"{url}: expected a member to end at byte {stop}, found an end of a member or archive at byte {position}"
        )
    return found


def is_sample(
    members: Members,
    before: Members | None,
    after: Callable[[int], Members],
    *,
    first: bool,
    group: Grouping,
    ends_archive: bool,
) -> bool:
    """Return whether a range is one whole sample, as in a correct index of the archive.

    `before` are the members of the previous range, or all members before the first sample; None if they are not known.
    `after(n)` returns the next `n` members after the range, fewer at the end of the archive. `ends_archive`: the range
    includes the end of the archive after its members, as only in lhotse's index of pairs.
    """
    is_by_pairs = group == "pairs" or (ends_archive and group == "auto")
    if not is_by_pairs and _is_keyed(members, before, after, first=first):
        return True
    return group != "key" and _is_pair(members, before, after, first=first, group=group)


def _is_keyed(members: Members, before: Members | None, after: Callable[[int], Members], *, first: bool) -> bool:
    own = _key(members[0])
    if own is None or any(_key(member) not in (None, own) for member in members):
        return False
    if before is not None:
        last = next((key for key in map(_key, reversed(before)) if key is not None), None)
        if last == own or (last is None) != first or not (first or _key(before[0])):
            return False
    following = after(1)
    return not following or _key(following[0]) not in (None, own)


def _is_pair(
    members: Members, before: Members | None, after: Callable[[int], Members], *, first: bool, group: Grouping
) -> bool:
    if len(members) != 2 or (before is not None and len(before) != (0 if first else 2)):
        return False
    if group == "pairs":
        return True
    names = [name for name, _ in members]
    if not are_pairs([*(name for name, _ in before or ()), *names]):
        return False
    following = after(1)
    # Of one stem it would be a sample of four members; of one key alone, one of more than two if no pair follows.
    if following:
        stem, key = split_stem(following[0][0])[0], _key(following[0])
        if stem == split_stem(names[0])[0] or (key is not None and key == _key(members[0])):
            return are_pairs([*names, *(name for name, _ in after(2))])
    return True


def _key(member: tuple[str, bool]) -> str | None:
    name, regular = member
    parts = split_key(name) if regular else None
    return None if parts is None else parts[0]
