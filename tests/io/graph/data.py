"""Data and functions of the tests of graphs; other processes import them from here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ledgerbeam.io import Sample, build_jsonl_index, encode_jsonl, encode_tar, publish_bytes, write_index
from ledgerbeam.io.graph import IndexedManifest, IteratorNode, Records


def write_lines(path: Path, count: int, first: int = 0) -> str:
    """Writes a JSONL source of `{"n": number, "length": ...}` and its index."""
    data, offsets = encode_jsonl([{"n": n, "length": 1 + n * 7 % 10} for n in range(first, first + count)])
    publish_bytes(str(path), data)
    write_index(f"{path}.idx", offsets)
    return str(path)


def write_text(path: Path, text: str) -> str:
    """Writes a JSONL source as it is, and its index."""
    path.write_text(text)
    write_index(f"{path}.idx", build_jsonl_index(str(path)))
    return str(path)


def write_samples(path: Path, count: int) -> str:
    """Writes a tar archive of pairs and its index."""
    data, offsets = encode_tar([Sample(f"s{n:03d}", {"bin": bytes([n]) * n, "json": b"{}"}) for n in range(count)])
    publish_bytes(str(path), data)
    write_index(f"{path}.idx", offsets)
    return str(path)


def numbers(count: int, first: int = 0, *, shuffle: bool = False, seed: int = 0) -> Records:
    """A leaf of numbers."""
    return Records(range(first, first + count), f"numbers {first}", shuffle=shuffle, seed=seed)


class CountingReader:
    """Numbers as records; counts what was read, by calls and by records."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.calls: list[list[int]] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int, /) -> int:
        return self.read_many([number])[0]

    def read_many(self, indices: list[int]) -> list[int]:
        self.calls.append(list(indices))
        return list(indices)

    @property
    def records(self) -> int:
        return sum(map(len, self.calls))


def double(item: int) -> int:
    return 2 * item


def triple(item: int) -> int:
    return 3 * item


def wrap(item: Any) -> list[Any]:
    return [item]


def is_even(item: int) -> bool:
    return item % 2 == 0


def is_not_third(item: int) -> bool:
    return item % 3 != 0


def spread(item: int) -> list[tuple[int, int]]:
    return [(item, piece) for piece in range(item % 4)]


def add_noise(item: Any, chance: Any) -> tuple[Any, float]:
    return item, chance.random()


def mix(item: Any, other: Any, chance: Any) -> tuple[Any, Any, float]:
    return item, other, chance.random()


def length(item: int) -> float:
    return 1 + item * 7 % 10


def record_length(item: dict[str, int]) -> float:
    return item["length"]


def manifest(path: Path, count: int, **kwargs: Any) -> IteratorNode:
    return IndexedManifest(write_lines(path, count), **kwargs)
