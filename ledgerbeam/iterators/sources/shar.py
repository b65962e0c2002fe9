"""The leaves over Shar folders."""

# ruff: noqa: D102 - what overrides a method of IteratorNode is described there

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from ledgerbeam.io.shar.reader import SharReader, find_shar
from ledgerbeam.io.shar.stream import stream_shar
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.stat import FileInfo, stat_many
from ledgerbeam.io.storage.urls import canonical_url
from ledgerbeam.iterators.identity import describe_source
from ledgerbeam.iterators.node import Positions
from ledgerbeam.iterators.sources.indexed import Records
from ledgerbeam.iterators.sources.streams import Manifest
from ledgerbeam.iterators.tokens import Token, pair_token

__all__ = ["IndexedShar", "Shar"]


class IndexedShar(Records):
    """The cuts of an indexed Shar folder with their fields. The tokens are `(number of the cut, epoch)`, as in lhotse.

    Args:
        folder: A local folder or URL.
        fields: Fields to read with the cuts. Default: all.
        options: Storage options.
        shuffle: Whether to use a new order of the whole folder in each epoch, without a buffer.
        seed: Chooses the orders. The first one is that of lhotse for the same seed.

    Raises:
        IndexNotFoundError: A shard has no index; also the other errors of `SharReader`.
    """

    def __init__(
        self,
        folder: str,
        fields: Sequence[str] | None = None,
        options: Options | None = None,
        *,
        shuffle: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(SharReader(folder, fields, options), shuffle=shuffle, seed=seed)

    def tokens_of(self, numbers: Positions, epoch: int) -> list[Token]:
        return [(number, epoch) for number in numbers.tolist()]

    def read_many(self, tokens: Sequence[Token], epoch: int | None = None) -> list[Any]:
        parts = [pair_token(token, self._name, "(number of the cut, epoch)") for token in tokens]
        return super().read_many([number for number, _ in parts], epoch)

    def describe_data(self) -> dict[str, Any]:
        return {**super().describe_data(), "fields": list(self.records.fields)}


class Shar(Manifest):
    """The cuts of a Shar folder with their fields, streamed from its beginning, plain or compressed, without an index.

    It can be saved. The time to continue is proportional to the position, as with `Manifest`; `IndexedShar` continues
    immediately.

    Args:
        folder: A local folder or URL, or the URL of a list of fields.
        fields: Fields to read with the cuts. Default: all.
        options: Storage options.

    Raises:
        SourceError: See `find_shar`; a read also raises the errors of `stream_shar`.
    """

    def __init__(self, folder: str, fields: Sequence[str] | None = None, options: Options | None = None) -> None:
        super().__init__(canonical_url(folder).rstrip("/"), options)
        self.shards = find_shar(self.url, options, fields, compressed=True)
        self._shards_found: dict[str, FileInfo] | None = None

    def records(self) -> Iterator[Any]:
        return stream_shar(self.shards, self.options, self._shards_as_found())

    def parameters(self) -> dict[str, Any]:
        return {
            "data": {"url": self.url, "shards": [describe_source(info) for info in self._shards_as_found().values()]}
        }

    def _shards_as_found(self) -> dict[str, FileInfo]:
        """Return what the shards were when they were first asked for, by URL."""
        if self._shards_found is None:
            urls = list(chain.from_iterable(self.shards.values()))
            self._shards_found = dict(zip(urls, stat_many(urls, self.options), strict=True))
        return self._shards_found
