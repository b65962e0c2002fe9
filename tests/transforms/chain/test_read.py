"""What is read for a task, which readers stay open, and to whom a death while it is read or worked on is laid."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders.typecoders import registry
from apache_beam.pipeline import PipelineVisitor
from apache_beam.typehints.native_type_compatibility import convert_to_beam_type

from ledgerbeam.errors import (
    ChangedSourceError,
    FunctionError,
    IndexNotFoundError,
    LedgerError,
    RecordError,
    SourceError,
    StorageError,
)
from ledgerbeam.io import JsonlFormat, TarFormat
from ledgerbeam.io.formats.streamed import SpanReader
from ledgerbeam.io.listing.pages import list_pages
from ledgerbeam.io.storage.files import read_many_files
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.io.tar.grouping import Grouping
from ledgerbeam.iterators.job_source import GraphPass, GraphSource
from ledgerbeam.ledger import FailedTask, NoneTask, Source, Task
from ledgerbeam.ledger.selection import PendingSource
from ledgerbeam.ledger.worker.inflight import InflightMarks, _decode
from ledgerbeam.sources import FileSources, SharSources, Sources, TaskLimits, kind
from ledgerbeam.sources.forms import RecordBlocks
from ledgerbeam.sources.kind import TaskReader
from ledgerbeam.transforms import MapRecords, ProcessTask, ReadTasks
from ledgerbeam.transforms.chain.base import TASKS, ChainDoFn, ChainValues, LedgerHandle, give_values
from ledgerbeam.transforms.chain.plan import _Plan
from ledgerbeam.transforms.chain.read import _Read, _read_fetched
from ledgerbeam.transforms.chain.schedule import StreamedTasks
from tests.cases import each
from tests.transforms.metrics import reported


def listed(path: Path | str) -> Source:
    (page,) = list_pages([str(path)])
    return Source(page.urls[0], page.sizes[0], page.versions[0])


def make(folder: Path, name: str, count: int = 10) -> Source:
    """Write a source with its index, where it has one."""
    data = b"".join(b'{"id":%d}\n' % number for number in range(count))
    (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    source = listed(folder / name)
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
    was = os.stat(tmp_path / "a.jsonl")
    (tmp_path / "new").write_bytes((tmp_path / "a.jsonl").read_bytes().replace(b"id", b"no"))
    os.utime(tmp_path / "new", ns=(was.st_atime_ns, was.st_mtime_ns))
    os.replace(tmp_path / "new", tmp_path / "a.jsonl")
    assert reader.read(Task(source, 0, 1)).listed() == [{"no": 0}]
    assert reader.read(Task(source, 1, 2)).listed() == [{"no": 1}]
    assert counting.opened == ["a.jsonl", "a.jsonl"]
    held = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if _is_open(name)]
    assert f"{tmp_path}/a.jsonl (deleted)" not in held


def _is_open(name: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{name}")


def streamed(source: Source, count: int, sources: Sources | None = None) -> StreamedTasks:
    plan = _Plan(None, sources or FileSources(), TaskLimits(task_records=count))
    planned: list[Any] = [*plan.process(PendingSource(source))]
    (found,) = [*planned, *(windowed.value for windowed in plan.finish_bundle())]
    assert isinstance(found, StreamedTasks)
    return found


def test_what_cannot_be_read_fails_task_by_task(tmp_path: Path) -> None:
    source = make(tmp_path, "a.jsonl")
    tasks = [Task(source, start, start + 2) for start in (0, 2)]
    found = [result for task in tasks for result in _Read(FileSources(), None).process(task)]
    assert [type(result) for result in found] == [Task, Task]
    os.unlink(tmp_path / "a.jsonl")
    for task in tasks:
        (failed,) = _Read(FileSources(), None).process(task)
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


def test_markers_pass(tmp_path: Path) -> None:
    task = Task(Source("/a.jsonl", 1, "1"), 0, 1)
    for marker in (NoneTask(task), FailedTask(task, "reason")):
        assert list(_Read(FileSources(), None).process(marker)) == [marker]


def test_a_stream_is_opened_once_and_closed_when_its_tasks_are_read(tmp_path: Path) -> None:
    source = make(tmp_path, "a.jsonl.gz")
    found = _Read(FileSources(), None).process(streamed(source, 4))
    records = [task.records for task in found if isinstance(task, Task)]
    assert [[row["id"] for row in rows] for rows in records] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


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
    found = list(_Read(FileSources(), None).process(tasks))
    assert [(type(task), task.reason) for task in found if isinstance(task, FailedTask)] == [
        (FailedTask, "ChangedSourceError")
    ] * 3


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_task_is_in_work_until_what_comes_after_it_has_taken_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "run").mkdir()
    folder = str(tmp_path / "run")

    def in_work() -> list[str]:
        return [mark.name for path in Path(folder).iterdir() for mark in _decode(path.read_bytes())]

    source = make(tmp_path, name)
    element: Any = streamed(source, 5) if name.endswith(".gz") else Task(source, 0, 5)
    found = _Read(FileSources(), LedgerHandle(str(tmp_path / "L"), run_dir=folder)).process(element)
    assert in_work() == []
    for task in found:
        assert isinstance(task, Task)
        assert in_work() == [task.name]
    assert in_work() == []
    InflightMarks(folder).close()


def test_a_stream_is_read_once_for_all_its_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def noting(url: str, *args: Any, **options: Any) -> SpanReader:
        opened.append(url)
        return SpanReader(url, *args, **options)

    monkeypatch.setattr("ledgerbeam.sources.files.SpanReader", noting)
    source = make(tmp_path, "a.jsonl.gz")
    reading = _Read(FileSources(), None)
    for count in (2, 100):
        assert all(isinstance(task, Task) for task in reading.process(streamed(source, count)))
    assert opened == [source.url] * 2


def test_a_stream_on_a_store_is_of_the_version_that_was_listed(tmp_path: Path) -> None:
    folder = ObjectFolder(f"memory://{tmp_path.name}")
    lines = b"".join(b'{"id":%d}\n' % number for number in range(10))
    folder.create("a.jsonl.gz", gzip.compress(lines, mtime=0))
    (page,) = list_pages([f"{folder.url}/a.jsonl.gz"])
    tasks = streamed(Source(page.urls[0], page.sizes[0], page.versions[0]), 4)
    assert all(isinstance(task, Task) for task in _Read(FileSources(), None).process(tasks))
    folder.delete(["a.jsonl.gz"])
    folder.create("a.jsonl.gz", gzip.compress(lines.replace(b"id", b"no"), mtime=0))
    found = list(_Read(FileSources(), None).process(tasks))
    assert {type(task) for task in found} == {FailedTask}


def test_samples_are_grouped_as_they_were_planned(tmp_path: Path) -> None:
    """Also those of a pack."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as file:
        for name in ("a.x.wav", "a.x.json", "b.y.wav", "b.y.json"):
            member = tarfile.TarInfo(name)
            member.size = 3
            file.addfile(member, io.BytesIO(b"abc"))
    (tmp_path / "a.tar").write_bytes(data.getvalue())
    (tmp_path / "b.tar.gz").write_bytes(gzip.compress(data.getvalue()))
    plain, packed = listed(tmp_path / "a.tar"), listed(tmp_path / "b.tar.gz")
    groups: tuple[Grouping, ...] = ("key", "pairs")
    for group in groups:
        sources = FileSources((TarFormat(group),))
        pack = Source.pack([plain, plain])
        (of_pack,) = _Read(sources, None).process(Task(pack, 0, 2, ((0, 1),)))
        (of_stream,) = _Read(sources, None).process(streamed(packed, 100, sources))
        assert isinstance(of_pack, Task)
        assert isinstance(of_stream, Task)
        assert of_pack.records == [*of_stream.records, *of_stream.records]
        assert [sample.key for sample in of_stream.records] == (["a", "b"] if group == "key" else ["a.x", "b.y"])


