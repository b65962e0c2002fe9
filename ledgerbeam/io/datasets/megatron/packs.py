"""Packs: sequences of one length, as lists of ranges of the documents of Megatron datasets. Tokens are not copied.

A folder of packs has Arrow IPC files and a catalog, `_packs.arrow`. A row of a file is a pack. docs/packs.md describes
the columns. Files are not compressed, so a local file is mapped, and any pack of it is read without a copy.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from hashlib import blake2b
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from blake3 import blake3
from numpy.typing import DTypeLike, NDArray

from ledgerbeam.errors import ChangedSourceError, SourceError, SourceNotFoundError, UsageError
from ledgerbeam.io import native
from ledgerbeam.io.datasets.megatron.index import MappedTokens, RangedTokens, Tokens, map_file
from ledgerbeam.io.index.reader import numbers_of
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.files import read_bytes
from ledgerbeam.io.storage.publish import publish_bytes
from ledgerbeam.io.storage.stat import FileInfo, require_listed, stat
from ledgerbeam.io.storage.urls import canonical_url, is_local

CATALOG = "_packs.arrow"
FIELDS = ("tokens", "positions", "segments", "cu_seqlens", "documents", "starts", "dataset")
_METADATA = b"ledgerbeam.packs"
_OPEN = {True: 64, False: 16}  # most open files of packs: local ones are mapped, others are in memory
_REQUEST_COST = 1 << 16  # bytes that take as long to read as a request to a store
_PIECE = pa.struct(
    [
        ("document", pa.int64()),
        ("start", pa.int32()),
        ("stop", pa.int32()),
        ("length", pa.int32()),  # of the document
        ("offset", pa.int64()),  # of the token `start` in the `.bin`, in tokens
    ]
)
_SCHEMA = pa.schema([("tokens", pa.int32()), ("pieces", pa.list_(_PIECE))])
_ROWS = pa.schema(
    [
        ("file", pa.binary()),
        ("packs", pa.int64()),
        ("checksum", pa.string()),
        ("source", pa.binary()),
        ("version", pa.string()),
        ("size", pa.int64()),  # of the `.bin` in bytes
        ("first", pa.int64()),  # number of the first document of the range that the file packs
    ]
)


class Pieces(NamedTuple):
    """The pieces of packs, pack after pack: ranges of documents, as arrays of shape `(pieces,)`."""

    bounds: NDArray[np.integer[Any]]  # first piece of each pack, and the number of pieces: shape `(packs + 1,)`
    documents: NDArray[np.int64]
    starts: NDArray[np.int32]
    stops: NDArray[np.int32]
    lengths: NDArray[np.int32]  # of the documents, with their end-of-document token
    offsets: NDArray[np.int64]  # of the first tokens in the `.bin`, in tokens

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @property
    def tokens(self) -> NDArray[np.int32]:
        """Number of tokens of each pack, without padding."""
        found = np.add.reduceat(self.stops - self.starts, self.bounds[:-1]) if len(self) else self.stops[:0]
        return found.astype(np.int32)


def encode_packs(pieces: Pieces, facts: Mapping[str, Any]) -> bytes:
    """Return packs as an Arrow IPC file with `facts` as metadata: length, end-of-document token, dataset and dtype."""
    values = pa.StructArray.from_arrays(
        [pa.array(column, field.type) for column, field in zip(pieces[1:], _PIECE, strict=True)], fields=list(_PIECE)
    )
    lists = pa.ListArray.from_arrays(pa.array(pieces.bounds, pa.int32()), values, type=_SCHEMA.field("pieces").type)
    return _arrow_bytes(pa.table([pa.array(pieces.tokens), lists], schema=_SCHEMA), facts)


def write_pack_catalog(
    folder: str, rows: Iterable[tuple[bytes, int, str, bytes, str, int, int]], options: Options | None
) -> list[str]:
    """Write the catalog of a folder of packs, and return its URL in a list.

    A row is the name of a file, its number of packs and checksum, the URL, version and size of its dataset, and the
    number of its first document.
    """
    listed = list(rows)
    facts = _PackFile(read_bytes(f"{folder}/{_decoded(listed[0][0])}", options), folder).facts
    table = pa.table([pa.array(column) for column in zip(*listed, strict=True)], schema=_ROWS)
    publish_bytes(f"{folder}/{CATALOG}", _arrow_bytes(table, {"length": facts["length"], "eod": facts["eod"]}), options)
    return [f"{folder}/{CATALOG}"]


def packed_ranges(folder: str, options: Options | None) -> dict[str, tuple[list[int], int]]:
    """Return how datasets were packed into a folder: first document of each range, and size of the `.bin` at that time.

    Datasets are named by the URL of their `.bin`. The result is empty if the folder has no catalog.
    """
    url = f"{folder}/{CATALOG}"
    try:
        rows, _ = _read_arrow(read_bytes(url, options), url)
        columns = [rows.column(name).to_pylist() for name in ("source", "first", "size")]
    except SourceNotFoundError:
        return {}
    except (SourceError, KeyError) as error:
        raise SourceError(
            f"{url}: it does not say how a dataset that has changed was packed ({error}); restore it, or delete it to "
            "pack all documents of this dataset anew"
        ) from error
    found: dict[str, tuple[list[int], int]] = {}
    for source, first, size in zip(*columns, strict=True):
        found.setdefault(_decoded(source), ([], size))[0].append(first)
    return found


def _arrow_bytes(table: pa.Table, facts: Mapping[str, Any]) -> bytes:
    data = pa.BufferOutputStream()
    table = table.replace_schema_metadata({_METADATA: json.dumps(facts).encode()})
    with pa.ipc.new_file(data, table.schema) as writer:
        writer.write_table(table)
    return data.getvalue().to_pybytes()


def _read_arrow(data: bytes | memoryview, url: str) -> tuple[pa.RecordBatch, dict[str, Any]]:
    try:
        reader = pa.ipc.open_file(pa.py_buffer(data))
        return reader.get_batch(0), json.loads(reader.schema.metadata[_METADATA])
    except (pa.ArrowInvalid, KeyError, TypeError, ValueError) as error:
        raise SourceError(f"{url}: expected a file of packs ({error}); run the same ledgerbeam pack again") from error


class _PackFile:
    def __init__(self, data: bytes | memoryview, url: str) -> None:
        rows, self.facts = _read_arrow(data, url)
        lists = rows.column("pieces")
        self.tokens: NDArray[np.int32] = rows.column("tokens").to_numpy()
        self.pieces = Pieces(lists.offsets.to_numpy(), *(lists.values.field(field.name).to_numpy() for field in _PIECE))

    @cached_property
    def span(self) -> tuple[int, int]:
        """The first token in the `.bin` of all its packs, and the one after the last."""
        pieces = self.pieces
        ends = pieces.offsets + pieces.stops - pieces.starts
        if self.facts["eod"] is not None:
            ends -= pieces.stops == pieces.lengths
        return int(pieces.offsets.min()), int(ends.max())


class PackReader:
    """Random access to packs. A pack is a dict of arrays; docs/packs.md describes them.

    Deterministic, picklable, safe to share between threads and to use after a fork. Only the catalog is read now. Files
    of packs and datasets are opened by the first read that needs them.

    Args:
        url: Folder of packs.
        options: Storage options of packs and datasets.
        fields: Names of the arrays to return.
        dtype: Dtype of `tokens`.
        pad: Token after the last document of a pack.
        datasets: New folder of the datasets, if they were moved. Their paths below it are as below the base of the job,
            and only sizes are compared. By default the datasets are where they were when the packs were made.

    Raises:
        SourceNotFoundError: The folder has no catalog: it has no packs, or its job is not complete.
        UsageError: A name in `fields` is unknown, `dtype` is not of integers, or cannot hold `pad`.
    """

    def __init__(
        self,
        url: str,
        options: Options | None = None,
        *,
        fields: Sequence[str] = FIELDS,
        dtype: DTypeLike = np.int64,
        pad: int = 0,
        datasets: str | None = None,
    ) -> None:
        self.url = canonical_url(url).rstrip("/")
        self.options = options
        self.fields = (fields,) if isinstance(fields, str) else tuple(fields)
        try:
            self.dtype = np.dtype(dtype).newbyteorder("=")
            np.iinfo(self.dtype)
        except (TypeError, ValueError):
            raise UsageError(f"{self.url}: expected a dtype of integers, found {dtype!r}") from None
        self._require_token(pad, "pad")
        self.pad = self.dtype.type(pad)
        self.datasets = None if datasets is None else canonical_url(datasets).rstrip("/")
        if not self.fields or not {*FIELDS}.issuperset(self.fields):
            raise UsageError(f"{self.url}: expected fields of {', '.join(FIELDS)}, found {fields!r}")
        try:
            data = read_bytes(f"{self.url}/{CATALOG}", options)
        except SourceNotFoundError as error:
            raise SourceNotFoundError(
                f"{self.url}: expected a folder of packs, with the file {CATALOG}, found none; give the output of a "
                "complete ledgerbeam pack of documents with tokens"
            ) from error
        rows, facts = _read_arrow(data, f"{self.url}/{CATALOG}")
        self.length: int = facts["length"]
        self.eod: int | None = facts["eod"]
        if self.eod is not None:
            self._require_token(self.eod, "end-of-document token")
        self.version = blake2b(data, digest_size=16).hexdigest()
        """Hash of the catalog, which covers all packs and the versions of their datasets."""
        self._files = [f"{self.url}/{_decoded(name)}" for name in rows.column("file").to_pylist()]
        self._checksums: list[str] = rows.column("checksum").to_pylist()
        self._known: dict[int, FileInfo] = {}  # local files with their checksums
        self.blocks: list[int] = rows.column("packs").to_pylist()
        self._ends = np.cumsum(self.blocks, dtype=np.int64)
        sources = [_decoded(name) for name in rows.column("source").to_pylist()]
        self.sources = list(dict.fromkeys(sources))
        """URLs of the datasets as they were when the packs were made; `dataset` of a pack is a place in this list."""
        numbers = {source: number for number, source in enumerate(self.sources)}
        self.dataset_of = np.array([numbers[source] for source in sources], np.int64)
        """For each file of packs, the place of its dataset in `sources`."""
        self._held = 0
        self.close()

    def __repr__(self) -> str:
        return f"PackReader({self.url!r})"

    def _require_token(self, token: int, what: str) -> None:
        """Raise UsageError for a token that the dtype cannot hold."""
        span = np.iinfo(self.dtype)
        if not isinstance(token, (int, np.integer)) or not span.min <= token <= span.max:
            raise UsageError(f"{self.url}: expected as {what} a number that {self.dtype} can hold, found {token!r}")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, **dict.fromkeys(("_file", "_dataset", "_block"))}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.close()

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, number: int, /) -> dict[str, Any]:
        return self.read_many([number])[0]

    def hold(self, blocks: int) -> None:
        """Keep the tokens of this many files of packs in memory, if the datasets are in a store."""
        self._held = blocks
        self.close()

    def sizes(self, numbers: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of tokens of packs, without padding. No tokens are read."""
        found = np.empty(len(numbers), np.int64)
        for file, places, rows in self._by_file(numbers_of(numbers, len(self), self.url, "pack")):
            found[places] = self._file(file).tokens[rows]
        return found

    def read_many(self, indices: Sequence[int] | NDArray[np.int64]) -> list[dict[str, Any]]:
        """Read packs by number, in any order; negative ones count from the end. Nearby ranges share a request.

        The rows of an array of a call are views of one array of shape `(packs, length)`.

        Raises:
            ChangedSourceError: A dataset has changed since the packs were made.
            IndexError: There is no such pack.
        """
        numbers = numbers_of(indices, len(self), self.url, "pack")
        return _ReadPacks(self, numbers).items() if len(numbers) else []

    def pieces_of(self, numbers: NDArray[np.int64]) -> tuple[Pieces, NDArray[np.int64]]:
        """Return the pieces of packs, in the order of `numbers`, and the file of each pack."""
        files = self._ends.searchsorted(numbers, "right")
        order, parts, counts = [], [], np.empty(len(numbers), np.int64)
        for file, places, rows in self._by_file(numbers):
            pieces = self._file(file).pieces
            first, stop = pieces.bounds[rows].astype(np.int64), pieces.bounds[rows + 1]
            counts[places] = stop - first
            wanted = _ranges(first, stop - first)
            parts.append([column[wanted] for column in pieces[1:]])
            order.append(places)
        columns: list[Any] = [np.concatenate(column) for column in zip(*parts, strict=True)]
        if len(order) > 1:  # from the order of files to that of the packs
            read = np.concatenate(order)
            first = np.empty(len(numbers), np.int64)
            first[read] = np.cumsum(counts[read]) - counts[read]
            columns = [column[_ranges(first, counts)] for column in columns]
        return Pieces(np.concatenate(([0], np.cumsum(counts))), *columns), files

    def copy_tokens(
        self, into: NDArray[Any], places: NDArray[np.int64], files: NDArray[np.int64], ranges: NDArray[np.int64]
    ) -> None:
        """Copy ranges of tokens, each from the dataset of a file of packs, to places of an array.

        Args:
            into: The array, of one dimension.
            places: First element of each range in it.
            files: Number of the file of packs of each range.
            ranges: First token of each range in the `.bin`, and the one after the last: shape `(2, ranges)`.
        """
        datasets = self.dataset_of[files]
        for number in np.unique(datasets).tolist():
            of_it = np.flatnonzero(datasets == number)
            tokens, width = self._dataset(number)
            if isinstance(tokens, MappedTokens):
                copy_ranges(tokens.array, ranges[:, of_it], into, places[of_it])
                continue
            for file, count in Counter(files[of_it].tolist()).items():
                first, stop = self._file(file).span
                # Requests for many ranges would take longer than one of all tokens.
                if self._held or count * _REQUEST_COST >= (stop - first) * width:
                    held = of_it[files[of_it] == file]
                    copy_ranges(self._block(file), ranges[:, held] - first, into, places[held])
                    of_it = np.setdiff1d(of_it, held, assume_unique=True)
            parts = tokens.many(*(ranges[:, of_it] * width))
            for place, part in zip(places[of_it].tolist(), parts, strict=True):
                into[place : place + len(part)] = part

    def _read_block(self, file: int) -> Tokens:
        """Return all tokens of the documents of a file of packs, whose dataset is in a store."""
        tokens, width = self._dataset(int(self.dataset_of[file]))
        first, stop = self._file(file).span
        return tokens.whole(first * width, stop * width)

    def close(self) -> None:
        """Close all files; a later read opens them again."""
        # Caches without a lock, which a fork could copy locked.
        self._file = lru_cache(_OPEN[is_local(self.url)])(self._open_file)
        self._dataset = lru_cache(_OPEN[True])(self._open_dataset)
        self._block = lru_cache(max(1, self._held))(self._read_block)

    def _by_file(self, numbers: NDArray[np.int64]) -> Iterable[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """Yield each file, the places of its packs in `numbers`, and their rows in the file."""
        files = self._ends.searchsorted(numbers, "right")
        order = np.argsort(files, kind="stable")
        found = files[order]
        for start, stop in pairwise(np.flatnonzero(np.diff(found, prepend=-1, append=-1)).tolist()):
            places, file = order[start:stop], int(found[start])
            yield file, places, numbers[places] - (int(self._ends[file - 1]) if file else 0)

    def _open_file(self, number: int) -> _PackFile:
        url = self._files[number]
        found = stat(url) if is_local(url) else None  # before the file is mapped: another one may take its place
        data = map_file(url) if is_local(url) else read_bytes(url, self.options)
        if found is None or self._known.get(number) != found:
            if f"blake3:{blake3(data).digest()[:16].hex()}" != self._checksums[number]:
                raise ChangedSourceError(
                    f"{url}: changed since the packs were opened; open them again, or if that does not help, run the "
                    "same ledgerbeam pack again"
                )
            if found is not None:
                self._known[number] = found
        return _PackFile(data, url)

    def _open_dataset(self, number: int) -> tuple[Any, int]:
        """Return the tokens of a dataset, `MappedTokens` or `RangedTokens`, and the size of a token in bytes."""
        facts = self._file(int((self.dataset_of == number).argmax())).facts
        dtype = np.dtype(facts["dtype"])
        if not np.can_cast(dtype, self.dtype):
            raise UsageError(f"{self.sources[number]}: {self.dtype} cannot hold its tokens, of {dtype}; give dtype")
        listed = self._listed(facts)
        if is_local(listed.url):
            return MappedTokens(listed.url, dtype), dtype.itemsize
        return RangedTokens(listed.url, dtype, self.options, listed.size, listed), dtype.itemsize

    def _listed(self, facts: Mapping[str, Any]) -> FileInfo:
        """Return the properties of the `.bin` of a dataset. ChangedSourceError: it is not the dataset of the packs."""
        remedy = (
            "run the same ledgerbeam pack again, or restore the dataset; if it was removed on purpose, pack the others "
            "into another folder"
        )
        if self.datasets is not None:
            found = stat(f"{self.datasets}/{facts['path']}", self.options)
            if found.size != facts["size"]:
                raise ChangedSourceError(
                    f"{found.url}: expected the dataset of the packs, with {facts['size']} bytes, found {found.size}; "
                    f"{remedy}"
                )
            return found
        listed = FileInfo(facts["source"], facts["size"], facts["version"])
        index = FileInfo(facts["source"].removesuffix(".bin") + ".idx", *facts["index"])
        try:
            require_listed(index, self.options)
            return require_listed(listed, self.options)
        except ChangedSourceError as error:
            raise ChangedSourceError(
                f"{self.url}: its packs are of another version of a dataset: {error}; {remedy}. If it was only moved, "
                "give its place as datasets"
            ) from error


class _ReadPacks:
    def __init__(self, reader: PackReader, numbers: NDArray[np.int64]) -> None:
        self._reader = reader
        self._pieces, self._files = reader.pieces_of(numbers)
        self._counts = np.diff(self._pieces.bounds)
        self._sizes = (self._pieces.stops - self._pieces.starts).astype(np.int64)
        ends = np.cumsum(self._sizes)
        before = np.concatenate(([0], ends))[self._pieces.bounds[:-1]]
        self._stops = ends - np.repeat(before, self._counts)  # of the pieces in their packs
        self._totals = np.concatenate(([0], ends))[self._pieces.bounds[1:]] - before

    def items(self) -> list[dict[str, Any]]:
        """Return the packs as dicts of arrays."""
        made = {name: getattr(self, f"_{name}")() for name in self._reader.fields}
        return [dict(zip(made, values, strict=True)) for values in zip(*made.values(), strict=True)]

    def _tokens(self) -> NDArray[Any]:
        reader, pieces = self._reader, self._pieces
        found = np.empty((len(self._counts), reader.length), reader.dtype)
        flat = found.reshape(-1)
        for row in np.flatnonzero(self._totals < reader.length).tolist():
            found[row, self._totals[row] :] = reader.pad
        rows = np.repeat(np.arange(len(self._counts)) * reader.length, self._counts)
        places, sizes = rows + self._stops - self._sizes, self._sizes
        if reader.eod is not None:
            have_end = pieces.stops == pieces.lengths
            flat[(rows + self._stops - 1)[have_end]] = reader.eod
            sizes = sizes - have_end
        # Pieces that follow each other both in the dataset and in the pack are one range.
        ends = pieces.offsets + sizes
        follow = (pieces.offsets[1:] == ends[:-1]) & (places[1:] == places[:-1] + sizes[:-1]) & (rows[1:] == rows[:-1])
        first = np.flatnonzero(np.concatenate(([True], ~follow)))
        last = np.append(first[1:], len(rows)) - 1
        files = np.repeat(self._files, self._counts)[first]
        reader.copy_tokens(flat, places[first], files, np.stack([pieces.offsets[first], ends[last]]))
        return found

    @cached_property
    def _edges(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The ends and the sizes of the pieces, with padding as one more piece, and the first piece of each pack."""
        counts = self._counts + (self._totals < self._reader.length)
        first = np.concatenate(([0], np.cumsum(counts)))
        ends = np.full(int(first[-1]), self._reader.length, np.int64)
        ends[_ranges(first[:-1], self._counts)] = self._stops
        starts = np.roll(ends, 1)
        starts[first[:-1]] = 0
        return ends, ends - starts, first

    def _positions(self) -> NDArray[np.int32]:
        _, sizes, _ = self._edges
        found = np.arange(int(sizes.sum()), dtype=np.int32)
        found -= np.repeat((np.cumsum(sizes) - sizes).astype(np.int32), sizes)
        return found.reshape(-1, self._reader.length)

    def _segments(self) -> NDArray[np.int32]:
        ends, sizes, first = self._edges
        numbers = np.arange(len(ends), dtype=np.int32) - np.repeat(first[:-1], np.diff(first)).astype(np.int32)
        numbers[first[1:][self._totals < self._reader.length] - 1] = -1
        return np.repeat(numbers, sizes).reshape(-1, self._reader.length)

    def _cu_seqlens(self) -> list[NDArray[np.int32]]:
        ends, _, first = self._edges
        found = np.insert(ends, first[:-1], 0).astype(np.int32)
        return np.split(found, first[1:-1] + np.arange(1, len(first) - 1))

    def _documents(self) -> list[NDArray[np.int64]]:
        return np.split(self._pieces.documents, self._pieces.bounds[1:-1])

    def _starts(self) -> list[NDArray[np.int32]]:
        return np.split(self._pieces.starts, self._pieces.bounds[1:-1])

    def _dataset(self) -> list[int]:
        found: list[int] = self._reader.dataset_of[self._files].tolist()
        return found


def _ranges(starts: NDArray[np.integer[Any]], counts: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Return the numbers `starts[i], ..., starts[i] + counts[i] - 1` of each i, one after the other."""
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(starts - (ends - counts), counts)


def copy_ranges(tokens: NDArray[Any], ranges: NDArray[np.int64], into: NDArray[Any], places: NDArray[np.int64]) -> None:
    """Copy ranges of tokens to places of an array."""
    if native.compiled is not None:
        kinds = [array.itemsize * (-1 if array.dtype.kind == "i" else 1) for array in (tokens, into)]
        if native.compiled.copy_tokens(tokens, into, (kinds[0], kinds[1]), np.ascontiguousarray(ranges), places):
            return
    ends = places + ranges[1] - ranges[0]
    for place, end, start, stop in zip(places.tolist(), ends.tolist(), *ranges.tolist(), strict=True):
        into[place:end] = tokens[start:stop]


def _decoded(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
