"""Concurrent requests: results in order, and a limit for the requests in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from ledgerbeam.io.storage.urls import is_local

CONCURRENCY = 16  # number of requests that one call keeps in flight
_T = TypeVar("_T")
_R = TypeVar("_R")


def map_ahead(function: Callable[[_T], _R], items: Iterable[_T], threads: int, waiting: int = 0) -> Iterator[_R]:
    """Apply a function to items in threads and yield the results, or its exceptions, in the order of the items.

    Items are read lazily. At most `threads + waiting + 1` results exist at a time; `waiting` of them may wait for a
    slow first one. Closing the iterator cancels the calls that have not started.
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


def ask_each(ask: Callable[[str], _T], urls: Sequence[str]) -> list[_T]:
    """Call a function for each URL, in order: for local ones in turn, else up to `CONCURRENCY` calls at once."""
    if len(urls) < 2 or all(map(is_local, urls)):
        return [ask(url) for url in urls]
    with ThreadPoolExecutor(CONCURRENCY, "ledgerbeam-stat") as pool:
        return list(pool.map(ask, urls))
