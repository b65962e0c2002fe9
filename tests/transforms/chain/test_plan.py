"""From a listing to tasks: which sources are open, what is planned of them, and what cannot be planned."""

from __future__ import annotations

import dataclasses
import errno
import gzip
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ledgerbeam.errors import DiskFullError, IndexMismatchError, LedgerError, SourceError, StorageError, UsageError
from ledgerbeam.io.listing.left_out import LeftOut
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.iterators.job_source import GraphSource
from ledgerbeam.ledger import FailedTask, LedgerStore, NoneTask, Source, Task, selection
from ledgerbeam.ledger.model.identity import ROOT
from ledgerbeam.ledger.model.rows import Leaf
from ledgerbeam.ledger.model.store import MAX_ATTEMPTS
from ledgerbeam.ledger.selection import PendingSource
from ledgerbeam.ledger.worker.run_folders import TaskBudget
from ledgerbeam.ledger.worker.task_board import BoardPlace
from ledgerbeam.sources import Cut, FileSources, Opened, SharSources, SourceKind, Sources, TaskLimits
from ledgerbeam.sources.kind import plan_spans
from ledgerbeam.transforms import MatchSources, PlanTasks, SkipCompleted
from ledgerbeam.transforms.chain.base import ChainValues, LedgerHandle
from ledgerbeam.transforms.chain.plan import (
    AT_ONCE,
    BESIDE_BYTES,
    TOGETHER,
    TOGETHER_BYTES,
    _Plan,
    _Skip,
)
from ledgerbeam.transforms.chain.schedule import PostStep, StreamedTasks, within_budget
from tests.cases import each
from tests.sources.data import put, put_index, tar
from tests.transforms.conftest import in_work, reported


def make(folder: Path, name: str, content: int | bytes = 4) -> Source:
    data = content if isinstance(content, bytes) else b'{"id": 1}\n' * content
    return put(folder / name, gzip.compress(data) if name.endswith(".gz") else data)


class Watched(SourceKind):
    """A kind of sources of which a test sees what is cut."""

    def __init__(self, kind: SourceKind, see: Callable[[Source, bool], None]) -> None:
        self._kind = kind
        self._see = see

    def cut(self, source: Source, limits: TaskLimits, *, changed: bool = False) -> Cut:
        self._see(source, changed)
        return self._kind.cut(source, limits, changed=changed)

    def open(self, source: Source) -> Opened:
        return self._kind.open(source)


class WatchedSources:
    """Sources of which a test sees what is cut, and whether an index that they have is doubted."""

    def __init__(
        self, see: Callable[[Source, bool], None], sources: Sources | None = None, *, cut_waits: bool = False
    ) -> None:
        self._see = see
        self._sources = sources or FileSources()
        self._cut_waits = cut_waits

    def kind_of(self, source: Source) -> SourceKind:
        kind = Watched(self._sources.kind_of(source), self._see)
        kind.cut_waits = self._cut_waits
        return kind

    def check_names(self, urls: Iterable[str], *, by_position: bool = False) -> None:
        self._sources.check_names(urls, by_position=by_position)


def sources_with(error: Exception) -> Sources:
    def fail(_: Source, __: bool) -> None:
        raise error

    return WatchedSources(fail)


def planned(
    source: Source | PendingSource, sources: Sources | None = None, records: int | None = 2, **more: Any
) -> Any:
    plan = _Plan(more.get("ledger"), sources or FileSources(), TaskLimits(more.get("task_bytes"), records))
    return [*plan.process(source), *rest(plan)]


def rest(plan: _Plan) -> list[Any]:
    return list(plan.finish_bundle())


def test_limits_below_one_are_refused_and_without_any_a_task_has_16_mib() -> None:
    for name in ("task_bytes", "task_records"):
        with pytest.raises(UsageError, match=f"PlanTasks: {name}: expected at least 1( byte)?, found 0"):
            PlanTasks(**{name: 0})
        assert getattr(PlanTasks(**{name: 1}), name) == 1
    assert PlanTasks().display_data() == {"task_bytes": 16 * 2**20, "task_records": 0}
    assert PlanTasks(task_records=7).display_data() == {"task_bytes": 0, "task_records": 7}
    assert PlanTasks(task_bytes=7).display_data() == {"task_bytes": 7, "task_records": 0}


