"""Read the footer of a Parquet file with one or two requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledgerbeam.errors import SourceError
from ledgerbeam.io.columns.content import Content, first_read
from ledgerbeam.io.storage.content_kind import HEAD, require_columns

if TYPE_CHECKING:  # only jobs that read columns import it
    import pyarrow as pa


_MAGIC = b"PAR1"
_ENCRYPTED = b"PARE"

FOOTER_END = 8
"""Bytes after the footer: its length and the magic."""

MOST_FOOTER = 256 * 2**20
"""Largest size of a footer; a larger one is treated as damage."""


def footer_bytes(content: Content, url: str) -> bytes:
    """Read the footer of a file.

    Returns:
        The footer, with the bytes after it up to the end of the file.

    Raises:
        SourceError: The file is not a Parquet file, cut off, or encrypted.
    """
    size = content.size
    if size < len(_MAGIC) + FOOTER_END:
        raise SourceError(f"{url}: expected a Parquet file, found {size} bytes; it is cut off, write it again")
    start = size - first_read(size)
    data = content.read(start, size)
    if data[-4:] == _ENCRYPTED:
        raise SourceError(f"{url}: the file is encrypted, and its footer too; decrypt it, then read it")
    if data[-4:] != _MAGIC:
        require_columns(content.read(0, min(HEAD, size)), url, _MAGIC)
        raise SourceError(
            f"{url}: expected {_MAGIC!r} at the end, found {data[-4:]!r}; it is cut off or no Parquet file, write it "
            "again"
        )
    length = int.from_bytes(data[-FOOTER_END:-4], "little")
    begin = size - FOOTER_END - length
    if begin < len(_MAGIC) or length > MOST_FOOTER:
        raise SourceError(
            f"{url}: its end says that the footer has {length:,} bytes; expected at most "
            f"{min(size - FOOTER_END - len(_MAGIC), MOST_FOOTER):,}. It is damaged, write it again"
        )
    return data[begin - start :] if begin >= start else content.read(begin, start) + data


def leaves_of(kind: pa.DataType) -> int:
    """Return the number of leaf columns of a type in a file."""
    import pyarrow as pa  # noqa: PLC0415 - only jobs that read columns import it
    from pyarrow import types  # noqa: PLC0415

    if isinstance(kind, pa.BaseExtensionType):
        return leaves_of(kind.storage_type)
    if types.is_map(kind):
        return leaves_of(kind.key_type) + leaves_of(kind.item_type)
    if types.is_dictionary(kind) or not types.is_nested(kind):
        return 1
    return sum(leaves_of(kind.field(i).type) for i in range(kind.num_fields))
