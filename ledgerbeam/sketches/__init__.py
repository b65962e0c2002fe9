"""Sketches of values, their bytes, and their merged results.

    count      the sum of whole numbers
    observe    exact count, minimum, maximum and sum of numbers, and samples for quantiles (KLL)
    distinct   the number of distinct values (HyperLogLog)
    top        the most frequent values (frequent items)

Apache DataSketches computes the sketches. Their bytes have a format of this package, because that library does not
check its input. They hold the retained values of a sketch. Every part is checked, and merging is deterministic.

Each kind has two classes: a task fills the first (`begin`), the second merges the bytes of tasks in order (`merging`).
The module of a kind, and its libraries, are imported with the first sketch of that kind.
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
    """The merged sketches of tasks."""

    def take(self, data: bytes) -> None:
        """Add a sketch.

        Raises:
            ValueError: The bytes are not a sketch of this kind.
        """

    def data(self) -> bytes:
        """Return the bytes of the merged sketch."""

    def value(self) -> Any:
        """Return the merged result as a JSON value."""

    def bounds(self) -> str:
        """Return the error bounds of the result as text; empty if it is exact."""


def begin(kind: str) -> Any:
    """Return an empty sketch for a task. It has `kind`, a thread-safe `add`, and `data`, which returns its bytes."""
    module, live, _ = _CLASSES[kind]
    return _found(module, live)


def merging(kind: str) -> Merging:
    """Return an object that merges sketches of a kind.

    Raises:
        ValueError: The kind does not exist.
    """
    if kind not in _CLASSES:
        raise ValueError(f"expected one of {', '.join(KINDS)}, found {shown(kind)}")
    module, _, merged = _CLASSES[kind]
    return _found(module, merged)


def combined(kind: str, datas: Iterable[bytes]) -> bytes:
    """Merge the sketches that several steps of a task have filled.

    Raises:
        ValueError: The bytes are not sketches of this kind.
    """
    merged = merging(kind)
    for data in datas:
        merged.take(data)
    return merged.data()


def _found(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)()
