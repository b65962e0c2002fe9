"""Planned tasks go to the board of a wave, and are drawn from it without what is recorded by then."""

from __future__ import annotations

import math
import pickle
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ledgerbeam.io import JsonlFormat
from ledgerbeam.io.formats.format import StreamSpan
from ledgerbeam.ledger import FailedTask, NoneTask, Source, Task
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.model.claims import Span, order_key
from ledgerbeam.ledger.model.rows import Leaf
from ledgerbeam.ledger.worker.task_board import Board, BoardPlace, BoardTask, Instructions, task_board
from ledgerbeam.transforms.chain import schedule as draw_module
from ledgerbeam.transforms.chain.base import ChainValues, LedgerHandle
from ledgerbeam.transforms.chain.schedule import DrawStep, PostStep, StreamedTasks, Ticket, this_overlap

SOURCE = Source("/data/a.jsonl", 80, "1")
STREAMED = Source("/data/b.jsonl.gz", 80, "1")


def task(ordinal: int, count: int = 4, source: Source = SOURCE) -> Task:
    return Task(source, 2 * ordinal, 2 * ordinal + 2, ((ordinal, count),))


def stream() -> StreamedTasks:
    tasks = tuple(task(ordinal, source=STREAMED) for ordinal in range(4))
    return StreamedTasks(tasks, tuple(StreamSpan(2 * n, 2, 20 * n, 20 * n + 20) for n in range(4)), JsonlFormat())


@pytest.fixture
def place(tmp_path: Path) -> BoardPlace:
    return BoardPlace(str(tmp_path / "run"), "run", 1)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draw_module, "WAIT_SECONDS", 0.005)
    monkeypatch.setattr(draw_module, "SOON_SECONDS", 0.0)  # one at a time, looked at before it is begun


@pytest.fixture
def board(place: BoardPlace) -> Iterator[Board]:
    found = task_board(place.run_dir)
    yield found
    found.close()
    this_overlap().begin()
    this_overlap().held = 0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LmdbStore]:
    """A ledger that knows the sources."""
    store = LmdbStore(str(tmp_path / "ledger"))
    store.open(create=True)
    store.register([SOURCE, STREAMED])
    yield store
    store.close()


def post(values: ChainValues, *elements: Any) -> list[Any]:
    posting: Any = PostStep().make_work(values)
    posting.start_bundle()
    found = [one for element in elements for one in posting.process(element)]
    posting.finish_bundle()
    return found


def post_tasks(place: BoardPlace, count: int) -> None:
    """Post the tasks of the source, cut into so many."""
    post(ChainValues(board=place), *(task(ordinal, count) for ordinal in range(count)))


def test_without_a_board_planned_tasks_pass_both_transforms() -> None:
    elements = [task(0), stream(), NoneTask(task(1)), FailedTask(task(2), "reason")]
    assert post(ChainValues(), *elements) == elements
    drawing: Any = DrawStep().make_work(ChainValues())
    assert [one for element in elements for one in drawing.process(element)] == elements


def test_what_is_posted_is_drawn_by_whoever_holds_a_ticket(place: BoardPlace, board: Board) -> None:
    values = ChainValues(board=place)
    elements = [task(0), stream(), NoneTask(task(1)), FailedTask(task(2), "reason")]
    assert post(values, *elements) == [Ticket()] * 4
    assert board.left() == 4
    drawing: Any = DrawStep().make_work(values)
    found = list(drawing.process(Ticket()))
    assert sorted(map(repr, found)) == sorted(map(repr, elements))
    assert list(drawing.process(Ticket())) == []
    assert board.is_empty() is False  # what has ended stays claimed until it can be seen that it is recorded
    assert board.in_work(math.inf) == []


def test_the_board_knows_the_span_and_the_tasks_of_an_element(place: BoardPlace, board: Board) -> None:
    post(ChainValues(board=place), stream(), task(3))
    found = {about.span.source: about for about in board.undrawn()}
    assert found == {
        STREAMED.id: BoardTask(
            order_key("run", STREAMED.id, ((0, 4),)),
            Span(STREAMED.id, 0, 8),
            tuple(((ordinal, 4),) for ordinal in range(4)),
        ),
        SOURCE.id: BoardTask(order_key("run", SOURCE.id, ((3, 4),)), Span(SOURCE.id, 6, 8), (((3, 4),),)),
    }


def test_tasks_are_posted_some_at_a_time_and_the_rest_at_the_end_of_a_bundle(
    place: BoardPlace, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draw_module, "_POSTED_AT_ONCE", 2)
    posting: Any = PostStep().make_work(ChainValues(board=place))
    posting.start_bundle()
    left = []
    for ordinal in range(3):
        assert list(posting.process(task(ordinal))) == [Ticket()]
        left.append(board.left())
    posting.finish_bundle()
    assert [*left, board.left()] == [0, 2, 2, 3]
    list(posting.process(task(3)))
    posting.start_bundle()  # the bundle is tried again
    posting.finish_bundle()
    assert board.left() == 3


