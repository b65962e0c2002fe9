"""Parse the columns in the footer of a Parquet file, and the heads of pages, which are in Thrift's compact protocol.

pyarrow parses footers too, but its accessors for columns crash the process if a damaged footer is inconsistent. Its
reads of the data do not crash.

Sources: the specification of the Thrift compact protocol, and `parquet.thrift` of the format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_DEEPEST = 32
_MOST_VARINT = 10  # bytes


class Chunk(NamedTuple):
    """A column of a row group.

    Attributes:
        start: Its first byte.
        size: Its size in bytes.
        plain_size: Its decompressed size.
        values: Number of its values; nulls and empty lists count.
        data_start: First byte of its first page of data; a page with a dictionary may come before it.
        codec: Its compression, by the number in the format.
        encodings: The encodings of its pages, by their numbers in the format.
        is_encrypted: Whether it is encrypted.
        file: The file that contains it; empty for this one.
    """

    start: int
    size: int
    plain_size: int = 0
    values: int = 0
    data_start: int = 0
    codec: int = 0
    encodings: tuple[int, ...] = ()
    is_encrypted: bool = False
    file: bytes = b""


DATA_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 = 0, 2, 3
"""Kinds of pages."""


class PageHead(NamedTuple):
    """The head of a page.

    Attributes:
        kind: `DATA_PAGE`, `DICTIONARY_PAGE`, `DATA_PAGE_V2`, or another number of the format.
        head: Bytes of the head; the data follow.
        size: Bytes of the data.
        plain_size: Their decompressed size.
        values: Number of values; nulls and empty lists count.
        encoding: The encoding of the values, by its number in the format.
        levels: Bytes of the levels before the values, in `DATA_PAGE_V2`; they are not compressed.
        is_compressed: Whether the values are compressed, if the column is.
    """

    kind: int
    head: int
    size: int
    plain_size: int
    values: int
    encoding: int
    levels: int
    is_compressed: bool


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


def parse_page(data: bytes) -> PageHead | None:
    """Parse the head of a page.

    Args:
        data: Its first bytes, and any that follow.

    Returns:
        The head; None if it is longer than `data`.

    Raises:
        ValueError: It is not valid.
    """
    found = _Fields(data)
    try:
        kind, plain_size, size, counts = -1, 0, 0, (0, 0, 0, True)
        for number, type_ in found.fields():
            if number in (1, 2, 3) and type_ == _I32:
                value = found.integer()
                kind, plain_size, size = (
                    value if number == 1 else kind,
                    value if number == 2 else plain_size,
                    value if number == 3 else size,
                )
            elif number in _COUNTS and type_ == _STRUCT:
                counts = _counts(found, _COUNTS[number])
            else:
                found.skip(type_)
    except IndexError:
        return None
    except RecursionError as error:
        raise ValueError("the head of a page is not valid") from error
    if min(size, plain_size, *counts) < 0:
        raise ValueError("the head of a page has negative sizes")
    return PageHead(kind, found.position, size, plain_size, *counts)


_COUNTS = {5: (1, 2), 7: (1, 2), 8: (1, 4, 5, 6)}
"""Fields with the number of values, the encoding and the sizes of levels, in the three parts that a head can have."""


_IS_COMPRESSED = 7  # the field in the head of a page of data of version 2


def _counts(found: _Fields, wanted: tuple[int, ...]) -> tuple[int, int, int, bool]:
    counts = dict.fromkeys(wanted, 0)
    is_compressed = True
    for number, kind in found.fields():
        if number in counts and kind == _I32:
            counts[number] = found.integer()
        else:
            is_compressed = is_compressed and (number, kind) != (_IS_COMPRESSED, _FALSE)
            found.skip(kind)
    values, encoding, *levels = counts.values()
    return values, encoding, sum(levels), is_compressed


class _Fields:
    """Reads values in sequence."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def position(self) -> int:
        """Bytes that were read."""
        return self._at

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

    def integers(self) -> tuple[int, ...]:
        """Return a list of signed numbers."""
        count, kind = self._list_head()
        if kind not in (_I16, _I32, _I64) and count:
            raise ValueError(f"expected a list of numbers, found one of type {kind}")
        return tuple(self.integer() for _ in range(count))

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
    chunk = Chunk(0, 0)
    for number, kind in found.fields():
        if number == 1 and kind == _BINARY:
            chunk = chunk._replace(file=found.binary())
        elif number == 3 and kind == _STRUCT:
            chunk = chunk._replace(**_column(found))
        else:
            if number == 8:
                chunk = chunk._replace(is_encrypted=True)
            found.skip(kind)
    return chunk


_NUMBERS = {4: "codec", 5: "values", 6: "plain_size", 7: "size", 9: "data_start", 11: "start"}
"""Fields of the metadata of a column."""


def _column(found: _Fields) -> dict[str, Any]:
    column: dict[str, Any] = {"data_start": 0, "start": 0}
    for number, kind in found.fields():
        if number in _NUMBERS and kind in (_I32, _I64):
            column[_NUMBERS[number]] = found.integer()
        elif number == 2 and kind == _LIST:
            column["encodings"] = found.integers()
        else:
            found.skip(kind)
    if not 0 < column["start"] < column["data_start"]:  # no dictionary
        column["start"] = column["data_start"]
    return column
