"""Graphs as datasets for torch's `DataLoader` and torchdata's `StatefulDataLoader`.

Needs torch (`pip install ledgerbeam[torch]`); nothing else of the package imports this module.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ledgerbeam._base.extensions import install_command
from ledgerbeam.errors import CheckpointError, UnsupportedShapeError, UsageError
from ledgerbeam.iterators.node import IteratorNode, State, resolve_iterator_source
from ledgerbeam.iterators.ordered import count_places
from ledgerbeam.iterators.tokens import MISSING

try:
    _torch: Any = importlib.import_module("torch")
    _data: Any = importlib.import_module("torch.utils.data")
except ModuleNotFoundError:  # GraphDataset reports it; GraphSequence does not need torch
    _torch = _data = None
if TYPE_CHECKING:
    _Iterable = object
else:
    _Iterable = object if _data is None else _data.IterableDataset


class GraphDataset(_Iterable):
    """A graph as `IterableDataset`: each worker of each rank reads its part of each pass, without configuration.

    The state of a `StatefulDataLoader` has the state of the graph, in the main process or in workers. If the graph
    yields batches, create the loader with `batch_size=None`.

    A loader without persistent workers sends this object to new workers for every pass: call `set_epoch` before each,
    or put the epochs into the graph with `Repeat`. Persistent workers, and the main process, count passes themselves.

    Args:
        graph: The graph.
        rank: Number of this process in the training. Default: the rank of `torch.distributed`, if that is initialized
            at the first read, else 0.
        world_size: Number of all processes in the training; required with `rank`.

    Raises:
        UsageError: Torch is missing, or only one of `rank` and `world_size` is given.
    """

    def __init__(self, graph: Any, *, rank: int | None = None, world_size: int | None = None) -> None:
        if _torch is None:
            raise UsageError(f"GraphDataset needs torch: {install_command('torch')}")
        if (rank is None) != (world_size is None):
            raise UsageError("GraphDataset: expected both rank and world_size, or neither")
        super().__init__()
        self.graph = resolve_iterator_source(graph)
        self._given = None if rank is None or world_size is None else (rank, world_size)
        self._sent = (0, 1)
        self._merged: Mapping[str, Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        self._take_part()
        return iter(self.graph)

    def __len__(self) -> int:
        """Return the number of items that a whole pass of this rank has, in all of its workers together.

        Blank lines count. With several ranks of several workers each, the true number may differ by fewer than
        `num_workers` items, because the loader does not pass the number of workers to the dataset.

        Raises:
            TypeError: The graph has no length.
        """
        rank, ranks = self._rank()
        return count_places(len(self.graph), rank, ranks)  # type: ignore[arg-type]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sent": self._rank()}  # a spawned worker is not in the process group

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass, which starts from its beginning."""
        self._merged = None
        self.graph.set_epoch(epoch)

    def state_dict(self) -> State:
        """Return the state of this process; the loader calls it in each worker."""
        self._take_part()
        return self.graph.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of the same rank and worker; the loader calls it in each worker."""
        self._take_part()
        self.graph.load_state_dict(state)

    def load_merged(self, state: Mapping[str, Any]) -> None:
        """Continue with another number of ranks or workers.

        Call this method in every rank, with the same state, before the loader starts its workers. The next pass has the
        remaining items.

        Args:
            state: The result of `merge_states` for the states of all old workers of all old ranks (`shard_states`).

        Raises:
            CheckpointError: The state is not a result of `merge_states`.
        """
        if state.get("shard", ()) is not None:
            raise CheckpointError("load_merged: expected the result of merge_states, found the state of one shard")
        self._merged = state

    def _take_part(self) -> None:
        rank, ranks = self._rank()
        worker = _data.get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        place = rank * workers + number, ranks * workers
        if self.graph.shard != place:
            self.graph.partition(*place)
        if self._merged is not None:
            merged, self._merged = self._merged, None
            self.graph.load_state_dict(merged)

    def _rank(self) -> tuple[int, int]:
        if self._given is not None:
            return self._given
        group = _torch.distributed
        if group.is_available() and group.is_initialized():
            return group.get_rank(), group.get_world_size()
        return self._sent


class GraphSequence:
    """A graph with a known order as a map-style dataset: item `i` is the item at place `i` of a pass.

    A sampler or a `DataLoader` chooses the places. Neighbours in a batch are read with one request.

    Args:
        graph: A graph whose nodes read through an index, and `Map`, `Slice`, `Chain`, `GlobalShuffle` over them.

    Raises:
        UnsupportedShapeError: The items of the graph have no fixed places.
    """

    def __init__(self, graph: Any) -> None:
        self.graph: IteratorNode = resolve_iterator_source(graph)
        places = self.graph.positions
        if places is None or not self.graph.is_positional:
            raise UnsupportedShapeError(f"GraphSequence: {self.graph!r} has no fixed order; use GraphDataset instead")
        self._places = places

    def __len__(self) -> int:
        return self._places

    def __getitem__(self, place: int) -> Any:
        return self.__getitems__([place])[0]

    def __getitems__(self, places: Sequence[int]) -> list[Any]:
        """Read a batch; torch's loaders call it.

        Raises:
            IndexError: A place does not exist or has no item.
        """
        wanted = np.array(places, np.int64)
        if len(wanted) and not 0 <= wanted.min() <= wanted.max() < self._places:
            raise IndexError(f"{self.graph!r}: expected places below {self._places}, found {places}")
        items = self.graph.read_at(wanted)
        for place, item in zip(places, items, strict=True):
            if item is MISSING:
                raise IndexError(f"{self.graph!r}: place {place} has no item: its line is blank, or a filter drops it")
        return items


def shard_states(loader_state: Mapping[str, Any]) -> list[State]:
    """Return the states of the graphs in the state of a `StatefulDataLoader` over a `GraphDataset`.

    Args:
        loader_state: The `state_dict` of the loader.

    Returns:
        One state for each worker. `merge_states` needs the states of the workers of all ranks.

    Raises:
        CheckpointError: The state is some steps behind (`snapshot_every_n_steps` above 1), or belongs to another kind
            of loader.
    """
    if loader_state.get("_steps_since_snapshot"):
        raise CheckpointError("shard_states: the loader would replay steps; create it with snapshot_every_n_steps=1")
    try:
        if "_snapshot" not in loader_state:
            return [loader_state["dataset_state"]]
        workers = loader_state["_snapshot"]["_worker_snapshots"]
        return [workers[f"worker_{number}"]["dataset_state"] for number in range(len(workers))]
    except (KeyError, TypeError) as error:
        raise CheckpointError(
            f"shard_states: expected the state of a StatefulDataLoader over a GraphDataset, found no {error}"
        ) from error
