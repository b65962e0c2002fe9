"""The base classes of nodes of iterator graphs: lazy passes over items that can be stopped, saved and continued."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.errors import CheckpointError, CheckpointMismatchError, UnsupportedShapeError, UsageError
from ledgerbeam.iterators import identity as identities
from ledgerbeam.iterators.tokens import MISSING, Token, maybe_attach_graph_origin

Positions: TypeAlias = "NDArray[np.int64]"  # places in the order of a whole pass, from 0
_FORMAT = 1


class IteratorNode(ABC):
    """A node of an iterator graph.

    `iter(node)` starts a pass, or continues the loaded one. Every pass is a separate epoch with its own shuffled order.
    A node has one pass at a time.

    A derived class implements `pairs` and `parameters`; the hooks `begin`, `finish`, `save`, `load` and `merge` if it
    has its own state; and `read_many` if it can rebuild items. Its children are in `source` or `sources`.
    docs/write-a-node.md has a checklist, and `ledgerbeam.iterators.testing` has tests for a new node.
    """

    is_checkpointable: bool = False
    """Whether `state_dict` and `load_state_dict` work."""

    is_indexed: bool = False
    """Whether all data that the node reads, directly or through its children, has indexes."""

    has_constant_time_access: bool = False
    """Whether an item can be rebuilt from its token without reading others."""

    is_positional: bool = False
    """Whether a pass has `positions` places in a fixed order, and shard `s` of `S` reads places `s`, `s + S`, ..."""

    is_single: bool = True
    """Whether each place of a pass has at most one item; otherwise a place may have any number of items."""

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
        """Number of the current pass; before any pass, the number of the first one."""
        return self._epoch

    @property
    def shard(self) -> tuple[int, int]:
        """The shard of each pass that this node reads: its number, from 0, and the number of shards."""
        return self._shard

    @property
    def positions(self) -> int | None:
        """Number of places of a pass, of all shards together; None if `read_span` cannot read the node by place."""
        return None

    def __iter__(self) -> Iterator[Any]:
        """Start the next pass, or continue the loaded one, and return an iterator over its items."""
        return self._items(self._start())

    def __getitem__(self, token: Token) -> Any:
        """Rebuild one item from its token.

        Raises:
            CheckpointError: The node has no constant time access.
            IndexError: The item of the token does not exist.
            UsageError: The token does not have the shape of the tokens of this node.
        """
        return self.read_many([token])[0]

    # Methods that a node implements.

    @abstractmethod
    def pairs(self) -> Iterator[tuple[Token | None, Any]]:
        """Continue the pass from the current state, and yield each item with its token.

        Advance the state before yielding an item, so that a state that is saved then continues with the next item.

        Yields:
            Token and item; the token is None if the item cannot be rebuilt.
        """

    def lists(self, size: int) -> Iterator[tuple[list[Token | None], list[Any]]]:
        """Continue the pass as `pairs` does, several items at a time.

        Advance the state past all items of a list before yielding the list.

        Args:
            size: Number of items of a list, at least 1; the last list may have fewer.

        Yields:
            Tokens and items, as `pairs` yields them.
        """
        pairs = self.pairs()
        while some := list(islice(pairs, size)):
            yield [token for token, _ in some], [item for _, item in some]

    def read_many(self, tokens: Sequence[Token], epoch: int | None = None) -> list[Any]:
        """Rebuild items from their tokens, with as few requests as possible. The state is not changed.

        Args:
            tokens: The tokens, as `pairs` yields them or after a round trip through JSON.
            epoch: The pass of the tokens, for items that depend on it. Default: the current pass.

        Returns:
            The items in the requested order.

        Raises:
            CheckpointError: The node has no constant time access. `__getitem__` lists the other errors.
        """
        raise CheckpointError(
            f"{self._name}: it cannot rebuild items from tokens, only iterate over them; read indexed data, e.g. "
            "IndexedManifest instead of Manifest"
        )

    def begin(self, epoch: int) -> None:
        """Set this node and all nodes below it to the start of a pass."""
        self._epoch = epoch
        for child in self.children:
            child.begin(epoch)

    def finish(self) -> None:
        """Move this node and all nodes below it from the start of the current pass to its end."""
        for child in self.children:
            child.finish()

    def divide(self, shard: int, shards: int) -> None:
        """Set the shard that this node and all nodes below it read. The caller then calls `begin`."""
        self._shard = shard, shards
        for child in self.children:
            child.divide(shard, shards)

    def restrict(self, first: int, step: int) -> None:
        """Keep permanently only the places `first`, `first + step`, ... of each pass. The shards divide these places.

        Raises:
            UnsupportedShapeError: `is_positional` is False.
        """
        raise UnsupportedShapeError(f"{self._name}: its items have no fixed order, so a Slice cannot divide them")

    def save(self) -> State:
        """Return the state of this node and all nodes below it.

        Raises:
            CheckpointError: The position of a node cannot be saved exactly.
        """
        raise self._not_checkpointable()

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `save` or `merge`, after a call of `begin` with the epoch of the state.

        This method reads no items: a node rebuilds its buffer when the pass continues.
        """
        raise self._not_checkpointable()

    def merge(self, states: Sequence[Mapping[str, Any]]) -> State:
        """Merge the states of all shards into one from which any number of shards can load their parts.

        Raises:
            UnsupportedShapeError: The remaining items cannot be divided again.
        """
        raise self._indivisible()

    def parameters(self) -> dict[str, Any]:
        """Return the parameters that, besides the children, decide the items and their order, as JSON values."""
        return {}

    def tokens(self, positions: Positions, epoch: int | None = None) -> list[Token]:
        """Return the tokens of the items at places of a pass.

        Raises:
            UnsupportedShapeError: `self.positions` is None.
        """
        raise UnsupportedShapeError(f"{self._name}: its items have no known places; iterate over it instead")

    def read_at(self, positions: Positions, epoch: int | None = None) -> list[Any]:
        """Read the items at places of a pass, with `MISSING` for a place without an item.

        Raises:
            UnsupportedShapeError: `self.positions` is None, or `is_single` is False.
        """
        return self.read_many(self.tokens(positions, epoch), epoch)

    def sizes(self, positions: Positions, epoch: int | None = None) -> NDArray[np.int64]:
        """Return the number of text tokens of the items at places of a pass, from an index. No items are read.

        Raises:
            UnsupportedShapeError: The sizes of items are not known before they are read.
        """
        raise UnsupportedShapeError(f"{self._name}: the numbers of tokens of its items are not known; use Packed")

    def pairs_at(self, positions: Positions, epoch: int | None = None) -> Iterator[tuple[Token, Any]]:
        """Return an iterator over token and item of all items at places of a pass."""
        found = zip(self.tokens(positions, epoch), self.read_at(positions, epoch), strict=True)
        return ((token, item) for token, item in found if item is not MISSING)

    # Methods for users of a graph.

    def read_span(self, start: int, stop: int, epoch: int | None = None) -> list[Any]:
        """Read the items of the places `[start, stop)` of a pass, without starting the pass.

        Args:
            start: First place, `0 <= start`.
            stop: End, exclusive, `start <= stop <= positions`.
            epoch: The pass. Default: the current one.

        Returns:
            The items in order. Blank lines and filters make them fewer than the places; without `is_single` they can
            be more.

        Raises:
            UnsupportedShapeError: `positions` is None.
            UsageError: `0 <= start <= stop <= positions` does not hold.
        """
        places = self.positions
        if places is not None and not 0 <= start <= stop <= places:
            raise UsageError(f"{self._name}: expected 0 <= start <= stop <= {places}, found [{start}, {stop})")
        wanted = np.arange(start, stop, dtype=np.int64)
        if not self.is_single:
            return [item for _, item in self.pairs_at(wanted, epoch)]
        return [item for item in self.read_at(wanted, epoch) if item is not MISSING]

    def with_origins(self) -> Iterator[Any]:
        """Iterate as `iter` does, and attach to each item its token; see `attach_graph_origin`."""
        return (maybe_attach_graph_origin(item, token) for token, item in self._start())

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass, which starts from its beginning."""
        self._begun = self._loaded = False
        self._run = None
        self.begin(epoch)

    def partition(self, shard: int, shards: int) -> None:
        """Make this graph read one of several shards of each pass. Together, the shards have each item once.

        Args:
            shard: Number of the shard, `0 <= shard < shards`: with R ranks of W workers, `rank * W + worker`.
            shards: Number of shards, `R * W`.

        Raises:
            UsageError: `0 <= shard < shards` does not hold.
        """
        if not 0 <= shard < shards:
            raise UsageError(f"shard {shard} of {shards} does not exist; expected 0 <= shard < shards")
        self.divide(shard, shards)
        self.set_epoch(self._epoch)

    def identity(self) -> dict[str, Any]:
        """Return a description of the graph: its nodes and parameters, and URL, size and version of each source."""
        found: dict[str, Any] = {"node": type(self).__name__, **self.parameters()}
        if self.children:
            found["sources"] = [child.identity() for child in self.children]
        return found

    def state_dict(self) -> State:
        """Return the state of the graph.

        A state that is saved after an item was yielded continues with the next item.

        Returns:
            A dict for JSON: position, tokens of buffers, and identity of graph and data. A digest replaces long lists
            of sources.

        Raises:
            CheckpointError: The position of a node cannot be saved exactly.
        """
        self._check_graph()
        if not self.is_checkpointable:
            raise self._not_checkpointable()
        state = {"epoch": self._epoch, "shard": list(self._shard), "state": self.save()}
        return {"format": _FORMAT, "graph": identities.shortened(self.identity()), **state}

    def load_state_dict(self, state: Mapping[str, Any], *, trust_data: bool = False) -> None:
        """Restore a state. With indexed data, the time to continue does not depend on the position.

        Args:
            state: The result of `state_dict` or `merge_states`; it is not changed.
            trust_data: For data that was moved or copied: compare sizes of sources, not their URLs and versions.

        Raises:
            CheckpointError: A part of the state is missing.
            CheckpointMismatchError: The state belongs to another graph, other data or another shard.
        """
        self._check_graph()
        if not self.is_checkpointable:
            raise self._not_checkpointable()
        own = self._name
        if (found := field(state, "format", own)) != _FORMAT:
            raise CheckpointMismatchError(
                f"expected a checkpoint of format {_FORMAT}, found {found!r}; use the version of ledgerbeam that wrote "
                "it"
            )
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
            f"{self._name}: its remaining items cannot be divided among another number of shards; continue with "
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
        if self.is_checkpointable:
            self.identity()  # nodes keep the versions of their data from now on: a state has those before any read
        return self.pairs()

    def _items(self, pairs: Iterator[tuple[Token | None, Any]]) -> Iterator[Any]:
        run = self._run
        for _, item in pairs:
            yield item
            if self._run is not run:
                raise UsageError(f"{self._name}: another pass has ended this iterator; use the newest iterator")

    def _check_graph(self) -> None:
        seen: set[int] = set()
        for node in walk(self):
            if id(node) in seen:
                raise UsageError(
                    f"{node!r} occurs twice in one graph, but a node has only one position; create a second node"
                )
            seen.add(id(node))


def resolve_iterator_source(source: Any) -> IteratorNode:
    """Return the source if it is a node, else the node in its attribute `data`, at any depth.

    Raises:
        UsageError: There is no node.
    """
    found = source
    while not isinstance(found, IteratorNode) and hasattr(found, "data"):
        found = found.data
    if not isinstance(found, IteratorNode):
        raise UsageError(f"a {type(source).__name__} is not a node of a graph; wrap a reader or a sequence in Records")
    return found


def supports_graph_restore(node: Any) -> bool:
    """Return whether items of a node can be rebuilt from their tokens."""
    return bool(getattr(node, "has_constant_time_access", False)) and hasattr(node, "__getitem__")


def walk(node: IteratorNode) -> Iterator[IteratorNode]:
    """Yield a node and all nodes below it."""
    yield node
    for child in node.children:
        yield from walk(child)


class DerivedNode(IteratorNode):
    """A node that can be saved if all its children can, and can rebuild items if all its children can."""

    @property
    def is_checkpointable(self) -> bool:  # type: ignore[override]
        return all(child.is_checkpointable for child in self.children)

    @property
    def is_indexed(self) -> bool:  # type: ignore[override]
        return all(child.is_indexed for child in self.children)

    @property
    def has_constant_time_access(self) -> bool:  # type: ignore[override]
        return all(map(supports_graph_restore, self.children))

    @property
    def is_single(self) -> bool:  # type: ignore[override]
        return all(child.is_single for child in self.children)


State: TypeAlias = dict[str, Any]  # the state of a node: small values for JSON, without items


def field(state: Mapping[str, Any], name: str, owner: str) -> Any:
    """Return the part `name` of a state. CheckpointError if it is missing, since a default would restart the pass."""
    try:
        return state[name]
    except (KeyError, TypeError) as error:
        raise CheckpointError(
            f"{owner}: the state has no {name!r}, so the pass cannot continue exactly; load a complete state of this "
            "graph"
        ) from error


class Transform(DerivedNode):
    """A node that reads one other node and has no state of its own. Its state is the state of that node.

    Args:
        source: The node to read, or an object with a node in `data`.
    """

    def __init__(self, source: Any) -> None:
        self.source = resolve_iterator_source(source)

    def __repr__(self) -> str:
        return f"{self._name}({self.source!r})"

    def save(self) -> State:
        return {"source": self.source.save()}

    def load(self, state: Mapping[str, Any]) -> None:
        self.source.load(field(state, "source", self._name))

    def merge(self, states: Sequence[Mapping[str, Any]]) -> State:
        return {"source": self.source.merge([field(state, "source", self._name) for state in states])}


class ItemTransform(Transform):
    """A node that makes one item from each item of its source, with the same places and tokens."""

    @abstractmethod
    def make(self, item: Any, token: Token | None, epoch: int) -> Any:
        """Return the item that is made from an item of the source in an epoch."""

    def __len__(self) -> int:
        return len(self.source)  # type: ignore[arg-type]

    @property
    def positions(self) -> int | None:
        return self.source.positions

    @property
    def is_positional(self) -> bool:  # type: ignore[override]
        return self.source.is_positional

    def restrict(self, first: int, step: int) -> None:
        self.source.restrict(first, step)

    def tokens(self, positions: Positions, epoch: int | None = None) -> list[Token]:
        return self.source.tokens(positions, epoch)

    def sizes(self, positions: Positions, epoch: int | None = None) -> NDArray[np.int64]:
        return self.source.sizes(positions, epoch)

    def read_many(self, tokens: Sequence[Token], epoch: int | None = None) -> list[Any]:
        return self._make_all(self.source.read_many(tokens, epoch), tokens, epoch)

    def read_at(self, positions: Positions, epoch: int | None = None) -> list[Any]:
        return self._make_all(self.source.read_at(positions, epoch), self.tokens(positions, epoch), epoch)

    def pairs_at(self, positions: Positions, epoch: int | None = None) -> Iterator[tuple[Token, Any]]:
        when = self._when(epoch)
        return ((token, self.make(item, token, when)) for token, item in self.source.pairs_at(positions, epoch))

    def _make_all(self, items: list[Any], tokens: Sequence[Token], epoch: int | None) -> list[Any]:
        when, pairs = self._when(epoch), zip(items, tokens, strict=True)
        return [item if item is MISSING else self.make(item, token, when) for item, token in pairs]
