"""Keys as bytes have the order of the keys; records become bytes, and bytes that are no record are refused."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import json
import math
import struct
from decimal import Decimal
from fractions import Fraction
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ledgerbeam.errors import RecordError, UsageError
from ledgerbeam.io.exchange.order import KeyOrder, Nulls, key_fields, key_function
from ledgerbeam.io.exchange.payloads import are_json_text, is_json_text, payload_of, record_of
from ledgerbeam.io.lines.rows import ByteRows
from ledgerbeam.io.tar.sample import Sample
from tests.cases import each

NUMBERS = st.one_of(
    st.integers(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.integers(-(2**1023), 2**1023),
    st.sampled_from([0, -0.0, 0.0, 2**53, 2**53 + 1, float(2**53), 2**64, float(2**64), -(2**53) - 1, 5e-324, -5e-324]),
)
TEXTS = st.one_of(st.text(), st.text("\0\x01a\uffff\U00010000\ud800\udfff", max_size=4))
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS, st.binary(), st.binary(max_size=2))
KEYS = st.one_of(SCALARS, st.tuples(SCALARS, SCALARS), st.tuples(TEXTS, NUMBERS, SCALARS))


def compared(one: Any, other: Any) -> int:
    return (one > other) - (one < other)


def is_nan(number: float) -> bool:
    return isinstance(number, float) and math.isnan(number)


def of_numbers(one: float, other: float) -> int:
    nans = is_nan(one), is_nan(other)
    if any(nans):
        return compared(*nans)
    return compared(exact(one), exact(other))


def exact(number: float) -> tuple[int, Fraction]:
    if isinstance(number, float) and math.isinf(number):
        return (1 if number > 0 else -1), Fraction(0)
    return 0, Fraction(number)


def rank(value: Any, nulls: Nulls) -> int:
    if value is None:
        return -1 if nulls == "first" else 9
    if isinstance(value, bool):
        return 0
    return {int: 1, float: 1, str: 2, bytes: 3}[type(value)]


def of_scalars(one: Any, other: Any, *, nulls: Nulls, sign: int) -> int:
    """The specification of the order, independent of its encoding."""
    ranks = rank(one, nulls), rank(other, nulls)
    if None in (one, other):
        return compared(*ranks)
    if ranks[0] != ranks[1]:
        return sign * compared(*ranks)
    if ranks[0] == 1:
        return sign * of_numbers(one, other)
    if ranks[0] == 2:
        return sign * compared(list(map(ord, one)), list(map(ord, other)))
    return sign * compared(one, other)


def of_keys(one: Any, other: Any, order: KeyOrder) -> int:
    sign = -1 if order.descending else 1
    for left, right in zip(*(key if isinstance(key, tuple) else (key,) for key in (one, other)), strict=False):
        if found := of_scalars(left, right, nulls=order.nulls, sign=sign):
            return found
    return 0


@given(st.lists(KEYS, min_size=2, max_size=2), st.booleans(), st.sampled_from(["first", "last"]))
def test_bytes_are_ordered_as_keys_are(keys: list[Any], descending: bool, nulls: Nulls) -> None:
    order = KeyOrder(descending, nulls)
    sizes = {len(key) if isinstance(key, tuple) else 1 for key in keys}
    encoded = [order.encode(key) for key in keys]
    if len(sizes) == 1:  # the keys of a job have one number of parts
        assert compared(*encoded) == of_keys(keys[0], keys[1], order)
    if encoded[0] != encoded[1] and len(sizes) == 1:
        assert not encoded[0].startswith(encoded[1])


@given(NUMBERS, NUMBERS, st.booleans())
def test_numbers_are_compared_exactly(one: float, other: float, descending: bool) -> None:
    order = KeyOrder(descending)
    assert compared(order.encode(one), order.encode(other)) == (-1 if descending else 1) * of_numbers(one, other)


@given(st.lists(TEXTS, max_size=8))
def test_texts_are_sorted_as_python_does(texts: list[str]) -> None:
    assert sorted(texts, key=KeyOrder().encode) == sorted(texts)


class Word(str):
    """Text of a user's type."""

    def __str__(self) -> str:
        return "printed"


