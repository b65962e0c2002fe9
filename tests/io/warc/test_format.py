"""WARC as a format: its contract, values of records, and what is no WARC."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerbeam.errors import ArchiveError, LedgerbeamError, RecordError, UsageError
from ledgerbeam.io import RecordFormat, recognize
from ledgerbeam.io.formats.streamed import split_source
from ledgerbeam.io.formats.testing import FormatContract
from ledgerbeam.io.warc.format import WarcFormat
from ledgerbeam.io.warc.records import decoded_payload, record_bytes
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


def test_what_says_that_it_is_http_and_is_not_is_a_payload() -> None:
    record = {**page(1), "http": None, "payload": b"no headers at all"}
    (found,) = split_source(record_bytes(record), "a.warc")
    assert (found["http"], found["payload"]) == (None, b"no headers at all")


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"no archive of the web", "record 0, which begins at byte 0: expected 'WARC/', found b'no archive of the"),
        (record_bytes(text(4)).replace(b"Content-Length", b"Content-Lingth"), "one Content-Length, found 0"),
        (record_bytes(text(4)).replace(b"Content-Length: ", b"Content-Length: 1"), "is cut off"),
        (record_bytes(text(4))[:-4] + b"abcd", "expected an empty line after its"),
        (record_bytes(text(4)) + record_bytes(text(5))[:-3], "record 1, which begins at byte"),
        (b"WARC/1.0\r\n" + b"a: b\r\n" * 200_000, "headers of at most 1,048,576 bytes"),
    ],
)
def test_what_is_no_warc(tmp_path: Path, data: bytes, found: str) -> None:
    path = tmp_path / "a.warc"
    path.write_bytes(data)
    with pytest.raises((RecordError, ArchiveError), match=found) as raised:
        WarcFormat().build_index(str(path))
    assert str(path) in str(raised.value)


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
    with pytest.raises(UsageError, match=r"pip install 'ledgerbeam\[warc\]'"):
        split_source(record_bytes(text(1)), "a.warc")
