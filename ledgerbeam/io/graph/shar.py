"""The leaf over Shar folders."""

# ruff: noqa: D102 - what overrides a method of IteratorNode is described there

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from ledgerbeam.io.graph.identity import describe_source
from ledgerbeam.io.graph.leaves import Records
from ledgerbeam.io.graph.node import Positions
from ledgerbeam.io.graph.tokens import Token, pair_token
from ledgerbeam.io.shar import SharReader
from ledgerbeam.io.storage import Options, stat_many

__all__ = ["IndexedShar"]


class IndexedShar(Records):
    """The cuts of an indexed Shar folder with their fields. Its tokens are `(number of the cut, epoch)`, as lhotse's.

    Args:
        folder: A local folder or URL.
        fields: Which fields to read beside the cuts. Default: all.
        options: Storage options.
        shuffle: In a new order each epoch: all of the folder, without a buffer.
        seed: Chooses the orders. The first is that of lhotse for the same seed.

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
        self._sources: list[dict[str, Any]] | None = None

    @property
    def record_bytes(self) -> float:
        return sum(source["size"] for source in self._described) / max(1, len(self))

    def tokens_of(self, numbers: Positions, epoch: int) -> list[Token]:
        return [(number, epoch) for number in numbers.tolist()]

    def read_many(self, tokens: Sequence[Token], epoch: int | None = None) -> list[Any]:
        parts = [pair_token(token, self._name, "(number of the cut, epoch)") for token in tokens]
        return super().read_many([number for number, _ in parts], epoch)

    def parameters(self) -> dict[str, Any]:
        data = {"url": self.records.url, "fields": list(self.records.fields), "shards": self._described}
        return {"data": data, "shuffle": self.shuffle, "seed": self.seed}

    @property
    def _described(self) -> list[dict[str, Any]]:
        if self._sources is None:
            urls = [reader.url for reader in chain.from_iterable(self.records.shards.values())]
            self._sources = [describe_source(info) for info in stat_many(urls, self.records.options)]
        return self._sources
