"""Iterator graphs: lazy passes over indexed data whose exact position can be saved and restored in O(1).

    graph = Batches(GlobalShuffle(IndexedManifest("a.jsonl"), IndexedManifest("b.jsonl")), 32)

See docs/iterators.md. Nothing here needs torch; the adapters are in `torch_data`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledgerbeam._base.lazy import lazy_names

if TYPE_CHECKING:
    from ledgerbeam.iterators.batches import Batches, Buckets
    from ledgerbeam.iterators.chain import Chain, GlobalShuffle, Repeat
    from ledgerbeam.iterators.indexed import IndexedManifest, IndexedParquet, IndexedTar, PackedManifest, Records
    from ledgerbeam.iterators.mix import Mix, Mux
    from ledgerbeam.iterators.node import (
        IteratorNode,
        State,
        Transform,
        resolve_iterator_source,
        supports_graph_restore,
    )
    from ledgerbeam.iterators.ordered import OrderedNode, merge_states
    from ledgerbeam.iterators.packed import Packed, stack_packs
    from ledgerbeam.iterators.permutation import BlockPermutation, Permutation
    from ledgerbeam.iterators.shar import IndexedShar, Shar
    from ledgerbeam.iterators.shuffle import Shuffle
    from ledgerbeam.iterators.streams import Jsonl, Manifest, Tar
    from ledgerbeam.iterators.tokens import (
        Token,
        attach_graph_origin,
        get_graph_origin,
        maybe_attach_graph_origin,
        normalize_graph_token,
    )
    from ledgerbeam.iterators.transforms import Filter, Flatten, Map, Slice

__all__ = [
    "Batches",
    "BlockPermutation",
    "Buckets",
    "Chain",
    "Filter",
    "Flatten",
    "GlobalShuffle",
    "IndexedManifest",
    "IndexedParquet",
    "IndexedShar",
    "IndexedTar",
    "IteratorNode",
    "Jsonl",
    "Manifest",
    "Map",
    "Mix",
    "Mux",
    "OrderedNode",
    "Packed",
    "PackedManifest",
    "Permutation",
    "Records",
    "Repeat",
    "Shar",
    "Shuffle",
    "Slice",
    "State",
    "Tar",
    "Token",
    "Transform",
    "attach_graph_origin",
    "get_graph_origin",
    "maybe_attach_graph_origin",
    "merge_states",
    "normalize_graph_token",
    "resolve_iterator_source",
    "stack_packs",
    "supports_graph_restore",
]

if not TYPE_CHECKING:  # a type checker would take any name for one that is there
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "batches": "Batches Buckets",
            "chain": "Chain GlobalShuffle Repeat",
            "indexed": "IndexedManifest IndexedParquet IndexedTar PackedManifest Records",
            "mix": "Mix Mux",
            "node": "IteratorNode State Transform resolve_iterator_source supports_graph_restore",
            "ordered": "OrderedNode merge_states",
            "packed": "Packed stack_packs",
            "permutation": "BlockPermutation Permutation",
            "shar": "IndexedShar Shar",
            "shuffle": "Shuffle",
            "streams": "Jsonl Manifest Tar",
            "tokens": "Token attach_graph_origin get_graph_origin maybe_attach_graph_origin normalize_graph_token",
            "transforms": "Filter Flatten Map Slice",
        },
    )
