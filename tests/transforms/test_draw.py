"""Planned tasks go to the board of a wave, and are drawn from it without what is recorded by then."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.io import JsonlFormat, StreamSpan
from ledgerbeam.ledger import FailedTask, NoneTask, Source, Task
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.model.claims import Span, place_in_order
from ledgerbeam.ledger.model.rows import Leaf
from ledgerbeam.ledger.worker.task_board import Board, BoardPlace, BoardTask, task_board
from ledgerbeam.transforms import draw as draw_module
from ledgerbeam.transforms._worker import LedgerHandle
from ledgerbeam.transforms.chain import ChainValues
from ledgerbeam.transforms.draw import DrawTasks, PostTasks, StreamedTasks, Ticket
from ledgerbeam.transforms.overlap import this_overlap

SOURCE = Source("/data/a.jsonl", 80, "1")
STREAMED = Source("/data/b.jsonl.gz", 80, "1")


def task(ordinal: int, count: int = 4, source: Source = SOURCE) -> Task:
    return Task(source, 2 * ordinal, 2 * ordinal + 2, ((ordinal, count),))


def stream() -> StreamedTasks:
    tasks = tuple(task(ordinal, source=STREAMED) for ordinal in range(4))
    return StreamedTasks(tasks, tuple(StreamSpan(2 * n, 2, 20 * n, 20 * n + 20) for n in range(4)), JsonlFormat())


@pytest.fixture
def place(tmp_path: Path) -> BoardPlace:
    return BoardPlace(str(tmp_path / "run"), "run")


@pytest.fixture
def board(place: BoardPlace) -> Iterator[Board]:
    found = task_board(place.run_dir)
    yield found
    found.close()
    this_overlap().begin(None)


def post(values: ChainValues, *elements: Any) -> list[Any]:
    posting: Any = PostTasks().dofn(values)
    posting.start_bundle()
    found = [one for element in elements for one in posting.process(element)]
    posting.finish_bundle()
    return found


def test_without_a_board_planned_tasks_pass_both_transforms() -> None:
    elements = [task(0), stream(), NoneTask(task(1)), FailedTask(task(2), "reason")]
    assert post(ChainValues(), *elements) == elements
    drawing: Any = DrawTasks().dofn(ChainValues())
    assert [one for element in elements for one in drawing.process(element)] == elements


def test_what_is_posted_is_drawn_by_whoever_holds_a_ticket(place: BoardPlace, board: Board) -> None:
    values = ChainValues(board=place)
    elements = [task(0), stream(), NoneTask(task(1)), FailedTask(task(2), "reason")]
    assert post(values, *elements) == [Ticket()] * 4
    assert board.left() == 4
    drawing: Any = DrawTasks().dofn(values)
    found = list(drawing.process(Ticket()))
    assert sorted(map(repr, found)) == sorted(map(repr, elements))
    assert list(drawing.process(Ticket())) == []
    assert board.is_empty() is False  # what has ended stays claimed until it can be seen that it is recorded
    assert board.in_work(float("inf")) == []


def test_the_board_knows_the_span_and_the_tasks_of_an_element(place: BoardPlace, board: Board) -> None:
    post(ChainValues(board=place), stream(), task(3))
    found = {about.span.source: about for about in board.undrawn()}
    assert found == {
        STREAMED.id: BoardTask(
            place_in_order("run", STREAMED.id, ((0, 4),)),
            Span(STREAMED.id, 0, 8),
            tuple(((ordinal, 4),) for ordinal in range(4)),
        ),
        SOURCE.id: BoardTask(place_in_order("run", SOURCE.id, ((3, 4),)), Span(SOURCE.id, 6, 8), (((3, 4),),)),
    }


def test_tasks_are_posted_some_at_a_time_and_the_rest_at_the_end_of_a_bundle(
    place: BoardPlace, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draw_module, "_POSTED_AT_ONCE", 2)
    posting: Any = PostTasks().dofn(ChainValues(board=place))
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


def test_what_is_recorded_by_now_is_not_drawn(tmp_path: Path, place: BoardPlace, board: Board) -> None:
    store = LmdbStore(str(tmp_path / "ledger"))
    store.open(create=True)
    store.register([SOURCE, STREAMED])
    whole = Source("/data/c.jsonl.gz", 80, "1")
    store.register([whole])
    values = ChainValues(LedgerHandle(str(tmp_path / "ledger")), board=place)
    done = StreamedTasks((task(0, 2, whole), task(1, 2, whole)), stream().spans[:2], JsonlFormat())
    post(values, task(0), task(1), stream(), done)
    store.commit([Leaf(SOURCE.id, ((0, 4),), "filtered")])
    store.commit([Leaf(STREAMED.id, ((ordinal, 4),), "filtered") for ordinal in (0, 2)])
    store.commit([Leaf(whole.id, ((ordinal, 2),), "filtered") for ordinal in (0, 1)])
    drawing: Any = DrawTasks().dofn(values)
    found = {
        element.tasks[0].source if isinstance(element, StreamedTasks) else element.source: element
        for element in drawing.process(Ticket())
    }
    store.close()
    every = stream()
    assert found == {
        SOURCE: task(1),
        STREAMED: StreamedTasks(every.tasks[1::2], every.spans[1::2], every.format),
    }
    assert board.left() == 0


def test_an_element_on_the_board_is_what_was_planned(place: BoardPlace, board: Board) -> None:
    post(ChainValues(board=place), stream())
    drawn = board.draw()
    assert drawn is not None
    assert pickle.loads(drawn.element) == stream()
