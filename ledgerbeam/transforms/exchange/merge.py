"""The merge of an exchange of several rounds: a group of run files becomes one for each range of buckets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from ledgerbeam.errors import SourceError, StorageError
from ledgerbeam.io import ShardFile
from ledgerbeam.io.exchange.partition import Partition
from ledgerbeam.io.exchange.run_file import SUFFIX, Cuts, encode_sorted, task_mark
from ledgerbeam.ledger import FailedTask, NoneTask, Task
from ledgerbeam.transforms.exchange.gather import gathered_records
from ledgerbeam.user_code.errors import failed_by, message_of


@dataclass(frozen=True)
class MergedRecords(Sequence[bytes]):
    """Records that were merged, as the run file that they are.

    Attributes:
        data: The run file.
        records: How many it has.
    """

    data: bytes
    records: int

    def __len__(self) -> int:
        return self.records

    def __getitem__(self, item: Any) -> Any:
        raise TypeError("the records of a run file are not looked at one by one")


@dataclass(frozen=True)
class MergeRuns:
    """A function of one task, for `ProcessTask`, that writes its records in their order to one run file.

    Attributes:
        partition: How run files are cut.
        ordinal: Which merge this is, from 1.
    """

    partition: Partition
    ordinal: int

    takes_blocks: ClassVar[bool] = True

    def __call__(self, task: Task) -> Task | NoneTask | FailedTask:
        """Return the task with `MergedRecords`.

        Raises:
            UnsupportedShapeError: Its records are not those of a bucket.
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
        """The ranges that it keeps apart, for each range that it reads, and where they are cut."""
        return self.partition.inner(self.ordinal), self.partition.cuts_of(self.ordinal + 1)


@dataclass(frozen=True)
class MergedEncoder:
    """Hands on `MergedRecords` as the file that they are: a `ShardEncoder`."""

    def encode(self, records: MergedRecords) -> list[ShardFile]:
        """Return the run file."""
        return [ShardFile(SUFFIX, records.data, len(records))]
