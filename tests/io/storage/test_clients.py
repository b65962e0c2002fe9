"""Changes to the file systems of fsspec packages."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from fsspec.implementations.memory import MemoryFile

from ledgerbeam.io.storage.client import ASKED_FOR
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.io.storage.publish import publish_bytes
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
