"""Observed numbers: exact count, minimum, maximum and sum, and samples for quantiles (KLL)."""

from __future__ import annotations

import math
import struct
import threading
from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np
from datasketches import kll_doubles_sketch
from numpy.typing import NDArray

from ledgerbeam.sketches import LARGEST, LIMIT, packed, unpacked

_SAMPLES = 200  # size of the KLL sketch: a quantile's rank error is at most 1.3 % of all values in 99 of 100 cases
_BUFFERED = 4096
_MOST_SAMPLES = 2**18


class Observed:
    """Observed numbers of a task, added to the sketch in blocks of thousands."""

    kind = "observe"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buffer = array("d")
        self._samples = kll_doubles_sketch(_SAMPLES)
        self._facts = _Facts()

    def add(self, number: float) -> None:
        """Observe a number from -`LARGEST` to `LARGEST`."""
        with self._lock:
            self._buffer.append(number)
            if len(self._buffer) == _BUFFERED:
                self._flush()

    def _flush(self) -> None:
        if self._buffer:
            self._samples.update(np.array(self._buffer))
            self._facts.add(self._buffer)
            self._buffer = array("d")

    def data(self) -> bytes:
        """Return the bytes of the sketch: the exact facts and the weighted samples."""
        with self._lock:
            self._flush()
            values, weights = zip(*sorted(self._samples), strict=True)
        return _observed_bytes(self._facts, np.array(values, np.float64), np.array(weights, np.uint64))


class MergedObserved:
    """Observed numbers of many tasks: exact facts, and weighted samples in bounded memory."""

    def __init__(self) -> None:
        self._facts = _Facts()
        self._values = np.empty(0, np.float64)
        self._weights = np.empty(0, np.float64)
        self._waiting: list[tuple[NDArray[np.float64], NDArray[np.uint64]]] = []
        self._waiting_samples = 0
        self._thinned = 0.0  # error in ranks from thinning
        self._is_exact = True

    def take(self, data: bytes) -> None:
        facts, values, weights = _read_observed(data)
        if self._facts.count + facts.count > LIMIT:
            raise ValueError(f"expected at most {LIMIT} numbers in all, found {self._facts.count + facts.count}")
        self._facts.plus(facts)
        self._waiting.append((values, weights))
        self._waiting_samples += len(values)
        self._is_exact = self._is_exact and len(values) == facts.count
        if self._waiting_samples >= _MOST_SAMPLES // 2:
            self._gather()

    def _gather(self) -> None:
        """Sort the samples by value. If there are too many, thin them evenly by rank, which is deterministic."""
        values = np.concatenate([self._values, *(values for values, _ in self._waiting)])
        weights = np.concatenate([self._weights, *(weights for _, weights in self._waiting)])
        self._waiting, self._waiting_samples = [], 0
        order = np.lexsort((weights, values))
        self._values, self._weights = values[order], weights[order]
        if len(values) > _MOST_SAMPLES // 2:
            kept = _MOST_SAMPLES // 4
            ranks = np.cumsum(self._weights)
            each = ranks[-1] / kept
            self._values = self._values[np.searchsorted(ranks, (np.arange(kept) + 0.5) * each)]
            self._weights = np.full(kept, each)
            self._thinned += each / 2

    def data(self) -> bytes:
        """Return the bytes of the merged sketch. ValueError if they are too large for the sketch of a task."""
        self._gather()
        return _observed_bytes(self._facts, self._values, self._weights.astype(np.uint64))

    def value(self) -> dict[str, Any]:
        facts = self._facts
        if not facts.count:
            return {"count": 0, "min": None, "max": None, "mean": None, "p50": None, "p99": None}
        mean = facts.sum() / facts.count
        return {
            "count": facts.count,
            "min": facts.least,
            "max": facts.greatest,
            "mean": min(max(mean, facts.least), facts.greatest),  # rounding could exceed the bounds
            "p50": self.quantile(0.5),
            "p99": self.quantile(0.99),
        }

    def quantile(self, rank: float) -> float:
        """Return the least value such that at least the share `rank` of all values is not above it.

        The error in its rank is at most `rank_error`.
        """
        self._gather()
        ranks = np.cumsum(self._weights)
        place = int(np.searchsorted(ranks, rank * ranks[-1] * (1 - 1e-12)))
        return float(self._values[min(place, len(ranks) - 1)])

    def sum(self) -> float:
        """Return the exact sum, rounded once."""
        return self._facts.sum()

    def rank_error(self) -> float:
        """Return the greatest error in the rank of a quantile, as a share of all values, in 99 of 100 cases."""
        if not self._facts.count:
            return 0.0
        own = 0.0 if self._is_exact else kll_doubles_sketch.get_normalized_rank_error(_SAMPLES, as_pmf=False)
        return own + self._thinned / self._facts.count

    def bounds(self) -> str:
        error = self.rank_error()
        return f"p50 and p99: rank within {100 * error:.2g} %" if error else ""


