"""What a task's records become, and what the marks of a task become in the ledger."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apache_beam as beam
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerbeam.errors import (
    DiskFullError,
    FunctionError,
    JobMismatchError,
    RecordError,
    RunFileError,
    StorageError,
    UnsupportedShapeError,
    UsageError,
)
from ledgerbeam.io import ShardFile, publish_bytes
from ledgerbeam.io.exchange.hash_run import Hashes
from ledgerbeam.io.exchange.run_file import parse_footer, tail_bytes, task_mark
from ledgerbeam.io.formats.registry import format_named
from ledgerbeam.io.index.reader import RawRecord
from ledgerbeam.io.lines.rows import ByteRows
from ledgerbeam.io.storage.publish import (
    TEMPORARY_SUFFIX,
    publish,
    publish_all,
    publishing_together,
    remove_stale_temporaries,
)
from ledgerbeam.ledger import FailedTask, Job, LedgerStore, NoneTask, Source, Task
from ledgerbeam.ledger.model.accounts import RecordCounts, Statistic
from ledgerbeam.ledger.model.identity import content_checksum
from ledgerbeam.ledger.model.rows import Leaf
from ledgerbeam.ledger.opening import open_local_store
from ledgerbeam.ledger.worker.reports import reported_errors, take_times, timed
from ledgerbeam.ledger.worker.run_folders import committed_notes
from ledgerbeam.ledger.worker.writer import close_shared_writers
from ledgerbeam.sources import Unreadable
from ledgerbeam.transforms import CommitTasks, WriteTasks
from ledgerbeam.transforms.chain import commit as transforms_commit
from ledgerbeam.transforms.chain import write as transforms_write
from ledgerbeam.transforms.chain.base import ChainValues, LedgerHandle
from ledgerbeam.transforms.chain.commit import CommittedTask, _Commit
from ledgerbeam.transforms.chain.schedule import this_overlap
from ledgerbeam.transforms.chain.write import WrittenTask, _Write, output_name
from ledgerbeam.transforms.dedup.duplicates import HashedRecords, HashEncoder
from ledgerbeam.transforms.exchange.scatter import RunEncoder, ScatteredRecords
from ledgerbeam.transforms.mapping.outcomes import RejectedRecord, Rejection, TaskResults
from ledgerbeam.transforms.on_beam import give_values
from tests.cases import each
from tests.disk import Disk
from tests.transforms.conftest import reported

SOURCE = Source("/data/in/a.jsonl", 10, "1")


def task(records: Any = None, start: int = 3, **fields: Any) -> Task:
    return Task(SOURCE, start, start + 2, ((1, 4), (2, 3)), records, **fields)


class Encoder:
    """Files of a shard as a test gives them; an exception is raised."""

    def __init__(self, *files: ShardFile | Exception) -> None:
        self._files = files

    def encode(self, records: Any) -> list[ShardFile]:
        for file in self._files:
            if isinstance(file, Exception):
                raise file
        return [file for file in self._files if isinstance(file, ShardFile)]


def write(tmp_path: Path, encoder: Any, element: Any, base: str | None = "/data/") -> Any:
    (found,) = _Write(str(tmp_path / "out"), encoder, base, {}, None).process(element)
    return found


def test_run_files_are_marked_as_those_of_their_task(tmp_path: Path) -> None:
    """So that no other file is read in their place."""
    numbers = np.arange(2, dtype=np.uint64)
    for encoder, records in (
        (RunEncoder(()), ScatteredRecords(ByteRows.of([b"a", b"b"]), numbers, ByteRows.of([b"1", b"2"]))),
        (HashEncoder(()), HashedRecords(Hashes(numbers, numbers), numbers, [b"1", b"2"])),
    ):
        found = write(tmp_path, encoder, task(records))
        data = (tmp_path / "out" / found.outputs[0].name).read_bytes()
        tail = data[-tail_bytes(1) :]
        assert parse_footer(tail, len(data), 1, "/r.run", task_mark(SOURCE.id, 3))["records"].tolist() == [2]
        with pytest.raises(RunFileError, match="another task has written it"):
            parse_footer(tail, len(data), 1, "/r.run")


def test_what_is_written_is_told_in_full(tmp_path: Path) -> None:
    large = bytes(3 * 2**20) + b"the end"
    files = ShardFile(".x", b"12345", 7, 2), ShardFile(".y", large, 4), ShardFile(".x.idx", b"1234567", 0)
    found = write(tmp_path, Encoder(*files), task([1, 2], started=time.monotonic() - 5))
    assert isinstance(found, WrittenTask)
    assert (found.records, found.size) == (7, 5 + len(large))
    assert 5 <= found.seconds < 60
    assert found.task.replace(started=0.0) == task(None)
    stem = "in/a.jsonl-0000000003-000002"
    rows = [(row.name, row.size, row.checksum, row.records, row.first, row.nulled) for row in found.outputs]
    assert rows == [
        (f"{stem}{file.ending}", len(file.data), content_checksum([file.data]), file.records, 3, file.nulled)
        for file in files
    ]
    for file in files:
        assert (tmp_path / "out" / f"{stem}{file.ending}").read_bytes() == file.data


def test_what_is_written_does_not_hold_its_source_open(tmp_path: Path) -> None:
    """It waits for others, and for its commit; what reads the records of the task again goes with these."""
    found = write(tmp_path, format_named("jsonl"), task([{}], raw=list))
    assert (found.task.records, found.task.raw) == (None, None)


def test_the_files_of_a_shard_are_published_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no index is there without its data."""
    published: list[str] = []
    monkeypatch.setattr(
        "ledgerbeam.transforms.chain.write.publish_all",
        lambda outputs, *_, **__: published.extend(url.rpartition(".")[2] for url, _ in outputs),
    )
    write(tmp_path, Encoder(*(ShardFile(f".{name}", b"", 0) for name in "zyxw")), task([1]))
    assert published == list("zyxw")


