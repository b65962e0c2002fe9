"""The two files of a Megatron dataset: arrays of the `.idx`, and tokens of the `.bin` by byte range."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.errors import IndexMismatchError, IndexNotFoundError, SourceNotFoundError
from ledgerbeam.io.datasets.megatron.layout import HEAD_BYTES, Layout, dataset_prefix, parse_layout
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import FileInfo, open_local, stat

BLOCK = 1 << 20  # number of sequences or documents that are processed together
_REMOTE_HEAD = 64 * 1024  # bytes of the first request; a small index is not larger
_REQUEST = 8 * 1024 * 1024
_AHEAD = 4

Bytes: TypeAlias = bytes | memoryview


class IndexRows(NamedTuple):
    """The index entries of consecutive sequences: lengths, pointers and modes."""

    lengths: NDArray[np.int32]  # lengths in tokens, i32, shape `(n,)`
    pointers: NDArray[np.int64]  # offsets in the `.bin` in bytes, i64, shape `(n,)`
    modes: NDArray[np.int8] | None  # modes, i8, shape `(n,)`; None if the dataset has none

    def part(self, start: int, stop: int) -> IndexRows:
        """Return the entries of the sequences `[start, stop)`, counted from the first sequence of this object."""
        modes = None if self.modes is None else self.modes[start:stop]
        return IndexRows(self.lengths[start:stop], self.pointers[start:stop], modes)


def stat_index(prefix: str, options: Options | None = None) -> FileInfo:
    """Return the properties of the `.idx` of a dataset; raises IndexNotFoundError if it does not exist."""
    url = prefix + ".idx"
    try:
        return stat(url, options)
    except SourceNotFoundError as error:
        raise IndexNotFoundError(
            f"{prefix}.bin has no index: expected {url}. Copy it too, or write the dataset again"
        ) from error


class MegatronIndex:
    """The `.idx` of a dataset. Data is read when it is needed.

    A local index is mapped, so processes share its memory. For a remote index, `load` reads everything, and other
    methods read only the parts that they need. It may be pickled, shared by threads and used after a fork. With
    `trailing`, data may follow the arrays, as Megatron allows. `MegatronReader` describes the arrays.
    """

    def __init__(
        self, prefix: str, options: Options | None = None, *, trailing: bool = False, listed: FileInfo | None = None
    ) -> None:
        self.prefix = dataset_prefix(prefix)
        self.url = self.prefix + ".idx"
        self.options = options
        self.trailing = trailing
        self._reader = RangeReader(self.url, options, listed=listed)
        self._head = b""
        self._layout: Layout | None = None
        self._content: Bytes | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_head": b"", "_content": None}

    @property
    def layout(self) -> Layout:
        """The layout from the header, read once. IndexNotFoundError: no index. IndexMismatchError: invalid header."""
        if self._layout is None:
            size = (self._reader.listed or stat_index(self.prefix, self.options)).size
            wanted = HEAD_BYTES if self._reader.local_path is not None else _REMOTE_HEAD
            self._head = self._reader.read(0, min(size, wanted))
            self._layout = parse_layout(self._head[:HEAD_BYTES], size, self.url, trailing=self.trailing)
        return self._layout

    def load(self) -> Bytes:
        """Load the whole index: map a local index, or read a remote index in pieces, some of them concurrently."""
        if (content := self._content) is None:
            size, path = self.layout.size, self._reader.local_path
            if path is not None:
                content = map_file(path)
                if len(content) < size:  # the file was truncated after its header was read
                    raise self.mismatch(f"expected an index of {size} bytes, found {len(content)}")
            else:
                content = self._head
                if len(content) < size:
                    content = _read_span(self._reader, 0, size)
            self._content = content
        return content

    @property
    def lengths(self) -> NDArray[np.int32]:
        return np.frombuffer(self.load(), "<i4", self.layout.sequences, self.layout.lengths_at)

    @property
    def pointers(self) -> NDArray[np.int64]:
        return np.frombuffer(self.load(), "<i8", self.layout.sequences, self.layout.pointers_at)

    @property
    def documents(self) -> NDArray[np.int64]:
        if self.layout.fairseq:
            return np.arange(self.layout.sequences + 1)
        return np.frombuffer(self.load(), "<i8", self.layout.entries, self.layout.documents_at)

    @property
    def modes(self) -> NDArray[np.int8] | None:
        if not self.layout.modes:
            return None
        return np.frombuffer(self.load(), "i1", self.layout.sequences, self.layout.modes_at)

    def entries(self) -> tuple[Sequence[int], Sequence[int]]:
        """Return the lengths and the pointers of all sequences as Python integers, which are faster one by one.

        A negative pointer of a damaged index is read as unsigned, which is beyond the end of any file.
        """
        content, layout = memoryview(self.load()), self.layout
        return (
            content[layout.lengths_at : layout.pointers_at].cast("i"),
            content[layout.pointers_at : layout.documents_at].cast("Q"),
        )

    def rows(self, start: int, stop: int) -> IndexRows:
        """Return the entries of the sequences `[start, stop)`. Reads only these if a remote index is not loaded."""
        layout = self.layout
        arrays = [(layout.lengths_at, 4), (layout.pointers_at, 8), *[(layout.modes_at, 1)] * layout.modes]
        lengths, pointers, *modes = self._read([(at + width * start, at + width * stop) for at, width in arrays])
        return IndexRows(
            np.frombuffer(lengths, "<i4"),
            np.frombuffer(pointers, "<i8"),
            np.frombuffer(modes[0], "i1") if modes else None,
        )

    def document_ends(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return for each document `[start, stop)` one past the number of its last sequence: i64, `(stop - start,)`."""
        if self.layout.fairseq:
            return np.arange(start + 1, stop + 1)
        at = self.layout.documents_at + 8
        return np.frombuffer(self._read([(at + 8 * start, at + 8 * stop)])[0], "<i8")

    def document_bounds(self, number: int) -> tuple[int, int]:
        """Return the number of the first sequence of a document, and one past the number of its last."""
        start, stop = self.document_ends(number - 1, number + 1).tolist()
        return start, stop

    def _read(self, spans: Sequence[tuple[int, int]]) -> Sequence[Bytes]:
        """Return the bytes of each span of the index: from memory, or read with as few requests as possible."""
        if self._content is None and self._reader.local_path is None and len(self._head) < self.layout.size:
            starts, stops = zip(*spans, strict=True)
            return self._reader.read_many(starts, stops)
        content = memoryview(self.load())
        return [content[start:stop] for start, stop in spans]

    def check_ends(self, size: int) -> None:
        """Check the first and last entries against a `.bin` of `size` bytes.

        IndexMismatchError: the documents do not cover all sequences, or the sequences do not cover the `.bin`.
        """
        self.check_documents_end()
        layout = self.layout
        begin = end = 0
        if layout.sequences:
            last = layout.sequences - 1
            spans = [
                (layout.lengths_at + 4 * last, layout.lengths_at + 4 * last + 4),
                (layout.pointers_at, layout.pointers_at + 8),
                (layout.pointers_at + 8 * last, layout.pointers_at + 8 * last + 8),
            ]
            length, begin, end = (int.from_bytes(part, "little", signed=True) for part in self._read(spans))
            end += length * layout.dtype.itemsize
        if (begin, end) != (0, size):
            raise self.mismatch(f"expected sequences that fill bytes [0, {size}), found them in [{begin}, {end})")

    def check_documents_end(self) -> None:
        """Check that the first document starts at sequence 0, and the last document ends with the last sequence."""
        layout = self.layout
        if layout.fairseq:
            return
        edges = (layout.documents_at, layout.modes_at - 8)
        first, last = (int.from_bytes(part, "little") for part in self._read([(at, at + 8) for at in edges]))
        if (first, last) != (0, layout.sequences):
            raise self.mismatch(
                f"expected documents from sequence 0 to {layout.sequences}, found them from {first} to {last}"
            )

    def check_all(self) -> None:
        """Check every entry, a block at a time: lengths, pointers without gaps, documents in order."""
        layout = self.layout
        place = 0
        for start in range(0, layout.sequences, BLOCK):
            place = self.check_rows(self.rows(start, min(start + BLOCK, layout.sequences)), start, place)
        document = 0
        for start in range(0, layout.documents, BLOCK):
            ends = self.document_ends(start, min(start + BLOCK, layout.documents))
            document = self.check_document_ends(ends, start, document)

    def check_rows(self, rows: IndexRows, first: int, place: int) -> int:
        """Check that sequences fill the `.bin` without gaps from byte `place` on. Return the byte at which they end."""
        ends = place + np.cumsum(rows.lengths, dtype=np.int64) * self.layout.dtype.itemsize
        wrong = rows.lengths < 0
        wrong[0] |= rows.pointers[0] != place
        wrong[1:] |= rows.pointers[1:] != ends[:-1]
        if wrong.any():
            at = int(wrong.argmax())
            begin = place if at == 0 else int(ends[at - 1])
            raise self.mismatch(
                f"expected sequence {first + at} at byte {begin}, found it at byte {rows.pointers[at]} with "
                f"{rows.lengths[at]} tokens"
            )
        return int(ends[-1])

    def check_document_ends(self, ends: NDArray[np.int64], first: int, before: int) -> int:
        """Check that the `ends` of documents never decrease, from `before` on. Return the last of them."""
        wrong = np.diff(ends, prepend=before) < 0
        if wrong.any():
            at = int(wrong.argmax())
            least = before if at == 0 else int(ends[at - 1])
            raise self.mismatch(
                f"expected document {first + at} to end at sequence {least} or after it, found {ends[at]}"
            )
        return int(ends[-1])

    def mismatch(self, what: str) -> IndexMismatchError:
        """Return an error that names the index, the `.bin`, the problem and the remedy."""
        return IndexMismatchError(
            f"{self.url} does not fit {self.prefix}.bin: {what}; copy both files again, or write the dataset again"
        )

    def close(self) -> None:
        """Release the arrays. The next read opens the file again."""
        self._head, self._content = b"", None
        self._reader.close()


