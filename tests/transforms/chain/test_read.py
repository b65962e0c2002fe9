"""What is read for a task, which readers stay open, and to whom a death while it is read or worked on is laid."""

from __future__ import annotations

import gzip
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import apache_beam as beam
import pytest

from ledgerbeam.errors import (
    ChangedSourceError,
    FunctionError,
    IndexNotFoundError,
    LedgerError,
    RecordError,
    SourceError,
    StorageError,
)
from ledgerbeam.io import JsonlFormat, Sample, TarFormat
from ledgerbeam.io.formats.streamed import SpanReader
from ledgerbeam.io.storage.files import read_many_files
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.io.tar.grouping import Grouping
from ledgerbeam.io.tar.writer import encode_tar
from ledgerbeam.iterators.job_source import GraphSource
from ledgerbeam.ledger import FailedTask, LedgerStore, Source, Task
from ledgerbeam.ledger.selection import PendingSource
from ledgerbeam.sources import FileSources, SharSources, Sources, TaskLimits, kind
from ledgerbeam.sources.forms import RecordBlocks
from ledgerbeam.sources.kind import TaskReader
from ledgerbeam.transforms import CommitTasks, PlanTasks, ReadTasks, WriteTasks
from ledgerbeam.transforms.chain.base import ChainValues, LedgerHandle
from ledgerbeam.transforms.chain.plan import _Plan
from ledgerbeam.transforms.chain.read import _Read, _read_fetched
from ledgerbeam.transforms.chain.schedule import StreamedTasks
from ledgerbeam.transforms.on_beam import give_values
from tests.cases import each
from tests.sources.data import listed, put, tar
from tests.transforms.conftest import in_work, reported


def make(folder: Path, name: str, count: int = 10) -> Source:
    """Write a source with its index, where it has one."""
    data = b"".join(b'{"id":%d}\n' % number for number in range(count))
    source = put(folder / name, gzip.compress(data) if name.endswith(".gz") else data)
    if not name.endswith(".gz"):
        FileSources().load_index(source)
    return source


class Counting(FileSources):
    """Notes which sources are opened."""

    opened: list[str]

    def open_file(self, source: Source) -> Any:
        self.opened.append(os.path.basename(source.url))
        return super().open_file(source)


@pytest.fixture
def counting() -> Counting:
    kind = Counting()
    object.__setattr__(kind, "opened", [])
    return kind


def test_the_readers_of_the_last_few_sources_stay_open(
    tmp_path: Path, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, "OPEN_READERS", 2)
    reader = TaskReader(counting)
    sources = {name: make(tmp_path, f"{name}.jsonl") for name in "abc"}
    for name in "ababcacbba":
        assert reader.read(Task(sources[name], 1, 3)).listed() == [{"id": 1}, {"id": 2}]
    assert counting.opened == ["a.jsonl", "b.jsonl", "c.jsonl", "a.jsonl", "b.jsonl", "a.jsonl"]


def test_a_replaced_file_is_no_longer_held_open(tmp_path: Path, counting: Counting) -> None:
    reader = TaskReader(counting)
    source = make(tmp_path, "a.jsonl")
    reader.read(Task(source, 0, 1))
    put_in_its_place(tmp_path / "a.jsonl", (tmp_path / "a.jsonl").read_bytes().replace(b"id", b"no"))
    assert reader.read(Task(source, 0, 1)).listed() == [{"no": 0}]
    assert reader.read(Task(source, 1, 2)).listed() == [{"no": 1}]
    assert counting.opened == ["a.jsonl", "a.jsonl"]
    assert f"{tmp_path}/a.jsonl (deleted)" not in open_files()


def open_files() -> list[str]:
    names = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return [os.readlink(name) for name in names if os.path.lexists(name)]


def read(element: Any, sources: Sources | None = None, **how: Any) -> list[Any]:
    """Return what is read of an element."""
    return list(_Read(sources or FileSources(), None, **how).process(element))


