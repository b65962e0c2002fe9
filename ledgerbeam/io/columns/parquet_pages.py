"""Decoded sizes of columns of a row group, from the heads of their pages, before pyarrow decodes them.

The footer counts encoded bytes: a page of numbers into a dictionary, or of runs, can stand for thousands of times more.

Sources: the documents Encodings and `parquet.thrift` of the format.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ledgerbeam.io.columns.thrift import DATA_PAGE_V2, DICTIONARY_PAGE, Chunk, PageHead, parse_page

Read = Callable[[int, int], bytes | memoryview]
"""Returns the bytes of a file from one position to another."""

_DICTIONARY, _PREFIXES = (2, 8), 7  # encodings
_CODECS = {0: None, 1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
_HEAD, _LONGEST_HEAD = 512, 2**20  # bytes
_LENGTH = struct.Struct("<I")
_MOST_NUMBERS, _MOST_EACH, _MOST_BITS = 2**26, 2**16, 63  # of a list of lengths
_MOST_WIDTH = 32  # bits of a number into a dictionary
_BYTE_VALUES = 256 ** np.arange(_LENGTH.size, dtype=np.int64)
_POWERS = 1 << np.arange(_MOST_WIDTH, dtype=np.int64)
_OFFSET = 4  # bytes of the place of a text in its column


class LeafColumn(NamedTuple):
    """A column without columns inside of it.

    Attributes:
        path: Its name in the file.
        column: Name of the column of the table that it is a part of.
        width: Bytes of a value; None for texts and bytes.
        levels: Whether its pages have repetition levels and definition levels.
    """

    path: str
    column: str
    width: int | None
    levels: tuple[bool, bool]


class DecodedChunk(NamedTuple):
    """The decoded size of a column of a row group.

    Attributes:
        size: Bytes of the values that are not in a dictionary, at most.
        words: Bytes of the values that are in a dictionary, at most.
        page: Bytes of its largest page.
    """

    size: int
    words: int
    page: int


def has_dictionary(chunk: Chunk) -> bool:
    """Return whether some pages of a column have numbers into a dictionary."""
    return any(encoding in chunk.encodings for encoding in _DICTIONARY)


def has_prefixes(chunk: Chunk) -> bool:
    """Return whether some pages of a column have texts as a prefix of the text before, and the rest."""
    return _PREFIXES in chunk.encodings


def decoded_chunk(read: Read, chunk: Chunk, leaf: LeafColumn, enough: int) -> DecodedChunk:
    """Return the decoded size of a column of a row group.

    Args:
        read: Reads the file.
        chunk: The column in the row group.
        leaf: The column.
        enough: Values of a dictionary that certainly have at most this many bytes in all are not counted exactly.

    Raises:
        ValueError: The head of a page is not valid.
    """
    size = in_dictionary = largest = 0
    dictionary: tuple[int, PageHead] | None = None
    numbers: list[tuple[int, PageHead]] = []
    for at, page in _pages(read, chunk):
        largest = max(largest, page.plain_size)
        if page.kind == DICTIONARY_PAGE:
            dictionary = at, page
        elif leaf.width is not None:
            size += page.values * leaf.width
        elif page.encoding in _DICTIONARY:
            size += page.values * _OFFSET
            in_dictionary += page.values
            numbers.append((at, page))
        else:
            size += page.values * _OFFSET + page.plain_size
            if page.encoding == _PREFIXES:
                size += _prefixed_size(read, chunk, leaf, at, page)
    words = 0
    if dictionary is not None and in_dictionary:
        at, page = dictionary
        words = in_dictionary * page.plain_size
        if words > enough:
            lengths = _lengths(read(at, at + page.size), page, chunk.codec)
            words = in_dictionary * int(lengths.max(initial=0))
            if words > enough:
                found = (_values_of(read, chunk, leaf, at, page) for at, page in numbers)
                words = sum(map(_words_size, found, (page.values for _, page in numbers), repeat(lengths)))
    return DecodedChunk(size, words, largest)


def dictionary_size(data: bytes | memoryview, chunk: Chunk) -> int:
    """Return the bytes of the values of a column that are in a dictionary, at most.

    Args:
        data: The column up to its first page of data.
        chunk: The column in the row group.
    """
    page = parse_page(bytes(data))
    if page is None or page.kind != DICTIONARY_PAGE:
        return chunk.values * chunk.plain_size
    return chunk.values * int(_lengths(data[page.head :], page, chunk.codec).max(initial=0))


def _pages(read: Read, chunk: Chunk) -> Iterator[tuple[int, PageHead]]:
    """Yield the pages of a column, with the first byte of the data of each."""
    at, stop, values = chunk.start, chunk.start + chunk.size, 0
    while at < stop and values < chunk.values:
        size = _HEAD
        while (page := parse_page(bytes(read(at, min(at + size, stop))))) is None:
            if at + size >= stop or size >= _LONGEST_HEAD:
                raise ValueError("the head of a page is cut off")
            size *= 8
        yield at + page.head, page
        at += page.head + page.size
        values += 0 if page.kind == DICTIONARY_PAGE else page.values


def _lengths(data: bytes | memoryview, page: PageHead, codec: int) -> NDArray[np.int64]:
    """Return the bytes of each value of a dictionary of texts; of one with all bytes if that is unknown."""
    plain = _decompressed(data, page.plain_size, codec)
    if plain is None:
        return np.array([page.plain_size])
    found = _lengths_by_zeros(plain)
    if found is None:
        lengths: list[int] = []
        at, stop, length_at = 0, len(plain) - _LENGTH.size, _LENGTH.unpack_from
        while at <= stop:
            (size,) = length_at(plain, at)
            lengths.append(size)
            at += _LENGTH.size + size
        found = np.array(lengths, np.int64)
    return np.minimum(found, page.plain_size)


def _lengths_by_zeros(plain: bytes | memoryview) -> NDArray[np.int64] | None:
    """Return the lengths of texts that follow each other, each after its length; None if they have to be walked.

    In most dictionaries two bytes of 0 are the end of a length. Whether they are is checked: each text ends where the
    next length begins.
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


