"""Write Megatron datasets, with the same bytes as `IndexedDatasetBuilder` of megatron-core 0.16.1, and join them.

A merge joins the `.bin` as bytes, and the `.idx` by arithmetic on its arrays.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, BinaryIO, TypeAlias

from ledgerbeam._base.lazy import ArrayLike, DTypeLike, NDArray, np
from ledgerbeam.errors import ChangedSourceError, IndexMismatchError, RecordError, SourceNotFoundError, UsageError
from ledgerbeam.io.datasets.megatron.index import BLOCK, MegatronIndex, stat_index
from ledgerbeam.io.datasets.megatron.layout import MAGIC, Layout, dataset_prefix, dtype_code
from ledgerbeam.io.storage.client import CONCURRENCY, Options, map_ahead
from ledgerbeam.io.storage.concatenate import concatenated
from ledgerbeam.io.storage.files import delete, refuse_foreign
from ledgerbeam.io.storage.publish import publish, remove_stale_temporaries_of
from ledgerbeam.io.storage.stat import FileInfo, SourceWatch, stat
from ledgerbeam.io.storage.urls import is_local

TokensLike: TypeAlias = ArrayLike  # tokens in one dimension: a list of ints, an array, or a tensor on the CPU
Values: TypeAlias = Any  # encoded tokens: an `array` or an `ndarray`. Both have a length and are buffers.
_TYPECODES = {"|u1": "B", "|i1": "b", "<i2": "h", "<i4": "i", "<i8": "q", "<u2": "H"}


class _TokenEncoder:
    """Converts tokens to one dtype. It refuses tokens that do not fit, which NumPy would change silently."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._integers = dtype.kind in "iu"
        self._typecode = _TYPECODES.get(dtype.str)
        self._range = (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)) if self._integers else (0, 0)

    def encode(self, tokens: TokensLike) -> Values:
        """Return tokens as contiguous values of the dtype. ValueError: a token does not fit, or two dimensions."""
        dtype = self._dtype
        if type(tokens) is np.ndarray and tokens.dtype == dtype and tokens.ndim == 1 and tokens.flags.c_contiguous:
            return tokens
        if isinstance(tokens, (list, tuple)) and self._typecode:
            try:
                return array(self._typecode, tokens)  # also checks the range of each token
            except OverflowError as error:
                raise ValueError(self._expected(f"tokens from {min(tokens)} to {max(tokens)}")) from error
            except TypeError as error:
                raise ValueError(self._expected(str(error))) from error
        values = np.asarray(tokens)
        if values.ndim != 1:
            raise ValueError(f"expected tokens in one dimension, found the shape {values.shape}")
        if values.size and values.dtype.kind not in ("iub" if self._integers else "iubf"):
            raise ValueError(self._expected(f"{values.dtype} values"))
        if self._integers:
            if values.size and not np.can_cast(values.dtype, dtype):
                least, most = int(np.minimum.reduce(values)), int(np.maximum.reduce(values))
                if least < self._range[0] or most > self._range[1]:
                    raise ValueError(self._expected(f"tokens from {least} to {most}"))
            return np.ascontiguousarray(values, dtype)
        try:
            with np.errstate(over="raise"):
                return np.ascontiguousarray(values, dtype)
        except FloatingPointError as error:
            raise ValueError(self._expected(f"values up to {np.abs(values).max()}")) from error

    def _expected(self, found: str) -> str:
        limits = f", from {self._range[0]} to {self._range[1]}" if self._integers else ""
        return f"expected tokens that fit {self._dtype.name}{limits}, found {found}"


