"""Iterator graphs: lazy passes over indexed data whose exact position can be saved and restored in O(1).

    graph = Batches(GlobalShuffle(IndexedManifest("a.jsonl"), IndexedManifest("b.jsonl")), 32)

See docs/iterators.md. Nothing here needs torch; the adapters are in `torch_data`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledgerbeam._base.lazy import lazy_names

if TYPE_CHECKING:
    from ledgerbeam.iterators.batches import Batches as Batches
    from ledgerbeam.iterators.batches import Buckets as Buckets
    from ledgerbeam.iterators.chain import Chain as Chain
    from ledgerbeam.iterators.chain import GlobalShuffle as GlobalShuffle
    from ledgerbeam.iterators.chain import Repeat as Repeat
    from ledgerbeam.iterators.indexed import IndexedManifest as IndexedManifest
    from ledgerbeam.iterators.indexed import IndexedParquet as IndexedParquet
    from ledgerbeam.iterators.indexed import IndexedTar as IndexedTar
    from ledgerbeam.iterators.indexed import PackedManifest as PackedManifest
    from ledgerbeam.iterators.indexed import Records as Records
    from ledgerbeam.iterators.mix import Mix as Mix
    from ledgerbeam.iterators.mix import Mux as Mux
    from ledgerbeam.iterators.node import IteratorNode as IteratorNode
    from ledgerbeam.iterators.node import State as State
    from ledgerbeam.iterators.node import Transform as Transform
    from ledgerbeam.iterators.node import resolve_iterator_source as resolve_iterator_source
    from ledgerbeam.iterators.node import supports_graph_restore as supports_graph_restore
    from ledgerbeam.iterators.ordered import OrderedNode as OrderedNode
    from ledgerbeam.iterators.ordered import merge_states as merge_states
    from ledgerbeam.iterators.permutation import BlockPermutation as BlockPermutation
    from ledgerbeam.iterators.permutation import Permutation as Permutation
    from ledgerbeam.iterators.shar import IndexedShar as IndexedShar
    from ledgerbeam.iterators.shar import Shar as Shar
    from ledgerbeam.iterators.shuffle import Shuffle as Shuffle
    from ledgerbeam.iterators.streams import Jsonl as Jsonl
    from ledgerbeam.iterators.streams import Manifest as Manifest
    from ledgerbeam.iterators.streams import Tar as Tar
    from ledgerbeam.iterators.tokens import Token as Token
    from ledgerbeam.iterators.tokens import attach_graph_origin as attach_graph_origin
    from ledgerbeam.iterators.tokens import get_graph_origin as get_graph_origin
    from ledgerbeam.iterators.tokens import maybe_attach_graph_origin as maybe_attach_graph_origin
    from ledgerbeam.iterators.tokens import normalize_graph_token as normalize_graph_token
    from ledgerbeam.iterators.transforms import Filter as Filter
    from ledgerbeam.iterators.transforms import Flatten as Flatten
    from ledgerbeam.iterators.transforms import Map as Map
    from ledgerbeam.iterators.transforms import Slice as Slice

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
            "Batches": "batches",
            "BlockPermutation": "permutation",
            "Buckets": "batches",
            "Chain": "chain",
            "Filter": "transforms",
            "Flatten": "transforms",
            "GlobalShuffle": "chain",
            "IndexedManifest": "indexed",
            "IndexedParquet": "indexed",
            "IndexedShar": "shar",
            "IndexedTar": "indexed",
            "IteratorNode": "node",
            "Jsonl": "streams",
            "Manifest": "streams",
            "Map": "transforms",
            "Mix": "mix",
            "Mux": "mix",
            "OrderedNode": "ordered",
            "PackedManifest": "indexed",
            "Permutation": "permutation",
            "Records": "indexed",
            "Repeat": "chain",
            "Shar": "shar",
            "Shuffle": "shuffle",
            "Slice": "transforms",
            "State": "node",
            "Tar": "streams",
            "Token": "tokens",
            "Transform": "node",
            "attach_graph_origin": "tokens",
            "get_graph_origin": "tokens",
            "maybe_attach_graph_origin": "tokens",
            "merge_states": "ordered",
            "normalize_graph_token": "tokens",
            "resolve_iterator_source": "node",
            "supports_graph_restore": "node",
        },
    )
