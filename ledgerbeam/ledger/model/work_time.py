"""Where the time of the worker processes of a run went."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ledgerbeam.ledger.model.values import integer, mapping, seconds, shown

MEASURED = ("read", "index", "function", "encode", "publish", "ledger")
"""The parts of a worker's time that are measured, in the order of the work."""

WAIT = "wait"
"""What is left of a worker's time: waiting for tasks, and the runner around them."""

PARTS = (*MEASURED, WAIT)


@dataclass(frozen=True)
class WorkTime:
    """What worker processes spent their time on.

    Attributes:
        workers: How many there were, those that died among them.
        seconds: By part, added up over the workers; together the time for which they lived.
        cpu: Seconds of processors, likewise; together those of all threads of the workers.
    """

    workers: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    cpu: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def summed(cls, parts: Iterable[WorkTime]) -> WorkTime:
        """Return several together."""
        found = list(parts)
        return cls(
            sum(each.workers for each in found),
            _added(each.seconds for each in found),
            _added(each.cpu for each in found),
        )

    @property
    def total(self) -> float:
        """Seconds of all parts."""
        return sum(self.seconds.values())

    def as_dict(self) -> dict[str, Any]:
        """Return it as a JSON object, for `read_work_time`."""
        times = {"seconds": self.seconds, "cpu": self.cpu}
        rounded = {name: {part: round(value, 6) for part, value in found.items()} for name, found in times.items()}
        return {"workers": self.workers, **rounded}


def read_work_time(value: Any) -> dict[str, Any]:
    """Check what a ledger holds of the time of a run. Raises ValueError."""
    found = mapping(value)
    if not {"seconds", "cpu"} <= found.keys():
        raise ValueError(f"expected the time of a run in seconds and cpu, found {shown(sorted(found))}")
    times = {name: _read_parts(found[name]) for name in ("seconds", "cpu")}
    return {"workers": integer(found.get("workers", 0)), **times}


def _read_parts(value: Any) -> dict[str, float]:
    found = mapping(value)
    if not found.keys() <= set(PARTS):
        raise ValueError(f"expected times of {', '.join(PARTS)}, found {shown(sorted(found))}")
    return {part: seconds(found[part]) for part in PARTS if part in found}


def _added(times: Iterable[Mapping[str, float]]) -> dict[str, float]:
    found = list(times)
    return {part: sum(each.get(part, 0.0) for each in found) for part in PARTS if any(part in each for each in found)}
