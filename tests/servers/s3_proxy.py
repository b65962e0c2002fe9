"""A proxy in front of an S3 server, which makes faults to order and counts what it is asked.

Requests pass byte for byte, with the Host header of the client, so that their signatures stay valid. Between a client
and a server there are faults that a server has (answers of 5xx, throttling, credentials that expire) and faults that
a network has (a delay, a reset before or after the server has acted, half a body, silence).
"""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import random
import socket
import struct
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.servers.s3 import S3Server, env_of, options_of

_HEAD_LIMIT = 1 << 20
_CLOSING_SECONDS = 0.01
_NO_BODY = frozenset({204, 304})


Kind = Literal["status", "reset", "lost", "truncated", "short", "late", "silent"]


@dataclass(frozen=True)
class Request:
    """A request as the proxy saw it."""

    method: str
    key: str  # `bucket/key`, decoded; `bucket` alone for a listing
    query: str
    headers: Mapping[str, str]  # by name in lower case


@dataclass
class Fault:
    """A fault, and which requests it befalls.

    Attributes:
        kind: `status`: the answer is `status` with the S3 error `code`, and the server is not asked. `reset`: the
            connection is reset before the server is asked. `lost`: the server acts, and the connection is reset in
            place of its answer. `truncated`: the body ends in its middle, and so does the connection. `short`: half
            of the body comes as if it were all. `late`: everything comes, `seconds` later. `silent`: no answer comes
            for `seconds`, then the connection is closed.
    """

    kind: Kind
    methods: frozenset[str] = frozenset()  # only requests of these methods; all when empty
    key: str = "*"  # only requests whose `bucket/key` matches this pattern of fnmatch
    times: int | None = None  # how many of these requests are hit, the first ones; all by default
    every: int = 1  # only each nth of them
    chance: float = 1.0  # only this share of them, drawn with `seed`
    status: int = 503
    code: str = "ServiceUnavailable"  # of S3
    seconds: float = 0.0
    seed: int = 0
    hits: int = 0
    _met: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def strikes(self, request: Request) -> bool:
        """Return whether it befalls a request, and count it."""
        if self.methods and request.method not in self.methods:
            return False
        if not fnmatch.fnmatchcase(request.key, self.key):
            return False
        self._met += 1
        if self._met % self.every or self._random.random() >= self.chance:
            return False
        if self.times is not None and self.hits >= self.times:
            return False
        self.hits += 1
        return True


def throttled(**when: Any) -> Fault:
    """Return the answer of a store that is asked too much: 503 SlowDown."""
    return Fault("status", status=503, code="SlowDown", **when)


def expired(**when: Any) -> Fault:
    """Return the answer to temporary credentials whose time has passed: 400 ExpiredToken."""
    return Fault("status", status=400, code="ExpiredToken", **when)


@dataclass
class S3Proxy:
    """A running proxy."""

    endpoint: str
    server: S3Server
    faults: list[Fault] = field(default_factory=list)  # in force, the first that strikes counts; tests change the list
    requests: list[Request] = field(default_factory=list)  # in the order of arrival, also what met a fault
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def options(self) -> dict[str, Any]:
        """Storage options with which s3fs goes through it, each of its requests made once by botocore."""
        options = options_of(self.endpoint)
        return {**options, "config_kwargs": {"retries": {"total_max_attempts": 1}}}

    @property
    def env(self) -> dict[str, str]:
        """Environment variables with which another process goes through it."""
        return env_of(self.endpoint)

    def clear(self) -> None:
        """End all faults and forget the requests."""
        with self._lock:
            self.faults.clear()
            self.requests.clear()

    def count(self, method: str = "*", key: str = "*") -> int:
        """Count the requests of a method and of keys that match a pattern of fnmatch."""
        with self._lock:
            return sum(
                fnmatch.fnmatchcase(request.method, method) and fnmatch.fnmatchcase(request.key, key)
                for request in self.requests
            )

    def _meet(self, request: Request) -> Fault | None:
        with self._lock:
            self.requests.append(request)
            return next((fault for fault in self.faults if fault.strikes(request)), None)


