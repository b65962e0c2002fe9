"""Index packs: the indexes of many sources in one `.idxpack` file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledgerbeam._base.lazy import lazy_names

if TYPE_CHECKING:
    from ledgerbeam.io.idxpack.reader import IndexPack, collection_key
    from ledgerbeam.io.idxpack.writer import PackArray, PackSources, write_index_pack

__all__ = ["IndexPack", "PackArray", "PackSources", "collection_key", "write_index_pack"]

if not TYPE_CHECKING:  # for a type checker, `__getattr__` would make every name valid
    __getattr__, __dir__ = lazy_names(
        __name__, {"reader": "IndexPack collection_key", "writer": "PackArray PackSources write_index_pack"}
    )
