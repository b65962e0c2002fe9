"""Index tasks: how a source is cut into them, what each leaves, and what the last one publishes."""

from __future__ import annotations

import dataclasses
import gzip
import os
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pytest

from ledgerbeam.errors import DiskFullError, LedgerDamagedError, UsageError
from ledgerbeam.io import TarFormat, publish_bytes
from ledgerbeam.io.index import file as location_module
from ledgerbeam.io.index.file import IndexLocation
from ledgerbeam.io.index.newlines import scan_newlines
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.ledger import FailedTask, Job, Source, Task
from ledgerbeam.ledger.model.identity import ROOT, content_checksum
from ledgerbeam.ledger.model.store import MAX_ATTEMPTS
from ledgerbeam.ledger.opening import open_local_store
from ledgerbeam.ledger.selection import PendingSource, with_progress
from ledgerbeam.sources import FileSources, TaskLimits
from ledgerbeam.transforms import BuildIndexes, CommitTasks, PlanIndexes
from ledgerbeam.transforms.chain import index as index_module
from ledgerbeam.transforms.chain.base import ChainValues, LedgerHandle
from ledgerbeam.transforms.chain.index import _BuildIndexes, _PlanIndexes, part_name
from ledgerbeam.transforms.chain.write import WrittenTask
from ledgerbeam.transforms.on_beam import give_values
from tests.sources.data import listed, put, tar
from tests.transforms.conftest import in_work, reported

LINES = b"".join(b'{"id": %d}\n' % number for number in range(10))  # 10 bytes each


def make(folder: Path, name: str = "a.jsonl", data: bytes = LINES) -> Source:
    return put(folder / name, gzip.compress(data) if name.endswith(".gz") else data)


def plan(source: Source | PendingSource, range_bytes: int = 40) -> list[Any]:
    return list(_PlanIndexes(range_bytes, FileSources()).process(source))


def build(tmp_path: Path, task: Any, sources: FileSources = FileSources()) -> Any:  # noqa: B008 - frozen
    ledger = LedgerHandle(str(tmp_path / "L"))
    (found,) = _BuildIndexes(ledger, str(tmp_path / "work"), sources, force=False).process(task)
    return found


def last(source: Source, count: int) -> Task:
    return Task(source, 0, source.size, ((count - 1, count),))


def opened(source: Source, done: list[int], count: int, attempts: dict[bytes, int] | None = None) -> PendingSource:
    tasks = [Task(source, 0, 0, ((ordinal, count),)) for ordinal in done]
    return PendingSource(source, {ROOT: count - 1, **{task.node: -1 for task in tasks}}, attempts or {})


def test_a_source_above_the_size_of_a_range_is_cut(tmp_path: Path) -> None:
    source = make(tmp_path)
    found = plan(source)
    assert [(task.start, task.stop, task.lineage) for task in found] == [
        (0, 40, ((0, 4),)),
        (40, 80, ((1, 4),)),
        (80, 100, ((2, 4),)),
    ]
    assert all(task.source.changed_ns for task in found)
    for range_bytes in (100, 101, 1000):
        assert plan(source, range_bytes) == [dataclasses.replace(found[0], stop=100, lineage=((0, 1),))]
    assert [task.stop for task in plan(source, 99)] == [99, 100]
    assert PlanIndexes().display_data() == {"range_bytes": 256 * 2**20}


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.tar"])
def test_what_cannot_be_scanned_in_ranges_is_one_task(tmp_path: Path, name: str) -> None:
    (task,) = plan(make(tmp_path, name), 10)
    assert task.lineage == ((0, 1),)


