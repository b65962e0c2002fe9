"""The relay of the tables of speed: all bytes pass, requests late, and each end hears of the other one's end."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from benchmarks.far_away import far_away

SECONDS = 0.05


def echo(listener: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:  # the listener was closed
            return
        with connection:
            while some := connection.recv(1 << 16):
                connection.sendall(some)


def send(client: socket.socket, data: bytes) -> None:
    client.sendall(data)
    client.shutdown(socket.SHUT_WR)


@pytest.fixture
def server() -> Iterator[socket.socket]:
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=echo, args=(listener,))
    thread.start()
    yield listener
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def test_what_is_sent_arrives_later_whole_and_in_order(server: socket.socket) -> None:
    data = bytes(range(256)) * 20_000
    with far_away(f"http://127.0.0.1:{server.getsockname()[1]}", SECONDS) as endpoint:
        host, _, port = endpoint.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=30) as client:
            began = time.monotonic()
            sending = threading.Thread(target=send, args=(client, data))
            sending.start()
            found = bytearray(client.recv(1))
            assert time.monotonic() - began >= SECONDS
            while some := client.recv(1 << 16):
                found += some
            sending.join()
    assert bytes(found) == data


def test_where_nobody_listens_the_connection_is_cut() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = closed.getsockname()[1]
    with far_away(f"http://127.0.0.1:{nobody}", 0.01) as endpoint:
        host, _, port = endpoint.removeprefix("http://").partition(":")
        with (
            socket.create_connection((host, int(port)), timeout=30) as client,
            contextlib.suppress(ConnectionResetError),
        ):
            assert client.recv(1) == b""
