"""Schedule of a local run, whose workers draw their tasks from a board.

A Beam runner hands each worker its part of the tasks in advance, so fast workers wait for the slowest one. Here, tasks
go to a board instead. Only tickets pass through the runner: the right to draw tasks from the board. An element of the
board is a task, or several tasks of a source that are read as one stream.
"""

from __future__ import annotations

import dataclasses
import math
import pickle
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, compress, islice
from typing import NamedTuple

from ledgerbeam.ledger import Task
from ledgerbeam.ledger.model.claims import Span, order_key
from ledgerbeam.ledger.worker.reports import timed
from ledgerbeam.ledger.worker.task_board import Board, BoardPlace, BoardTask, task_board
from ledgerbeam.transforms.chain.base import LedgerHandle, StepWork, fatal_errors
from ledgerbeam.transforms.chain.schedule import Planned, StreamedTasks, this_overlap

WAIT_SECONDS = 0.1  # interval at which a waiting worker checks whether tasks can be drawn, in seconds
# Maximum time in which elements that are drawn together are started, if they take no longer than earlier ones.
# Within this time after a check, an element is started without another check.
SOON_SECONDS = 0.05
_POSTED_AT_ONCE = 256
# Maximum number of elements that are drawn together. If one takes longer than earlier ones, the others wait for it.
_AT_ONCE = 8
_AHEAD_LEAVES = 2  # tasks that a worker drawing ahead leaves for each other worker, so that none runs out of tasks


@dataclass(frozen=True)
class Ticket:
    """The right to draw from the board until nothing is left.

    Attributes:
        plan_more: Function that plans further sources for an empty board, and returns False if no sources are left.
            None if another stage of the runner plans sources.
    """

    plan_more: Callable[[], bool] | None = None


class _Begun(NamedTuple):
    """An element drawn from the board, and the key of the element there."""

    key: bytes
    element: Planned


@dataclass(frozen=True)
class BoardSchedule:
    """The schedule of a run whose workers draw tasks from a board."""

    place: BoardPlace

    def post(self, ledger: LedgerHandle | None) -> StepWork:
        """Return the work that posts planned tasks on the board and emits a ticket for each."""
        return _Post(self.place, ledger)

    def draw(self, ledger: LedgerHandle | None) -> StepWork:
        """Return the work that takes tickets and emits the tasks that this worker draws."""
        return _Draw(self.place, ledger)


class _Post(StepWork):
    def __init__(self, board: BoardPlace, ledger: LedgerHandle | None) -> None:
        self._board = board
        self._ledger = ledger
        self._held: list[tuple[BoardTask, bytes]] = []

    def start_bundle(self) -> None:
        self._held = []

    def process(self, element: Planned) -> Iterator[Ticket]:
        tasks = _tasks_of(element)
        first, last = tasks[0], tasks[-1]
        source = first.source.id
        key, span = order_key(self._board.run, source, first.lineage), Span(source, first.start, last.stop)
        about = BoardTask(key, span, tuple(task.lineage for task in tasks))
        self._held.append((about, pickle.dumps(element)))
        if len(self._held) >= _POSTED_AT_ONCE:
            self._post()
        yield Ticket()

    def finish_bundle(self) -> None:
        self._post()

    def _post(self) -> None:
        held, self._held = self._held, []
        with fatal_errors(self._ledger):
            task_board(self._board.run_dir).post(held)


class _Draw(StepWork):
    def __init__(self, board: BoardPlace, ledger: LedgerHandle | None) -> None:
        self._place = board
        self._ledger = ledger

    def process(self, ticket: Ticket) -> Iterator[Planned]:
        overlap = this_overlap()
        drawn: deque[_Begun] = deque()  # drawn and not started
        looked = 0.0  # time of the last check that drawn elements may be started
        behind: deque[bytes] = deque()  # started; results may be held until the next element
        ended: list[bytes] = []
        longest = math.inf  # longest time of an element since the last draw
        while True:
            recorded: _Begun | None = None
            if drawn and time.monotonic() - looked >= SOON_SECONDS:
                if not self._may_begin():
                    time.sleep(WAIT_SECONDS)  # this host was suspended, or cannot publish its claims
                    continue
                recorded = drawn[0]
                with fatal_errors(self._ledger), timed("ledger"):
                    drawn = self._owing(drawn, ended)
                looked = time.monotonic()
            with fatal_errors(self._ledger), timed("ledger"):
                if not drawn:
                    drawn, looked = self._draw(1, ended), time.monotonic()
                begun = drawn.popleft() if drawn else None
                if begun is None and overlap.held:
                    begun = recorded  # others have recorded it, but a next element releases the held results
                if begun is not None and not drawn:
                    most = max(overlap.wanted, min(_AT_ONCE, int(SOON_SECONDS / longest))) if longest else _AT_ONCE
                    drawn = self._draw(most, ended, leaving=_AHEAD_LEAVES * (self._place.workers - 1))
                    looked, longest = time.monotonic(), 0.0
                is_over = begun is None and self._board().is_done()
            if begun is None and ticket.plan_more is not None and ticket.plan_more():
                continue
            if begun is None:
                if is_over:
                    return
                time.sleep(WAIT_SECONDS)
                continue
            overlap.begin(*(one.element for one in drawn))
            started = time.monotonic()
            yield begun.element  # downstream, in the same fused stage, it is read, processed, written and recorded
            longest = max(longest, time.monotonic() - started)
            behind.append(begun.key)
            while len(behind) > overlap.held:
                ended.append(behind.popleft())

    def _draw(self, most: int, ended: list[bytes], *, leaving: int = 0) -> deque[_Begun]:
        """Return at most `most` elements with unrecorded tasks, and report the `ended` ones; see `Board.draw`."""
        while drawn := self._board().draw(most, ended=ended, leaving=leaving):
            ended.clear()
            loaded = [_Begun(each.key, pickle.loads(each.element)) for each in drawn]  # noqa: S301 - of our workers
            if owing := self._owing(loaded, ended):
                return owing
        ended.clear()
        return deque()

    def _may_begin(self) -> bool:
        with fatal_errors(self._ledger):
            return self._board().may_begin()

    def _board(self) -> Board:
        return task_board(self._place.run_dir)

    def _owing(self, drawn: Iterable[_Begun], ended: list[bytes]) -> deque[_Begun]:
        """Return the elements reduced to their unrecorded tasks, and add the keys of fully recorded ones to `ended`."""
        if self._ledger is None:
            return deque(drawn)
        tasks = [_tasks_of(begun.element) for begun in drawn]
        done = iter(self._ledger.mirror().finished([(task.source.id, task.lineage) for task in chain(*tasks)]))
        found: deque[_Begun] = deque()
        for begun, of_one in zip(drawn, tasks, strict=True):
            owing = [not is_done for is_done in islice(done, len(of_one))]
            element = begun.element
            if isinstance(element, StreamedTasks):
                left, spans = tuple(compress(of_one, owing)), tuple(compress(element.spans, owing))
                element = dataclasses.replace(element, tasks=left, spans=spans)
            if any(owing):
                found.append(_Begun(begun.key, element))
            else:
                ended.append(begun.key)
        return found


def _tasks_of(element: Planned) -> tuple[Task, ...]:
    match element:
        case StreamedTasks():
            return element.tasks
        case Task():
            return (element,)
        case _:
            return (element.task,)
