"""Iterator graphs: lazy passes over indexed data that save and restore their exact position in O(1).

    graph = Batches(GlobalShuffle(IndexedManifest("a.jsonl"), IndexedManifest("b.jsonl")), 32)

See docs/iterators.md. Nothing here needs torch; the adapters are in `torch_data`.
"""

from __future__ import annotations

from ledgerbeam.io.graph.batches import Batches as Batches
from ledgerbeam.io.graph.buckets import Buckets as Buckets
from ledgerbeam.io.graph.chain import Chain as Chain
from ledgerbeam.io.graph.chain import GlobalShuffle as GlobalShuffle
from ledgerbeam.io.graph.elastic import merge_states as merge_states
from ledgerbeam.io.graph.flatten import Flatten as Flatten
from ledgerbeam.io.graph.leaves import IndexedManifest as IndexedManifest
from ledgerbeam.io.graph.leaves import IndexedTar as IndexedTar
from ledgerbeam.io.graph.leaves import Records as Records
from ledgerbeam.io.graph.mix import Mix as Mix
from ledgerbeam.io.graph.mux import Mux as Mux
from ledgerbeam.io.graph.node import IteratorNode as IteratorNode
from ledgerbeam.io.graph.node import resolve_iterator_source as resolve_iterator_source
from ledgerbeam.io.graph.node import supports_graph_restore as supports_graph_restore
from ledgerbeam.io.graph.ordered import OrderedNode as OrderedNode
from ledgerbeam.io.graph.packed import PackedManifest as PackedManifest
from ledgerbeam.io.graph.permutation import Permutation as Permutation
from ledgerbeam.io.graph.repeat import Repeat as Repeat
from ledgerbeam.io.graph.shar import IndexedShar as IndexedShar
from ledgerbeam.io.graph.shar import Shar as Shar
from ledgerbeam.io.graph.shuffle import Shuffle as Shuffle
from ledgerbeam.io.graph.state import State as State
from ledgerbeam.io.graph.streams import Jsonl as Jsonl
from ledgerbeam.io.graph.streams import Manifest as Manifest
from ledgerbeam.io.graph.tokens import Token as Token
from ledgerbeam.io.graph.tokens import attach_graph_origin as attach_graph_origin
from ledgerbeam.io.graph.tokens import get_graph_origin as get_graph_origin
from ledgerbeam.io.graph.tokens import maybe_attach_graph_origin as maybe_attach_graph_origin
from ledgerbeam.io.graph.tokens import normalize_graph_token as normalize_graph_token
from ledgerbeam.io.graph.tokens import require_graph_origin as require_graph_origin
from ledgerbeam.io.graph.transform import Transform as Transform
from ledgerbeam.io.graph.transforms import Filter as Filter
from ledgerbeam.io.graph.transforms import Map as Map
from ledgerbeam.io.graph.transforms import Slice as Slice

__all__ = [
    "Batches",
    "Buckets",
    "Chain",
    "Filter",
    "Flatten",
    "GlobalShuffle",
    "IndexedManifest",
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
    "Token",
    "Transform",
    "attach_graph_origin",
    "get_graph_origin",
    "maybe_attach_graph_origin",
    "merge_states",
    "normalize_graph_token",
    "require_graph_origin",
    "resolve_iterator_source",
    "supports_graph_restore",
]
