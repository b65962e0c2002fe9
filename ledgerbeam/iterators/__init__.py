"""Iterator graphs: lazy passes over indexed data whose exact position can be saved and restored in O(1).

    graph = Batches(GlobalShuffle(IndexedManifest("a.jsonl"), IndexedManifest("b.jsonl")), 32)

See docs/iterators.md. Nothing here needs torch; the adapters are in `torch_data`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledgerbeam._base.lazy import lazy_names

if TYPE_CHECKING:
    from ledgerbeam.iterators.node import IteratorNode as IteratorNode
    from ledgerbeam.iterators.node import State as State
    from ledgerbeam.iterators.node import Transform as Transform
    from ledgerbeam.iterators.node import resolve_iterator_source as resolve_iterator_source
    from ledgerbeam.iterators.node import supports_graph_restore as supports_graph_restore
    from ledgerbeam.iterators.ordered import OrderedNode as OrderedNode
    from ledgerbeam.iterators.permutation import BlockPermutation as BlockPermutation
    from ledgerbeam.iterators.permutation import Permutation as Permutation
    from ledgerbeam.iterators.resharding import merge_states as merge_states
    from ledgerbeam.iterators.sources.indexed import IndexedManifest as IndexedManifest
    from ledgerbeam.iterators.sources.indexed import IndexedParquet as IndexedParquet
    from ledgerbeam.iterators.sources.indexed import IndexedTar as IndexedTar
    from ledgerbeam.iterators.sources.indexed import PackedManifest as PackedManifest
    from ledgerbeam.iterators.sources.indexed import Records as Records
    from ledgerbeam.iterators.sources.shar import IndexedShar as IndexedShar
    from ledgerbeam.iterators.sources.shar import Shar as Shar
    from ledgerbeam.iterators.sources.streams import Jsonl as Jsonl
    from ledgerbeam.iterators.sources.streams import Manifest as Manifest
    from ledgerbeam.iterators.sources.streams import Tar as Tar
    from ledgerbeam.iterators.stages.batches import Batches as Batches
    from ledgerbeam.iterators.stages.buckets import Buckets as Buckets
    from ledgerbeam.iterators.stages.chain import Chain as Chain
    from ledgerbeam.iterators.stages.chain import GlobalShuffle as GlobalShuffle
    from ledgerbeam.iterators.stages.flatten import Flatten as Flatten
    from ledgerbeam.iterators.stages.mix import Mix as Mix
    from ledgerbeam.iterators.stages.mux import Mux as Mux
    from ledgerbeam.iterators.stages.repeat import Repeat as Repeat
    from ledgerbeam.iterators.stages.shuffle import Shuffle as Shuffle
    from ledgerbeam.iterators.stages.transforms import Filter as Filter
    from ledgerbeam.iterators.stages.transforms import Map as Map
    from ledgerbeam.iterators.stages.transforms import Slice as Slice
    from ledgerbeam.iterators.tokens import Token as Token
    from ledgerbeam.iterators.tokens import attach_graph_origin as attach_graph_origin
    from ledgerbeam.iterators.tokens import get_graph_origin as get_graph_origin
    from ledgerbeam.iterators.tokens import maybe_attach_graph_origin as maybe_attach_graph_origin
    from ledgerbeam.iterators.tokens import normalize_graph_token as normalize_graph_token

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
    "supports_graph_restore",
]

if not TYPE_CHECKING:  # a type checker would take any name for one that is there
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "node": "IteratorNode State Transform resolve_iterator_source supports_graph_restore",
            "ordered": "OrderedNode",
            "permutation": "BlockPermutation Permutation",
            "resharding": "merge_states",
            "sources.indexed": "IndexedManifest IndexedParquet IndexedTar PackedManifest Records",
            "sources.shar": "IndexedShar Shar",
            "sources.streams": "Jsonl Manifest Tar",
            "stages.batches": "Batches",
            "stages.buckets": "Buckets",
            "stages.chain": "Chain GlobalShuffle",
            "stages.flatten": "Flatten",
            "stages.mix": "Mix",
            "stages.mux": "Mux",
            "stages.repeat": "Repeat",
            "stages.shuffle": "Shuffle",
            "stages.transforms": "Filter Map Slice",
            "tokens": "Token attach_graph_origin get_graph_origin maybe_attach_graph_origin normalize_graph_token",
        },
    )
