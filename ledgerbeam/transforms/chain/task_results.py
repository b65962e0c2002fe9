"""Results of a function for the records of a task: datasets by route, rejects and counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ledgerbeam.ledger.model.accounts import RecordCounts, Statistic


@dataclass(frozen=True, slots=True)
class Rejection:
    """The reason why a record of a task is rejected.

    Attributes:
        position: Position in the records of the task, from 0.
        reason: Category.
        error: Description of the problem, shortened and without secrets.
        at: ``package/file.py:line`` of the code that raised, the same on every host; empty without an exception.
    """

    position: int
    reason: str
    error: str = ""
    at: str = ""


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    """A rejected record with its position and bytes: one row of a file of rejects.

    Attributes:
        source: URL of the source. For a pack, the URL of the member.
        record: Number of the record in the source, from 0.
        start: Offset of its first byte in the source, or in the decompressed data of a compressed source.
        stop: Offset after its last byte.
        raw: Bytes of the record in the source.
        rejection: The reason.
    """

    source: str
    record: int
    start: int
    stop: int
    raw: bytes
    rejection: Rejection


@dataclass(frozen=True)
class TaskResults:
    """The results of `MapRecords` for a task.

    Attributes:
        datasets: Records to write, by route, in the form that the encoder of the job takes. Records without a route
            have the empty name.
        counts: Counts of kept, dropped and rejected records.
        rejects: Rejected records, in order.
        statistics: Statistics that the function observed, by name.
    """

    datasets: Mapping[str, Any]
    counts: RecordCounts
    rejects: Sequence[RejectedRecord] = ()
    statistics: Mapping[str, Statistic] = field(default_factory=dict)
