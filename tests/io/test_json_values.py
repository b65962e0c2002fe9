"""Lossless JSON at every place that decodes or encodes records, and conversions of records between formats."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import gzip
import json
import math
import random
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerbeam.errors import RecordError
from ledgerbeam.io import JsonlReader, Sample, encode_jsonl, write_index
from ledgerbeam.io.conversion import to_json, to_sample
from ledgerbeam.io.datasets.megatron.format import Document, to_document
from ledgerbeam.io.datasets.shar.format import cut_sample, sample_cut
from ledgerbeam.io.datasets.shar.reader import split_cut
from ledgerbeam.io.datasets.shar.writer import SharWriter
from ledgerbeam.io.formats.format import StreamSpan
from ledgerbeam.io.formats.streamed import SpanReader
from ledgerbeam.io.index.file import IndexFile
from ledgerbeam.io.index.newlines import build_jsonl_index
from ledgerbeam.io.json_values import dumps, json_form, loads, require_finite
from ledgerbeam.io.lines.formats import JsonlFormat
from ledgerbeam.io.lines.jsonl import JsonLinesBuilder, stream_records
from ledgerbeam.io.tar.sample import TEXT_EXTENSIONS, json_bytes, text_or_json
from tests.cases import each

EDGES = [2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**18, 10**19, 10**20, -(10**19), 2**1000]


@each("number", EDGES)
@each("pad", range(7))
def test_integers_are_read_and_written_as_they_are_wherever_they_stand(number: int, pad: int) -> None:
    line = b'{"%s":[%d,{"n":%d}]}' % (b"x" * pad, number, number)
    value = loads(line)
    assert value == {"x" * pad: [number, {"n": number}]}
    assert all(type(part) is int for part in (value["x" * pad][0], value["x" * pad][1]["n"]))
    assert dumps(value) == line


def test_any_value_is_read_as_the_standard_library_reads_it() -> None:
    chance = random.Random(7)

    def value(depth: int) -> Any:
        kind = chance.randrange(8 if depth else 6)
        if kind == 0:
            return chance.randrange(-(10 ** chance.randrange(1, 60)), 10 ** chance.randrange(1, 60))
        if kind == 1:
            return chance.choice([0.1, 1e300, 5e-324, -0.0, 1e22, 0.00012345678901234567, chance.random()])
        if kind == 2:
            return "".join(chance.choice('0123456789"\\é\n-.') for _ in range(chance.randrange(50)))
        if kind < 6:
            return chance.choice([None, True, False, "12345678901234567890123"])
        parts = [value(depth - 1) for _ in range(chance.randrange(4))]
        return parts if kind == 6 else {f"k{number}": part for number, part in enumerate(parts)}

    for _ in range(3000):
        expected = value(3)
        for text in (json.dumps(expected), json.dumps(expected, ensure_ascii=False, separators=(",", ":"))):
            found = loads(text.encode())
            assert (found, repr(found)) == (expected, repr(expected))
        assert loads(dumps(expected)) == expected


@pytest.mark.parametrize(
    "text", [b"0.1234567890123456789", b"[0.00012345678901234567, 1e-19]", b"12345678901234567890.5"]
)
def test_floats_with_more_digits_than_a_double_holds_are_doubles(text: bytes) -> None:
    assert loads(text) == json.loads(text)


@each("text", [b"1e400", b"NaN", b'"\\ud800"', b"9" * 400, b"[-Infinity, 12345678901234567890]"])
def test_what_cannot_be_held_is_refused_beside_wide_integers_too(text: bytes) -> None:
    for line in (text, b"[%s, 123456789012345678901]" % text):
        with pytest.raises(orjson.JSONDecodeError):
            loads(line)


def test_wide_integers_nested_too_deeply_are_refused() -> None:
    with pytest.raises(orjson.JSONDecodeError, match="nested"):
        loads(b"[" * 1020 + b"%d" % 2**70 + b"]" * 1020)


@pytest.mark.parametrize("inner", [1, 2**70])
def test_what_is_nested_too_deeply_to_be_written_is_refused_with_the_remedy(inner: int) -> None:
    def nested(times: int) -> Any:
        value: Any = inner
        for _ in range(times):
            value = [value]
        return value

    assert loads(json_bytes(nested(254))) == nested(254)
    with pytest.raises(RecordError, match=r"nested more than 254 times; .* with a function"):
        json_bytes(nested(255))
    with pytest.raises(RecordError, match=r"nested more than 254 times; return .* nested at most 254 times"):
        JsonLinesBuilder().add(nested(255))
    with pytest.raises(RecordError, match="nested more than 254 times"):
        json_bytes(nested(100_000))


def test_integers_that_no_double_comes_near_are_refused() -> None:
    with pytest.raises(TypeError, match="integer"):
        dumps({"n": 10**400})


WIDE = [{"n": 2**70, "text": f"line {number}"} for number in range(50)]
PLAIN = [{"n": number, "text": "a line"} for number in range(50)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "wide.jsonl"
    path.write_bytes(encode_jsonl(PLAIN + WIDE)[0])
    write_index(f"{path}.idx", build_jsonl_index(str(path)))
    return path


def test_every_way_of_reading_a_source_gives_the_same_integers(source: Path) -> None:
    every = PLAIN + WIDE
    data = source.read_bytes()
    with JsonlReader(str(source)) as reader:
        assert list(reader) == every
        assert [reader[number] for number in range(100)] == every
        assert reader[-1] == every[-1]
        assert reader.read_many(list(range(99, -1, -1))) == every[::-1]
        assert reader.read_many([3, 60]) == [every[3], every[60]]
        assert reader.read_span(40, 60) == every[40:60]
    with JsonlReader(str(source), IndexFile(f"{source}.idx", source=str(source))) as fresh:
        assert fresh.read_many([70]) == [WIDE[20]]
    assert JsonlFormat().split(data, "x") == every
    assert list(stream_records(str(source))) == every
    packed = source.with_suffix(".jsonl.gz")
    packed.write_bytes(gzip.compress(data))
    assert list(stream_records(str(packed))) == every
    with SpanReader(str(packed)) as stream:
        assert stream.read(StreamSpan(0, 100, 0, len(data))) == every


@dataclasses.dataclass
class Scores:
    best: float
    name: str | None = None


NOT_FINITE = [
    (math.nan, "the value is nan"),
    ({"a": None, "scores": [1.0, {"best": math.inf}]}, r"scores\[1\]\.best is inf"),
    ({"scores": Scores(-math.inf)}, r"scores\.best is -inf"),
    ([[None, math.nan]], r"\[0\]\[1\] is nan"),
    ({"wide": 2**70, "a": math.nan}, "a is nan"),
]


@dataclasses.dataclass(slots=True)
class Compact:
    left: float
    _hidden: float = math.nan
    kind: ClassVar[float] = math.nan


@dataclasses.dataclass
class Wider(Compact):
    right: float = 1.5


@dataclasses.dataclass(slots=True)
class Narrow(Scores):
    right: float = 2.5


class Color(enum.Enum):
    RED = "r"
    BLUE = Compact(1.0)


def with_more(value: Any) -> Any:
    """Set an attribute that no field declares."""
    value.more = 3.5
    value._less = math.nan
    return value


@pytest.mark.parametrize(
    "value",
    [
        Compact(1.0),
        Wider(1.0),
        with_more(Wider(1.0)),
        with_more(Scores(1.0)),
        Narrow(1.0),
        with_more(Narrow(1.0)),
        [Color.RED, Color.BLUE],
        [UUID(int=7), dt.datetime(2024, 5, 6, tzinfo=dt.UTC), dt.time(1, 2), Decimal("1.5"), b"x"],
    ],
    ids=repr,
)
def test_what_orjson_writes_is_what_is_looked_at_and_what_the_standard_library_writes(value: Any) -> None:
    written = orjson.loads(dumps(value))
    assert json.loads(json.dumps(value, default=json_form)) == written

    def break_each(part: Any) -> Iterator[None]:
        """Make each float of a value NaN, one after the other."""
        if dataclasses.is_dataclass(part):
            names = vars(part) if hasattr(part, "__dict__") else [field.name for field in dataclasses.fields(part)]
            for name in [name for name in names if not name.startswith("_") and isinstance(getattr(part, name), float)]:
                whole = getattr(part, name)
                setattr(part, name, math.nan)
                yield
                setattr(part, name, whole)

    for _ in break_each(value):
        if orjson.loads(orjson.dumps(value)) != written:
            with pytest.raises(RecordError, match="is nan, which JSON does not have"):
                dumps(value)


@each(("value", "expected"), NOT_FINITE)
def test_nan_and_infinities_are_refused_with_their_place(value: Any, expected: str) -> None:
    with pytest.raises(RecordError, match=expected):
        dumps(value)
    with pytest.raises(RecordError, match=f"output record 2: {expected}"):
        encode_jsonl([1, None, value])


@each("value", [value for value, _ in NOT_FINITE])
def test_nan_and_infinities_are_written_as_null_and_counted_if_asked_for(value: Any) -> None:
    lines = JsonLinesBuilder(nan="null")
    for record in (value, {"x": None}, value):
        lines.add(record)
    assert lines.finish().nulled == 2
    assert lines.finish().data.count(b"null") >= 2


def test_what_became_null_is_counted_of_all_lines_that_were_encoded_before() -> None:
    lines = JsonLinesBuilder(nan="null")
    for value in ([math.nan], [math.inf, 1.0, math.nan], [1]):
        lines.append(*lines.encode(value))
    assert lines.finish().nulled == 3


@pytest.mark.parametrize(
    "value", [None, {"a": None, "b": "null \x7f\xff", "c": -1, "d": 0xFFFF, "e": 1e308, "f": 5e-324}, [None, -1.7e308]]
)
def test_nulls_that_are_meant_are_written(value: Any) -> None:
    assert loads(dumps(value)) == value
    assert require_finite(value) == 0


def test_a_value_that_is_changed_after_it_was_added_stays_as_it_was() -> None:
    lines, value = JsonLinesBuilder(), {"n": 0}
    for number in range(2500):
        value["n"] = number
        lines.add(value)
    found = lines.finish()
    assert [record["n"] for record in found] == list(range(2500))
    assert (found[-1], found[10:12]) == ({"n": 2499}, [{"n": 10}, {"n": 11}])
    assert encode_jsonl(found)[0] is found.data


def test_conversions_keep_integers_and_refuse_nan() -> None:
    assert to_sample({"n": 2**70}) == [{"json": b'{"n":%d}' % 2**70}]
    assert text_or_json("json", b"[%d]" % 2**70) == [2**70]
    assert to_sample({"__key__": "k", "a.json": 2**70}) == [Sample("k", {"a.json": b"%d" % 2**70})]
    assert to_document(Sample("k", {"json": b'{"tokens": [%d]}' % 2**64}))[0].tokens == [2**64]
    for value in ({"n": math.nan}, {"__key__": "k", "a.json": {"n": math.nan}}):
        with pytest.raises(RecordError, match="n is nan"):
            to_sample(value)


def test_cuts_keep_integers_and_refuse_nan(tmp_path: Path) -> None:
    cut = {"id": "c", "start": 0, "duration": 1.0, "type": "MonoCut", "custom": {"n": 2**70}}
    sample = cut_sample(cut, {"label": 2**70}, "x")
    assert sample_cut(sample, {"label": "label.json"}) == {**cut, "label": 2**70}
    manifest = b'{"n":%d}' % 2**70
    row, _ = split_cut({"id": "c", "recording": {"wav": b"x", "json": manifest}}, {"recording": "tar"}, 0)
    assert row["recording"] == {"n": 2**70}
    with pytest.raises(RecordError, match="duration is nan"):
        cut_sample({"id": "c", "duration": math.nan}, {}, "x")
    with pytest.raises(RecordError, match=r"duration is inf"), SharWriter(str(tmp_path / "shar"), {}) as writer:
        writer.write({"id": "c", "duration": math.inf})


EXTENSIONS = st.sampled_from(["wav", "txt", "left.txt", "json", "meta.json", "JSON", *sorted(TEXT_EXTENSIONS)])
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False).filter(math.isfinite)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.just("__base64__"), inner, max_size=3),
    max_leaves=6,
)
CONTENTS = st.binary(max_size=20) | st.text(max_size=9).map(str.encode) | JSON.map(orjson.dumps)


@given(st.text(min_size=1), st.dictionaries(EXTENSIONS, CONTENTS, min_size=1))
def test_a_sample_is_the_same_after_json(key: str, members: dict[str, bytes]) -> None:
    (value,) = to_json(Sample(key, members))
    (sample,) = to_sample(orjson.loads(orjson.dumps(value)))
    assert sample.key == key
    assert list(sample) == list(members)
    for extension, content in members.items():
        if sample[extension] != content:  # only the spaces in JSON may differ
            assert extension.lower().endswith("json")
            assert orjson.loads(sample[extension]) == orjson.loads(content)


@given(JSON)
def test_a_value_is_the_same_after_a_sample(value: Any) -> None:
    (sample,) = to_sample(value)
    assert orjson.loads(sample["json"]) == value


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), max_size=3), st.booleans())
def test_a_document_is_the_same_after_json_and_after_a_sample(sequences: list[list[int]], with_modes: bool) -> None:
    tokens = np.array([token for sequence in sequences for token in sequence], np.int32)
    modes = list(range(len(sequences))) if with_modes else None
    document = Document(tokens, [len(sequence) for sequence in sequences], modes)
    (value,) = to_json(document)
    (sample,) = to_sample(document)
    for record in (document, value, Sample("k", sample), to_json(Sample("k", sample))[0]):
        (found,) = to_document(record)
        assert found.as_json() == document.as_json()


def test_lists_and_null_are_one_record() -> None:
    assert to_json(None) == [None]
    assert to_json([1, 2]) == [[1, 2]]


@each(
    "record",
    [
        *({"__key__": "a", "txt": 3}, {"__key__": "a", "wav": {"__base64__": "%"}}, {"__key__": 3, "txt": "a"}),
        *({"__key__": "a", "wav": {"__base64__": 3}}, {"__key__": "a", "wav": {"__base64__": "", "more": 1}}),
    ],
)
def test_what_no_member_can_hold_is_refused(record: dict[str, Any]) -> None:
    with pytest.raises(RecordError):
        to_sample(record)


@each(
    "record",
    [
        *(None, [1], {"tokens": 3}, {"text": "a"}, {"tokens": [1], "lengths": 1}, {"tokens": [1], "modes": "a"}),
        *(Sample("a", {"txt": b"a"}), Sample("a", {"json": b"[1]"})),
    ],
)
def test_what_has_no_tokens_is_refused(record: Any) -> None:
    with pytest.raises(RecordError):
        to_document(record)


def test_a_member_that_would_take_the_place_of_the_key_is_refused() -> None:
    with pytest.raises(RecordError, match="__key__"):
        to_json(Sample("a", {"__key__": b""}))