def test_what_is_recorded_by_now_is_not_drawn(store: LmdbStore, place: BoardPlace, board: Board) -> None:
    whole = Source("/data/c.jsonl.gz", 80, "1")
    store.register([whole])
    values = ChainValues(LedgerHandle(store.url), board=place)
    done = StreamedTasks((task(0, 2, whole), task(1, 2, whole)), stream().spans[:2], JsonlFormat())
    post(values, task(0), task(1), stream(), done)
    store.commit([Leaf(SOURCE.id, ((0, 4),), "filtered")])
    store.commit([Leaf(STREAMED.id, ((ordinal, 4),), "filtered") for ordinal in (0, 2)])
    store.commit([Leaf(whole.id, ((ordinal, 2),), "filtered") for ordinal in (0, 1)])
    drawing: Any = DrawStep().make_work(values)
    found = {
        element.tasks[0].source if isinstance(element, StreamedTasks) else element.source: element
        for element in drawing.process(Ticket())
    }
    every = stream()
    assert found == {SOURCE: task(1), STREAMED: StreamedTasks(every.tasks[1::2], every.spans[1::2], every.format)}
    assert board.left() == 0
    assert board.in_work(math.inf) == []


def test_an_element_on_the_board_is_what_was_planned(place: BoardPlace, board: Board) -> None:
    post(ChainValues(board=place), stream())
    (drawn,) = board.draw()
    assert pickle.loads(drawn.element) == stream()


def draw(place: BoardPlace, ledger: LedgerHandle | None = None) -> Iterator[Any]:
    drawing: Any = DrawStep().make_work(ChainValues(ledger, board=place))
    found: Iterator[Any] = drawing.process(Ticket())
    return found


@pytest.mark.parametrize(("held", "in_work"), [(0, [2, 2, 1, 1, 1]), (1, [2, 3, 2, 2, 2]), (3, [2, 3, 3, 4, 4])])
def test_what_follows_is_drawn_ahead_while_enough_is_left_for_others(
    place: BoardPlace, board: Board, held: int, in_work: list[int]
) -> None:
    """So its bytes can be fetched. What is held back downstream stays in work until it is emitted."""
    post_tasks(place, 5)
    order = [about.span.start for about in board.ready(5)]
    found = []
    fetched: list[int] = []
    for element in draw(place._replace(workers=2)):
        found.append((board.left(), this_overlap().follows, len(board.in_work(math.inf))))
        this_overlap().fetched(element, lambda following: fetched.append(following.start))
        this_overlap().held = held
    assert fetched == order[1:3]
    left, follows, working = zip(*found, strict=True)
    assert left == (3, 2, 2, 1, 0)
    assert follows == (True, True, False, False, False)
    assert list(working) == in_work


@pytest.mark.parametrize(
    ("workers", "follows"),
    [(1, [True] * 6 + [False]), (2, [True] * 4 + [False] * 3), (3, [True] * 2 + [False] * 5), (5, [False] * 7)],
)
def test_two_tasks_are_left_for_each_other_worker_by_one_that_looks_ahead(
    place: BoardPlace, board: Board, workers: int, follows: list[bool]
) -> None:
    post_tasks(place, 7)
    found = []
    for element in draw(place._replace(workers=workers)):
        found.append(this_overlap().follows)
        this_overlap().fetched(element, lambda following: None)
    assert found == follows