def streamed(source: Source, count: int, sources: Sources | None = None) -> StreamedTasks:
    plan = _Plan(None, sources or FileSources(), TaskLimits(task_records=count))
    planned: list[Any] = [*plan.process(PendingSource(source)), *plan.finish_bundle()]
    (found,) = planned
    assert isinstance(found, StreamedTasks)
    return found


def test_what_cannot_be_read_fails_task_by_task(tmp_path: Path) -> None:
    source = make(tmp_path, "a.jsonl")
    tasks = [Task(source, start, start + 2) for start in (0, 2)]
    found = [result for task in tasks for result in read(task)]
    assert [type(result) for result in found] == [Task, Task]
    os.unlink(tmp_path / "a.jsonl")
    for task in tasks:
        (failed,) = read(task)
        assert isinstance(failed, FailedTask)
        assert (failed.task, failed.reason) == (task, "ChangedSourceError")
        assert str(tmp_path / "a.jsonl") in failed.error


@each("kind", [SourceError, RecordError, IndexNotFoundError, StorageError, FunctionError])
def test_an_error_of_reading_names_itself(kind: type[Exception]) -> None:
    reading = _Read(FileSources(), None)

    def fail() -> list[Any]:
        raise kind("no")

    failed = reading._read(Task(Source("/a.jsonl", 1, "1"), 0, 1), fail, fail)
    assert isinstance(failed, FailedTask)
    assert (failed.reason, failed.error) == (kind.__name__, "no")


def test_an_error_of_the_ledger_is_no_failure_of_a_task() -> None:
    def fail() -> list[Any]:
        raise LedgerError("no")

    with pytest.raises(LedgerError):
        _Read(FileSources(), None)._read(Task(Source("/a.jsonl", 1, "1"), 0, 1), fail, fail)


def test_a_stream_that_changes_fails_the_tasks_that_are_left(tmp_path: Path) -> None:
    source = make(tmp_path, "a.jsonl.gz")
    found = _Read(FileSources(), None).process(streamed(source, 4))
    assert isinstance(next(found), Task)
    with open(tmp_path / "a.jsonl.gz", "ab") as file:
        file.write(b"x")
    left = list(found)
    assert [type(task) for task in left] == [FailedTask, FailedTask]
    assert {task.reason for task in left if isinstance(task, FailedTask)} == {"ChangedSourceError"}


def test_a_stream_that_is_gone_before_it_is_opened_fails_all_of_them(tmp_path: Path) -> None:
    tasks = streamed(make(tmp_path, "a.jsonl.gz"), 4)
    os.unlink(tmp_path / "a.jsonl.gz")
    assert [(type(task), task.reason) for task in read(tasks)] == [(FailedTask, "ChangedSourceError")] * 3


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_task_is_in_work_until_what_comes_after_it_has_taken_it(
    tmp_path: Path, handle: LedgerHandle, name: str
) -> None:
    source = make(tmp_path, name)
    element: Any = streamed(source, 5) if name.endswith(".gz") else Task(source, 0, 5)
    found = _Read(FileSources(), handle).process(element)
    assert in_work(handle) == []
    for task in found:
        assert isinstance(task, Task)
        assert in_work(handle) == [task.name]
    assert in_work(handle) == []


def test_a_stream_is_read_once_for_all_its_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def noting(url: str, *args: Any, **options: Any) -> SpanReader:
        opened.append(url)
        return SpanReader(url, *args, **options)

    monkeypatch.setattr("ledgerbeam.sources.files.SpanReader", noting)
    source = make(tmp_path, "a.jsonl.gz")
    reading = _Read(FileSources(), None)
    for count in (4, 100):
        found = [row["id"] for task in reading.process(streamed(source, count)) for row in cast(Any, task).records]
        assert found == list(range(10))
    assert opened == [source.url] * 2