def test_a_size_may_be_a_text() -> None:
    assert PlanTasks("20K").task_bytes == 20 * 2**10
    with pytest.raises(UsageError, match="PlanTasks: task_bytes: expected a size such as 16M, found 'much'"):
        PlanTasks("much")


def test_both_limits_hold(tmp_path: Path) -> None:
    source = make(tmp_path, "a.jsonl", 10)
    tasks = planned(source, records=3, task_bytes=40)
    assert [(task.start, task.stop) for task in tasks] == [(0, 3), (3, 4), (4, 6), (6, 8), (8, 9), (9, 10)]
    assert [task.lineage for task in tasks] == [((ordinal, 6),) for ordinal in range(6)]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_tasks_know_the_file_that_they_were_planned_of(tmp_path: Path, name: str) -> None:
    source = make(tmp_path, name)
    now = os.stat(tmp_path / name).st_ctime_ns
    (first, *_) = planned(source)
    tasks = first.tasks if isinstance(first, StreamedTasks) else [first]
    assert {task.source.changed_ns for task in tasks} == {now}
    assert {task.source.id for task in tasks} == {source.id}


def test_a_pack_is_one_task_whatever_lies_there(tmp_path: Path) -> None:
    pack = Source.pack([make(tmp_path, f"{name}.jsonl") for name in "ab"])
    os.unlink(tmp_path / "a.jsonl")
    (task,) = planned(pack, records=1)
    assert (task.start, task.stop, task.lineage, task.source) == (0, 2, ((0, 1),), pack)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_source_without_records_is_finished(tmp_path: Path, name: str) -> None:
    source = make(tmp_path, name, 0)
    (found,) = planned(source)
    assert isinstance(found, NoneTask)
    assert found.task == Task(source, 0, 0)


@pytest.mark.parametrize("error", [SourceError("no"), IndexMismatchError("no"), StorageError("no")])
def test_a_source_that_cannot_be_opened_is_one_failed_task(tmp_path: Path, error: Exception) -> None:
    source = make(tmp_path, "a.jsonl")
    assert planned(source, sources_with(error)) == [FailedTask(Task(source, 0, 0), type(error).__name__, "no")]


