"""WARC as a format: its contract, values of records, and data that is not WARC."""

from __future__ import annotations

import gzip
import random
import zlib
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from ledgerbeam.errors import ArchiveError, LedgerbeamError, RecordError, UsageError
from ledgerbeam.io import RecordFormat, build_index, recognize
from ledgerbeam.io.formats.streamed import split_source
from ledgerbeam.io.formats.testing import FormatContract
from ledgerbeam.io.warc import WarcFormat, decoded_payload, record_bytes
from tests.cases import each
from tests.io.warc.content import page, records, text


class TestWarc(FormatContract):
    takes_json = False

    def format(self) -> RecordFormat:
        return WarcFormat()

    def records(self, count: int) -> list[Any]:
        return records(count)

    def test_its_name_and_suffixes_can_be_registered(self) -> None:
        for name in ("a.warc", "a.warc.gz", "CC-MAIN-20240220211055-00000.warc.wet.gz"):
            assert recognize(name).format.name == "warc"


def test_a_record_has_what_is_asked_for_most() -> None:
    (found,) = split_source(record_bytes(page(7)), "a.warc")
    assert found == page(7)
    assert found["http"]["headers"]["Set-Cookie"] == ["a=7", "b=2"]


@given(payload=st.binary(max_size=300), value=st.text("ab ü:;=", max_size=20), is_http=st.booleans())
def test_any_payload_comes_back(payload: bytes, value: str, is_http: bool) -> None:
    record = page(1, payload) if is_http else {**text(1), "payload": payload}
    record["headers"]["WARC-Note"] = value.strip()
    (found,) = split_source(record_bytes(record) * 1, "a.warc")
    assert found["payload"] == payload
    assert found["headers"]["WARC-Note"] == value.strip()
    assert record_bytes(found) == record_bytes(record)


def test_encodings_of_http_are_undone_on_request() -> None:
    record = page(1, b"4\r\nabcd\r\n2\r\nef\r\n0\r\n\r\n")
    record["http"]["headers"]["Transfer-Encoding"] = "chunked"
    assert decoded_payload(record) == b"abcdef"
    assert decoded_payload(text(3)) == text(3)["payload"]


def _encoded(encoding: str | list[str], payload: bytes) -> dict[str, Any]:
    record = page(1, payload)
    record["http"]["headers"]["Content-Encoding"] = encoding
    return record


_BODY = b"<p>a page</p>" * 40


