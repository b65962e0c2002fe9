"""Sources on a web server: versions by ETag or by time and size, ranges, and errors."""

from __future__ import annotations

import gzip
import logging
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from ipaddress import ip_address
from itertools import islice
from pathlib import Path
from typing import Any

import fsspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ledgerbeam.errors import ChangedSourceError, NotIndexableError, SourceNotFoundError, StorageError, UsageError
from ledgerbeam.io.index.newlines import build_jsonl_index
from ledgerbeam.io.storage import client
from ledgerbeam.io.storage.fetch import takes_ranges
from ledgerbeam.io.storage.files import read_bytes
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import FileInfo, stat
from tests.cases import each
from tests.io.storage.test_listed_versions import READS
from tests.servers.web import WebServer, web_server

DATA = b'{"id": 1}\n' * 10

VERSIONS: dict[str, dict[str, Any]] = {
    "an ETag": {"tells_modified": False},
    "a weak ETag": {"etag": "weak"},
    "Last-Modified": {"etag": None},
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
    """Return the properties of the file from a server with these settings."""
    for name, value in settings.items():
        setattr(web, name, value)
    return stat(f"{web.url}/in/a.jsonl")


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("settings", VERSIONS.values(), ids=VERSIONS)
def test_a_file_is_what_was_listed_or_an_error(
    web: WebServer, settings: dict[str, Any], read: Callable[[FileInfo, Any], object]
) -> None:
    listed = source(web, **settings)
    read(listed, None)
    web.files["in/a.jsonl"] = DATA[::-1]
    web.modified += 1
    with pytest.raises(ChangedSourceError, match=r"a\.jsonl: changed since it was listed: .*found .*version "):
        read(listed, None)
    read(source(web), None)
    del web.files["in/a.jsonl"]
    with pytest.raises(ChangedSourceError, match="found none"):
        read(listed, None)


def test_another_size_in_the_same_second_is_another_version(web: WebServer) -> None:
    listed = source(web, etag=None)
    assert listed.version == "1700000000000000000-100"
    web.files["in/a.jsonl"] = DATA * 2
    with pytest.raises(ChangedSourceError, match="found version 1700000000000000000-200"):
        RangeReader(listed.url, listed=listed).read(0, 5)


def test_a_range_is_one_request_and_gives_its_bytes(web: WebServer) -> None:
    listed = source(web)
    web.asked.clear()
    reader = RangeReader(listed.url, listed=listed)
    assert reader.read(11, 19) == DATA[11:19]
    assert web.asked == [("GET", "bytes=11-18")]
    with pytest.raises(StorageError, match=r"expected 10 bytes at \[200, 210\), found 0"):
        reader.read(200, 210)


def test_a_server_that_tells_no_version_or_size_is_refused(web: WebServer) -> None:
    """A source of an unknown size could be read as one without records."""
    with pytest.raises(StorageError, match=r"a\.jsonl: the store reports no size"):
        source(web, tells_size=False)
    listed = source(web, tells_size=True)
    problem = r"a\.jsonl: the store reports neither ETag, generation nor modification time"
    with pytest.raises(StorageError, match=problem):
        source(web, etag=None, tells_modified=False)
    with pytest.raises(StorageError, match=problem):
        RangeReader(listed.url, listed=listed).read(0, 5)


def test_a_server_without_ranges_gives_the_beginning_of_a_file_or_all_of_it(web: WebServer) -> None:
    listed = source(web, has_ranges=False)
    for reader in (RangeReader(listed.url, listed=listed), RangeReader(listed.url)):
        assert reader.read(0, 5) == DATA[:5]
        for read in (reader.read, reader.read_near):
            with pytest.raises(NotIndexableError, match=r"does not support byte ranges.*bytes=5-9.*status 200"):
                read(5, 10)
        with pytest.raises(NotIndexableError, match="does not support byte ranges"):
            reader.read_many([0, 50], [5, 55], gap=0)
    assert read_bytes(listed.url, None, listed) == DATA
    assert not takes_ranges(listed.url)
    web.has_ranges = True
    assert takes_ranges(listed.url)


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("bounds", [(0, 100), (0, 30), (13, 57), (99, 100), (0, 7)])
def test_blocks_of_a_server_without_ranges_come_in_one_answer(
    web: WebServer, ahead: int, bounds: tuple[int, int]
) -> None:
    listed = source(web, has_ranges=False)
    start, stop = bounds
    for reader in (RangeReader(listed.url, listed=listed), RangeReader(listed.url)):
        web.asked.clear()
        blocks = list(reader.blocks(7, ahead, start=start, stop=stop))
        assert b"".join(blocks) == DATA[start:stop]
        assert all(len(block) == 7 for block in blocks[:-1])
        assert sum(wanted is None for method, wanted in web.asked if method == "GET") <= 1
    assert build_jsonl_index(listed.url, listed=listed).tolist() == list(range(0, 101, 10))


def test_a_broken_connection_is_made_again(web: WebServer) -> None:
    listed = source(web)
    web.cuts = [99, 3]
    assert read_bytes(listed.url, None, listed) == DATA
    assert not web.cuts
    web.has_ranges = False
    blocks = RangeReader(listed.url, listed=listed).blocks(10)
    assert next(blocks) == DATA[:10]
    web.cuts = [100, 35, 20, 71]  # the first is that of the range which is refused
    assert b"".join(blocks) == DATA[10:]
    assert not web.cuts


def test_a_file_that_changes_while_it_is_read_without_ranges_is_an_error(web: WebServer) -> None:
    large = DATA * 50_000  # more than the buffers of a broken connection
    web.files["in/a.jsonl"] = large
    listed = source(web, has_ranges=False)
    for seen in (1, 2):
        web.files["in/a.jsonl"] = large
        web.cuts = [len(large), len(large), 4_000_000]
        blocks = RangeReader(listed.url, listed=listed).blocks(1000)
        assert b"".join(islice(blocks, seen)) == large[: seen * 1000]
        web.files["in/a.jsonl"] = large[::-1]
        with pytest.raises(ChangedSourceError, match=r"a\.jsonl: changed since it was listed"):
            list(blocks)


def test_a_file_in_gzip_is_read_as_it_is_stored(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Apache reports gzip as the encoding of such files, and clients decode it."""
    packed = gzip.compress(DATA)
    web.files["in/a.jsonl.gz"] = packed
    heads = web.heads(packed)
    monkeypatch.setattr(web, "heads", lambda _: {**heads, "Content-Encoding": "gzip"})
    for web.has_ranges in (True, False):
        listed = FileInfo(f"{web.url}/in/a.jsonl.gz", len(packed), heads["ETag"].strip('"'))
        assert b"".join(RangeReader(listed.url, listed=listed).blocks(20)) == packed
        assert read_bytes(listed.url, None, listed) == packed


@each("found", ["bytes 0-1/100", "bytes 11-11/100", "bytes 1-2/100", "bytes 110-111/200", ""])
def test_another_range_than_was_asked_for_is_not_taken_for_it(web: WebServer, found: str) -> None:
    listed = source(web)
    for read in (RangeReader(listed.url, listed=listed).read, RangeReader(listed.url).read_near):
        web.refusals = [(206, {**web.heads(DATA), "Content-Range": found})]  # with two bytes
        with pytest.raises(StorageError, match=r"does not support byte ranges.*bytes=11-12.*status 206"):
            read(11, 13)


@each(
    ("status", "kind", "said"),
    [
        (404, SourceNotFoundError, "there is no such file"),
        (410, SourceNotFoundError, "there is no such file"),
        (401, StorageError, "credentials are missing or refused.*credentials as storage options"),
        (403, StorageError, "permission denied"),
        (429, StorageError, "rejects requests since they are too many"),
        (500, StorageError, r"its server failed \(500.*run again later"),
    ],
)
def test_what_a_server_answers_is_what_is_said(web: WebServer, status: int, kind: type[Exception], said: str) -> None:
    web.status = status
    with pytest.raises(StorageError, match=rf"^{web.url}/x: .*{said}") as caught:
        stat(f"{web.url}/x")
    assert type(caught.value) is kind


def test_a_host_that_cannot_be_reached_is_no_missing_file() -> None:
    with socket.socket() as held:  # a port without a server
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}/x.jsonl"
        with pytest.raises(StorageError, match=rf"{url}: cannot read, its host cannot be reached .*check the ad") as e:
            stat(url)
    assert type(e.value) is StorageError


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
    assert said.startswith(f"{web.url}/x: cannot read yet, attempt 1 of 5 failed (503, ")
    assert said.endswith("; it will be retried")


AFTER = {
    "seconds": lambda: {"Retry-After": "1"},
    "a date": lambda: {"Retry-After": formatdate(time.time() + 2, usegmt=True)},
    "the Hub's way": lambda: {"RateLimit": '"resolvers";r=0;t=1'},
}


@pytest.mark.slow
@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("heads", AFTER.values(), ids=AFTER)
def test_a_server_that_says_when_is_asked_again_then(
    web: WebServer, heads: Callable[[], dict[str, str]], status: int
) -> None:
    listed = source(web)
    web.refusals = [(status, heads())]
    began = time.monotonic()
    assert RangeReader(listed.url, listed=listed).read(0, 5) == DATA[:5]
    assert time.monotonic() - began > 0.9


def test_a_wait_of_minutes_is_an_error_that_says_how_long(web: WebServer) -> None:
    listed = source(web)
    web.refusals = [(429, {"Retry-After": "900"})]
    problem = r"rejects requests since they are too many .*run again in 900 s, as it requests"
    with pytest.raises(StorageError, match=problem):
        RangeReader(listed.url, listed=listed).read(0, 5)
    assert web.asked[-1] == ("GET", "bytes=0-4")
    assert web.refusals == []


def test_a_redirect_is_followed_and_a_circle_is_an_error(web: WebServer) -> None:
    web.moved = {"moved.jsonl": f"{web.url}/in/a.jsonl", "round.jsonl": "/round.jsonl"}
    listed = stat(f"{web.url}/moved.jsonl")
    assert RangeReader(listed.url, listed=listed).read(0, 5) == DATA[:5]
    with pytest.raises(StorageError, match=r"round\.jsonl: cannot read, its server redirects in a circle; check"):
        stat(f"{web.url}/round.jsonl")


def test_a_host_that_cannot_prove_its_name_is_not_read(tmp_path: Path) -> None:
    with web_server(tls=own_certificate(tmp_path), files={"a.jsonl": DATA}) as web:
        for url, options in ((f"{web.url}/a.jsonl", None), ("hf://datasets/some/a/a.jsonl", {"endpoint": web.url})):
            with pytest.raises(StorageError, match=r"a\.jsonl: .*its host is not trusted .*SSL_CERT_FILE"):
                stat(url, options)
        assert web.asked == []


def own_certificate(folder: Path) -> ssl.SSLContext:
    """Return the context of a server with a self-signed certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    built = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    built = built.serial_number(1).not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    certificate = built.add_extension(names, critical=False).sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "server.pem").write_bytes(secret + certificate.public_bytes(pem))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    return context


@pytest.mark.parametrize(
    ("scheme", "module", "package"), [("hf", "huggingface_hub", r".*\[hf\]'"), ("http", "aiohttp", "aiohttp")]
)
def test_a_missing_client_is_named(monkeypatch: pytest.MonkeyPatch, scheme: str, module: str, package: str) -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"{module} for {name}")

    monkeypatch.setattr(fsspec, "get_filesystem_class", missing)
    with pytest.raises(UsageError, match=rf"{scheme}:// needs a package .*: pip install {package}$"):
        stat(f"{scheme}://some/where", {"never": "connected"})
