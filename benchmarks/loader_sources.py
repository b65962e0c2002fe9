"""Sequences of samples as an engineer writes them by hand, for random access by a map-style dataset or by Grain.

Each sequence is pickled as its arguments, and opens its files again when it is unpickled.
"""

from __future__ import annotations

import json
import os
import tarfile
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby
from typing import Any

import numpy as np
import orjson


class Lines:
    """Lines of JSON: one pread and orjson for each.

    Args:
        path: The file.
        index: The file of the offsets of the lines, u64, with one more at the end.
    """

    def __init__(self, path: str, index: str) -> None:
        self._made_of = path, index
        self.file = os.open(path, os.O_RDONLY)
        self.offsets = np.fromfile(index, "<u8").tolist()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._made_of

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, number: int) -> Any:
        start, stop = self.offsets[number], self.offsets[number + 1]
        return orjson.loads(os.pread(self.file, stop - start, start))


class Samples:
    """Samples of a tar archive: one pread for each, which is cut at the places of its members.

    Args:
        path: The archive.
        places: The file that `write_places` has written.
    """

    def __init__(self, path: str, places: str) -> None:
        self._made_of = path, places
        self._file = os.open(path, os.O_RDONLY)
        with open(places, "rb") as file:
            self._places = orjson.loads(file.read())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._made_of

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number: int) -> dict[str, Any]:
        key, start, size, members = self._places[number]
        data = os.pread(self._file, size, start)
        sample = {"__key__": key}
        for name, begin, end in members:
            sample[name] = data[begin:end]
        return sample


def write_places(path: str, places: str) -> None:
    """Write key, start and size of each sample of an archive, and name, start and end of each member in the sample."""
    found = []
    with tarfile.open(path) as archive:
        for key, group in groupby(archive, lambda member: member.name.partition(".")[0]):
            members = list(group)
            start, last = members[0].offset_data, members[-1]
            each = [
                (one.name.partition(".")[2], one.offset_data - start, one.offset_data - start + one.size)
                for one in members
            ]
            found.append((key, start, last.offset_data + last.size - start, each))
    with open(places, "w", encoding="utf-8") as file:
        json.dump(found, file)


class Rows:
    """Rows of a Parquet file. The row group that was read last stays decoded in memory.

    Args:
        path: The file.
    """

    def __init__(self, path: str) -> None:
        import pyarrow.parquet as pq  # noqa: PLC0415 - each worker of another format would take a second for it

        self._path = path
        self._file = pq.ParquetFile(path, memory_map=True)
        facts = self._file.metadata
        self.groups = [facts.row_group(number).num_rows for number in range(facts.num_row_groups)]
        self._ends = list(accumulate(self.groups))
        self._kept, self._rows = -1, list[Any]()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._path,)

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, number: int) -> dict[str, Any]:
        group = bisect_right(self._ends, number)
        if group != self._kept:
            self._kept, self._rows = group, self._file.read_row_group(group).to_pylist()
        row: dict[str, Any] = self._rows[number - self._ends[group]]  # from the end of the group
        return row


def by_groups(groups: Sequence[int], seed: int = 0) -> list[int]:
    """Return a random order of rows that reads each row group once: random row groups, and random rows in each.

    Args:
        groups: Number of rows of each row group.
        seed: Seed of the order.
    """
    chance = np.random.default_rng(seed)
    ends = np.cumsum(groups)
    found: list[int] = []
    for group in chance.permutation(len(groups)).tolist():
        found += (ends[group] - groups[group] + chance.permutation(groups[group])).tolist()
    return found


class Reordered:
    """A sequence in another order, for a loader that takes no order.

    Args:
        items: The sequence.
        order: Numbers of the items, in the new order.
    """

    def __init__(self, items: Any, order: Sequence[int]) -> None:
        self._items = items
        self._order = order

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, place: int) -> Any:
        return self._items[self._order[place]]


def canonical(sample: Any) -> Iterator[bytes]:
    """Yield the content of a sample as bytes, the same for equal samples of ledgerbeam and of the sequences above."""
    if isinstance(sample, np.ndarray):
        yield f"{sample.dtype} {sample.shape}".encode()
        yield sample.tobytes()
    elif any(isinstance(value, bytes) for value in sample.values()):
        key = getattr(sample, "key", None)
        yield str(sample["__key__"] if key is None else key).encode()
        for name in sorted(set(sample) - {"__key__"}):
            yield name.encode()
            yield sample[name]
    else:
        yield orjson.dumps(sample, option=orjson.OPT_SORT_KEYS)