def test_names_of_one_task_begin_alike_however_long_they_are(tmp_path: Path) -> None:
    long = Task(Source(f"/data/{'a' * 300}", 10, "1"), 0, 1, ((0, 1),), [1])
    found = write(tmp_path, Encoder(ShardFile(".x", b"", 0), ShardFile(f".{'y' * 90}.idx", b"", 0)), long)
    names = [row.name for row in found.outputs]
    assert len({name.partition(".")[0] for name in names}) == 1
    assert all(len(name) <= 255 for name in names)


def test_names_fit_into_the_store_that_they_are_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledgerbeam.transforms.chain.write.publish_all", lambda *_, **__: None)
    monkeypatch.setattr("ledgerbeam.io.listing.nested_folders.nested_owners", lambda *_: {})
    deep = Task(Source(f"/data/{'folder/' * 200}a", 10, "1"), 0, 1, ((0, 1),), [1])
    for output, fits in (("/out", False), ("s3://bucket/out", True)):
        (found,) = _Write(output, Encoder(ShardFile(".x", b"", 0)), "/data/", {}, None).process(deep)
        assert isinstance(found, WrittenTask)
        assert (len(found.outputs[0].name) < 1024) == fits


def test_a_test_can_end_a_worker_before_its_outputs_are_there_and_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached: list[str] = []

    def note(place: str) -> None:
        reached.append(f"{place}: {sum(path.is_file() for path in tmp_path.rglob('*'))}")

    monkeypatch.setattr("ledgerbeam.transforms.chain.write.fault_point", note)
    write(tmp_path, format_named("jsonl"), task([{}]))
    assert reached == ["publish.before: 0", "publish.after: 2"]


def test_an_encoder_of_the_user_is_taken(tmp_path: Path) -> None:
    with beam.Pipeline("FnApiRunner") as pipeline:
        tasks = pipeline | beam.Create([task([1])])
        tasks | WriteTasks(str(tmp_path), Encoder(ShardFile(".mine", b"x", 1)))
        give_values(pipeline, ChainValues(base="/data/"))
    assert [path.suffix for path in tmp_path.rglob("a.*")] == [".mine"]


@pytest.mark.parametrize(
    ("error", "reason", "said"),
    [(RecordError("of record 4"), "RecordError", "of record 4"), (KeyError("id"), "KeyError", "KeyError")],
)
def test_records_that_cannot_be_encoded_fail_their_task(
    tmp_path: Path, error: Exception, reason: str, said: str
) -> None:
    found = write(tmp_path, Encoder(error), task([1]))
    assert isinstance(found, FailedTask)
    assert (found.task.name, found.reason) == (task().name, reason)
    assert found.error.startswith(f"{task().name}: ")
    assert said in found.error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("to", ["jsonl", "parquet"])
def test_what_could_not_be_decoded_is_not_written_as_a_record(tmp_path: Path, to: str) -> None:
    found = write(tmp_path, format_named(to), task([{"error": "a"}, Unreadable("/data/a.jsonl, record 4: no JSON")]))
    assert isinstance(found, FailedTask)
    assert found.reason == "RecordError"
    assert "/data/a.jsonl, record 4: no JSON; ReadTasks(on_error='reject') marks such records" in found.error
    assert not (tmp_path / "out").exists()