@contextlib.contextmanager
def s3_proxy(server: S3Server, address: str = "127.0.0.1") -> Iterator[S3Proxy]:
    """Run a proxy in front of a server, in a thread of this process, which binds an address of this machine."""
    listener = socket.create_server((address, 0))
    proxy = S3Proxy(f"http://{address}:{listener.getsockname()[1]}", server)
    loop = asyncio.new_event_loop()
    started = threading.Event()
    stop = asyncio.Event()

    async def serve() -> None:
        listening = await asyncio.start_server(_Connections(proxy).serve, sock=listener, limit=_HEAD_LIMIT)
        started.set()
        await stop.wait()
        listening.close()
        await asyncio.sleep(_CLOSING_SECONDS)  # what was accepted last becomes a task
        while connections := asyncio.all_tasks() - {asyncio.current_task()}:
            for connection in connections:
                connection.cancel()
            await asyncio.gather(*connections, return_exceptions=True)
            await asyncio.sleep(_CLOSING_SECONDS)  # transports close in the next rounds of the loop

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), name="s3-proxy")
    thread.start()
    started.wait()
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


class _Connections:
    """Serves connections, each a sequence of requests; the server behind is asked on a new connection for each."""

    def __init__(self, proxy: S3Proxy) -> None:
        self._proxy = proxy
        host, _, port = proxy.server.endpoint.removeprefix("http://").partition(":")
        self._upstream = (host, int(port))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self._serve_one(reader, writer):
                    pass
            writer.close()
            await writer.wait_closed()
        except (ConnectionError, asyncio.CancelledError):
            pass  # the client has gone, or the proxy is stopped
        finally:
            writer.transport.abort()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one request; tell whether the connection can take another."""
        head = await reader.readuntil(b"\r\n\r\n")
        request = _parse(head)
        if request.headers.get("expect") == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await _read_body(reader, request.headers)
        fault = self._proxy._meet(request)
        kind = fault.kind if fault else None
        if fault and kind == "silent":
            await asyncio.sleep(fault.seconds)
            return False
        if kind == "reset":
            return _reset(writer)
        if fault and kind == "status":
            writer.write(_refusal(fault, request))
            await writer.drain()
            return False
        status, answer_head, answer = await self._ask(head, body, request)
        if kind == "lost":
            return _reset(writer)
        if fault and kind == "late":
            await asyncio.sleep(fault.seconds)
        if kind == "short":
            answer_head, answer = _shortened(answer_head, answer)
        if kind == "truncated" and answer:
            writer.write(answer_head + answer[: len(answer) // 2])
            await writer.drain()
            return False
        writer.write(answer_head + answer)
        await writer.drain()
        return status < 400

    async def _ask(self, head: bytes, body: bytes, request: Request) -> tuple[int, bytes, bytes]:
        reader, writer = await asyncio.open_connection(*self._upstream, limit=_HEAD_LIMIT)
        try:
            writer.write(_without(head, "expect") + body)
            await writer.drain()
            while True:
                answer = await reader.readuntil(b"\r\n\r\n")
                status = int(answer.split(b" ", 2)[1])
                if status != 100:
                    break
            if request.method == "HEAD" or status in _NO_BODY:
                return status, answer, b""
            return status, answer, await _read_body(reader, _headers(answer))
        finally:
            writer.transport.abort()


def _parse(head: bytes) -> Request:
    method, target, _ = head.split(b"\r\n", 1)[0].decode("ascii").split(" ")
    path, _, query = target.partition("?")
    return Request(method, urllib.parse.unquote(path).strip("/"), query, _headers(head))


def _headers(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if line)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _without(head: bytes, name: str) -> bytes:
    lines = head.split(b"\r\n")
    return b"\r\n".join(line for line in lines if not line.lower().startswith(name.encode() + b":"))


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    """Read a body as it is on the line."""
    if headers.get("transfer-encoding", "").lower() != "chunked":
        return await reader.readexactly(int(headers.get("content-length", 0)))
    parts = []
    while True:
        line = await reader.readuntil(b"\r\n")
        size = int(line.split(b";")[0], 16)
        parts += [line, await reader.readexactly(size + 2)]
        if not size:
            return b"".join(parts)


def _shortened(head: bytes, body: bytes) -> tuple[bytes, bytes]:
    half = body[: len(body) // 2]
    return _without(head, "content-length")[:-2] + b"Content-Length: %d\r\n\r\n" % len(half), half


def _refusal(fault: Fault, request: Request) -> bytes:
    body = f"<?xml version='1.0'?><Error><Code>{fault.code}</Code><Message>a fault to order</Message></Error>".encode()
    head = f"HTTP/1.1 {fault.status} Fault\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + (b"" if request.method == "HEAD" else body)


def _reset(writer: asyncio.StreamWriter) -> bool:
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    return False