def _words_size(found: bytes | None, values: int, lengths: NDArray[np.int64]) -> int:
    """Return the bytes of numbers into a dictionary as values, at most; `found` is None if they are damaged."""
    most = values * int(lengths.max(initial=0))
    if not found or not 0 < found[0] <= _MOST_WIDTH:
        return most
    width, at, total = found[0], 1, 0
    word_bytes = -(-width // 8)
    try:
        while at < len(found):
            head, at = _varint(found, at)
            if head & 1:
                stop = at + (head >> 1) * width
                bits = np.unpackbits(np.frombuffer(found[at:stop], np.uint8), bitorder="little")
                places = bits[: len(bits) // width * width].reshape(-1, width).astype(np.int64) @ _POWERS[:width]
                total += int(lengths[places[places < len(lengths)]].sum())
                at = stop
            else:
                place = int.from_bytes(found[at : at + word_bytes], "little")
                total += (head >> 1) * int(lengths[place]) if place < len(lengths) else 0
                at += word_bytes
    except IndexError:
        return most
    return total


def _values_of(read: Read, chunk: Chunk, leaf: LeafColumn, at: int, page: PageHead) -> bytes | None:
    """Return the encoded values of a page of data, without its levels; None if it is damaged."""
    levels = page.levels if page.kind == DATA_PAGE_V2 else 0
    plain = _decompressed(
        read(at + levels, at + page.size), page.plain_size - levels, chunk.codec if page.is_compressed else 0
    )
    if plain is None:
        return None
    start = 0
    if page.kind != DATA_PAGE_V2:
        for has_levels in leaf.levels:
            if has_levels:
                if start + _LENGTH.size > len(plain):
                    return None
                start += _LENGTH.size + _LENGTH.unpack_from(plain, start)[0]
    return bytes(plain[start:])


def _decompressed(data: bytes | memoryview, size: int, codec: int) -> bytes | memoryview | None:
    """Return the data of a page; None if it is damaged, which pyarrow says, or its codec is unknown."""
    import pyarrow as pa  # noqa: PLC0415 - only jobs that read columns import it

    name = _CODECS.get(codec, "")
    if name is None:
        return data
    if not name:
        return None
    try:
        return memoryview(pa.Codec(name).decompress(data, size))
    except (OSError, ValueError, pa.ArrowException):
        return None


def _prefixed_size(read: Read, chunk: Chunk, leaf: LeafColumn, at: int, page: PageHead) -> int:
    """Return the bytes that texts of a page share with those before them, at most."""
    values = _values_of(read, chunk, leaf, at, page)
    try:
        found = None if values is None else _delta_sum(values, 0)
    except IndexError:
        found = None
    return page.values * page.plain_size if found is None else found


def _delta_sum(data: bytes, at: int) -> int | None:
    """Return the sum of numbers in the encoding DELTA_BINARY_PACKED; None if there are too many, or negative ones.

    Raises:
        IndexError: They are cut off.
    """
    block, at = _varint(data, at)
    pieces, at = _varint(data, at)
    count, at = _varint(data, at)
    first, at = _signed(data, at)
    each = block // max(1, pieces)
    if count > _MOST_NUMBERS or each % 8 or not each <= _MOST_EACH:
        return None
    left, places, leasts, widths = count - 1, [], [], []
    while left > 0 and each:
        least, at = _signed(data, at)
        of_block, at = data[at : at + pieces], at + pieces
        for width in of_block:
            if left > 0:
                places.append(at)
                leasts.append(least)
                widths.append(width)
                at, left = at + each * width // 8, left - each
        if at > len(data) or len(of_block) < pieces:
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


def _signed(data: bytes, at: int) -> tuple[int, int]:
    number, at = _varint(data, at)
    return (number >> 1) ^ -(number & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
        if shift > _MOST_BITS:
            raise IndexError
