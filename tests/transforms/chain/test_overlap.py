"""What a worker of the local runner does at the same time: the next task is fetched, the last one is written."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pytest

from ledgerbeam.errors import StorageError
from ledgerbeam.io import JsonlFormat
from ledgerbeam.io.storage.client import filesystem
from ledgerbeam.io.storage.publish import publish_all
from ledgerbeam.io.storage.stat import stat
from ledgerbeam.ledger import FailedTask, Source, Task
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.model.rows import Leaf
from ledgerbeam.ledger.worker.task_board import BoardPlace, Instructions, task_board
from ledgerbeam.sources import FileSources
from ledgerbeam.sources.forms import listed
from ledgerbeam.transforms.chain.base import LedgerHandle
from ledgerbeam.transforms.chain.process import _Process
from ledgerbeam.transforms.chain.read import _Read
from ledgerbeam.transforms.chain.schedule import (
    HAND_OVER_SECONDS,
    Overlap,
    ThreadsBeside,
    Ticket,
    _Draw,
    _Post,
    this_overlap,
)
from ledgerbeam.transforms.chain.write import WrittenTask, _Write
from tests.cases import each
from tests.servers.s3_proxy import S3Proxy

TASKS = 6
WAIT_SECONDS = 30.0


def lines(count: int) -> bytes:
    return b"".join(b'{"id":%d}\n' % number for number in range(count))


class Worker:
    """One worker, from the board to what it has written."""

    def __init__(self, folder: Path, url: str, options: dict[str, Any] | None = None, *, workers: int = 1) -> None:
        sources = FileSources(storage_options=options or {})
        found = stat(url, options)
        self.source = Source(found.url, found.size, found.version)
        sources.load_index(self.source)
        self.out = folder / "out"
        self.place = BoardPlace(str(folder / "run"), "run", workers)
        self.board = task_board(self.place.run_dir)
        self.mapped: list[int] = []
        self.also: Callable[[int], object] = lambda _: None
        self._sources = sources
        self._draw = _Draw(self.place, None)
        base = f"{found.url.rpartition('/')[0]}/"
        self._steps: tuple[Any, ...] = (
            _Read(sources, None, in_blocks=True),
            _Process(self._function, None),
            _Write(str(self.out), JsonlFormat(), base, {}, None),
        )

    def post(self, count: int = TASKS) -> None:
        posting = _Post(self.place, None)
        posting.start_bundle()
        for number in range(count):
            list(posting.process(Task(self.source, number, number + 1, ((number, count),))))
        posting.finish_bundle()

    def work(self) -> Iterator[WrittenTask | FailedTask]:
        return self._behind(self._draw.process(Ticket()), *self._steps)

    def rest(self) -> list[Any]:
        return list(self._steps[-1].finish_bundle())

    def _behind(self, elements: Iterator[Any], *steps: Any) -> Iterator[Any]:
        """Pass each element through all steps before the next is drawn, as fused stages do."""
        if not steps:
            yield from elements
            return
        for element in elements:
            yield from self._behind(steps[0].process(element), *steps[1:])

    def _function(self, task: Task) -> Task:
        self.mapped.append(task.start)
        self.also(len(self.mapped))
        return task.replace(records=listed(task.records))


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    monkeypatch.setattr("ledgerbeam.transforms.chain.write.BEHIND_BYTES", 0)  # one at a time
    monkeypatch.setattr("ledgerbeam.transforms.chain.write.TOGETHER_FILES", 1)
    monkeypatch.setattr("ledgerbeam.transforms.chain.schedule.SOON_SECONDS", 0.0)  # looked at before it is begun
    (tmp_path / "a.jsonl").write_bytes(lines(TASKS))
    made = Worker(tmp_path, str(tmp_path / "a.jsonl"))
    yield made
    made.board.close()


def test_a_task_is_emitted_once_it_is_written_and_ends_after_that(worker: Worker) -> None:
    worker.post()
    found = []
    for written in worker.work():
        assert isinstance(written, WrittenTask)
        assert [orjson.loads((worker.out / written.outputs[0].name).read_bytes())["id"]] == [written.task.start]
        assert written.task.start in [task.span.start for task in worker.board.in_work(math.inf)]
        found.append(written.task.start)
    assert worker.rest() == []
    assert found == worker.mapped
    assert sorted(found) == list(range(TASKS))
    assert worker.board.in_work(math.inf) == []


def test_the_next_task_is_mapped_while_the_last_one_is_written(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Condition()
    overlapped: list[bool] = []

    def slow(outputs: Any, options: Any, **more: Any) -> None:
        number = len(overlapped)
        alone = number == 0 or number >= TASKS - 2  # the last one but one is followed by one that is left for others
        with begun:
            overlapped.append(alone or begun.wait_for(lambda: len(worker.mapped) >= number + 2, WAIT_SECONDS))
        publish_all(outputs, options, **more)

    def tell(_: int) -> None:
        with begun:
            begun.notify_all()

    monkeypatch.setattr("ledgerbeam.transforms.chain.write.publish_all", slow)
    worker.also = tell
    worker.post()
    assert [written.task.start for written in worker.work() if isinstance(written, WrittenTask)] == worker.mapped
    assert overlapped == [True] * TASKS


def test_several_tasks_are_written_at_once_and_emitted_in_their_order(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ledgerbeam.transforms.chain.write.BEHIND_BYTES", 1000)
    monkeypatch.setattr("ledgerbeam.transforms.chain.write.BEHIND_GROUPS", 2)
    begun = threading.Condition()
    names: list[str] = []
    together: list[bool] = []

    def slow(outputs: Any, options: Any, **more: Any) -> None:
        with begun:
            names.append(outputs[0][0])
            begun.notify_all()
            if len(names) == 2:  # the first one is written in its turn
                together.append(begun.wait_for(lambda: len(names) == 3, WAIT_SECONDS))
                # The fourth waits for one of them.
                together.append(not begun.wait_for(lambda: len(worker.mapped) > 4, 0.5))
        publish_all(outputs, options, **more)

    def tell(_: int) -> None:
        with begun:
            begun.notify_all()

    monkeypatch.setattr("ledgerbeam.transforms.chain.write.publish_all", slow)
    worker.also = tell
    worker.post()
    assert [written.task.start for written in worker.work() if isinstance(written, WrittenTask)] == worker.mapped
    assert together == [True, True]


@pytest.mark.parametrize("seconds", [[0.3] * TASKS, [1.0, *[0.0] * (TASKS - 1)]], ids=["all long", "one long"])
def test_what_takes_long_to_map_and_not_to_write_is_emitted_before_the_next_one_is_mapped(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, seconds: list[float]
) -> None:
    monkeypatch.setattr("ledgerbeam.transforms.chain.write.BEHIND_SHARE", 1.0)
    worker.also = lambda count: time.sleep(seconds[count - 1])
    worker.post()
    emitted = [len(worker.mapped) for _ in worker.work()]
    assert emitted == list(range(1, TASKS + 1))


def test_what_was_drawn_ahead_is_not_begun_once_its_claim_has_run_out(worker: Worker) -> None:
    until = time.monotonic() + 600
    worker.board.instruct(Instructions(shared=True, until=until))
    worker.post()
    worker.board.offer_all()
    renewed = threading.Event()
    begun: list[bool] = []

    def renew() -> None:
        renewed.set()
        worker.board.instruct(Instructions(shared=True, until=until))

    def run_out(count: int) -> None:
        begun.append(renewed.is_set())
        if count == 1:
            worker.board.instruct(Instructions(shared=True, until=time.monotonic() - 1))
            threading.Timer(1.0, renew).start()

    worker.also = run_out
    assert len(list(worker.work())) == TASKS
    assert begun == [False] + [True] * (TASKS - 1)


@pytest.fixture
def store(worker: Worker, tmp_path: Path) -> Iterator[LmdbStore]:
    """The ledger in which the worker looks before it begins a task."""
    made = LmdbStore(str(tmp_path / "ledger"))
    made.open(create=True)
    made.register([worker.source])
    worker._draw = _Draw(worker.place, LedgerHandle(str(tmp_path / "ledger")))
    yield made
    made.close()


def test_what_was_drawn_ahead_and_is_recorded_meanwhile_is_passed_over(worker: Worker, store: LmdbStore) -> None:
    worker.post()
    order = [task.span.start for task in worker.board.ready(TASKS)]

    def record(count: int) -> None:
        if count == 1:  # another host does what this one has drawn ahead
            store.commit([Leaf(worker.source.id, ((order[1], TASKS),), "filtered")])

    worker.also = record
    assert len(list(worker.work())) == TASKS - 1
    assert worker.mapped == [order[0], *order[2:]]


def test_nothing_is_held_back_while_a_worker_waits_for_others(worker: Worker) -> None:
    worker.board.instruct(Instructions(shared=True, until=time.monotonic() + 600))
    worker.post(3)
    first = next(iter(worker.board.waiting()))[0]
    worker.board.offer([first.key])
    later = threading.Timer(2.0, worker.board.offer_all)
    later.start()
    written = worker.work()
    assert next(written).task.start == first.span.start
    assert worker.board.left() == 2  # so it came before there was another
    later.join()
    assert len(list(written)) == 2


@pytest.mark.slow
def test_nothing_is_held_back_although_what_was_to_follow_is_passed_over(worker: Worker, store: LmdbStore) -> None:
    worker.board.instruct(Instructions(shared=True, until=time.monotonic() + 600))
    worker.post(3)
    first, second, _ = next(iter(worker.board.waiting()))
    worker.board.offer([first.key, second.key])
    worker.also = lambda _: store.commit([Leaf(worker.source.id, ((second.span.start, 3),), "filtered")])
    later = threading.Timer(5.0, worker.board.offer_all)
    later.start()
    written = worker.work()
    assert next(written).task.start == first.span.start
    assert worker.board.left() == 1  # so it came before there was another
    later.join()
    list(written)


def test_a_worker_leaves_what_others_can_begin(worker: Worker) -> None:
    """It knows what follows only as long as two tasks are left for each other worker."""
    worker.place = worker.place._replace(workers=3)
    worker._draw = _Draw(worker.place, None)
    worker.post()
    left: list[int] = []
    worker.also = lambda _: left.append(worker.board.left())
    assert len(list(worker.work())) == TASKS
    assert left == [4, 4, 3, 2, 1, 0]


def test_a_write_that_fails_is_raised_and_nothing_behind_it_is_emitted(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(outputs: Any, options: Any, **more: Any) -> None:
        calls.append(None)
        if len(calls) == 2:
            raise StorageError("no")
        publish_all(outputs, options, **more)

    monkeypatch.setattr("ledgerbeam.transforms.chain.write.publish_all", refuse)
    worker.post()
    emitted: list[int] = []
    calls: list[None] = []
    with pytest.raises(StorageError, match="no"):
        emitted.extend(written.task.start for written in worker.work())
    assert emitted == worker.mapped[:1]
    assert len(worker.mapped) == 3


@pytest.fixture
def remote(faulty_s3: S3Proxy, tmp_path: Path) -> Iterator[Worker]:
    url = f"s3://{faulty_s3.server.bucket()}/a.jsonl"
    filesystem(url, faulty_s3.options).pipe_file(url, lines(TASKS))
    made = Worker(tmp_path, url, faulty_s3.options)
    faulty_s3.clear()
    yield made
    made.board.close()


@pytest.mark.s3
def test_the_bytes_of_the_next_task_are_fetched_while_one_is_mapped(remote: Worker, faulty_s3: S3Proxy) -> None:
    def meet(calls: int) -> None:
        wanted, until = min(calls + 1, TASKS - 1), time.monotonic() + WAIT_SECONDS
        while faulty_s3.count("GET", "*/a.jsonl") < wanted and time.monotonic() < until:
            time.sleep(0.01)
        fetched.append(faulty_s3.count("GET", "*/a.jsonl"))

    fetched: list[int] = []
    remote.also = meet
    remote.post()
    assert len(list(remote.work())) == TASKS
    # The last but one is followed by the last, which is left for other workers.
    assert fetched == [2, 3, 4, 5, 5, 6]


@pytest.mark.s3
def test_what_cannot_be_fetched_fails_its_own_task(remote: Worker, faulty_s3: S3Proxy) -> None:
    def change(calls: int) -> None:
        if calls == 1:
            until = time.monotonic() + WAIT_SECONDS
            while faulty_s3.count("GET", "*/a.jsonl") < 2 and time.monotonic() < until:
                time.sleep(0.01)
            filesystem(remote.source.url, faulty_s3.options).pipe_file(remote.source.url, lines(TASKS + 1))

    remote.also = change
    remote.post()
    found = list(remote.work())
    failed = [one for one in found if isinstance(one, FailedTask)]
    assert len(found) == TASKS
    assert {one.reason for one in failed} == {"ChangedSourceError"}
    assert len(failed) >= TASKS - 2
    assert found[0] not in failed


@pytest.mark.parametrize(("before", "after"), [(0.005, HAND_OVER_SECONDS), (1e-5, 1e-5)])
def test_a_thread_that_maps_hands_over_soon_to_those_beside_it(before: float, after: float) -> None:
    was = sys.getswitchinterval()
    try:
        sys.setswitchinterval(before)
        threads = ThreadsBeside(1, "test", "read")
        assert threads.submit(int).result() == 0
        assert sys.getswitchinterval() == pytest.approx(after)
        threads.close()
    finally:
        sys.setswitchinterval(was)


ONE_SOURCE = Source("s3://bucket/a.jsonl", 9, "1")


@each(
    "tasks",
    [
        tuple(Task(Source(f"s3://bucket/{name}.jsonl", 9, "1"), 0, 1) for name in "abc"),
        tuple(Task(ONE_SOURCE, ordinal, ordinal + 1, ((ordinal, 3),)) for ordinal in range(3)),
    ],
)
def test_what_is_fetched_ahead_is_that_of_the_task_that_follows(tasks: tuple[Task, Task, Task]) -> None:
    one, two, other = tasks
    overlap = Overlap()

    def fetching(task: Task) -> Callable[[], Any]:
        return lambda: task.name

    for comes, is_fetched in ((other, False), (two, True)):
        overlap.begin(two)
        assert overlap.fetched(one, fetching) is None
        overlap.begin()
        ahead = overlap.fetched(comes, fetching)
        assert (ahead is not None) is is_fetched
        assert ahead is None or ahead.result() == two.name


def test_what_cannot_be_fetched_ahead_is_no_failure_of_the_task_before() -> None:
    one, two = (Task(Source(f"s3://bucket/{name}.jsonl", 9, "1"), 0, 1) for name in "ab")
    overlap = Overlap()

    def refuse() -> None:
        raise StorageError("no")

    overlap.begin(two)
    assert overlap.fetched(one, lambda _: refuse) is None
    overlap.begin()
    ahead = overlap.fetched(two, lambda _: refuse)
    assert ahead is not None
    with pytest.raises(StorageError, match="no"):
        ahead.result()


def test_nothing_is_fetched_of_what_is_no_task_or_is_read_in_its_turn() -> None:
    task = Task(Source("s3://bucket/a.jsonl", 9, "1"), 0, 1)
    overlap = Overlap()
    assert (overlap.follows, overlap.held) == (False, 0)
    asked: list[Task] = []
    for following, follows in (([object()], True), ([task], True), ([], False)):
        overlap.begin(*following)
        assert overlap.follows is follows
        assert overlap.fetched(task, asked.append) is None
    assert asked == [task]


def test_each_thread_and_each_process_has_an_overlap_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was forked has no threads of the one that it was copied from."""
    mine = this_overlap()
    assert this_overlap() is mine
    with ThreadPoolExecutor(1) as other:
        assert other.submit(this_overlap).result() is not mine
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        forked = this_overlap()
        assert forked is not mine
        assert this_overlap() is forked
    assert this_overlap() is not forked


def test_a_writer_that_ends_leaves_no_thread(tmp_path: Path) -> None:
    writer = _Write(str(tmp_path), JsonlFormat(), None, {}, None)
    thread = writer._threads.submit(threading.current_thread).result()
    writer.teardown()
    assert not thread.is_alive()
