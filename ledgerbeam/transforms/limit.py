"""The limit of ``--limit-tasks``: exactly so many planned tasks are done, whatever the number of workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection

from ledgerbeam.ledger import FailedTask, NoneTask, Task
from ledgerbeam.ledger.worker.task_budget import TaskBudget
from ledgerbeam.transforms.plan import StreamedTasks

__all__ = ["LimitTasks"]


@dataclass
class LimitTasks(beam.PTransform[PCollection[Task], PCollection[Task]]):
    """Lets as many planned tasks pass as the budget allows, and drops the others: they stay open.

    Attributes:
        budget: The budget that the workers of a wave share.
    """

    budget: TaskBudget

    def expand(self, tasks: PCollection[Task]) -> PCollection[Task]:
        """Apply the transform to what `PlanTasks` returns."""
        return tasks | "LimitTasks" >> beam.ParDo(_Limit(self.budget)).with_output_types(Any)


class _Limit(beam.DoFn):
    def __init__(self, budget: TaskBudget) -> None:
        self._budget = budget

    def process(self, element: Any) -> Iterator[Task | NoneTask | FailedTask | StreamedTasks]:
        if not isinstance(element, StreamedTasks):
            if self._budget.claim(1):
                yield element
        elif granted := self._budget.claim(len(element.tasks)):
            yield dataclasses.replace(element, tasks=element.tasks[:granted], spans=element.spans[:granted])
