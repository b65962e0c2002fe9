"""Tests of the contract of nodes: derive a class whose `node` returns your node, and run it with pytest or unittest.

class TestDouble(NodeContract):
    def node(self):
        return Double(Records(list(range(50)), name="numbers"))
"""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import pickle
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from itertools import islice
from typing import Any

from ledgerbeam.errors import CheckpointError, UnsupportedShapeError
from ledgerbeam.io.formats.testing import equal, refused
from ledgerbeam.iterators.node import IteratorNode, State
from ledgerbeam.iterators.ordered import merge_states

_OPTIONAL = {"of_all_shards", "left", "todo"}


class NodeContract(ABC):
    """The behaviour that every node must have. `state_dict` of a node that cannot be saved must raise an error.

    Attributes:
        most: Largest number of items of a pass that a test reads, also of an endless node.
        elastic: Whether the remaining items can be divided among another number of shards; if not, the node must raise
            an error.
        whole: Whether the shards of a pass together yield the items that one shard yields, in some order.
    """

    most: int = 200
    elastic: bool = True
    whole: bool = True

    @abstractmethod
    def node(self) -> IteratorNode:
        """Return a new node over the same data in each call. It needs ten items or more; many make the tests slow."""

    def pieces(self, item: Any) -> Sequence[Any]:
        """Split an item into the pieces that shards divide: a batch into its items. Default: the item itself."""
        return [item]

    def key(self, piece: Any) -> Any:
        """Return a hashable key that is equal for equal pieces. Default: `repr`."""
        return repr(piece)

    def test_the_same_pass_gives_the_same_items(self) -> None:
        equal(self._pass(self.node()), self._pass(self.node()), "two nodes over the same data")

    def test_a_pass_gone_on_with_at_every_step_gives_what_was_left(self) -> None:
        node = self.node()
        if not node.is_checkpointable:
            refused(node.state_dict, CheckpointError, "saving")
            return
        node.set_epoch(3)
        items, states = [], [through_json(node.state_dict())]
        for item in islice(node, self.most):
            items.append(item)
            states.append(through_json(node.state_dict()))
        for step, state in enumerate(states):
            other = self.node()
            other.load_state_dict(state)
            equal(through_json(other.state_dict()), state, f"the state after loading it at step {step}")
            equal(list(islice(other, self.most - step)), items[step:], f"what is left after {step} items")

    def test_the_pass_after_a_restored_one_is_the_next_epoch(self) -> None:
        node, other = self.node(), self.node()
        if not node.is_checkpointable:
            return
        list(islice(node, 3))
        other.load_state_dict(node.state_dict())
        list(islice(other, 3))
        equal(self._pass(other), self._pass(node), "the second pass")

    def test_saving_and_loading_leave_states_as_they_are(self) -> None:
        node, other = self.node(), self.node()
        if not node.is_checkpointable:
            return
        items = iter(node)
        next(items)
        state = node.state_dict()
        before = copy.deepcopy(state)
        list(islice(items, self.most))
        other.load_state_dict(state)
        list(islice(other, self.most))
        equal(state, before, "a state that was used")

    def test_it_goes_on_in_another_process(self) -> None:
        node = self.node()
        if not node.is_checkpointable:
            return
        items = iter(node)
        list(islice(items, 5))
        state = through_json(node.state_dict())
        equal(rest_in_another_process(self.node(), state, self.most), list(islice(items, self.most)), "the rest")

    def test_items_are_rebuilt_from_their_tokens(self) -> None:
        node = self.node()
        node.begin(2)
        pairs = list(islice(node.pairs(), self.most))
        if not node.has_constant_time_access:
            if node.children and all(child.has_constant_time_access for child in node.children):
                raise AssertionError(f"{node!r} has no constant time access, although all nodes that it reads have it")
            return
        tokens = [through_json(token) for token, _ in pairs]
        if None in tokens:
            raise AssertionError(f"{node!r}: expected a token for every item, found None")
        other = self.node()
        other.begin(2)
        equal(other.read_many(tokens[::-1]), [item for _, item in pairs][::-1], "items read by their tokens")
        equal([other[token] for token in tokens[:5]], [item for _, item in pairs[:5]], "items read one by one")
        equal(self._pass(other, 2), [item for _, item in pairs], "a pass after items were rebuilt")

    def test_lists_are_pairs_with_the_same_states_after_them(self) -> None:
        for size in (1, 4, 7):
            node, other = self.node(), self.node()
            node.begin(1)
            other.begin(1)
            pairs, most = node.pairs(), max(1, self.most // size)
            count = 0
            for tokens, items in islice(other.lists(size), most):
                count += 1
                found = list(zip(tokens, items, strict=True))
                equal(found, list(islice(pairs, size)), f"list {count} of {size} pairs")
                if node.is_checkpointable:
                    equal(other.save(), node.save(), f"the state after list {count} of {size} pairs")
            if count < most:
                equal(list(pairs), [], "the pairs after all lists")

    def test_a_state_without_one_of_its_parts_is_refused(self) -> None:
        node = self.node()
        if not node.is_checkpointable:
            return
        list(islice(node, 4))
        for damaged, path in _without_one_part(node.state_dict()):
            refused(partial(self.node().load_state_dict, damaged), CheckpointError, f"a state without {path}")

    def test_shards_share_a_pass_without_overlap_and_without_loss(self) -> None:
        if not self.whole:
            return
        alone = self._count(self._pass(self.node()))
        for shards in (2, 3):
            parts = []
            for shard in range(shards):
                node = self.node()
                node.partition(shard, shards)
                parts += self._pass(node)
            equal(self._count(parts), alone, f"all items of {shards} shards, counted")

    def test_other_numbers_of_shards_go_on_without_overlap_and_without_loss(self) -> None:
        if not self.node().is_checkpointable or not self.whole:
            return
        alone = self._count(self._pass(self.node()))
        for taken, shards in (([4, 1, 0], [2]), ([3], [2, 1]), ([2, 5], [3, 4])):
            node = self.node()
            states, given = _shards_after(node, taken, None)
            if not self.elastic:
                refused(partial(merge_states, node, states), UnsupportedShapeError, "merge_states")
                return
            for count in shards:
                merged = through_json(merge_states(node, states))
                states, more = _shards_after(node, [shard + 1 for shard in range(count)], merged)
                given += more
            for shard, state in enumerate(states):
                other = self.node()
                other.partition(shard, len(states))
                other.load_state_dict(state)
                given += list(other)
            equal(self._count(given), alone, f"all items of {len(taken)} and then {shards} shards, counted")

    def test_spans_of_a_pass_are_its_items(self) -> None:
        node = self.node()
        places = node.positions
        if places is None:
            return
        items = self._pass(node, 1)
        found = [item for start in range(0, places, 7) for item in node.read_span(start, min(places, start + 7), 1)]
        equal(found[: self.most], items, "the spans of a pass")

    def _pass(self, node: IteratorNode, epoch: int | None = None) -> list[Any]:
        if epoch is not None:
            node.set_epoch(epoch)
        return list(islice(node, self.most))

    def _count(self, items: list[Any]) -> Counter[Any]:
        return Counter(self.key(piece) for item in items for piece in self.pieces(item))


def through_json(value: Any) -> Any:
    """Write a value as JSON and read it again."""
    return json.loads(json.dumps(value))


def rest_in_another_process(node: IteratorNode, state: State, most: int) -> list[Any]:
    """Load a state in a new interpreter and return at most `most` of the remaining items; the node is pickled."""
    found: list[Any] = _other_process().submit(_rest, pickle.dumps(node), state, most).result()
    return found


@cache
def _other_process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_end_with_parent)


