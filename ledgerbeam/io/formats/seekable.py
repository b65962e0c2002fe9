"""Indexes of any source, also in gzip, with seek points, and in Zstandard, with its seek table."""

from __future__ import annotations

from collections.abc import Iterable

from ledgerbeam.io.compression.content import open_content
from ledgerbeam.io.compression.gzip_points import gzip_points, member_points, points_url
from ledgerbeam.io.compression.names import split_compression
from ledgerbeam.io.formats.format import Format
from ledgerbeam.io.formats.registry import recognize
from ledgerbeam.io.formats.streamed import scan_stream
from ledgerbeam.io.index.file import Offsets
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.stat import FileInfo


def build_index(
    url: str,
    options: Options | None = None,
    *,
    configured: Iterable[Format] = (),
    listed: FileInfo | None = None,
) -> Offsets:
    """Find the offsets of all records of a source; for a compressed source, in the decompressed bytes.

    Args:
        url: The source.
        options: Storage options.
        configured: As in `recognize`.
        listed: The listed properties of the source; see `RangeReader`.

    Returns:
        `N + 1` offsets, u64, the last a sentinel.

    Raises:
        ChangedSourceError: The source changed since it was listed.
        NotIndexableError: It cannot be read by position, or its index is a part of the dataset.
        UsageError: The name has no suffix of a known format.
    """
    found = recognize(url, configured)
    kind = found.by_position()
    if found.compression is None:
        return kind.build_index(url, options, listed=listed)
    if found.compression.name == "zstd":
        with open_content(url, url, options, listed=listed) as content:
            _ = content.size  # raises without a seek table, before the whole file is read
    return scan_stream(url, options, kind, listed).offsets  # the whole file, so that every checksum is compared


def seek_points_of(
    url: str, index: str, offsets: Offsets, options: Options | None = None, listed: FileInfo | None = None
) -> tuple[str, bytes] | None:
    """Find the seek points of an indexed source, which must be published before its index.

    Args:
        url: The source.
        index: URL of its index.
        offsets: The result of `build_index`.
        options: Storage options.
        listed: The listed properties of the source; see `RangeReader`.

    Returns:
        URL and content of the seek points of a gzip file; None for any other file.

    Raises:
        UsageError: The package that finds them in long members is not installed; also the errors of `gzip_points`.
    """
    compression = split_compression(url).compression
    if compression is None or compression.name != "gzip":
        return None
    size = int(offsets[-1])
    points = member_points(url, options, size=size, listed=listed)
    if points is None:
        points = gzip_points(url, options, size=size, listed=listed)
    return points_url(index), points
