"""From records to published shards: `WriteTasks`."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, field
from operator import length_hint
from typing import Any, Protocol, Union, runtime_checkable

import apache_beam as beam
from apache_beam.metrics.metric import Metrics
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from ledgerbeam._base.names import ENDINGS_ROOM, REJECTS, check_root, relative_name
from ledgerbeam._base.redaction import printable, refuse_secrets
from ledgerbeam.errors import ChangedSourceError, RecordError
from ledgerbeam.io import ShardEncoder, ShardFile, canonical_url
from ledgerbeam.io.compression.names import split_compression
from ledgerbeam.io.formats.registry import format_named
from ledgerbeam.io.storage.publish import publish_all
from ledgerbeam.io.storage.urls import is_local
from ledgerbeam.ledger import FailedTask, NoneTask, Output, Task
from ledgerbeam.ledger.model.accounts import RecordCounts, Statistic
from ledgerbeam.ledger.model.checksums import content_checksum
from ledgerbeam.ledger.model.faults import fault_point
from ledgerbeam.ledger.worker.stopwatch import timed
from ledgerbeam.sources.kind import Unreadable
from ledgerbeam.transforms.chain.base import ChainTransform, ChainValues
from ledgerbeam.transforms.chain.overlap import ThreadsBeside, this_overlap
from ledgerbeam.transforms.chain.route_folders import RouteFolders
from ledgerbeam.transforms.chain.task_results import TaskResults
from ledgerbeam.transforms.chain.worker import LedgerHandle, fatal_errors
from ledgerbeam.transforms.mapping.rejects import encode_rejects
from ledgerbeam.user_code.errors import describe_error, failed_by, message_of

BEHIND_GROUPS = 4
"""Groups of tasks that are published at once: a store answers many requests in the time of one, and a file system
brings what several threads sync to the disk in one go. On a store each task is a group."""

TOGETHER_FILES = 32
"""Outputs on a disk that are published together, those of a task at least: to sync a folder once for many of them, and
to hand over to other threads less often, takes half the time for each."""

TOGETHER_BYTES = 1 << 20
"""Bytes from which on outputs on a disk wait for no others."""

TOGETHER_SECONDS = 0.05
"""How long they wait, unless the next task takes longer."""

BEHIND_BYTES = 16 << 20
"""Bytes of what is published at once; at least a task."""

BEHIND_SHARE = 0.05
"""Part of a worker's time from which on publishing is worth a thread. What is published there is recorded after a
later task was mapped, however long that takes: until then it is lost if the worker dies."""


@dataclass(frozen=True)
class WrittenTask:
    """A task whose outputs are durable outside the pipeline.

    Attributes:
        task: The task, without its records.
        outputs: What it published.
        records: Records that it wrote.
        size: Bytes that it wrote.
        seconds: Time from its reading to now.
        counts: What became of the records that it read; None if all were written without a route.
        statistics: What its function observed, by name.
    """

    task: Task
    outputs: tuple[Output, ...]
    records: int
    size: int
    seconds: float = 0.0
    counts: RecordCounts | None = None
    statistics: Mapping[str, Statistic] = field(default_factory=dict)


def output_name(task: Task, base: str | None, suffix: str, *, room: int = 0, below: str = "/") -> str:
    """Return the name of a task's output shard, relative to the output URL.

    The name is the source's path below `base` (its whole path, led by its scheme, where it is not below), then the
    first record of the span, then one ordinal for each fan-out that user code made. All parts that are added have a
    fixed length, so no two tasks share a name. Of a compressed source the last dot becomes a dash (`a.jsonl-gz-...`):
    lhotse takes whatever has a suffix `.jsonl` for JSONL. A path that would lead out of the output folder, or is too
    long for what is added, is written as `names` says.

    Args:
        task: The task; a composite source is named by its first member.
        base: Fixed part of the patterns, a folder URL ending in ``/``; or None.
        suffix: Ending of the output format, for example ``.jsonl``.
        room: Length in bytes of the longest suffix of all outputs of the task, which begin alike.
        below: Canonical URL of the output folder.
    """
    url = task.source.url
    outside = ""
    if base is not None and url.startswith(base):
        path = url[len(base) :]
    else:
        outside = "" if base is None else "%"  # apart from the folder `s3` of the base; no other name begins so
        scheme, separator, rest = url.partition("://")
        path = f"{scheme}/{rest}" if separator else f"file{url}"
    fan_outs = "".join(f"-{ordinal:06d}" for ordinal, _ in task.lineage[1:])
    span = f"-{task.start:010d}{fan_outs}"
    room = max(ENDINGS_ROOM, len(span) + max(room, len(suffix.encode())))
    compressed = split_compression(url).compression is not None
    stem = relative_name(path, room, below=below, mark=_shares_dashes(path, compressed=compressed))
    if compressed:
        folder, slash, last = stem.rpartition("/")
        stem = f"{folder}{slash}{'-'.join(last.rsplit('.', 1))}"
    return f"{outside}{stem}{span}{suffix}"


def _shares_dashes(path: str, *, compressed: bool) -> bool:
    """Return whether another path could be written alike once its last dot is a dash."""
    if compressed:
        return "-" in path.rpartition(".")[2]
    front, dash, suffix = path.rpartition("-")
    return (
        bool(dash) and not {".", "/"} & set(suffix) and split_compression(f"{front}.{suffix}").compression is not None
    )


@dataclass
class WriteTasks(ChainTransform):
    """Publishes each task's records as one shard with its index, atomically and under a name that no other task has.

    The shard appears before its index, the contents of both being on the disk by then, and both are durable before the
    element is emitted. So `CommitTasks` after this transform records only outputs that exist.

    The records of a task are one dataset, or `TaskResults`: then each route is a separate dataset, in a folder with its
    name below the output folder, and rejected records go to a file in the folder `_rejects`. All of these are outputs
    of the one task.

    Attributes:
        output: URL of the folder to write below.
        to: A format, ``Tar()``, or its name; or another object that encodes records as the files of a shard.
    """

    elements = Union[WrittenTask, NoneTask, FailedTask]  # noqa: UP007 - Beam reads it as a type hint

    output: str
    to: str | ShardEncoder

    def __post_init__(self) -> None:
        self.output = refuse_secrets(check_root(canonical_url(self.output)), "an output").rstrip("/")
        if isinstance(self.to, str):
            self.encoder(ChainValues())  # a wrong name is an error at once

    def encoder(self, values: ChainValues) -> ShardEncoder:  # noqa: ARG002 - of run files they say how
        """Return what encodes the shards."""
        return format_named(self.to) if isinstance(self.to, str) else self.to

    def dofn(self, values: ChainValues) -> beam.DoFn:
        """Return what publishes the shards."""
        return _Write(self.output, self.encoder(values), values.base, values.storage_options, values.ledger)

    def display_data(self) -> dict[str, Any]:
        """Show the output in a runner's console."""
        return {"output": printable(self.output), "to": str(self.to)}