class Whole(int):
    """A number of a user's type."""


class Half(float):
    """Another one."""


class Boxed:
    """No value of numpy, although it has what such a value has."""

    shape = ()

    def item(self) -> int:
        return 1


class Raw(bytes):
    """Bytes of a user's type."""


class Color(str, enum.Enum):  # noqa: UP042 - it prints otherwise than a StrEnum
    RED = "red"


class Level(enum.IntEnum):
    LOW = 3


@given(
    st.one_of(
        st.lists(st.integers(-(2**53) - 1, 2**53 + 1) | st.sampled_from([-(2**53), 2**53, 0])),
        st.lists(st.floats() | st.sampled_from([-0.0, math.nan, -math.nan])),
        st.lists(TEXTS),
        st.lists(KEYS),
    ),
    st.booleans(),
)
@example([2**53, -(2**53)], False)
@example([2**53 + 1, 0], True)
@example([-(2**53) - 1, 0], True)
@example([2**53 + 1, -(2**53) - 1], False)
@example([1, 2.0], False)
@example([1, True], False)
@example([], False)
def test_many_keys_are_encoded_as_each_is(keys: list[Any], descending: bool) -> None:
    order = KeyOrder(descending)
    assert order.encode_all(keys) == list(map(order.encode, keys))


@given(
    st.integers(0, 3).flatmap(
        lambda size: st.lists(st.binary(min_size=size, max_size=size) | st.sampled_from([b"\0" * size, b"\xff" * size]))
    )
)
def test_keys_of_one_length_are_sorted_as_python_does(keys: list[bytes]) -> None:
    assert ByteRows.of(keys).order().tolist() == sorted(range(len(keys)), key=keys.__getitem__)


@each(
    ("given", "meant"),
    [
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (Word("a"), "a"),
        (Color.RED, "red"),
        (Level.LOW, 3),
        (Decimal("1E+20"), 10**20),
        (Decimal(12), 12),
        (bytearray(b"a"), b"a"),
        (dt.date(2020, 1, 2), "2020-01-02"),
        (
            dt.datetime(2020, 1, 2, 3, tzinfo=dt.timezone(dt.timedelta(hours=2))),
            dt.datetime(2020, 1, 2, 1, tzinfo=dt.UTC),
        ),
        (Whole(2**60 + 1), 2**60 + 1),
        (Half(0.5), 0.5),
        (Raw(b"a"), b"a"),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.bytes_(b"a"), b"a"),
        (Decimal("-1E+308"), -(10**308)),
        (Decimal(10) ** 308, 10**308),
        (np.datetime64("2020-01-02"), dt.date(2020, 1, 2)),
    ],
)
def test_values_of_other_types_are_ordered_as_what_they_stand_for(given: Any, meant: Any) -> None:
    assert KeyOrder().encode(given) == KeyOrder().encode(meant)


def float_bytes(number: float) -> bytes:
    """Return how a number that is a float is written: the sign inverted, and of a negative one every bit."""
    bits = struct.pack(">d", number)
    if number < 0:
        return bytes(255 - byte for byte in bits)
    return bytes([bits[0] | 128]) + bits[1:]


