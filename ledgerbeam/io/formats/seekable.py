"""Compressed sources with an index: gzip by seek points beside it, Zstandard by the seek table of its own."""

from __future__ import annotations

from ledgerbeam.io.compression.content import open_content
from ledgerbeam.io.compression.gzip_points import gzip_points, points_url
from ledgerbeam.io.compression.streams import compression_of, plain_name
from ledgerbeam.io.formats.registry import Format, Reader, format_of
from ledgerbeam.io.formats.streamed import is_streamed, scan_stream
from ledgerbeam.io.index.file import IndexFile, Offsets
from ledgerbeam.io.index.location import IndexLocation
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.stat import FileInfo
from ledgerbeam.io.tar.grouping import Grouping

__all__ = ["indexed_format_of", "seek_points_of"]


class _Seekable:
    """A format inside of a compression that can be read by position: its index is of the decompressed bytes."""

    rebuildable = True

    def __init__(self, inner: Format) -> None:
        self._inner = inner
        self.name = inner.name

    def index_file(self, url: str, location: IndexLocation, options: Options | None = None) -> IndexFile:
        return self._inner.index_file(url, location, options)

    def build_index(
        self,
        url: str,
        options: Options | None = None,
        *,
        threads: int = 1,
        group: Grouping = "auto",
        listed: FileInfo | None = None,
    ) -> Offsets:
        del threads  # read from its begin, so that every checksum is compared
        if compression_of(url) == "zstd":
            with open_content(url, url, options, listed=listed) as content:
                _ = content.size  # raises without a seek table, before all of it is read
        return scan_stream(url, options, group, listed).offsets

    def check_index(self, index: IndexFile, source: FileInfo, *, deep: bool = False) -> None:
        self._inner.check_index(index, source, deep=deep)

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
        return self._inner.open(url, index, options, group=group, check=check, listed=listed)


def indexed_format_of(url: str) -> Format:
    """Finds the format of a source that may have an index: as `format_of`, and JSONL and tar in gzip and Zstandard.

    Raises:
        NotIndexableError: It is compressed in another way, or a pipe.
        UsageError: The name tells no known format.
    """
    if compression_of(url) in ("gzip", "zstd") and is_streamed(url):
        return _Seekable(format_of(plain_name(url)))
    return format_of(url)


def seek_points_of(
    url: str, index: str, offsets: Offsets, options: Options | None = None, listed: FileInfo | None = None
) -> tuple[str, bytes] | None:
    """Finds what an indexed source needs besides its index, to be published before it.

    Args:
        url: The source.
        index: Where its index goes.
        offsets: What `build_index` gave.
        options: Storage options.
        listed: What was listed; see `RangeReader`.

    Returns:
        URL and content of the seek points of a gzip file; None for what needs none.

    Raises:
        UsageError: The package that finds them is not installed; also the errors of `gzip_points`.
    """
    if compression_of(url) != "gzip":
        return None
    return points_url(index), gzip_points(url, options, size=int(offsets[-1]), listed=listed)
