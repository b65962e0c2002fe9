"""Comparison of files with their recorded sizes and checksums."""

from __future__ import annotations

from ledgerbeam.errors import LedgerbeamError, SourceNotFoundError
from ledgerbeam.io import Options
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import stat
from ledgerbeam.ledger.model.identity import content_checksum

READ_BYTES = 4 * 2**20
"""Size of the blocks that a thread reads, in bytes."""


def checksum_at(url: str, options: Options) -> str:
    """Return the checksum of a file.

    Raises:
        SourceNotFoundError: The file does not exist. StorageError is raised too.
    """
    with RangeReader(url, options) as reader:
        return content_checksum(reader.blocks(READ_BYTES))


def size_problem(url: str, size: int, options: Options) -> str | None:
    """Return the problem with a file's size or existence, without reading the file; else None.

    Args:
        url: The file.
        size: Recorded size, in bytes.
        options: Storage options.
    """
    try:
        found = stat(url, options).size
    except SourceNotFoundError:
        return f"expected {size} bytes, found no such file or object"
    except LedgerbeamError as error:
        return str(error)
    return None if found == size else f"expected {size} bytes, found {found}"


def content_problem(
    url: str, size: int, checksum: str, options: Options, span: tuple[int, int] | None = None
) -> str | None:
    """Return the problem with a file's size or content, else None. A file of another size is not read.

    Args:
        url: The file.
        size: Recorded size, in bytes.
        checksum: Recorded checksum of the content, see `identity`.
        options: Storage options.
        span: First byte to read and the byte after the last, the range of the checksum; None for the whole file.
    """
    start, stop = span or (0, size)
    try:
        with RangeReader(url, options) as reader:
            if reader.size != size:
                return f"expected {size} bytes, found {reader.size}"
            found = content_checksum(reader.blocks(READ_BYTES, start=start, stop=stop), like=checksum)
    except SourceNotFoundError:
        return f"expected {size} bytes, found no such file or object"
    except LedgerbeamError as error:
        return str(error)
    if found == checksum:
        return None
    where = "" if span is None else f"bytes {start} to {stop}: "
    return f"{where}expected the checksum {checksum}, found {found}"
