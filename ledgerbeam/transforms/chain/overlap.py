"""What a worker does beside the task that it maps: it fetches the bytes of the next one, and writes the last ones.

Both happen only while another element is certain to follow, which on the local runner the board tells. So nothing is
held back in a worker that waits for others.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from ledgerbeam.ledger import Task
from ledgerbeam.ledger.worker.stopwatch import counted_beside

HAND_OVER_SECONDS = 0.0005
"""How soon the thread that maps lets another one take its turn. A request to a store takes many short turns, and by
Python's 5 ms the upload of 20 MB would wait for half a second."""


T = TypeVar("T")


class ThreadsBeside:
    """Threads for what is done while a task is mapped.

    They begin with the first work; from then on the thread that maps hands over to them soon.

    Args:
        most: How many there are at once.
        name: What their names begin with.
        part: Of a worker's time: what they take of processors is counted for it.
    """

    def __init__(self, most: int, name: str, part: str) -> None:
        self._most = most
        self._name = name
        self._part = part
        self._pool: ThreadPoolExecutor | None = None

    def submit(self, work: Callable[..., T], *args: Any) -> Future[T]:
        """Have a call made by one of them."""
        if self._pool is None:
            sys.setswitchinterval(min(sys.getswitchinterval(), HAND_OVER_SECONDS))
            self._pool = ThreadPoolExecutor(self._most, self._name)
        return self._pool.submit(counted_beside, self._part, work, *args)

    def close(self) -> None:
        """End them once their work is done; more work begins others."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


class Overlap:
    """What the transforms of one worker tell each other of the element that follows.

    Attributes:
        follows: Whether another element is certain to follow the one in work.
        held: How many tasks, the last ones, are held back until another element comes.
    """

    def __init__(self) -> None:
        self.follows = False
        self.held = 0
        self._following: Task | None = None
        self._ahead: tuple[bytes, Future[Any]] | None = None
        self._threads = ThreadsBeside(1, "ledgerbeam-fetch", "read")

    def begin(self, following: object) -> None:
        """Say that an element is begun, and which one follows it; None if that is not known."""
        self.follows = following is not None
        self._following = following if isinstance(following, Task) else None

    def fetched(self, task: Task, fetching: Callable[[Task], Callable[[], Any] | None]) -> Future[Any] | None:
        """Begin to fetch the task that follows; return what was fetched of the one that is begun, None if nothing was.

        Args:
            task: Is begun.
            fetching: Returns what fetches the bytes of a task in another thread; None for one read in its turn.
        """
        ahead, self._ahead = self._ahead, None
        following, self._following = self._following, None
        if following is not None and (fetch := fetching(following)) is not None:
            self._ahead = following.node, self._threads.submit(fetch)
        return ahead[1] if ahead is not None and ahead[0] == task.node else None


class _OfThread(threading.local):
    """The overlap of the bundle that a thread processes: on some runners several are processed at once."""

    pid: int | None = None
    overlap: Overlap


_known = _OfThread()


def this_overlap() -> Overlap:
    """Return that of this thread. One that was copied by a fork is left behind, with the threads that it had."""
    if _known.pid != os.getpid():
        _known.pid, _known.overlap = os.getpid(), Overlap()
    return _known.overlap
