"""Read LIT datasets: samples by number, as tuples of decoded modalities."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

import numpy as np

from ledgerbeam.errors import ArchiveError, IndexMismatchError, LedgerbeamError, RecordError, UsageError
from ledgerbeam.io.datasets.lit.codecs import Decoder, decoder_of
from ledgerbeam.io.datasets.lit.index import CONFIG, load_members, read_config, select, without_dots
from ledgerbeam.io.index.reader import NumberedRecords
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import FileInfo, stat_many
from ledgerbeam.io.storage.urls import canonical_url, is_local, join_url
from ledgerbeam.io.tar.headers import BLOCK, next_member, plain_file

_FEW = 8  # up to this number, records of a local dataset are read one by one, which is faster than arrays


class LitDataset(NumberedRecords[Any]):
    """The samples of one fold that have all requested modalities.

    An item is a tuple of the values of the modalities in the requested order, or the result of `map`. Samples are in
    the order of the shards' names, then of their offsets. It is a map-style dataset for torch, whose loaders read a
    batch at once (`__getitems__`). Deterministic, safe to share between threads and to use after a fork, and picklable
    if its decoders and mappings are. Memory: for each member 16 bytes and its key.

    Args:
        root: The folder: a path, or a URL of any store.
        fold: A fold such as `train` or `val`.
        modalities: Modalities such as `("jpg", "semantic.seg16")`. Default: those of the configuration.
        decoders: For a modality, a function of bytes or the name of a codec. Default: the codec of its last part.
            Pickles are decoded only for `"PKL"`.
        config: Name of the configuration in the folder.

    Attributes:
        url: The folder, canonical.
        modalities: The modalities of an item, without leading dots.
        metadata: Metadata of the configuration.

    Raises:
        UsageError: The fold or a modality does not exist, no modalities are given, no sample has all of them, or a
            modality has no codec, or has pickles without the decoder `"PKL"`.
        SourceNotFoundError: The dataset or a shard does not exist; also StorageError.
        SourceError: The configuration is damaged. IndexMismatchError: the index is damaged or older than a shard, or
            the number of samples differs from `num_<fold>`. Without an index the shards are scanned, and ArchiveError
            names a damaged one.
    """

    def __init__(
        self,
        root: str,
        fold: str = "train",
        modalities: Sequence[str] | None = None,
        *,
        decoders: Mapping[str, str | Decoder] | None = None,
        options: Options | None = None,
        config: str = CONFIG,
    ) -> None:
        self.url = canonical_url(root)
        self.fold = fold
        self.options = options
        found = read_config(join_url(self.url, config), options)
        names = found.shards(fold)
        self.metadata = found.metadata
        self.modalities = found.modalities if modalities is None else without_dots(modalities)
        if not self.modalities or isinstance(modalities, str):
            raise UsageError(f"{self.url}: expected a list of at least one modality, found {modalities!r}")
        overrides = {name.removeprefix("."): decoder for name, decoder in (decoders or {}).items()}
        if unknown := sorted(set(overrides) - set(self.modalities)):
            raise UsageError(f"{self.url}: found a decoder for {unknown[0]!r}; expected one of {self.modalities}")
        shards = stat_many([join_url(self.url, name) for name in names], options)
        self._shards = [shard.url for shard in shards]
        members = load_members(self.url, fold, shards, found, options)
        self._selection = select(members, shards, self.modalities, f"{self.url}: the fold {fold!r}")
        self._decoders = [decoder_of(name, overrides.get(name), self.url) for name in self.modalities]
        self._mappings: list[Callable[[Any], Any]] = []
        self._readers = [RangeReader(shard, options) for shard in self._shards]

    def __repr__(self) -> str:
        return f"LitDataset({self.url!r}, {self.fold!r}, {self.modalities!r}, {len(self)} samples)"

    def __len__(self) -> int:
        return len(self._selection.keys)

    @property
    def files(self) -> list[FileInfo]:
        """The current properties of all files of the dataset, from one request each."""
        return stat_many(self._shards, self.options)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Read a batch at once; loaders of torch call this."""
        return self.read_many(indices)

    def key(self, index: int) -> str:
        """Return the key of a sample; raises IndexError if the number is out of range."""
        return self._selection.keys[self._number(index)]

    def map(self, function: Callable[[Any], Any]) -> Self:
        """Apply a function to each item: a tuple, or the result of earlier functions. Return this dataset."""
        self._mappings.append(function)
        return self

    def map_tuple(self, *functions: Callable[[Any], Any]) -> Self:
        """Apply functions to the values of each item, one to each value. Return this dataset, as the published package.

        Raises:
            UsageError: The number of functions differs from the number of modalities.
        """
        if len(functions) != len(self.modalities):
            raise UsageError(f"{self.url}: expected a function for each of {self.modalities}, found {len(functions)}")
        self._mappings.append(partial(_apply_each, functions))
        return self

    def map_all(self, function: Callable[[Any], Any]) -> Self:
        """Apply the same function to each value of the items. Return this dataset."""
        return self.map_tuple(*[function] * len(self.modalities))

    def close(self) -> None:
        for reader in self._readers:
            reader.close()

    def _read(self, records: list[int]) -> list[Any]:
        if len(records) < _FEW and is_local(self.url):
            return [self._read_one(record) for record in records]
        rows = np.array(records, np.int64)
        shards = self._selection.shards[rows]
        items: list[Any] = [None] * len(records)
        for shard in dict.fromkeys(shards.tolist()):
            positions = np.flatnonzero(shards == shard)
            starts, stops = (ends[rows[positions]].ravel() for ends in (self._selection.starts, self._selection.stops))
            contents = iter(self._readers[shard].read_many(starts, stops))
            for position in positions.tolist():
                items[position] = self._item(records[position], shard, contents)
        return items

    def _read_one(self, record: int) -> Any:
        shard = int(self._selection.shards[record])
        starts, stops = self._selection.starts[record].tolist(), self._selection.stops[record].tolist()
        return self._item(record, shard, map(self._readers[shard].read, starts, stops))

    def _item(self, record: int, shard: int, contents: Any) -> Any:
        item: Any = tuple(
            self._value(record, shard, column, data)
            for column, data in zip(range(len(self.modalities)), contents, strict=False)
        )
        for function in self._mappings:
            item = function(item)
        return item

    def _value(self, record: int, shard: int, column: int, data: bytes) -> Any:
        content = self._content(record, shard, column, data)
        try:
            return self._decoders[column](content)
        except UsageError:
            raise
        except Exception as error:  # a decoder may raise any error on foreign bytes
            name = f"{self._selection.keys[record]}.{self.modalities[column]}"
            at = self._selection.starts[record, column]
            raise RecordError(
                f"{self._shards[shard]}: sample {record}: the member {name!r} at byte {at} cannot be decoded: "
                f"{error!r:.300}"
            ) from error

    def _content(self, record: int, shard: int, column: int, data: bytes) -> bytes:
        """Return the content of a member from bytes that start with its header."""
        start = int(self._selection.starts[record, column])
        expected = f"{self._selection.keys[record]}.{self.modalities[column]}"
        url = self._shards[shard]
        plain = plain_file(data[:BLOCK]) if len(data) >= BLOCK else None
        if plain is not None and plain[1] == expected.encode("utf-8", "surrogateescape"):
            content = data[BLOCK : BLOCK + plain[0]]
            if len(content) == plain[0]:
                return content
        try:
            member = next_member(lambda at, size: data[at - start : at - start + size], start, url)
        except ArchiveError as error:
            raise self._mismatch(url, expected, start, str(error)) from error
        if member is None or member.name != expected or not member.regular or member.sparse:
            found = "zeros" if member is None else f"{member.name!r}"
            raise self._mismatch(url, expected, start, f"found {found}")
        content = data[member.data_offset - start : member.data_offset - start + member.size]
        if len(content) != member.size:
            raise self._mismatch(url, expected, start, f"found its end at byte {member.end}, inside another member")
        return content

    def _mismatch(self, url: str, name: str, start: int, what: str) -> LedgerbeamError:
        return IndexMismatchError(
            f"{url}: expected the member {name!r} at byte {start}, {what}. The index is stale or the shard is damaged; "
            f"write a new index with write_lit_index({self.url!r}, {self.fold!r})"
        )


def _apply_each(functions: Sequence[Callable[[Any], Any]], item: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(function(value) for function, value in zip(functions, item, strict=True))
