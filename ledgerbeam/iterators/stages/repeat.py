"""Repeat a source, each time as another epoch."""

# ruff: noqa: D102 - what overrides a method of IteratorNode is described there

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ledgerbeam.errors import UnsupportedShapeError, UsageError
from ledgerbeam.iterators.node import IteratorNode, Positions, resolve_iterator_source
from ledgerbeam.iterators.stages.chain import in_runs, read_grouped
from ledgerbeam.iterators.stages.stages import StagedNode
from ledgerbeam.iterators.tokens import Token, pair_token


class Repeat(StagedNode):
    """Repeats a source several times or without end. The tokens are `(number of the time, token of the source)`.

    Each time is an epoch of the source, so nodes below that shuffle use a new order.

    Args:
        source: The node to read.
        times: Number of times, at least 1. Default: without end.

    Raises:
        UsageError: `times` is below 1.
    """

    def __init__(self, source: Any, times: int | None = None) -> None:
        super().__init__()
        if times is not None and times < 1:
            raise UsageError(f"Repeat: expected times >= 1 or None, found {times}")
        self.source = resolve_iterator_source(source)
        self.times = times

    def __repr__(self) -> str:
        return f"Repeat({self.source!r}, times={self.times})"

    def __len__(self) -> int:
        if self.times is None:
            raise TypeError("a Repeat without end has no length")
        return self.times * len(self.source)  # type: ignore[arg-type]

    @property
    def positions(self) -> int | None:
        places = self.source.positions
        return None if places is None or self.times is None else places * self.times

    @property
    def stages(self) -> int | None:
        return self.times

    def child_of(self, stage: int) -> IteratorNode:
        del stage
        return self.source

    def label_of(self, stage: int) -> int:
        return stage

    def epoch_of(self, stage: int) -> int:
        return self._child_epoch(self._epoch, stage)

    def read_many(self, tokens: Sequence[Token], epoch: int | None = None) -> list[Any]:
        when = self._when(epoch)
        parts = [pair_token(token, self._name, "(number of the time, token of the source)") for token in tokens]
        for time, _ in parts:
            if not isinstance(time, int):
                raise UsageError(f"Repeat: expected the number of a time in the token, found {time!r}")
            if time < 0 or (self.times is not None and time >= self.times):
                raise IndexError(f"{self!r}: there is no time {time}")
        return read_grouped(parts, lambda time, inner: self.source.read_many(inner, self._child_epoch(when, time)))

    def tokens(self, positions: Positions, epoch: int | None = None) -> list[Token]:
        when, (times, places) = self._when(epoch), self._locate(positions)
        pairs = list(zip(times, places, strict=True))
        found = read_grouped(
            pairs, lambda time, inner: self.source.tokens(np.array(inner, np.int64), self._child_epoch(when, time))
        )
        return list(zip(times, found, strict=True))

    def read_at(self, positions: Positions, epoch: int | None = None) -> list[Any]:
        when, (times, places) = self._when(epoch), self._locate(positions)
        pairs = list(zip(times, places, strict=True))
        return read_grouped(
            pairs, lambda time, inner: self.source.read_at(np.array(inner, np.int64), self._child_epoch(when, time))
        )

    def pairs_at(self, positions: Positions, epoch: int | None = None) -> Iterator[tuple[Token, Any]]:
        when, pairs = self._when(epoch), zip(*self._locate(positions), strict=True)
        return in_runs(pairs, lambda time, places: self.source.pairs_at(places, self._child_epoch(when, time)))

    def parameters(self) -> dict[str, Any]:
        return {"times": self.times}

    def _locate(self, positions: Positions) -> tuple[list[int], list[int]]:
        places = self.source.positions
        if places is None or self.times is None:
            raise UnsupportedShapeError(f"{self!r}: its items have no places that are known before it is read")
        times, inner = np.divmod(positions, max(1, places))
        return times.tolist(), inner.tolist()

    def _child_epoch(self, epoch: int, time: int) -> int:
        return epoch * (self.times or 1) + time
