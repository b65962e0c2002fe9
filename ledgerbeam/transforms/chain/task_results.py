"""The results of a function for the records of a task, before they are written: datasets by route, rejects, counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ledgerbeam.ledger.model.accounts import RecordCounts, Statistic


@dataclass(frozen=True, slots=True)
class Rejection:
    """A record of a task that cannot be used.

    Attributes:
        position: In the records of the task, from 0.
        reason: A category.
        error: What is wrong with it, for people; cut and without secrets.
        at: ``package/file.py:line`` of the code that raised, the same on every host; empty if nothing was raised.
    """

    position: int
    reason: str
    error: str = ""
    at: str = ""


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    """A rejected record with its place and its bytes, as a row of the file of rejects.

    Attributes:
        source: URL of the source; of the member, if it is a pack.
        record: Its number in the source, from 0.
        start: Its first byte in the source, of the decompressed data if that is compressed.
        stop: One past its last byte.
        raw: Its bytes in the source.
        rejection: Why.
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
        datasets: The records to write, by route, as the job's encoder takes them; the empty name has no route.
        counts: What became of the records.
        rejects: The rejected records, in order.
        statistics: What the function observed, by name.
    """

    datasets: Mapping[str, Any]
    counts: RecordCounts
    rejects: Sequence[RejectedRecord] = ()
    statistics: Mapping[str, Statistic] = field(default_factory=dict)
