"""`Scatter`, the first half of an exchange: write the records of each task as a run file, sorted by bucket and key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from ledgerbeam import stats
from ledgerbeam._base.redaction import printable
from ledgerbeam.errors import (
    IndexError_,
    LedgerbeamError,
    RecordError,
    SourceError,
    StorageError,
    UnsupportedShapeError,
    UsageError,
)
from ledgerbeam.io import ShardEncoder, ShardFile
from ledgerbeam.io.exchange.order import By, KeyOrder, Nulls, Scheme
from ledgerbeam.io.exchange.run_file import BLOCK_BYTES, LEVEL, NO_TASK, SUFFIX, Cuts, encode_run, level_in, task_mark
from ledgerbeam.io.exchange.slices import MOST_BUCKETS, Partition
from ledgerbeam.io.lines.rows import ByteRows
from ledgerbeam.ledger import FailedTask, NoneTask, Task
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.sources.forms import PlacedPart, PlacedRecords, listed
from ledgerbeam.sources.kind import Unreadable
from ledgerbeam.transforms.chain.base import ChainStep, ChainValues, size_of
from ledgerbeam.transforms.chain.process import ProcessStep
from ledgerbeam.transforms.chain.write import WriteStep
from ledgerbeam.transforms.exchange.keys import WITHOUT_KEY, RecordKeys
from ledgerbeam.transforms.mapping.outcomes import TaskResults
from ledgerbeam.user_code.guards import failed_by, message_of


@dataclass(frozen=True)
class ScatteredRecords:
    """The records of a task with their keys, to be written as a run file."""

    keys: ByteRows  # key of each record
    numbers: NDArray[np.uint64]  # number of each record in its source, ascending
    payloads: ByteRows  # bytes of each record

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True)
class ScatterRecords:
    """A function of one task, for `ProcessTask`, that computes the key of each record."""

    keys: RecordKeys
    with_records: bool = True  # whether to write the records. Otherwise only keys, positions and scores are written
    # Makes the score of a record, for runs without records. The lowest bytes come first within a key.
    score: RecordKeys | None = None

    def set_up(self) -> None:
        """Import the functions of the keys."""
        self.keys.set_up()
        if self.score is not None:
            self.score.set_up()

    def __call__(self, task: Task) -> Task | NoneTask | FailedTask:
        """Return the task with `ScatteredRecords`."""
        records: PlacedRecords = task.records
        if not len(records):
            return NoneTask(task)
        try:
            # Payloads first: the function of the key may change a record.
            payloads = self._payloads(records)
            keys = self.keys.of(records)
        except LedgerbeamError as error:
            return failed_by(error, task, message_of(error))
        without = np.zeros(len(keys), np.bool_) if self.keys.null is None else keys.are(self.keys.null)
        keyless = int(np.count_nonzero(without))
        if keyless and not self.keys.null:  # an empty null key leaves the record out
            found = ScatteredRecords(keys.at(~without), records.places[~without], payloads.at(~without))
            return moved(task, found, keyless)
        if keyless:
            stats.count(WITHOUT_KEY, keyless)
        return task.replace(records=ScatteredRecords(keys, records.places, payloads))

    def _payloads(self, records: PlacedRecords) -> ByteRows:
        if self.with_records:
            return ByteRows.concatenated([part.payloads() for part in records.parts])
        return ByteRows.of([b""] * len(records)) if self.score is None else self.score.of(records)


def moved(task: Task, records: Any, keyless: int) -> Task | NoneTask:
    """Return the task with `records`, which have keys, and count `keyless` other records as dropped."""
    if not keyless:
        return task.replace(records=records)
    stats.count(WITHOUT_KEY, keyless)
    kept = len(records)
    counts = RecordCounts(kept + keyless, kept, {WITHOUT_KEY: keyless}, {}, {"": kept} if kept else {})
    return task.replace(records=TaskResults({"": records}, counts)) if kept else NoneTask(task, counts=counts)


@dataclass(frozen=True)
class RunFileEncoder:
    """Base of encoders that write the records of a task as a run file. A `TaskEncoder`."""

    cuts: Cuts  # boundaries of the buckets
    block_bytes: int = BLOCK_BYTES  # uncompressed size of a block
    mark: bytes = NO_TASK  # mark of the task that writes the file
    level: int = LEVEL  # level of compression

    def of_task(self, task: Task) -> Self:
        return replace(self, mark=task_mark(task.source.id, task.start))


class RunEncoder(RunFileEncoder):
    """An encoder of `ScatteredRecords`."""

    def encode(self, records: ScatteredRecords) -> list[ShardFile]:
        keys, numbers, payloads = records.keys, records.numbers, records.payloads
        data = encode_run(keys, numbers, payloads, self.cuts, self.block_bytes, mark=self.mark, level=self.level)
        return [ShardFile(SUFFIX, data, len(records))]


class ScatterResults(ScatterRecords):
    """The same for the records after earlier functions."""

    takes_blocks: ClassVar[bool] = True

    def __call__(self, task: Task) -> Task | NoneTask | FailedTask:
        """Return the task with `ScatteredRecords`, and with its earlier counts and rejects."""
        results = task.records if isinstance(task.records, TaskResults) else None
        if results is None:
            return self._scattered(task, task.records)
        if others := sorted(filter(None, results.datasets)):
            message = f"{task.name}: expected records without a route for Scatter, found the route {others[0]!r}"
            return FailedTask(task, UnsupportedShapeError.__name__, message)
        if not results.datasets:  # all records were rejected
            return task
        done = self._scattered(task, results.datasets[""])
        if not isinstance(done, Task):
            return done
        return done.replace(records=replace(results, datasets={"": done.records}))

    def _scattered(self, task: Task, records: Any) -> Task | NoneTask | FailedTask:
        if isinstance(records, PlacedRecords):
            return super().__call__(task.replace(records=records))
        try:
            held = listed(records)
            if not len(held):
                return NoneTask(task)
            if Unreadable in map(type, held):
                place = list(map(type, held)).index(Unreadable)
                raise RecordError(f"{task.name}: record {place}: {held[place].error}")
            part = PlacedPart.of_results(task.name, held)
            if self.keys.scheme != "place":
                return super().__call__(task.replace(records=PlacedRecords([part])))
            # All records get the position of their task as key. Their numbers keep them in order.
            places = ByteRows.of([self.keys.place_key(task.source.url, task.start)] * len(part))
            return task.replace(records=ScatteredRecords(places, part.numbers, part.payloads()))
        except (SourceError, IndexError_, StorageError) as error:
            return failed_by(error, task, message_of(error))


class ScatterStep(WriteStep):
    """Publish the records of each task as one run file, by bucket and key: ``... | Scatter("runs", by="url")``.

    Use it instead of `WriteTasks`. Once all sources are complete, a second pipeline that starts with `Gather` reads
    the buckets. The order is total: by key, then by source, then by position in the source.

    Buckets are ranges of the key, decided before the pipeline starts: from a sample of the records of the sources, at
    `cuts`, or evenly if keys are hashed.

    Args:
        runs: URL of the folder to write below.
        by: The key: a field name (``a.b`` for a nested field), several field names separated by commas or as a list, a
            function of a record, or ``module:function``. A missing field is null. None keeps the order of the sources.
        order: ``key``, or ``hash`` to order by a hash of the key. A hash needs no sample, and groups equal keys.
        descending: Whether the greatest key comes first.
        nulls: Position of records whose key is null: ``first`` or ``last``.
        buckets: Number of buckets. Default: from `bucket_bytes`. If many records have equal keys, there can be fewer.
        bucket_bytes: Approximate size of a bucket in bytes of the sources, or as ``"64M"``. If a record changes, its
            bucket is gathered again. Default without `buckets` and `cuts`: ``"64M"``.
        cuts: Keys at which buckets start, instead of a sample. Tuples if the key has several fields.

    Raises:
        UsageError: If arguments exclude each other.
    """

    def __init__(
        self,
        runs: str,
        by: By | None = None,
        *,
        order: Literal["key", "hash"] = "key",
        descending: bool = False,
        nulls: Nulls = "last",
        buckets: int | None = None,
        bucket_bytes: int | str | None = None,
        cuts: Sequence[Any] = (),
    ) -> None:
        super().__init__(runs, "run")
        if order not in ("key", "hash") or nulls not in ("first", "last"):
            raise UsageError(f"Scatter: expected order key or hash, nulls first or last, found {order!r}, {nulls!r}")
        if by is None and (order == "hash" or descending or nulls == "first" or cuts):
            raise UsageError(
                "Scatter: without by, records keep their order; leave out order, descending, nulls and cuts"
            )
        if order == "hash" and (descending or nulls == "first" or cuts):
            raise UsageError("Scatter: order='hash' does not sort by key; leave out descending, nulls and cuts")
        if (buckets is not None) + (bucket_bytes is not None) + bool(cuts) > 1:
            raise UsageError("Scatter: found several of buckets, bucket_bytes and cuts; pass one of them")
        if buckets is not None and not 0 < buckets <= MOST_BUCKETS:
            raise UsageError(f"Scatter: buckets: expected from 1 to {MOST_BUCKETS:,}, found {buckets}")
        self.by = by
        self.scheme: Scheme = "place" if by is None else order
        self.order = KeyOrder(descending, nulls)
        self.buckets = buckets
        self.bucket_bytes = size_of("Scatter: bucket_bytes", bucket_bytes)
        self.keys = RecordKeys("place") if by is None else RecordKeys.of_user(by, self.scheme, self.order)
        self.cuts = _encoded(self.order, cuts)

    def encoder(self, values: ChainValues) -> ShardEncoder:
        partition = values.partition or Partition(1)
        return RunEncoder(partition.cuts(), partition.block_bytes, level=level_in(self.output))

    def parts(self) -> Sequence[tuple[str, ChainStep]]:
        """Return a step that computes the keys, and this step, which writes the run files."""
        return [("Keys", ProcessStep(ScatterResults(self.keys))), *super().parts()]

    def display_data(self) -> dict[str, Any]:
        key = self.keys.function or ",".join(self.keys.fields) or self.keys.scheme
        return {"by": printable(str(key)), "output": printable(self.output)}


def _encoded(order: KeyOrder, cuts: Sequence[Any]) -> tuple[bytes, ...]:
    """Encode cuts, and sort them in the order of the keys. Raises UsageError for an invalid or repeated one."""
    try:
        found = sorted(order.encode(tuple(cut) if isinstance(cut, list) else cut) for cut in cuts)
    except RecordError as error:
        raise UsageError(f"Scatter: cuts: {error}") from error
    if len(set(found)) < len(found):
        raise UsageError("Scatter: cuts: expected each key once, found one twice")
    return tuple(found)
