"""What a function of a job may return for a record besides a record, None or a list: `Drop`, `Reject` and `Route`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Drop", "Reject", "Route"]


@dataclass(frozen=True, slots=True)
class Drop:
    """A record that is left out on purpose, counted under its reason.

    Attributes:
        reason: A category, such as ``too short``; a task has a hundred different ones at most.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Reject:
    """A record that is not as it should be: with ``--on-error reject`` it is kept aside with its raw bytes.

    With ``--on-error fail``, the default, its task fails.

    Attributes:
        reason: A category, such as ``no text``; a task has a hundred different ones at most.
        error: What is wrong with this record, for people.
    """

    reason: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class Route:
    """A record, or a list of records, for a dataset of its own below the output folder.

    Attributes:
        name: Of the dataset and of its folder: one path component that does not begin with ``_`` or a dot.
        record: A record or a list of records.
    """

    name: str
    record: Any