def test_a_file_of_a_pack_that_is_shorter_than_it_was_listed_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the watch sees: the file system of a network may tell an old size."""
    data = b'{"id":1}\n{"id":2}\n'
    (tmp_path / "a.jsonl").write_bytes(data)
    member = listed(tmp_path / "a.jsonl")
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


def put_in_its_place(path: Path, data: bytes) -> None:
    """Replace a file by one of the same size and time."""
    was = os.stat(path)
    (path.parent / "aside").write_bytes(data)
    os.utime(path.parent / "aside", ns=(was.st_atime_ns, was.st_mtime_ns))
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
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as file:
        for name in ("0.wav", "0.json", "1.wav", "1.json"):
            member = tarfile.TarInfo(name)
            member.size = 2
            file.addfile(member, io.BytesIO(b"{}"))
    (tmp_path / "recording.000000.tar").write_bytes(data.getvalue())
    (tmp_path / "cuts.000000.jsonl").write_text('{"id": "0"}\n{"id": "1"}\n')
    shard = Source.pack([listed(tmp_path / "cuts.000000.jsonl"), listed(tmp_path / "recording.000000.tar")])
    sources = SharSources()
    sources.kind_of(shard).cut(shard, TaskLimits())
    (found,) = _Read(sources, None).process(Task(shard, 1, 2, ((1, 2),)))
    assert isinstance(found, Task), found
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
    held = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if _is_open(name)]
    assert source.url not in held


def test_records_and_blank_lines_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a pack, whose task has the numbers of its files, there is nothing to tell of blank lines; nor of a graph."""
    (tmp_path / "a.jsonl").write_bytes(b'{"id":1}\n\n{"id":2}\n\n\n{"id":3}\n')
    source = listed(tmp_path / "a.jsonl")
    FileSources().load_index(source)
    graph = Source("graph://module/graph/epoch-00000", 5, "1")
    monkeypatch.setattr(GraphPass, "read", lambda *_: ["of two places"])
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    stream = streamed(listed(tmp_path / "b.jsonl.gz"), 4)
    cases: list[tuple[Task | StreamedTasks, tuple[int, int], Sources]] = [
        (Task(source, 2, 6), (2, 2), FileSources()),
        (stream, (3, 3), FileSources()),
        (Task(Source.pack([source]), 0, 1), (3, 0), FileSources()),
        (Task(graph, 0, 2), (1, 0), GraphSource("module:graph")),
    ]
    for task, expected, sources in cases:
        with reported() as metrics:
            list(_Read(sources, None).process(task))
        assert (metrics.total("records_read"), metrics.total("blank_lines_skipped")) == expected