@pytest.mark.parametrize("error", [DiskFullError("no"), LedgerError("no")])
def test_what_ends_the_job_is_no_failed_task(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(type(error)):
        planned(make(tmp_path, "a.jsonl"), sources_with(error))
    told: list[Exception] = []

    @contextmanager
    def fatal_errors() -> Iterator[None]:
        try:
            yield
        except Exception as raised:
            told.append(raised)
            raise

    ledger = SimpleNamespace(fatal_errors=fatal_errors, working_on=lambda _: nullcontext())
    with pytest.raises(type(error)):
        planned(make(tmp_path, "a.jsonl"), sources_with(error), ledger=ledger)
    assert told == [error]


def test_a_source_that_has_changed_since_it_was_listed_fails(tmp_path: Path) -> None:
    source = dataclasses.replace(make(tmp_path, "a.jsonl"), version="1")
    (found,) = planned(source)
    assert isinstance(found, FailedTask)
    assert found.reason == "ChangedSourceError"


def test_a_source_of_which_nobody_knows_the_kind_fails(tmp_path: Path) -> None:
    source = make(tmp_path, "a.xyz")
    (found,) = planned(source)
    assert isinstance(found, FailedTask)
    assert (found.task, found.reason) == (Task(source, 0, 0), "UsageError")


@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_the_index_of_a_source_that_takes_the_place_of_another_is_not_believed(
    tmp_path: Path, handle: LedgerHandle, name: str, replaces: bool
) -> None:
    asked: list[bool] = []
    sources = WatchedSources(lambda _, changed: asked.append(changed))
    source = make(tmp_path, name)
    planned(PendingSource(source, replaces=replaces), sources, ledger=handle)
    planned(PendingSource(source, replaces=replaces), sources)
    planned(source, sources)
    assert asked == [replaces, replaces, False]


def test_a_source_is_in_work_while_it_is_planned(tmp_path: Path, handle: LedgerHandle) -> None:
    seen: list[list[str]] = []
    plan = _Plan(handle, WatchedSources(lambda *_: seen.append(in_work(handle))), TaskLimits(task_records=2))
    source = make(tmp_path, "a.jsonl")
    for task in plan.process(source):
        assert isinstance(task, Task)
        assert in_work(handle) == []
    assert seen == [[Task(source, 0, 0).name]]


class Store:
    """Sources of a store, of which a test says what cutting one does."""

    def __init__(self, cut: Callable[[Source], Cut]) -> None:
        self._cut = cut

    def kind_of(self, source: Source) -> SourceKind:
        if source.url.endswith(".unknown"):
            raise UsageError(f"{source.url}: no format")
        return StoredKind(self._cut)

    def check_names(self, urls: Iterable[str], *, by_position: bool = False) -> None:
        raise NotImplementedError


class StoredKind(SourceKind):
    cut_waits = True

    def __init__(self, cut: Callable[[Source], Cut]) -> None:
        self._cut = cut

    def cut(self, source: Source, limits: TaskLimits, *, changed: bool = False) -> Cut:
        del limits, changed
        return self._cut(source)

    def open(self, source: Source) -> Opened:
        raise NotImplementedError


def stored(number: int, size: int = 10, ending: str = "jsonl") -> Source:
    return Source(f"s3://bucket/{number:03d}.{ending}", size, "1")


def test_small_sources_of_a_store_are_cut_at_once(tmp_path: Path, handle: LedgerHandle) -> None:
    together = threading.Barrier(AT_ONCE)

    def cut(source: Source) -> Cut:
        together.wait(30)
        return Cut(source, [(0, 1), (1, 2)])

    plan = _Plan(handle, Store(cut), TaskLimits(task_records=1))
    sources = [stored(number) for number in range(2 * AT_ONCE)]
    found: list[Any] = [task for source in sources[:AT_ONCE] for task in plan.process(source)]
    assert found == []
    found += plan.process(sources[AT_ONCE])
    assert [task.source for task in found] == [sources[0]] * 2  # whose room it needs
    found += [task for source in sources[AT_ONCE + 1 :] for task in plan.process(source)]
    assert 1 <= planning_threads() <= AT_ONCE
    found += rest(plan)
    assert [(task.source, task.start) for task in found] == [(source, n) for source in sources for n in (0, 1)]
    assert in_work(handle) == []
    plan.teardown()
    assert planning_threads() == 0
    plan.teardown()  # a runner may end it twice, and without any source
    together.abort()
    assert list(plan.process(stored(0))) == []  # or use it again
    with pytest.raises(threading.BrokenBarrierError):
        rest(plan)
    plan.teardown()


def planning_threads() -> int:
    return sum(thread.name.startswith("ledgerbeam-plan") for thread in threading.enumerate())


def test_of_sources_that_are_cut_at_once_each_fails_for_itself() -> None:
    def cut(source: Source) -> Cut:
        if source.url.endswith("1.jsonl"):
            raise StorageError(f"{source.url}: not there")
        return Cut(source, [] if source.url.endswith("2.jsonl") else [(0, 1)])

    plan = _Plan(None, Store(cut), TaskLimits())
    sources = [stored(0), stored(1), stored(2), stored(3, ending="unknown")]
    found = [*(task for source in sources for task in plan.process(source)), *rest(plan)]
    assert [type(task) for task in found] == [Task, FailedTask, NoneTask, FailedTask]
    assert [task.reason for task in found if isinstance(task, FailedTask)] == ["StorageError", "UsageError"]


@pytest.mark.parametrize("error", [DiskFullError("no room"), LedgerError("gone")])
def test_an_error_that_ends_the_job_ends_it_also_in_a_thread(error: Exception) -> None:
    def cut(_: Source) -> Cut:
        raise error

    plan = _Plan(None, Store(cut), TaskLimits())
    assert list(plan.process(stored(0))) == []
    with pytest.raises(type(error), match=str(error)):
        rest(plan)


def test_a_large_source_and_one_of_which_a_worker_died_are_cut_alone(tmp_path: Path, handle: LedgerHandle) -> None:
    at_once: list[int] = []

    def cut(source: Source) -> Cut:
        at_once.append(len(in_work(handle)))
        return Cut(source, [(0, 1)])

    plan = _Plan(handle, Store(cut), TaskLimits())
    fitting = [stored(3, 5), stored(4, BESIDE_BYTES - 5)]
    assert [list(plan.process(source)) for source in fitting] == [[], []]
    assert [task.source for task in rest(plan)] == fitting
    at_once.clear()
    died = stored(2)
    alone: list[Source | PendingSource] = [
        stored(1, BESIDE_BYTES + 1),
        PendingSource(died, attempts={Task(died, 0, 0).node: 1}),
    ]
    found: list[Any] = []
    for source in alone:
        found += plan.process(stored(0, BESIDE_BYTES))
        found += plan.process(source)
    assert [task.source.url[-9:] for task in found] == ["000.jsonl", "001.jsonl", "000.jsonl", "002.jsonl"]
    assert at_once == [1, 1, 1, 1]
    assert rest(plan) == []


def test_small_local_sources_are_cut_by_one_thread_and_their_indexes_appear_together(
    tmp_path: Path, handle: LedgerHandle
) -> None:
    indexed: dict[str, set[str]] = {}
    at_once: dict[str, int] = {}
    threads: dict[str, int] = {}

    def see(source: Source, _: bool) -> None:
        indexed[source.url] = {str(path) for path in tmp_path.glob("*.idx")}
        at_once[source.url] = len(in_work(handle))
        threads[source.url] = threading.get_ident()

    plan = _Plan(handle, WatchedSources(see, cut_waits=True), TaskLimits(task_records=2))
    large = make(tmp_path, "large.jsonl", b"{}" + b" " * (TOGETHER_BYTES - 1))
    sources = [make(tmp_path, f"{number:02d}.jsonl") for number in range(TOGETHER + 1)]
    sources.append(make(tmp_path, "small.jsonl", b"{}" + b" " * (TOGETHER_BYTES - 2)))
    found = [*(task for source in (large, *sources) for task in plan.process(source)), *rest(plan)]
    expected = [(source, start) for source in sources[:-1] for start in (0, 2)]
    assert [(task.source, task.start) for task in found] == [(large, 0), *expected, (sources[-1], 0)]
    assert at_once[large.url] == 1
    for group in (sources[:TOGETHER], sources[TOGETHER:]):
        own = {f"{source.url}.idx" for source in group}
        assert all(indexed[source.url].isdisjoint(own) for source in group)
        assert min(at_once[source.url] for source in group) >= len(group)
        assert len({threads[source.url] for source in group}) == 1
    assert len(list(tmp_path.glob("*.idx"))) == TOGETHER + 3
    plan.teardown()


def test_of_small_sources_that_are_cut_together_each_fails_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = [make(tmp_path, f"{number}.jsonl", 3 if number == 2 else 4) for number in range(TOGETHER)]
    sync = os.fsync

    def refuse(descriptor: int) -> None:
        if os.fstat(descriptor).st_size == 8 * 4:  # the index of three records
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse)
    plan = _Plan(None, FileSources(), TaskLimits())
    found = [*(task for source in sources for task in plan.process(source)), *rest(plan)]
    assert [type(task) for task in found] == [FailedTask if number == 2 else Task for number in range(TOGETHER)]
    assert "2.jsonl.idx: cannot write" in found[2].error
    assert sorted(path.name for path in tmp_path.glob("*.idx")) == [
        f"{number}.jsonl.idx" for number in range(TOGETHER) if number != 2
    ]
    plan.teardown()


