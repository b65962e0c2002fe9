"""Packs of tokens as a leaf of graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ledgerbeam.io.datasets.megatron.packs import FIELDS, PackReader
from ledgerbeam.io.storage.client import Options
from ledgerbeam.iterators.indexed import Records
from ledgerbeam.iterators.node import Positions
from ledgerbeam.iterators.ordered import WINDOW, ShuffleBy


class Packed(Records):
    """The packs that `ledgerbeam pack` has made of documents: sequences of one length. The tokens are their numbers.

    An item is a dict of arrays. `tokens` are the tokens of the pack, and after them padding. `positions` count from 0
    in each piece of a document. `segments` have the number of the piece, -1 for padding. `cu_seqlens` are the bounds of
    the pieces, with padding as one more. For each piece, `documents` and `starts` have the number of the document and
    its first token in the document. `dataset` is a place in `records.sources`.

    Args:
        packs: Folder of packs.
        fields: Names of the arrays of an item.
        dtype: Dtype of `tokens`; `positions`, `segments`, `cu_seqlens` and `starts` are int32, `documents` int64.
        pad: Token of the padding.
        options: Storage options of packs and datasets.
        datasets: Folder in which the datasets are now, if they were moved; see `PackReader`.
        shuffle: Whether to use a new order of all packs in each epoch. With `"blocks"`, the packs of `window` files are
            mixed, and the tokens of a file are read once if the datasets are in a store.
        seed: Chooses the orders.
        window: Number of files of packs that are mixed.

    Raises:
        SourceNotFoundError: The folder has no packs. `PackReader` lists the errors of reads.
    """

    records: PackReader

    def __init__(
        self,
        packs: str,
        *,
        fields: Sequence[str] = FIELDS,
        dtype: DTypeLike = np.int64,
        pad: int = 0,
        options: Options | None = None,
        datasets: str | None = None,
        shuffle: ShuffleBy = False,
        seed: int = 0,
        window: int = WINDOW,
    ) -> None:
        reader = PackReader(packs, options, fields=fields, dtype=dtype, pad=pad, datasets=datasets)
        super().__init__(reader, shuffle=shuffle, seed=seed, window=window)

    @property
    def record_bytes(self) -> float:
        reader = self.records
        return float(reader.length * (reader.dtype.itemsize + 4 * len({"positions", "segments"} & {*reader.fields})))

    def sizes(self, positions: Positions, epoch: int | None = None) -> NDArray[np.int64]:
        return self.records.sizes(self.order(positions, epoch))

    def describe_data(self) -> dict[str, Any]:
        reader = self.records
        items = {"fields": list(reader.fields), "dtype": reader.dtype.name, "pad": int(reader.pad)}
        data = {"url": reader.url, "version": reader.version, "packs": len(reader), "length": reader.length}
        return {**data, **items}
