"""Parse the footers and page headers of Parquet files, and find the decoded sizes of columns.

pyarrow parses footers too, but its accessors for columns crash the process if a damaged footer is inconsistent. Its
reads of the data do not crash. The footer counts encoded bytes. A page of run-length encoded values, or of indices into
a dictionary, can be decoded to thousands of times more bytes. So the sizes are found before pyarrow decodes the pages.

Sources: the specification of the Thrift compact protocol, `parquet.thrift` and the document Encodings of the format.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Read = Callable[[int, int], bytes | memoryview]  # returns the bytes of a file from one position to another
_DICTIONARY, _PREFIXES = (2, 8), 7  # encodings
_CODECS = {0: None, 1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
_HEAD, _LONGEST_HEAD = 512, 2**20  # bytes
_LENGTH = struct.Struct("<I")
_MOST_NUMBERS, _MOST_EACH = 2**26, 2**16  # of a list of lengths
_MOST_WIDTH = 32  # bits of an index into a dictionary
_MOST_VALUES = 2**31 - 1  # of a page
_BYTE_VALUES = 256 ** np.arange(_LENGTH.size, dtype=np.int64)
_POWERS = 1 << np.arange(_MOST_WIDTH, dtype=np.int64)
_OFFSET = 4  # bytes of the offset of a text in its column


class LeafColumn(NamedTuple):
    """A column of the file: a whole column of the table, or a scalar part of a nested one."""

    path: str  # its name in the file
    column: str  # name of the column of the table that contains it
    width: int | None  # bytes of a value; None for texts and bytes
    levels: tuple[bool, bool]  # whether its pages have repetition levels and definition levels


class DecodedChunk(NamedTuple):
    """The decoded size of a column of a row group."""

    size: int  # bytes of the values that are not in a dictionary, at most
    words: int  # bytes of the values that are in a dictionary, at most
    page: int  # bytes of its largest page


def has_dictionary(chunk: Chunk) -> bool:
    """Return whether some pages of a column have indices into a dictionary."""
    return any(encoding in chunk.encodings for encoding in _DICTIONARY)


def has_prefixes(chunk: Chunk) -> bool:
    """Return whether some pages of a column store texts without the prefix that each shares with the one before."""
    return _PREFIXES in chunk.encodings


def decoded_chunk(read: Read, chunk: Chunk, leaf: LeafColumn, enough: int) -> DecodedChunk:
    """Return the decoded size of a column of a row group. Raises ValueError if a page header is not valid.

    If a rough upper bound of the bytes of values from a dictionary is at most `enough`, their indices are not read.
    """
    size = largest = 0
    dictionary: tuple[int, _PageHead] | None = None
    numbers: list[tuple[int, _PageHead]] = []
    for at, page in _pages(read, chunk):
        largest = max(largest, page.plain_size)
        if page.kind == _DICTIONARY_PAGE:
            dictionary = at, page
        elif leaf.width is not None:
            size += page.values * leaf.width
        elif page.encoding in _DICTIONARY:
            size += page.values * _OFFSET
            numbers.append((at, page))
        else:
            size += page.values * _OFFSET + page.plain_size
            if page.encoding == _PREFIXES:
                size += _prefixed_size(read, chunk, leaf, at, page)
    words = 0
    if dictionary is not None and numbers:
        at, page = dictionary

        def lengths() -> NDArray[np.int64]:
            return _lengths(read(at, at + page.size), page, chunk.codec)

        def uses() -> NDArray[np.int64] | None:
            found = [_values_of(read, chunk, leaf, at, page) for at, page in numbers]
            return _uses(found, min(page.values, page.plain_size // _LENGTH.size))

        words = _words_size([page for _, page in numbers], page.plain_size, lengths, uses, enough)
    return DecodedChunk(size, words, largest)


def dictionary_size(data: bytes | memoryview, chunk: Chunk) -> int:
    """Return an upper bound of the decoded size of a column, given its bytes before the first page of data."""
    if (page := _parse_page(bytes(data))) is None or page.kind != _DICTIONARY_PAGE:
        return chunk.values * chunk.plain_size
    return chunk.values * int(_lengths(data[page.head :], page, chunk.codec).max(initial=0))


def _pages(read: Read, chunk: Chunk) -> Iterator[tuple[int, _PageHead]]:
    """Yield the position of the data and the header of each page of a column."""
    at, stop, values = chunk.start, chunk.start + chunk.size, 0
    while at < stop and values < chunk.values:
        size = _HEAD
        while (page := _parse_page(bytes(read(at, min(at + size, stop))))) is None:
            if at + size >= stop or size >= _LONGEST_HEAD:
                raise ValueError("the head of a page is cut off")
            size *= 8
        yield at + page.head, page
        at += page.head + page.size
        values += 0 if page.kind == _DICTIONARY_PAGE else page.values


def _lengths(data: bytes | memoryview, page: _PageHead, codec: int) -> NDArray[np.int64]:
    """Return the bytes of each text in a dictionary; the bytes of all as one number if it cannot be decompressed."""
    if (plain := _decompressed(data, page.plain_size, codec)) is None:
        return np.array([page.plain_size])
    if (found := _lengths_by_zeros(plain)) is None:
        lengths: list[int] = []
        at, stop, length_at = 0, len(plain) - _LENGTH.size, _LENGTH.unpack_from
        while at <= stop:
            (size,) = length_at(plain, at)
            lengths.append(size)
            at += _LENGTH.size + size
        found = np.array(lengths, np.int64)
    return np.minimum(found, page.plain_size)


def _lengths_by_zeros(plain: bytes | memoryview) -> NDArray[np.int64] | None:
    """Return the lengths of texts, each stored after its length; None if they must be read one by one.

    Most texts are shorter than 64 KiB, so a length, which has 4 bytes, ends with two bytes of 0. The result is checked:
    each text must end where the next length starts.
    """
    letters = np.frombuffer(plain, np.uint8)
    zeros = np.flatnonzero(letters == 0)
    follows = np.diff(zeros, prepend=-2, append=len(letters) + 2) == 1
    starts = zeros[follows[:-1] & ~follows[1:]] - (_LENGTH.size - 1)
    if not len(starts) or starts[0] != 0:
        return None
    lengths: NDArray[np.int64] = (
        letters[starts[:, np.newaxis] + np.arange(_LENGTH.size)].astype(np.int64) @ _BYTE_VALUES
    )
    nexts = np.append(starts[1:], len(letters))
    return lengths if np.array_equal(starts + _LENGTH.size + lengths, nexts) else None


def _words_size(
    pages: Sequence[_PageHead],
    size: int,
    lengths: Callable[[], NDArray[np.int64]],
    uses: Callable[[], NDArray[np.int64] | None],
    enough: int,
) -> int:
    """Return the bytes of the texts that indices into a dictionary of `size` bytes stand for: exact if over `enough`.

    A bound that is small enough is returned instead, so that most dictionaries are not decompressed: if a dictionary
    is larger than its indices, first how often each text is used is counted.
    """
    values, used = sum(page.values for page in pages), None
    if (most := values * size) <= enough:
        return most
    if enough >= size > sum(page.plain_size for page in pages):
        used = uses()
        if used is not None and (most := int(used.max(initial=0)) * size) <= enough:
            return most
    each = lengths()
    if (most := values * int(each.max(initial=0))) > enough and (used := uses() if used is None else used) is not None:
        both = min(len(used), len(each))
        return int(used[:both] @ each[:both])
    return most


def _uses(pages: Sequence[bytes | None], words: int) -> NDArray[np.int64] | None:
    """Return how often encoded indices use each of `words` texts at most; None if a page is damaged."""
    uses = np.zeros(words, np.int64)
    for found in pages:
        if not found or not 0 < found[0] <= _MOST_WIDTH:
            return None
        width = found[0]
        rest = _Numbers(found, 1)
        try:
            while rest.at < len(found):
                head = rest.unsigned()
                if head & 1:
                    packed = found[rest.at : rest.at + (head >> 1) * width]
                    bits = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little")
                    places = bits[: len(bits) // width * width].reshape(-1, width).astype(np.int64) @ _POWERS[:width]
                    np.add.at(uses, places[places < words], 1)
                    rest.at += (head >> 1) * width
                else:
                    size = -(-width // 8)
                    if (place := int.from_bytes(found[rest.at : rest.at + size], "little")) < words:
                        uses[place] += min(head >> 1, _MOST_VALUES)
                    rest.at += size
        except (IndexError, ValueError):
            return None
    return uses


def _values_of(read: Read, chunk: Chunk, leaf: LeafColumn, at: int, page: _PageHead) -> bytes | None:
    """Return the encoded values of a data page, without repetition and definition levels; None if it is damaged."""
    levels = page.levels if page.kind == _DATA_PAGE_V2 else 0
    plain = _decompressed(
        read(at + levels, at + page.size), page.plain_size - levels, chunk.codec if page.is_compressed else 0
    )
    if plain is None:
        return None
    start = 0
    if page.kind != _DATA_PAGE_V2:
        for has_levels in leaf.levels:
            if has_levels:
                if start + _LENGTH.size > len(plain):
                    return None
                start += _LENGTH.size + _LENGTH.unpack_from(plain, start)[0]
    return bytes(plain[start:])


def _decompressed(data: bytes | memoryview, size: int, codec: int) -> bytes | memoryview | None:
    """Return the data of a page; None if its codec is unknown or it is damaged, which pyarrow reports later."""
    name = _CODECS.get(codec, "")
    if name is None:
        return data
    if not name:
        return None
    try:
        return memoryview(pa.Codec(name).decompress(data, size))
    except (OSError, ValueError, pa.ArrowException):
        return None


def _prefixed_size(read: Read, chunk: Chunk, leaf: LeafColumn, at: int, page: _PageHead) -> int:
    """Return an upper bound of the bytes that the texts of a page share with the previous texts."""
    values = _values_of(read, chunk, leaf, at, page)
    try:
        found = None if values is None else _delta_sum(values)
    except (IndexError, ValueError):
        found = None
    return page.values * page.plain_size if found is None else found


def _delta_sum(data: bytes) -> int | None:
    """Return the sum of numbers in the encoding DELTA_BINARY_PACKED; None if there are too many, or negative ones.

    Raises IndexError if the numbers are cut off, ValueError if one has too many bytes.
    """
    rest = _Numbers(data)
    block, pieces, count, first = rest.unsigned(), rest.unsigned(), rest.unsigned(), rest.signed()
    each = block // max(1, pieces)
    if count > _MOST_NUMBERS or each % 8 or not each <= _MOST_EACH:
        return None
    left, places, leasts, widths = count - 1, [], [], []
    while left > 0 and each:
        least = rest.signed()
        of_block = data[rest.at : rest.at + pieces]
        rest.at += pieces
        for width in of_block:
            if left > 0:
                places.append(rest.at)
                leasts.append(least)
                widths.append(width)
                rest.at += each * width // 8
                left -= each
        if rest.at > len(data) or len(of_block) < pieces:
            raise IndexError
    steps = np.repeat(np.array(leasts, np.int64), each).reshape(-1, each)
    letters, starts = np.frombuffer(data, np.uint8), np.array(places, np.int64)
    for width in set(widths) - {0}:
        of_width = np.flatnonzero(np.array(widths) == width)
        packed = letters[starts[of_width, np.newaxis] + np.arange(each * width // 8)]
        bits = np.unpackbits(packed, axis=1, bitorder="little").reshape(len(of_width), each, width)
        steps[of_width] += bits.astype(np.int64) @ (1 << np.arange(width, dtype=np.int64))
    numbers = first + np.cumsum(np.append(0, steps.ravel()[: max(0, count - 1)]))
    return int(numbers.sum()) if count and numbers.min() >= 0 else None if count else 0


_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_DEEPEST = 32
_MOST_VARINT = 10  # bytes


class Chunk(NamedTuple):
    """A column of a row group."""

    start: int  # its first byte
    size: int
    plain_size: int = 0  # its decompressed size
    values: int = 0  # number of its values; nulls and empty lists count
    data_start: int = 0  # first byte of its first page of data; a page with a dictionary may come before it
    codec: int = 0  # its compression, by the number in the format
    encodings: tuple[int, ...] = ()  # the encodings of its pages, by their numbers in the format
    is_encrypted: bool = False
    file: bytes = b""  # the file that contains it; empty for this one


_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3  # kinds of pages


class _PageHead(NamedTuple):
    head: int  # bytes of the head; the data follow
    kind: int = -1  # `_DATA_PAGE`, `_DICTIONARY_PAGE`, `_DATA_PAGE_V2`, or another number of the format
    size: int = 0  # bytes of the data
    plain_size: int = 0  # their decompressed size
    values: int = 0  # number of values; nulls and empty lists count
    encoding: int = 0  # the encoding of the values, by its number in the format
    levels: int = 0  # bytes of the levels before the values, in `_DATA_PAGE_V2`; they are not compressed
    is_compressed: bool = True  # whether the values are compressed, if the column is


class Group(NamedTuple):
    """A row group."""

    rows: int
    chunks: list[Chunk]


class Footer(NamedTuple):
    """A footer."""

    rows: int  # number of rows of the file
    groups: list[Group]
    created_by: str  # the program that wrote the file


def parse_footer(data: bytes) -> Footer:
    """Parse a footer, without the length and the magic that follow it. Raises ValueError."""
    try:
        found = _Fields(data).struct(_FOOTER)
    except (IndexError, RecursionError) as error:
        raise ValueError("the footer is cut off or damaged") from error
    return Footer(found.get("rows", 0), found.get("groups", []), found.get("created_by", ""))


def _parse_page(data: bytes) -> _PageHead | None:
    """Parse the page header at the start of `data`; None if `data` ends inside the header. Raises ValueError."""
    fields = _Fields(data)
    try:
        found = fields.struct(_PAGE)
    except IndexError:
        return None
    except RecursionError as error:
        raise ValueError("the head of a page is not valid") from error
    counts = found.pop("counts", {})
    levels = counts.pop("definitions", 0) + counts.pop("repetitions", 0)
    page = _PageHead(head=fields.at, levels=levels, **counts, **found)
    if min(page.size, page.plain_size, page.values, page.encoding, page.levels) < 0:
        raise ValueError("the head of a page has negative sizes")
    return page


class _Numbers:
    """Reads the numbers of a variable number of bytes in `data`, one after the other, from the position `at` on."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at

    def unsigned(self) -> int:
        byte = self.data[self.at]
        self.at += 1
        if byte < 128:
            return byte
        number, shift = byte & 127, 7
        while byte >= 128:
            byte = self.data[self.at]
            self.at += 1
            number |= (byte & 127) << shift
            shift += 7
            if shift > 7 * _MOST_VARINT:
                raise ValueError("the footer has a number of more than 64 bits")
        return number

    def signed(self) -> int:
        number = self.unsigned()
        return (number >> 1) ^ -(number & 1)


