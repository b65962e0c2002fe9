"""The event loop of a process. The async functions of users run on it.

It has its own thread, so calls continue while the mapping thread reads, encodes and publishes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from ledgerbeam._base.lazy import asyncio
from ledgerbeam.user_code.guards import children, end_child, running_user_code


class EventLoop:
    """An event loop in a thread, and the number of calls that are in flight on it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._free: dict[int, asyncio.Semaphore] = {}
        threading.Thread(target=self._run, name="ledgerbeam-async", daemon=True).start()
        self._started.wait()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.call_soon(self._started.set)
        with running_user_code():  # a process that a function forks ends in `_guarded`
            while True:
                with suppress(SystemExit):  # of a task that a function has started; it is reported to the function
                    self._loop.run_forever()

    def run(self, coroutine: Coroutine[Any, Any, Any], seconds: float | None = None) -> Any:
        """Run a coroutine and return its result. TimeoutError: it took more than `seconds`; it is then cancelled."""
        running = self.start(lambda: coroutine)
        try:
            result, error = running.result(seconds)
        finally:
            running.cancel()
        if error is not None:
            raise error
        return result

    def start(
        self, call: Callable[[], Coroutine[Any, Any, Any]], most: int | None = None
    ) -> Future[tuple[Any, BaseException | None]]:
        """Start a call in a copy of this context, once fewer than `most` of its kind are in flight.

        The future has the result and None, or None and the exception. This includes SystemExit: it would end the loop.
        """
        return asyncio.run_coroutine_threadsafe(self._guarded(call, most), self._loop)

    async def _guarded(
        self, call: Callable[[], Coroutine[Any, Any, Any]], most: int | None
    ) -> tuple[Any, BaseException | None]:
        try:
            if most is None:
                return await call(), None
            async with self._free.setdefault(most, asyncio.Semaphore(most)):
                return await call(), None
        except BaseException as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            return None, error
        finally:
            if children:
                end_child()


def event_loop() -> EventLoop:
    """Return the event loop of this process, which the first call starts."""
    global _known  # noqa: PLW0603 - one for the process
    with _lock:
        if _known is None or _known[0] != os.getpid():
            _known = os.getpid(), EventLoop()
        return _known[1]


_known: tuple[int, EventLoop] | None = None
_lock = threading.Lock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
