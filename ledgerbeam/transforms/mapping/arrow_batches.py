"""Batches as Arrow record batches: slices of the table of a task, without Python objects for records."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ledgerbeam.errors import FunctionError
from ledgerbeam.io.columns.encode import fits_one_batch, record_batch
from ledgerbeam.io.columns.partial import PartialTable
from ledgerbeam.ledger import Task
from ledgerbeam.transforms.mapping.batches import BatchFailedError, BatchMapping
from ledgerbeam.transforms.mapping.outcomes import CategoryError, Outcome
from ledgerbeam.transforms.mapping.recomputation import Recomputed
from ledgerbeam.transforms.mapping.row_outcomes import RowsOutcome, rows_outcome
from ledgerbeam.transforms.mapping.task_mapping import MappingRules
from ledgerbeam.user_code.guards import is_interrupt, message_of

if TYPE_CHECKING:
    import pyarrow as pa


class ArrowMapping(BatchMapping):
    """The mapping of one task in record batches. The arguments are those of `BatchMapping`."""

    def __init__(
        self,
        rules: MappingRules,
        task: Task,
        size: int,
        cut_up: Collection[int],
        observed: Callable[[], Collection[str]],
    ) -> None:
        super().__init__(rules, task, size, cut_up, observed)
        self._partial = task.records if isinstance(task.records, PartialTable) else None
        self._table: pa.Table = task.records if self._partial is None else self._partial.table

    def _windows(self) -> Iterator[range]:
        records = len(self._table) if self._partial is None else len(self._partial)
        for start in range(0, records, self._size):
            yield from self._fitting(range(start, min(start + self._size, records)))

    def _fitting(self, positions: range) -> Iterator[range]:
        """Divide positions until the rows of each part fit into one record batch."""
        first, end = positions.start, positions.stop
        if self._partial is not None:
            first, end = self._partial.rows_at([first, end]).tolist()
        if len(positions) == 1 or fits_one_batch(self._table, first, end):
            yield positions
            return
        middle = len(positions) // 2
        yield from self._fitting(positions[:middle])
        yield from self._fitting(positions[middle:])

    def _broken(self, positions: range) -> dict[int, str]:
        if self._partial is None:
            return {}
        return {at: error for at, error in self._partial.unreadable.items() if at in positions}

    def _batch_of(self, positions: Sequence[int]) -> pa.RecordBatch:
        if self._partial is not None:
            positions = self._partial.rows_at(positions).tolist()
        # Decoded rows of consecutive records are consecutive in the table.
        return record_batch(self._table, positions[0], positions[0] + len(positions))

    def _understood(self, results: Any, positions: Sequence[int]) -> RowsOutcome:
        try:
            return rows_outcome(results, len(positions), self._name)
        except FunctionError:
            raise
        except BaseException as error:
            if is_interrupt(error):
                raise
            raise BatchFailedError(error) from error

    def _compared(self, results: RowsOutcome, records: Any, positions: Sequence[int]) -> RowsOutcome:
        del records, positions
        return results

    def recomputed(self, is_late: Callable[[], bool]) -> Recomputed:
        """Map the rows from the last batch to the first; see `TaskMapping.recomputed`."""
        total = len(self._table) if self._partial is None else len(self._partial)
        backwards: list[tuple[range, list[tuple[Sequence[int], Any]]]] = []
        for window in self._starts_backwards(total):
            readable = [position for position in window if position not in self._broken(window)]
            backwards.append((window, list(self._again(readable)) if readable else []))
            if is_late():
                break
        origins: dict[str, list[int]] = {}
        for _, parts in reversed(backwards):
            for positions, meant in parts:
                if isinstance(meant, Outcome):  # the object raised for this row
                    continue
                self._take_batch(meant, positions)
                for route, table in meant.kept.items():
                    has_all = table.num_rows == len(positions)
                    made_of = positions if has_all else [positions[0]] * table.num_rows
                    origins.setdefault(route, []).extend(made_of)
        return self._recomputed(backwards[-1][0].start if backwards else 0, total, origins)

    def _take_batch(self, results: RowsOutcome, positions: Sequence[int]) -> None:
        try:
            held = [(self._route(route), table) for route, table in results.kept.items()]
            written = [(collector, collector.hold(table)) for collector, table in held]
            for reason, rows in results.dropped.items():
                self._tally.drop(reason, rows)
        except CategoryError as mistake:
            raise self._batch_failed(mistake, positions, f"{self._name}: {message_of(mistake)}") from mistake
        except BaseException as error:
            if is_interrupt(error):
                raise
            raise BatchFailedError(error) from error
        for collector, table in written:
            collector.take(table)
        for row, end in results.rejected:
            self._reject(end, positions[row])
