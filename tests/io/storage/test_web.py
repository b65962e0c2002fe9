"""Sources on a web server: versions by ETag or by time and size, ranges, and errors that say what is the matter."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from typing import Any

import fsspec
import pytest

from ledgerbeam.errors import ChangedSourceError, SourceNotFoundError, StorageError, UsageError
from ledgerbeam.io import FileInfo, RangeReader, build_jsonl_index, stat
from ledgerbeam.io.listing.pages import list_pages
from ledgerbeam.io.storage import client
from ledgerbeam.io.storage.files import read_bytes, read_many_files
from tests.servers.web import WebServer, web_server

DATA = b'{"id": 1}\n' * 10

VERSIONS: dict[str, dict[str, Any]] = {
    "an ETag": {"tells_modified": False},
    "a weak ETag": {"etag": "weak"},
    "Last-Modified": {"etag": None},
}

READS: dict[str, Callable[[FileInfo], object]] = {
    "a range": lambda listed: RangeReader(listed.url, listed=listed).read(10, 20),
    "ranges": lambda listed: RangeReader(listed.url, listed=listed).read_many([0, 50], [5, 55], gap=0),
    "all": lambda listed: read_bytes(listed.url, None, listed),
    "several": lambda listed: read_many_files([listed.url] * 2, None, [listed] * 2),
    "lines": lambda listed: build_jsonl_index(listed.url, listed=listed),
}


@pytest.fixture
def web() -> Iterator[WebServer]:
    with web_server() as server:
        server.files["in/a.jsonl"] = DATA
        yield server


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PAUSE_SECONDS", 0.01)


def source(web: WebServer, **settings: Any) -> FileInfo:
    """Return the file as a server of these settings describes it."""
    for name, value in settings.items():
        setattr(web, name, value)
    return stat(f"{web.url}/in/a.jsonl")


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("settings", VERSIONS.values(), ids=VERSIONS)
def test_a_file_is_what_was_listed_or_an_error(
    web: WebServer, settings: dict[str, Any], read: Callable[[FileInfo], object]
) -> None:
    listed = source(web, **settings)
    read(listed)
    web.files["in/a.jsonl"] = DATA[::-1]
    web.modified += 1
    with pytest.raises(ChangedSourceError, match=r"a\.jsonl: changed since it was listed: .* found version "):
        read(listed)
    read(source(web))
    del web.files["in/a.jsonl"]
    with pytest.raises(ChangedSourceError, match="none: it was deleted"):
        read(listed)


def test_another_size_in_the_same_second_is_another_version(web: WebServer) -> None:
    listed = source(web, etag=None)
    assert listed.version == "1700000000000000000-100"
    web.files["in/a.jsonl"] = DATA * 2
    with pytest.raises(ChangedSourceError, match="found version 1700000000000000000-200"):
        RangeReader(listed.url, listed=listed).read(0, 5)


def test_a_range_is_one_request_and_gives_its_bytes(web: WebServer) -> None:
    listed = source(web)
    web.asked.clear()
    assert RangeReader(listed.url, listed=listed).read(11, 19) == DATA[11:19]
    assert web.asked == [("GET", "bytes=11-18")]


def test_a_server_that_tells_no_version_is_refused(web: WebServer) -> None:
    with pytest.raises(StorageError, match="reports neither ETag, generation nor modification time"):
        source(web, etag=None, tells_modified=False)


def test_an_answer_without_a_version_is_not_believed(web: WebServer) -> None:
    listed = source(web)
    web.etag, web.tells_modified = None, False
    with pytest.raises(StorageError, match=r"a\.jsonl: the store reports neither ETag"):
        RangeReader(listed.url, listed=listed).read(0, 5)


def test_a_server_that_tells_no_size_is_refused(web: WebServer) -> None:
    """It was taken for a source without a record."""
    with pytest.raises(StorageError, match=r"a\.jsonl: the store reports no size"):
        source(web, tells_size=False)


def test_a_server_without_ranges_is_refused_and_small_files_are_read_whole(web: WebServer) -> None:
    listed = source(web, has_ranges=False)
    with pytest.raises(StorageError, match=r"supports no byte ranges.*bytes=0-4.*status 200"):
        RangeReader(listed.url, listed=listed).read(0, 5)
    assert read_bytes(listed.url, None, listed) == DATA


def test_a_range_past_the_end_is_an_error(web: WebServer) -> None:
    listed = source(web)
    with pytest.raises(StorageError, match=r"expected 10 bytes at \[200, 210\), found 0"):
        RangeReader(listed.url, listed=listed).read(200, 210)


def test_the_links_of_a_page_are_listed_with_their_versions(web: WebServer) -> None:
    web.files["in"] = b'<a href="/in/a.jsonl">a</a> <a href="/in/b.txt">b</a>'
    (page,) = list_pages([f"{web.url}/in/*.jsonl"])
    assert list(zip(page.urls, page.sizes, page.versions, strict=True)) == [
        (f"{web.url}/in/a.jsonl", 100, stat(f"{web.url}/in/a.jsonl").version)
    ]


@pytest.mark.parametrize(
    ("status", "kind", "said"),
    [
        (404, SourceNotFoundError, "there is no such file"),
        (410, SourceNotFoundError, "there is no such file"),
        (401, StorageError, "permission denied.*credentials as storage options"),
        (403, StorageError, "permission denied"),
        (429, StorageError, "refuses so many requests"),
        (500, StorageError, r"cannot read \(500"),
    ],
)
def test_what_a_server_answers_is_what_is_said(web: WebServer, status: int, kind: type[Exception], said: str) -> None:
    web.status = status
    with pytest.raises(StorageError, match=rf"^{web.url}/x: .*{said}") as caught:
        stat(f"{web.url}/x")
    assert type(caught.value) is kind


def test_a_host_that_cannot_be_reached_is_no_missing_file() -> None:
    with socket.socket() as held:  # a port at which nobody listens
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}/x.jsonl"
        with pytest.raises(
            StorageError, match=rf"{url}: cannot read, its host cannot be reached .*check the ad"
        ) as err:
            stat(url)
    assert type(err.value) is StorageError


def test_a_call_that_is_tried_again_is_told_once_it_lasts(
    web: WebServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client, "_silent_until", 0.0)
    web.status = 503
    with caplog.at_level(logging.WARNING), pytest.raises(StorageError):
        stat(f"{web.url}/quick")
    assert caplog.messages == []
    monkeypatch.setattr(client, "SILENT_SECONDS", 0.0)
    with pytest.raises(StorageError):
        stat(f"{web.url}/x")
    (said,) = caplog.messages  # one of four
    assert said.startswith(f"{web.url}/x: cannot read yet, try 1 of 5 has failed (503, ")
    assert said.endswith("; it is tried again")


@pytest.mark.parametrize("name", ["a.jsonl", "*.jsonl"])
@pytest.mark.parametrize(
    ("status", "kind", "said"),
    [
        (401, StorageError, "permission denied .*no such repository.*HF_TOKEN"),
        (403, StorageError, "permission denied"),
        (404, SourceNotFoundError, "there is no such file|nothing matches"),
        (429, StorageError, "refuses so many requests"),
    ],
)
def test_what_the_hub_answers_is_one_error_that_says_so(
    web: WebServer, status: int, kind: type[Exception], said: str, name: str
) -> None:
    pytest.importorskip("huggingface_hub")
    web.status = status
    with pytest.raises(StorageError, match=rf"^hf://datasets/some/one/{'[a*]'}\.jsonl: .*({said})") as caught:
        list(list_pages([f"hf://datasets/some/one/{name}"], {"endpoint": web.url}))
    assert type(caught.value) is kind


def test_a_hub_that_cannot_be_reached_is_one_error_that_says_so() -> None:
    pytest.importorskip("huggingface_hub")
    with pytest.raises(StorageError, match=r"a\.jsonl: cannot read, its host cannot be reached"):
        stat("hf://datasets/some/one/a.jsonl", {"endpoint": "http://127.0.0.1:9"})


@pytest.mark.parametrize(
    ("scheme", "module", "package"), [("hf", "huggingface_hub", "huggingface_hub"), ("http", "aiohttp", "aiohttp")]
)
def test_a_missing_client_is_named(monkeypatch: pytest.MonkeyPatch, scheme: str, module: str, package: str) -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"{module} for {name}")

    monkeypatch.setattr(fsspec, "get_filesystem_class", missing)
    with pytest.raises(UsageError, match=rf"{scheme}:// needs a package .*: pip install {package}$"):
        stat(f"{scheme}://some/where", {"never": "connected"})
