"""Sketches of Apache DataSketches: observed numbers (KLL), distinct values (HyperLogLog), and frequent values."""

from __future__ import annotations

import json
import math
import struct
import threading
from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np
from datasketches import (
    frequent_items_error_type,
    frequent_strings_sketch,
    hll_sketch,
    kll_doubles_sketch,
    tgt_hll_type,
)
from numpy.typing import NDArray

from ledgerbeam.sketches import LARGEST, LIMIT, packed, shown, unpacked

_SAMPLES = 200  # size of the KLL sketch: a quantile's rank error is at most 1.3 % of all values in 99 of 100 cases
_BUFFERED = 4096
_MOST_SAMPLES = 2**18

_LG_REGISTERS = 12
_REGISTERS = 2**_LG_REGISTERS  # 4,096 of HyperLogLog: an estimate's error is at most 3.2 % in 95 of 100 cases
_MOST_COUPONS = 2_048

_HLL_HEAD = struct.Struct("<8B")
_HLL_FACTS = struct.Struct("<dddii")
_HLL_COMPACT, _HLL_UNORDERED = 8, 16
_HLL_MODE, _HLL_8 = 2, 8
_COUPONS, _FULL = b"c", b"r"

# Sizes of the frequent items sketches. A task keeps every value that is in more than 0.7 % of its calls; the merged
# sketch of all tasks keeps 12,288 values.
_LG_ITEMS, _LG_MERGED_ITEMS = 9, 14
_ITEM_CHARACTERS = 2_000
_SHOWN_ITEMS = 20


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


class Distinct:
    """The distinct texts of a task."""

    kind = "distinct"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sketch = hll_sketch(_LG_REGISTERS, tgt_hll_type.HLL_8)

    def add(self, text: str) -> None:
        """Add a value in the text form of `ledgerbeam.stats`."""
        with self._lock:
            self._sketch.update(text)

    def data(self) -> bytes:
        """Return the bytes of the registers or, while they are few, of the hashed values (coupons)."""
        data = self._sketch.serialize_compact()
        mode, begin_at = data[7] & 3, 4 * data[0]
        if mode == _HLL_MODE:
            return _distinct_bytes(np.empty(0, np.uint32), np.frombuffer(data, np.uint8, _REGISTERS, begin_at))
        coupons = np.frombuffer(data[begin_at:], "<u4")
        return _distinct_bytes(np.unique(coupons), None)


class MergedDistinct:
    """The distinct values of many tasks: each register is the maximum of this register in the sketches of all tasks."""

    def __init__(self) -> None:
        self._coupons = np.empty(0, np.uint32)
        self._registers: NDArray[np.uint8] | None = None

    def take(self, data: bytes) -> None:
        coupons, registers = _read_distinct(data)
        if registers is None and self._registers is None:
            self._coupons = np.union1d(self._coupons, coupons)
            if len(self._coupons) > _MOST_COUPONS:
                self._to_registers()
            return
        merged = self._to_registers()
        np.maximum(merged, _registers_of(coupons) if registers is None else registers, out=merged)

    def _to_registers(self) -> NDArray[np.uint8]:
        if self._registers is None:
            self._registers = _registers_of(self._coupons)
            self._coupons = self._coupons[:0]
        return self._registers

    def data(self) -> bytes:
        """Return the bytes of the registers or, while they are few, of the hashed values."""
        return _distinct_bytes(self._coupons, self._registers)

    def value(self) -> int:
        """Return the number of distinct values: exact while they are few, then an estimate."""
        return len(self._coupons) if self._registers is None else round(self._sketch().get_estimate())

    def interval(self, deviations: int = 2) -> tuple[float, float]:
        """Return the bounds of the number of distinct values, at 1, 2 or 3 standard deviations."""
        if self._registers is None:
            return float(len(self._coupons)), float(len(self._coupons))
        sketch = self._sketch()
        return sketch.get_lower_bound(deviations), sketch.get_upper_bound(deviations)

    def _sketch(self) -> Any:
        """Return the registers as a sketch of the library, which computes the estimate."""
        registers = self._to_registers()
        powers = np.ldexp(1.0, -registers.astype(np.int32))
        low = registers < 32
        zeros = int(np.count_nonzero(registers == 0))
        head = _HLL_HEAD.pack(10, 1, 7, _LG_REGISTERS, 0, _HLL_COMPACT | _HLL_UNORDERED, 0, _HLL_MODE | _HLL_8)
        facts = _HLL_FACTS.pack(0.0, float(powers[low].sum()), float(powers[~low].sum()), zeros, 0)
        return hll_sketch.deserialize(head + facts + registers.tobytes())

    def bounds(self) -> str:
        """Return as text the bounds between which the number is in 95 of 100 cases; empty if the number is exact."""
        low, high = self.interval()
        return "" if low == high else f"{math.floor(low):,} to {math.ceil(high):,}"


def _registers_of(coupons: NDArray[np.uint32]) -> NDArray[np.uint8]:
    registers = np.zeros(_REGISTERS, np.uint8)
    np.maximum.at(registers, coupons & np.uint32(_REGISTERS - 1), (coupons >> np.uint32(26)).astype(np.uint8))
    return registers