def test_small_sources_that_wait_are_cut_beside_others(tmp_path: Path) -> None:
    beside = threading.Barrier(2)

    def see(source: Source, _: bool) -> None:
        number = int(source.url[-8:-6])
        if number < TOGETHER:
            time.sleep(0.01)  # as a file system behind a network does
        elif number % TOGETHER == 0:
            beside.wait(30)

    plan = _Plan(None, WatchedSources(see, cut_waits=True), TaskLimits())
    sources = [make(tmp_path, f"{number:02d}.jsonl") for number in range(3 * TOGETHER)]
    found = [*(task for source in sources for task in plan.process(source)), *rest(plan)]
    assert [task.source for task in found] == sources
    plan.teardown()


def test_a_bundle_that_fails_leaves_nothing_in_work(tmp_path: Path, handle: LedgerHandle) -> None:
    plan = _Plan(handle, Store(lambda source: Cut(source, [(0, 1)])), TaskLimits())
    assert list(plan.process(stored(0))) == []
    assert list(plan.process(make(tmp_path, "small.jsonl"))) == []
    plan.start_bundle()
    assert in_work(handle) == []
    assert rest(plan) == []


def test_the_tasks_of_a_stream_that_are_left_go_together(tmp_path: Path) -> None:
    source = make(tmp_path, "a.jsonl.gz", 8)
    (whole,) = planned(source)
    assert [(task.start, task.stop, task.lineage) for task in whole.tasks] == [
        (2 * n, 2 * n + 2, ((n, 4),)) for n in range(4)
    ]
    assert [(span.record, span.records, span.start, span.stop) for span in whole.spans] == [
        (2 * n, 2, 20 * n, 20 * n + 20) for n in range(4)
    ]
    done = {ROOT: 3, whole.tasks[1].node: -1}
    attempts = {whole.tasks[3].node: MAX_ATTEMPTS}
    (left,) = planned(PendingSource(source, done, attempts))
    assert [task.start for task in left.tasks] == [0, 4]
    assert left.spans == (whole.spans[0], whole.spans[2])
    assert left.format == whole.format
    all_done = {task.node: -1 for task in whole.tasks}
    assert planned(PendingSource(source, {ROOT: 3, **all_done})) == []


