"""Sketches of values, their bytes, and their merged results.

    count      the sum of whole numbers
    observe    exact count, minimum, maximum and sum of numbers, and samples for quantiles (KLL)
    distinct   the number of distinct values (HyperLogLog)
    top        the most frequent values (frequent items)
    functions  exact counts of the values of each function of a job. User functions cannot make it

Apache DataSketches computes the sketches, but does not check the bytes that it reads. So this package stores a sketch
in its own format, as the values that the sketch retains, and checks every value. Merging is deterministic.

A task fills the object that `begin` returns. The object that `merging` returns merges the bytes of the sketches of many
tasks, in the order of the tasks. `observe`, `distinct` and `top` import their libraries when they are first used.
"""

from __future__ import annotations

import importlib
import json
import threading
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

LIMIT = 2**63 - 1  # the greatest count, or weight, of one call
LARGEST = 2.0**960  # the greatest number that can be observed: the sum of `LIMIT` such numbers is finite
MOST_BYTES = 2**20  # greatest size of the sketch of a task, unpacked
_PLAIN, _ZIPPED = b"\x01", b"\x02"

_CLASSES = {
    "count": ("", "Counted", "Counted"),
    "observe": (".approximate", "Observed", "MergedObserved"),
    "distinct": (".approximate", "Distinct", "MergedDistinct"),
    "top": (".approximate", "Frequent", "MergedFrequent"),
    "functions": ("", "MergedFunctions", "MergedFunctions"),
}

KINDS = tuple(_CLASSES)  # the kinds of statistics, by the name of the function that makes them


class Merging(Protocol):
    """The merged sketches of tasks."""

    def take(self, data: bytes) -> None:
        """Add a sketch. ValueError if the bytes are not a sketch of this kind."""

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
    """Return an object that merges sketches of a kind; ValueError for an unknown kind."""
    if kind not in _CLASSES:
        raise ValueError(f"expected one of {', '.join(KINDS)}, found {shown(kind)}")
    module, _, merged = _CLASSES[kind]
    return _found(module, merged)


def combined(kind: str, datas: Iterable[bytes]) -> bytes:
    """Return the sketches of a task, merged into one. ValueError for bytes that are not a sketch of this kind."""
    merged = merging(kind)
    for data in datas:
        merged.take(data)
    return merged.data()


def _found(module: str, name: str) -> Any:
    return getattr(importlib.import_module(__name__ + module), name)()


class Counted:
    """An exact count, which may have any size."""

    kind = "count"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total = 0

    def add(self, number: int) -> None:
        with self._lock:
            self._total += number

    def take(self, data: bytes) -> None:
        text = data.decode("ascii", "replace") if len(data) <= 30 else ""
        if not (text.isascii() and text.isdigit()) or (text[0] == "0" and text != "0"):
            raise ValueError(f"expected a whole number in decimal digits, found {shown(data)}")
        self._total += int(text)

    def data(self) -> bytes:
        return str(self._total).encode("ascii")

    def value(self) -> int:
        return self._total

    def bounds(self) -> str:
        return ""


@dataclass
class FunctionCounts:
    """Counts of the values of one function. A value that it neither dropped nor rejected has one result or more."""

    function: str  # label of the function
    received: int = 0
    returned: int = 0  # results: the values that the next function received, or the results that can be written
    dropped: dict[str, int] = field(default_factory=dict)  # by reason
    rejected: dict[str, int] = field(default_factory=dict)  # by reason

    def add(self, other: FunctionCounts) -> None:
        """Add the counts of another task."""
        self.received += other.received
        self.returned += other.returned
        for own, others in ((self.dropped, other.dropped), (self.rejected, other.rejected)):
            for reason, number in others.items():
                own[reason] = own.get(reason, 0) + number


class MergedFunctions:
    """The counts of the functions of a job, in order, over tasks."""

    kind = "functions"

    def __init__(self) -> None:
        self.functions: dict[tuple[int, str], FunctionCounts] = {}  # by number and label

    def add(self, number: int, counts: FunctionCounts) -> None:
        """Add the counts of one function of a task, which has this number in the job."""
        self.functions.setdefault((number, counts.function), FunctionCounts(counts.function)).add(counts)

    def take(self, data: bytes) -> None:
        rows = json.loads(unpacked(data))
        if not isinstance(rows, list):
            raise ValueError(f"expected a list of functions, found {shown(rows)}")
        for row in rows:
            if not isinstance(row, list) or not _is_row(*row):
                raise ValueError(f"expected the counts of a function, found {shown(row)}")
            number, *fields = row
            self.add(number, FunctionCounts(*fields))

    def data(self) -> bytes:
        rows = [[number, *vars(counts).values()] for (number, _), counts in sorted(self.functions.items())]
        return packed(json.dumps(rows, separators=(",", ":"), sort_keys=True).encode())

    def value(self) -> list[dict[str, Any]]:
        return [asdict(counts) for _, counts in sorted(self.functions.items())]

    def bounds(self) -> str:
        return ""


def _is_row(*fields: Any) -> bool:
    if len(fields) != 6:
        return False
    number, label, received, returned, dropped, rejected = fields
    named = [one for counts in (dropped, rejected) if isinstance(counts, dict) for one in counts.values()]
    is_shaped = isinstance(label, str) and isinstance(dropped, dict) and isinstance(rejected, dict)
    return is_shaped and all(type(one) is int and 0 <= one <= LIMIT for one in (number, received, returned, *named))


def packed(data: bytes) -> bytes:
    """Return a version byte and the bytes, compressed if that is shorter. ValueError if they exceed `MOST_BYTES`."""
    if len(data) > MOST_BYTES:
        raise ValueError(f"expected a sketch of at most {MOST_BYTES} bytes, found {len(data)}")
    zipped = zlib.compress(data, 6) if len(data) > 64 else data
    return _ZIPPED + zipped if len(zipped) < len(data) else _PLAIN + data


def unpacked(data: bytes) -> bytes:
    """Return the bytes of a sketch, given a result of `packed`. ValueError for data that `packed` cannot return."""
    if len(data) > MOST_BYTES + 1:
        raise ValueError(f"expected a sketch of at most {MOST_BYTES} bytes, found {len(data)}")
    if data[:1] == _PLAIN:
        return data[1:]
    if data[:1] != _ZIPPED:
        raise ValueError(f"expected version 1 or 2 of a sketch, found {shown(data[:1])}")
    unzip = zlib.decompressobj()
    try:
        found = unzip.decompress(data[1:], MOST_BYTES)
    except zlib.error as error:
        raise ValueError(f"expected compressed bytes: {error}") from None
    if not unzip.eof or unzip.unused_data:
        raise ValueError(f"expected one compressed sketch of at most {MOST_BYTES} bytes")
    return found


def shown(value: Any) -> str:
    """Return a value as text for a message, at most 60 characters."""
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