def _distinct_bytes(coupons: NDArray[np.uint32], registers: NDArray[np.uint8] | None) -> bytes:
    if registers is None:
        return packed(_COUPONS + coupons.astype("<u4").tobytes())
    return packed(_FULL + registers.tobytes())


def _read_distinct(data: bytes) -> tuple[NDArray[np.uint32], NDArray[np.uint8] | None]:
    data = unpacked(data)
    if data[:1] == _FULL and len(data) == 1 + _REGISTERS:
        registers = np.frombuffer(data, np.uint8, _REGISTERS, 1)
        if registers.max() > 63 or not registers.any():
            raise ValueError("expected registers from 0 to 63")
        return np.empty(0, np.uint32), registers
    if data[:1] == _COUPONS and len(data) % 4 == 1 and len(data) <= 1 + 4 * _MOST_COUPONS:
        coupons = np.frombuffer(data, "<u4", -1, 1).astype(np.uint32) if len(data) > 1 else np.empty(0, np.uint32)
        if len(coupons) and ((coupons[1:] <= coupons[:-1]).any() or (coupons >> np.uint32(26)).min() == 0):
            raise ValueError("expected values in ascending order")
        return coupons, None
    raise ValueError(f"expected a sketch of distinct values, found {len(data)} bytes of another form")


class Frequent:
    """The most frequent texts of a task, by count or by weight."""

    kind = "top"
    _lg_items = _LG_ITEMS

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sketch = frequent_strings_sketch(self._lg_items)
        self._total = 0
        self._merged = 0  # sum of the greatest errors of merged sketches

    def add(self, text: str, weight: int) -> None:
        """Add a value in the text form of `ledgerbeam.stats`."""
        with self._lock:
            self._total += weight
            self._sketch.update(text, weight)

    def data(self) -> bytes:
        """Return the bytes of the sketch: values, lower bounds of their weights, and the greatest error of a bound."""
        with self._lock:
            found = [self._offset(), self._total, _frequent_rows(self._sketch)]
        return packed(json.dumps(found, ensure_ascii=True, separators=(",", ":")).encode("ascii"))

    def _offset(self) -> int:
        """Return the greatest difference between the true weight of a text and its lower bound."""
        return self._merged + self._sketch.get_upper_bound(
            ""
        )  # no value has an empty text: the bound of any other text


class MergedFrequent(Frequent):
    """The most frequent texts of many tasks."""

    _lg_items = _LG_MERGED_ITEMS

    def take(self, data: bytes) -> None:
        rows, offset, total = _read_frequent(data)
        if self._total + total > LIMIT:
            raise ValueError(f"expected weights of at most {LIMIT} in all, found {self._total + total}")
        for text, weight in rows:
            self._sketch.update(text, weight)
        self._merged += offset
        self._total += total

    def rows(self) -> list[tuple[str, int, int]]:
        """Return each text with the lower and the upper bound of its weight, the heaviest text first."""
        unknown = self._offset()
        return [(text, weight, weight + unknown) for text, weight in _frequent_rows(self._sketch)]

    def value(self) -> list[dict[str, Any]]:
        return [
            {"value": _plain(text), "estimate": high, "lower": low, "upper": high}
            for text, low, high in self.rows()[:_SHOWN_ITEMS]
        ]

    def bounds(self) -> str:
        unknown = self._offset()
        return f"each up to {unknown:,} less" if unknown else ""


def _frequent_rows(sketch: Any) -> list[tuple[str, int]]:
    """Return the texts of a sketch with lower bounds of their weights, the heaviest first, then sorted by text."""
    if sketch.is_empty():
        return []
    found = sketch.get_frequent_items(frequent_items_error_type.NO_FALSE_NEGATIVES, 0)
    return sorted(((text, low) for text, _, low, _ in found if low), key=lambda row: (-row[1], row[0]))


def _read_frequent(data: bytes) -> tuple[list[tuple[str, int]], int, int]:
    try:
        offset, total, rows = json.loads(unpacked(data))
        texts, weights = [text for text, _ in rows], [weight for _, weight in rows]
        exact = [type(number) is int and 0 < number <= LIMIT for number in [total, *weights]]
        if not all(exact) or type(offset) is not int or not 0 <= offset <= total or sum(weights) > total:
            raise ValueError("expected positive weights that add up to the total of the sketch or less")
        if len(set(texts)) != len(texts) or any(len(text) > _ITEM_CHARACTERS for text in texts):
            raise ValueError(f"expected different texts of at most {_ITEM_CHARACTERS} characters")
        for text in texts:
            _plain(text)
            text.encode()
    except (TypeError, RecursionError, UnicodeError, json.JSONDecodeError) as error:
        raise ValueError(f"expected an offset, a weight and rows of a text and a weight, found {error}") from None
    return list(zip(texts, weights, strict=True)), offset, total


def _plain(text: str) -> Any:
    """Return the JSON value of a value in the text form of `ledgerbeam.stats`."""
    value = json.loads(text)
    if isinstance(value, dict) and list(value) == ["base64"] and isinstance(value["base64"], str):
        return value
    if not isinstance(value, str | int | float | None) or value in (math.inf, -math.inf) or text == "NaN":
        raise ValueError(f"expected the JSON text of a value, found {shown(text)}")
    return value
