"""What happens when the network or the store fails, between a real client and a real server."""

from __future__ import annotations

import selectors
import socket
import socketserver
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from ledgerbeam.errors import StorageError
from ledgerbeam.io import listing, remote, storage
from ledgerbeam.io.publish import publish_bytes
from ledgerbeam.io.storage import RangeReader
from tests.conftest import S3Server

pytestmark = pytest.mark.s3

REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@dataclass
class Weather:
    """How the next connections fare."""

    target: tuple[str, int]
    failures: int = 0
    how: Literal["refuse", "reset"] = "refuse"
    seen: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next_fails(self) -> bool:
        with self.lock:
            self.seen += 1
            self.failures -= 1
            return self.failures >= 0


class Gateway(socketserver.BaseRequestHandler):
    """Passes bytes between a client and the server, except when the weather is bad."""

    server: Proxy

    def handle(self) -> None:
        weather = self.server.weather
        if not weather.next_fails():
            with socket.create_connection(weather.target) as upstream:
                self._pass(upstream)
            return
        if weather.how == "reset":
            self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.request.close()
        else:
            self.request.recv(65536)
            self.request.sendall(REFUSAL)

    def _pass(self, upstream: socket.socket) -> None:
        other = {self.request: upstream, upstream: self.request}
        with selectors.DefaultSelector() as selector:
            for end in other:
                selector.register(end, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    data = key.fileobj.recv(65536)  # type: ignore[union-attr]
                    if not data:
                        return
                    other[key.fileobj].sendall(data)


class Proxy(socketserver.ThreadingTCPServer):
    daemon_threads = True
    weather: Weather


@dataclass(frozen=True)
class BadLine:
    """A bucket seen through the proxy, each attempt of ours on a connection of its own."""

    url: str
    options: dict[str, Any]
    weather: Weather


@pytest.fixture
def line(s3: S3Server) -> Iterator[BadLine]:
    host, _, port = s3.endpoint.removeprefix("http://").partition(":")
    with Proxy(("127.0.0.1", 0), Gateway) as proxy:
        proxy.weather = Weather((host, int(port)))
        thread = threading.Thread(target=proxy.serve_forever, args=(0.05,))
        thread.start()
        options = {
            **s3.options,
            "client_kwargs": {"endpoint_url": f"http://127.0.0.1:{proxy.server_address[1]}"},
            "config_kwargs": {"retries": {"total_max_attempts": 1}},
        }
        bucket = s3.bucket()
        publish_bytes(f"s3://{bucket}/x", b"0123456789" * 100, s3.options)
        yield BadLine(f"s3://{bucket}", options, proxy.weather)
        proxy.shutdown()
        thread.join()


def test_an_answer_of_503_is_asked_again(line: BadLine) -> None:
    line.weather.failures = 3
    assert RangeReader(f"{line.url}/x", line.options).read(5, 15) == b"5678901234"
    assert line.weather.seen == 4


def test_broken_connections_are_made_again(line: BadLine) -> None:
    line.weather.how = "reset"
    line.weather.failures = remote.ATTEMPTS + 1  # s3fs itself gives up one before
    assert RangeReader(f"{line.url}/x", line.options).read(5, 15) == b"5678901234"
    assert line.weather.seen > remote.ATTEMPTS + 1


def test_only_the_failed_ranges_of_many_are_asked_again(line: BadLine) -> None:
    line.weather.failures = 4
    pieces = RangeReader(f"{line.url}/x", line.options).read_many(range(0, 1000, 50), range(1, 1001, 50), gap=0)
    assert pieces == [b"0"] * 20
    assert line.weather.seen <= 20 + 4


def test_writing_and_listing_go_on_after_an_outage(line: BadLine) -> None:
    line.weather.failures = 2
    publish_bytes(f"{line.url}/y", b"new", line.options)
    line.weather.failures = 2
    assert sum(map(len, listing.list_pages([f"{line.url}/*"], line.options))) == 2


def test_an_outage_that_lasts_ends_in_one_error_with_its_cause(line: BadLine) -> None:
    line.weather.failures = 1000
    with pytest.raises(StorageError, match=rf"{line.url}/x: cannot read") as caught:
        storage.stat(f"{line.url}/x", line.options)
    assert remote.http_status(caught.value) == 503
    assert line.weather.seen == remote.ATTEMPTS


def test_what_is_final_is_not_asked_again(line: BadLine) -> None:
    wrong = {**line.options, "secret": "wrong-secret"}
    with pytest.raises(StorageError, match="permission"):
        RangeReader(f"{line.url}/x", wrong).read(0, 1)
    assert line.weather.seen == 1


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (TimeoutError(), True),
        (ConnectionResetError(), True),
        (OSError(5, "input/output error"), True),
        (FileNotFoundError(2, "no"), False),
        (PermissionError(13, "no"), False),
        (ValueError("no"), False),
        (StorageError("already worded"), False),
    ],
)
def test_which_errors_pass(error: Exception, *, transient: bool) -> None:
    assert remote.is_transient(error) is transient