@each(
    ("key", "data"),
    [
        (None, b"\xf0"),
        (False, b"\x10"),
        (True, b"\x11"),
        (0, b"\x20" + float_bytes(0.0) + b"\0"),
        (-0.0, b"\x20" + float_bytes(0.0) + b"\0"),
        (1, b"\x20" + float_bytes(1.0) + b"\0"),
        (-2.5, b"\x20" + float_bytes(-2.5) + b"\0"),
        (math.nan, b"\x20" + b"\xff" * 8 + b"\0"),
        (-math.nan, b"\x20" + b"\xff" * 8 + b"\0"),
        (math.inf, b"\x20" + float_bytes(math.inf) + b"\0"),
        (-math.inf, b"\x20" + float_bytes(-math.inf) + b"\0"),
        (2**53, b"\x20" + float_bytes(2.0**53) + b"\0"),
        (-(2**53), b"\x20" + float_bytes(-(2.0**53)) + b"\0"),
        (2**53 + 1, b"\x20" + float_bytes(2.0**53) + b"\1\1"),
        (2**53 + 3, b"\x20" + float_bytes(2.0**53 + 2) + b"\1\1"),
        (-(2**53) - 1, b"\x20" + float_bytes(-(2.0**53) - 2) + b"\1\1"),
        (2**80 + 2**20, b"\x20" + float_bytes(2.0**80) + b"\3\x10\0\0"),
        (2**80 - 1, b"\x20" + float_bytes(math.nextafter(2.0**80, 0)) + b"\4\x07\xff\xff\xff"),
        (2**1023 + 255, b"\x20" + float_bytes(2.0**1023) + b"\1\xff"),
        (2**54, b"\x20" + float_bytes(2.0**54) + b"\0"),
        (-(2**80), b"\x20" + float_bytes(-(2.0**80)) + b"\0"),
        ("", b"\x30\0\1"),
        ("a\0é", b"\x30a\0\xff\xc3\xa9\0\1"),
        ("\ud800", b"\x30\xed\xa0\x80\0\1"),
        (b"a\0\xff", b"\x38a\0\xff\xff\0\1"),
        ((), b""),
        (("a", None, True), b"\x30a\0\1\xf0\x11"),
        (dt.time(1, 2), b"\x3001:02:00\0\1"),
        (dt.datetime.fromisoformat("2020-01-02T03:00:00"), b"\x302020-01-02T03:00:00\0\1"),
        (memoryview(b"a"), b"\x38a\0\1"),
    ],
)
def test_a_key_is_written_as_its_kind_is(key: Any, data: bytes) -> None:
    """Buckets that are cut already, and run files that are written, stand on these bytes."""
    assert KeyOrder().encode(key) == data
    assert KeyOrder().encode_all([key, key]) == [data, data]
    inverted = bytes(255 - byte for byte in data)
    if b"\xf0" not in data:
        assert KeyOrder(descending=True).encode(key) == inverted
        assert KeyOrder(descending=True).encode_all([key] * 3) == [inverted] * 3


def test_null_stands_where_it_is_told_in_either_direction() -> None:
    for descending in (False, True):
        for nulls, place in (("first", 0), ("last", 3)):
            order = KeyOrder(descending, nulls)  # type: ignore[arg-type]
            keys = [1, None, b"z", True]
            assert sorted(keys, key=order.encode).index(None) == place
    assert KeyOrder(nulls="first").encode(None) == b"\x05"
    assert KeyOrder(descending=True, nulls="first").encode(None) == b"\x0f"
    assert KeyOrder(descending=True).encode(None) == b"\xfa"


def test_no_byte_of_many_numbers_is_what_was_in_memory_before() -> None:
    for count in (3, 7, 20):
        np.full((count, 10), 255, np.uint8)  # whose memory may be given to what follows
        assert KeyOrder().encode_all([1.5] * count) == [KeyOrder().encode(1.5)] * count


@each(
    ("value", "kind"),
    [
        ({"a": 1}, "an object"),
        ([1], "a list"),
        ((1, (2,)), "a list"),
        (object(), "a object"),
        *((Decimal(text), "a Decimal") for text in ("0.1", "Infinity", "NaN", "sNaN", "1E+310", "1E+999999999")),
        (Boxed(), "a Boxed"),
        (np.add, "a ufunc"),
        (np.longdouble(1), "a longdouble"),
        (np.zeros(2), "a ndarray"),
        (np.array([1]), "a ndarray"),
    ],
)
def test_what_was_found_instead_of_a_key_is_said(value: Any, kind: str) -> None:
    with pytest.raises(RecordError, match=f"found {kind}; name a value in"):
        KeyOrder().encode(value)