def test_what_is_planned_and_passed_over_is_counted(tmp_path: Path) -> None:
    source = make(tmp_path, "a.jsonl", 8)
    tasks = planned(source)
    cases: list[tuple[Source | PendingSource, tuple[int, int]]] = [
        (source, (4, 0)),
        (PendingSource(source, {ROOT: 3, tasks[1].node: -1}, {tasks[3].node: MAX_ATTEMPTS}), (2, 2)),
        (make(tmp_path, "a.jsonl.gz", 8), (4, 0)),  # they stay together, and are tasks
        (make(tmp_path, "empty.jsonl", 0), (1, 0)),
        (make(tmp_path, "a.xyz"), (1, 0)),
        (PendingSource(source, {}, {Task(source, 0, 0).node: MAX_ATTEMPTS}), (0, 0)),
    ]
    for element, expected in cases:
        with reported() as metrics:
            planned(element)
        assert (metrics.total("tasks_planned"), metrics.total("tasks_skipped")) == expected


def test_a_compressed_source_with_an_index_is_read_by_offset(tmp_path: Path) -> None:
    """Each task for itself."""
    source = make(tmp_path, "a.jsonl.gz")
    put_index(source)
    found = planned(source)
    assert [(task.start, task.stop) for task in found] == [(0, 2), (2, 4)]


def test_the_files_of_a_shard_are_read_beside_each_other(tmp_path: Path) -> None:
    """By offset, though the first of them is compressed."""
    asked: list[bool] = []
    sources = WatchedSources(lambda _, changed: asked.append(changed), SharSources())
    members = tar(*(f"{number}.{suffix}" for number in range(3) for suffix in ("wav", "json")))
    pack = Source.pack([make(tmp_path, "cuts.000000.jsonl.gz", 3), make(tmp_path, "recording.000000.tar", members)])
    for element in (pack, PendingSource(pack, replaces=True)):
        tasks = planned(element, sources, ledger=LedgerHandle(str(tmp_path / "L")))
        assert [(task.start, task.stop) for task in tasks] == [(0, 2), (2, 3)]
        assert all(member.changed_ns for member in tasks[0].source.members)
    assert asked == [False, True]


def test_passes_of_a_graph_are_cut_by_the_graph(tmp_path: Path) -> None:
    class Passes(GraphSource):
        def spans(
            self, places: int, *, task_bytes: int | None = None, task_records: int | None = None
        ) -> list[tuple[int, int]]:
            assert (task_bytes, task_records) == (None, 2)
            return [(0, 3), (3, places)]

    plan = _Plan(None, Passes("module:graph"), TaskLimits(task_records=2))
    found = list(plan.process(Source("module:graph.jsonl.gz", 5, "1")))
    assert [(task.start, task.stop) for task in found if isinstance(task, Task)] == [(0, 3), (3, 5)]


