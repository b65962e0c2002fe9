"""From planned tasks to tasks that a worker begins: on the local runner they are drawn from the board of the wave.

A runner hands each worker its part of the tasks before the first is done, and a worker that is done with its part waits
for the slowest. So on the local runner tasks go to a board, and only the right to draw passes through the runner. Other
runners hand the tasks out themselves.
"""

from __future__ import annotations

import dataclasses
import pickle
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import compress
from typing import NamedTuple, TypeAlias

import apache_beam as beam

from ledgerbeam.io import OffsetFormat, StreamSpan
from ledgerbeam.ledger import FailedTask, NoneTask, Task
from ledgerbeam.ledger.model.claims import Span, place_in_order
from ledgerbeam.ledger.worker.stopwatch import timed
from ledgerbeam.ledger.worker.task_board import Board, BoardPlace, BoardTask, task_board
from ledgerbeam.transforms._worker import LedgerHandle, fatal_errors
from ledgerbeam.transforms.chain import ChainTransform, ChainValues
from ledgerbeam.transforms.overlap import this_overlap

__all__ = ["DrawTasks", "PostTasks", "StreamedTasks"]

WAIT_SECONDS = 0.1
"""How long a worker waits before it looks again whether something may be drawn."""

_POSTED_AT_ONCE = 256
_AHEAD_LEAVES = 2
"""Tasks that one who looks ahead leaves for each other worker: none waits for what another one keeps for later."""


@dataclass(frozen=True)
class StreamedTasks:
    """The remaining tasks of a source, as one element: a single pass over the source reads them in order.

    Attributes:
        tasks: In order.
        spans: What to read for each.
        format: The format that decodes the spans.
    """

    tasks: tuple[Task, ...]
    spans: tuple[StreamSpan, ...]
    format: OffsetFormat


Planned: TypeAlias = Task | NoneTask | FailedTask | StreamedTasks
"""What planning makes of a source."""


@dataclass(frozen=True)
class Ticket:
    """The right to draw from the board until nothing is left."""


class _Begun(NamedTuple):
    """An element that was drawn, and its key on the board."""

    key: bytes
    element: Planned


class PostTasks(ChainTransform):
    """Puts planned tasks on the board of the wave, if it has one, and emits tickets in their place."""

    def dofn(self, values: ChainValues) -> beam.DoFn:
        """Return what puts them there; without a board what passes them on."""
        return _Pass() if values.board is None else _Post(values.board, values.ledger)


class DrawTasks(ChainTransform):
    """Draws tasks from the board, and leaves out what is recorded by now."""

    def dofn(self, values: ChainValues) -> beam.DoFn:
        """Return what draws them; without a board what passes them on."""
        return _Pass() if values.board is None else _Draw(values.board, values.ledger)


class _Pass(beam.DoFn):
    def process(self, element: Planned) -> Iterator[Planned]:
        yield element


class _Post(beam.DoFn):
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
        about = BoardTask(
            place_in_order(self._board.run, source, first.lineage),
            Span(source, first.start, last.stop),
            tuple(task.lineage for task in tasks),
        )
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


class _Draw(beam.DoFn):
    def __init__(self, board: BoardPlace, ledger: LedgerHandle | None) -> None:
        self._place = board
        self._ledger = ledger

    def process(self, ticket: Ticket) -> Iterator[Planned]:
        del ticket  # each is good for all that is left
        overlap = this_overlap()
        following: _Begun | None = None
        behind: deque[bytes] = deque()  # begun, and perhaps held back until another element comes
        ended: list[bytes] = []
        while True:
            if following is not None and not self._may_begin():
                time.sleep(WAIT_SECONDS)  # this host stood still, or cannot say what it has in work
                continue
            with fatal_errors(self._ledger), timed("ledger"):
                begun = self._drawn_ahead(following, ended) or self._draw(ended)
                if begun is None and overlap.held:
                    begun = following  # recorded by now, but what is held is emitted when another element comes
                following = self._draw(ended, leaving=_AHEAD_LEAVES * (self._place.workers - 1)) if begun else None
                is_over = begun is None and self._board().is_done()
            if begun is None:
                if is_over:
                    return
                time.sleep(WAIT_SECONDS)
                continue
            overlap.begin(following and following.element)
            yield begun.element  # downstream, in the same fused stage, it is read, processed, written and recorded
            behind.append(begun.key)
            while len(behind) > overlap.held:
                ended.append(behind.popleft())

    def _draw(self, ended: list[bytes], *, leaving: int = 0) -> _Begun | None:
        """Return the next element of which something is not recorded yet, and tell the board of those that ended."""
        while (drawn := self._board().draw(ended=ended, leaving=leaving)) is not None:
            ended.clear()
            element = self._owing(pickle.loads(drawn.element))  # noqa: S301 - of our workers, in our folder
            if element is not None:
                return _Begun(drawn.key, element)
            ended.append(drawn.key)
        ended.clear()
        return None

    def _drawn_ahead(self, following: _Begun | None, ended: list[bytes]) -> _Begun | None:
        """Return what was drawn ahead, without what others have recorded meanwhile."""
        if following is None:
            return None
        element = self._owing(following.element)
        if element is None:
            ended.append(following.key)
            return None
        return _Begun(following.key, element)

    def _may_begin(self) -> bool:
        with fatal_errors(self._ledger):
            return self._board().may_begin()

    def _board(self) -> Board:
        return task_board(self._place.run_dir)

    def _owing(self, element: Planned) -> Planned | None:
        """Return what is not recorded yet of an element."""
        if self._ledger is None:
            return element
        tasks = _tasks_of(element)
        done = self._ledger.mirror().finished([(task.source.id, task.lineage) for task in tasks])
        if not any(done):
            return element
        if not isinstance(element, StreamedTasks) or all(done):
            return None
        owing = [not is_done for is_done in done]
        return dataclasses.replace(
            element, tasks=tuple(compress(tasks, owing)), spans=tuple(compress(element.spans, owing))
        )


def _tasks_of(element: Planned) -> tuple[Task, ...]:
    match element:
        case StreamedTasks():
            return element.tasks
        case Task():
            return (element,)
        case _:
            return (element.task,)