def test_a_number_or_a_time_beyond_what_can_be_compared_says_so() -> None:
    with pytest.raises(RecordError, match=r"at most 1\.797e\+308 as the key, found an integer of 1,025 bits"):
        KeyOrder().encode(2**1024)
    with pytest.raises(RecordError, match="as the key, found an integer of 1,027 bits"):
        KeyOrder().encode(Decimal("1E+309"))
    with pytest.raises(RecordError, match="between the years 1 and 9999 in UTC as the key, found 0001-01-01T00:00:00"):
        KeyOrder().encode(dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=2))))


def own_key(record: Any) -> Any:
    return record


@each(
    ("by", "fields"),
    [
        ("id", ("id",)),
        ("meta.url,id", ("meta.url", "id")),
        (["a,b", "c"], ("a,b", "c")),
        ("http://x", ("http://x",)),
        *((function, ()) for function in ("module:function", "package.module:Class.method", own_key)),
    ],
)
def test_names_of_fields_and_functions_as_keys(by: Any, fields: tuple[str, ...]) -> None:
    assert key_fields(by) == fields
    assert fields or key_function(by) is by


@each("by", ["", "a,,b", ["a", ""], ["a", 1]])
def test_what_is_no_name_is_refused(by: Any) -> None:
    with pytest.raises(UsageError, match="by: expected names of fields such as"):
        key_fields(by)
    with pytest.raises(UsageError, match="by: expected names of fields, found none"):
        key_function([])


# records

HEAD = b'["k",["txt",2],["cls",0],["bin",3]]'
SIZED = struct.pack("<I", len(HEAD)) + HEAD


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
        (
            Sample("k", {"txt": b"ab", "cls": b"", "bin": b"\0\1\2"}),
            b"\0" + SIZED + b"ab\0\1\2",
        ),
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
    with pytest.raises(RecordError, match=f"a value of type {type(record).__name__} cannot be written as JSON"):
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
        b"\0" + SIZED + b"ab\0\1",
        b"\0" + SIZED + b"ab\0\1\2\3",
        b"\0" + struct.pack("<I", len(HEAD) + 6) + HEAD + b"ab\0\1\2",
        b'\0\6\0\0\0["",1]',
        b"\0\1\0\0\0" + b"1",
    ],
)
def test_bytes_that_are_no_record_are_refused(payload: bytes) -> None:
    with pytest.raises(RecordError, match="expected a record, found b"):
        record_of(payload)


@each("value", [b"x", UUID(int=7), Kind.ONE, Pair(1, "é"), dt.date(2024, 5, 6), Decimal("1.5"), (1, 2)])
def test_what_stands_beside_nan_is_written_as_it_is_alone(value: Any) -> None:
    alone = json.loads(payload_of({"b": value}))["b"]
    assert record_of(payload_of({"a": math.nan, "b": value}))["b"] == alone
    assert payload_of({"a": math.nan, "b": b"x"}) == b'\x01{"a":NaN,"b":{"__base64__":"eA=="}}'


def test_what_holds_itself_or_is_nested_too_deeply_is_refused() -> None:
    around: list[Any] = [math.nan]
    around.append(around)
    deep: Any = math.nan
    for _ in range(100_000):
        deep = [deep]
    for record in (around, deep):
        with pytest.raises(RecordError):
            payload_of(record)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_json_values_come_back(value: Any) -> None:
    payload = payload_of(value)
    assert repr(record_of(payload)) == repr(value)
    if is_json_text(payload):
        assert b"\n" not in payload


@given(st.text(), st.dictionaries(st.text(), st.binary(), max_size=4))
def test_samples_come_back(key: str, members: dict[str, bytes]) -> None:
    found = record_of(payload_of(Sample(key, members)))
    assert isinstance(found, Sample)
    assert (found.key, list(found.items())) == (key, list(members.items()))