class IndexWriter:
    """Writes an index to an empty file in blocks. Each block is written at its offset, so no array is in memory."""

    def __init__(self, file: BinaryIO, layout: Layout) -> None:
        self._file = file
        self._layout = layout
        self._sequences = 0
        self._entries = 0
        self._place = 0
        file.write(layout.header())
        self.add_documents(np.zeros(1, np.int64))

    def add_documents(self, ends: NDArray[np.int64]) -> None:
        """Add for each of the next documents the number of all sequences up to its end."""
        self._write(self._layout.documents_at + 8 * self._entries, ends, "<i8")
        self._entries += len(ends)

    def add_sequences(self, lengths: NDArray[np.int32], modes: NDArray[np.int8] | None = None) -> None:
        """Add the lengths in tokens of the next sequences, and their modes if the layout has modes."""
        layout, width = self._layout, self._layout.dtype.itemsize
        for start in range(0, len(lengths), BLOCK):
            part = lengths[start : start + BLOCK]
            pointers = np.empty(len(part) + 1, "<i8")
            pointers[0] = 0
            np.cumsum(part, out=pointers[1:])
            pointers *= width
            pointers += self._place
            self._write(layout.lengths_at + 4 * self._sequences, part, "<i4")
            self._write(layout.pointers_at + 8 * self._sequences, pointers[:-1], "<i8")
            if modes is not None:
                self._write(layout.modes_at + self._sequences, modes[start : start + BLOCK], "i1")
            self._sequences += len(part)
            self._place = int(pointers[-1])

    def _write(self, at: int, values: NDArray[Any], dtype: str) -> None:
        self._file.seek(at)
        self._file.write(np.ascontiguousarray(values, dtype).data)


class MegatronBuilder:
    """Writes the tokens of sequences and documents immediately; the index stays in memory, 4 bytes for each sequence.

    A call that raises RecordError changes nothing.

    Args:
        data: The file of the tokens.
        dtype: Dtype of the tokens: uint8, int8, uint16, int16, int32, int64, float32 or float64.
        multimodal: Whether each sequence has a mode, from -128 to 127.
        name: Name of the dataset, for messages.

    Raises:
        UsageError: The format cannot hold that dtype.
    """

    def __init__(self, data: BinaryIO, dtype: DTypeLike, *, multimodal: bool = False, name: str = "part") -> None:
        dtype_code(dtype)
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.multimodal = multimodal
        self._data = data
        self._name = name
        self._encode = _TokenEncoder(self.dtype).encode
        self._lengths = array("i")
        self._ends = array("q")
        self._modes = array("b")

    @property
    def layout(self) -> Layout:
        """The layout of the index of the data so far."""
        return Layout(self.dtype, len(self._lengths), len(self._ends) + 1, modes=self.multimodal)

    def add_item(self, tokens: TokensLike, mode: int = 0) -> None:
        """Add a sequence to the current document.

        Args:
            tokens: Tokens in one dimension; may be empty.
            mode: Mode of the sequence; needs `multimodal` unless it is 0.

        Raises:
            RecordError: A token or the mode does not fit its type.
            UsageError: A mode without `multimodal`.
        """
        values = self._values(tokens)
        self._add(values, self._lengths_of([len(values)]), [mode] if mode else None)

    def end_document(self) -> None:
        """End the current document, which has all sequences after the previous document. It may be empty."""
        self._ends.append(len(self._lengths))

    def add_document(
        self, tokens: TokensLike, lengths: Sequence[int] | None = None, modes: Sequence[int] | None = None
    ) -> None:
        """Add consecutive sequences, and end the document.

        Args:
            tokens: Tokens of all sequences, in one dimension.
            lengths: Length of each sequence, in tokens. Default: all tokens are one sequence.
            modes: Mode of each sequence; needs `multimodal`. Default: 0.

        Raises:
            RecordError: A token or mode does not fit its type, or the lengths do not add up to the tokens.
            UsageError: Modes without `multimodal`.
        """
        values = self._values(tokens)
        self._add(values, self._lengths_of([len(values)] if lengths is None else lengths), modes)
        self.end_document()

    def add_documents(
        self,
        tokens: TokensLike,
        lengths: Sequence[int] | NDArray[Any],
        ends: Sequence[int] | NDArray[Any],
        modes: Sequence[int] | None = None,
    ) -> None:
        """Add many documents at once.

        Args:
            tokens: Tokens of all documents, in one dimension.
            lengths: Length of each sequence, in tokens.
            ends: End of each document: the number of given sequences up to it, in order; the last is `len(lengths)`.
            modes: Mode of each sequence; needs `multimodal`. Default: 0.

        Raises:
            RecordError: A token or mode does not fit its type, the lengths do not add up to the tokens, or the ends are
                not in order.
            UsageError: Modes without `multimodal`.
        """
        values, sizes = self._values(tokens), self._lengths_of(lengths)
        places = np.asarray(ends, np.int64)
        if np.diff(places, prepend=0).min(initial=0) < 0 or (places[-1] if len(places) else 0) != len(sizes):
            found = places[:9].tolist()
            raise self._error_at(f"expected documents to end in order, the last at {len(sizes)}, found ends {found}")
        before = len(self._lengths)
        self._add(values, sizes, modes)
        self._ends.frombytes((places + before).tobytes())

    def write_index(self, file: BinaryIO) -> None:
        """Write the index of all added data to an empty file that can seek.

        Raises:
            RecordError: The last sequences belong to no document.
        """
        if left := len(self._lengths) - (self._ends[-1] if self._ends else 0):
            raise self._error_at(f"sequences that belong to no document: {left}; call end_document after them")
        writer = IndexWriter(file, self.layout)
        writer.add_documents(np.asarray(self._ends))
        modes = np.asarray(self._modes) if self.multimodal else None
        writer.add_sequences(np.asarray(self._lengths), modes)

    def _values(self, tokens: TokensLike) -> Values:
        try:
            return self._encode(tokens)
        except ValueError as error:
            raise self._error_at(str(error)) from error

    def _lengths_of(self, lengths: Sequence[int] | NDArray[Any]) -> array[int]:
        try:
            if not isinstance(lengths, np.ndarray):
                return array("i", lengths)
            sizes = array("i")
            sizes.frombytes(_TokenEncoder(np.dtype("<i4")).encode(lengths).tobytes())
        except (OverflowError, TypeError, ValueError) as error:
            raise self._error_at(f"expected a sequence of at most {2**31 - 1} tokens: {error}") from error
        return sizes

    def _add(self, values: Values, lengths: array[int], modes: Sequence[int] | None) -> None:
        if modes is not None and not self.multimodal:
            raise UsageError(f"{self._name}: a dataset without modes cannot hold a mode; pass multimodal=True")
        if sum(lengths) != len(values) or min(lengths, default=0) < 0:
            raise self._error_at(f"expected lengths that make up {len(values)} tokens, found {lengths[:9].tolist()}")
        if self.multimodal:
            self._modes.extend(self._modes_of([0] * len(lengths) if modes is None else modes, len(lengths)))
        self._data.write(values)
        self._lengths.extend(lengths)

    def _modes_of(self, modes: Sequence[int], count: int) -> array[int]:
        try:
            found = array("b", modes)
        except (OverflowError, TypeError) as error:
            raise self._error_at(f"expected a mode from -128 to 127: {error}") from error
        if len(found) != count:
            raise self._error_at(f"expected {count} modes, found {len(found)}")
        return found

    def _error_at(self, what: str) -> RecordError:
        return RecordError(f"{self._name}: document {len(self._ends)}, sequence {len(self._lengths)}: {what}")


