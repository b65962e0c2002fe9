"""Numbers of distinct values (HyperLogLog), from the hashes (coupons) of few values or the registers of many."""

from __future__ import annotations

import math
import struct
import threading
from typing import Any

import numpy as np
from datasketches import hll_sketch, tgt_hll_type
from numpy.typing import NDArray

from ledgerbeam.sketches import packed, unpacked

_LG_REGISTERS = 12
_REGISTERS = 2**_LG_REGISTERS  # 4,096 of HyperLogLog: an estimate's error is at most 3.2 % in 95 of 100 cases
_MOST_COUPONS = 2_048

_HLL_HEAD = struct.Struct("<8B")
_HLL_FACTS = struct.Struct("<dddii")
_HLL_COMPACT, _HLL_UNORDERED = 8, 16
_HLL_MODE, _HLL_8 = 2, 8
_COUPONS, _FULL = b"c", b"r"


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
        """Return the bytes of the registers or, while they are few, of the hashed values."""
        return _distinct_bytes(*_read_hll(self._sketch.serialize_compact()))


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


def _read_hll(data: bytes) -> tuple[NDArray[np.uint32], NDArray[np.uint8] | None]:
    """Return the hashed values (coupons) of a compact HyperLogLog sketch of the library, or all its registers."""
    mode, begin_at = data[7] & 3, 4 * data[0]
    if mode == _HLL_MODE:
        return np.empty(0, np.uint32), np.frombuffer(data, np.uint8, _REGISTERS, begin_at)
    return np.unique(np.frombuffer(data, "<u4", -1, begin_at)) if len(data) > begin_at else np.empty(0, np.uint32), None


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
