"""How the sources of a job are opened: `SourceFormat`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ledgerbeam.errors import IndexMismatchError, IndexNotFoundError, NotIndexableError, SourceError
from ledgerbeam.io import (
    Format,
    Grouping,
    HeldRecords,
    IndexFile,
    IndexLocation,
    Reader,
    SharSamples,
    format_of,
    indexed_format_of,
    is_streamed,
    read_bytes,
    scan_stream,
    shard_field,
    split_source,
    stat,
    write_index,
)
from ledgerbeam.io.compression import plain_name
from ledgerbeam.ledger import Source

__all__ = ["SourceFormat"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SourceFormat:
    """How sources are opened.

    Attributes:
        group: How the members of a tar make samples: ``auto``, ``pairs`` (lhotse Shar) or ``key`` (WebDataset).
        index: Where the indexes lie.
        build_index: Whether a source without an index is indexed, and the index published where it belongs.
        storage_options: Passed to fsspec untouched.
        shar: Whether sources are shards of Shar datasets, read as samples: packs of the cuts and of their fields, which
            `shar_sources` makes of a listing.
    """

    group: Grouping = "auto"
    index: IndexLocation = field(default_factory=IndexLocation)
    build_index: bool = True
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    shar: bool = False

    def index_of(self, url: str) -> IndexFile:
        """Returns the index of a source, unopened."""
        return indexed_format_of(url).index_file(url, self.index, self.storage_options)

    def load_index(self, url: str, *, changed: bool = False) -> NDArray[np.uint64]:
        """Returns a source's offsets, checked against it; builds and publishes them if it has none.

        Args:
            url: The source.
            changed: Whether the source is known to have changed since the job read it: an index that does not fit is
                then that of the former content, and is built anew with a warning.

        Returns:
            N+1 byte offsets, the last the end of the last record.

        Raises:
            IndexNotFoundError: If there is no index and `build_index` is off.
            IndexMismatchError: If the index does not fit the source.
            SourceError: If the source cannot be indexed.
        """
        kind: Format = format_of(url)
        index = self.index_of(url)
        try:
            kind.check_index(index, stat(url, self.storage_options))
            return index.load()
        except IndexNotFoundError:
            if not (self.build_index and kind.rebuildable):
                raise
        except IndexMismatchError as error:
            if not (changed and self.build_index and kind.rebuildable):
                raise
            _log.warning("%s: changed since this job read it; it is indexed again (%s)", url, error)
        offsets = kind.build_index(url, options=self.storage_options, group=self.group)
        write_index(index.url, offsets, self.storage_options)
        return offsets

    def find_index(self, url: str) -> NDArray[np.uint64] | None:
        """Returns the offsets of a compressed source in its decompressed bytes.

        Args:
            url: The source.

        Returns:
            N+1 byte offsets; None if it has no index, or none that fits: it can still be read from its begin.
        """
        try:
            index = self.index_of(url)
            indexed_format_of(url).check_index(index, stat(url, self.storage_options))
            return index.load()
        except (IndexNotFoundError, NotIndexableError):
            return None
        except IndexMismatchError as error:
            _log.warning("%s: read from its begin, for its index does not fit (%s)", url, error)
            return None

    def load_shard_index(self, shard: Source, *, changed: bool = False) -> NDArray[np.uint64]:
        """Returns where each cut of a Shar shard begins if the records of all its files lay one beside the other.

        Args:
            shard: The pack of its files.
            changed: As in `load_index`.

        Raises:
            NotIndexableError: If its payloads are compressed.
            SourceError: If its files have different numbers of records; also the errors of `load_index`.
        """
        total: NDArray[np.uint64] | None = None
        for url in shard.urls:
            held = is_streamed(url)
            if held and format_of(plain_name(url)).name == "tar":
                raise NotIndexableError(f"{url}: the payloads of a shard are read by offset; decompress it.")
            offsets = scan_stream(url, self.storage_options).offsets if held else self.load_index(url, changed=changed)
            if total is not None and len(total) != len(offsets):
                raise SourceError(
                    f"{url}: expected {len(total) - 1} records, as many as cuts in {shard.url}, found "
                    f"{len(offsets) - 1}; write the shard again."
                )
            offsets = offsets - offsets[0]
            total = offsets if total is None else total + offsets
        return np.zeros(1, np.uint64) if total is None else total

    def open_shard(self, shard: Source) -> SharSamples:
        """Opens a Shar shard, of which `load_shard_index` has checked the indexes."""
        cuts, *fields = map(self._open_file, shard.urls)
        return SharSamples(cuts, {(shard_field(records.url) or ("", ""))[1]: records for records in fields})

    def _open_file(self, url: str) -> HeldRecords | Reader:
        options = self.storage_options
        if is_streamed(url):
            return HeldRecords(url, split_source(read_bytes(url, options), url))
        return format_of(url).open(url, self.index_of(url), options, group="pairs", check=False)
