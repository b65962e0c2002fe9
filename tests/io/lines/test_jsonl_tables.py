"""Lines of JSON and of text as tables: the parser is used only if its result equals the records."""

from __future__ import annotations

from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgerbeam.errors import ArchiveError, RecordError, UsageError
from ledgerbeam.io import JsonlFormat
from ledgerbeam.io.columns.tables import to_table
from ledgerbeam.io.formats.format import StreamSpan
from ledgerbeam.io.lines import jsonl_tables as tables
from ledgerbeam.io.lines.formats import TextFormat
from ledgerbeam.io.lines.jsonl_tables import JsonTables, schema_of_lines
from tests.cases import each

SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("l", pa.list_(pa.field("element", pa.float64()))),
        ("o", pa.struct([("x", pa.float64()), ("any", pa.json_())])),
        ("any", pa.json_()),
    ]
)


def parsed(data: bytes, schema: pa.Schema = SCHEMA) -> pa.Table | None:
    """Return what pyarrow's parser makes of lines, if it is used."""
    found = JsonTables(schema)._by_parser(data)
    assert found is None or isinstance(found, pa.Table)
    return found


def through_records(data: bytes, schema: pa.Schema = SCHEMA) -> pa.Table | None:
    try:
        return to_table(JsonlFormat().split(data, "/a.jsonl"), schema)
    except RecordError:
        return None


USED = [
    b'{"i":1,"f":1.5,"s":"a","b":true,"l":[1,null],"o":{"x":1},"any":null}\n',
    b'{"i":1}\n\n{"f":1}\r\n{}\n',
    b'{"s":"2020-01-01"}\n{"s":"2020-01-01T00:00:00Z"}\n',
    b'{"s":"a\\u0000b\\ud83d\\ude00"}',
    b'{"i":9223372036854775807}\n{"i":-9223372036854775808}\n',
    b'{"f":9007199254740991}\n{"f":-0}\n{"f":0.1000000000000000055511151231257827021181583404541015625}\n',
    b'{"o":null}\n{"o":{}}\n{"l":[]}\n{"l":null}\n',
    b"",
    b"\n\n",
]

NOT_USED = [
    *(b'{"f":9007199254740993}\n', b'{"l":[9007199254740993]}\n', b'{"o":{"x":9007199254740993}}\n', b'{"i":1.0}\n'),
    *(b'{"f":NaN}\n', b'{"f":Infinity}\n', b'{"f":1%s}\n' % (b"0" * 400), b'{"i":9223372036854775808}\n'),
    *(b'{"i":1,"i":2}\n', b'{"o":{"x":1,"x":2}}\n', b'{"i":1}{"i":2}\n', b'{"i":\n1}\n', b'{"i":1} x\n', b"{"),
    *(b'{"i":1}//}\n', b'\xef\xbb\xbf{"i":1}\n', b' {"i":1}\n', b"null\n", b"5\n", b"[1]\n", b'{"s":"\xff"}\n'),
    *(b'{"s":"\\udc00"}\n', b'{"s":5}\n', b'{"i":"5"}\n', b'{"b":1}\n', b'{"other":1}\n', b'{"any":{"x":1}}\n'),
    b'{"o":{"any":1}}\n',
]


@each("data", USED)
def test_what_the_parser_takes_is_what_the_records_hold(data: bytes) -> None:
    found = parsed(data)
    assert found is not None
    assert found.equals(through_records(data))
    assert found.schema == SCHEMA


@each("data", NOT_USED)
def test_what_the_parser_would_change_goes_through_the_records_or_is_refused(data: bytes) -> None:
    assert parsed(data) is None
    expected = through_records(data)
    if expected is None:
        with pytest.raises(RecordError):
            JsonTables(SCHEMA).table(data)
    else:
        assert JsonTables(SCHEMA).table(data).equals(expected)


NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70), st.integers(-3, 3), st.floats(allow_nan=False, allow_infinity=False), st.none()
)
RECORDS = st.fixed_dictionaries(
    {},
    optional={
        "i": NUMBERS,
        "f": NUMBERS,
        "s": st.one_of(st.text(), st.none(), st.integers(0, 1)),
        "b": st.one_of(st.booleans(), st.none()),
        "l": st.one_of(st.lists(NUMBERS, max_size=3), st.none()),
        "o": st.one_of(st.fixed_dictionaries({}, optional={"x": NUMBERS, "any": st.none()}), st.none()),
        "any": st.one_of(st.none(), st.integers(), st.text()),
        "other": st.none(),
    },
)


@settings(max_examples=400, deadline=None)
@given(st.lists(RECORDS, max_size=4), st.data())
def test_no_line_is_read_otherwise_than_its_record(records: list[dict[str, Any]], data: st.DataObject) -> None:
    import json

    lines = bytearray("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode())
    if lines and data.draw(st.booleans()):  # damage one byte
        at = data.draw(st.integers(0, len(lines) - 1))
        lines[at] = data.draw(st.sampled_from(b'{}[]",:\n 019eE-+.ntf\\\xff'))
    found = parsed(bytes(lines))
    if found is not None:
        assert found.equals(through_records(bytes(lines)))


def test_lines_are_parsed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "PIECE", 20)
    data = b"".join(b'{"i":%d,"s":"%s"}\n' % (number, b"x" * (number % 40)) for number in range(50))
    found = JsonTables(SCHEMA).table(data)
    assert found["i"].to_pylist() == list(range(50))
    assert found.equals(through_records(data))


def schema_json(*lines: bytes) -> str:
    return schema_of_lines([orjson.loads(line) for line in lines])


def test_a_null_and_no_key_are_one_in_the_schema_of_batches() -> None:
    schema = orjson.loads(schema_json(b'{"a":1,"n":null,"o":{"x":null,"y":1}}', b'{"a":null,"b":"t","o":null}', b"{}"))
    struct = {"type": "struct", "fields": {"x": "json", "y": "int64"}}
    assert schema == {"columns": {"a": "int64", "n": "json", "o": struct, "b": "string"}}


@pytest.mark.parametrize("line", [b"5", b'"text"', b"[1]"])
def test_lines_that_are_no_objects_have_no_columns(line: bytes) -> None:
    with pytest.raises(RecordError, match="expected lines that are objects with keys"):
        schema_json(line)


def test_what_does_not_fit_is_named_with_its_place() -> None:
    kind = JsonlFormat(schema=schema_json(b'{"i":1}'))
    data = b'{"i":1}\n\n{"i":"x"}\n{"i":2}\nbroken\n'
    with pytest.raises(RecordError, match=r"/a.jsonl: record 12, bytes \[9, 18\): field i: expected an integer.*'x'"):
        kind.split_table(data, "/a.jsonl", StreamSpan(10, 5, 0, len(data)))
    table, errors = kind.split_table_each(data, "/a.jsonl", StreamSpan(10, 5, 0, len(data)))
    assert table["i"].to_pylist() == [1, 2]
    assert list(errors) == [1, 3]
    assert "record 14" in errors[3]
    with pytest.raises(ArchiveError, match="has changed"):
        kind.split_table(data, "/a.jsonl", StreamSpan(10, 4, 0, len(data)))
    with pytest.raises(UsageError, match="need a schema"):
        JsonlFormat().split_table(data, "/a.jsonl")


@given(st.binary(max_size=60).map(lambda data: data.replace(b"\x00", b"\n")))
def test_lines_of_text_are_rows(data: bytes) -> None:
    kind = TextFormat()
    try:
        expected: list[str] | None = kind.split(data, "/a.txt")
    except RecordError:
        expected = None
    if expected is None:
        with pytest.raises(RecordError, match=r"/a.txt: record \d+"):
            kind.split_table(data, "/a.txt")
        table, errors = kind.split_table_each(data, "/a.txt")
        assert table.num_rows + len(errors) == len(kind.split_raw(data, "/a.txt"))
        assert errors
    else:
        assert kind.split_table(data, "/a.txt")["text"].to_pylist() == expected
        assert kind.split_table_each(data, "/a.txt")[1] == {}
