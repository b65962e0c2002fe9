"""The base class of nodes with several passes in sequence: over several sources, or over one several times."""

# ruff: noqa: D102 - what overrides a method of IteratorNode is described there

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ledgerbeam.iterators.identity import require_shard
from ledgerbeam.iterators.node import DerivedNode, IteratorNode, State, field
from ledgerbeam.iterators.tokens import Token


class StagedNode(DerivedNode):
    """A pass in stages; each stage is a pass of one child. The tokens are `(label of the stage, token of the child)`.

    The state is the current stage and the state of its child, so it does not grow with the number of stages. After a
    change of the number of shards it also has the rest of further stages, since the old shards may have been in
    different stages.
    """

    def __init__(self) -> None:
        self._stage = 0
        self._before = 0
        self._entered = False
        self._left: dict[int, tuple[int, Any]] = {}

    @property
    @abstractmethod
    def stages(self) -> int | None:
        """Number of stages; None if there is no end."""

    @abstractmethod
    def child_of(self, stage: int) -> IteratorNode:
        """Return the child of a stage."""

    @abstractmethod
    def label_of(self, stage: int) -> int:
        """Return the first part of the tokens of a stage."""

    @abstractmethod
    def epoch_of(self, stage: int) -> int:
        """Return the epoch of the child of a stage."""

    def places_of(self, stage: int) -> int:
        """Return the number of places of a stage, for `divide_child`."""
        del stage
        return 0

    def divide_child(self, child: IteratorNode, before: int) -> None:
        """Divide the child of a stage among the shards; `before` places precede the stage."""
        del before
        child.divide(*self._shard)

    def pairs(self) -> Iterator[tuple[Token | None, Any]]:
        while not self._is_finished:
            whole, empty = not self._entered and self._stage not in self._left, True
            self._enter()
            label = self.label_of(self._stage)
            for token, item in self.child_of(self._stage).pairs():
                yield None if token is None else (label, token), item
                empty = False
            if whole and empty and self.stages is None:
                return  # later passes would be empty too
            self._before += self.places_of(self._stage)
            self._stage += 1
            self._entered = False

    def begin(self, epoch: int) -> None:
        self._epoch = epoch
        self._stage, self._before, self._entered, self._left = 0, 0, False, {}

    def finish(self) -> None:
        self._stage, self._entered = self.stages or 0, False

    def divide(self, shard: int, shards: int) -> None:
        self._shard = shard, shards

    def save(self) -> State:
        state: State = {}
        if not self._is_finished:
            self._enter()
            state["source"] = self.child_of(self._stage).save()
        if self._left:
            state["left"] = [[stage, before, left] for stage, (before, left) in sorted(self._left.items())]
        return {"stage": self._stage, "before": self._before, "shard": list(self._shard), **state}

    def load(self, state: Mapping[str, Any]) -> None:
        require_shard(field(state, "shard", self._name), self._shard)
        self._stage = field(state, "stage", self._name)
        self._before = field(state, "before", self._name)
        self._left = {stage: (before, left) for stage, before, left in state.get("left", ())}
        self._entered = False
        if not self._is_finished and self._stage not in self._left:
            source = field(state, "source", self._name)
            self._begin_stage()
            self.child_of(self._stage).load(source)
            self._entered = True

    def merge(self, states: Sequence[Mapping[str, Any]]) -> State:
        reached = [field(state, "stage", self._name) for state in states]
        first = min(reached)
        before: int = states[reached.index(first)]["before"]
        last = max([*reached, *(left[0] for state in states for left in state.get("left", ()))])
        last = last if self.stages is None else min(last, self.stages - 1)
        merged: State = {"stage": first, "before": before, "shard": None, "left": []}
        # A shard knows how a stage was divided if it is in the stage or has a rest of it, but not after the stage.
        known = {stage: count for state in states for stage, count, _ in state.get("left", ())}
        known.update({state["stage"]: state["before"] for state in states})
        for stage in range(first, last + 1):
            before = known.get(stage, before)
            child = self.child_of(stage)
            parts = [self._state_of(stage, before, state) for state in states]
            merged["left"].append([stage, before, child.merge(parts)])
            before += self.places_of(stage)
        return merged

    def _state_of(self, stage: int, before: int, state: Mapping[str, Any]) -> State:
        """Return the state of the child of a stage in one shard: saved, whole or finished."""
        shard, shards = state["shard"]
        self._shard = shard, shards
        self.load(state)
        child, reached = self.child_of(stage), self._stage
        if reached != stage:
            self._stage, self._before, self._entered = stage, before, False
        self._enter()
        if reached > stage:
            child.finish()
        return child.save()

    @property
    def _is_finished(self) -> bool:
        return self.stages is not None and self._stage >= self.stages

    def _enter(self) -> None:
        """Set the child of the current stage to the beginning of its pass, or to the rest of it."""
        if self._entered:
            return
        left = self._left.pop(self._stage, None)
        if left is not None:
            self._before = left[0]
        self._begin_stage()
        if left is not None:
            self.child_of(self._stage).load(left[1])
        self._entered = True

    def _begin_stage(self) -> None:
        child = self.child_of(self._stage)
        self.divide_child(child, self._before)
        child.begin(self.epoch_of(self._stage))