def _raw_deflate(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush()


@each(
    ("encoding", "payload"),
    [
        ("gzip", gzip.compress(_BODY, mtime=0)),
        ("x-gzip", gzip.compress(_BODY[:7], mtime=0) + gzip.compress(_BODY[7:], mtime=0)),
        ("deflate", zlib.compress(_BODY)),
        ("DEFLATE", _raw_deflate(_BODY)),
        ("zstd", zstandard.compress(_BODY)),
        ("identity", _BODY),
        ("deflate, gzip", gzip.compress(zlib.compress(_BODY), mtime=0)),
        (["deflate", "gzip"], gzip.compress(zlib.compress(_BODY), mtime=0)),
    ],
)
def test_compressions_of_http_are_undone_in_the_order_of_their_names(encoding: str | list[str], payload: bytes) -> None:
    assert decoded_payload(_encoded(encoding, payload)) == _BODY


def test_brotli_is_undone() -> None:
    assert decoded_payload(_encoded("br", b"\x0b\x02\x80hello\x03")) == b"hello"
    assert decoded_payload(_encoded("br", b";")) == b""


@each("encoding", ["gzip", "deflate", "br", "zstd", "chunked", "utf-8"])
@each("payload", [b"plain, as stored by the crawler", b"\x06", b"\x00\xff binary" * 9])
def test_a_payload_that_is_not_in_its_encoding_is_a_value_error(encoding: str, payload: bytes) -> None:
    if (encoding, payload) == ("br", b"\x06"):  # nothing, in Brotli
        return
    (record,) = split_source(record_bytes(_encoded(encoding, payload)), "a.warc")
    with pytest.raises(ValueError, match=f"{encoding}.*record\\['payload'\\] is the payload as it was stored"):
        decoded_payload(record)
    assert record["payload"] == payload


@each(
    ("encoding", "whole"),
    [
        ("gzip", gzip.compress(_BODY, mtime=0)),
        ("deflate", zlib.compress(_BODY)),
        ("br", b"\x0b\x02\x80hello\x03"),
        ("zstd", zstandard.compress(_BODY)),
        ("chunked", b"4\r\nabcd\r\n2\r\nef\r\n0\r\n\r\n"[:-4]),
    ],
)
def test_no_part_of_a_payload_that_was_cut_off_is_taken_for_all_of_it(encoding: str, whole: bytes) -> None:
    for size in range(1, len(whole)):
        with pytest.raises(ValueError, match="as it was stored"):
            decoded_payload(_encoded(encoding, whole[:size]))


def test_an_empty_payload_has_nothing_to_decode() -> None:
    assert decoded_payload(_encoded("gzip", b"")) == b""


@pytest.mark.parametrize(
    ("uri", "url"),
    [
        ("<http://e.org/1>", "http://e.org/1"),
        ("http://e.org/1", "http://e.org/1"),
        ("http://e.org/<1>", "http://e.org/<1>"),
        ("<dns:e.org>", "dns:e.org"),
    ],
)
def test_a_url_has_no_brackets_around_it(uri: str, url: str) -> None:
    record = page(1)
    record["headers"]["WARC-Target-URI"] = uri
    (found,) = split_source(record_bytes(record), "a.warc")
    assert found["url"] == url
    assert (found["headers"]["WARC-Target-URI"], found["id"]) == (uri, f"<urn:uuid:{1:032x}>")


def test_what_says_that_it_is_http_and_is_not_is_a_payload() -> None:
    record = {**page(1), "http": None, "payload": b"no headers at all"}
    (found,) = split_source(record_bytes(record), "a.warc")
    assert (found["http"], found["payload"]) == (None, b"no headers at all")
    assert decoded_payload(found) == b"no headers at all"


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"no archive of the web", "record 0, which starts at byte 0: expected 'WARC/', found b'no archive of the"),
        (record_bytes(text(4)).replace(b"Content-Length", b"Content-Lingth"), "one Content-Length, found none"),
        (record_bytes(text(4)).replace(b"Content-Length: ", b"Content-Length: x"), "one Content-Length, found x"),
        (record_bytes(text(4)).replace(b"Content-Length", b"Content-Length: 5\r\ncontent-length"), "found 5, "),
        (record_bytes(text(4)).replace(b"\r\n", b"\n"), "record 0, .*end with CR LF, found LF alone after b'WARC/1.1'"),
        (record_bytes(page(4)).replace(b"\r\n", b"\n", 9), "end with CR LF, found LF alone"),
        (record_bytes(text(4)).replace(b"\r\nContent-L", b"\nContent-L"), "found LF alone after b'Content-Type: text"),
        (record_bytes(text(4)).replace(b"Content-Length: ", b"Content-Length: 1"), "is cut off"),
        (record_bytes(text(4))[:-4] + b"abcd", "expected an empty line after its"),
        (record_bytes(text(4)) + record_bytes(text(5))[:-3], "record 1, which starts at byte"),
        (b"WARC/1.0\r\n" + b"a: b\r\n" * 200_000, "headers of at most 1,048,576 bytes"),
    ],
)
def test_what_is_no_warc(tmp_path: Path, data: bytes, found: str) -> None:
    path = tmp_path / "a.warc"
    path.write_bytes(data)
    with pytest.raises((RecordError, ArchiveError), match=found) as raised:
        WarcFormat().build_index(str(path))
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("suffix", [".warc", ".warc.gz"])
def test_the_damaged_record_is_named_wherever_it_is(tmp_path: Path, suffix: str) -> None:
    parts = [record_bytes(record) for record in records(20_000)]
    place = sum(map(len, parts[:15_000]))
    parts[15_000] = parts[15_000].replace(b"Content-Length", b"Content-Lingth")
    path = tmp_path / f"a{suffix}"
    path.write_bytes(b"".join(parts) if suffix == ".warc" else gzip.compress(b"".join(parts), 1, mtime=0))
    content = "" if suffix == ".warc" else " of the decompressed data"
    with pytest.raises(RecordError, match=f"record 15000, which starts at byte {place}{content}: expected headers"):
        build_index(str(path))


@pytest.mark.slow
def test_damaged_archives_give_typed_errors() -> None:
    whole = b"".join(map(record_bytes, records(30)))
    chance = random.Random(5)
    failed = 0
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.choice(b"\r\n:/\0 9A\xff")
        try:
            split_source(bytes(data), "a.warc")
        except LedgerbeamError:
            failed += 1
    assert failed > 300


def test_nothing_else_is_written() -> None:
    for record in (1, {}, {"headers": {}, "payload": "text"}, {"headers": {"a": "b\r\nc"}, "payload": b""}):
        with pytest.raises(RecordError, match=r"record 0: .*expected"):
            WarcFormat().encode([record])


def test_the_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "fastwarc.warc", None)
    with pytest.raises(UsageError, match=r"pip install .*\[warc\]'"):
        split_source(record_bytes(text(1)), "a.warc")
