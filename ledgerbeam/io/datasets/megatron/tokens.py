"""The `.bin` of a Megatron dataset: tokens by byte range, from a map, a file or an object store."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol, TypeAlias

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import FileInfo, open_local

FEW = 256
"""Below this number of sequences `MappedTokens.few` is faster than `many`."""

Tokens: TypeAlias = "NDArray[Any]"
"""Tokens of a sequence: shape `(length,)`, read-only."""

_BLOCK = 8 * 1024 * 1024
_UNBOUNDED = 2**63 - 1


class TokenSource(Protocol):
    """A source of tokens. Ranges are in bytes, `0 <= start <= stop <= limit`."""

    @property
    def limit(self) -> int:
        """Largest end of a range."""

    def one(self, start: int, stop: int) -> Tokens:
        """Return the tokens of a range."""

    def many(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> list[Tokens]:
        """Return the tokens of ranges in the requested order."""

    def close(self) -> None:
        """Close the file."""


class MappedTokens:
    """A mapped local `.bin`. Arrays are views of it.

    Args:
        path: Canonical URL of the file.
        dtype: Dtype of the tokens.

    Attributes:
        limit: Size in bytes.
        array: All tokens.
        mask: Bits that are 0 in the byte offset of a token.
        shift: Number of bits by which a byte offset is shifted right for an offset in tokens.
    """

    def __init__(self, path: str, dtype: np.dtype[Any]) -> None:
        content = map_file(path)
        self.limit = len(content)
        self.array: Tokens = np.frombuffer(content, dtype, len(content) // dtype.itemsize)
        self.mask = dtype.itemsize - 1
        self.shift = self.mask.bit_length()
        self._content = content
        self._dtype = dtype

    def few(self, lengths: Sequence[int], pointers: Sequence[int]) -> list[Tokens] | None:
        """Return views of a few sequences, faster than `many`; None if one of them needs further checks."""
        array, mask, shift = self.array, self.mask, self.shift
        found = []
        for length, pointer in zip(lengths, pointers, strict=True):
            start = pointer >> shift
            tokens = array[start : start + length]
            if pointer & mask or not len(tokens) == length > 0:
                return None
            found.append(tokens)
        return found

    def one(self, start: int, stop: int) -> Tokens:
        """Return a view of a range."""
        width = self._dtype.itemsize
        if start % width:  # no writer makes such an offset
            return np.frombuffer(self._content, self._dtype, (stop - start) // width, start)
        return self.array[start // width : stop // width]

    def many(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> list[Tokens]:
        """Return views of ranges."""
        width = self._dtype.itemsize
        if (starts % width).any():
            return [self.one(start, stop) for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
        array = self.array
        places = zip((starts // width).tolist(), (stops // width).tolist(), strict=True)
        return [array[start:stop] for start, stop in places]

    def close(self) -> None:
        """Do nothing: the last array that views the map unmaps the file."""


class RangedTokens:
    """A `.bin` that is read by ranges. Consecutive sequences are read together, as views of one block.

    Args:
        url: The file.
        dtype: Dtype of the tokens.
        options: Storage options.
        size: Size in bytes; requested for a local file, and not needed for a remote one.
        listed: The listed properties; see `RangeReader`.
    """

    def __init__(
        self, url: str, dtype: np.dtype[Any], options: Options | None, size: int | None, listed: FileInfo | None = None
    ) -> None:
        self._reader = RangeReader(url, options, size, listed)
        self._dtype = dtype
        known = size is not None or listed is not None or self._reader.local_path is not None
        # A local read allocates its whole range first: no range may be longer than the file.
        self.limit = self._reader.size if known else _UNBOUNDED

    def one(self, start: int, stop: int) -> Tokens:
        """Read a range."""
        return np.frombuffer(self._reader.read(start, stop), self._dtype)

    def many(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> list[Tokens]:
        """Read ranges. Consecutive ranges are read as blocks of up to 8 MiB, and the arrays are views of the blocks."""
        dtype = self._dtype
        if len(starts) < 2 or (starts[1:] != stops[:-1]).any():
            return [np.frombuffer(part, dtype) for part in self._reader.iterate_many(starts, stops)]
        edges = [0]
        while edges[-1] < len(starts):
            reach = int(stops.searchsorted(starts[edges[-1]] + _BLOCK, "right"))
            edges.append(max(edges[-1] + 1, reach))
        heads, tails = starts[edges[:-1]], stops[np.array(edges[1:]) - 1]
        blocks = self._reader.iterate_many(heads, tails, gap=-1)  # gap=-1: no further merging
        found: list[Tokens] = []
        for block, first, last in zip(blocks, edges[:-1], edges[1:], strict=True):
            tokens = np.frombuffer(block, dtype)
            places = (np.append(starts[first:last], stops[last - 1]) - starts[first]) // dtype.itemsize
            found += [tokens[start:stop] for start, stop in pairwise(places.tolist())]
        return found

    def close(self) -> None:
        """Close the file. The next read opens it again."""
        self._reader.close()


def map_file(path: str) -> memoryview:
    """Map a whole local file for reading.

    The file is unmapped with its last view, so arrays never outlive their memory. Processes that map the same file
    share its memory.

    Args:
        path: Canonical URL of the file.

    Returns:
        Its bytes, read-only.

    Raises:
        SourceNotFoundError: The file does not exist; also StorageError.
    """
    with open_local(path) as descriptor:
        if os.fstat(descriptor).st_size == 0:
            return memoryview(b"")  # an empty file cannot be mapped
        return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