@runtime_checkable
class TaskEncoder(ShardEncoder, Protocol):
    """An encoder whose files say which task they are of."""

    def of_task(self, task: Task) -> ShardEncoder:
        """Return the encoder of the files of a task."""


@dataclass(frozen=True)
class _ToPublish:
    """A task whose outputs are to be published.

    Attributes:
        task: The task, without its records.
        files: Name, route and content of each output, in the order in which they appear.
        records: Records that it writes.
        rejected: Records that it rejects.
        counts: What became of the records that it read.
        statistics: What its function observed.
    """

    task: Task
    files: tuple[tuple[str, str, ShardFile], ...]
    records: int
    rejected: int
    counts: RecordCounts | None = None
    statistics: Mapping[str, Statistic] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of the outputs."""
        return sum(len(file.data) for _, _, file in self.files)


class _Publishing:
    """Tasks whose outputs are published together, in their order.

    Attributes:
        tasks: In the order in which their outputs appear.
        size: Bytes of their outputs.
        published: What they have become, once publishing has begun.
    """

    published: Future[list[WrittenTask | FailedTask]]

    def __init__(self) -> None:
        self.tasks: list[_ToPublish] = []
        self.size = 0
        self._files = 0
        self._since = 0.0

    def add(self, encoded: _ToPublish) -> None:
        self._since = self._since or time.monotonic()
        self.tasks.append(encoded)
        self.size += encoded.size
        self._files += len(encoded.files)

    def is_due(self) -> bool:
        """Return whether what is there is enough to be published, or has waited for others long enough."""
        is_full = self.size >= TOGETHER_BYTES or self._files >= TOGETHER_FILES
        return is_full or time.monotonic() - self._since >= TOGETHER_SECONDS


class _Write(beam.DoFn):
    """Publishes what it encodes: in its turn, or in threads while another element follows, which may be mapped then.

    What is published in threads is emitted in its order, when a later element comes here.
    """

    def __init__(
        self,
        output: str,
        encoder: ShardEncoder,
        base: str | None,
        storage_options: Mapping[str, Any],
        ledger: LedgerHandle | None,
    ) -> None:
        self._output = output
        self._encoder = encoder
        self._base = base
        self._options = storage_options
        self._ledger = ledger
        self._routes = RouteFolders(output, base, storage_options)
        self._waits_for_others = is_local(canonical_url(output))
        self._threads = ThreadsBeside(BEHIND_GROUPS, "ledgerbeam-publish", "publish")
        self._behind: deque[_Publishing] = deque()
        self._gathering = _Publishing()
        self._since = 0.0  # when the first task was begun
        self._publishing = 0.0  # seconds since then
        self._records = Metrics.counter("ledgerbeam", "records_written")
        self._rejected = Metrics.counter("ledgerbeam", "records_rejected")
        self._bytes = Metrics.counter("ledgerbeam", "bytes_written")

    def start_bundle(self) -> None:
        self._behind.clear()
        self._gathering = _Publishing()

    def process(self, element: Task | NoneTask | FailedTask) -> Iterator[WrittenTask | NoneTask | FailedTask]:
        encoded: _ToPublish | NoneTask | FailedTask
        if isinstance(element, Task):
            self._since = self._since or element.started
            with timed("encode"), fatal_errors(self._ledger):
                encoded = self._encoded(element)
        else:
            encoded = element
        if isinstance(encoded, _ToPublish) and this_overlap().follows and self._takes_long():
            yield from self._written(before=encoded)
            self._begin(encoded)
            return
        yield from self._written()
        if isinstance(encoded, _ToPublish):
            with timed("publish"), fatal_errors(self._ledger):
                (done,) = self._published([encoded])
            yield self._counted(done, encoded.rejected)
        else:
            yield encoded

    def finish_bundle(self) -> list[WindowedValue]:
        return [GlobalWindows.windowed_value(written) for written in self._written()]

    def teardown(self) -> None:
        self._threads.close()

    def _takes_long(self) -> bool:
        """Return whether publishing has taken so long that other tasks are to be mapped meanwhile."""
        return self._publishing > 0 and self._publishing >= BEHIND_SHARE * (time.monotonic() - self._since)

    def _begin(self, encoded: _ToPublish) -> None:
        """Begin to publish a task, alone or with others that came shortly before or will come soon."""
        self._gathering.add(encoded)
        if not self._waits_for_others or self._gathering.is_due():
            self._submit()
        self._say_held()

    def _submit(self) -> None:
        group, self._gathering = self._gathering, _Publishing()
        group.published = self._threads.submit(self._published, group.tasks)
        self._behind.append(group)

    def _say_held(self) -> None:
        this_overlap().held = sum(len(group.tasks) for group in (*self._behind, self._gathering))

    def _written(self, before: _ToPublish | None = None) -> Iterator[WrittenTask | FailedTask]:
        """Yield the tasks that were published in threads, in their order.

        Args:
            before: A task that is to be published beside the others: those are waited for that leave no room for it.
                None to wait for all.
        """
        while self._behind or self._gathering.tasks:
            is_done = bool(self._behind) and self._behind[0].published.done()
            if before is not None and not is_done and self._has_room(before):
                return
            if not self._behind:
                self._submit()
            group = self._behind.popleft()
            self._say_held()
            with timed("publish"), fatal_errors(self._ledger):
                written = group.published.result()
            for encoded, done in zip(group.tasks, written, strict=True):
                yield self._counted(done, encoded.rejected)

    def _has_room(self, encoded: _ToPublish) -> bool:
        size = sum(group.size for group in self._behind) + self._gathering.size
        return len(self._behind) < BEHIND_GROUPS and size + encoded.size <= BEHIND_BYTES

    def _counted(self, written: WrittenTask | FailedTask, rejected: int) -> WrittenTask | FailedTask:
        if isinstance(written, FailedTask):
            return written
        self._records.inc(written.records)
        self._rejected.inc(rejected)
        self._bytes.inc(written.size)
        return written

    def _encoded(self, task: Task) -> _ToPublish | FailedTask:
        results = task.records if isinstance(task.records, TaskResults) else None
        datasets = {"": task.records} if results is None else results.datasets
        rejects = () if results is None else results.rejects
        try:
            _refuse_unreadable(task.records)
            encoder = self._encoder.of_task(task) if isinstance(self._encoder, TaskEncoder) else self._encoder
            shards = {route: encoder.encode(datasets[route]) for route in sorted(datasets)}
        except RecordError as error:
            return failed_by(error, task, f"{task.name}: {message_of(error)}")
        except Exception as error:  # noqa: BLE001 - of records that user code made
            return failed_by(error, task, f"{task.name}: {describe_error(error)}")
        records = sum(files[0].records for files in shards.values())
        if rejects:
            shards[REJECTS] = [encode_rejects(rejects)]
        return _ToPublish(
            task.replace(records=None, raw=None),
            self._named(task, shards),
            records,
            len(rejects),
            _counts(task, records),
            {} if results is None else results.statistics,
        )

    def _named(self, task: Task, shards: Mapping[str, list[ShardFile]]) -> tuple[tuple[str, str, ShardFile], ...]:
        """Return the files of each route, whose names begin alike but for their folders."""
        room = max(len(file.ending.encode()) for files in shards.values() for file in files)
        named = [
            (route, output_name(task, self._base, file.ending, room=room, below=self._output), file)
            for route, files in shards.items()
            for file in files
        ]
        for route, name, _ in named:
            self._routes.require_free(route, name)
        return tuple((f"{route}/{name}" if route else name, route, file) for route, name, file in named)

    def _published(self, tasks: Sequence[_ToPublish]) -> list[WrittenTask | FailedTask]:
        """Publish the files of tasks; everything of them is durable when this returns.

        Not those of a source that was replaced meanwhile: others may have published what it is now by the same names.
        """
        begun = time.monotonic()
        fault_point("publish.before")
        ids = {encoded.task.source.id for encoded in tasks}
        with nullcontext(set[bytes]()) if self._ledger is None else self._ledger.publishing(ids) as replaced:
            current = [encoded for encoded in tasks if encoded.task.source.id not in replaced]
            files = [(f"{self._output}/{path}", file.data) for encoded in current for path, _, file in encoded.files]
            publish_all(files, self._options, below=self._output)
        fault_point("publish.after")
        self._publishing += time.monotonic() - begun
        return [
            _replaced(encoded.task) if encoded.task.source.id in replaced else self._as_written(encoded)
            for encoded in tasks
        ]

    def _as_written(self, encoded: _ToPublish) -> WrittenTask:
        task = encoded.task
        outputs = tuple(_recorded(path, route, file, task) for path, route, file in encoded.files)
        size = sum(output.size for output in outputs if output.records and output.route != REJECTS)
        seconds = time.monotonic() - task.started if task.started else 0.0
        return WrittenTask(task, outputs, encoded.records, size, seconds, encoded.counts, encoded.statistics)


def _counts(task: Task, written: int) -> RecordCounts | None:
    """Return what became of the records of a task that writes so many; None if they were not counted."""
    if isinstance(task.records, TaskResults):
        counts = task.records.counts
    elif task.read is not None:
        made = length_hint(task.records, written)
        counts = RecordCounts(made, made, {}, {}, {"": written} if written else {})
    else:
        return None
    return counts if task.read is None else counts.of_read(task.read)


def _replaced(task: Task) -> FailedTask:
    return FailedTask(
        task,
        ChangedSourceError.__name__,
        f"{task.name}: expected the source that this task is of, found that it has been replaced since, and that "
        "another run has listed it as it is now: nothing of this task is published",
    )


def _refuse_unreadable(records: Any) -> None:
    """Refuse records that could not be decoded: some formats would write the mark as a record."""
    if isinstance(records, list) and Unreadable in map(type, records):
        marked = records[list(map(type, records)).index(Unreadable)]
        raise RecordError(
            f"{marked.error}; ReadTasks(on_error='reject') marks such records, and nothing before WriteTasks rejects "
            "them: use MapRecords with on_error='reject', or leave them out in a function"
        )


def _recorded(path: str, route: str, file: ShardFile, task: Task) -> Output:
    checksum = content_checksum([file.data])
    return Output(path, len(file.data), checksum, file.records, task.start, file.nulled, route)
