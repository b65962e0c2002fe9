"""Parse the columns in the footer of a Parquet file, which is in Thrift's compact protocol.

pyarrow parses footers too, but its accessors for columns crash the process if a damaged footer is inconsistent. Its
reads of the data do not crash.

Sources: the specification of the Thrift compact protocol, and `parquet.thrift` of the format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

__all__ = ["Chunk", "Footer", "Group", "parse_footer"]

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_DEEPEST = 32
_MOST_VARINT = 10  # bytes


class Chunk(NamedTuple):
    """A column of a row group.

    Attributes:
        start: Its first byte.
        size: Its size in bytes.
        plain_size: Its decompressed size.
        is_encrypted: Whether it is encrypted.
        file: The file that contains it; empty for this one.
    """

    start: int
    size: int
    plain_size: int = 0
    is_encrypted: bool = False
    file: bytes = b""


class Group(NamedTuple):
    """A row group.

    Attributes:
        rows: Number of rows.
        chunks: Its columns.
    """

    rows: int
    chunks: list[Chunk]


class Footer(NamedTuple):
    """A footer.

    Attributes:
        rows: Number of rows of the file.
        groups: The row groups.
        created_by: The program that wrote the file.
    """

    rows: int
    groups: list[Group]
    created_by: str


def parse_footer(data: bytes) -> Footer:
    """Parse a footer.

    Args:
        data: Its bytes, without the length and the magic that follow it.

    Raises:
        ValueError: They are not a footer.
    """
    try:
        return _footer(_Fields(data))
    except (IndexError, RecursionError) as error:
        raise ValueError("the footer is cut off, or is none") from error


class _Fields:
    """Reads values in sequence."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yield number and type of each field of a struct; read or skip the value before the next field."""
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self.integer()
            yield number, head & 15

    def integer(self) -> int:
        """Return a signed number of any width."""
        number = self._unsigned()
        return (number >> 1) ^ -(number & 1)

    def binary(self) -> bytes:
        """Return bytes."""
        size = self._unsigned()
        found = self._data[self._at : self._at + size]
        if len(found) < size:
            raise IndexError
        self._at += size
        return found

    def items(self, read: Callable[[_Fields], Any]) -> list[Any]:
        """Return a list of structs."""
        count, kind = self._list_head()
        if kind != _STRUCT and count:
            raise ValueError(f"expected a list of structs, found one of type {kind}")
        return [read(self) for _ in range(count)]

    def skip(self, kind: int, depth: int = 0) -> None:
        """Skip a value."""
        if depth > _DEEPEST:
            raise ValueError(f"the footer is nested more than {_DEEPEST} times")
        if kind in (_I16, _I32, _I64):
            self._unsigned()
        elif kind == _BINARY:
            self._move(self._unsigned())
        elif kind == _STRUCT:
            for _, inner in self.fields():
                self.skip(inner, depth + 1)
        elif kind in (_LIST, _SET):
            count, inner = self._list_head()
            for _ in range(count):
                self._skip_item(inner, depth)
        elif kind == _BYTE:
            self._move(1)
        elif kind == _DOUBLE:
            self._move(8)
        elif kind == _MAP:
            count = self._unsigned()
            kinds = self._byte() if count else 0
            for _ in range(count):
                self._skip_item(kinds >> 4, depth)
                self._skip_item(kinds & 15, depth)
        elif kind not in (_TRUE, _FALSE):
            raise ValueError(f"the footer has a value of the unknown type {kind}")

    def _skip_item(self, kind: int, depth: int) -> None:
        if kind in (_TRUE, _FALSE):  # in a list it has its own byte
            self._move(1)
        else:
            self.skip(kind, depth + 1)

    def _list_head(self) -> tuple[int, int]:
        head = self._byte()
        count = head >> 4
        if count == 15:
            count = self._unsigned()
        if count > len(self._data) - self._at:  # each item has at least one byte
            raise ValueError(f"the footer claims a list of {count:,} values, more than it has bytes")
        return count, head & 15

    def _byte(self) -> int:
        byte = self._data[self._at]
        self._at += 1
        return byte

    def _move(self, size: int) -> None:
        self._at += size
        if self._at > len(self._data):
            raise IndexError

    def _unsigned(self) -> int:
        byte = self._data[self._at]
        self._at += 1
        if byte < 128:
            return byte
        number, shift = byte & 127, 7
        while byte >= 128:
            byte = self._data[self._at]
            self._at += 1
            number |= (byte & 127) << shift
            shift += 7
            if shift > 7 * _MOST_VARINT:
                raise ValueError("the footer has a number of more than 64 bits")
        return number


def _footer(found: _Fields) -> Footer:
    rows, groups, created_by = 0, [], b""
    for number, kind in found.fields():
        if number == 3 and kind == _I64:
            rows = found.integer()
        elif number == 4 and kind == _LIST:
            groups = found.items(_group)
        elif number == 6 and kind == _BINARY:
            created_by = found.binary()
        else:
            found.skip(kind)
    return Footer(rows, groups, created_by.decode("utf-8", "backslashreplace"))


def _group(found: _Fields) -> Group:
    rows, chunks = 0, []
    for number, kind in found.fields():
        if number == 1 and kind == _LIST:
            chunks = found.items(_chunk)
        elif number == 3 and kind == _I64:
            rows = found.integer()
        else:
            found.skip(kind)
    return Group(rows, chunks)


def _chunk(found: _Fields) -> Chunk:
    file, is_encrypted, place = b"", False, (0, 0, 0)
    for number, kind in found.fields():
        if number == 1 and kind == _BINARY:
            file = found.binary()
        elif number == 3 and kind == _STRUCT:
            place = _place(found)
        else:
            is_encrypted = is_encrypted or number == 8
            found.skip(kind)
    return Chunk(*place, is_encrypted, file)


def _place(found: _Fields) -> tuple[int, int, int]:
    plain_size = size = data = dictionary = 0
    for number, kind in found.fields():
        if number == 6 and kind == _I64:
            plain_size = found.integer()
        elif number == 7 and kind == _I64:
            size = found.integer()
        elif number == 9 and kind == _I64:
            data = found.integer()
        elif number == 11 and kind == _I64:
            dictionary = found.integer()
        else:
            found.skip(kind)
    return dictionary if 0 < dictionary < data else data, size, plain_size