class Clock:
    """The time of `draw`, which passes when a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(draw_module, "SOON_SECONDS", 0.5)
        monkeypatch.setattr(draw_module, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=time.sleep))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_quick_ones_are_drawn_together_and_those_that_take_longer_one_by_one(
    place: BoardPlace, board: Board, clock: Clock
) -> None:
    post_tasks(place, 60)
    order = [about.span.start for about in board.ready(60)]
    left, found = [], []
    for number, element in enumerate(draw(place)):
        found.append(element.start)
        left.append(board.left())
        clock.now += 0.3 if number == 20 else 0.01
    assert found == order
    taken = [before - after for before, after in pairwise([60, *left])]
    assert taken[:11] == [2, 8, 0, 0, 0, 0, 0, 0, 0, 8, 0]
    after = next(number for number in range(21, 40) if taken[number])
    assert taken[after] == 1
    assert taken[after + 1] == 8  # they are quick again


@pytest.mark.usefixtures("clock")
def test_of_those_drawn_together_some_are_left_for_others(place: BoardPlace, board: Board) -> None:
    post_tasks(place, 9)
    drawing = draw(place._replace(workers=3))
    next(drawing)
    next(drawing)
    assert board.left() == 4  # two for each other one


def test_what_is_begun_soon_after_it_was_looked_at_is_not_looked_at_again(
    store: LmdbStore, place: BoardPlace, board: Board, clock: Clock
) -> None:
    post_tasks(place, 12)
    order = board.ready(12)
    drawing = draw(place, LedgerHandle(store.url))
    next(drawing)
    next(drawing)  # draws eight more
    assert board.left() == 2
    store.commit([Leaf(SOURCE.id, order[place_].lineages[0], "filtered") for place_ in (2, 4, 6)])
    assert next(drawing).start == order[2].span.start
    clock.now += 0.5
    assert [element.start for element in drawing] == [order[place_].span.start for place_ in (3, 5, 7, 8, 9, 10, 11)]
    assert board.in_work(math.inf) == []


def test_a_worker_waits_for_what_may_not_be_drawn_yet(place: BoardPlace, board: Board) -> None:
    board.instruct(Instructions(shared=True, until=time.monotonic() + 600))
    post(ChainValues(board=place), task(0), task(1))
    first, second = board.undrawn()
    board.offer([first.key])
    drawing = draw(place)
    assert next(drawing).start == first.span.start
    later = threading.Timer(0.05, lambda: board.offer([second.key]))
    later.start()
    assert [found.start for found in drawing] == [second.span.start]
    later.join()


def test_what_has_ended_is_told_once(place: BoardPlace, board: Board) -> None:
    """It stays claimed until what it has recorded can be seen, which is counted from when it ended."""
    post_tasks(place, 6)
    first = board.ready(1)[0]
    drawing = draw(place)
    next(drawing)
    next(drawing)
    told = time.monotonic()
    for _ in drawing:
        time.sleep(0.001)
    left = board.in_work(told)
    assert len(left) == 5
    assert first not in left


def test_what_has_ended_is_told_once_though_the_worker_waits_for_the_next(place: BoardPlace, board: Board) -> None:
    board.instruct(Instructions(shared=True, until=time.monotonic() + 600))
    post(ChainValues(board=place), task(0), task(1))
    first, second = board.undrawn()
    board.offer([first.key])
    drawing = draw(place)
    next(drawing)
    told: list[float] = []

    def offer() -> None:
        told.append(time.monotonic())
        board.offer([second.key])

    later = threading.Timer(0.05, offer)
    later.start()
    assert len(list(drawing)) == 1
    later.join()
    assert board.in_work(told[0]) == [second]


def test_what_was_drawn_ahead_is_begun_only_while_the_launcher_answers(place: BoardPlace, board: Board) -> None:
    until = time.monotonic() + 600
    board.instruct(Instructions(shared=True, until=until))
    post_tasks(place, 3)
    board.offer_all()
    drawing = draw(place)
    next(drawing)
    assert this_overlap().follows
    board.instruct(Instructions(shared=True, until=time.monotonic() - 1))
    renewed = threading.Event()

    def renew() -> None:
        renewed.set()
        board.instruct(Instructions(shared=True, until=until))

    later = threading.Timer(0.1, renew)
    later.start()
    next(drawing)
    assert renewed.is_set()
    later.join()
    assert len(list(drawing)) == 1


def test_a_worker_ends_when_nothing_is_left_though_nothing_may_begin(place: BoardPlace, board: Board) -> None:
    board.instruct(Instructions(shared=True, until=time.monotonic() - 1))
    assert list(draw(place)) == []


def test_what_was_drawn_ahead_and_is_recorded_by_now_is_passed_over(
    store: LmdbStore, place: BoardPlace, board: Board
) -> None:
    post_tasks(place, 3)
    first, second, third = board.ready(3)
    drawing = draw(place, LedgerHandle(store.url))
    assert next(drawing).start == first.span.start
    store.commit([Leaf(SOURCE.id, second.lineages[0], "filtered")])
    assert [found.start for found in drawing] == [third.span.start]
    assert board.in_work(math.inf) == []


@pytest.mark.parametrize("held", [0, 1])
def test_what_is_recorded_comes_once_more_only_behind_what_is_held_back(
    store: LmdbStore, place: BoardPlace, board: Board, held: int
) -> None:
    """What is held back is emitted when another element comes, and nothing else may be drawn yet."""
    board.instruct(Instructions(shared=True, until=time.monotonic() + 600))
    post_tasks(place, 3)
    first, second, third = board.undrawn()
    board.offer([first.key, second.key])
    drawing = draw(place, LedgerHandle(store.url))
    assert next(drawing).start == first.span.start
    store.commit([Leaf(SOURCE.id, second.lineages[0], "filtered")])
    this_overlap().held = held
    later = threading.Timer(0.05, lambda: board.offer([third.key]))
    later.start()
    found = []
    for element in drawing:
        found.append(element.start)
        this_overlap().held = 0
    assert found == [*[second.span.start] * held, third.span.start]
    assert board.in_work(math.inf) == []
    later.join()


def test_of_a_stream_that_was_drawn_ahead_what_is_left_is_begun(
    store: LmdbStore, place: BoardPlace, board: Board
) -> None:
    sources = [Source(f"/data/{name}.jsonl.gz", 80, "1") for name in "abc"]
    store.register(sources)
    for source in sources:
        tasks = tuple(task(ordinal, source=source) for ordinal in range(4))
        post(ChainValues(board=place), StreamedTasks(tasks, stream().spans, JsonlFormat()))
    order = [about.span.source for about in board.ready(3)]
    drawing = draw(place, LedgerHandle(store.url))
    assert len(next(drawing).tasks) == 4
    store.commit([Leaf(order[1], ((0, 4),), "filtered")])
    second = next(drawing)
    assert [one.start for one in second.tasks] == [2, 4, 6]
    assert second.spans == stream().spans[1:]
    assert len(list(drawing)) == 1
    assert board.in_work(math.inf) == []
