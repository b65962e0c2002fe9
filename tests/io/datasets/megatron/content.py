"""Content of the datasets in the tests: the same for our builder, Megatron's and the golden files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

DTYPES = ("uint8", "int8", "int16", "int32", "int64", "float64", "float32", "uint16")

Sequence: TypeAlias = "tuple[NDArray[Any], int]"
"""Tokens and mode."""

Document: TypeAlias = list[Sequence]

SHAPES: dict[str, list[list[int]]] = {
    "one": [[3]],
    "mixed": [[3], [2, 4], [], [0], [0, 5, 0], [], [1], [17, 0, 2]],
    "no-tokens": [[0], [], [0, 0]],
    "no-documents": [],
}
"""Lengths of the sequences of each document."""


def tokens(dtype: str, count: int, seed: int) -> NDArray[Any]:
    """Values from all over the range of a dtype, both ends included."""
    chance = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return chance.standard_normal(count).astype(kind)
    limits = np.iinfo(kind)
    values = chance.integers(limits.min, limits.max, count, dtype=kind, endpoint=True)
    values[:2] = np.array([limits.min, limits.max], kind)[:count]
    return values


def documents(dtype: str, shape: str) -> list[Document]:
    """Return the documents of a shape; the modes of their sequences count up from -3."""
    seeds = iter(range(1000))
    return [
        [(tokens(dtype, length, seed), seed % 7 - 3) for length, seed in zip(lengths, seeds, strict=False)]
        for lengths in SHAPES[shape]
    ]


def golden() -> Iterator[tuple[str, str, str, bool]]:
    """Name, dtype, shape and whether multimodal, of every golden dataset."""
    for dtype in DTYPES:
        yield f"{dtype}-mixed", dtype, "mixed", False
    for shape in ("one", "no-tokens", "no-documents"):
        yield f"int32-{shape}", "int32", shape, False
    yield "uint16-modes", "uint16", "mixed", True