def test_a_stream_on_a_store_is_of_the_version_that_was_listed(tmp_path: Path) -> None:
    folder = ObjectFolder(f"memory://{tmp_path.name}")
    lines = b"".join(b'{"id":%d}\n' % number for number in range(10))
    folder.create("a.jsonl.gz", gzip.compress(lines, mtime=0))
    tasks = streamed(listed(f"{folder.url}/a.jsonl.gz"), 4)
    assert all(isinstance(task, Task) for task in read(tasks))
    folder.delete(["a.jsonl.gz"])
    folder.create("a.jsonl.gz", gzip.compress(lines.replace(b"id", b"no"), mtime=0))
    assert {type(task) for task in read(tasks)} == {FailedTask}


def test_samples_are_grouped_as_they_were_planned(tmp_path: Path) -> None:
    """Also those of a pack."""
    data = tar("a.x.wav", "a.x.json", "b.y.wav", "b.y.json")
    plain, packed = put(tmp_path / "a.tar", data), put(tmp_path / "b.tar.gz", gzip.compress(data))
    groups: tuple[Grouping, ...] = ("key", "pairs")
    for group in groups:
        sources = FileSources((TarFormat(group),))
        pack = Source.pack([plain, plain])
        (of_pack,) = read(Task(pack, 0, 2, ((0, 1),)), sources)
        (of_stream,) = read(streamed(packed, 100, sources), sources)
        assert of_pack.records == [*of_stream.records, *of_stream.records]
        assert [sample.key for sample in of_stream.records] == (["a", "b"] if group == "key" else ["a.x", "b.y"])


def test_a_file_of_a_pack_that_is_shorter_than_it_was_listed_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the watch sees: the file system of a network may tell an old size."""
    data = b'{"id":1}\n{"id":2}\n'
    member = put(tmp_path / "a.jsonl", data)
    task = Task(Source.pack([member, member]), 0, 2)
    reader = TaskReader(FileSources())
    assert reader.read(task).listed() == [{"id": 1}, {"id": 2}] * 2
    monkeypatch.setattr("ledgerbeam.sources.files.read_many_files", lambda *_: [data, data[:9]])
    with pytest.raises(ChangedSourceError, match=r"a\.jsonl: .* found 9 bytes"):
        reader.read(task)


def test_each_version_of_an_object_has_a_reader_of_its_own(tmp_path: Path) -> None:
    folder, reader = ObjectFolder(f"memory://{tmp_path.name}"), TaskReader(FileSources())
    for word in (b"one", b"two"):
        folder.delete(["a.jsonl", "a.jsonl.idx"])
        folder.create("a.jsonl", b'"%s"\n' % word)
        source = listed(f"{folder.url}/a.jsonl")
        FileSources().load_index(source)
        assert reader.read(Task(source, 0, 1)).listed() == [word.decode()]


def put_in_its_place(path: Path, data: bytes, later_ns: int = 0) -> None:
    """Replace a file by one of the same size and time."""
    was = os.stat(path)
    (path.parent / "aside").write_bytes(data)
    os.utime(path.parent / "aside", ns=(was.st_atime_ns, was.st_mtime_ns + later_ns))
    os.replace(path.parent / "aside", path)


@pytest.mark.parametrize("changes", ["a.jsonl", "b.jsonl"])
def test_each_file_of_a_pack_is_watched_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: str
) -> None:
    pack = Source.pack([make(tmp_path, name) for name in ("a.jsonl", "b.jsonl")])
    real = read_many_files

    def read_and_change(*asked: Any) -> list[bytes]:
        found = real(*asked)
        put_in_its_place(tmp_path / changes, (tmp_path / changes).read_bytes().replace(b"id", b"no"))
        return found

    monkeypatch.setattr("ledgerbeam.sources.files.read_many_files", read_and_change)
    with pytest.raises(ChangedSourceError, match=rf"{changes}: changed since it was listed"):
        TaskReader(FileSources()).read(Task(pack, 0, 2))


@pytest.mark.parametrize("way", ["read", "read_each", "read_raw"])
def test_however_records_are_read_the_file_is_the_one_that_was_planned(tmp_path: Path, way: str) -> None:
    source = make(tmp_path, "a.jsonl")
    planned = FileSources().kind_of(source).cut(source, TaskLimits()).source
    put_in_its_place(tmp_path / "a.jsonl", (tmp_path / "a.jsonl").read_bytes().replace(b"id", b"no"))
    with pytest.raises(ChangedSourceError, match=r"a\.jsonl: changed since it was listed"):
        getattr(TaskReader(FileSources()), way)(Task(planned, 0, 2))


def test_the_samples_of_a_shard_are_read_from_all_its_files(tmp_path: Path) -> None:
    recording = put(tmp_path / "recording.000000.tar", tar("0.wav", "0.json", "1.wav", "1.json"))
    shard = Source.pack([put(tmp_path / "cuts.000000.jsonl", b'{"id": "0"}\n{"id": "1"}\n'), recording])
    sources = SharSources()
    sources.kind_of(shard).cut(shard, TaskLimits())
    (found,) = read(Task(shard, 1, 2, ((1, 2),)), sources)
    assert len(found.records) == 1


def test_one_process_opens_a_source_once_and_lets_it_go_at_its_end(tmp_path: Path, counting: Counting) -> None:
    source = make(tmp_path, "a.jsonl")
    reading = _Read(counting, None)
    began = time.monotonic()
    for start in (0, 2):
        (task,) = reading.process(Task(source, start, start + 2))
        assert isinstance(task, Task)
        assert began <= task.started <= time.monotonic()
    assert counting.opened == ["a.jsonl"]
    del task  # it can read its raw records
    reading.teardown()
    assert source.url not in open_files()


def test_records_and_blank_lines_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a pack, whose task has the numbers of its files, there is nothing to tell of blank lines; nor of a graph."""
    source = put(tmp_path / "a.jsonl", b'{"id":1}\n\n{"id":2}\n\n\n{"id":3}\n')
    FileSources().load_index(source)
    graph = Source("graph://module/graph/epoch-00000", 5, "1")
    monkeypatch.setattr(GraphSource, "read", lambda *_: ["of two places"])
    stream = streamed(put(tmp_path / "b.jsonl.gz", gzip.compress((tmp_path / "a.jsonl").read_bytes())), 4)
    cases: list[tuple[Task | StreamedTasks, tuple[int, int], Sources]] = [
        (Task(source, 2, 6), (2, 2), FileSources()),
        (stream, (3, 3), FileSources()),
        (Task(Source.pack([source]), 0, 1), (3, 0), FileSources()),
        (Task(graph, 0, 2), (1, 0), GraphSource("module:graph")),
    ]
    for task, expected, sources in cases:
        with reported() as metrics:
            read(task, sources)
        assert (metrics.total("records_read"), metrics.total("blank_lines_skipped")) == expected


