"""The second half of an exchange: what is done with the merged records of a part of a bucket."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np

from ledgerbeam.errors import IndexError_, SourceError, StorageError
from ledgerbeam.io import Format
from ledgerbeam.io.exchange.payloads import is_json_text
from ledgerbeam.io.jsonl.lines import JsonLines
from ledgerbeam.ledger import FailedTask, NoneTask, Task
from ledgerbeam.ledger.model.user_errors import failed_by, message_of
from ledgerbeam.sources.buckets import GatheredRecords
from ledgerbeam.transforms.function import ConvertRecords

__all__ = ["KeepRecords"]


@dataclass(frozen=True)
class KeepRecords:
    """A function of one task, for `ProcessTask`, that writes the gathered records in their order.

    Attributes:
        conversion: What a record becomes for the format; a name of `io.conversion.CONVERSIONS`.
        output_format: Format that the records are written in, or its name.
    """

    conversion: str
    output_format: str | Format

    def __call__(self, task: Task) -> Task | NoneTask | FailedTask:
        """Return the task with records of the format."""
        gathered: GatheredRecords = task.records
        try:
            if self.output_format == "jsonl":
                lines = _as_lines(gathered)
                if lines is not None:
                    return task.replace(records=lines) if len(lines) else NoneTask(task)
            records = list(gathered.records())
        except (SourceError, IndexError_, StorageError) as error:
            return failed_by(error, task, message_of(error))
        return ConvertRecords(self.conversion, self.output_format)(task.replace(records=records))


def _as_lines(gathered: GatheredRecords) -> JsonLines | None:
    """Return the records as lines of JSON; None if they are not all JSON as they are."""
    payloads = list(chain.from_iterable(part.payloads for part in gathered))
    if not all(map(is_json_text, payloads)):
        return None
    offsets = np.zeros(len(payloads) + 1, np.uint64)
    np.cumsum(np.fromiter(map(len, payloads), np.uint64, len(payloads)) + np.uint64(1), out=offsets[1:])
    payloads.append(b"")
    return JsonLines(b"\n".join(payloads), offsets)
