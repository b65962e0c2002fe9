"""Measurements of a run that its ledger stores: working time, set-ups of user code, and audits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ledgerbeam.ledger.model.values import integer, mapping, seconds, shown, text

MEASURED = ("read", "index", "function", "encode", "publish", "ledger")
"""The measured parts of a worker's time, in the order of the work."""

WAIT = "wait"
"""The rest of a worker's time: waiting for tasks, and the overhead of the runner."""

PARTS = (*MEASURED, WAIT)


@dataclass(frozen=True)
class WorkTime:
    """The time that the worker processes of a run spent, by part of the work.

    Attributes:
        workers: Number of worker processes, including those that died.
        seconds: Elapsed time by part, summed over the workers. The sum of all parts is the lifetime of the workers.
        cpu: Processor time by part, in seconds, summed over all threads of the workers.
    """

    workers: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    cpu: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def summed(cls, parts: Iterable[WorkTime]) -> WorkTime:
        """Return the sum of several measurements."""
        found = list(parts)
        return cls(
            sum(each.workers for each in found),
            _added(each.seconds for each in found),
            _added(each.cpu for each in found),
        )

    @property
    def total(self) -> float:
        """Sum of the seconds of all parts."""
        return sum(self.seconds.values())

    def as_dict(self) -> dict[str, Any]:
        """Return the measurement as a JSON object, for `read_work_time`."""
        times = {"seconds": self.seconds, "cpu": self.cpu}
        rounded = {name: {part: round(value, 6) for part, value in found.items()} for name, found in times.items()}
        return {"workers": self.workers, **rounded}


def read_work_time(value: Any) -> dict[str, Any]:
    """Check the recorded working time of a run. Raises ValueError."""
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


class SetUps(NamedTuple):
    """The set-ups of user code in a run. Each worker process imports and builds user code before its first task.

    Attributes:
        times: Number of set-ups.
        seconds: Sum of their durations.
        longest: Longest duration, in seconds.
    """

    times: int = 0
    seconds: float = 0.0
    longest: float = 0.0

    @classmethod
    def of(cls, found: Sequence[float]) -> SetUps:
        """Return the sum of set-ups, from their durations in seconds."""
        return cls(len(found), sum(found), max(found, default=0.0))

    def plus(self, other: SetUps) -> SetUps:
        """Return the sum of both."""
        return SetUps(self.times + other.times, self.seconds + other.seconds, max(self.longest, other.longest))


def read_set_ups(value: Any) -> dict[str, Any]:
    """Check the recorded set-ups of a run. Raises ValueError."""
    found = mapping(value)
    if found.keys() != set(SetUps._fields):
        raise ValueError(f"expected the set-ups of a run as {SetUps._fields}, found {sorted(found)!r:.80}")
    integer(found["times"])
    return {"times": found["times"], **{name: seconds(found[name]) for name in ("seconds", "longest")}}


class Audit(NamedTuple):
    """The results of the audits of a run.

    Attributes:
        tasks: Number of tasks that were computed again.
        differ: Number of these tasks whose results differ from the published ones.
        found: The first difference, for people; empty without a difference.
        job: Fingerprint of the audited job.
    """

    tasks: int = 0
    differ: int = 0
    found: str = ""
    job: str = ""


def read_audit(value: Any) -> dict[str, Any]:
    """Check the recorded audits of a run. Raises ValueError."""
    found = mapping(value)
    if found.keys() != set(Audit._fields):
        raise ValueError(f"expected the audits of a run as {Audit._fields}, found {sorted(found)!r:.80}")
    numbers = {name: integer(found[name]) for name in ("tasks", "differ")}
    return {**numbers, "found": text(found["found"]), "job": text(found["job"])}


def audit_of(runs: list[dict[str, Any]], fingerprint: str) -> Audit:
    """Return the audits of all runs of a job together. The last audit decides whether results differ.

    Args:
        runs: Rows of `LedgerStore.runs`.
        fingerprint: Fingerprint of the job. Audits of other jobs that used the ledger do not count.
    """
    rows = [Audit(**run["audit"]) for run in runs if run.get("audit") and run["audit"]["job"] == fingerprint]
    last = rows[-1] if rows else Audit()
    return Audit(sum(row.tasks for row in rows), last.differ, last.found, fingerprint)