def test_of_a_task_that_was_not_decoded_to_its_end_nothing_is_counted(tmp_path: Path) -> None:
    source = put(tmp_path / "a.jsonl", b'{"id":1}\n\n{"id":2}\n')
    FileSources().load_index(source)
    reading = _Read(FileSources(), None, in_blocks=True)
    with reported() as metrics:
        for task in reading.process(Task(source, 0, 3)):
            assert isinstance(task, Task)
            next(iter(task.records))
    assert (metrics.total("records_read"), metrics.total("blank_lines_skipped")) == (0, 0)


def test_records_of_a_stream_that_are_decoded_later_are_counted_then(tmp_path: Path) -> None:
    """How many a block holds is not known before what comes behind has decoded it."""
    reading = _Read(FileSources(), None, in_blocks=True)
    counted: list[int] = []
    with reported() as metrics:
        for task in reading.process(streamed(make(tmp_path, "a.jsonl.gz"), 4)):
            assert isinstance(task, Task)
            assert isinstance(task.records, RecordBlocks)
            assert len(task.records.listed()) == task.stop - task.start
            counted.append(metrics.total("records_read"))
    assert [*counted, metrics.total("records_read")] == [0, 4, 8, 10]


def test_the_time_of_a_task_begins_before_it_is_read() -> None:
    """What it took is told with it, and waiting for a store is a part of that."""
    ended: list[float] = []

    def read() -> list[int]:
        ended.append(time.monotonic())
        while time.monotonic() == ended[0]:
            pass
        return [1]

    began = time.monotonic()
    task = _Read(FileSources(), None)._read(Task(Source("/a.jsonl", 1, "1"), 0, 1), read, read)
    assert isinstance(task, Task)
    assert began <= task.started <= ended[0]


