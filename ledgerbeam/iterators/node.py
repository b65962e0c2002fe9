"""The base of every node of an iterator graph: a lazy pass over items that can be stopped, saved and continued."""

# ruff: noqa: ARG002 - what a node does not implement refuses whatever it is given

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ledgerbeam.errors import CheckpointError, UnsupportedShapeError, UsageError
from ledgerbeam.iterators import identity as identities
from ledgerbeam.iterators.tokens import MISSING, Token, attach_graph_origin

__all__ = [
    "DerivedNode",
    "IteratorNode",
    "Positions",
    "State",
    "field",
    "resolve_iterator_source",
    "supports_graph_restore",
    "walk",
]

Positions: TypeAlias = NDArray[np.int64]
"""Places in the order of a whole pass, from 0."""

_FORMAT = 1


class IteratorNode(ABC):
    """A node of an iterator graph.

    `iter(node)` begins a pass, or continues the pass that was loaded. Every pass is a separate epoch, and what is
    shuffled is shuffled anew in each. A node has one pass at a time.

    A class that is derived from this one implements `pairs`, and the hooks `begin`, `finish`, `save`, `load` and
    `merge` where it has a state of its own; `read_many` where it can rebuild items; `parameters`. Its children are in
    `source` or `sources`. docs/iterators.md has the checklist, `ledgerbeam.iterators.testing` the tests.
    """

    is_checkpointable: bool = False
    """Whether `state_dict` and `load_state_dict` work."""

    is_indexed: bool = False
    """Whether the data below has indexes."""

    has_constant_time_access: bool = False
    """Whether an item can be rebuilt from its token without going through others."""

    is_positional: bool = False
    """Whether a pass is a fixed order of `positions` places, of which shard `s` of `S` takes `s`, `s + S`, ..."""

    is_single: bool = True
    """Whether each of its `positions` has at most one item; else a place may have any number of them."""

    _epoch = 0
    _shard = (0, 1)
    _begun = False
    _loaded = False
    _run: object = None

    @property
    def children(self) -> tuple[IteratorNode, ...]:
        """The nodes that this one reads."""
        source = getattr(self, "source", None)
        return tuple(getattr(self, "sources", ())) if source is None else (source,)

    @property
    def epoch(self) -> int:
        """Number of the present pass, or of the first one before it has begun."""
        return self._epoch

    @property
    def shard(self) -> tuple[int, int]:
        """Which part of each pass this node takes, and of how many."""
        return self._shard

    @property
    def positions(self) -> int | None:
        """How many places `read_span` addresses, of all shards together; None when it cannot."""
        return None

    def __iter__(self) -> Iterator[Any]:
        """Begin the next pass, or go on with the loaded one, and return its items."""
        return self._items(self._start())

    def __getitem__(self, token: Token) -> Any:
        """Rebuild one item from its token.

        Raises:
            CheckpointError: The node has no constant time access.
            IndexError: The token is of an item that does not exist.
            UsageError: It is not shaped like this node's tokens.
        """
        return self.read_many([token])[0]

    # What a node implements.

    @abstractmethod
    def pairs(self) -> Iterator[tuple[Token | None, Any]]:
        """Go on with the pass from where the node stands, and return each item with its token.

        The state is advanced before an item is yielded: a state that is saved then continues with the next item.

        Yields:
            Token and item; the token is None where the item cannot be rebuilt.
        """

    def read_many(self, tokens: Sequence[Token], epoch: int | None = None) -> list[Any]:
        """Rebuild items from their tokens, with as few requests as possible. The state stays as it is.

        Args:
            tokens: The tokens, as `pairs` gave them or as JSON made them.
            epoch: The pass they are of; matters where what an item is depends on it. Default: the present one.

        Returns:
            The items in the requested order.

        Raises:
            CheckpointError: The node has no constant time access; else as in `__getitem__`.
        """
        raise CheckpointError(
            f"{self._name}: it cannot rebuild items from tokens, only pass over them; read indexed data, e.g. "
            "IndexedManifest instead of Manifest"
        )

    def begin(self, epoch: int) -> None:
        """Put the node and those below it to the beginning of a pass."""
        self._epoch = epoch
        for child in self.children:
            child.begin(epoch)

    def finish(self) -> None:
        """Put the node and those below it to the end of the present pass, from its beginning."""
        for child in self.children:
            child.finish()

    def divide(self, shard: int, shards: int) -> None:
        """Take note of the part that this node is to take; the pass is begun anew after it."""
        self._shard = shard, shards
        for child in self.children:
            child.divide(shard, shards)

    def restrict(self, first: int, step: int) -> None:
        """Confine a positional node for good to its places `first`, `first + step`, ..., of which shards take parts.

        Raises:
            UnsupportedShapeError: It is not positional.
        """
        raise UnsupportedShapeError(f"{self._name}: it has no fixed order of places to be confined to")

    def save(self) -> State:
        """Return the state of the node and those below it.

        Raises:
            CheckpointError: It cannot be saved exactly.
        """
        raise self._not_checkpointable()

    def load(self, state: Mapping[str, Any]) -> None:
        """Take a state that `save` or `merge` gave; the pass of that state was begun before.

        Reads no items: a buffer is rebuilt when the pass goes on.
        """
        raise self._not_checkpointable()

    def merge(self, states: Sequence[Mapping[str, Any]]) -> State:
        """Make of the states of all shards one that any number of shards can load, each its part.

        Raises:
            UnsupportedShapeError: What is left cannot be divided anew.
        """
        raise self._indivisible()

    def parameters(self) -> dict[str, Any]:
        """Return what, beside the children, decides which items come in which order: names and plain values."""
        return {}

    def tokens(self, positions: Positions, epoch: int | None = None) -> list[Token]:
        """Return the tokens at places of the order of a pass.

        Raises:
            UnsupportedShapeError: `positions` is None.
        """
        raise UnsupportedShapeError(
            f"{self._name}: its items have no places that are known before it is read; read it by iteration"
        )

    def read_at(self, positions: Positions, epoch: int | None = None) -> list[Any]:
        """Read the items at places of the order of a pass, `MISSING` where a place has none.

        Raises:
            UnsupportedShapeError: `positions` is None, or the node is not `is_single`.
        """
        return self.read_many(self.tokens(positions, epoch), epoch)

    def pairs_at(self, positions: Positions, epoch: int | None = None) -> Iterator[tuple[Token, Any]]:
        """Return the items at places of the order of a pass with their tokens, of each place all that it has."""
        found = zip(self.tokens(positions, epoch), self.read_at(positions, epoch), strict=True)
        return ((token, item) for token, item in found if item is not MISSING)

    # What a graph is used by.

    def read_span(self, start: int, stop: int, epoch: int | None = None) -> list[Any]:
        """Read the items of the places `[start, stop)` of a pass, without beginning it.

        Args:
            start: First place, `0 <= start`.
            stop: End, exclusive, `start <= stop <= positions`.
            epoch: Which pass. Default: the present one.

        Returns:
            The items in order; fewer than places where blank lines lie or a filter drops, or more if not `is_single`.

        Raises:
            UnsupportedShapeError: `positions` is None.
            UsageError: Not `0 <= start <= stop <= positions`.
        """
        places = self.positions
        if places is not None and not 0 <= start <= stop <= places:
            raise UsageError(f"{self._name}: [{start}, {stop}) is not a span of its {places} places")
        wanted = np.arange(start, stop, dtype=np.int64)
        if not self.is_single:
            return [item for _, item in self.pairs_at(wanted, epoch)]
        found = self.read_at(wanted, epoch)
        return [item for item in found if item is not MISSING]

    def with_origins(self) -> Iterator[Any]:
        """Iterate as `iter` does and attaches its token to each item; see `attach_graph_origin`."""
        return (item if token is None else attach_graph_origin(item, token) for token, item in self._start())

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass that of an epoch, from its beginning."""
        self._begun = self._loaded = False
        self._run = None
        self.begin(epoch)

    def partition(self, shard: int, shards: int) -> None:
        """Make this graph one of several that share each pass, without overlap and without loss.

        Args:
            shard: Which one, `0 <= shard < shards`: with R ranks of W workers, `rank * W + worker`.
            shards: How many, `R * W`.

        Raises:
            UsageError: They are out of range.
        """
        if not 0 <= shard < shards:
            raise UsageError(f"shard {shard} of {shards} does not exist; 0 <= shard < shards is needed")
        self.divide(shard, shards)
        self.set_epoch(self._epoch)

    def identity(self) -> dict[str, Any]:
        """Describe the graph and its data: node names, parameters, and URL, size and version of each source."""
        found: dict[str, Any] = {"node": type(self).__name__, **self.parameters()}
        if self.children:
            found["sources"] = [child.identity() for child in self.children]
        return found

    def state_dict(self) -> State:
        """Save where the graph stands.

        Returns:
            What JSON can hold: position, buffers as tokens, and the identity of graph and data; of a node with many
            sources a digest of them.

            A state that was taken after an item was yielded continues with the next item.

        Raises:
            CheckpointError: It cannot be restored exactly; nothing is saved that would have to be replayed.
        """
        self._check_graph()
        if not self.is_checkpointable:
            raise self._not_checkpointable()
        state = {"epoch": self._epoch, "shard": list(self._shard), "state": self.save()}
        return {"format": _FORMAT, "graph": identities.shortened(self.identity()), **state}

    def load_state_dict(self, state: Mapping[str, Any], *, trust_data: bool = False) -> None:
        """Put the graph to where a saved one stood. Takes the same time wherever that was.

        Args:
            state: What `state_dict` or `merge_states` gave; is not changed.
            trust_data: The data may lie elsewhere and be newer: URLs and versions are not compared, sizes are.

        Raises:
            CheckpointError: A part of the state is missing.
            CheckpointMismatchError: It is of another graph, of other data or of another shard.
        """
        self._check_graph()
        if not self.is_checkpointable:
            raise self._not_checkpointable()
        own = self._name
        identities.require_format(field(state, "format", own), _FORMAT)
        identities.require_same(field(state, "graph", own), self.identity(), trust_data=trust_data)
        identities.require_shard(field(state, "shard", own), self._shard)
        epoch, inner = field(state, "epoch", own), field(state, "state", own)
        self.set_epoch(epoch)
        self.load(inner)
        self._loaded = True

    def _when(self, epoch: int | None) -> int:
        return self._epoch if epoch is None else epoch

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _indivisible(self) -> UnsupportedShapeError:
        return UnsupportedShapeError(
            f"{self._name}: what it has left cannot be divided among another number of shards; go on with "
            f"{self._shard[1]}, or start a new epoch with the other number"
        )

    def _not_checkpointable(self) -> CheckpointError:
        streams = [node for node in walk(self) if not node.children and not node.has_constant_time_access]
        blame = f" because of {streams[0]!r} below it" if streams and streams != [self] else ""
        return CheckpointError(
            f"{self._name}: it cannot be saved and restored exactly{blame}; read indexed data, e.g. IndexedManifest"
        )

    def _start(self) -> Iterator[tuple[Token | None, Any]]:
        self._check_graph()
        if not self._loaded:
            self.begin(self._epoch + 1 if self._begun else self._epoch)
        self._loaded, self._begun, self._run = False, True, object()
        return self.pairs()

    def _items(self, pairs: Iterator[tuple[Token | None, Any]]) -> Iterator[Any]:
        run = self._run
        for _, item in pairs:
            yield item
            if self._run is not run:
                raise UsageError(f"{self._name}: another pass was begun or loaded; use the newest iterator")

    def _check_graph(self) -> None:
        seen: set[int] = set()
        for node in walk(self):
            if id(node) in seen:
                raise UsageError(
                    f"{node!r} occurs twice in one graph, and a node has one position; make a second node of it"
                )
            seen.add(id(node))


def resolve_iterator_source(source: Any) -> IteratorNode:
    """Find the node in what a graph is built from: the node itself, or the `data` of what wraps it.

    Raises:
        UsageError: There is none.
    """
    found = source
    while not isinstance(found, IteratorNode) and hasattr(found, "data"):
        found = found.data
    if not isinstance(found, IteratorNode):
        raise UsageError(f"a {type(source).__name__} is no node of a graph; wrap a reader or a sequence in Records")
    return found


def supports_graph_restore(node: Any) -> bool:
    """Return whether items of a node can be rebuilt from their tokens."""
    return bool(getattr(node, "has_constant_time_access", False)) and hasattr(node, "__getitem__")


def walk(node: IteratorNode) -> Iterator[IteratorNode]:
    """Return a node and all below it."""
    yield node
    for child in node.children:
        yield from walk(child)


class DerivedNode(IteratorNode):
    """A node that can be saved, and rebuild items, where all that it reads can."""

    @property
    def is_checkpointable(self) -> bool:  # type: ignore[override]
        """Whether `state_dict` and `load_state_dict` work."""
        return all(child.is_checkpointable for child in self.children)

    @property
    def is_indexed(self) -> bool:  # type: ignore[override]
        """Whether the data below has indexes."""
        return all(child.is_indexed for child in self.children)

    @property
    def has_constant_time_access(self) -> bool:  # type: ignore[override]
        """Whether an item can be rebuilt from its token without going through others."""
        return all(map(supports_graph_restore, self.children))

    @property
    def is_single(self) -> bool:  # type: ignore[override]
        """Whether each of its `positions` has at most one item."""
        return all(child.is_single for child in self.children)


State: TypeAlias = dict[str, Any]
"""Where a node stands: what JSON can hold, small, without items."""


def field(state: Mapping[str, Any], name: str, owner: str) -> Any:
    """Take a part of a state.

    Raises:
        CheckpointError: It is not there; a pass is never begun anew in its place.
    """
    try:
        return state[name]
    except (KeyError, TypeError) as error:
        raise CheckpointError(
            f"{owner}: the state has no {name!r}, so the pass cannot go on exactly where it was; load a whole state of "
            "this graph"
        ) from error
