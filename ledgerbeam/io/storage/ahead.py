"""Run the next few calls in threads while the caller uses the current result."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R")


def map_ahead(function: Callable[[_T], _R], items: Iterable[_T], threads: int, waiting: int = 0) -> Iterator[_R]:
    """Apply a function to items in threads and yield the results in the order of the items.

    At most `threads + waiting + 1` results exist at a time, so memory stays bounded however many items there are.
    Closing the iterator cancels the calls that have not started.

    Args:
        function: Called with one item; runs in a thread.
        items: The items, read lazily.
        threads: Number of concurrent calls, at least 1.
        waiting: Number of further results that may wait while the first one is slow.

    Raises:
        Exception: What `function` raised, when the result of that item is due.
    """
    pool = ThreadPoolExecutor(threads, "ledgerbeam-ahead")
    running: deque[Future[_R]] = deque()
    try:
        for item in items:
            running.append(pool.submit(function, item))
            if len(running) > threads + waiting:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
