"""WebDataset: shards of samples, and the metadata with which wids, Energon and DALI read them.

docs/webdataset.md lists the differences from these readers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledgerbeam._base.lazy import lazy_names

if TYPE_CHECKING:
    from ledgerbeam.io.datasets.webdataset.dali import DaliReader, write_dali_index
    from ledgerbeam.io.datasets.webdataset.energon import EnergonDataset, read_energon, write_energon
    from ledgerbeam.io.datasets.webdataset.reader import (
        ShardReader,
        WidsIndex,
        WidsShard,
        open_energon,
        open_shards,
        open_wids,
        read_wids_index,
        write_wids_index,
    )
    from ledgerbeam.io.datasets.webdataset.writer import Shard, ShardLike, ShardWriter

__all__ = [
    "DaliReader",
    "EnergonDataset",
    "Shard",
    "ShardLike",
    "ShardReader",
    "ShardWriter",
    "WidsIndex",
    "WidsShard",
    "open_energon",
    "open_shards",
    "open_wids",
    "read_energon",
    "read_wids_index",
    "write_dali_index",
    "write_energon",
    "write_wids_index",
]

if not TYPE_CHECKING:  # a type checker would take any name for one that is there
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "dali": "DaliReader write_dali_index",
            "energon": "EnergonDataset read_energon write_energon",
            "reader": "ShardReader WidsIndex WidsShard open_energon "
            "open_shards open_wids read_wids_index write_wids_index",
            "writer": "Shard ShardLike ShardWriter",
        },
    )
