"""A relay that adds latency to a server on this machine, as if the server were far away.

The relay delays the bytes of clients by `seconds`, and passes answers at once. So each request takes `seconds` longer,
but the bandwidth is the same as without the relay.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import Iterator

__all__ = ["far_away"]

_CLOSING_SECONDS = 0.01


class _Side(asyncio.Protocol):
    """One end of a connection. The relay sends bytes from it to the other end, `seconds` later."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._on_the_way: deque[bytes | None] = deque()  # None ends it
        self.has_ended = False
        self.transport: asyncio.Transport | None = None
        self.other: _Side | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._send(data)

    def eof_received(self) -> bool:
        self._send(None)
        return True  # the other direction goes on

    def _send(self, data: bytes | None) -> None:
        self._on_the_way.append(data)
        if self._seconds:
            asyncio.get_running_loop().call_later(self._seconds, self._arrive)
        else:
            self._arrive()

    def _arrive(self) -> None:
        data = self._on_the_way.popleft()
        end = self.other.transport if self.other else None
        if end is None or end.is_closing():
            return
        if data is not None:
            end.write(data)
            return
        self.has_ended = True
        end.write_eof()
        if self.other and self.other.has_ended:  # both directions
            self.close()

    def close(self) -> None:
        """End the connection at both ends."""
        for side in (self, self.other):
            if side and side.transport:
                side.transport.close()

    def pause_writing(self) -> None:
        if self.other and self.other.transport:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other and self.other.transport and not self.other.transport.is_closing():
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - what it was is told to nobody
        self.close()


class _Client(_Side):
    """The end of a client. The relay connects to the server for it."""

    def __init__(self, seconds: float, host: str, port: int, known: list[_Side]) -> None:
        super().__init__(seconds)
        known.append(self)
        self._server = host, port
        self._call: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        self.transport.pause_reading()
        self._call = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        assert self.transport is not None
        other = _Side(0)
        other.other = self
        await asyncio.sleep(self._seconds)
        try:
            await asyncio.get_running_loop().create_connection(lambda: other, *self._server)
        except OSError:
            self.transport.abort()
            return
        self.other = other
        self.transport.resume_reading()


@contextlib.contextmanager
def far_away(endpoint: str, seconds: float, core: int | None = None) -> Iterator[str]:
    """Run a relay to a server in a thread. Yield the endpoint of the relay, `http://127.0.0.1:PORT`.

    Args:
        endpoint: Endpoint of the server, `http://HOST:PORT`.
        seconds: Delay of each request.
        core: Number of the core on which the relay runs; None for any.
    """

    def run() -> None:
        if core is not None:
            os.sched_setaffinity(0, {core})  # of this thread
        loop.run_forever()

    host, _, port = endpoint.removeprefix("http://").partition(":")
    loop = asyncio.new_event_loop()
    clients: list[_Side] = []
    serving = loop.create_server(lambda: _Client(seconds, host, int(port), clients), "127.0.0.1", 0)
    listening = loop.run_until_complete(serving)
    thread = threading.Thread(target=run, name="far-away")
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        listening.close()
        for client in clients:
            client.close()
        loop.run_until_complete(asyncio.sleep(_CLOSING_SECONDS))  # transports close in the next rounds of the loop
        loop.close()