def test_a_store_that_refuses_ends_the_job(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(StorageError):
        write(tmp_path, format_named("jsonl"), task([{}]))


def test_what_cannot_be_written_to_is_refused_before_anything_runs() -> None:
    with pytest.raises(UsageError, match="unknown output format 'orc': expected one of arrow, jsonl, megatron, parq"):
        WriteTasks("/out", "orc")
    with pytest.raises(UsageError):
        WriteTasks("s3://key:secret@bucket/out", "jsonl")
    assert WriteTasks("file:///out/", "tar").display_data() == {"output": "/out", "to": "tar"}


def name_of(url: str, start: int = 0, ordinals: Sequence[int] = (), base: str | None = "/data/", room: int = 0) -> str:
    lineage = ((0, 1), *((ordinal, 13) for ordinal in ordinals))
    return output_name(Task(Source(url, 1, "1"), start, start + 1, lineage), base, ".jsonl", room=room)


NAMES = st.text("ab.-0/", min_size=1, max_size=12)
KEYS = st.tuples(NAMES, st.integers(0, 12), st.lists(st.integers(0, 12), max_size=2))


class TestNames:
    @each(
        ("arguments", "expected"),
        [
            (("/data/books/a.jsonl", 1200), "books/a.jsonl-0000001200.jsonl"),
            (("/data/a.tar", 0, [3]), "a.tar-0000000000-000003.jsonl"),
            # Another order of fan-outs would give what an earlier version has written another name.
            (("/data/a.jsonl", 7, [2, 5, 0]), "a.jsonl-0000000007-000002-000005-000000.jsonl"),
            (("s3://bucket/a.jsonl", 0, []), "%s3/bucket/a.jsonl-0000000000.jsonl"),
            (("s3://bucket/a.jsonl", 0, [], None), "s3/bucket/a.jsonl-0000000000.jsonl"),
            (("/x/a.jsonl", 0, [], None), "file/x/a.jsonl-0000000000.jsonl"),
            (("/data/x.y/a.b.jsonl.gz",), "x.y/a.b.jsonl-gz-0000000000.jsonl"),
            (("/data/a.gz",), "a-gz-0000000000.jsonl"),
            *(
                ((f"/data/{plain}",), f"{plain}-0000000000.jsonl")
                for plain in ("a-b.jsonl", "a.jsonl-x", "x-gz/a.jsonl", "a-b", "a-gz.jsonl", "gz")
            ),
        ],
    )
    def test_a_name_is_the_path_below_the_base_with_the_first_record_and_the_fan_outs(
        self, arguments: tuple[Any, ...], expected: str
    ) -> None:
        assert name_of(*arguments) == expected

    @given(KEYS, KEYS)
    def test_two_tasks_share_no_name(self, one: tuple[str, int, list[int]], other: tuple[str, int, list[int]]) -> None:
        names = [name_of(f"/data/{url}", start, ordinals) for url, start, ordinals in (one, other)]
        assert (names[0] == names[1]) == (one == other)

    @each(
        ("one", "other"),
        [
            ("a.jsonl.gz", "a.jsonl-gz"),
            ("x/a.jsonl.zst", "x/a.jsonl-zst"),
            ("a-b.gz", "a-b-gz"),
            ("a.tar.gz", "a-tar.gz"),
            ("a.b.gz", "a.b-gz"),
            ("a.gz.x-1", "a.gz-x-1"),
        ],
    )
    def test_no_name_is_that_of_another_source(self, one: str, other: str) -> None:
        assert name_of(f"/data/{one}") != name_of(f"/data/{other}")

    def test_a_long_name_leaves_room_for_all_that_is_added(self) -> None:
        url = f"/data/{'a' * 300}"
        assert len(name_of(url, room=60)) + 60 - len(".jsonl") <= 255
        assert name_of(url) == name_of(url, room=1)


class TestCommit:
    """What goes into the ledger for each kind of element."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> LedgerStore:
        store = open_local_store(str(tmp_path / "L"), create=True)
        store.open_job(Job("map", {}))
        store.register([SOURCE])
        return store

    def commit(self, tmp_path: Path, *elements: Any) -> None:
        commit = _Commit(LedgerHandle(str(tmp_path / "L"), flush_interval=600), has_downstream=False)
        for element in elements:
            commit.process(element)
        commit.finish_bundle()

    def downstream(self, tmp_path: Path, **more: Any) -> _Commit:
        return _Commit(LedgerHandle(str(tmp_path / "L"), flush_interval=600, **more), has_downstream=True)

    def part(self, ordinal: int, records: Any = None) -> Task:
        return Task(SOURCE, ordinal, ordinal + 1, ((ordinal, 3),), records)

    def test_a_bundle_that_has_ended_is_recorded(self, tmp_path: Path, store: LedgerStore) -> None:
        written = write(tmp_path, format_named("jsonl"), self.part(0, [{}]))
        failed = FailedTask(self.part(2), "Reason", "the whole text", broke=True)
        self.commit(tmp_path, written, NoneTask(self.part(1)), failed)
        assert [row.output for row in store.outputs()] == sorted(written.outputs, key=lambda row: row.name)
        totals = store.totals()
        assert (totals.tasks, totals.filtered, totals.records, totals.bytes) == (2, 1, written.records, written.size)
        (row,) = store.failures()
        assert (row.task, row.reason, row.error) == (self.part(2).name, "Reason", "the whole text")
        assert list(store.attempts(SOURCE.id).values()) == [1]
        assert store.progress([SOURCE.id]) != [None]
        self.commit(tmp_path, NoneTask(self.part(2)))
        assert store.completed_count() == 1
        assert store.status()["tasks"]["failed"] == 0

    @pytest.mark.parametrize("element", [Task(SOURCE, 0, 1, ((0, 1),), [1]), "text", None])
    def test_anything_else_is_refused_and_not_recorded(self, tmp_path: Path, store: LedgerStore, element: Any) -> None:
        with pytest.raises(UnsupportedShapeError, match=r"a task that was not written|str|NoneType"):
            self.commit(tmp_path, element)
        assert store.totals().tasks == 0

    def test_what_was_finished_before_an_error_is_recorded(self, tmp_path: Path, store: LedgerStore) -> None:
        with pytest.raises(UnsupportedShapeError):
            self.commit(tmp_path, NoneTask(self.part(0)), "text")
        assert store.totals().tasks == 1

    def test_the_time_of_a_task_is_recorded(self, tmp_path: Path, store: LedgerStore) -> None:
        self.commit(tmp_path, WrittenTask(self.part(0), (), 1, 1, 100.0))
        assert [seconds > 10 for seconds in store.durations()] == [True]

    def test_what_comes_behind_sees_recorded_tasks_alone(
        self, tmp_path: Path, store: LedgerStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(transforms_commit, "HELD", 2)
        commit = self.downstream(tmp_path)
        assert commit.process(NoneTask(self.part(0))) == []
        assert store.totals().tasks == 0
        assert [found.start for found in commit.process(NoneTask(self.part(1)))] == [0, 1]
        assert store.totals().tasks == 2
        assert commit.process(NoneTask(self.part(2))) == []
        assert [found.start for found in commit.finish_bundle()] == [2]
        assert store.completed_count() == 1

    def test_a_task_that_fails_releases_none_that_is_not_recorded(self, tmp_path: Path, store: LedgerStore) -> None:
        commit = self.downstream(tmp_path)
        assert commit.process(NoneTask(self.part(0))) == []
        assert commit.process(FailedTask(self.part(1), "RecordError", "x")) == []
        assert store.totals().tasks == 0
        assert [found.start for found in commit.finish_bundle()] == [0]

    @pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
    def test_what_cannot_be_noted_for_what_comes_behind_is_not_recorded(
        self, tmp_path: Path, store: LedgerStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        handle = LedgerHandle(str(tmp_path / "L"), flush_interval=600, run_dir=str(tmp_path))
        monkeypatch.setattr(os, "urandom", lambda count: b"\0" * count)
        child = os.fork()
        if child == 0:  # the worker ends with it
            try:
                (tmp_path / f"{os.getpid()}-00000000.committed").touch()
                _Commit(handle, has_downstream=True).process(NoneTask(self.part(0)))
            finally:
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
        assert store.totals().tasks == 0

    @pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
    def test_what_cannot_be_recorded_at_the_end_of_a_bundle_ends_the_worker_and_is_left_whole(
        self, tmp_path: Path, store: LedgerStore
    ) -> None:
        (tmp_path / "run").mkdir()
        handle = LedgerHandle(
            str(tmp_path / "L"), Job("index", {}).fingerprint, flush_interval=600, run_dir=str(tmp_path / "run")
        )
        child = os.fork()
        if child == 0:  # the worker ends with it
            try:
                commit = _Commit(handle, has_downstream=False)
                commit.process(NoneTask(self.part(0)))
                commit.finish_bundle()
            finally:
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
        (error,) = reported_errors(str(tmp_path / "run"))
        assert isinstance(error, JobMismatchError)
        assert store.totals().tasks == 0

    def test_a_bundle_that_failed_releases_nothing(self, tmp_path: Path, store: LedgerStore) -> None:
        commit = self.downstream(tmp_path)
        commit.process(NoneTask(self.part(0)))
        commit.start_bundle()
        commit.process(NoneTask(self.part(1)))
        assert [found.start for found in commit.finish_bundle()] == [1]
        assert store.totals().tasks == 2

    def test_tasks_of_a_process_are_noted_in_one_file(self, tmp_path: Path, store: LedgerStore) -> None:
        (tmp_path / "run").mkdir()
        commit = self.downstream(tmp_path, run_dir=str(tmp_path / "run"))
        for ordinal in range(3):
            assert commit.process(NoneTask(self.part(ordinal))) == []
        assert commit.finish_bundle() == []
        assert len(list((tmp_path / "run").glob("*.committed"))) == 1
        assert [found.start for found in committed_notes(str(tmp_path / "run"), store)] == [0, 1, 2]
        commit.teardown()
        assert not any(
            os.path.realpath(f"/proc/self/fd/{name}").endswith(".committed") for name in os.listdir("/proc/self/fd")
        )

    def test_only_tasks_with_rejects_count_against_their_limit(self, tmp_path: Path, store: LedgerStore) -> None:
        commit = _Commit(LedgerHandle(str(tmp_path / "L"), flush_interval=600), 4, has_downstream=False)
        every = (RecordCounts(1, 1, {}, {}, {"": 1}), RecordCounts(5, 1, {}, {"bad": 3, "worse": 1}, {"": 1}), None)
        for ordinal, counts in enumerate(every):
            assert commit.process(WrittenTask(self.part(ordinal), (), 1, 1, counts=counts)) == []
        commit.finish_bundle()
        assert store.totals().tasks == 3

    def test_the_transform_says_whether_the_pipeline_goes_on_behind_it(
        self, tmp_path: Path, store: LedgerStore
    ) -> None:
        for ordinal, has_downstream in enumerate((False, True)):
            handle = LedgerHandle(str(tmp_path / "L"), flush_interval=600)
            commit: Any = CommitTasks().make_work(ChainValues(ledger=handle, has_downstream=has_downstream))
            assert commit.process(NoneTask(self.part(ordinal))) == []
            assert commit.process(FailedTask(self.part(2), "Reason")) == []
            assert [found.start for found in commit.finish_bundle()] == [ordinal] * has_downstream
        assert store.totals().tasks == 2

    def test_what_is_recorded_already_is_emitted_alone(self) -> None:
        known = [CommittedTask.of(self.part(ordinal), Leaf(SOURCE.id, ())) for ordinal in range(2)]
        emits: Any = CommitTasks().make_work(ChainValues(committed=lambda: known))
        assert list(emits.process(b"")) == known

    def test_a_runner_may_end_it_twice_and_use_it_again(self, tmp_path: Path, store: LedgerStore) -> None:
        (tmp_path / "run").mkdir()
        commit = self.downstream(tmp_path, run_dir=str(tmp_path / "run"))
        for ordinal in range(2):
            commit.process(NoneTask(self.part(ordinal)))
            commit.finish_bundle()
            commit.teardown()
            commit.teardown()
        assert sorted(found.start for found in committed_notes(str(tmp_path / "run"), store)) == [0, 1]

    def test_where_the_time_went_is_told_at_the_end_of_a_bundle(self) -> None:
        noted: list[bool] = []
        writer = SimpleNamespace(flush=lambda: SimpleNamespace(seconds=1.5))
        ledger = SimpleNamespace(
            fatal_errors=nullcontext, writer=lambda: writer, note_times=lambda *, at_once: noted.append(at_once)
        )
        commit = _Commit(ledger, has_downstream=False)  # type: ignore[arg-type]
        take_times()
        began = time.monotonic()
        with timed("publish"):
            time.sleep(0.05)
        took = time.monotonic() - began
        with reported() as metrics:
            commit.finish_bundle()
        assert metrics.values("commit_ms") == (1, 1500)
        assert noted == [True]
        assert 50_000 <= metrics.total("publish_us") <= 1e6 * took + 1
        assert metrics.total("encode_us") == 0


@pytest.mark.parametrize("together", [1, 32])  # at 32 files the task waits for others
def test_what_a_bundle_that_failed_has_begun_is_not_emitted_by_the_next(
    writes: _Write, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    monkeypatch.setattr(transforms_write, "TOGETHER_FILES", together)
    monkeypatch.setattr(transforms_write, "TOGETHER_SECONDS", 3600.0)
    publish_beside(writes)
    assert list(writes.process(task([{}]))) == []
    writes.start_bundle()
    assert rest(writes) == []


@pytest.fixture
def writes(tmp_path: Path) -> Iterator[_Write]:
    made = _Write(str(tmp_path / "out"), format_named("jsonl"), "/data/", {}, None)
    yield made
    made.teardown()
    this_overlap().begin()
    this_overlap().held = 0


def rest(writes: _Write) -> list[Any]:
    return list(writes.finish_bundle())


def publish_beside(writes: _Write) -> None:
    """Let publishing take long while another task is certain to follow."""
    writes._publishing = 1e9
    this_overlap().follows = True


def test_what_is_not_published_comes_behind_what_is_in_its_turn(writes: _Write) -> None:
    publish_beside(writes)
    assert list(writes.process(task([{}]))) == []
    marks: list[NoneTask | FailedTask] = [NoneTask(task(start=7)), FailedTask(task(start=9), "Reason", "")]
    written, *rest = [found for mark in marks for found in writes.process(mark)]
    assert isinstance(written, WrittenTask)
    assert rest == marks


def test_what_is_published_beside_is_counted_as_held_and_emitted_at_the_end(writes: _Write) -> None:
    publish_beside(writes)
    begun: list[Any] = []
    for start in (3, 5, 7):
        begun += writes.process(task([{}], start))
        behind = sum(len(group.tasks) for group in (*writes._behind, writes._gathering))
        assert this_overlap().held == behind == (start - 1) // 2 - len(begun)
    begun += rest(writes)
    assert [one.task.start for one in begun] == [3, 5, 7]
    assert this_overlap().held == 0
    assert rest(writes) == []


def test_small_outputs_are_published_together_once_there_are_enough(
    writes: _Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    together: list[list[str]] = []

    def publish(outputs: Any, options: Any, **more: Any) -> None:
        together.append([url.rpartition("/")[2] for url, _ in outputs])
        publish_all(outputs, options, **more)

    monkeypatch.setattr(transforms_write, "publish_all", publish)
    monkeypatch.setattr(transforms_write, "TOGETHER_FILES", 6)
    monkeypatch.setattr(transforms_write, "TOGETHER_SECONDS", 3600.0)
    monkeypatch.setattr(transforms_write, "TOGETHER_BYTES", 1000)
    publish_beside(writes)
    emitted: list[Any] = []
    for start in range(1, 9):
        emitted += writes.process(task([{"text": "x" * 1000 * (start == 5)}], start))
    emitted += rest(writes)
    assert [one.task.start for one in emitted] == list(range(1, 9))
    assert this_overlap().held == 0
    names = [f"a.jsonl-{start:010d}-000002.jsonl{end}" for start in range(1, 9) for end in ("", ".idx")]
    assert together == [names[:6], names[6:10], names[10:]]  # by their number, by their size, and what is left


def test_small_outputs_wait_for_others_only_so_long(writes: _Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transforms_write, "TOGETHER_SECONDS", 0.05)
    publish_beside(writes)
    assert list(writes.process(task([{}], 1))) == []
    assert (len(writes._behind), len(writes._gathering.tasks)) == (0, 1)
    time.sleep(0.06)
    assert list(writes.process(task([{}], 3))) == []
    assert [[one.task.start for one in group.tasks] for group in writes._behind] == [[1, 3]]
    assert writes._gathering.tasks == []
    assert [one.task.start for one in rest(writes)] == [1, 3]


def test_outputs_on_a_store_wait_for_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    writes = _Write("memory://out-alone", format_named("jsonl"), "/data/", {}, None)
    monkeypatch.setattr(transforms_write, "TOGETHER_SECONDS", 3600.0)
    publish_beside(writes)
    found = list(writes.process(task([{}], 1)))
    assert writes._gathering.tasks == []
    assert [one.task.start for one in (*found, *rest(writes))] == [1]
    writes.teardown()


def test_what_is_published_by_now_is_emitted_with_the_next_task(
    writes: _Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transforms_write, "TOGETHER_FILES", 1)  # none waits for others
    publish_beside(writes)
    assert list(writes.process(task([{}], 3))) == []
    writes._behind[0].published.result()
    (emitted,) = writes.process(task([{}], 5))
    assert emitted.task.start == 3
    assert [one.task.start for one in rest(writes)] == [5]


def test_what_is_written_and_rejected_is_counted(writes: _Write) -> None:
    rejected = RejectedRecord(RawRecord("/data/in/a.jsonl", 3, 0, 1, b"x"), Rejection(0, "bad"))
    results = TaskResults(
        {"": [{"a": 1}], "en": [{"a": 2}, {"a": 3}]},
        RecordCounts(4, 3, {}, {"bad": 1}, {"": 1, "en": 2}),
        (rejected,),
        {},
    )
    for follows in (False, True):
        writes._publishing = 1e9
        this_overlap().follows = follows
        with reported() as metrics:
            emitted: list[Any] = [*writes.process(task(results, 5 if follows else 3))]
            (written,) = [*emitted, *rest(writes)]
        counted = ("records_written", "records_rejected", "bytes_written")
        assert [metrics.total(name) for name in counted] == [3, 1, 24]
        assert (written.records, written.size) == (3, 3 * len(b'{"a":1}\n'))
        assert [(output.route, output.records) for output in written.outputs if output.records] == [
            ("", 1),
            ("en", 2),
            ("_rejects", 1),
        ]
        assert (written.counts, written.statistics) == (results.counts, {})


def test_routes_are_written_in_their_order_each_below_its_folder(writes: _Write, tmp_path: Path) -> None:
    datasets = {"fr": [{"a": 1}], "": [{"a": 2}], "de": [{"a": 3}, {"a": 4}]}
    counts = RecordCounts(4, 4, {}, {}, {"fr": 1, "": 1, "de": 2})
    statistics = {"seen": Statistic("count", b"4")}
    (written,) = writes.process(task(TaskResults(datasets, counts, (), statistics)))
    assert isinstance(written, WrittenTask)
    assert (written.counts, written.statistics) == (counts, statistics)
    name = "in/a.jsonl-0000000003-000002.jsonl"
    found = [(output.route, output.name, output.records) for output in written.outputs if output.records]
    assert found == [("", name, 1), ("de", f"de/{name}", 2), ("fr", f"fr/{name}", 1)]
    for _, path, _ in found:
        assert (tmp_path / "out" / path).exists()


def test_a_route_that_is_named_like_a_folder_of_sources_is_refused_before_anything_is_written(
    writes: _Write, tmp_path: Path
) -> None:
    results = TaskResults({"in": [{"a": 1}]}, RecordCounts(1, 1, {}, {}, {"in": 1}), (), {})
    with pytest.raises(UsageError, match=r"route 'in': its folder .*/out/in is also used"):
        list(writes.process(task(results)))
    assert not (tmp_path / "out").exists()


def test_no_more_groups_than_threads_are_published_at_once(writes: _Write) -> None:
    for count in range(transforms_write.BEHIND_GROUPS + 1):
        assert writes._has_room(SimpleNamespace(size=1)) is (count < transforms_write.BEHIND_GROUPS)  # type: ignore[arg-type]
        writes._behind.append(SimpleNamespace(size=1))  # type: ignore[arg-type]
    writes._behind.clear()


@pytest.mark.parametrize(
    ("sizes", "size", "has_room"), [([], 10, True), ([], 11, False), ([4, 3], 3, True), ([4, 4], 3, False)]
)
def test_so_many_bytes_are_published_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: list[int], size: int, has_room: bool
) -> None:
    monkeypatch.setattr(transforms_write, "BEHIND_BYTES", 10)
    writes = _Write(str(tmp_path / "out"), format_named("jsonl"), "/data/", {}, None)
    writes._behind.extend(SimpleNamespace(size=one) for one in sizes[1:])  # type: ignore[misc]
    writes._gathering = SimpleNamespace(size=sum(sizes[:1]))  # type: ignore[assignment]
    assert writes._has_room(SimpleNamespace(size=size)) is has_room  # type: ignore[arg-type]


TWO_RECORDS = [{"id": 1}, {"id": 2}]


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
    with pytest.raises(StorageError, match="a folder of this name exists"):
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


def test_what_is_recorded_of_an_output_is_what_lies_there(tmp_path: Path, store: LedgerStore) -> None:
    source = Source("/data/a.jsonl", 10, "1")
    store.register([source])
    ledger = LedgerHandle(str(tmp_path / "ledger"))
    with beam.Pipeline("FnApiRunner") as pipeline:
        (
            pipeline
            | beam.Create([Task(source, 0, 2, ((0, 1),), TWO_RECORDS)])
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


@pytest.fixture
def replaced(tmp_path: Path, store: LedgerStore) -> tuple[Source, Source]:
    """A source that was replaced since its tasks were planned, and another one; the ledger is `ledger`."""
    old, new, other = Source("/data/a", 10, "1"), Source("/data/a", 10, "2"), Source("/data/b", 10, "1")
    store.register([old, other])
    store.register([new])
    (tmp_path / "run").mkdir()
    return old, other


@pytest.mark.parametrize("is_local_run", [True, False])
def test_of_a_source_that_was_replaced_nothing_is_published_in_a_local_run(
    tmp_path: Path, replaced: tuple[Source, Source], is_local_run: bool
) -> None:
    old, other = replaced
    ledger = LedgerHandle(str(tmp_path / "ledger"), run_dir=str(tmp_path / "run") if is_local_run else None)
    write: Any = WriteTasks(str(tmp_path / "out"), "jsonl").make_work(ChainValues(ledger, base="/data/"))
    found = [one for source in (old, other) for one in write.process(Task(source, 0, 2, (), TWO_RECORDS))]
    kinds = {old.id: "FailedTask" if is_local_run else "WrittenTask", other.id: "WrittenTask"}
    assert {one.task.source.id: type(one).__name__ for one in found} == kinds
    names = {path.name[0] for path in (tmp_path / "out").iterdir()}
    assert names == ({"b"} if is_local_run else {"a", "b"})


def test_of_tasks_that_are_published_together_those_alone_fail_whose_source_was_replaced(
    tmp_path: Path, replaced: tuple[Source, Source]
) -> None:
    old, other = replaced
    ledger = LedgerHandle(str(tmp_path / "ledger"), run_dir=str(tmp_path / "run"))
    writes: Any = WriteTasks(str(tmp_path / "out"), "jsonl").make_work(ChainValues(ledger, base="/data/"))
    together = [writes._encoded(Task(source, 0, 2, (), TWO_RECORDS)) for source in (other, old, other)]
    assert [type(one).__name__ for one in writes._published(together)] == ["WrittenTask", "FailedTask", "WrittenTask"]


def test_of_a_source_that_was_replaced_no_record_counts_as_rejected(
    tmp_path: Path, replaced: tuple[Source, Source]
) -> None:
    ledger = LedgerHandle(str(tmp_path / "ledger"), run_dir=str(tmp_path / "run"))
    writes: Any = WriteTasks(str(tmp_path / "out"), "jsonl").make_work(ChainValues(ledger, base="/data/"))
    rejected = []
    for source in replaced:
        bad = RejectedRecord(RawRecord(source.url, 1, 0, 1, b"x"), Rejection(1, "bad"))
        results = TaskResults({"": [{"a": 1}]}, RecordCounts(2, 1, {}, {"bad": 1}, {"": 1}), (bad,), {})
        with reported() as metrics:
            list(writes.process(Task(source, 0, 2, (), results)))
        rejected.append(metrics.total("records_rejected"))
    assert sorted(rejected) == [0, 1]


@pytest.mark.parametrize("kind", [NoneTask, FailedTask])
def test_nothing_is_recorded_that_code_has_made_which_changed_since_the_job_began(
    store: LedgerStore, kind: type[NoneTask | FailedTask]
) -> None:
    source = Source("/data/a", 10, "1")
    store.register([source])
    commits: Any = CommitTasks().make_work(ChainValues(LedgerHandle(store.url, modules={__name__: "0" * 16})))
    task = Task(source, 0, 0)
    with pytest.raises(FunctionError, match="has changed since the job was created"):
        commits.process(NoneTask(task) if kind is NoneTask else FailedTask(task, "ValueError", "made by new code"))
    close_shared_writers()
    assert (store.completed_count(), list(store.failures())) == (0, [])


def test_a_source_is_not_replaced_between_the_look_at_it_and_its_outputs(
    tmp_path: Path, store: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = Source("/data/a", 10, "1"), Source("/data/a", 10, "2")
    store.register([old])
    (tmp_path / "run").mkdir()
    replacing = threading.Thread(target=store.register, args=([new],))
    seen: list[set[bytes]] = []

    def stand_still(*args: Any, **more: Any) -> None:
        replacing.start()
        replacing.join(0.5)
        seen.append(set(store.source_urls([old.id, new.id])))
        publish_all(*args, **more)

    monkeypatch.setattr(transforms_write, "publish_all", stand_still)
    ledger = LedgerHandle(str(tmp_path / "ledger"), run_dir=str(tmp_path / "run"))
    tasks: Any = WriteTasks(str(tmp_path / "out"), "jsonl").make_work(ChainValues(ledger, base="/data/"))
    assert [type(one).__name__ for one in tasks.process(Task(old, 0, 2, (), TWO_RECORDS))] == ["WrittenTask"]
    replacing.join()
    assert seen == [{old.id}]
    assert set(store.source_urls([old.id, new.id])) == {new.id}
