"""Merge stage of an exchange with several rounds: combine a group of run files, for each range of buckets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from ledgerbeam.errors import SourceError, StorageError
from ledgerbeam.io import ShardFile
from ledgerbeam.io.exchange.run_file import SUFFIX, Cuts, encode_sorted, task_mark
from ledgerbeam.io.exchange.slices import Partition
from ledgerbeam.ledger import FailedTask, NoneTask, Task
from ledgerbeam.transforms.exchange.gather import gathered_records
from ledgerbeam.user_code.guards import failed_by, message_of


@dataclass(frozen=True)
class MergedRecords(Sequence[bytes]):
    """Merged records, already encoded as a run file.

    Attributes:
        data: Bytes of the run file.
        records: Number of records.
    """

    data: bytes
    records: int

    def __len__(self) -> int:
        return self.records

    def __getitem__(self, item: Any) -> Any:
        raise TypeError("an encoded run file has no access to single records")


@dataclass(frozen=True)
class MergeRuns:
    """A function of one task, for `ProcessTask`, that merges its records into one run file.

    Attributes:
        partition: Division of the key range into buckets.
        ordinal: Number of the merge, from 1.
    """

    partition: Partition
    ordinal: int

    takes_blocks: ClassVar[bool] = True

    def __call__(self, task: Task) -> Task | NoneTask | FailedTask:
        """Return the task with `MergedRecords`.

        Raises:
            UnsupportedShapeError: The records do not come from a bucket.
        """
        gathered = gathered_records(task, "MergeRuns")
        ranges, cuts = self._within
        inner = ranges[gathered.bucket]
        cuts, mark = cuts[inner.start : inner.stop - 1], task_mark(task.source.id, task.start)
        try:
            made = encode_sorted(gathered.renumbered(), cuts, self.partition.block_bytes, mark=mark)
        except (SourceError, StorageError) as error:
            return failed_by(error, task, message_of(error))
        found = MergedRecords(*made)
        return task.replace(records=found) if len(found) else NoneTask(task)

    @cached_property
    def _within(self) -> tuple[list[range], Cuts]:
        """The output ranges of each input range, and their boundaries."""
        return self.partition.inner(self.ordinal), self.partition.cuts_of(self.ordinal + 1)


@dataclass(frozen=True)
class MergedEncoder:
    """An encoder of `MergedRecords`, which are already encoded. A `ShardEncoder`."""

    def encode(self, records: MergedRecords) -> list[ShardFile]:
        """Return the run file."""
        return [ShardFile(SUFFIX, records.data, len(records))]
