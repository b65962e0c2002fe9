"""Tokenized texts as the files of one shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ledgerbeam.io import ShardFile
from ledgerbeam.io.datasets.megatron import encode_part


@dataclass(frozen=True)
class TokenShards:
    """Megatron datasets of tokenized text, one for each key.

    Attributes:
        suffixes: What the name of each key's dataset ends with, by the key.
        dtype: Name of the tokens' dtype.
        eod: Token that ends documents; None for none.
    """

    suffixes: Mapping[str, str]
    dtype: str
    eod: int | None

    def encode(self, records: Sequence[Any]) -> list[ShardFile]:
        """Return the files of a dataset for each key.

        Args:
            records: For each of them its document by key: the sequences.
        """
        return [
            file
            for key, suffix in self.suffixes.items()
            for file in self._files(suffix, [record[key] for record in records])
        ]

    def _files(self, suffix: str, documents: Sequence[Any]) -> list[ShardFile]:
        data, index = encode_part(documents, self.dtype, eod=self.eod)
        return [ShardFile(f"{suffix}.bin", data, len(documents)), ShardFile(f"{suffix}.idx", index, 0)]
