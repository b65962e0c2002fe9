"""Continue with another number of ranks or workers."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from ledgerbeam.errors import CheckpointError
from ledgerbeam.iterators import identity as identities
from ledgerbeam.iterators.node import IteratorNode, State, field


def merge_states(graph: IteratorNode, states: Sequence[Mapping[str, Any]], *, trust_data: bool = False) -> State:
    """Merge the states of all shards into one that any number of shards can load.

    Each new shard calls `partition` with its new number and then `load_state_dict` with the result. Together they yield
    exactly the remaining items of the old shards, in an order that the states determine.

    Args:
        graph: The graph of the states; it is not changed.
        states: The result of `state_dict` of each shard, in any order, all saved at the same step.
        trust_data: As in `IteratorNode.load_state_dict`.

    Returns:
        A state, which can be written as JSON and loaded any number of times.

    Raises:
        CheckpointError: States are missing or duplicate, or belong to different epochs.
        CheckpointMismatchError: They belong to another graph or other data.
        UnsupportedShapeError: The remaining items of a node cannot be divided again.
    """
    if not states:
        raise CheckpointError("merge_states: expected the states of all shards, found none")
    own = type(graph).__name__
    shards = len(states)
    found = sorted(tuple(field(state, "shard", own) or ()) for state in states)
    if found != [(shard, shards) for shard in range(shards)]:
        raise CheckpointError(
            "merge_states: expected one state of each shard, found (shard, of how many) "
            f"{found}; collect the state of every worker of every rank"
        )
    epochs = {field(state, "epoch", own) for state in states}
    if len(epochs) > 1:
        raise CheckpointError(
            f"merge_states: expected states of one epoch, found epochs {sorted(epochs)}; save all shards at the same "
            "step, or put the epochs into the graph with Repeat"
        )
    scratch = copy.deepcopy(graph)
    now = scratch.identity()
    for state in states:
        identities.require_same(field(state, "graph", own), now, trust_data=trust_data)
    scratch.set_epoch(epochs.pop())
    ordered = sorted(states, key=lambda state: int(state["shard"][0]))
    merged = scratch.merge([field(state, "state", own) for state in ordered])
    return {**states[0], "shard": None, "state": merged}
