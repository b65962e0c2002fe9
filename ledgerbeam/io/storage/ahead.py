"""Doing the next few pieces of work in threads while the present one is used."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["map_ahead"]

_T = TypeVar("_T")
_R = TypeVar("_R")


def map_ahead(function: Callable[[_T], _R], items: Iterable[_T], threads: int, waiting: int = 0) -> Iterator[_R]:
    """Apply a function to items in threads and yield the results in the order of the items.

    At most `threads + waiting + 1` results exist at a time, so memory stays bounded however many items there are.
    Closing the iterator drops the work that has not begun.

    Args:
        function: Called with one item; runs in a thread.
        items: The items, taken as they are needed.
        threads: How many run at once, at least 1.
        waiting: How many more are begun while the first of them takes long.

    Raises:
        Exception: What `function` raised, at the item that raised it.
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
