"""Nodes that read records through an index."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ledgerbeam.errors import RecordError, UsageError
from ledgerbeam.io.columns.files import ColumnFiles
from ledgerbeam.io.compression.streams import is_pipe, split_compression
from ledgerbeam.io.formats.format import CACHE_BYTES
from ledgerbeam.io.formats.registry import recognize
from ledgerbeam.io.idxpack.reader import IndexPack
from ledgerbeam.io.index.file import IndexFile, IndexLocation, Rule
from ledgerbeam.io.index.reader import IndexedRecords
from ledgerbeam.io.lines.jsonl import JsonlReader
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.fetch import require_ranges
from ledgerbeam.io.storage.stat import FileInfo
from ledgerbeam.io.storage.urls import canonical_url, is_local
from ledgerbeam.io.tar.grouping import Grouping
from ledgerbeam.io.tar.reader import TarReader
from ledgerbeam.iterators.identity import describe_source
from ledgerbeam.iterators.node import Positions
from ledgerbeam.iterators.ordered import LARGEST_BLOCK, WINDOW, OrderedNode, ShuffleBy
from ledgerbeam.iterators.tokens import MISSING, Token, normalize_graph_token
from ledgerbeam.sources.listing import stat_source

_FIRST_REMOTE_BLOCK = 512  # a request costs as much as a few hundred records


class RecordReader(Protocol):
    """A reader or sequence for `Records`.

    Optional: `read_many(numbers)` reads many records at once; a reader also has its `url`, and a reader of several
    files has `files`, a list of `FileInfo`.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> Any: ...


@runtime_checkable
class BlockReader(Protocol):
    """A reader of records in blocks, for a shuffle by blocks. A block is read as a whole."""

    @property
    def blocks(self) -> Sequence[int]:
        """Number of records of each block, in order."""

    def hold(self, blocks: int) -> None:
        """Keep at least this many blocks in memory, the most recently used ones."""


