"""WebDataset: shards of samples, and the metadata with which wids, Energon and DALI read them.

docs/webdataset.md lists the differences from these readers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledgerbeam._base.lazy import lazy_names

if TYPE_CHECKING:
    from ledgerbeam.io.datasets.webdataset.dali import DaliReader as DaliReader
    from ledgerbeam.io.datasets.webdataset.dali import write_dali_index as write_dali_index
    from ledgerbeam.io.datasets.webdataset.energon import EnergonDataset as EnergonDataset
    from ledgerbeam.io.datasets.webdataset.energon import read_energon as read_energon
    from ledgerbeam.io.datasets.webdataset.energon import write_energon as write_energon
    from ledgerbeam.io.datasets.webdataset.reader import ShardReader as ShardReader
    from ledgerbeam.io.datasets.webdataset.reader import WidsIndex as WidsIndex
    from ledgerbeam.io.datasets.webdataset.reader import WidsShard as WidsShard
    from ledgerbeam.io.datasets.webdataset.reader import open_energon as open_energon
    from ledgerbeam.io.datasets.webdataset.reader import open_shards as open_shards
    from ledgerbeam.io.datasets.webdataset.reader import open_wids as open_wids
    from ledgerbeam.io.datasets.webdataset.reader import read_wids_index as read_wids_index
    from ledgerbeam.io.datasets.webdataset.reader import write_wids_index as write_wids_index
    from ledgerbeam.io.datasets.webdataset.writer import Shard as Shard
    from ledgerbeam.io.datasets.webdataset.writer import ShardLike as ShardLike
    from ledgerbeam.io.datasets.webdataset.writer import ShardWriter as ShardWriter

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