def _end_with_parent() -> None:
    """Make this process end when its parent ends: a process of pytest-xdist does not end its children."""

    def wait() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(0)

    threading.Thread(target=wait, name="ledgerbeam-parent", daemon=True).start()


def _rest(pickled: bytes, state: State, most: int) -> list[Any]:
    node = pickle.loads(pickled)  # noqa: S301 - from the parent process
    node.load_state_dict(state)
    return list(islice(node, most))


def _shards_after(node: IteratorNode, taken: list[int], merged: State | None) -> tuple[list[State], list[Any]]:
    """Read the next `taken[s]` items of each shard `s` of a node, starting from `merged`. Return states and items."""
    states, given = [], []
    for shard, count in enumerate(taken):
        own = copy.deepcopy(node)
        own.partition(shard, len(taken))
        if merged is not None:
            own.load_state_dict(merged)
        given += list(islice(own, count))
        states.append(through_json(own.state_dict()))
    return states, given


def _without_one_part(state: Any, path: str = "") -> Iterator[tuple[Any, str]]:
    """Yield copies of a state, each without one of its parts, and the path of this part."""
    if isinstance(state, list):
        for number, part in enumerate(state):
            for damaged, where in _without_one_part(part, f"{path}[{number}]"):
                yield [*state[:number], damaged, *state[number + 1 :]], where
    if not isinstance(state, dict):
        return
    for key in state:
        if key not in _OPTIONAL:
            yield {name: part for name, part in state.items() if name != key}, f"{path}.{key}"
        if key != "graph":
            for damaged, where in _without_one_part(state[key], f"{path}.{key}"):
                yield {**state, key: damaged}, where
