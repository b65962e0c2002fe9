"""The schedule of a run: the distribution of planned tasks among workers, and the concurrent work of a worker.

Beam's runners distribute elements themselves. The local runner gives the chain a `Schedule`, which also shows a worker
its next element if it is certain that one follows. Only then the worker fetches the next task, and publishes previous
tasks, while it maps the current one. Else it publishes all of its tasks before it asks for an element.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, TypeAlias, TypeVar

from ledgerbeam.io import OffsetFormat
from ledgerbeam.io.formats.format import StreamSpan
from ledgerbeam.ledger import FailedTask, NoneTask, Task
from ledgerbeam.ledger.worker.reports import counted_beside
from ledgerbeam.transforms.chain.base import ChainStep, ChainValues, Pass, StepWork

# Interpreter switch interval while other threads read or publish, in seconds. A request to a store needs many short
# turns of the interpreter. With Python's default of 5 ms, an upload of 20 MB would wait for half a second.
HAND_OVER_SECONDS = 0.0005


@dataclass(frozen=True)
class StreamedTasks:
    """The remaining tasks of one source, which a single pass over the source reads in order."""

    tasks: tuple[Task, ...]  # in order
    spans: tuple[StreamSpan, ...]  # one for each task
    format: OffsetFormat  # the format that decodes the spans


Planned: TypeAlias = Task | NoneTask | FailedTask | StreamedTasks  # an element of the plan of a source


class PostStep(ChainStep):
    """Store planned tasks in the schedule of the run. Without a schedule, pass them to the next step."""

    def make_work(self, values: ChainValues) -> StepWork:
        return Pass() if values.schedule is None else values.schedule.post(values.ledger)


class DrawStep(ChainStep):
    """Take tasks that are not recorded from the schedule of the run. Without a schedule, pass all elements."""

    def make_work(self, values: ChainValues) -> StepWork:
        return Pass() if values.schedule is None else values.schedule.draw(values.ledger)


class Overlap:
    """A worker's next elements, if some are certain to follow. They can be fetched while the current one is mapped.

    Attributes:
        later: The next tasks, as far as they are known.
        wanted: Number of next tasks that are useful to know.
        read: The records of the current task, as they were read.
        records_of: Reads the records of a later task, and keeps them for its turn. No records if it cannot be read.
    """

    def __init__(self) -> None:
        self.follows = False  # whether another element is certain to follow the current one
        self.held = 0  # number of tasks that are held back until another element comes
        self.later: Sequence[Task] = ()
        self.wanted = 1
        self.read: Any = None
        self.records_of: Callable[[Task], Any] = lambda _: ()
        self._following: Task | None = None
        self._ahead: tuple[bytes, Future[Any]] | None = None
        self._threads = ThreadsBeside(1, "ledgerbeam-fetch", "read")

    def begin(self, *following: object) -> None:
        """Record that an element starts. `following` are the elements after it, as far as they are known."""
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