def test_no_more_tasks_pass_than_the_run_may_do(tmp_path: Path) -> None:
    (stream,) = planned(make(tmp_path, "a.jsonl.gz", 8))
    task, *_ = planned(make(tmp_path, "b.jsonl", 4))
    budget = TaskBudget.below(str(tmp_path))
    budget.make(6)
    assert [within_budget(stream, budget), within_budget(task, budget)] == [stream, task]
    rest = within_budget(stream, budget)
    assert isinstance(rest, StreamedTasks)
    assert (rest.tasks, rest.spans, rest.format) == (stream.tasks[:1], stream.spans[:1], stream.format)
    assert within_budget(stream, budget) is within_budget(task, budget) is None


def test_what_is_planned_and_never_read_counts_among_what_the_run_may_do(tmp_path: Path) -> None:
    """A source without records, or one that cannot be opened, is recorded as a task is."""
    task, *_ = planned(make(tmp_path, "b.jsonl", 4))
    budget = TaskBudget.below(str(tmp_path))
    budget.make(2)
    nothing, failed = NoneTask(task), FailedTask(task, "StorageError")
    assert [within_budget(nothing, budget), within_budget(failed, budget)] == [nothing, failed]
    assert [within_budget(one, budget) for one in (task, nothing, failed)] == [None] * 3


def test_the_transforms_say_what_a_task_is_and_how_many_there_are(tmp_path: Path) -> None:
    source = make(tmp_path, "a.jsonl", 8)
    for transform, count in ((PlanTasks(task_records=3), 3), (PlanTasks(task_bytes=20), 4), (PlanTasks(), 1)):
        cutting: Any = transform.make_work(ChainValues())
        tasks = [*cutting.process(source), *rest(cutting)]
        assert len(tasks) == count
    place = BoardPlace(str(tmp_path / "run"), "run", 1)
    for most, values in ((3, ChainValues(board=place, budget=TaskBudget.below(str(tmp_path)))), (4, ChainValues())):
        if values.budget is not None:
            values.budget.make(most)
        posting: Any = PostStep().make_work(values)
        assert len([ticket for task in planned(source) for ticket in posting.process(task)]) == most


sizes = st.lists(st.integers(1, 50), max_size=60)


def offsets_of(lengths: list[int]) -> NDArray[np.uint64]:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.uint64)


@given(sizes, st.integers(1, 200), st.none() | st.integers(1, 20))
def test_spans_tile_all_records_in_order(lengths: list[int], task_bytes: int, task_records: int | None) -> None:
    spans = plan_spans(offsets_of(lengths), task_bytes=task_bytes, task_records=task_records)
    assert [i for start, stop in spans for i in range(start, stop)] == list(range(len(lengths)))
    assert all(start < stop for start, stop in spans)


@given(sizes, st.integers(1, 200))
def test_a_span_exceeds_its_bytes_by_less_than_one_record(lengths: list[int], task_bytes: int) -> None:
    offsets = offsets_of(lengths)
    for start, stop in plan_spans(offsets, task_bytes=task_bytes):
        assert int(offsets[stop - 1] - offsets[start]) < task_bytes


@given(sizes, st.integers(1, 20))
def test_a_span_holds_at_most_its_records(lengths: list[int], task_records: int) -> None:
    assert all(b - a <= task_records for a, b in plan_spans(offsets_of(lengths), task_records=task_records))


def test_a_source_without_records_has_no_spans() -> None:
    for offset in (0, 7):
        offsets = np.full(1, offset, np.uint64)
        assert plan_spans(offsets, task_bytes=10) == plan_spans(offsets, task_records=10) == plan_spans(offsets) == []


def test_a_record_that_begins_at_a_multiple_begins_a_span() -> None:
    assert plan_spans(offsets_of([10] * 4), task_bytes=10) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert plan_spans(offsets_of([10] * 4) + np.uint64(3), task_bytes=20) == [(0, 2), (2, 4)]


def test_offsets_are_compared_exactly_however_large_they_are() -> None:
    assert plan_spans(offsets_of([1] * 3) + np.uint64(2**60), task_bytes=1) == [(0, 1), (1, 2), (2, 3)]


def test_without_limits_all_records_are_one_span() -> None:
    assert plan_spans(offsets_of([5, 100, 5])) == [(0, 3)]


def test_one_record_larger_than_a_task_is_a_span_of_its_own() -> None:
    assert plan_spans(offsets_of([5, 100, 5]), task_bytes=10) == [(0, 2), (2, 3)]


