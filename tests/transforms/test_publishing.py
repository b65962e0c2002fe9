"""What `WriteTasks` says is written is on the disk, whole and under its name; what a killed writer left is removed."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest

from ledgerbeam.errors import DiskFullError, FunctionError, StorageError
from ledgerbeam.io import publish_bytes
from ledgerbeam.io.storage.publish import (
    TEMPORARY_SUFFIX,
    publish,
    publish_all,
    publishing_together,
    remove_stale_temporaries,
)
from ledgerbeam.ledger import FailedTask, Job, NoneTask, Source, Task
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.ledger.model.identity import content_checksum
from ledgerbeam.ledger.opening import open_local_store
from ledgerbeam.ledger.worker.writer import close_shared_writers
from ledgerbeam.transforms import CommitTasks, WriteTasks
from ledgerbeam.transforms.chain import write
from ledgerbeam.transforms.chain.base import ChainValues, LedgerHandle, give_values
from ledgerbeam.transforms.mapping.outcomes import RejectedRecord, Rejection, TaskResults
from tests.disk import Disk
from tests.transforms.metrics import reported

RECORDS = [{"id": 1}, {"id": 2}]


def publish_in_pieces(url: str, data: bytes) -> None:
    with publish(url) as file:
        for place in range(len(data)):
            file.write(data[place : place + 1])


@pytest.mark.parametrize("write", [publish_bytes, publish_in_pieces])
def test_an_output_is_on_the_disk_before_it_has_its_name_and_its_name_before_the_call_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[str, bytes], None]
) -> None:
    disk = Disk(monkeypatch)
    path = str(tmp_path / "new/deep/out.jsonl")
    write(path, b"whole")
    folder = os.path.dirname(path)
    ((synced, _),) = [(place, row) for place, row in enumerate(disk.seen) if row[0] == "sync" and row[2] == 5]
    named = disk.seen.index(("replace", path, 0))
    last = len(disk.seen) - 1
    assert synced < named < last
    assert disk.seen[last][:2] == ("sync", folder)
    assert set(disk.synced_folders()) == {str(tmp_path), str(tmp_path / "new"), folder}


def test_outputs_of_a_task_are_on_the_disk_before_the_first_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    paths = [str(tmp_path / name) for name in ("new/out.jsonl", "new/out.jsonl.idx", "other/out.jsonl")]
    publish_all([(path, b"whole" + b"!" * place) for place, path in enumerate(paths)])
    named = [disk.seen.index(("replace", path, 0)) for path in paths]
    synced = [place for place, row in enumerate(disk.seen) if row[0] == "sync" and row[2] in (5, 6, 7)]
    assert len(synced) == 3
    assert max(synced) < named[0] < named[1] < named[2]
    folders = [row[1] for row in disk.seen[named[2] + 1 :] if row[0] == "sync"]
    assert folders == [str(tmp_path / "new"), str(tmp_path / "other")]


@pytest.mark.parametrize("blocked", [0, 1])
def test_outputs_of_a_task_that_cannot_be_published_leave_nothing_but_those_before(
    tmp_path: Path, blocked: int
) -> None:
    paths = [tmp_path / "out.jsonl", tmp_path / "out.jsonl.idx"]
    paths[blocked].mkdir()
    with pytest.raises(StorageError, match="a folder of that name exists"):
        publish_all([(str(path), b"whole") for path in paths])
    assert sorted(path for path in tmp_path.iterdir() if path.is_file()) == paths[:blocked]


def test_outputs_that_the_disk_does_not_take_do_not_appear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int) -> None:
        if os.fstat(descriptor).st_size == 6:  # that of the index, in another thread
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(DiskFullError, match=r"out\.jsonl\.idx: no space is left"):
        publish_all([(str(tmp_path / "out.jsonl"), b"whole"), (str(tmp_path / "out.jsonl.idx"), b"whole!")])
    assert list(tmp_path.iterdir()) == []


def test_what_a_thread_publishes_together_appears_at_the_end(tmp_path: Path) -> None:
    later = time.time_ns() + 3600 * 10**9
    paths = [tmp_path / name for name in ("a", "new/b")]
    with publishing_together():
        publish_bytes(str(paths[0]), b"first")
        publish_bytes(str(paths[1]), b"second", not_before_ns=later)
        other = threading.Thread(target=publish_bytes, args=(str(tmp_path / "other"), b"at once"))
        other.start()
        other.join()
        assert [path.name for path in tmp_path.iterdir()] == ["other"]
    assert [path.read_bytes() for path in paths] == [b"first", b"second"]
    assert paths[1].stat().st_mtime_ns == later > paths[0].stat().st_mtime_ns


def test_of_what_is_published_together_nothing_appears_if_the_body_raises(tmp_path: Path) -> None:
    def publish_and_fail() -> None:
        with publishing_together():
            publish_bytes(str(tmp_path / "a"), b"first")
            raise ValueError("in between")

    with pytest.raises(ValueError, match="in between"):
        publish_and_fail()
    publish_bytes(str(tmp_path / "b"), b"second")
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_an_output_whose_writer_raises_leaves_the_former_one(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    publish_bytes(str(path), b"former")
    with pytest.raises(TypeError), publish(str(path)) as file:
        file.write("half")  # type: ignore[call-overload]
    assert path.read_bytes() == b"former"
    assert [name.name for name in tmp_path.iterdir()] == ["out.jsonl"]


def test_what_a_killed_writer_left_is_removed_and_what_a_live_one_writes_is_not(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        try:
            with publish(str(tmp_path / "killed")) as file:
                file.write(b"half")
                os._exit(0)
        finally:
            os._exit(1)
    os.waitpid(child, 0)
    (left,) = tmp_path.iterdir()
    with publish(str(tmp_path / "live")) as file:
        file.write(b"half")
        assert remove_stale_temporaries(str(tmp_path)) == [str(left)]
        file.write(b" and half")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("live", b"half and half")]


def test_a_temporary_that_is_published_while_it_is_looked_at_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / f".out.1-2{TEMPORARY_SUFFIX}"
    left.write_bytes(b"former")
    lock = fcntl.flock

    def publish_first(descriptor: int, how: int) -> None:
        if left.exists() and left.read_bytes() == b"former":
            left.rename(tmp_path / "out")
            left.write_bytes(b"of another writer")
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", publish_first)
    assert remove_stale_temporaries(str(tmp_path)) == []
    assert (tmp_path / "out").read_bytes() == b"former"
    assert left.read_bytes() == b"of another writer"


def test_what_is_recorded_of_an_output_is_what_lies_there(tmp_path: Path) -> None:
    source = Source("/data/a.jsonl", 10, "1")
    store = open_local_store(str(tmp_path / "ledger"), create=True)
    store.open_job(Job("test", {}))
    store.register([source])
    ledger = LedgerHandle(str(tmp_path / "ledger"))
    with beam.Pipeline("FnApiRunner") as pipeline:
        (
            pipeline
            | beam.Create([Task(source, 0, 2, ((0, 1),), RECORDS)])
            | WriteTasks(str(tmp_path / "out"), "jsonl")
            | CommitTasks()
        )
        give_values(pipeline, ChainValues(ledger, base="/data/"))
    assert store.completed_count() == 1
    rows = list(store.outputs())
    assert rows
    for row in rows:
        data = (tmp_path / "out" / row.output.name).read_bytes()
        assert (row.output.size, row.output.checksum) == (len(data), content_checksum([data]))
    assert store.totals().records == 2
    assert store.totals().bytes == sum(row.output.size for row in rows if row.output.records)
    store.close()


@pytest.fixture
def replaced(tmp_path: Path) -> Iterator[tuple[Source, Source]]:
    """A source that was replaced since its tasks were planned, and another one; the ledger is `ledger`."""
    old, new, other = Source("/data/a", 10, "1"), Source("/data/a", 10, "2"), Source("/data/b", 10, "1")
    store = open_local_store(str(tmp_path / "ledger"), create=True)
    store.open_job(Job("test", {}))
    store.register([old, other])
    store.register([new])
    (tmp_path / "run").mkdir()
    yield old, other
    store.close()


@pytest.mark.parametrize("is_local_run", [True, False])
def test_of_a_source_that_was_replaced_nothing_is_published_in_a_local_run(
    tmp_path: Path, replaced: tuple[Source, Source], is_local_run: bool
) -> None:
    old, other = replaced
    ledger = LedgerHandle(str(tmp_path / "ledger"), run_dir=str(tmp_path / "run") if is_local_run else None)
    write = WriteTasks(str(tmp_path / "out"), "jsonl").dofn(ChainValues(ledger, base="/data/"))
    found = [one for source in (old, other) for one in write.process(Task(source, 0, 2, (), RECORDS))]
    kinds = {old.id: "FailedTask" if is_local_run else "WrittenTask", other.id: "WrittenTask"}
    assert {one.task.source.id: type(one).__name__ for one in found} == kinds
    names = {path.name[0] for path in (tmp_path / "out").iterdir()}
    assert names == ({"b"} if is_local_run else {"a", "b"})


def test_of_tasks_that_are_published_together_those_alone_fail_whose_source_was_replaced(
    tmp_path: Path, replaced: tuple[Source, Source]
) -> None:
    old, other = replaced
    ledger = LedgerHandle(str(tmp_path / "ledger"), run_dir=str(tmp_path / "run"))
    writes: Any = WriteTasks(str(tmp_path / "out"), "jsonl").dofn(ChainValues(ledger, base="/data/"))
    together = [writes._encoded(Task(source, 0, 2, (), RECORDS)) for source in (other, old, other)]
    assert [type(one).__name__ for one in writes._published(together)] == ["WrittenTask", "FailedTask", "WrittenTask"]


def test_of_a_source_that_was_replaced_no_record_counts_as_rejected(
    tmp_path: Path, replaced: tuple[Source, Source]
) -> None:
    ledger = LedgerHandle(str(tmp_path / "ledger"), run_dir=str(tmp_path / "run"))
    writes: Any = WriteTasks(str(tmp_path / "out"), "jsonl").dofn(ChainValues(ledger, base="/data/"))
    rejected = []
    for source in replaced:
        bad = RejectedRecord(source.url, 1, 0, 1, b"x", Rejection(1, "bad"))
        results = TaskResults({"": [{"a": 1}]}, RecordCounts(2, 1, {}, {"bad": 1}, {"": 1}), (bad,), {})
        with reported() as metrics:
            list(writes.process(Task(source, 0, 2, (), results)))
        rejected.append(metrics.total("records_rejected"))
    assert sorted(rejected) == [0, 1]


@pytest.mark.parametrize("kind", [NoneTask, FailedTask])
def test_nothing_is_recorded_that_code_has_made_which_changed_since_the_job_began(
    tmp_path: Path, kind: type[NoneTask | FailedTask]
) -> None:
    source = Source("/data/a", 10, "1")
    store = open_local_store(str(tmp_path / "ledger"), create=True)
    store.open_job(Job("test", {}))
    store.register([source])
    commits: Any = CommitTasks().dofn(ChainValues(LedgerHandle(store.url, modules={__name__: "0" * 16})))
    task = Task(source, 0, 0)
    with pytest.raises(FunctionError, match="has changed since the job was created"):
        commits.process(NoneTask(task) if kind is NoneTask else FailedTask(task, "ValueError", "made by new code"))
    close_shared_writers()
    assert (store.completed_count(), list(store.failures())) == (0, [])
    store.close()


def test_a_source_is_not_replaced_between_the_look_at_it_and_its_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = Source("/data/a", 10, "1"), Source("/data/a", 10, "2")
    store = open_local_store(str(tmp_path / "ledger"), create=True)
    store.open_job(Job("test", {}))
    store.register([old])
    (tmp_path / "run").mkdir()
    replacing = threading.Thread(target=store.register, args=([new],))
    seen: list[set[bytes]] = []

    def stand_still(*args: Any, **more: Any) -> None:
        replacing.start()
        replacing.join(0.5)
        seen.append(set(store.source_urls([old.id, new.id])))
        publish_all(*args, **more)

    monkeypatch.setattr(write, "publish_all", stand_still)
    ledger = LedgerHandle(str(tmp_path / "ledger"), run_dir=str(tmp_path / "run"))
    tasks = WriteTasks(str(tmp_path / "out"), "jsonl").dofn(ChainValues(ledger, base="/data/"))
    assert [type(one).__name__ for one in tasks.process(Task(old, 0, 2, (), RECORDS))] == ["WrittenTask"]
    replacing.join()
    assert seen == [{old.id}]
    assert set(store.source_urls([old.id, new.id])) == {new.id}
    store.close()