@contextlib.contextmanager
def write_megatron(
    prefix: str, dtype: DTypeLike = "int32", options: Options | None = None, *, multimodal: bool = False
) -> Iterator[MegatronBuilder]:
    """Open a new dataset. It appears, complete and durable, when the body ends, and never if the body raises.

    The `.idx` appears last, and the `.idx` of an existing dataset is removed first. So no reader finds an `.idx` with
    the `.bin` of another dataset.

    Args:
        prefix: Prefix of the names of the two files.
        dtype: Dtype of the tokens; see `optimal_dtype`.
        multimodal: Whether each sequence has a mode.

    Yields:
        The builder for the documents.

    Raises:
        ChangedSourceError: Another process has written this dataset at the same time; see `require_own`.
        DiskFullError: No space is left; nothing was published. `publish` lists other errors.
        RecordError: A token does not fit, or sequences belong to no document.
        UsageError: The format cannot hold the dtype.
    """
    base = dataset_prefix(prefix)
    with publish(base + ".idx", options) as index:
        with publish(base + ".bin", options) as data:
            builder = MegatronBuilder(data, dtype, multimodal=multimodal, name=base)
            yield builder
            builder.write_index(index)
            delete(base + ".idx", options)
        own = stat(base + ".bin", options)
    require_own(own, options)