def test_what_is_done_or_quarantined_is_not_planned(tmp_path: Path) -> None:
    source = make(tmp_path, "a.jsonl")
    whole, tasks = Task(source, 0, 0), planned(source, records=1)
    done = {ROOT: 3, tasks[1].node: -1}
    attempts = {tasks[2].node: MAX_ATTEMPTS, tasks[3].node: MAX_ATTEMPTS - 1}
    cases: list[tuple[dict[str, Any], list[int]]] = [
        ({}, [0, 1, 2, 3]),
        ({"applied": done}, [0, 2, 3]),
        ({"attempts": attempts}, [0, 1, 3]),
        ({"applied": done, "attempts": attempts}, [0, 3]),
        ({"attempts": {whole.node: MAX_ATTEMPTS}}, []),
        ({"attempts": {whole.node: MAX_ATTEMPTS - 1}}, [0, 1, 2, 3]),
    ]
    for known, starts in cases:
        assert [task.start for task in planned(PendingSource(source, **known), records=1)] == starts, known


def page(*names: str) -> Page:
    return Page([f"/data/{name}" for name in names], [10] * len(names), ["1"] * len(names))


EMPTY = Page([], [], [])


class Listed:
    """A listing of pages of files with names of one letter; it notes how many were taken of it."""

    title = "those of the test"

    def __init__(self, *names: str) -> None:
        self._names = names
        self.taken = 0

    def pages(self, left_out: LeftOut | None = None) -> Iterator[Page]:
        for names in self._names:
            self.taken += 1
            yield page(*names)
        if left_out is not None:
            left_out.own += 3


def source(name: str) -> Source:
    return Source(f"/data/{name}", 10, "1")


def pairs(sources: Iterable[Source]) -> Iterator[Source]:
    listed = iter(sources)
    while pair := list(islice(listed, 2)):
        yield Source.pack(pair)


def test_what_is_open_goes_on_registered_with_what_is_done_of_it(tmp_path: Path, store: LedgerStore) -> None:
    store.register([source("a"), source("b")])
    store.commit([Leaf(source("a").id, ()), Leaf(source("b").id, ((1, 3),))])
    skip = _Skip(LedgerHandle(str(tmp_path / "ledger")))
    skip.setup()
    with reported() as metrics:
        found = list(skip.process(page("a", "b", "c")))
    assert [row.source for row in found] == [source("b"), source("c")]
    assert [len(row.applied) > 1 for row in found] == [True, False]
    assert (metrics.total("sources_open"), metrics.total("sources_skipped")) == (2, 1)
    assert store.source_count() == 3


def test_packs_are_made_across_pages(tmp_path: Path, store: LedgerStore) -> None:
    done = Source.pack([source("a"), source("b")])
    store.register([done])
    store.commit([Leaf(done.id, ())])
    skip = _Skip(LedgerHandle(str(tmp_path / "ledger")), pairs, Listed("abc", "d", "e"))
    skip.setup()
    next(skip.process(EMPTY))  # a bundle that is tried again begins anew
    with reported() as metrics:
        found = list(skip.process(EMPTY))
    assert all(isinstance(row, PendingSource) for row in found)
    assert [[member.url[-1] for member in row.source.members] for row in found] == [["c", "d"], ["e"]]
    assert (metrics.total("sources_open"), metrics.total("sources_skipped")) == (2, 1)
    assert store.source_count() == 3


def test_packs_go_on_before_all_is_listed(tmp_path: Path, store: LedgerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "PACKS_A_PAGE", 1)
    listed = Listed(*"abcdefgh")
    skip = _Skip(LedgerHandle(str(tmp_path / "ledger")), pairs, listed)
    skip.setup()
    taken = [listed.taken for _ in skip.process(EMPTY)]
    assert taken == [2, 4, 6, 8]  # what is held does not grow with the listing


