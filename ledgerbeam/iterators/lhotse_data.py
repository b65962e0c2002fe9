"""Graphs as sources for lhotse's samplers. The state of a sampler restores the position in its graph exactly.

Needs lhotse 2 (`pip install --pre lhotse`); nothing else of the package imports this module.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from ledgerbeam.errors import UsageError
from ledgerbeam.io.json_values import loads
from ledgerbeam.io.tar.sample import Sample
from ledgerbeam.iterators.node import State, field, resolve_iterator_source, supports_graph_restore
from ledgerbeam.iterators.tokens import Token, get_graph_origin, normalize_graph_token

try:
    _lazy: Any = importlib.import_module("lhotse.lazy")
    _loading: Any = importlib.import_module("lhotse.dataset.dataloading")
except ModuleNotFoundError:  # CutSource reports it
    _lazy = _loading = None
if TYPE_CHECKING:
    _Node = object
else:
    _Node = object if _lazy is None else _lazy.IteratorNode

_MANIFEST = "json"


class CutSource(_Node):
    """A graph of cuts as a node of lhotse: `DynamicBucketingSampler(CutSet(CutSource(graph)), ...)`.

    lhotse's samplers accept it like an indexed manifest of lhotse, and so do `CutSet.map`, `CutSet.filter` and
    `CutSet.mux`. The samplers have their own buffers of cuts, and save these as tokens.

    A pass is an epoch of the graph. After a complete pass, the next pass is the next epoch. After an incomplete pass,
    such as a sampler's estimate of durations, the next pass is the same epoch. `set_epoch` of lhotse's
    `IterableDatasetWrapper` also sets the epoch.

    Workers of a loader divide the cuts: all workers of all ranks if lhotse's `worker_init_fn` has set the rank, else
    the workers of each rank alone. The main process reads all cuts. lhotse's samplers drop the cuts of other ranks.

    Args:
        graph: The graph. Its items are cuts: objects of lhotse, or the JSON records of cuts.
        decode: Function that converts an item to a cut. Default: `cut_of`.

    Raises:
        UsageError: lhotse is missing, or is older than version 2.
    """

    def __init__(self, graph: Any, decode: Callable[[Any], Any] | None = None) -> None:
        if _lazy is None or not hasattr(_lazy, "IteratorNode"):
            raise UsageError("CutSource needs lhotse 2: pip install --pre 'lhotse>=2.0.0a7'")
        self.graph = resolve_iterator_source(graph)
        self.decode = cut_of if decode is None else decode
        self._epoch = self.graph.epoch
        self._has_ended = False
        self._is_loaded = False

    def __repr__(self) -> str:
        return f"CutSource({self.graph!r})"

    def __len__(self) -> int:
        return len(self.graph)  # type: ignore[arg-type]

    @property
    def is_checkpointable(self) -> bool:
        """Whether `state_dict` and `load_state_dict` work."""
        return self.graph.is_checkpointable

    @property
    def is_indexed(self) -> bool:
        """Whether the data of the graph has indexes."""
        return self.graph.is_indexed

    @property
    def has_constant_time_access(self) -> bool:
        """Whether a cut can be rebuilt from its token without reading others."""
        return supports_graph_restore(self.graph)

    def __iter__(self) -> Iterator[Any]:
        """Start a pass, or continue the loaded one, and return an iterator over its cuts."""
        if not self._is_loaded:
            self._take_part()
            self._epoch += self._has_ended
            self.graph.set_epoch(self._epoch)
        self._is_loaded = self._has_ended = False
        return self._cuts(self.graph.with_origins())

    def __getitem__(self, token: Token) -> Any:
        """Rebuild a cut from its token; raises the errors of the graph."""
        token = normalize_graph_token(token)
        return _lazy.attach_graph_origin(self.decode(self.graph[token]), token)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass, which starts from its beginning."""
        self._epoch, self._has_ended, self._is_loaded = epoch, False, False

    def state_dict(self) -> State:
        """Return the state of the pass."""
        return {"graph": self.graph.state_dict(), "ended": self._has_ended}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that was saved in the same worker and rank.

        Raises:
            CheckpointError: A part of the state is missing.
            CheckpointMismatchError: The state belongs to another graph, other data or another worker.
        """
        self._take_part()
        self.graph.load_state_dict(field(state, "graph", "CutSource"))
        self._epoch, self._has_ended, self._is_loaded = self.graph.epoch, field(state, "ended", "CutSource"), True

    def _cuts(self, items: Iterator[Any]) -> Iterator[Any]:
        for item in items:
            yield _lazy.maybe_attach_graph_origin(self.decode(item), get_graph_origin(item))
        self._has_ended = True

    def _take_part(self) -> None:
        place = _loading.get_worker_partition()
        worker = _module("torch.utils.data").get_worker_info()
        if place == (0, 1) and worker is not None:
            place = worker.id, worker.num_workers
        if self.graph.shard != tuple(place):
            self.graph.partition(*place)


def cut_of(item: Any) -> Any:
    """Return an item of a graph as a cut of lhotse.

    Args:
        item: A cut, its JSON record (from `IndexedManifest`), or the record with its fields (from `IndexedShar`).

    Raises:
        UsageError: The item is none of these.
    """
    if not isinstance(item, Mapping):
        if hasattr(item, "id"):
            return item
        raise UsageError(f"CutSource: expected cuts, found a {type(item).__name__}; pass decode=, which makes cuts")
    payloads = {name: value for name, value in item.items() if isinstance(value, Sample)}
    known = _attributes(str(item.get("type")))
    row = {name: value for name, value in item.items() if name in known and name not in payloads}
    beside = {name: value for name, value in item.items() if name not in known and name not in payloads}
    custom = {**(row.get("custom") or {}), **beside}
    for name, payload in payloads.items():
        (row if name in known else custom)[name] = loads(payload[_MANIFEST])
    if custom:
        row["custom"] = custom
    cut = _module("lhotse.serialization").deserialize_item(row)
    for name, payload in payloads.items():
        (extension,) = payload.keys() - {_MANIFEST}
        place = f"{cut.id}.{extension}"
        _module("lhotse.shar.utils").fill_shar_placeholder(cut, field=name, data=payload[extension], tarpath=place)
    return cut


@cache
def _module(name: str) -> Any:
    return importlib.import_module(name)


@cache
def _attributes(kind: str) -> frozenset[str]:
    """Return the attributes of a type of cut; all other names are fields of a Shar folder, which belong to `custom`."""
    found = getattr(_module("lhotse.cut"), kind, None)
    if found is None or not dataclasses.is_dataclass(found):
        raise UsageError(
            f"CutSource: expected cuts of a type such as MonoCut, found {kind!r}; pass decode=, which makes cuts"
        )
    return frozenset(part.name for part in dataclasses.fields(found)) | {"type"}
