"""How the sources of a job are opened: `SourceFormat`."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ledgerbeam.errors import IndexMismatchError, IndexNotFoundError, NotIndexableError, SourceError
from ledgerbeam.io import (
    FileInfo,
    Format,
    Grouping,
    HeldRecords,
    IndexFile,
    IndexLocation,
    Reader,
    SharSamples,
    SourceWatch,
    StreamedRecords,
    format_of,
    indexed_format_of,
    is_streamed,
    read_bytes,
    require_listed,
    scan_stream,
    shard_field,
    split_source,
    write_index,
)
from ledgerbeam.io.compression.streams import plain_name
from ledgerbeam.ledger import Source

__all__ = ["SourceFormat", "listed_files", "looked_at"]

_log = logging.getLogger(__name__)


def listed_files(source: Source) -> list[FileInfo]:
    """Returns what was listed of each input object of a source."""
    return [_listed(file) for file in source.members or (source,)]


def _listed(file: Source) -> FileInfo:
    return FileInfo(file.url, file.size, file.version, changed_ns=file.changed_ns)


def looked_at(source: Source) -> Source:
    """Returns a source with the times of the last change of its local files, so that its tasks read the same files.

    A file that is put in the place of another may have the size and the time of that one.

    Raises:
        ChangedSourceError: If the source is not what was listed.
    """
    if source.members:
        return dataclasses.replace(source, members=tuple(map(looked_at, source.members)))
    marks = SourceWatch([_listed(source)]).marks
    return dataclasses.replace(source, changed_ns=marks[0][2]) if marks else source


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

    def load_index(self, source: Source, *, changed: bool = False) -> NDArray[np.uint64]:
        """Returns a source's offsets, checked against it; builds and publishes them if it has none.

        Args:
            source: A plain source, as it was listed.
            changed: Whether the source is known to have changed since the job read it: its index is then that of the
                former content, which may seem to fit, and is built anew with a warning.

        Returns:
            N+1 byte offsets, the last the end of the last record.

        Raises:
            ChangedSourceError: If the source is not what was listed.
            IndexNotFoundError: If there is no index and `build_index` is off.
            IndexMismatchError: If the index does not fit the source, or may not.
            SourceError: If the source cannot be indexed.
        """
        url, listed = source.url, _listed(source)
        kind: Format = format_of(url)
        index = self.index_of(url)
        with SourceWatch([listed]):
            found = require_listed(listed, self.storage_options)
            try:
                if not (changed and kind.rebuildable):
                    kind.check_index(index, found)
                    return index.load()
                if not self.build_index:
                    raise IndexMismatchError(
                        f"{index.url} may be of the former content of {url}, which has changed since this job read it; "
                        "run the job once without --no-index"
                    )
                _log.warning("%s: changed since this job read it; it is indexed again", url)
            except IndexNotFoundError:
                if not (self.build_index and kind.rebuildable):
                    raise
            offsets = kind.build_index(url, options=self.storage_options, group=self.group, listed=listed)
        write_index(index.url, offsets, self.storage_options, not_before_ns=found.modified_ns)
        return offsets

    def find_index(self, source: Source, *, changed: bool = False) -> NDArray[np.uint64] | None:
        """Returns the offsets of a compressed source in its decompressed bytes.

        Args:
            source: A plain source, as it was listed.
            changed: As in `load_index`: its index is passed over.

        Returns:
            N+1 byte offsets; None if it has no index, or none that fits: it can still be read from its begin.

        Raises:
            ChangedSourceError: If the source is not what was listed.
        """
        url, listed = source.url, _listed(source)
        if changed:
            return None
        try:
            index = self.index_of(url)
            kind = indexed_format_of(url)
            with SourceWatch([listed]):
                kind.check_index(index, require_listed(listed, self.storage_options))
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
        for file in shard.members:
            url = file.url
            held = is_streamed(url)
            if held and format_of(plain_name(url)).name == "tar":
                raise NotIndexableError(f"{url}: the payloads of a shard are read by offset; decompress it.")
            offsets = self._scan(file) if held else self.load_index(file, changed=changed)
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
        cuts, *fields = map(self._open_file, shard.members)
        return SharSamples(cuts, {(shard_field(records.url) or ("", ""))[1]: records for records in fields})

    def open_source(self, source: Source) -> Reader:
        """Opens a plain source, of which `load_index` or `find_index` has checked the index."""
        # Checked here again, it would cost a task two requests.
        return indexed_format_of(source.url).open(
            source.url,
            index=self.index_of(source.url),
            options=self.storage_options,
            group=self.group,
            check=False,
            listed=_listed(source),
        )

    def scan(self, source: Source) -> StreamedRecords:
        """Reads a compressed source once and finds its records.

        Raises:
            ChangedSourceError: If the source is not what was listed; also the errors of `scan_stream`.
        """
        with SourceWatch([_listed(source)]):
            return scan_stream(source.url, self.storage_options, self.group, _listed(source))

    def _scan(self, file: Source) -> NDArray[np.uint64]:
        with SourceWatch([_listed(file)]):
            return scan_stream(file.url, self.storage_options, listed=_listed(file)).offsets

    def _open_file(self, file: Source) -> HeldRecords | Reader:
        url, options, listed = file.url, self.storage_options, _listed(file)
        if is_streamed(url):
            return HeldRecords(url, split_source(read_bytes(url, options, listed), url))
        return format_of(url).open(url, self.index_of(url), options, group="pairs", check=False, listed=listed)
