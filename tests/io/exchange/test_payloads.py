"""Records become bytes in run files, and bytes that are no record are an error of the data."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import json
import math
from decimal import Decimal
from struct import pack
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from ledgerbeam.errors import RecordError
from ledgerbeam.io.exchange.payloads import are_json_text, is_json_text, payload_of, record_of
from ledgerbeam.io.tar.sample import Sample
from tests.cases import each

HEAD = b'["k",["txt",2],["cls",0],["bin",3]]'


class Point:
    """A record of a user with a JSON form."""

    def as_json(self) -> Any:
        return {"x": [1, math.nan]}


class Kind(enum.Enum):
    """One of the user's."""

    ONE = "one"


@dataclasses.dataclass
class Pair:
    """A part of a record of the user's."""

    number: int
    text: str


@each(
    ("record", "payload"),
    [
        ({"a": [1, None, "é"]}, '{"a":[1,null,"é"]}'.encode()),
        (2**70, b"1180591620717411303424"),
        ({"é": math.inf, "b": [1]}, b'\x01{"\\u00e9":Infinity,"b":[1]}'),
        (Sample("k", {"txt": b"ab", "cls": b"", "bin": b"\0\1\2"}), b"\0" + pack("<I", len(HEAD)) + HEAD + b"ab\0\1\2"),
        (Sample("", {}), b'\0\4\0\0\0[""]'),
        (Sample("a\udcff", {"\udcfe": b"1"}), b'\0\x15\0\0\0[["61ff"],[["fe"],1]]1'),
    ],
)
def test_a_record_is_written_as_its_kind_is(record: Any, payload: bytes) -> None:
    assert payload_of(record) == payload
    found = record_of(payload)
    assert found == record
    assert type(found) is type(record)
    if isinstance(record, Sample):
        assert (found.key, list(found.items())) == (record.key, list(record.items()))
    is_text = payload[0] > 1
    assert is_json_text(payload) is is_text
    assert are_json_text(np.frombuffer(payload[:1], np.uint8)).tolist() == [is_text]


def test_a_record_may_say_what_it_is_as_json() -> None:
    payload = payload_of(Point())
    assert payload == b'\x01{"x":[1,NaN]}'
    assert repr(record_of(payload)) == "{'x': [1, nan]}"


@pytest.mark.parametrize("record", [object(), {"a": object()}, {"a": [math.nan, object()]}, {1, 2}])
def test_what_json_cannot_hold_is_refused(record: Any) -> None:
    with pytest.raises(RecordError, match=f"a {type(record).__name__} cannot be written as JSON"):
        payload_of(record)


@each(
    "payload",
    [
        b"",
        b"{",
        b"\x01",
        b"\x01{",
        b"\0",
        b"\0\1\0\0",
        b"\0\4\0\0\0",
        b'\0\5\0\0\0[""]',
        b'\0\3\0\0\0[""]',
        b'\0\4\0\0\0[""]x',
        b"\0" + pack("<I", len(HEAD)) + HEAD + b"ab\0\1",
        b"\0" + pack("<I", len(HEAD)) + HEAD + b"ab\0\1\2\3",
        b"\0" + pack("<I", len(HEAD) + 6) + HEAD + b"ab\0\1\2",
        b'\0\6\0\0\0["",1]',
        b"\0\1\0\0\0" + b"1",
    ],
)
def test_bytes_that_are_no_record_are_refused(payload: bytes) -> None:
    with pytest.raises(RecordError, match="expected a record, found b"):
        record_of(payload)


def test_a_sample_that_is_cut_off_says_so() -> None:
    for payload in (b"\0\1\0", b'\0\5\0\0\0[""]'):
        with pytest.raises(RecordError, match="the sample is cut off"):
            record_of(payload)
    with pytest.raises(RecordError, match="the sample has 9 bytes of 10"):
        record_of(b'\0\4\0\0\0[""]x')
    with pytest.raises(RecordError, match="expected a record, found b"):
        record_of(bytes(5))


@each("value", [b"x", UUID(int=7), Kind.ONE, Pair(1, "é"), dt.date(2024, 5, 6), Decimal("1.5"), (1, 2)])
def test_what_stands_beside_nan_is_written_as_it_is_alone(value: Any) -> None:
    alone = json.loads(payload_of({"b": value}))["b"]
    assert record_of(payload_of({"a": math.nan, "b": value}))["b"] == alone


def test_what_stands_beside_nan_is_written_as_anywhere_else() -> None:
    assert payload_of({"a": math.nan, "b": b"x"}) == b'\x01{"a":NaN,"b":{"__base64__":"eA=="}}'
    assert record_of(b'\x01{"a":NaN,"b":{"__base64__":"eA=="}}')["b"] == json.loads(payload_of({"b": b"x"}))["b"]


def test_what_holds_itself_or_is_nested_too_deeply_is_refused() -> None:
    around: list[Any] = [math.nan]
    around.append(around)
    deep: Any = math.nan
    for _ in range(100_000):
        deep = [deep]
    for record in (around, deep):
        with pytest.raises(RecordError):
            payload_of(record)