def test_the_last_task_waits_for_the_ranges(tmp_path: Path) -> None:
    source = make(tmp_path)
    assert [task.start for task in plan(opened(source, [1], 4))] == [0, 80]
    assert [task.lineage for task in plan(opened(source, [0, 1, 2], 4))] == [((3, 4),)]
    first = Task(source, 0, 40, ((0, 4),))
    assert [task.start for task in plan(opened(source, [1], 4, {first.node: MAX_ATTEMPTS}))] == [80]
    assert [task.start for task in plan(opened(source, [1], 4, {first.node: MAX_ATTEMPTS - 1}))] == [0, 80]
    assert plan(opened(source, [1, 2], 4, {first.node: MAX_ATTEMPTS})) == []


def test_a_source_that_is_not_what_was_listed_fails(tmp_path: Path) -> None:
    source = dataclasses.replace(make(tmp_path), version="1")
    (failed,) = plan(source)
    assert isinstance(failed, FailedTask)
    assert (failed.task, failed.reason) == (Task(source, 0, 100), "ChangedSourceError")
    assert build(tmp_path, failed) == failed
    found = build(tmp_path, last(source, 1))
    assert isinstance(found, FailedTask)
    assert (found.reason, found.task) == ("ChangedSourceError", last(source, 1))
    assert not (tmp_path / "a.jsonl.idx").exists()


def test_ranges_leave_parts_of_which_the_index_is_made(tmp_path: Path) -> None:
    source = make(tmp_path)
    for ordinal, task in enumerate(plan(source)):
        found = build(tmp_path, task)
        assert isinstance(found, WrittenTask)
        assert (found.outputs, found.records, found.size) == ((), 0, task.stop - task.start)
        assert 0 < found.seconds < 60
        assert (tmp_path / "work" / part_name(source, ordinal)).exists()
    assert part_name(source, 7) == f"{source.id.hex()}-000007.part"
    assert not (tmp_path / "a.jsonl.idx").exists()
    found = build(tmp_path, last(source, 4))
    assert np.fromfile(tmp_path / "a.jsonl.idx", np.uint64).tolist() == list(range(0, 101, 10))
    assert (found.records, found.size) == (10, 0)


def test_a_whole_source_is_indexed_by_one_task(tmp_path: Path) -> None:
    source = make(tmp_path)
    found = build(tmp_path, last(source, 1))
    data = (tmp_path / "a.jsonl.idx").read_bytes()
    (output,) = found.outputs
    assert (output.name, output.size, output.checksum) == (f"{source.url}.idx", len(data), content_checksum([data]))
    assert (output.records, output.first, found.records, found.size) == (10, 0, 10, 100)