def require_own(data: FileInfo, options: Options | None = None) -> None:
    """Raise ChangedSourceError if a published `.bin` was replaced by another process while the `.idx` was published."""
    if (found := stat(data.url, options)) != data:
        raise ChangedSourceError(
            f"{data.url}: another process has written this dataset at the same time, so its .bin and .idx may not fit "
            f"each other. Expected {data.size:,} bytes of version {data.version}, found {found.size:,} of version "
            f"{found.version}; write it again, with only one process"
        )


def encode_part(
    documents: Iterable[Iterable[Sequence[int] | NDArray[Any]]],
    dtype: DTypeLike,
    *,
    eod: int | None = None,
    name: str = "part",
) -> tuple[bytes, bytes]:
    """Encode documents as a complete dataset: the output of one task of a parallel build.

    If `merge_megatron` joins such parts in order, the result has the bytes of one `encode_part` of all documents. As in
    Megatron's preprocess_data, a sequence without tokens is left out, and a document without sequences is an empty
    document, which gets no `eod`.

    Args:
        documents: Documents as sequences of tokens.
        eod: Token that is appended to the last sequence of each document.
        name: Name of the part, for messages.

    Returns:
        The bytes of the `.bin` and of the `.idx`.

    Raises:
        RecordError: A token does not fit the dtype.
        UsageError: The format cannot hold that dtype.
    """
    data, index = io.BytesIO(), io.BytesIO()
    builder = MegatronBuilder(data, dtype, name=name)
    for document in documents:
        sequences = [tokens for tokens in document if len(tokens)]
        if sequences and eod is not None:
            last = sequences[-1]
            sequences[-1] = np.append(last, eod) if isinstance(last, np.ndarray) else [*last, eod]
        for tokens in sequences:
            builder.add_item(tokens)
        builder.end_document()
    builder.write_index(index)
    return data.getvalue(), index.getvalue()


_AHEAD = 4
_LOOKS = re.compile(re.escape(MAGIC)).match
_LOAD = 8 * 1024 * 1024  # a larger index is read in parts


def merge_megatron(prefixes: Sequence[str], output: str, options: Options | None = None) -> Layout:
    """Join datasets in the given order.

    The result has the same bytes as if one builder writes all documents, or Megatron's `add_index` joins the parts. So
    the number of parts of a build does not matter. Each index is checked entry by entry. The kernel copies each `.bin`,
    or S3 copies it on the server; otherwise it is streamed. Memory: index entries of about a million sequences.

    Args:
        prefixes: Prefixes of at least one dataset, or the names of their `.bin`. Datasets of fairseq are allowed; each
            of their sequences is a document.
        output: Prefix of the result. Its files appear when all data is complete, the `.idx` last.

    Returns:
        The layout of the result: its dtype, sequences and documents.

    Raises:
        ChangedSourceError: A part changed while it was read; nothing was published. Or another process has written to
            `output` at the same time; see `require_own`.
        IndexMismatchError: The two files of a part do not fit each other.
        IndexNotFoundError: A part has no `.idx`.
        SourceNotFoundError: A part has no `.bin`.
        UsageError: There are no parts, parts have different dtypes, only some have modes, or the output is a part or an
            unrelated file. Only a dataset, or the `.bin` of a killed merge, is replaced.
    """
    target = dataset_prefix(output)
    if not prefixes:
        raise UsageError(f"{target}: there is nothing to merge; give the prefix of at least one dataset")
    places = list(map(dataset_prefix, prefixes))
    if any(_is_same(target, place) for place in places):
        raise UsageError(f"{target}: this dataset is both a part and the result; choose another output")
    parts = list(map_ahead(partial(_open, options=options), places, CONCURRENCY))
    sources, listed, indexes = map(list, zip(*parts, strict=True))
    layout = _merged_layout(indexes)
    require_replaceable(target, sum(source.size for source in sources), options)
    for ending in (".bin", ".idx"):  # temporaries of killed merges take disk space
        remove_stale_temporaries_of(target + ending)
    with publish(target + ".idx", options) as file:
        with SourceWatch([*sources, *listed]) as watch:
            _write_index(indexes, layout, file)
        with concatenated(sources, target + ".bin", options):
            watch.check()  # index and tokens must have one version
            delete(target + ".idx", options)  # no reader may find the old index with the new `.bin`
        own = stat(target + ".bin", options)
    require_own(own, options)
    return layout