FEW = 256  # below this number of sequences `MappedTokens.few` is faster than `many`
Tokens: TypeAlias = "NDArray[Any]"  # tokens of a sequence: shape `(length,)`, read-only
_BLOCK = 8 * 1024 * 1024
_UNBOUNDED = 2**63 - 1


TokenSource: TypeAlias = "MappedTokens | RangedTokens"  # ranges are in bytes, `0 <= start <= stop <= limit`


class MappedTokens:
    """A local `.bin` that is mapped to memory. Arrays of tokens are views of the map."""

    def __init__(self, path: str, dtype: np.dtype[Any]) -> None:
        content = map_file(path)
        self.limit = len(content)  # bytes
        self.array: Tokens = np.frombuffer(content, dtype, len(content) // dtype.itemsize)
        self.mask = dtype.itemsize - 1  # mask of the bits that must be 0 in the byte offset of a token
        self.shift = self.mask.bit_length()  # offset in bytes >> shift = offset in tokens
        self._content = content
        self._dtype = dtype

    def few(self, lengths: Sequence[int], pointers: Sequence[int]) -> list[Tokens] | None:
        """Return views of a few sequences, faster than `many`; None if one is empty, misaligned or cut off."""
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
        """Return the tokens of a byte range as a view."""
        width = self._dtype.itemsize
        if start % width:  # no writer makes such an offset
            return np.frombuffer(self._content, self._dtype, (stop - start) // width, start)
        return self.array[start // width : stop // width]

    def many(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> list[Tokens]:
        width = self._dtype.itemsize
        if (starts % width).any():
            return [self.one(start, stop) for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
        array = self.array
        places = zip((starts // width).tolist(), (stops // width).tolist(), strict=True)
        return [array[start:stop] for start, stop in places]

    def close(self) -> None:
        """Do nothing: the file is unmapped when the last view of the map is freed."""


class RangedTokens:
    """A `.bin` that is read in byte ranges. Consecutive sequences are read together, as views of one block.

    `limit` is the size of the file if it is given or the file is local. The size of a remote file is not requested.
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
        return np.frombuffer(self._reader.read(start, stop), self._dtype)

    def whole(self, start: int, stop: int) -> Tokens:
        """Return the tokens of a large byte range, which is read in pieces, some of them concurrently."""
        return np.frombuffer(_read_span(self._reader, start, stop), self._dtype)

    def many(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> list[Tokens]:
        """Return the tokens of byte ranges, as views of blocks of up to 8 MiB that have consecutive ranges."""
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
        self._reader.close()


def _read_span(reader: RangeReader, start: int, stop: int) -> memoryview:
    loaded, place = bytearray(stop - start), 0
    for piece in reader.blocks(_REQUEST, _AHEAD, start=start, stop=stop):
        loaded[place : place + len(piece)] = piece
        place += len(piece)
    return memoryview(loaded).toreadonly()


def map_file(path: str) -> memoryview:
    """Map a whole local file for reading.

    The file is unmapped with its last view, so arrays never outlive their memory. Processes that map the same file
    share its memory. Raises SourceNotFoundError; also StorageError.
    """
    with open_local(path) as descriptor:
        if os.fstat(descriptor).st_size == 0:
            return memoryview(b"")  # an empty file cannot be mapped
        return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
