"""`WriteTasks`: encode the records of tasks and publish them as shards."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, field
from operator import length_hint
from typing import Any, Protocol, Union, runtime_checkable

from ledgerbeam._base.names import ASIDE, DROPPED, ENDINGS_ROOM, REJECTS, check_root, relative_name
from ledgerbeam._base.redaction import printable, refuse_secrets
from ledgerbeam.errors import ChangedSourceError, RecordError
from ledgerbeam.io import ShardEncoder, ShardFile
from ledgerbeam.io.compression.streams import split_compression
from ledgerbeam.io.formats.format import fits
from ledgerbeam.io.formats.registry import format_named
from ledgerbeam.io.listing.nested_folders import RouteFolders
from ledgerbeam.io.storage.publish import publish_all
from ledgerbeam.io.storage.urls import canonical_url, is_local
from ledgerbeam.ledger import FailedTask, NoneTask, Output, Task
from ledgerbeam.ledger.model.accounts import RecordCounts, Statistic
from ledgerbeam.ledger.model.faults import fault_point
from ledgerbeam.ledger.model.identity import content_checksum
from ledgerbeam.ledger.worker.reports import timed
from ledgerbeam.sources.kind import Unreadable
from ledgerbeam.transforms.chain.base import ChainStep, ChainValues, LedgerHandle, StepWork, fatal_errors
from ledgerbeam.transforms.chain.schedule import ThreadsBeside, this_overlap
from ledgerbeam.transforms.mapping.outcomes import TaskResults, encode_rejects
from ledgerbeam.user_code.guards import describe_error, failed_by, message_of

# Number of groups of tasks that are published concurrently. A store answers many requests in the time of one, and a
# file system combines the syncs of several threads. On a store each task is a group of its own.
BEHIND_GROUPS = 4
# Number of outputs on a disk that are published as one group; a group has at least one task. One sync of a folder for
# many outputs, and fewer thread switches, halve the time per output.
TOGETHER_FILES = 32
TOGETHER_BYTES = 1 << 20  # size in bytes from which a group of outputs on a disk is published at once
TOGETHER_SECONDS = 0.05  # time in seconds that a smaller group waits for more outputs. A long next task extends it.
BEHIND_BYTES = 16 << 20  # maximum size of the groups that are published concurrently; one task is always allowed
# Share of a worker's time from which publishing moves to threads. A task that a thread publishes is recorded only
# after a later task was mapped. If the worker dies before, its work is lost.
BEHIND_SHARE = 0.05


@dataclass(frozen=True)
class WrittenTask:
    """A task whose outputs are durable outside the pipeline.

    Attributes:
        task: The task, without its records.
        outputs: The published outputs.
        records: Number of records written.
        size: Number of bytes written.
        seconds: Time from the start of reading to the end of publishing.
        counts: Counts of kept, dropped and rejected records. None if every record was written without a route.
        statistics: Statistics that the function observed, by name.
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

    The name consists of the path of the source below `base`, the number of the first record, and one ordinal for each
    fan-out of user code. A source outside of `base` has its scheme and whole path instead. The added parts have a fixed
    length, so no two tasks share a name. In the name of a compressed source the last dot becomes a dash
    (`a.jsonl-gz-...`), because lhotse reads any file with `.jsonl` among its suffixes as plain JSONL. `relative_name`
    replaces paths that would leave the output folder or are too long. A pack has the path of its first member.

    `base` is the fixed part of the patterns and ends with ``/``. `room` is the length in bytes of the longest suffix
    among the outputs of the task, so that all have the same stem. `below` is the canonical URL of the output folder.
    """
    url = task.source.url
    outside = ""
    if base is not None and url.startswith(base):
        path = url[len(base) :]
    else:
        outside = "" if base is None else "%"  # no path below the base starts with it, unlike with `s3`
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
    """Return whether another path could get the same name as this one: a compressed path gets a dash for a dot."""
    if compressed:
        return "-" in path.rpartition(".")[2]
    front, dash, suffix = path.rpartition("-")
    return (
        bool(dash) and not {".", "/"} & set(suffix) and split_compression(f"{front}.{suffix}").compression is not None
    )


@dataclass
class WriteStep(ChainStep):
    """Publish the records of each task as one shard with its index, atomically and under a unique name.

    The contents of shard and index are on the disk before the shard appears, and the shard appears before its index.
    Both are durable before the element is emitted, so `CommitTasks` records only outputs that exist.

    The records of a task are one dataset or `TaskResults`. With `TaskResults` each route is a dataset of its own, in
    the folder of that name below the output folder. Rejected records go to a file in the folder `_rejects`, and dropped
    records that are stored to a file in `_dropped`. All of them are outputs of the one task.

    Attributes:
        output: URL of the folder to write below.
        to: A format such as ``Tar()``, the name of a format, or another encoder of records as files of a shard.
    """

    elements = Union[WrittenTask, NoneTask, FailedTask]  # noqa: UP007 - Beam reads it as a type hint

    output: str
    to: str | ShardEncoder

    def __post_init__(self) -> None:
        self.output = refuse_secrets(check_root(canonical_url(self.output)), "an output").rstrip("/")
        if isinstance(self.to, str):
            self.encoder(ChainValues())  # raises for an unknown name

    def encoder(self, values: ChainValues) -> ShardEncoder:  # noqa: ARG002 - the encoder of run files uses them
        return format_named(self.to) if isinstance(self.to, str) else self.to

    def make_work(self, values: ChainValues) -> StepWork:
        return _Write(self.output, self.encoder(values), values.base, values.storage_options, values.ledger)

    def display_data(self) -> dict[str, Any]:
        return {"output": printable(self.output), "to": str(self.to)}


@runtime_checkable
class TaskEncoder(ShardEncoder, Protocol):
    """An encoder whose files depend on the task: a run file, for instance, names its task."""

    def of_task(self, task: Task) -> ShardEncoder:
        """Return the encoder of the files of a task."""


@dataclass(frozen=True)
class _ToPublish:
    """An encoded task before its outputs are published."""

    task: Task  # the task, without its records
    files: tuple[tuple[str, str, ShardFile], ...]  # Name, route and content of each output, in order of publication
    records: int
    rejected: int
    counts: RecordCounts | None = None  # counts of kept, dropped and rejected records
    statistics: Mapping[str, Statistic] = field(default_factory=dict)  # statistics that the function observed, by name

    @property
    def size(self) -> int:
        """Bytes of the outputs."""
        return sum(len(file.data) for _, _, file in self.files)


class _Publishing:
    """A group of tasks whose outputs are published together."""

    published: Future[list[WrittenTask | FailedTask]]  # the written tasks. Set when publishing starts

    def __init__(self) -> None:
        self.tasks: list[_ToPublish] = []  # in order of publication
        self.size = 0  # size of their outputs, in bytes
        self._files = 0
        self._since = 0.0

    def add(self, encoded: _ToPublish) -> None:
        self._since = self._since or time.monotonic()
        self.tasks.append(encoded)
        self.size += encoded.size
        self._files += len(encoded.files)

    def is_due(self) -> bool:
        """Return whether the group is large enough, or has waited long enough, to be published."""
        is_full = self.size >= TOGETHER_BYTES or self._files >= TOGETHER_FILES
        return is_full or time.monotonic() - self._since >= TOGETHER_SECONDS


class _Write(StepWork):
    """Encode and publish tasks: in this thread, or in other threads if another element is certain to follow.

    Tasks that other threads publish are emitted in order, when a later element arrives.
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
        self._since = 0.0  # start of the first task
        self._publishing = 0.0  # seconds of publishing since then

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

    def finish_bundle(self) -> Iterator[WrittenTask | FailedTask]:
        return self._written()

    def teardown(self) -> None:
        self._threads.close()

    def _takes_long(self) -> bool:
        """Return whether publishing takes so large a share of the time that threads for it save time."""
        return self._publishing > 0 and self._publishing >= BEHIND_SHARE * (time.monotonic() - self._since)

    def _begin(self, encoded: _ToPublish) -> None:
        """Start to publish a task, alone or in a group with earlier or later tasks."""
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
        """Yield the tasks that threads have published, in order.

        With `before`, a task to be published next, wait only until the limits allow it. With None, wait for all.
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
        self.counters.add("records_written", written.records)
        self.counters.add("records_rejected", rejected)
        self.counters.add("bytes_written", written.size)
        return written

    def _encoded(self, task: Task) -> _ToPublish | FailedTask:
        results = task.records if isinstance(task.records, TaskResults) else None
        datasets = {"": task.records} if results is None else results.datasets
        rejects = () if results is None else results.rejects
        try:
            _refuse_unreadable(task.records)
            encoder: Any = self._encoder
            encoder = encoder.of_task(task) if fits(encoder, TaskEncoder) else encoder
            shards = {route: encoder.encode(datasets[route]) for route in sorted(datasets)}
        except RecordError as error:
            return failed_by(error, task, f"{task.name}: {message_of(error)}")
        except Exception as error:  # noqa: BLE001 - user code made the records
            return failed_by(error, task, f"{task.name}: {describe_error(error)}")
        records = sum(files[0].records for files in shards.values())
        if rejects:
            shards[REJECTS] = [encode_rejects(rejects)]
        if results is not None and results.dropped:
            shards[DROPPED] = [encode_rejects(results.dropped, dropped=True)]
        return _ToPublish(
            task.replace(records=None, raw=None),
            self._named(task, shards),
            records,
            len(rejects),
            _counts(task, records),
            {} if results is None else results.statistics,
        )

    def _named(self, task: Task, shards: Mapping[str, list[ShardFile]]) -> tuple[tuple[str, str, ShardFile], ...]:
        """Return name, route and content of each file. Names of one task differ only in folder and suffix."""
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
        """Publish the files of tasks. They are durable when this returns.

        Files of a source that was replaced meanwhile are skipped: another run may have published new files under these
        names.
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
        outputs = tuple(
            Output(path, len(file.data), content_checksum([file.data]), file.records, task.start, file.nulled, route)
            for path, route, file in encoded.files
        )
        size = sum(output.size for output in outputs if output.records and output.route not in ASIDE)
        seconds = time.monotonic() - task.started if task.started else 0.0
        return WrittenTask(task, outputs, encoded.records, size, seconds, encoded.counts, encoded.statistics)


def _counts(task: Task, written: int) -> RecordCounts | None:
    """Return the counts of a task that writes `written` records; None if its records were not counted."""
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
        f"{task.name}: the source was replaced after this task was planned, and another run has listed the new "
        "version; this task publishes nothing",
    )


def _refuse_unreadable(records: Any) -> None:
    """Raise RecordError if an item is an `Unreadable` (not decoded): some formats would write it as a record."""
    if isinstance(records, list) and Unreadable in map(type, records):
        marked = records[list(map(type, records)).index(Unreadable)]
        raise RecordError(
            f"{marked.error}; ReadTasks(on_error='reject') marks such records as Unreadable, but no function rejected "
            "them before WriteTasks. Use MapRecords with on_error='reject', or drop them in a function"
        )
