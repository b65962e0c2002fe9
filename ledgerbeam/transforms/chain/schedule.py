"""The schedule of a run: the distribution of planned tasks among workers, and the concurrent work of a worker.

A Beam runner hands each worker its part of the tasks in advance, so fast workers wait for the slowest one. On the local
runner, planned tasks go to a board instead, and workers draw them. Only tickets pass through the runner: the right to
draw tasks from the board. An element of the board is a task, or several tasks of a source that are read as one stream.

The board also shows a worker its next element if it is certain that one follows. Only then the worker fetches the next
task, and publishes previous tasks, while it maps the current one. Else it publishes all of its tasks before it asks for
an element.
"""

from __future__ import annotations

import dataclasses
import math
import os
import pickle
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, compress, islice, takewhile
from typing import Any, NamedTuple, TypeAlias, TypeVar

from ledgerbeam.io import OffsetFormat
from ledgerbeam.io.formats.format import StreamSpan
from ledgerbeam.ledger import FailedTask, NoneTask, Task
from ledgerbeam.ledger.model.claims import Span, order_key
from ledgerbeam.ledger.worker.reports import counted_beside, timed
from ledgerbeam.ledger.worker.run_folders import TaskBudget
from ledgerbeam.ledger.worker.task_board import Board, BoardPlace, BoardTask, task_board
from ledgerbeam.transforms.chain.base import ChainStep, ChainValues, LedgerHandle, Pass, StepWork, fatal_errors

# Interpreter switch interval while other threads read or publish, in seconds. A request to a store needs many short
# turns of the interpreter. With Python's default of 5 ms, an upload of 20 MB would wait for half a second.
HAND_OVER_SECONDS = 0.0005

WAIT_SECONDS = 0.1  # interval at which a waiting worker checks whether tasks can be drawn, in seconds
# Maximum time in which elements that are drawn together are started, if they take no longer than earlier ones.
# Within this time after a check, an element is started without another check.
SOON_SECONDS = 0.05
_POSTED_AT_ONCE = 256
# Maximum number of elements that are drawn together. If one takes longer than earlier ones, the others wait for it.
_AT_ONCE = 8
_AHEAD_LEAVES = 2  # tasks that a worker drawing ahead leaves for each other worker, so that none runs out of tasks


@dataclass(frozen=True)
class StreamedTasks:
    """The remaining tasks of one source, which a single pass over the source reads in order."""

    tasks: tuple[Task, ...]  # in order
    spans: tuple[StreamSpan, ...]  # one for each task
    format: OffsetFormat  # the format that decodes the spans


Planned: TypeAlias = Task | NoneTask | FailedTask | StreamedTasks  # an element of the plan of a source


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


class PostStep(ChainStep):
    """Post planned tasks on the board of the run, and emit a ticket for each. Without a board, pass them.

    At most as many tasks are posted as the run may do. The other tasks are dropped; a later run does them.
    """

    def make_work(self, values: ChainValues) -> StepWork:
        return Pass() if values.board is None else _Post(values.board, values.ledger, values.budget)


class DrawStep(ChainStep):
    """Take tickets, and emit the tasks that this worker draws from the board. Without a board, pass all elements."""

    def make_work(self, values: ChainValues) -> StepWork:
        return Pass() if values.board is None else _Draw(values.board, values.ledger)


class _Post(StepWork):
    def __init__(self, board: BoardPlace, ledger: LedgerHandle | None, budget: TaskBudget | None = None) -> None:
        self._board = board
        self._ledger = ledger
        self._budget = budget
        self._held: list[tuple[BoardTask, bytes]] = []

    def start_bundle(self) -> None:
        self._held = []

    def process(self, element: Planned) -> Iterator[Ticket]:
        if self._budget is not None:
            with fatal_errors(self._ledger):
                limited = within_budget(element, self._budget)
            if limited is None:
                return
            element = limited
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
        overlap.wanted = 1
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