def test_of_a_task_that_was_not_decoded_to_its_end_nothing_is_counted(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"id":1}\n\n{"id":2}\n')
    source = listed(tmp_path / "a.jsonl")
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
    monkeypatch.setattr(GraphPass, "read", lambda _, *asked: [asked])
    source = Source("graph://module/graph/epoch-00000", 5, "1")
    (task,) = _Read(GraphSource("module:graph"), None).process(Task(source, 1, 3))
    assert isinstance(task, Task)
    assert task.records == [(source, 1, 3)]


def test_lists_are_read_unless_what_follows_takes_blocks(tmp_path: Path) -> None:
    """A function of a task of one's own has a list; `MapRecords` has blocks, wherever these are."""
    source = make(tmp_path, "a.jsonl", 4)
    source = FileSources().kind_of(source).cut(source, TaskLimits()).source
    (listed,) = _Read(FileSources(), None).process(Task(source, 0, 4))
    (blocks,) = _Read(FileSources(), None, in_blocks=True).process(Task(source, 0, 4))
    assert isinstance(listed, Task)
    assert isinstance(blocks, Task)
    assert listed.records == [{"id": number} for number in range(4)]
    assert isinstance(blocks.records, RecordBlocks)
    assert blocks.records.listed() == listed.records
    for function, takes in ((MapRecords("json:dumps", "jsonl"), True), (lambda task: task, False)):
        pipeline = beam.Pipeline()
        reading, processing = ReadTasks(), ProcessTask(function)
        pipeline | beam.Create([Task(source, 0, 4)]) | reading | processing
        given: list[bool] = []
        give_values(pipeline, ChainValues())
        pipeline.visit(_Noting(given))
        assert given == [takes]


class _Noting(PipelineVisitor):
    def __init__(self, given: list[bool]) -> None:
        self._given = given

    def visit_transform(self, transform_node: Any) -> None:
        fn = getattr(transform_node.transform, "fn", None)
        if isinstance(fn, ChainDoFn) and isinstance(fn.transform, ReadTasks):
            assert fn.values is not None
            self._given.append(fn.values.in_blocks)


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
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"id":0}\n{"id"\n{"id":2}\n'))
    sources = FileSources((JsonlFormat(schema='{"columns":{"id":"int64"}}'),), form="arrow")
    tasks = streamed(listed(tmp_path / "a.jsonl.gz"), 100, sources)
    (failed,) = _Read(sources, None).process(tasks)
    assert isinstance(failed, FailedTask)
    assert failed.reason == "RecordError"
    (marked,) = _Read(sources, None, "reject").process(tasks)
    assert isinstance(marked, Task)
    assert marked.records.table.to_pylist() == [{"id": 0}, {"id": 2}]
    assert list(marked.records.unreadable) == [1]


def test_the_size_of_a_task_is_known_without_its_records() -> None:
    """Beam samples sizes, by encoding elements if their coder does not say them."""
    task = Task(Source("/a.jsonl", 1, "1"), 0, 1, (), [b"x" * 10**6])
    coder = registry.get_coder(convert_to_beam_type(TASKS))
    assert coder.estimate_size(task) < 10_000
    assert coder.decode(coder.encode(task)).records == task.records
