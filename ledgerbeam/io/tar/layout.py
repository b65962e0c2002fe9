"""Positions of samples in a tar archive, to check an index of it."""

from __future__ import annotations

from collections.abc import Iterator

from ledgerbeam._base.lazy import np
from ledgerbeam.errors import ArchiveError
from ledgerbeam.io.index.file import IndexFile, Offsets, RecordLayout
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.tar.grouping import split_key
from ledgerbeam.io.tar.headers import BLOCK, Member, next_member


class TarLayout(RecordLayout):
    """Samples begin at multiples of 512.

    Members of no sample may precede the first sample. The last one ends before the padding of the archive.
    """

    def check_ends(self, index: IndexFile, first: int, last: int, sentinel: int, content: RangeReader) -> None:
        """Check the first and last offsets of an index, with one request for the end of the archive."""
        if not index.count:
            _require_no_samples(index, content)
            return
        if first % BLOCK:
            raise index.mismatch(f"expected the first sample at a multiple of 512, found byte {first}")
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
                members = _has_members(content, start, sentinel)
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


def _require_no_samples(index: IndexFile, content: RangeReader) -> None:
    """Check that an archive whose index has no samples holds none: no file of it has a key."""
    try:
        for member in _members(content, 0):
            if member.regular and split_key(member.name) is not None:
                at = member.header_offset
                raise index.mismatch(f"expected no samples, found the member {member.name!r} at byte {at}")
    except ArchiveError as error:
        raise index.mismatch(f"expected an archive without samples: {error}") from error


def _has_members(source: RangeReader, position: int, sentinel: int) -> bool:
    """Return whether a member after `position` ends after the sentinel."""
    return any(member.end > sentinel for member in _members(source, position))


def _members(source: RangeReader, position: int) -> Iterator[Member]:
    while member := next_member(
        lambda place, size: source.read(min(place, source.size), min(place + size, source.size)), position, source.url
    ):
        yield member
        position = member.end
