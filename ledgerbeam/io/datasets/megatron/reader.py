"""Random access to the sequences and documents of a Megatron dataset.

Megatron's reader does not check its arguments. With `compat`, slices and `get` read the same bytes as
`megatron.core.datasets.indexed_dataset` of megatron-core 0.16.1.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal, Self

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.errors import IndexMismatchError, UsageError
from ledgerbeam.io.datasets.megatron.index import (
    FEW,
    IndexRows,
    MappedTokens,
    MegatronIndex,
    RangedTokens,
    Tokens,
    TokenSource,
)
from ledgerbeam.io.datasets.megatron.layout import dataset_prefix
from ledgerbeam.io.index.reader import number_of, numbers_of, require_span
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.stat import FileInfo, stat
from ledgerbeam.io.storage.urls import is_local

_FEW = 64  # up to this number, sequences are read one by one, which is faster than arrays
_ITERATE = 4 * 1024 * 1024
_LOOK_AHEAD = 65_536  # sequences whose index entries are read together


class MegatronReader:
    """Random access to the sequences of a Megatron dataset, `<prefix>.bin` and `<prefix>.idx`.

    `reader[i]` is the tokens of a sequence, a read-only array of `dtype` and shape `(length,)`; slices and `read_many`
    return lists. With `multimodal` each item is a pair of tokens and mode. Datasets of fairseq are read too: each of
    their sequences is a document.

    Deterministic, picklable, safe to share between threads and to use after a fork. Arrays outlive the reader. Arrays
    of a mapped file are views of it: if the file is truncated, a process that reads them is killed (SIGBUS). With
    `mmap=False` a truncated `.bin` raises `ChangedSourceError`. A local index is always mapped.

    Args:
        prefix: Prefix of the names of both files, or one of the names.
        mmap: Whether to map the `.bin` instead of reading ranges. Default: map a local file.
        multimodal: Return pairs of tokens and mode (`np.int8`).
        compat: Read like Megatron where it checks nothing: a slice is contiguous from its first sequence on, `get` may
            read beyond its sequence, data may follow the arrays of the index, and sequences need not fill the `.bin`.
            See docs/megatron.md.
        check: Check now that the sizes of both files and the first and last entries of the index fit. Unpickling does
            not repeat the check. If False, the first read opens the files.
        listed: Expected properties of the `.bin`, which is then not mapped; see `RangeReader`.
        index_listed: Expected properties of the `.idx`.

    Raises:
        IndexNotFoundError: There is no `.idx`.
        SourceNotFoundError: There is no `.bin`.
        IndexMismatchError: The `.idx` is not a Megatron index, or does not fit this `.bin`.
        UsageError: `mmap` for a remote dataset, or `multimodal` for a dataset without modes.
    """

    is_indexed: Literal[True] = True

    def __init__(
        self,
        prefix: str,
        options: Options | None = None,
        *,
        mmap: bool | None = None,
        multimodal: bool = False,
        compat: bool = False,
        check: bool = True,
        listed: FileInfo | None = None,
        index_listed: FileInfo | None = None,
    ) -> None:
        self.prefix = dataset_prefix(prefix)
        self.url = self.prefix + ".bin"
        self.options = options
        self.multimodal = multimodal
        self.compat = compat
        # A map reads data at each access, after any check that the file still has its listed properties.
        self.mmap = is_local(self.prefix) and listed is None if mmap is None else mmap
        self._listed = listed
        if self.mmap and not is_local(self.prefix):
            raise UsageError(f"{self.url}: only a local file can be mapped; leave mmap out")
        self.index = MegatronIndex(self.url, options, trailing=compat, listed=index_listed)
        self._size: int | None = None
        self._forget()
        if check:
            self._require_modes()
            self._size = stat(self.url, self.options).size
            if compat:
                self.index.check_documents_end()
            else:
                self.index.check_ends(self._size)

    def _require_modes(self) -> None:
        layout = self.index.layout
        if self.multimodal and layout.sequences and not layout.modes:
            raise UsageError(f"{self.index.url} has no modes; leave multimodal out")

    def _forget(self) -> None:
        self._source: TokenSource | None = None
        self._viewed = 0  # number of sequences that `__getitem__` returns as views without further calls: all or 0
        self._array: Tokens = np.empty(0)
        self._shift = self._mask = 0
        self._lengths: Sequence[int] = ()
        self._pointers: Sequence[int] = ()
        self._modes: NDArray[np.int8] | None = None

    def __repr__(self) -> str:
        return f"MegatronReader({self.prefix!r}, mmap={self.mmap}, multimodal={self.multimodal}, compat={self.compat})"

    def __getstate__(self) -> dict[str, Any]:
        kept = ("prefix", "url", "options", "multimodal", "compat", "mmap", "index", "_size", "_listed")
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self._viewed or self.index.layout.sequences

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the tokens, little-endian."""
        return self.index.layout.dtype

    @property
    def sequence_lengths(self) -> NDArray[np.int32]:
        """Length of each sequence in tokens: i32, shape `(N,)`, read-only."""
        return self.index.lengths

    @property
    def sequence_pointers(self) -> NDArray[np.int64]:
        """First byte of each sequence in the `.bin`: i64, shape `(N,)`, read-only."""
        return self.index.pointers

    @property
    def sequence_modes(self) -> NDArray[np.int8] | None:
        """Mode of each sequence: i8, shape `(N,)`, read-only; None if the dataset has none."""
        return self.index.modes

    @property
    def document_count(self) -> int:
        """Number of documents."""
        return self.index.layout.documents

    @property
    def document_indices(self) -> NDArray[np.int64]:
        """First sequence of each document, and the end of the last one: i64, shape `(document_count + 1,)`."""
        return self.index.documents

    def __getitem__(self, item: int | slice, /) -> Any:
        if type(item) is not int:
            if isinstance(item, slice):
                return self._slice(item)
            item = operator.index(item)
        at = item if item >= 0 else item + self._viewed
        if 0 <= at < self._viewed:  # the common case without a call
            length, start = self._lengths[at], self._pointers[at]
            if not start & self._mask:
                start >>= self._shift
                tokens = self._array[start : start + length]
                if len(tokens) == length > 0:
                    return tokens if self._modes is None else (tokens, self._modes[at])
        source = self._open()
        at = self._number(item)
        return self._item(self._take(source, *self._bounds(at), at), at)

    def __iter__(self) -> Iterator[Any]:
        """Read all sequences in order, some MB at a time."""
        for first in range(0, len(self), _LOOK_AHEAD):
            rows = self.index.rows(first, min(first + _LOOK_AHEAD, len(self)))
            reach = np.cumsum(rows.lengths, dtype=np.int64) * self.dtype.itemsize
            start = 0
            while start < len(reach):
                done = int(reach[start - 1]) if start else 0
                stop = max(start + 1, int(reach.searchsorted(done + _ITERATE, "right")))
                yield from self._read_rows(rows.part(start, stop), range(first + start, first + stop))
                start = stop

    def read_many(self, indices: Sequence[int]) -> list[Any]:
        """Read sequences by number, in any order; negative ones count from the end.

        Sequences next to each other share a request.

        Raises:
            IndexError: A number is out of range.
            IndexMismatchError: The `.bin` does not contain a sequence.
        """
        if len(indices) < _FEW and is_local(self.url):
            return [self[index] for index in map(operator.index, indices)]
        self._open()
        numbers = numbers_of(indices, len(self), self.url, "sequence")
        modes = None if self._modes is None else self._modes[numbers]
        return self._read_rows(IndexRows(self.index.lengths[numbers], self.index.pointers[numbers], modes), numbers)

    def read_span(self, start: int, stop: int) -> list[Any]:
        """Read the sequences `[start, stop)`, `0 <= start <= stop <= len(self)`.

        If the index of a remote dataset is not loaded, only the entries of these sequences are read, lengths and
        pointers concurrently, and then their tokens.

        Raises:
            IndexMismatchError: There are fewer sequences, or the `.bin` does not contain one of them.
            UsageError: `0 <= start <= stop` does not hold.
        """
        require_span(start, stop, self.url)
        if stop > len(self):
            raise self.index.mismatch(f"expected at least {stop} records, found {len(self)}")
        return [] if start == stop else self._read_rows(self.index.rows(start, stop), range(start, stop))

    def get(self, idx: int, offset: int = 0, length: int | None = None) -> Any:
        """Read a part of a sequence; with `multimodal` a pair of tokens and mode.

        Args:
            idx: Number of the sequence; negative numbers count from the end.
            offset: First token, from 0 to the length of the sequence.
            length: Number of tokens. Default: up to the end of the sequence.

        Raises:
            IndexError: The sequence does not exist.
            UsageError: The part is not inside the sequence. IndexMismatchError, with `compat`: not inside the `.bin`.
        """
        source = self._open()
        at = self._number(idx)
        count, pointer, width = self._lengths[at], self._pointers[at], self.dtype.itemsize
        wanted = count - offset if length is None else length
        start = pointer + offset * width
        stop = start + wanted * width
        if self.compat:
            size = stat(self.url, self.options).size if self._size is None else self._size
            stop = size if wanted < 0 else stop
            if (stop - start) % width:
                raise self.index.mismatch(f"expected whole tokens of {width} bytes, found a .bin of {size} bytes")
        elif not (0 <= offset <= count and 0 <= wanted <= count - offset):
            raise UsageError(
                f"{self.url}: sequence {idx} has {count} tokens; offset {offset} and length {length} exceed it"
            )
        return self._item(self._take(source, start, stop, at), at)

    def document(self, number: int) -> list[Any]:
        """Read the sequences of a document, in order; negative numbers count from the end.

        Raises:
            IndexError: The document does not exist.
            IndexMismatchError: The document has sequences that do not exist.
        """
        at = number_of(number, self.document_count, self.url, "document")
        start, stop = self.index.document_bounds(at)
        if not 0 <= start <= stop <= len(self):
            raise self.index.mismatch(
                f"expected document {at} in sequences [0, {len(self)}), found it in [{start}, {stop})"
            )
        return self.read_span(start, stop)

    def get_document_sequences(self, doc_id: int) -> list[Any]:
        """Read the sequences of a document: Megatron's name for `document`."""
        return self.document(doc_id)

    def raw(self, index: int) -> bytes:
        """Read the bytes of a sequence from the `.bin`; raises IndexError if it does not exist."""
        source = self._open()
        at = self._number(index)
        return self._take(source, *self._bounds(at), at).tobytes()

    def verify(self) -> None:
        """Read the whole index and check each entry: lengths, offsets without gaps, documents in order.

        Raises IndexMismatchError if an entry is invalid.
        """
        self.index.check_ends(stat(self.url, self.options).size)
        self.index.check_all()

    def close(self) -> None:
        """Close both files. Arrays stay valid. The next read opens the files again."""
        source = self._source
        self._forget()
        if source is not None:
            source.close()
        self.index.close()

    def _open(self) -> TokenSource:
        """Load the index and open the tokens."""
        source = self._open_tokens()
        if not self._lengths:
            lengths, self._pointers = self.index.entries()
            self._modes = self.index.modes if self.multimodal else None
            self._lengths = lengths
            if isinstance(source, MappedTokens):
                self._array, self._mask, self._shift = source.array, source.mask, source.shift
                self._viewed = len(lengths)  # set last, since other threads read it first
        return source

    def _open_tokens(self) -> TokenSource:
        """Open the tokens. The index of a remote dataset is not loaded."""
        if (source := self._source) is None:
            self._require_modes()
            if self.mmap:
                source = MappedTokens(self.url, self.dtype)
            else:
                source = RangedTokens(self.url, self.dtype, self.options, self._size, self._listed)
            self._source = source
        return source

    def _bounds(self, at: int) -> tuple[int, int]:
        start = self._pointers[at]
        return start, start + self._lengths[at] * self.dtype.itemsize

    def _item(self, tokens: Tokens, at: int) -> Any:
        return tokens if self._modes is None else (tokens, self._modes[at])

    def _slice(self, part: slice) -> Any:
        start, stop, step = part.indices(len(self))
        if self.compat:  # as Megatron, read contiguous bytes from the first sequence on
            source = self._open()
            if step != 1:
                raise UsageError(
                    f"{part} has a step of {step}; compat=True, as Megatron, allows only step 1. Leave compat out"
                )
            if start >= len(self):
                raise IndexError(f"{part}: expected a start below {len(self)}, the number of sequences, as in Megatron")
            cuts = [0, *np.cumsum(self.index.lengths[part], dtype=np.int64).tolist()]
            first = int(self.index.pointers[start])
            run = self._take(source, first, first + cuts[-1] * self.dtype.itemsize, start)
            parts = [run[begin:end] for begin, end in pairwise(cuts)] or [run]  # an empty slice is one empty sequence
            return parts if self._modes is None else (parts, self._modes[part])
        if step != 1:
            return self.read_many(range(start, stop, step))
        opened = self._source if self._viewed else self._open()
        if stop - start < FEW and isinstance(opened, MappedTokens) and self._modes is None:
            found = opened.few(self._lengths[start:stop], self._pointers[start:stop])
            if found is not None:
                return found
        return self.read_span(start, max(start, stop))

    def _read_rows(self, rows: IndexRows, numbers: Sequence[int] | NDArray[np.int64]) -> list[Any]:
        """Read the sequences of index entries. `numbers` are their numbers, for messages."""
        source = self._open_tokens()
        starts = rows.pointers
        stops = starts + rows.lengths.astype(np.int64) * self.dtype.itemsize
        wrong = (rows.lengths < 0) | (starts < 0) | (stops < starts) | (stops > source.limit)
        if wrong.any():
            at = int(wrong.argmax())
            raise self._outside(int(numbers[at]), int(starts[at]), int(stops[at]))
        found = source.many(starts, stops)
        return list(zip(found, rows.modes, strict=True)) if self.multimodal and rows.modes is not None else found

    def _take(self, source: TokenSource, start: int, stop: int, number: int) -> Tokens:
        if not 0 <= start <= stop <= source.limit:
            raise self._outside(number, start, stop)
        return source.one(start, stop)

    def _outside(self, number: int, start: int, stop: int) -> IndexMismatchError:
        size = stat(self.url, self.options).size
        return self.index.mismatch(
            f"expected sequence {number} within its {size} bytes, found it at bytes [{start}, {stop})"
        )

    def _number(self, index: int) -> int:
        return number_of(index, len(self), self.url, "sequence")