def test_places_of_a_graph_are_read_by_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GraphSource, "read", lambda _, *asked: [asked])
    source = Source("graph://module/graph/epoch-00000", 5, "1")
    (task,) = read(Task(source, 1, 3), GraphSource("module:graph"))
    assert task.records == [(source, 1, 3)]


def test_lists_are_read_unless_what_follows_takes_blocks(tmp_path: Path) -> None:
    source = make(tmp_path, "a.jsonl", 4)
    source = FileSources().kind_of(source).cut(source, TaskLimits()).source
    (listed,), (blocks,) = read(Task(source, 0, 4)), read(Task(source, 0, 4), in_blocks=True)
    assert listed.records == [{"id": number} for number in range(4)]
    assert isinstance(blocks.records, RecordBlocks)
    assert blocks.records.listed() == listed.records


def stored(folder: ObjectFolder, name: str, data: bytes) -> Source:
    folder.create(name, data)
    return listed(f"{folder.url}/{name}")


def test_bytes_of_a_store_alone_are_fetched_ahead(tmp_path: Path) -> None:
    """Of a pack with one file on a store too, but there is nothing to fetch: its files are decoded as they are read."""
    folder = ObjectFolder(f"memory://{tmp_path.name}")
    local, remote = make(tmp_path, "a.jsonl", 4), stored(folder, "b.jsonl", (tmp_path / "a.jsonl").read_bytes())
    FileSources().load_index(remote)
    reader = TaskReader(FileSources())
    assert reader.fetching(Task(local, 1, 3)) is None
    fetch = reader.fetching(Task(remote, 1, 3))
    assert fetch is not None
    assert fetch().listed() == reader.read(Task(remote, 1, 3)).listed() == [{"id": 1}, {"id": 2}]
    fetch = reader.fetching(Task(Source.pack([local, remote]), 0, 2))
    assert fetch is not None
    assert fetch() is None