class _Facts:
    """Exact facts: count, minimum and maximum; and `parts`, a few floats with exactly the sum of all numbers."""

    def __init__(self) -> None:
        self.count = 0
        self.least = math.inf
        self.greatest = -math.inf
        self.parts: list[float] = []

    def add(self, numbers: Iterable[float]) -> None:
        """Add numbers, at least one."""
        more = list(numbers)
        self.count += len(more)
        self.least, self.greatest = min(self.least, *more), max(self.greatest, *more)
        self.parts = _exact_sum([*self.parts, *more])

    def plus(self, other: _Facts) -> None:
        """Add the facts of other numbers."""
        self.count += other.count
        self.least, self.greatest = min(self.least, other.least), max(self.greatest, other.greatest)
        self.parts = _exact_sum([*self.parts, *other.parts])

    def sum(self) -> float:
        """Return the sum, rounded once."""
        return math.fsum(self.parts)


def _exact_sum(numbers: list[float]) -> list[float]:
    """Return a few numbers with exactly the sum of `numbers`: the rounded sum, the rounded remainder, and so on."""
    parts: list[float] = []
    while part := math.fsum(numbers):
        parts.append(part)
        numbers.append(-part)
    return parts


_OBSERVED = struct.Struct("<QddHI")


def _observed_bytes(facts: _Facts, values: NDArray[np.float64], weights: NDArray[np.uint64]) -> bytes:
    head = _OBSERVED.pack(facts.count, facts.least, facts.greatest, len(facts.parts), len(values))
    parts = np.array(facts.parts, "<f8")
    levels = np.frexp(weights.astype(np.float64))[1] - 1
    return packed(head + parts.tobytes() + levels.astype(np.uint8).tobytes() + values.astype("<f8").tobytes())


def _read_observed(data: bytes) -> tuple[_Facts, NDArray[np.float64], NDArray[np.uint64]]:
    data = unpacked(data)
    if len(data) < _OBSERVED.size:
        raise ValueError(f"expected at least {_OBSERVED.size} bytes, found {len(data)}")
    facts = _Facts()
    facts.count, facts.least, facts.greatest, parts, samples = _OBSERVED.unpack_from(data)
    if len(data) != (size := _OBSERVED.size + 8 * parts + 9 * samples):
        raise ValueError(f"expected a sketch of {size} bytes, by the counts at its start, found {len(data)}")
    place = _OBSERVED.size
    facts.parts = np.frombuffer(data, "<f8", parts, place).tolist()
    levels = np.frombuffer(data, np.uint8, samples, place + 8 * parts)
    values = np.frombuffer(data, "<f8", samples, place + 8 * parts + samples)
    if facts.count > LIMIT or samples == 0 or parts > 40 or (samples and levels.max() > 62):
        raise ValueError(f"expected a count up to {LIMIT}, and at least one sample with a weight")
    if not (-LARGEST <= facts.least <= facts.greatest <= LARGEST):
        raise ValueError(f"expected numbers up to {LARGEST}, found {facts.least} to {facts.greatest}")
    weights = np.uint64(1) << levels.astype(np.uint64)
    if int(weights.astype(object).sum()) != facts.count:
        raise ValueError(f"expected samples with weights that add up to {facts.count}")
    if not ((values >= facts.least) & (values <= facts.greatest)).all():  # False of NaN, too
        raise ValueError(f"expected samples from {facts.least} to {facts.greatest}")
    if not _is_sum(facts):
        raise ValueError(f"expected a sum of {facts.count} numbers from {facts.least} to {facts.greatest}")
    return facts, values.astype(np.float64), weights


def _is_sum(facts: _Facts) -> bool:
    """Return whether `parts` is a possible result of `_exact_sum`, and their sum fits count, minimum and maximum."""
    try:
        if _exact_sum(list(facts.parts)) != facts.parts:
            return False
    except (OverflowError, ValueError):  # a part is not finite
        return False
    slack = 1e-9 * max(abs(facts.least), abs(facts.greatest))
    return facts.least - slack <= facts.sum() / facts.count <= facts.greatest + slack
