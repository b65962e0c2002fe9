"""A model on loopback: it answers each line with another random number, after a time, and logs the requests."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


class LoopbackModel:
    """The server.

    Attributes:
        asked: The requests, in order.
        most: Largest number of requests that it worked on at once.
    """

    def __init__(self, seconds: float) -> None:
        self.asked: list[Any] = []
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
        with suppress(ConnectionError, ValueError):  # a caller that was killed has sent a part of a line, or nothing
            self.asked.append(json.loads(await reader.readline()))
            self._running += 1
            self.most = max(self.most, self._running)
            await asyncio.sleep(self._seconds)
            self._running -= 1
            writer.write(json.dumps({"label": random.random()}).encode() + b"\n")
            await writer.drain()
        writer.close()


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
