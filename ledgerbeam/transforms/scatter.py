"""The first half of an exchange: `Scatter` writes the records of each task as one run file, by bucket and key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ledgerbeam import stats
from ledgerbeam.errors import LedgerbeamError
from ledgerbeam.io import ShardFile
from ledgerbeam.io.exchange.run_file import BLOCK_BYTES, SUFFIX, Cuts, encode_run
from ledgerbeam.ledger import FailedTask, NoneTask, Task
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.ledger.model.user_errors import failed_by, message_of
from ledgerbeam.sources.placed import PlacedRecords
from ledgerbeam.transforms.keys import WITHOUT_KEY, RecordKeys
from ledgerbeam.transforms.task_results import TaskResults

__all__ = ["RunEncoder", "ScatterRecords", "ScatteredRecords", "moved"]


@dataclass(frozen=True)
class ScatteredRecords(Sequence[bytes]):
    """The records of a task on their way to a run file.

    Attributes:
        keys: Of the records.
        numbers: Of the records in their source, ascending.
        payloads: The records as bytes.
    """

    keys: list[bytes]
    numbers: NDArray[np.uint64]
    payloads: list[bytes]

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, item: Any) -> Any:
        return self.payloads[item]


@dataclass(frozen=True)
class ScatterRecords:
    """A function of one task, for `ProcessTask`, that gives each record its key.

    Attributes:
        keys: Makes the keys.
        with_records: Whether the records go along; else only their keys and places, and what `score` says of them.
        score: Of a record without it: the best comes first among those of a key.
    """

    keys: RecordKeys
    with_records: bool = True
    score: RecordKeys | None = None

    def set_up(self) -> None:
        """Have the functions of the keys imported."""
        self.keys.set_up()
        if self.score is not None:
            self.score.set_up()

    def __call__(self, task: Task) -> Task | NoneTask | FailedTask:
        """Return the task with `ScatteredRecords`."""
        records: PlacedRecords = task.records
        if not len(records):
            return NoneTask(task)
        try:
            # First, since a function that makes keys may change what it is given.
            payloads = self._payloads(records)
            keys = self.keys.of(records)
        except LedgerbeamError as error:
            return failed_by(error, task, message_of(error))
        keyless = 0 if self.keys.null is None else keys.count(self.keys.null)
        if keyless and not self.keys.null:  # what has no key goes nowhere
            kept = [place for place, key in enumerate(keys) if key]
            keys, payloads = [keys[place] for place in kept], [payloads[place] for place in kept]
            return moved(task, ScatteredRecords(keys, records.places[kept], payloads), keyless)
        if keyless:
            stats.count(WITHOUT_KEY, keyless)
        return task.replace(records=ScatteredRecords(keys, records.places, payloads))

    def _payloads(self, records: PlacedRecords) -> list[bytes]:
        if self.with_records:
            return [data for part in records.parts for data in part.payloads()]
        return [b""] * len(records) if self.score is None else self.score.of(records)


def moved(task: Task, records: Sequence[Any], keyless: int) -> Task | NoneTask:
    """Return a task with the records of it that go on, and count those without a key, which do not."""
    if not keyless:
        return task.replace(records=records)
    stats.count(WITHOUT_KEY, keyless)
    kept = len(records)
    counts = RecordCounts(kept + keyless, kept, {WITHOUT_KEY: keyless}, {}, {"": kept} if kept else {})
    return task.replace(records=TaskResults({"": records}, counts)) if kept else NoneTask(task, counts=counts)


@dataclass(frozen=True)
class RunEncoder:
    """Writes `ScatteredRecords` as a run file: a `ShardEncoder`.

    Attributes:
        cuts: Of the buckets.
        block_bytes: Size of a block before it is compressed.
    """

    cuts: Cuts
    block_bytes: int = BLOCK_BYTES

    def encode(self, records: ScatteredRecords) -> list[ShardFile]:
        """Return the run file of a task."""
        data = encode_run(records.keys, records.numbers, records.payloads, self.cuts, self.block_bytes)
        return [ShardFile(SUFFIX, data, len(records))]
