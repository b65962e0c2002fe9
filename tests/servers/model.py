"""A model on loopback: it answers each line with another random number, after a time, and logs the requests.

It may be down: then it answers with ``{"down": SECONDS}``, the time to wait, which is null if it does not know.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any


class LoopbackModel:
    """The server.

    Attributes:
        asked: The requests, in order.
        times: When they came, in seconds.
        most: Largest number of requests that it worked on at once.
        answered: The requests that it answered, with the label of each.
        is_down: Returns whether the model is down for the request of a number.
        is_reset: Returns whether the connection of the request of a number ends without an answer.
        wait: The time to wait while it is down, in seconds.
    """

    def __init__(self, seconds: float) -> None:
        self.asked: list[Any] = []
        self.times: list[float] = []
        self.answered: list[tuple[Any, float]] = []
        self.is_down: Callable[[int], bool] = lambda _: False
        self.is_reset: Callable[[int], bool] = lambda _: False
        self.wait: float | None = None
        self.most = 0
        self.port = 0
        self._seconds = seconds
        self._running = 0

    async def serve(self, ready: threading.Event) -> None:
        """Answer until the task is cancelled."""
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        async with server:
            await server.serve_forever()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A caller that was killed has sent a part of a line, or nothing.
        with closing(writer), suppress(ConnectionError, ValueError):
            request = json.loads(await reader.readline())
            self.asked.append(request)
            self.times.append(time.monotonic())
            if self.is_reset(len(self.asked)):
                return
            if self.is_down(len(self.asked)):
                writer.write(json.dumps({"down": self.wait}).encode() + b"\n")
                return
            self._running += 1
            self.most = max(self.most, self._running)
            await asyncio.sleep(self._seconds)
            self._running -= 1
            label = random.random()
            self.answered.append((request, label))
            writer.write(json.dumps({"label": label}).encode() + b"\n")
            await writer.drain()

    def most_within(self, seconds: float) -> int:
        """Return the largest number of requests that came within any time of this length."""
        times = sorted(self.times)
        return max((bisect_left(times, time + seconds) - at for at, time in enumerate(times)), default=0)


@contextmanager
def loopback_model(seconds: float = 0.05) -> Iterator[LoopbackModel]:
    """Run a model in a thread."""
    model, ready, loop = LoopbackModel(seconds), threading.Event(), asyncio.new_event_loop()
    serving = loop.create_task(model.serve(ready))

    def run() -> None:
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(serving)

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait()
    try:
        yield model
    finally:
        loop.call_soon_threadsafe(serving.cancel)
        thread.join()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
