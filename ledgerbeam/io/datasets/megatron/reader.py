"""Random access to the sequences and documents of a Megatron dataset.

`compat_slice` and `compat_part` return the bytes that Megatron's reader takes where it checks nothing, limited to the
file. They follow `megatron.core.datasets.indexed_dataset` of megatron-core 0.16.1.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal, Self, overload

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.errors import IndexMismatchError, UsageError
from ledgerbeam.io.datasets.megatron.index import IndexRows, MegatronIndex
from ledgerbeam.io.datasets.megatron.layout import dataset_prefix
from ledgerbeam.io.datasets.megatron.tokens import FEW, MappedTokens, RangedTokens, Tokens, TokenSource
from ledgerbeam.io.index.reader import number_of, numbers_of, require_span
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.stat import FileInfo, stat
from ledgerbeam.io.storage.urls import is_local


def compat_slice(
    part: slice, lengths: NDArray[np.int32], pointers: NDArray[np.int64], width: int
) -> tuple[int, int, list[int]]:
    """Find the one run of bytes that Megatron takes for a slice, from the first sequence on.

    Args:
        part: The slice.
        lengths: Of all sequences, in tokens.
        pointers: Of all sequences, in bytes.
        width: Bytes of a token.

    Returns:
        First byte, end, and where the run is cut, in tokens, both ends included. An empty slice is one empty piece.

    Raises:
        IndexError: The slice begins at the end.
        UsageError: Its step is not 1.
    """
    start, _, step = part.indices(len(lengths))
    if step != 1:
        raise UsageError(f"{part} has a step of {step}; Megatron's slices are contiguous. Leave compat out")
    if start >= len(lengths):
        raise IndexError(f"{part} begins at the end of {len(lengths)} sequences, where Megatron finds no pointer")
    cuts = [0, *np.cumsum(lengths[part], dtype=np.int64).tolist()]
    first = int(pointers[start])
    return first, first + cuts[-1] * width, cuts if len(cuts) > 1 else [0, 0]


def compat_part(pointer: int, count: int, offset: int, length: int | None, *, width: int, size: int) -> tuple[int, int]:
    """Find the bytes that Megatron takes for a part of a sequence, which need not be of that sequence.

    Args:
        pointer: Where the sequence begins, in bytes.
        count: Its length in tokens.
        offset: First token, from the beginning of the sequence; may be negative.
        length: How many tokens; negative for all up to the end of the file. Default: up to the end of the sequence.
        width: Bytes of a token.
        size: Size of the `.bin`.
    """
    start = pointer + offset * width
    wanted = count - offset if length is None else length
    return start, size if wanted < 0 else start + wanted * width


_FEW = 64  # so few sequences are looked up one by one: less work than arrays of them
_ITERATE = 4 * 1024 * 1024
_LOOK_AHEAD = 65_536  # sequences whose index entries are taken at a time


class MegatronReader:
    """Random access to the sequences of a Megatron dataset, `<prefix>.bin` and `<prefix>.idx`.

    `reader[i]` is the tokens of a sequence, a read-only array of `dtype` and shape `(length,)`; slices and `read_many`
    give lists. With `multimodal` each is a pair of tokens and mode. fairseq's datasets are read too: each of their
    sequences is a document.

    Deterministic, picklable, safe to share between threads and to use after a fork. Arrays outlive the reader. Of
    mapped tokens they are views of the file: if the file is truncated, a process that then reads them ends (SIGBUS), as
    with any map; with `mmap=False` a `.bin` that was cut is a `ChangedSourceError`. A local index is always mapped.

    Args:
        prefix: The common beginning of the names of both files; the name of one of them is also accepted.
        options: Storage options of both.
        mmap: Map the `.bin`, or read it in ranges. Default: map it if it is local.
        multimodal: Return pairs of tokens and mode (`np.int8`).
        compat: Read as Megatron does where it does not check: a slice is one run from its first sequence on, `get` may
            leave the sequence, an index may go on after its arrays and need not fill the `.bin`. See docs/megatron.md.
        check: Check now that both files fit by size and by the first and last entries of the index. Unpickling does not
            repeat it. Without, the first read opens the files.
        listed: The listed properties of the `.bin`, which is then not mapped; see `RangeReader`.
        index_listed: The listed properties of the `.idx`.

    Raises:
        IndexNotFoundError: There is no `.idx`.
        SourceNotFoundError: There is no `.bin`.
        IndexMismatchError: The `.idx` is no Megatron index, or not that of this `.bin`.
        UsageError: `mmap` of a remote dataset, or `multimodal` of a dataset without modes.
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
        # What a map shows is read when it is looked at: later than any check that the file is still what was listed.
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
        self._viewed = 0  # how many sequences can be viewed without a call: all or none
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
        """Of the tokens, little-endian."""
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
        """Mode of each sequence: i8, shape `(N,)`, read-only; None when the dataset has none."""
        return self.index.modes

    @property
    def document_count(self) -> int:
        """How many documents there are."""
        return self.index.layout.documents

    @property
    def document_indices(self) -> NDArray[np.int64]:
        """Where documents begin and end, as numbers of sequences: i64, shape `(document_count + 1,)`, from 0 to N."""
        return self.index.documents

    @overload
    def __getitem__(self, item: slice, /) -> list[Any]: ...
    @overload
    def __getitem__(self, item: int, /) -> Any: ...
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
        return self._read_one(item)

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
        """Read sequences by number.

        Args:
            indices: Their numbers, in any order, negative ones counting from the end.

        Returns:
            The sequences in the order asked; neighbours in a file or an object came with one request.

        Raises:
            IndexError: A number out of range.
            IndexMismatchError: A sequence that the `.bin` does not hold.
        """
        if len(indices) < _FEW and is_local(self.url):
            return [self[index] for index in map(operator.index, indices)]
        self._open()
        numbers = numbers_of(indices, len(self), self.url, "sequence")
        modes = None if self._modes is None else self._modes[numbers]
        return self._read_rows(IndexRows(self.index.lengths[numbers], self.index.pointers[numbers], modes), numbers)

    def read_span(self, start: int, stop: int) -> list[Any]:
        """Read the sequences `[start, stop)`.

        Of a remote dataset whose index is not loaded, only the entries of these sequences are read, lengths and
        pointers at once, and then their tokens.

        Args:
            start: First sequence, `0 <= start`.
            stop: End of the span, exclusive, `start <= stop <= len(self)`.

        Raises:
            IndexMismatchError: There are fewer sequences, or the `.bin` does not hold one of them.
            UsageError: Not `0 <= start <= stop`.
        """
        require_span(start, stop, self.url)
        if stop > len(self):
            raise self.index.mismatch(f"expected at least {stop} records, found {len(self)}")
        if start == stop:
            return []
        return self._read_rows(self.index.rows(start, stop), range(start, stop))

    def get(self, idx: int, offset: int = 0, length: int | None = None) -> Any:
        """Read a part of a sequence.

        Args:
            idx: Its number; negative counts from the end.
            offset: First token, `0 <= offset <= ` its length.
            length: How many tokens. Default: up to its end.

        Returns:
            The tokens, with `multimodal` a pair of them and the mode.

        Raises:
            IndexError: There is no such sequence.
            UsageError: The part leaves the sequence. With `compat` IndexMismatchError when it leaves the `.bin`.
        """
        source = self._open()
        at = self._number(idx)
        count, pointer, width = self._lengths[at], self._pointers[at], self.dtype.itemsize
        if self.compat:
            size = stat(self.url, self.options).size if self._size is None else self._size
            start, stop = compat_part(pointer, count, offset, length, width=width, size=size)
            if (stop - start) % width:
                raise self.index.mismatch(f"expected whole tokens up to the end, found {size} bytes of data")
        else:
            wanted = count - offset if length is None else length
            if not (0 <= offset <= count and 0 <= wanted <= count - offset):
                raise UsageError(
                    f"{self.url}: sequence {idx} has {count} tokens; offset {offset} and length {length} leave it"
                )
            start = pointer + offset * width
            stop = start + wanted * width
        return self._item(self._take(source, start, stop, at), at)

    def document(self, number: int) -> list[Any]:
        """Read the sequences of a document.

        Args:
            number: Of the document; negative counts from the end.

        Returns:
            Its sequences in order; none for an empty document.

        Raises:
            IndexError: There is no such document.
            IndexMismatchError: The index gives it sequences that are not there.
        """
        at = operator.index(number)
        if at < 0:
            at += self.document_count
        if not 0 <= at < self.document_count:
            raise IndexError(f"{self.url}: there is no document {number}; it has {self.document_count}")
        start, stop = self.index.document_bounds(at)
        if not 0 <= start <= stop <= len(self):
            raise self.index.mismatch(
                f"expected document {at} to lie among {len(self)} sequences, found it at [{start}, {stop})"
            )
        return self.read_span(start, stop)

    def get_document_sequences(self, doc_id: int) -> list[Any]:
        """Read the sequences of a document: `document` under the name that users of Megatron's datasets give it."""
        return self.document(doc_id)

    def raw(self, index: int) -> bytes:
        """Read the bytes of a sequence as they lie in the `.bin`.

        Raises:
            IndexError: There is no such sequence.
        """
        source = self._open()
        at = self._number(index)
        return self._take(source, *self._bounds(at), at).tobytes()

    def verify(self) -> None:
        """Read the whole index and check each entry: lengths, places without gaps, documents in order.

        Raises:
            IndexMismatchError: One of them cannot be.
        """
        self.index.check_ends(stat(self.url, self.options).size)
        self.index.check_all()

    def close(self) -> None:
        """Let go of both files; arrays stay valid, and a later read opens the files again."""
        source = self._source
        self._forget()
        if source is not None:
            source.close()
        self.index.close()

    def _open(self) -> TokenSource:
        """Load the index and return the tokens."""
        source = self._open_tokens()
        if not self._lengths:
            lengths, self._pointers = self.index.entries()
            self._modes = self.index.modes if self.multimodal else None
            self._lengths = lengths
            if isinstance(source, MappedTokens):
                self._array, self._mask, self._shift = source.array, source.mask, source.shift
                self._viewed = len(lengths)  # last: other threads look at it first
        return source

    def _open_tokens(self) -> TokenSource:
        """Return the tokens, without the index of remote ones."""
        source = self._source
        if source is None:
            self._require_modes()
            if self.mmap:
                source = MappedTokens(self.url, self.dtype)
            else:
                source = RangedTokens(self.url, self.dtype, self.options, self._size, self._listed)
            self._source = source
        return source

    def _read_one(self, index: int) -> Any:
        source = self._open()
        at = self._number(index)
        return self._item(self._take(source, *self._bounds(at), at), at)

    def _bounds(self, at: int) -> tuple[int, int]:
        start = self._pointers[at]
        return start, start + self._lengths[at] * self.dtype.itemsize

    def _item(self, tokens: Tokens, at: int) -> Any:
        return tokens if self._modes is None else (tokens, self._modes[at])

    def _slice(self, part: slice) -> Any:
        if self.compat:
            return self._slice_as_megatron(part)
        start, stop, step = part.indices(len(self))
        if step != 1:
            return self.read_many(range(start, stop, step))
        source = self._source if self._viewed else self._open()
        if stop - start < FEW and isinstance(source, MappedTokens) and self._modes is None:
            found = source.few(self._lengths[start:stop], self._pointers[start:stop])
            if found is not None:
                return found
        return self.read_span(start, max(start, stop))

    def _slice_as_megatron(self, part: slice) -> Any:
        source = self._open()
        start, stop, cuts = compat_slice(part, self.index.lengths, self.index.pointers, self.dtype.itemsize)
        run = self._take(source, start, stop, part.indices(len(self))[0])
        found = [run[first:last] for first, last in pairwise(cuts)]
        return found if self._modes is None else (found, self._modes[part])

    def _read_rows(self, rows: IndexRows, numbers: Sequence[int] | NDArray[np.int64]) -> list[Any]:
        """Read the sequences of index entries, whose numbers are for messages."""
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
        """Return a sequence's number from the beginning."""
        return number_of(index, len(self), self.url, "sequence")
