"""tar: samples, and random access to them through an index."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from ledgerbeam.errors import ArchiveError
from ledgerbeam.io.index import IndexFile, Offsets
from ledgerbeam.io.records import IndexedRecords
from ledgerbeam.io.storage import FileInfo, Options, canonical_url
from ledgerbeam.io.tar_encode import encode_tar
from ledgerbeam.io.tar_groups import Grouping, are_pairs, group_key, group_pairs
from ledgerbeam.io.tar_sample import Sample, take_sample
from ledgerbeam.io.tar_walk import TarMembers, walk_bytes, walk_tar

__all__ = ["Sample", "TarReader", "build_tar_index", "encode_tar", "split_tar"]


def build_tar_index(
    url: str, options: Options | None = None, group: Grouping = "auto", *, listed: FileInfo | None = None
) -> Offsets:
    """Finds the samples of a tar archive.

    Args:
        url: The archive, uncompressed.
        options: Storage options.
        group: How members make up samples; see `tar_groups`.
        listed: What was listed; see `RangeReader`.

    Returns:
        The header offset of each sample's first member and a sentinel, `N + 1` in all, u64. `pairs`: equal to what
        `lhotse.indexing.create_tar_index` (2.0.0a7) writes, whose sentinel is how far tarfile has read. `key`: equal to
        Energon's `.tar.idx`, whose last entry is the end of the last member.

    Raises:
        ArchiveError: The archive is cut off or damaged, or its members do not group so.
        ChangedSourceError: It is not what was listed.
        SourceNotFoundError: There is no such source; also StorageError.
    """
    members = walk_tar(url, options, listed)
    return _offsets(members, canonical_url(url), group)


def _offsets(members: TarMembers, url: str, group: Grouping) -> Offsets:
    if group == "pairs" or (group == "auto" and are_pairs(members.names)):
        starts, sentinel = group_pairs(members, url), members.consumed
    else:
        starts, sentinel = group_key(members, url), members.end
    return np.append(members.header_offset[starts], np.array([sentinel], np.uint64))


def split_tar(data: bytes, url: str, *, group: Grouping = "auto") -> list[Sample]:
    """Takes the samples out of a whole archive that is in memory.

    Args:
        data: The archive.
        url: Its name, for messages.
        group: How members make up samples.

    Raises:
        ArchiveError: As in `build_tar_index`.
    """
    bounds = _offsets(walk_bytes(data, url), url, group).tolist()
    return [take_sample(data, 0, start, stop, url=url, group=group) for start, stop in pairwise(bounds)]


class TarReader(IndexedRecords[Sample]):
    """Random access to the samples of a tar archive: one ranged read each, or for a whole span.

    With `group="auto"`, a sample of exactly two members that share the name up to their last dot is named by that, any
    other by the first dot; so an archive reads the same through an index of either grouping. See `IndexedRecords` for
    the methods.

    Args:
        url: The archive.
        index: Its index, or where that lies. Default: `<url>.idx`.
        options: Storage options of both.
        group: How the members of a sample are named.
        check: Check now that the index fits the archive.
        listed: As in `IndexedRecords`.
    """

    kind = "tar"

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

    def _decode(self, data: bytes, record: int, start: int) -> Sample:
        return self._take(data, start, start, start + len(data), record)

    def _decode_span(self, data: bytes, offsets: Offsets, first_record: int) -> list[Sample]:
        bounds = offsets.tolist()
        return [
            self._take(data, bounds[0], start, stop, record)
            for record, (start, stop) in enumerate(pairwise(bounds), first_record)
        ]

    def _take(self, data: bytes, base: int, start: int, stop: int, record: int) -> Sample:
        try:
            return take_sample(data, base, start, stop, url=self.url, group=self.group)
        except ArchiveError as error:
            raise self.index.mismatch(f"expected sample {record} at bytes [{start}, {stop}): {error}") from error
