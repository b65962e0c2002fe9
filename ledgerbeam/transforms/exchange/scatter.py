"""The first half of an exchange: `Scatter` writes the records of each task as one run file, by bucket and key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
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
from ledgerbeam.io.exchange.by import By
from ledgerbeam.io.exchange.order import KeyOrder, Nulls, Scheme
from ledgerbeam.io.exchange.partition import MOST_BUCKETS, Partition
from ledgerbeam.io.exchange.run_file import BLOCK_BYTES, NO_TASK, SUFFIX, Cuts, encode_run, task_mark
from ledgerbeam.ledger import FailedTask, NoneTask, Task
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.sources.blocks import listed
from ledgerbeam.sources.kind import Unreadable
from ledgerbeam.sources.placed import PlacedPart, PlacedRecords
from ledgerbeam.transforms.chain.base import ChainValues, size_of
from ledgerbeam.transforms.chain.process import ProcessTask
from ledgerbeam.transforms.chain.task_results import TaskResults
from ledgerbeam.transforms.chain.write import WriteTasks
from ledgerbeam.transforms.exchange.keys import WITHOUT_KEY, RecordKeys
from ledgerbeam.user_code.errors import failed_by, message_of


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
    payloads: Sequence[bytes]

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

    def _payloads(self, records: PlacedRecords) -> Sequence[bytes]:
        if self.with_records:
            parts = [part.payloads() for part in records.parts]
            return parts[0] if len(parts) == 1 else list(chain.from_iterable(parts))
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
class RunFileEncoder:
    """Writes the records of a task as a run file: a `TaskEncoder`.

    Attributes:
        cuts: Of the buckets.
        block_bytes: Size of a block before it is compressed.
        mark: Of the task that writes it.
    """

    cuts: Cuts
    block_bytes: int = BLOCK_BYTES
    mark: bytes = NO_TASK

    def of_task(self, task: Task) -> Self:
        """Return what marks the run file as that of a task."""
        return replace(self, mark=task_mark(task.source.id, task.start))


class RunEncoder(RunFileEncoder):
    """Writes `ScatteredRecords`."""

    def encode(self, records: ScatteredRecords) -> list[ShardFile]:
        """Return the run file of a task."""
        keys, numbers, payloads = records.keys, records.numbers, records.payloads
        data = encode_run(keys, numbers, payloads, self.cuts, self.block_bytes, mark=self.mark)
        return [ShardFile(SUFFIX, data, len(records))]


@dataclass(frozen=True)
class ScatterResults:
    """A function of one task, for `ProcessTask`, that gives what other functions have made of it the keys.

    Attributes:
        scatter: Gives records their keys.
    """

    scatter: ScatterRecords

    takes_blocks: ClassVar[bool] = True

    def set_up(self) -> None:
        """Have the function of the keys imported."""
        self.scatter.set_up()

    def __call__(self, task: Task) -> Task | NoneTask | FailedTask:
        """Return the task with `ScatteredRecords`, and with what was counted and rejected before."""
        results = task.records if isinstance(task.records, TaskResults) else None
        if results is None:
            return self._scattered(task, task.records)
        if others := sorted(filter(None, results.datasets)):
            said = (
                f"{task.name}: expected records without a route, found the route {others[0]!r}; Scatter has no routes"
            )
            return FailedTask(task, UnsupportedShapeError.__name__, said)
        if not results.datasets:  # all of it was rejected
            return task
        done = self._scattered(task, results.datasets[""])
        if not isinstance(done, Task):
            return done
        return done.replace(records=replace(results, datasets={"": done.records}))

    def _scattered(self, task: Task, records: Any) -> Task | NoneTask | FailedTask:
        if isinstance(records, PlacedRecords):
            return self.scatter(task.replace(records=records))
        keys = self.scatter.keys
        try:
            held = listed(records)
            if not len(held):
                return NoneTask(task)
            if Unreadable in map(type, held):
                place = list(map(type, held)).index(Unreadable)
                raise RecordError(f"{task.name}: record {place}: {held[place].error}")
            part = PlacedPart.of_results(task.name, held)
            if keys.scheme != "place":
                return self.scatter(task.replace(records=PlacedRecords([part])))
            # All have the place of their task, and stay in their order there.
            places = [keys.place_key(task.source.url, task.start)] * len(part)
            return task.replace(records=ScatteredRecords(places, part.numbers, part.payloads()))
        except (SourceError, IndexError_, StorageError) as error:
            return failed_by(error, task, message_of(error))


class Scatter(WriteTasks):
    """Publishes each task's records as one run file, by bucket and key: ``... | Scatter("runs", by="url")``.

    It stands in the place of `WriteTasks`. Once all sources are complete, a second pipeline that begins with `Gather`
    reads the buckets. The order is total: key, source, and the place of the record in it.

    The key is cut into buckets before the pipeline begins: where its order is asked for, by a sample of the records as
    the sources have them, or at `cuts`; where it is hashed, evenly.

    Args:
        runs: URL of the folder to write below.
        by: The key: the name of a field, a.b for a value inside of another, several with commas or as a list; or a
            function of a record, or ``module:function``. A missing field is null. None leaves records in the order of
            their sources.
        order: ``key``, or ``hash`` for the order of a hash of the key, which needs no sample: for groups.
        descending: Whether the greatest key comes first.
        nulls: Where records stand whose key is null: ``first`` or ``last``.
        buckets: How many buckets; by default as many as `bucket_bytes` says. Of keys that are often equal they may be
            fewer.
        bucket_bytes: Size of a bucket, by the sources, in bytes or as ``"64M"``: what is gathered again if a record in
            it changes. By default ``"64M"``, if nothing says how many there are.
        cuts: Keys at which buckets begin, in place of a sample; a tuple for each if the key has several fields.

    Raises:
        UsageError: If the arguments cannot mean anything together.
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
                "Scatter: without by, records stay in their order: leave order, descending, nulls, cuts out"
            )
        if order == "hash" and (descending or nulls == "first" or cuts):
            raise UsageError("Scatter: hashes have no order of their own: leave descending, nulls and cuts out")
        if (buckets is not None) + (bucket_bytes is not None) + bool(cuts) > 1:
            raise UsageError("Scatter: give one of buckets, bucket_bytes and cuts")
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
        """Return what writes run files."""
        partition = values.partition or Partition(1)
        return RunEncoder(partition.cuts(), partition.block_bytes)

    def expand(self, tasks: Any) -> Any:
        """Apply the transform to tasks with their records."""
        return super().expand(tasks | "Keys" >> ProcessTask(ScatterResults(ScatterRecords(self.keys))))

    def display_data(self) -> dict[str, Any]:
        """Show the key and the folder in a runner's console."""
        key = self.keys.function or ",".join(self.keys.fields) or self.keys.scheme
        return {"by": printable(str(key)), "output": printable(self.output)}


def _encoded(order: KeyOrder, cuts: Sequence[Any]) -> tuple[bytes, ...]:
    """Return cuts in the order of the keys.

    Raises:
        UsageError: One is no key, or given twice.
    """
    try:
        found = sorted(order.encode(tuple(cut) if isinstance(cut, list) else cut) for cut in cuts)
    except RecordError as error:
        raise UsageError(f"Scatter: cuts: {error}") from error
    if len(set(found)) < len(found):
        raise UsageError("Scatter: cuts: expected each key once, found one twice")
    return tuple(found)
