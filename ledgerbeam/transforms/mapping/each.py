"""`EachRecord` and `FilterRecords`: run the functions of `beam.Map` and `beam.Filter` in `ProcessTask`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ledgerbeam.ledger import NoneTask, Task
from ledgerbeam.ledger.model.job import Json
from ledgerbeam.user_code.functions import code_identity


@dataclass(frozen=True)
class EachRecord:
    """A function of one task, for `ProcessTask`, that calls a function with each record, as `beam.Map` does.

    The result replaces the record; None drops it. `MapRecords` can do more: batches, `Route`, `Reject`, reasons for
    `Drop`, and results that are encoded one by one.

    Attributes:
        function: Takes a record and returns a record or None.
    """

    function: Callable[[Any], Any]

    def __repr__(self) -> str:
        return f"EachRecord({_name(self.function)})"

    def identity(self) -> dict[str, Json]:
        """Return everything that affects the results: the function and its code."""
        return {"each": _name(self.function), **code_identity(self.function)}

    def __call__(self, task: Task) -> Task | NoneTask:
        """Return the task with the results."""
        return _replaced(task, [result for record in task.records if (result := self.function(record)) is not None])


@dataclass(frozen=True)
class FilterRecords:
    """A function of one task, for `ProcessTask`, that keeps the records for which a predicate is true.

    Works as `beam.Filter`.

    Attributes:
        predicate: Takes a record and returns whether to keep it.
    """

    predicate: Callable[[Any], Any]

    def __repr__(self) -> str:
        return f"FilterRecords({_name(self.predicate)})"

    def identity(self) -> dict[str, Json]:
        """Return everything that affects the results: the predicate and its code."""
        return {"filter": _name(self.predicate), **code_identity(self.predicate)}

    def __call__(self, task: Task) -> Task | NoneTask:
        """Return the task with the kept records."""
        return _replaced(task, [record for record in task.records if self.predicate(record)])


def _replaced(task: Task, records: list[Any]) -> Task | NoneTask:
    return task.replace(records=records) if records else NoneTask(task)


def _name(function: Callable[[Any], Any]) -> str:
    return getattr(function, "__qualname__", None) or type(function).__qualname__