class Records(OrderedNode):
    """The records of a reader with random access, or the items of a sequence. The tokens are their numbers.

    Args:
        records: A reader with `read_many(numbers)`, or a sequence of items.
        name: Name of the data in checkpoints; a checkpoint with another name is refused. Use a name that changes with
            the content. Default: a reader is identified by its `url`.
        shuffle: Whether to use a new order in each epoch. With `"blocks"` each block of a `BlockReader` is read once in
            a pass, and the records of `window` blocks are mixed.
        seed: Chooses the orders.
        window: Number of blocks in memory in a shuffle by blocks.

    Raises:
        UnsupportedShapeError: A shuffle by blocks of data without blocks.
        UsageError: There is neither a name nor a `url`.
    """

    is_indexed = True
    has_constant_time_access = True

    def __init__(
        self,
        records: RecordReader,
        name: str | None = None,
        *,
        shuffle: ShuffleBy = False,
        seed: int = 0,
        window: int = WINDOW,
    ) -> None:
        super().__init__(shuffle=shuffle, seed=seed, window=window)
        self.records: Any = records
        self.name = name
        self._infos: list[FileInfo] | None = None
        if name is None and not hasattr(records, "url"):
            raise UsageError("Records: the data has no url; pass a name, which identifies the data in checkpoints")
        self._hold()

    def __repr__(self) -> str:
        return f"{self._name}({self.name or getattr(self.records, 'url', None)!r})"

    def __len__(self) -> int:
        return len(self.records)

    @property
    def blocks(self) -> Sequence[int]:
        if not isinstance(self.records, BlockReader):
            return super().blocks
        return self.records.blocks

    def divide(self, shard: int, shards: int) -> None:
        super().divide(shard, shards)
        self._hold()

    def _hold(self) -> None:
        if self.shuffle == "blocks":
            lanes = max(1, min(self.window, sum(size > 0 for size in self.blocks)))
            self.records.hold(lanes // math.gcd(lanes, self._shard[1]))

    @property
    def record_bytes(self) -> float:
        if self.name is not None:
            return super().record_bytes
        return sum(info.size for info in self._files) / max(1, len(self))

    @property
    def first_block(self) -> int:
        return super().first_block if self.name is not None or is_local(self.records.url) else _FIRST_REMOTE_BLOCK

    @property
    def largest_block(self) -> int:
        # A shuffled local source is read in small pieces, so a large block needs little memory.
        in_pieces = self.shuffle is True and isinstance(self.records, IndexedRecords) and self.records.is_local
        return LARGEST_BLOCK if in_pieces else super().largest_block

    def release(self) -> None:
        close: Callable[[], None] | None = getattr(self.records, "close", None)
        if close is not None:
            close()

    @property
    def _selected(self) -> Positions | None:
        """The numbers of the selected records in their source; None if all records are read."""
        return getattr(self.records, "numbers", None)

    def tokens_of(self, numbers: Positions, epoch: int) -> list[Token]:
        selected = self._selected
        return super().tokens_of(numbers if selected is None else selected[numbers], epoch)

    def read_numbers(self, numbers: Positions, epoch: int | None = None) -> list[Any]:
        return self._read(numbers.tolist())

    def read_pieces(self, numbers: Positions) -> Iterator[list[Any]]:
        if isinstance(self.records, IndexedRecords) and type(self).read_numbers is Records.read_numbers:
            return self.records.read_pieces(numbers)
        return super().read_pieces(numbers)

    def read_many(self, tokens: Sequence[Token], epoch: int | None = None) -> list[Any]:
        return self._read([self._number(token) for token in tokens])

    def _read(self, numbers: list[int]) -> list[Any]:
        read_many: Callable[[Sequence[int]], list[Any]] | None = getattr(self.records, "read_many", None)
        return list(map(self.records.__getitem__, numbers)) if read_many is None else read_many(numbers)

    def parameters(self) -> dict[str, Any]:
        return {"data": self.describe_data(), **self.order_parameters()}

    def describe_data(self) -> dict[str, Any]:
        """Return a description of the data for checkpoints: the files with their versions, and the number of records.

        The number of records is included, because another index can divide the same file into other records.
        """
        if self.name is not None:
            return {"name": self.name, "size": len(self)}
        files = [describe_source(info) for info in self._files]
        described = files[0] if len(files) == 1 else {"url": self.records.url, "files": files}
        condition = {} if self._selected is None else self.records.parameters()
        return {**described, "records": len(self), **condition}

    @property
    def _files(self) -> list[FileInfo]:
        """The properties of the files that are read, as they were when this attribute was first used."""
        if self._infos is None:
            files: list[FileInfo] | None = getattr(self.records, "files", None)
            if files is None:
                listed: FileInfo | None = getattr(self.records, "listed", None)
                files = [listed or stat_source(str(self.records.url), getattr(self.records, "options", None))]
            self._infos = files
        return self._infos

    def _number(self, token: Token) -> int:
        try:
            number = operator.index(token)
        except TypeError as error:
            raise UsageError(f"{self!r}: expected a token that is a record's number, found {token!r}") from error
        if (selected := self._selected) is None:
            return number
        place = int(selected.searchsorted(number))
        if place == len(selected) or selected[place] != number:
            raise IndexError(f"{self!r}: record {number} is not selected")
        return place


class IndexedManifest(Records):
    """The decoded lines of a JSONL source with an index. Blank lines have a place and a number, but no item.

    Args:
        url: The source.
        index: The index, or its URL. Default: `<url>.idx`.
        options: Storage options.
        shuffle: Whether to use a new order of the whole source in each epoch, without a buffer.
        seed: Chooses the orders. The order of epoch 0 is that of lhotse with this seed.
        index_root: Folder tree that holds the indexes, as `--index-root` of ``ledgerbeam index``.
        index_rule: How `index_root` names indexes, as `--index-rule`.

    Raises:
        NotIndexableError: The source is a pipe, is on a web server without byte ranges, or has a compression other than
            gzip or seekable Zstandard; `Manifest` can stream it.
        IndexNotFoundError: The source has no index. `JsonlReader` lists the other errors.
    """

    def __init__(
        self,
        url: str,
        index: IndexFile | str | None = None,
        options: Options | None = None,
        *,
        shuffle: bool = False,
        seed: int = 0,
        index_root: str | None = None,
        index_rule: Rule = "scheme",
    ) -> None:
        index = _index_of(url, index, options, index_root, index_rule)
        super().__init__(JsonlReader(url, index, options), shuffle=shuffle, seed=seed)

    def read_numbers(self, numbers: Positions, epoch: int | None = None) -> list[Any]:
        return list(chain.from_iterable(self._pieces(numbers)))

    def read_pieces(self, numbers: Positions) -> Iterator[list[Any]]:
        if type(self).read_numbers is not IndexedManifest.read_numbers:  # a derived class has its own items
            return super().read_pieces(numbers)
        return self._pieces(numbers)

    def _pieces(self, numbers: Positions) -> Iterator[list[Any]]:
        if len(numbers) and (np.diff(numbers) == 1).all():
            first = int(numbers[0])
            items: list[Any] = self.records.read_span(first, first + len(numbers))
            if len(items) == len(numbers):
                yield items
                return
        yield from self._scattered(numbers)

    def _scattered(self, numbers: Positions) -> Iterator[list[Any]]:
        done = 0
        while done < len(numbers):
            try:
                for items in self.records.read_pieces(numbers[done:]):
                    done += len(items)
                    yield items
            except RecordError:
                yield [self._read_or_miss(int(numbers[done]))]
                done += 1

    def _read_or_miss(self, number: int) -> Any:
        try:
            return self.records[number]
        except RecordError:
            if self.records.raw(number).strip():
                raise
            return MISSING


class IndexedTar(Records):
    """The samples of a tar archive with an index.

    Args:
        url: The archive.
        index: The index, or its URL. Default: `<url>.idx`.
        options: Storage options.
        group: How members form samples; see `TarReader`.
        shuffle: Whether to use a new order in each epoch.
        seed: Chooses the orders.
        index_root: Folder tree that holds the indexes, as `--index-root` of ``ledgerbeam index``.
        index_rule: How `index_root` names indexes, as `--index-rule`.

    Raises:
        NotIndexableError: The archive is on a web server without byte ranges, or has a compression other than gzip or
            seekable Zstandard.
        IndexNotFoundError: The archive has no index. `TarReader` lists the other errors.
    """

    def __init__(
        self,
        url: str,
        index: IndexFile | str | None = None,
        options: Options | None = None,
        *,
        group: Grouping = "auto",
        shuffle: bool = False,
        seed: int = 0,
        index_root: str | None = None,
        index_rule: Rule = "scheme",
    ) -> None:
        index = _index_of(url, index, options, index_root, index_rule)
        super().__init__(TarReader(url, index, options, group=group), shuffle=shuffle, seed=seed)
        self.group: Grouping = group

    def parameters(self) -> dict[str, Any]:
        return {**super().parameters(), "group": self.group}


def _index_of(
    url: str, index: IndexFile | str | None, options: Options | None, root: str | None, rule: Rule
) -> IndexFile | str | None:
    """Return the location of the index of a source, after a check that the source can be read by position."""
    if split_compression(url).compression is not None or is_pipe(url):
        recognize(url).by_position()  # raises if the compression has no seek points
    url = canonical_url(url)
    require_ranges(url, options)
    if root is None:
        return index
    if index is not None:
        raise UsageError(f"{url}: expected index or index_root, found both; leave one out")
    return IndexFile(IndexLocation(root=root, rule=rule).url_for(url), options, source=url)


class IndexedParquet(Records):
    """The rows of Parquet or Arrow IPC files, as dicts. The tokens are their numbers across all files.

    A row is read with its row group. `shuffle=True` shuffles all rows together, so it reads a row group for almost
    every row, unless all row groups fit into `cache_bytes`. `shuffle="blocks"` reads each row group once.

    Args:
        urls: One file, or several in the order of their rows.
        columns: Names of the columns to read. Default: all.
        options: Storage options.
        shuffle: Whether to use a new order in each epoch. With `"blocks"` the row groups have a random order, `window`
            decoded row groups are in memory at once, and each in turn yields a random one of its rows.
        seed: Chooses the orders.
        window: Number of row groups that are mixed, preferably a multiple of the number of shards.
        cache_bytes: Limit of the decoded row groups in memory. A shuffle by blocks keeps `window` of them in any case.

    Raises:
        SourceError: A file is damaged or encrypted.
        UsageError: There is no file, or a file is neither Parquet nor Arrow or lacks a column.
    """

    records: ColumnFiles

    def __init__(
        self,
        urls: str | Sequence[str],
        columns: Sequence[str] = (),
        options: Options | None = None,
        *,
        shuffle: ShuffleBy = False,
        seed: int = 0,
        window: int = WINDOW,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        files = ColumnFiles([urls] if isinstance(urls, str) else urls, columns, options, cache_bytes=cache_bytes)
        super().__init__(files, shuffle=shuffle, seed=seed, window=window)

    @property
    def record_bytes(self) -> float:
        return self.records.size / max(1, len(self))

    def read_numbers(self, numbers: Positions, epoch: int | None = None) -> list[Any]:
        return self.records.read_many(numbers)

    def describe_data(self) -> dict[str, Any]:
        return {**super().describe_data(), "columns": list(self.records.columns)}


class PackedManifest(Records):
    """The records of a collection of an `.idxpack`, one index file of many sources.

    The tokens are those of lhotse: with `shuffle` numbers, else `(number of the source, number in the source)`.

    Args:
        url: The pack.
        key: The key of the collection (`collection_key`). Default: the key of the only collection in the pack.
        options: Storage options of the pack and its sources.
        shuffle: Whether to use a new order of the whole collection in each epoch, without a buffer.
        seed: Chooses the orders. The order of epoch 0 is that of lhotse with this seed.

    Raises:
        IndexMismatchError: The pack is damaged. `IndexPack.collection` lists the other errors.
    """

    def __init__(
        self,
        url: str,
        key: bytes | str | None = None,
        options: Options | None = None,
        *,
        shuffle: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(IndexPack(url, options).collection(key), shuffle=shuffle, seed=seed)

    @property
    def record_bytes(self) -> float:
        return float(self.records.size) / max(1, len(self))

    def tokens_of(self, numbers: Positions, epoch: int) -> list[Token]:
        if self.shuffle:
            return super().tokens_of(numbers, epoch)
        sources, inside = self.records.locate(numbers)
        return list(zip(sources.tolist(), inside.tolist(), strict=True))

    def read_many(self, tokens: Sequence[Token], epoch: int | None = None) -> list[Any]:
        return super().read_many([self._plain(normalize_graph_token(token)) for token in tokens], epoch)

    def parameters(self) -> dict[str, Any]:
        pack = self.records.pack
        data = {"size": len(self), "key": self.records.key.hex(), "layout": pack.layout_hash.hex()}
        return {"data": {**super().parameters()["data"], **data}, "shuffle": self.shuffle, "seed": self.seed}

    def _plain(self, token: Token) -> Token:
        if not isinstance(token, tuple):
            return token
        if len(token) != 2 or not all(isinstance(part, int) for part in token):
            raise UsageError(f"{self!r}: expected a token (number of source, number in source), found {token!r}")
        source, inside = token
        if not 0 <= source < len(self.records.ends):
            raise IndexError(f"{self!r}: there is no source {source}; expected one of {len(self.records.ends)} sources")
        number = inside + (int(self.records.ends[source - 1]) if source else 0)
        if not inside >= 0 or number >= int(self.records.ends[source]):
            raise IndexError(f"{self!r}: there is no record {inside} in source {source}")
        return number
