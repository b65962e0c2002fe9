"""Recomputation of a finished task. The audit of a job compares its results with the published outputs.

A function that can be audited has a method `recomputed` (`Recomputable`). It calls the user's object with the records
in reverse order, and returns the results in the order of the records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from ledgerbeam.ledger import Task
from ledgerbeam.user_code.loading import Reference


class NotRecomputedError(Exception):
    """The function raised for a record that it mapped before."""


@dataclass(frozen=True)
class Recomputed:
    """The results of the last records of a task.

    Attributes:
        first: Position of the first recomputed record in the task; 0 if all records were recomputed.
        records: Number of records of the task.
        datasets: Results by route, in the order of the records and in the form that the encoder of the job takes.
        origins: For each route, the positions of the records of its results, ascending.
        place: Returns the name of the record at a position, for messages.
    """

    first: int
    records: int
    datasets: Mapping[str, Any]
    origins: Mapping[str, Sequence[int]]
    place: Callable[[int], str]


class Recomputable(Protocol):
    """A function of one task that can be audited. Picklable."""

    @property
    def takes_blocks(self) -> bool:
        """Whether the function takes records as `sources.RecordBlocks`."""

    @property
    def reference(self) -> Reference:
        """The user's object."""

    @property
    def step(self) -> int:
        """Number of records in a batch, or 1. A partial recomputation starts at a multiple of it."""

    @property
    def marks(self) -> bool:
        """Whether the function takes `sources.Unreadable` in the place of records that cannot be decoded."""

    def with_storage_options(self, options: Mapping[str, Any]) -> Self:
        """Return the function with the storage options for its files."""

    def recomputed(self, task: Task, is_late: Callable[[], bool]) -> Recomputed:
        """Compute the results of a task again, from the last record to the first.

        Args:
            task: The task with its records.
            is_late: Called after each call of the user's object. True ends the recomputation.

        Raises:
            NotRecomputedError: The user's object raised, although it did not before.
            LedgerbeamError: The user's object cannot be imported or built.
        """
