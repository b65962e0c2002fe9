"""The leaf over an index pack."""

# ruff: noqa: D102 - what overrides a method of IteratorNode is described there

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ledgerbeam.errors import UsageError
from ledgerbeam.io.idxpack.reader import IndexPack
from ledgerbeam.io.storage.client import Options
from ledgerbeam.iterators.node import Positions
from ledgerbeam.iterators.sources.indexed import Records
from ledgerbeam.iterators.tokens import Token, normalize_graph_token


class PackedManifest(Records):
    """The records of a collection of an `.idxpack`: many sources, one index file.

    The tokens are those of lhotse: numbers if it is shuffled, else `(number of the source, number in it)`.

    Args:
        url: The pack.
        key: The key of the collection (`collection_key`). Default: that of the only one.
        options: Storage options of the pack and its sources.
        shuffle: Whether to use a new order of the whole collection in each epoch, without a buffer.
        seed: Chooses the orders. The first one is that of lhotse for the same seed.

    Raises:
        IndexMismatchError: The pack is damaged; also the other errors of `IndexPack.collection`.
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
            raise UsageError(f"{self!r}: expected a token (number of the source, number in it), found {token!r}")
        source, inside = token
        if not 0 <= source < len(self.records.ends):
            raise IndexError(f"{self!r}: there is no source {source}; it has {len(self.records.ends)}")
        number = inside + (int(self.records.ends[source - 1]) if source else 0)
        if not inside >= 0 or number >= int(self.records.ends[source]):
            raise IndexError(f"{self!r}: there is no record {inside} in source {source}")
        return number
