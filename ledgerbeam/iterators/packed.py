"""Packs of tokens as a leaf of graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ledgerbeam.errors import UsageError
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


def stack_packs(packs: Sequence[Mapping[str, Any]]) -> dict[str, NDArray[Any]]:
    """Return packs as one batch, for `Map(Batches(Packed(...), 8), stack_packs)`.

    Arrays as long as a pack get the shape `(packs, length)`, without a copy if the packs were read one after the other.
    `cu_seqlens` are the bounds of the pieces in the batch as one sequence. Other arrays are concatenated.
    """
    if not packs:
        raise UsageError("stack_packs: expected packs, found none")
    found: dict[str, NDArray[Any]] = {}
    for name, first in packs[0].items():
        rows = [pack[name] for pack in packs]
        if name == "cu_seqlens":
            starts = np.cumsum([0, *(row[-1] for row in rows)])
            parts = [row[number > 0 :] + start for number, (row, start) in enumerate(zip(rows, starts, strict=False))]
            found[name] = np.concatenate(parts).astype(first.dtype)
        elif name in ("documents", "starts"):
            found[name] = np.concatenate(rows)
        else:
            found[name] = _adjacent(rows) if isinstance(first, np.ndarray) else np.array(rows)
    return found


def _adjacent(rows: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return rows as one array: a view, if they are consecutive parts of one array."""
    first, base = rows[0], rows[0].base
    places = [row.__array_interface__["data"][0] for row in rows]
    if (
        not isinstance(base, np.ndarray)
        or not base.flags.c_contiguous
        or any(row.base is not base or not row.flags.c_contiguous for row in rows)
        or any((row.ndim, row.shape, row.dtype) != (1, first.shape, base.dtype) for row in rows)
        or np.ptp(np.diff(places, append=places[-1] + first.nbytes))
    ):
        return np.stack(rows)
    start = (places[0] - base.__array_interface__["data"][0]) // first.itemsize
    return base.reshape(-1)[start : start + len(rows) * len(first)].reshape(len(rows), -1)