def require_replaceable(output: str, size: int, options: Options | None = None) -> None:
    """Raise UsageError if the files of the output exist and a merge must not replace them.

    A merge replaces a `.bin` with a matching `.idx`. It also replaces a `.bin` without an `.idx`, if its size is the
    `size` of the new `.bin`: a killed merge has written it.
    """
    target = dataset_prefix(output)
    index = {f"{target}.idx": _LOOKS}
    has_index = refuse_foreign(index, options, kind="the index of a dataset", remedy="or give another output")
    with suppress(SourceNotFoundError):
        found = stat(target + ".bin", options).size
        if found != size and not (has_index and _fits(MegatronIndex(target + ".idx", options), found)):
            raise UsageError(
                f"{target}.bin: expected no file, or a dataset with its .idx, which is replaced; "
                "found another file: move it away, or give another output"
            )


def _fits(index: MegatronIndex, size: int) -> bool:
    try:
        index.check_ends(size)
    except IndexMismatchError:
        return False
    finally:
        index.close()
    return True


def _is_same(target: str, place: str) -> bool:
    """Return whether two prefixes name the same dataset, also through links to its folder or files."""
    if target == place or not (is_local(target) and is_local(place)):
        return target == place
    with suppress(OSError):  # one of them does not exist
        return os.path.samefile(target + ".bin", place + ".bin")
    return False


def _open(prefix: str, options: Options | None) -> tuple[FileInfo, FileInfo, MegatronIndex]:
    """Return the properties of the two files of a part, and its index, after a check that the index fits the `.bin`."""
    data, listed = stat(prefix + ".bin", options), stat_index(prefix, options)
    index = MegatronIndex(listed.url, options, listed=listed)
    index.check_ends(data.size)
    index.close()
    return data, listed, index


def _merged_layout(indexes: Sequence[MegatronIndex]) -> Layout:
    first = indexes[0]
    sequences = documents = 0
    with_modes: dict[bool, MegatronIndex] = {}
    for index in indexes:
        layout = index.layout
        if layout.dtype != first.layout.dtype:
            raise UsageError(
                f"{index.url} holds {layout.dtype.name}, and {first.url} {first.layout.dtype.name}; merge datasets of "
                "one dtype, or tokenize the others again"
            )
        if layout.sequences:  # a part without sequences fits both kinds
            with_modes.setdefault(layout.modes, index)
        sequences += layout.sequences
        documents += layout.documents
    if len(with_modes) == 2:
        raise UsageError(
            f"{with_modes[True].url} has modes, {with_modes[False].url} has none; merge only datasets with modes, or "
            "only datasets without"
        )
    dtype_code(first.layout.dtype)  # raises for dtypes of fairseq that Megatron does not have
    return Layout(first.layout.dtype, sequences, documents + 1, modes=True in with_modes)


def _write_index(indexes: Sequence[MegatronIndex], layout: Layout, file: BinaryIO) -> None:
    writer = IndexWriter(file, layout)
    before = 0
    for index in map_ahead(_load, indexes, _AHEAD):
        sequences, documents = index.layout.sequences, index.layout.documents
        place = end = 0
        for start in range(0, sequences, BLOCK):
            rows = index.rows(start, min(start + BLOCK, sequences))
            place = index.check_rows(rows, start, place)
            writer.add_sequences(rows.lengths, rows.modes)
        for start in range(0, documents, BLOCK):
            ends = index.document_ends(start, min(start + BLOCK, documents))
            end = index.check_document_ends(ends, start, end)
            writer.add_documents(ends + before)
        before += sequences
        index.close()


def _load(index: MegatronIndex) -> MegatronIndex:
    if index.layout.size <= _LOAD:
        index.load()
    return index