def within_budget(element: Planned, budget: TaskBudget) -> Planned | None:
    """Return an element with as many of its tasks as may still be started, taken from the budget; None for no task."""
    granted = budget.claim(len(_tasks_of(element)))
    if isinstance(element, StreamedTasks) and granted:
        return dataclasses.replace(element, tasks=element.tasks[:granted], spans=element.spans[:granted])
    return element if granted else None


def _tasks_of(element: Planned) -> tuple[Task, ...]:
    match element:
        case StreamedTasks():
            return element.tasks
        case Task():
            return (element,)
        case _:
            return (element.task,)


class Overlap:
    """A worker's next elements, if some are certain to follow. They can be fetched while the current one is mapped.

    Attributes:
        later: The known next tasks.
        is_alone: Whether a worker has died, so that no later task is begun: its death would count against this one.
        wanted: Number of next tasks that are useful to know.
        read: The records of the current task, as they were read.
        records_of: Reads the records of a later task, and keeps them for its turn. No records if it cannot be read.
    """

    def __init__(self) -> None:
        self.follows = False  # whether another element is certain to follow the current one
        self.held = 0  # number of tasks that are held back until another element comes
        self.later: Sequence[Task] = ()
        self.is_alone = False
        self.wanted = 1
        self.read: Any = None
        self.records_of: Callable[[Task], Any] = lambda _: ()
        self._following: Task | None = None
        self._ahead: tuple[bytes, Future[Any]] | None = None
        self._threads = ThreadsBeside(1, "ledgerbeam-fetch", "read")

    def begin(self, *following: object) -> None:
        """Record that an element starts. `following` are the known elements after it."""
        self.follows = bool(following)
        self.later = tuple(takewhile(lambda one: isinstance(one, Task), following))  # type: ignore[arg-type]
        self._following = self.later[0] if self.later else None

    def fetched(self, task: Task, fetching: Callable[[Task], Callable[[], Any] | None]) -> Future[Any] | None:
        """Return the future of the bytes of `task` if their fetch has started, else None. Start to fetch the next task.

        `fetching` takes a task and returns a function that fetches its bytes; None if it cannot be fetched ahead.
        """
        ahead, self._ahead = self._ahead, None
        following, self._following = self._following, None
        if following is not None and (fetch := fetching(following)) is not None:
            self._ahead = following.node, self._threads.submit(fetch)
        return ahead[1] if ahead is not None and ahead[0] == task.node else None

    def fetching(self, task: Task) -> Future[Any] | None:
        """Return the future of the bytes of a later task if their fetch has started, else None."""
        return self._ahead[1] if self._ahead is not None and self._ahead[0] == task.node else None


def this_overlap() -> Overlap:
    """Return the overlap of this thread. After a fork a new one is made, because the old one has no threads."""
    if _known.pid != os.getpid():
        _known.pid, _known.overlap = os.getpid(), Overlap()
    return _known.overlap


class ThreadsBeside:
    """Threads for work that is concurrent with the mapping of a task.

    The first call of `submit` starts them, and shortens the switch interval of the interpreter, so that they need not
    wait long for the mapping thread. Their CPU time is added to `part`, such as ``read``, of the worker's time.
    """

    def __init__(self, most: int, name: str, part: str) -> None:
        self._most = most
        self._name = name
        self._part = part
        self._pool: ThreadPoolExecutor | None = None

    def submit(self, work: Callable[..., T], *args: Any) -> Future[T]:
        """Run a call in one of the threads."""
        if self._pool is None:
            sys.setswitchinterval(min(sys.getswitchinterval(), HAND_OVER_SECONDS))
            self._pool = ThreadPoolExecutor(self._most, self._name)
        return self._pool.submit(counted_beside, self._part, work, *args)

    def close(self) -> None:
        """Wait for all calls and end the threads. The next `submit` starts new ones."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


class _OfThread(threading.local):
    """The `Overlap` of each thread: some runners process several bundles concurrently, each in a thread."""

    pid: int | None = None
    overlap: Overlap


_known = _OfThread()
T = TypeVar("T")