@pytest.mark.parametrize("packs", [False, True])
def test_a_ledger_that_is_open_since_a_former_pipeline_is_asked_anew(
    tmp_path: Path, store: LedgerStore, packs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    refreshed: list[bool] = []
    handle = LedgerHandle(str(tmp_path / "ledger"))
    monkeypatch.setattr(type(handle.store()), "refresh", lambda _: refreshed.append(True))
    (_Skip(handle, pairs, Listed()) if packs else _Skip(handle)).setup()
    assert refreshed == [True]


def given_to(transform: MatchSources | SkipCompleted, element: Any, **values: Any) -> list[Any]:
    doing: Any = transform.make_work(ChainValues(**values))
    doing.setup()
    return list(doing.process(element))


def test_pages_are_listed_where_nobody_else_lists(caplog: pytest.LogCaptureFixture) -> None:
    """Where the launcher has listed, or packs are made, the pipeline begins with one empty page."""
    with caplog.at_level("INFO"):
        assert given_to(MatchSources(), b"", listing=Listed("ab", "c")) == [page("a", "b"), page("c")]
    assert ["left out of the sources" in message for message in caplog.messages] == [True]
    listed = Listed("ab")
    for values in ({}, {"open_sources": list, "listing": listed}, {"packer": pairs, "listing": listed}):
        assert given_to(MatchSources(), b"", **values) == [EMPTY]
    assert listed.taken == 0


def test_what_the_launcher_has_found_open_is_taken_as_it_is() -> None:
    found = [PendingSource(source("a")), PendingSource(source("b"))]
    assert given_to(SkipCompleted(), EMPTY, open_sources=lambda: found) == found


def test_sources_are_looked_up_as_pages_or_as_packs(tmp_path: Path, store: LedgerStore) -> None:
    handle = LedgerHandle(str(tmp_path / "ledger"))
    for values in ({}, {"packer": pairs}):  # what lists for itself needs a listing
        assert [row.source for row in given_to(SkipCompleted(), page("a"), ledger=handle, **values)] == [source("a")]
    (row,) = given_to(SkipCompleted(), EMPTY, ledger=handle, packer=pairs, listing=Listed("bc"))
    assert row.source == Source.pack([source("b"), source("c")])
    with pytest.raises(UsageError, match="this pipeline has no ledger"):
        given_to(SkipCompleted(), page("a"))


def test_what_is_said_of_sources_is_kept_in_one_form() -> None:
    one = MatchSources("file:///data/*.jsonl")
    assert one.patterns == ("/data/*.jsonl",)
    assert (one.sources_from, one.graph, one.epochs, one.base) == (None, None, 1, None)
    assert (one.group, one.index_root, one.build_index, one.columns) == ("auto", None, True, ())
    assert (one.pack, one.shar) == (None, False)
    assert MatchSources(["/a/*", "/b/*"]).patterns == ("/a/*", "/b/*")
    listed = MatchSources(sources_from="file:///list", base="file:///data", index_root="file:///idx/", pack="2K")
    assert (listed.patterns, listed.sources_from) == ((), "/list")
    assert (listed.base, listed.index_root, listed.pack) == ("/data/", "/idx", 2048)
    assert MatchSources("/a", base="/data/").base == "/data/"
    assert MatchSources("/a", columns=["x", "y"], group="key", build_index=False, epochs=3).columns == ("x", "y")


def test_a_console_shows_what_the_sources_are() -> None:
    for transform, shown in (
        (MatchSources(["/a/*", "/b/*"]), "/a/*, /b/*"),
        (MatchSources(sources_from="/list"), "/list"),
        (MatchSources(graph="module:graph"), "module:graph"),
        (MatchSources(), "those of the job"),
    ):
        assert transform.display_data() == {"sources": shown}


@each(
    ("arguments", "said"),
    [
        ({"patterns": "/a", "sources_from": "/list"}, "pass one of them"),
        ({"patterns": "/a", "graph": "m:g"}, "pass one of them"),
        ({"sources_from": "/list", "graph": "m:g"}, "pass one of them"),
        ({"patterns": "/a", "group": "other"}, "expected auto, pairs or key, found 'other'"),
        ({"patterns": "/a", "pack": 0}, "MatchSources: pack: expected"),
        ({"shar": True}, "shar reads whole shards"),
        ({"shar": True, "patterns": "/a", "pack": 5}, "shar reads whole shards"),
        ({"shar": True, "patterns": "/a", "columns": ["x"]}, "shar reads whole shards"),
        ({"shar": True, "patterns": "/a", "group": "key"}, "shar reads whole shards"),
    ],
)
def test_what_means_nothing_together_is_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        MatchSources(**arguments)
