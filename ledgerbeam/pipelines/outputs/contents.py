"""Whether a file is as it was noted when it was written: its size and the checksum of its content."""

from __future__ import annotations

from ledgerbeam.errors import LedgerbeamError, SourceNotFoundError
from ledgerbeam.io import Options
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import stat
from ledgerbeam.ledger.model.checksums import content_checksum

READ_BYTES = 4 * 2**20
"""What a thread holds of a file at a time."""


def checksum_at(url: str, options: Options) -> str:
    """Return the checksum of a file.

    Raises:
        SourceNotFoundError: There is no such file; also StorageError.
    """
    with RangeReader(url, options) as reader:
        return content_checksum(reader.blocks(READ_BYTES))


def size_problem(url: str, size: int, options: Options) -> str | None:
    """Return what is wrong with a file that can be seen without reading it, or None.

    Args:
        url: The file.
        size: Bytes that it had when it was written.
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
    """Return what is wrong with a file, or None: it is read if it has its size.

    Args:
        url: The file.
        size: Bytes that it had when it was written.
        checksum: Of its content then, see `checksums`.
        options: Storage options.
        span: First byte of what is read, and the one behind it, of which the checksum is; None for the whole file.
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
