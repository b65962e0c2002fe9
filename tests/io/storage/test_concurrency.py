"""Calls ahead in threads."""

from __future__ import annotations

import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from ledgerbeam.io.storage import client
from ledgerbeam.io.storage.client import map_ahead


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_come_in_the_order_of_the_items(threads: int) -> None:
    assert list(map_ahead(lambda n: n * n, range(100), threads)) == [n * n for n in range(100)]


def test_only_a_few_items_are_taken_ahead() -> None:
    taken = []

    def items() -> Generator[int]:
        for n in range(1000):
            taken.append(n)
            yield n

    results = cast(Generator[int], map_ahead(lambda n: n, items(), 3))
    assert [next(results) for _ in range(10)] == list(range(10))
    assert len(taken) <= 10 + 4
    results.close()
    assert len(taken) <= 10 + 4


def test_an_error_is_raised_at_its_item_and_threads_end() -> None:
    before = threading.active_count()
    found: list[int] = []
    with pytest.raises(ZeroDivisionError):
        found.extend(map_ahead(lambda n: 1 // (n - 5), range(100), 2))
    results = map_ahead(lambda n: 1 // (n - 5), range(100), 2)
    assert [next(results) for _ in range(5)] == [-1] * 5
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert threading.active_count() == before


def test_what_is_closed_begins_no_further_item(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    go_on = threading.Event()

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            go_on.set()
            super().shutdown(wait=wait)

    def work(number: int) -> int:
        begun.append(number)
        if number:
            go_on.wait()
        return number

    monkeypatch.setattr(client, "ThreadPoolExecutor", Pool)
    results = cast(Generator[int], map_ahead(work, range(100), 1, 5))
    assert next(results) == 0
    results.close()
    assert begun in ([0], [0, 1])