def test_a_source_that_is_replaced_while_a_range_of_it_is_scanned_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the other file has its size and its time: in the end nobody could tell what the range was of."""
    source = make(tmp_path)
    task, *_ = plan(source)
    path, other = tmp_path / "a.jsonl", tmp_path / "other"

    def scanned(*args: Any) -> Any:
        other.write_bytes(LINES[::-1])
        os.utime(other, ns=(1, path.stat().st_mtime_ns))
        other.replace(path)
        return scan_newlines(*args)

    monkeypatch.setattr(index_module, "scan_newlines", scanned)
    found = build(tmp_path, task)
    assert isinstance(found, FailedTask)
    assert found.reason == "ChangedSourceError"
    assert not (tmp_path / "work").exists()


def test_a_part_that_is_gone_ends_the_job_with_the_remedy(tmp_path: Path) -> None:
    source = make(tmp_path)
    tasks = plan(source)
    for task in tasks[:2]:
        build(tmp_path, task)
    with pytest.raises(LedgerDamagedError, match=rf"ledger forget {tmp_path}/L {source.url}$"):
        build(tmp_path, last(source, 4))


def test_a_full_disk_ends_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise DiskFullError("no room")

    monkeypatch.setattr(location_module, "publish_bytes", full)
    with pytest.raises(DiskFullError):
        build(tmp_path, last(make(tmp_path), 1))


def test_an_index_is_never_older_than_its_source(tmp_path: Path) -> None:
    make(tmp_path)
    late = os.stat(tmp_path / "a.jsonl").st_mtime_ns + 10**12
    os.utime(tmp_path / "a.jsonl", ns=(late, late))
    build(tmp_path, last(listed(tmp_path / "a.jsonl"), 1))
    assert os.stat(tmp_path / "a.jsonl.idx").st_mtime_ns >= late


def test_a_source_that_is_replaced_after_its_ranges_were_read_fails(tmp_path: Path) -> None:
    source = make(tmp_path)
    for task in plan(source):
        build(tmp_path, task)
    make(tmp_path, data=LINES.replace(b"id", b"no"))
    found = build(tmp_path, last(source, 4))
    assert isinstance(found, FailedTask)
    assert not (tmp_path / "a.jsonl.idx").exists()


def test_a_pipeline_does_the_ranges_and_the_next_one_the_index(tmp_path: Path) -> None:
    source = make(tmp_path)
    store = open_local_store(str(tmp_path / "L"), create=True)
    store.open_job(Job("index", {}))
    store.register([source])
    ledger = LedgerHandle(str(tmp_path / "L"))
    for done in (0, 1):
        (opened,) = with_progress([source], store)
        with beam.Pipeline("FnApiRunner") as pipeline:
            sources = pipeline | beam.Create([opened], reshuffle=False)
            sources | PlanIndexes(40) | BuildIndexes(str(tmp_path / "work")) | CommitTasks()
            give_values(pipeline, ChainValues(ledger))
        assert store.completed_count() == done
    assert (tmp_path / "a.jsonl.idx").stat().st_size == 11 * 8
    store.close()


def test_ranges_of_an_object_are_of_the_version_that_was_listed(tmp_path: Path) -> None:
    folder = ObjectFolder(f"memory://{tmp_path.name}")
    folder.create("a.jsonl", LINES)
    source = listed(f"{folder.url}/a.jsonl")
    ranges = plan(source)
    assert [type(build(tmp_path, task)) for task in ranges] == [WrittenTask] * 3
    folder.delete(["a.jsonl"])
    folder.create("a.jsonl", LINES.replace(b"id", b"no"))
    for task in (*ranges, last(source, 1), last(source, 4)):
        assert isinstance(build(tmp_path, task), FailedTask)
    assert folder.names("") == ["a.jsonl"]


def test_a_test_can_end_a_worker_before_its_index_is_there_and_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached: list[tuple[str, bool]] = []
    monkeypatch.setattr(
        index_module, "fault_point", lambda place: reached.append((place, (tmp_path / "a.jsonl.idx").exists()))
    )
    build(tmp_path, last(make(tmp_path), 1))
    assert reached == [("publish.before", False), ("publish.after", True)]


def test_seek_points_are_there_before_the_index_that_needs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published: list[str] = []

    def noting(url: str, *args: Any, **options: Any) -> None:
        published.append(os.path.basename(url))
        publish_bytes(url, *args, **options)

    monkeypatch.setattr(location_module, "publish_bytes", noting)
    make(tmp_path, "a.jsonl.gz", os.urandom(2 << 20).hex().encode() + b"\n" + LINES)
    late = os.stat(tmp_path / "a.jsonl.gz").st_mtime_ns + 10**12
    os.utime(tmp_path / "a.jsonl.gz", ns=(late, late))
    source = listed(tmp_path / "a.jsonl.gz")
    found = build(tmp_path, last(source, 1))
    assert all(os.stat(output.name).st_mtime_ns >= late for output in found.outputs)
    assert published == ["a.jsonl.gz.gzidx", "a.jsonl.gz.idx"]
    for output in found.outputs:
        data = Path(output.name).read_bytes()
        assert (output.size, output.checksum) == (len(data), content_checksum([data]))
    rows = [(os.path.basename(output.name), output.records, output.first) for output in found.outputs]
    assert rows == [("a.jsonl.gz.idx", 11, 0), ("a.jsonl.gz.gzidx", 0, 11)]
    assert found.records == 11


def test_a_compressed_source_is_read_by_its_index_once_it_has_one(tmp_path: Path) -> None:
    source = make(tmp_path, "a.jsonl.gz")
    kind = FileSources().kind_of(source)
    assert kind.cut(source, TaskLimits(40)).stream is not None
    build(tmp_path, last(source, 1))
    assert np.fromfile(tmp_path / "a.jsonl.gz.idx", np.uint64).tolist() == list(range(0, 101, 10))
    cut = kind.cut(source, TaskLimits(40))
    assert (cut.spans, cut.stream) == ([(0, 4), (4, 8), (8, 10)], None)


def test_samples_are_indexed_as_they_are_grouped(tmp_path: Path) -> None:
    source = make(tmp_path, "a.tar", tar("a.wav", "a.txt", "a.json", "b.wav", "b.txt", "b.json"))
    for group, records in (("key", 2), ("pairs", 3)):
        found = build(tmp_path, last(source, 1), FileSources((TarFormat(group),)))  # type: ignore[arg-type]
        assert found.records == records


def test_indexed_records_are_counted(tmp_path: Path) -> None:
    source = make(tmp_path)
    with reported() as metrics:
        for task in (*plan(source), last(source, 4)):
            build(tmp_path, task)
    assert metrics.total("records_indexed") == 10


def test_the_transforms_say_how_sources_are_cut_and_where_parts_lie(tmp_path: Path) -> None:
    source = make(tmp_path)
    sources = FileSources(index=IndexLocation(str(tmp_path / "idx")))
    values = ChainValues(LedgerHandle(str(tmp_path / "L")), sources=sources)
    cutting: Any = PlanIndexes(40).make_work(values)
    ranges = list(cutting.process(source))
    assert ranges == plan(source)
    building: Any = BuildIndexes(str(tmp_path / "parts")).make_work(values)
    for task in (*ranges, last(source, 4)):
        (found,) = building.process(task)
        assert isinstance(found, WrittenTask)
    assert sorted(os.listdir(tmp_path / "parts")) == sorted(part_name(source, ordinal) for ordinal in range(3))
    assert [output.name for output in found.outputs] == [sources.index.url_for(source.url)]
    assert found.outputs[0].name.startswith(f"{tmp_path}/idx/")
    with pytest.raises(UsageError, match="this pipeline has no ledger"):
        BuildIndexes(str(tmp_path / "parts")).make_work(ChainValues())


@pytest.mark.parametrize(
    ("name", "ending", "size"),
    [("a.jsonl", ".idx", 1), ("a.jsonl.gz", ".gzidx", 2 << 20)],
    ids=["an index", "seek points"],
)
def test_a_file_of_others_in_the_place_of_what_is_made_stays_unless_it_may_go(
    tmp_path: Path, name: str, ending: str, size: int
) -> None:
    source = make(tmp_path, name, os.urandom(size).hex().encode() + b"\n" + LINES)
    place = tmp_path / f"{name}{ending}"
    place.write_bytes(b"mine")
    work, values = str(tmp_path / "parts"), ChainValues(LedgerHandle(str(tmp_path / "L")))
    for building, becomes in ((BuildIndexes(work), FailedTask), (BuildIndexes(work, force=True), WrittenTask)):
        done: Any = building.make_work(values)
        (found,) = done.process(last(source, 1))
        assert isinstance(found, becomes)
        assert (place.read_bytes() == b"mine") is (becomes is FailedTask)


def test_a_task_is_in_work_while_it_is_done(
    tmp_path: Path, handle: LedgerHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = last(make(tmp_path), 1)
    seen: list[str] = []

    def noting(*_: Any, **__: Any) -> None:
        seen.extend(in_work(handle))

    monkeypatch.setattr(location_module, "publish_bytes", noting)
    list(_BuildIndexes(handle, str(tmp_path / "work"), FileSources(), force=False).process(task))
    assert seen == [task.name]
