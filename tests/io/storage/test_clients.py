"""Changes to the file systems of fsspec packages: bodies of uploads, and threads that work ahead."""

from __future__ import annotations

import asyncio
import io
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from aiohttp.payload import PAYLOAD_REGISTRY
from fsspec.implementations.memory import MemoryFile

from ledgerbeam.io.storage import client, uploads
from ledgerbeam.io.storage.client import ASKED_FOR, map_ahead
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.io.storage.publish import publish_bytes
from ledgerbeam.io.storage.uploads import UploadBody
from tests.servers.s3_proxy import S3Proxy


def asked(proxy: S3Proxy) -> list[bool]:
    """Return for each put whether the client asked the server before sending the body."""
    return ["expect" in request.headers for request in proxy.requests if request.method == "PUT"]


@pytest.mark.s3
@pytest.mark.parametrize("size", [0, 100, ASKED_FOR - 1])
def test_a_small_body_is_sent_without_a_question(faulty_s3: S3Proxy, size: int) -> None:
    folder = ObjectFolder(faulty_s3.server.place(), faulty_s3.options)
    data = bytes(size)
    publish_bytes(f"{folder.url}/published", data, faulty_s3.options)
    folder.replace("replaced", data)
    assert folder.create("created", data)
    assert not folder.create("created", b"other")
    assert folder.read(["published", "replaced", "created"]) == [data] * 3
    assert asked(faulty_s3) == [False] * 4


@pytest.mark.s3
def test_a_server_is_asked_for_a_large_body(faulty_s3: S3Proxy) -> None:
    place = faulty_s3.server.place()
    for size in (ASKED_FOR, 9 * ASKED_FOR):
        publish_bytes(f"{place}/{size}", bytes(size), faulty_s3.options)
    assert asked(faulty_s3) == [True] * 2


def test_of_threads_that_create_an_object_in_memory_one_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if they overlap while the content is copied, which takes some time."""
    folder = ObjectFolder("memory://turns")
    commit = MemoryFile.commit

    def commit_late(file: MemoryFile) -> None:
        time.sleep(0.05)
        commit(file)

    monkeypatch.setattr(MemoryFile, "commit", commit_late)
    with ThreadPoolExecutor(3) as threads:
        won = list(threads.map(lambda number: folder.create("contested", bytes([number])), range(3)))
    assert sorted(won) == [False, False, True]
    assert folder.read(["contested"]) == [bytes([won.index(True)])]


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


# the body of an upload: a file for botocore, the bytes in memory for aiohttp

DATA = bytes(range(200))


class Writer:
    """A writer that keeps the sent pieces."""

    def __init__(self) -> None:
        self.pieces: list[memoryview] = []

    async def write(self, chunk: memoryview) -> None:
        self.pieces.append(chunk)


@pytest.fixture
def body() -> UploadBody:
    return UploadBody(memoryview(DATA))


def test_a_body_is_read_as_a_file_is_without_a_copy(body: UploadBody) -> None:
    pieces = list(iter(lambda: body.read(64), b""))
    assert pieces == [DATA]
    assert all(piece.obj is DATA for piece in pieces)
    file = io.BytesIO(DATA)
    for offset, whence in ((-3, io.SEEK_END), (7, io.SEEK_SET), (5, io.SEEK_CUR), (0, io.SEEK_END)):
        assert body.seek(offset, whence) == file.seek(offset, whence) == body.tell()
    body.seek(150)
    assert bytes(body.read(4)) == DATA[150:]
    assert (body.tell(), bytes(body.read())) == (200, b"")


def test_all_of_it_is_sent_as_often_as_is_asked_but_no_more_than_was_announced(
    body: UploadBody, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "_PIECE", 64)
    body.read(20)
    sent = PAYLOAD_REGISTRY.get(body)
    assert sent.size == len(DATA)
    for _ in range(2):
        writer: Any = Writer()
        asyncio.run(sent.write(writer))
        assert [bytes(piece) for piece in writer.pieces] == [DATA[at : at + 64] for at in range(0, 200, 64)]
        assert all(isinstance(piece, memoryview) and piece.obj is DATA for piece in writer.pieces)
    writer = Writer()
    asyncio.run(sent.write_with_length(writer, 70))
    assert b"".join(writer.pieces) == DATA[:70]


def test_a_body_has_a_text_for_messages() -> None:
    assert PAYLOAD_REGISTRY.get(UploadBody(memoryview("é".encode()))).decode() == "é"
