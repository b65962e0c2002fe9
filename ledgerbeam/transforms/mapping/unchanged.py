"""Writing of records that are not changed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ledgerbeam.errors import LedgerbeamError
from ledgerbeam.io import Format
from ledgerbeam.ledger import FailedTask, NoneTask, Task
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.sources.forms import PlacedRecords
from ledgerbeam.sources.listed import RemainingRecords
from ledgerbeam.transforms.exchange.gather import lines_of
from ledgerbeam.transforms.mapping.function import ConvertRecords
from ledgerbeam.transforms.mapping.outcomes import TaskResults
from ledgerbeam.user_code.guards import failed_by, message_of

DUPLICATE = "duplicate"  # drop reason of a record whose key another kept record has


@dataclass(frozen=True)
class KeepPlaced:
    """A function of one task, for `ProcessTask`, that writes placed records, or rows of a table.

    From JSONL to JSONL, records keep their bytes. Other records are converted as by ``ledgerbeam convert``.
    """

    conversion: str  # name of the conversion to the format, see `io.conversion`
    output_format: str | Format  # format of the outputs, or its name
    reason: str = DUPLICATE  # drop reason of the records that do not remain

    def __call__(self, task: Task) -> Task | NoneTask | FailedTask:
        """Return the task with the records, and the counts."""
        if hasattr(task.records, "num_rows"):
            return task if task.records.num_rows else NoneTask(task)
        found: PlacedRecords | RemainingRecords | list[Any] = task.records
        if isinstance(found, list):  # of sources whose records have no places, such as shards of Shar
            return ConvertRecords(self.conversion, self.output_format)(task)
        dropped = found.dropped if isinstance(found, RemainingRecords) else 0
        placed = found.records if isinstance(found, RemainingRecords) else found
        kept, drops = len(placed), {self.reason: dropped} if dropped else {}
        if not kept:
            return NoneTask(task, counts=RecordCounts(dropped, 0, drops))
        counts = RecordCounts(kept + dropped, kept, drops, {}, {"": kept})
        try:
            if self.output_format == "jsonl":
                lines = lines_of(part.payloads() for part in placed.parts)
                if lines is not None:
                    return task.replace(records=TaskResults({"": lines}, counts))
            records = [record for part in placed.parts for record in part.records()]
        except LedgerbeamError as error:
            return failed_by(error, task, message_of(error))
        done = ConvertRecords(self.conversion, self.output_format)(task.replace(records=records))
        if not isinstance(done, Task):
            return done
        results: Any = done.records
        return done.replace(records=replace(results, counts=counts))
