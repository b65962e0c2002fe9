"""Exact duplicates: find the records of a key to remove, and write the remaining records of a task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, ClassVar

import numpy as np

from ledgerbeam import stats
from ledgerbeam._base.names import as_unicode
from ledgerbeam._base.redaction import without_secrets
from ledgerbeam.errors import LedgerbeamError, SourceError, StorageError
from ledgerbeam.io import Format
from ledgerbeam.ledger import FailedTask, NoneTask, Task
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.sources.buckets import GatheredRecords
from ledgerbeam.sources.listed import RemainingRecords, file_key
from ledgerbeam.transforms.chain.task_results import TaskResults
from ledgerbeam.transforms.exchange.gather import lines_of
from ledgerbeam.transforms.exchange.scatter import ScatteredRecords
from ledgerbeam.transforms.mapping.function import ConvertRecords
from ledgerbeam.user_code.guards import failed_by, message_of

GROUP_SIZE, BY_SOURCE = "records of a duplicated key", "duplicates by source"
"""Names of statistics of the deciding stage."""

DUPLICATE = "duplicate"  # drop reason of a record whose key another kept record has


@dataclass(frozen=True)
class FindDuplicates:
    """A function of one task, for `ProcessTask`, that finds duplicates: all records of a key but the best or first.

    Attributes:
        as_rows: Whether to write them as rows of JSON. Otherwise they are written as a run file, by source file.
    """

    as_rows: bool

    takes_blocks: ClassVar[bool] = True

    def __call__(self, task: Task) -> Task | NoneTask | FailedTask:
        """Return the task with the duplicates."""
        gathered: GatheredRecords = task.records
        try:
            found = [gathered.place(run, number) for run, number in _duplicates(gathered)]
            for url, number in Counter(url for url, _ in found).items():
                stats.top(BY_SOURCE, without_secrets(url), number)
        except (SourceError, StorageError) as error:
            return failed_by(error, task, message_of(error))
        if not found:
            return NoneTask(task)
        if self.as_rows:
            return task.replace(
                records=[{"source": as_unicode(url), "record": number} for url, number in sorted(found)]
            )
        keyed = sorted((file_key(url), number) for url, number in found)
        numbers = np.array([number for _, number in keyed], np.uint64)
        return task.replace(records=ScatteredRecords([key for key, _ in keyed], numbers, [b""] * len(keyed)))


def _duplicates(gathered: GatheredRecords) -> Iterator[tuple[int, int]]:
    """Yield run and number of each duplicate: a better record, or an equal earlier one, has the same key."""
    rows = chain.from_iterable(zip(*part, strict=True) for part in gathered.merged())
    for _, group in groupby(rows, itemgetter(0)):
        best: tuple[bytes, int, int] | None = None
        size = 0
        for size, (_key, run, number, score) in enumerate(group, 1):  # noqa: B007 - counted
            if best is None:
                best = score, run, number
            elif score < best[0]:  # records come in order, so the first of equal ones stays
                yield best[1:]
                best = score, run, number
            else:
                yield run, number
        if size > 1:
            stats.observe(GROUP_SIZE, size)


@dataclass(frozen=True)
class KeepRemaining:
    """A function of one task, for `ProcessTask`, that writes its remaining records.

    Attributes:
        conversion: Name of the conversion to the format, see `io.conversion`.
        output_format: Format of the outputs, or its name.
    """

    conversion: str
    output_format: str | Format

    def __call__(self, task: Task) -> Task | NoneTask | FailedTask:
        """Return the task with the remaining records, and the counts."""
        remaining: RemainingRecords = task.records
        kept, dropped = len(remaining.records), remaining.dropped
        drops = {DUPLICATE: dropped} if dropped else {}
        if not kept:
            return NoneTask(task, counts=RecordCounts(dropped, 0, drops))
        counts = RecordCounts(kept + dropped, kept, drops, {}, {"": kept})
        try:
            if self.output_format == "jsonl":
                lines = lines_of(data for part in remaining.records.parts for data in part.payloads())
                if lines is not None:
                    return task.replace(records=TaskResults({"": lines}, counts))
            records = [record for part in remaining.records.parts for record in part.records()]
        except LedgerbeamError as error:
            return failed_by(error, task, message_of(error))
        done = ConvertRecords(self.conversion, self.output_format)(task.replace(records=records))
        if not isinstance(done, Task):
            return done
        results: Any = done.records
        return done.replace(records=replace(results, counts=counts))
