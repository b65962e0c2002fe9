"""Calls of async functions: several records are in flight at once, and their results come in order.

While the last calls of a task are in flight, the calls for the next tasks of the worker start.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple

from ledgerbeam import stats
from ledgerbeam._base.lazy import asyncio
from ledgerbeam.answers import Gate, Waits, answering
from ledgerbeam.errors import BudgetSpentError, LedgerbeamError, ServiceError
from ledgerbeam.ledger import Task
from ledgerbeam.ledger.answers import NoAnswerError, TaskAnswers, answers_of, host_limits
from ledgerbeam.sources.forms import blocks_of
from ledgerbeam.sources.kind import Unreadable
from ledgerbeam.transforms.chain.schedule import this_overlap
from ledgerbeam.transforms.mapping.outcomes import TIMEOUT, ChildFailedError, copied
from ledgerbeam.user_code.async_loop import event_loop
from ledgerbeam.user_code.guards import ReportedError

IN_FLIGHT = 32  # default for the most records for which functions are called at once in a worker
_STARTED = 4  # multiple of the calls in flight that are started, so that a slow call keeps no later one back
_MOST_TASKS = 8  # whose calls start ahead
_CANCEL_SECONDS = 1.0  # for a call to end after it was cancelled; then it is left alone


class _Outcome(NamedTuple):
    result: Any
    error: BaseException | None
    observed: list[stats.Observation]


_Started = deque[Future[tuple[Any, BaseException | None]]]


class AsyncCalls:
    """Calls of the async functions of a job in one process. One thread uses it.

    Args:
        most: Largest number of calls in flight.
        seconds: Longest time of a call; None for no limit.
    """

    def __init__(self, most: int = IN_FLIGHT, seconds: float | None = None) -> None:
        self._most = most
        self._seconds = seconds
        self._gate = Gate()
        self._ended: LedgerbeamError | None = None  # the error that ends the work of the process
        self._running: list[Generator[_Outcome]] = []
        self._first: _Started = deque()  # for the first records of this task
        self._later: dict[bytes, _Later] = {}  # for the first records of the next tasks
        self._is_read = False  # whether the records of this task are as they were read
        self._answers: TaskAnswers | None = None  # of this task

    @contextmanager
    def of_task(self, task: Task) -> Iterator[None]:
        """Map one task in the body. Then its calls that are still in flight are cancelled."""
        if self._gate.limits is None:
            self._gate.limits = host_limits()
        self._is_read = task.records is this_overlap().read
        later = self._later.get(task.node)
        if later is not None and later.records is task.records:
            del self._later[task.node]
        else:  # the tasks are not those that were expected
            for other in self._later.values():
                _cancel(other.started)
            self._later.clear()
            later = _Later(task.records, answers_of(task, self._gate))
        self._first, self._answers = later.started, later.answers
        try:
            yield
            _settle(later)  # calls in progress are paid, also if the task has failed
        finally:
            ended, failure = self._ended, None if self._answers is None else self._answers.failure
            if isinstance(failure, (BudgetSpentError, NoAnswerError, ServiceError)):
                ended = failure
            if type(ended) is BudgetSpentError:
                _settle(later, *self._later.values())
            for outcomes in self._running:
                outcomes.close()
            self._running.clear()
            _cancel(self._first)
            if ended is not None:
                raise ended

    def ahead(
        self, values: Iterable[Any], *, call: Callable[[Any], Any], name: str, number: int, batched: bool
    ) -> Callable[[Any], Any]:
        """Return a function that is to be called with each of `values`, in order, and calls `call` ahead.

        It returns the result for a value, or raises the error of its call. `name` and `number` identify the function
        in the job; `batched` says that it takes batches.
        """
        called = partial(self._called, call, name, number)
        found = self._outcomes(iter(values), called, is_first=number == 0 and not batched)
        self._running.append(found)

        def outcome(_: Any) -> Any:
            result, error, observed = next(found)
            if observed:
                stats.replay(observed)
            if error is not None:
                raise error
            return result

        return outcome

    def _outcomes(self, values: Iterator[Any], called: Callable[..., Any], *, is_first: bool) -> Generator[_Outcome]:
        start, most = partial(event_loop().start, most=self._most), _STARTED * self._most
        started: _Started = deque()
        if is_first:
            started, self._first = self._first, started
            for _ in islice(values, len(started)):
                pass
        try:
            for value in values:
                started.append(start(partial(called, self._answers, value)))
                while started and (len(started) >= most or started[0].done()):
                    yield _outcome(started.popleft())
            while started:
                if is_first:
                    self._start_later(start, called, most - len(started))
                yield _outcome(started.popleft())
        finally:
            _cancel(started)

    def _start_later(self, start: Callable[..., Any], called: Callable[..., Any], most: int) -> None:
        """Start calls for the next tasks, at most as many as leave `most` for the calls of this one."""
        overlap = this_overlap()
        left = most - sum(len(later.started) for later in self._later.values())
        for used, task in enumerate(overlap.later if self._is_read and not overlap.is_alone else ()):
            if left <= 0:
                overlap.wanted = max(1, used)
                return
            if (later := self._later.get(task.node)) is None:
                later = self._later[task.node] = _Later(overlap.records_of(task), answers_of(task, self._gate))
            for value in islice(later.values, left):
                later.started.append(start(partial(called, later.answers, value)))
                left -= 1
        overlap.wanted = min(len(overlap.later) + 1, _MOST_TASKS)

    async def _called(
        self, call: Callable[[Any], Any], name: str, number: int, answers: TaskAnswers | None, value: Any
    ) -> _Outcome:
        observed = stats.Observing([""] * (number + 1))
        observed.running = number.__index__
        waits = Waits()
        with stats.collecting(into=observed), answering(answers, waits):
            try:
                result = copied(await self._limited(call, value, waits))  # another call may change it
                if answers is not None and answers.failure is not None:
                    raise answers.failure
                return _Outcome(result, None, observed.observations)
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # noqa: BLE001 - reported
                if type(error) is _TooLongError:
                    said = f"{name} took more than {self._seconds:g} s"
                    error = ReportedError(TIMEOUT, said, has_ended=True, function=number)
                if type(error) is ServiceError:
                    self._ended = error
                failure = self._ended if answers is None else answers.failure or self._ended
                if failure is not None:  # no record is to blame
                    error = ChildFailedError(str(failure))
                return _Outcome(None, error, observed.observations)

    async def _limited(self, call: Callable[[Any], Any], value: Any, waits: Waits) -> Any:
        if self._seconds is None:
            return await call(value)
        calling, began = asyncio.ensure_future(call(value)), time.monotonic()
        try:
            while not calling.done():
                left = self._seconds + waits.seconds() - (time.monotonic() - began)
                if left <= 0:
                    calling.cancel()
                    await asyncio.wait([calling], timeout=_CANCEL_SECONDS)
                    raise _TooLongError
                await asyncio.wait([calling], timeout=left)
            return calling.result()
        finally:
            calling.cancel()


class _TooLongError(Exception):
    """A call took too long."""


class _Later:
    """Calls for the first records of a task, begun before its turn."""

    def __init__(self, records: Any, answers: TaskAnswers | None) -> None:
        self.records = records
        self.answers = answers
        every = chain.from_iterable(blocks_of(records))
        self.values = (copied(record) for record in every if type(record) is not Unreadable)
        self.started: _Started = deque()


def _settle(*tasks: _Later) -> None:
    """Let tasks begin no call any more, and store the answers of their calls in progress."""
    for one in tasks:
        if one.answers is not None:
            event_loop().run(one.answers.settle())


def _outcome(future: Future[tuple[Any, BaseException | None]]) -> _Outcome:
    try:
        outcome, error = future.result()
    except CancelledError as cancelled:  # the function has cancelled its own task
        error = cancelled
    return _Outcome(None, error, []) if error is not None else outcome


def _cancel(started: _Started) -> None:
    for one in started:
        one.cancel()
    started.clear()