class _Fields(_Numbers):
    """Reads the values of Thrift structs, one after the other."""

    def struct(self, wanted: _Struct) -> dict[str, Any]:
        """Return the values of the wanted fields of a struct by name. Other fields are skipped."""
        found: dict[str, Any] = {}
        for field in self.fields():
            if (one := wanted.get(field)) is None:
                self.skip(field[1])
            else:
                name, read = one
                found[name] = read(self)
        return found

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yield number and type of each field of a struct; read or skip the value before the next field."""
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self.signed()
            yield number, head & 15

    def binary(self) -> bytes:
        size = self.unsigned()
        found = self.data[self.at : self.at + size]
        if len(found) < size:
            raise IndexError
        self.at += size
        return found

    def items(self, read: Callable[[_Fields], Any]) -> list[Any]:
        count, kind = self._list_head()
        if kind != _STRUCT and count:
            raise ValueError(f"expected a list of structs, found one of type {kind}")
        return [read(self) for _ in range(count)]

    def integers(self) -> tuple[int, ...]:
        count, kind = self._list_head()
        if kind not in (_I16, _I32, _I64) and count:
            raise ValueError(f"expected a list of numbers, found one of type {kind}")
        return tuple(self.signed() for _ in range(count))

    def skip(self, kind: int, depth: int = 0) -> None:
        if depth > _DEEPEST:
            raise ValueError(f"the footer is nested more than {_DEEPEST} times")
        if kind in (_I16, _I32, _I64):
            self.unsigned()
        elif kind == _BINARY:
            self._move(self.unsigned())
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
            count = self.unsigned()
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
            count = self.unsigned()
        if count > len(self.data) - self.at:  # each item has at least one byte
            raise ValueError(f"the footer has a list of {count:,} values, but too few bytes for them")
        return count, head & 15

    def _byte(self) -> int:
        byte = self.data[self.at]
        self.at += 1
        return byte

    def _move(self, size: int) -> None:
        self.at += size
        if self.at > len(self.data):
            raise IndexError


# The wanted fields of a struct: by number and type the name of a field, and the function that reads its value.
_Struct = Mapping[tuple[int, int], tuple[str, Callable[[_Fields], Any]]]


def _integers(kinds: Sequence[int], **numbers: int) -> _Struct:
    """Return the fields of integers, given their numbers by name."""
    return {(number, kind): (name, _Fields.signed) for name, number in numbers.items() for kind in kinds}


def _group(fields: _Fields) -> Group:
    found = fields.struct(_GROUP)
    return Group(found.get("rows", 0), found.get("chunks", []))


def _chunk(fields: _Fields) -> Chunk:
    found = fields.struct(_CHUNK)
    column = {"start": 0, "size": 0, "data_start": 0} | found.pop("column", {})
    if not 0 < column["start"] < column["data_start"]:  # no dictionary
        column["start"] = column["data_start"]
    return Chunk(**column, **found)


def _is_present(fields: _Fields, kind: int) -> bool:
    fields.skip(kind)
    return True


_COLUMN: _Struct = {
    **_integers((_I32, _I64), codec=4, values=5, plain_size=6, size=7, data_start=9, start=11),
    (2, _LIST): ("encodings", _Fields.integers),
}
_CHUNK: _Struct = {
    (1, _BINARY): ("file", _Fields.binary),
    (3, _STRUCT): ("column", lambda fields: fields.struct(_COLUMN)),
    **{(8, kind): ("is_encrypted", partial(_is_present, kind=kind)) for kind in range(16)},  # of any type
}
_GROUP: _Struct = {(1, _LIST): ("chunks", lambda fields: fields.items(_chunk)), **_integers((_I64,), rows=3)}
_FOOTER: _Struct = {
    **_integers((_I64,), rows=3),
    (4, _LIST): ("groups", lambda fields: fields.items(_group)),
    (6, _BINARY): ("created_by", lambda fields: fields.binary().decode("utf-8", "backslashreplace")),
}
_COUNTS: _Struct = _integers((_I32,), values=1, encoding=2)
_COUNTS_V2: _Struct = {
    **_integers((_I32,), values=1, encoding=4, definitions=5, repetitions=6),
    (7, _FALSE): ("is_compressed", lambda _: False),
}
_PAGE: _Struct = {
    **_integers((_I32,), kind=1, plain_size=2, size=3),
    **{(number, _STRUCT): ("counts", lambda fields: fields.struct(_COUNTS)) for number in (5, 7)},
    (8, _STRUCT): ("counts", lambda fields: fields.struct(_COUNTS_V2)),
}
