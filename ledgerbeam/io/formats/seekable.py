"""Building the index of any source, compressed ones included: gzip by seek points, Zstandard by its own seek table."""

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
    """Find the offsets of all records of a source, of a compressed one in its decompressed bytes.

    Args:
        url: The source.
        options: Storage options.
        configured: As of `recognize`.
        listed: What was listed; see `RangeReader`.

    Returns:
        `N + 1` offsets, u64, the last a sentinel.

    Raises:
        ChangedSourceError: The source is not what was listed.
        NotIndexableError: It cannot be read by position, or its format brings its index.
        UsageError: The name has no suffix of a known format.
    """
    found = recognize(url, configured)
    kind = found.by_position()
    if found.compression is None:
        return kind.build_index(url, options, listed=listed)
    if found.compression.name == "zstd":
        with open_content(url, url, options, listed=listed) as content:
            _ = content.size  # raises without a seek table, before all of it is read
    return scan_stream(url, options, kind, listed).offsets  # from its beginning, so that every checksum is compared


def seek_points_of(
    url: str, index: str, offsets: Offsets, options: Options | None = None, listed: FileInfo | None = None
) -> tuple[str, bytes] | None:
    """Find what an indexed source needs besides its index, to be published before it.

    Args:
        url: The source.
        index: Where its index goes.
        offsets: What `build_index` returned.
        options: Storage options.
        listed: What was listed; see `RangeReader`.

    Returns:
        URL and content of the seek points of a gzip file; None for what needs none.

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
