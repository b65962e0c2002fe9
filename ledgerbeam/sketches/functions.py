"""Exact counts of the values that each function of a job received, returned, dropped and rejected."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from ledgerbeam.sketches import LIMIT, packed, shown, unpacked


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
