"""Sketches of values: what they are made of while a task runs, their bytes, and what many of them come to.

    count      whole numbers, summed
    observe    numbers: how many, least, greatest and sum, all exact, and samples for quantiles (KLL)
    distinct   how many different values (HyperLogLog)
    top        the values that are met most often (frequent items)

Apache DataSketches makes the sketches. Their bytes here are not those of that library, which trusts what it reads: they
hold what the sketch has retained, every part of it is checked, and what was checked is merged the same way each time.
A class of each kind is filled in a task (`begin`), and another one takes in bytes of tasks, in order (`merging`).
The module of a kind is imported when the first sketch of that kind is made: libraries come with it.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any, Protocol

from ledgerbeam.sketches.packing import shown

_CLASSES = {
    "count": ("counted", "Counted", "Counted"),
    "observe": ("observed", "Observed", "MergedObserved"),
    "distinct": ("distinct", "Distinct", "MergedDistinct"),
    "top": ("frequent", "Frequent", "MergedFrequent"),
}

KINDS = tuple(_CLASSES)
"""The kinds of statistics, by the name of the function that makes them."""


class Merging(Protocol):
    """What the sketches of tasks come to."""

    def take(self, data: bytes) -> None:
        """Take in a sketch.

        Raises:
            ValueError: These bytes are none of this kind.
        """

    def data(self) -> bytes:
        """Return what was taken in as the bytes of one sketch."""

    def value(self) -> Any:
        """Return what it comes to, as a value for JSON."""

    def bounds(self) -> str:
        """Return how far off that may be, for people; empty if it is exact."""


def begin(kind: str) -> Any:
    """Return an empty sketch of a task: it has `kind`, `add`, which any thread may call, and `data`, its bytes."""
    module, live, _ = _CLASSES[kind]
    return _found(module, live)


def merging(kind: str) -> Merging:
    """Return what takes in sketches of a kind.

    Raises:
        ValueError: There is no such kind.
    """
    if kind not in _CLASSES:
        raise ValueError(f"expected one of {', '.join(KINDS)}, found {shown(kind)}")
    module, _, merged = _CLASSES[kind]
    return _found(module, merged)


def combined(kind: str, datas: Iterable[bytes]) -> bytes:
    """Return one sketch of a task that several steps have filled.

    Raises:
        ValueError: The bytes are none of this kind.
    """
    merged = merging(kind)
    for data in datas:
        merged.take(data)
    return merged.data()


def _found(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)()