def test_what_was_fetched_is_not_read_again() -> None:
    def read() -> list[int]:
        return [2]

    assert _read_fetched(None, read) == [2]
    fetched: Future[Any] = Future()
    fetched.set_result([1])
    assert _read_fetched(fetched, read) == [1]
    nothing: Future[Any] = Future()
    nothing.set_result(None)  # it is of a kind that is read in its turn
    assert _read_fetched(nothing, read) == [2]
    failed: Future[Any] = Future()
    failed.set_exception(StorageError("gone"))
    with pytest.raises(StorageError, match="gone"):
        _read_fetched(failed, read)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_raw_records_come_from_the_reader_that_read_the_task(
    tmp_path: Path, counting: Counting, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A stream would be read from its beginning again."""

    def noting(url: str, *args: Any, **options: Any) -> SpanReader:
        counting.opened.append(os.path.basename(url))
        return SpanReader(url, *args, **options)

    monkeypatch.setattr("ledgerbeam.sources.files.SpanReader", noting)
    source = make(tmp_path, name, 4)
    element: Any = streamed(source, 2) if name.endswith(".gz") else Task(source, 0, 2)
    for task in _Read(counting, None).process(element):
        assert isinstance(task, Task)
        assert task.raw is not None
        assert [raw.data for raw in task.raw()] == [b'{"id":%d}' % row["id"] for row in task.records]
    assert counting.opened == [name]


def test_rows_of_a_stream_that_cannot_be_decoded_are_marked(tmp_path: Path) -> None:
    source = put(tmp_path / "a.jsonl.gz", gzip.compress(b'{"id":0}\n{"id"\n{"id":2}\n'))
    sources = FileSources((JsonlFormat(schema='{"columns":{"id":"int64"}}'),), form="arrow")
    tasks = streamed(source, 100, sources)
    (failed,) = read(tasks, sources)
    assert isinstance(failed, FailedTask)
    assert failed.reason == "RecordError"
    (marked,) = read(tasks, sources, on_error="reject")
    assert marked.records.table.to_pylist() == [{"id": 0}, {"id": 2}]
    assert list(marked.records.unreadable) == [1]


RECORDS = 40


def jsonl(text: str) -> bytes:
    return b"".join(json.dumps({"id": n, "text": text}).encode() + b"\n" for n in range(RECORDS))


def samples(text: str) -> bytes:
    return encode_tar([Sample(f"{n:03d}", {"txt": text.encode()}) for n in range(RECORDS)])[0]


MAKE: dict[str, Callable[[str], bytes]] = {
    "a.jsonl": jsonl,
    "a.tar": samples,
    "a.jsonl.gz": lambda text: gzip.compress(jsonl(text), mtime=0),
}


def overwrite(path: Path, data: bytes) -> None:
    """Write other content of the same size in place."""
    with path.open("r+b") as file:
        file.write(data)


def replace(path: Path, data: bytes) -> None:
    """Put another file in its place, of the same size and a little later."""
    put_in_its_place(path, data, later_ns=1_000_000)


def append(path: Path, data: bytes) -> None:
    """Add to it, and give it the time that it had."""
    was = path.stat()
    with path.open("ab") as file:
        file.write(data)
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))


def remove(path: Path, _: bytes) -> None:
    path.unlink()


class Meanwhile:
    """What happens to a file between planning and reading."""

    act: Callable[[], None] | None = None

    @classmethod
    def pass_on(cls, task: Any) -> Any:
        act, cls.act = cls.act, None
        if act is not None:
            act()
        return task


def pass_on(task: Any) -> Any:
    return Meanwhile.pass_on(task)


def run(folder: Path, source: Source) -> None:
    with beam.Pipeline("FnApiRunner") as pipeline:
        planned = pipeline | beam.Create([PendingSource.of(source)]) | PlanTasks(task_records=10)
        read = planned | beam.Map(pass_on) | ReadTasks()
        read | WriteTasks(str(folder / "out"), "jsonl" if "jsonl" in source.url else "tar") | CommitTasks()
        give_values(pipeline, ChainValues(LedgerHandle(str(folder / "ledger")), base=f"{folder}/"))


@pytest.mark.parametrize("change", [None, overwrite, replace, append, remove])
@pytest.mark.parametrize(
    ("name", "packed"), [(name, packed) for name in MAKE for packed in (False, True) if not (packed and ".gz" in name)]
)
def test_a_source_that_changes_between_planning_and_reading_is_not_complete(
    tmp_path: Path, store: LedgerStore, name: str, change: Callable[[Path, bytes], None] | None, packed: bool
) -> None:
    path = tmp_path / name
    source = put(path, MAKE[name]("first"))
    if packed:
        source = Source.pack([source, put(tmp_path / f"b{path.suffix}", MAKE[name]("other"))])
    store.register([source])
    Meanwhile.act = None if change is None else lambda: change(path, MAKE[name]("again"))
    run(tmp_path, source)
    if change is None:
        assert store.status()["sources"] == {"complete": 1, "open": 0, "failed": 0}
        assert sum(row.output.records for row in store.outputs()) == RECORDS * (2 if packed else 1)
        return
    assert Meanwhile.act is None
    assert store.status()["sources"] == {"complete": 0, "open": 0, "failed": 1}
    assert list(store.outputs()) == []
    assert all(str(path) in row.error for row in store.failures())


@pytest.mark.parametrize("name", MAKE)
def test_a_source_that_changes_unseen_between_planning_and_reading_is_not_complete(
    tmp_path: Path, store: LedgerStore, name: str
) -> None:
    data = MAKE[name]("first")
    source = put(tmp_path / name, data)
    store.register([source])
    Meanwhile.act = lambda: put_in_its_place(tmp_path / name, data)
    run(tmp_path, source)
    assert store.status()["sources"] == {"complete": 0, "open": 0, "failed": 1}
