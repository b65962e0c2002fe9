"""Records as tables: values that fit the schema are written exactly, others are refused with their place."""

from __future__ import annotations

import datetime as dt
import json
import math
import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ledgerbeam.errors import RecordError, UsageError
from ledgerbeam.io.columns.format import ArrowFormat, ParquetFormat
from ledgerbeam.io.columns.infer import MOST_DEPTH, MOST_FIELDS, infer_schema
from ledgerbeam.io.columns.schema import JobSchema
from ledgerbeam.io.columns.tables import copied, to_table
from ledgerbeam.io.columns.values import to_records
from ledgerbeam.io.json_values import dumps, loads
from tests.cases import each


def at(*parts: int) -> dt.datetime:
    """Return a time without a zone."""
    return dt.datetime(*parts, tzinfo=dt.UTC).replace(tzinfo=None)  # type: ignore[misc, arg-type]


ATOMS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(2**53 - 2, 2**53 + 2)
    | st.integers(2**63 - 2, 2**64 + 2)
    | st.integers(-3, 3)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6)
)
KEYS = st.sampled_from(["a", "b", "c", ""]) | st.text(max_size=3)
VALUES = st.recursive(
    ATOMS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=10
)
RECORDS = st.lists(st.dictionaries(KEYS, VALUES, max_size=4), min_size=1, max_size=5)


def same(value: Any) -> str:
    """Return what JSON values are compared by: 1 is 1.0, keys are in any order."""

    def plain(part: Any) -> Any:
        if isinstance(part, dict):
            return {name: plain(inner) for name, inner in part.items()}
        if isinstance(part, list):
            return [plain(inner) for inner in part]
        if isinstance(part, float) and part == int(part):
            return int(part)
        return part

    return json.dumps(plain(value), sort_keys=True)


def through_files(table: pa.Table) -> list[list[Any]]:
    """Return the records of a table as they are read from a file of each format."""
    found = []
    for kind in (ParquetFormat(row_group_bytes=100, page_bytes=50), ArrowFormat(row_group_bytes=100)):
        (file,) = kind.encode(table)
        assert file.records == len(table)
        with_schema = kind.open_bytes(file.data, "x")
        assert with_schema.schema.equals(table.schema, check_metadata=True)
        found.append(list(with_schema))
    return found


@given(RECORDS | st.lists(VALUES, min_size=1, max_size=4))
@example([{"a": {}}, {"a": {"b": 1}}, {}])
@example([{"a": None}])
@example([{"a": [None, 1]}, {"a": None}])
@example([{"a": [[], [None]]}])
@example([{"a": 1}, {"a": 2.5}, {"a": 2**53}])
@example([{"a": 1}, {"a": 2.5}, {"a": 2**53 + 1}])
@example([{"a": -1}, {"a": 2**63}])
@example([None, "text"])
@example(["line", ""])
def test_json_values_become_columns_and_the_same_values_again(records: list[Any]) -> None:
    schema = infer_schema(records)
    table = to_table(records, schema)
    table.validate(full=True)
    expected = same(records)
    assert same(to_records(table)) == expected
    for found in through_files(table):
        assert same(found) == expected
    schemas = JobSchema({"": schema})
    kept = json.loads(json.dumps(schemas.parameters(), sort_keys=True))
    again = JobSchema.recorded(kept)
    assert again is not None
    assert again.of().equals(schema, check_metadata=True)
    assert JobSchema.from_json(schemas.as_json()).of().equals(schema, check_metadata=True)


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


@each(
    "records",
    [
        pytest.param([{"a": "ß" * 3_000_000}], id="long"),
        pytest.param([{"a": nested(4 * MOST_DEPTH)}], id="deep"),
        pytest.param([{"a": {f"k{number}": number}} for number in range(MOST_FIELDS + 2)], id="many keys"),
        pytest.param([{f"k{number}": number} for number in range(MOST_FIELDS + 2)], id="many columns"),
        pytest.param([{f"k{number}": number for number in range(MOST_FIELDS + 2)}], id="wide"),
    ],
)
def test_large_values_become_columns_and_the_same_values_again(records: list[Any]) -> None:
    table = to_table(records, infer_schema(records))
    assert all(found == records for found in through_files(table))


def test_an_object_of_many_different_keys_is_json_text_and_a_wide_one_has_columns() -> None:
    scattered = infer_schema([{"a": {f"k{number}": number}} for number in range(MOST_FIELDS + 2)])
    assert scattered.field("a").type == pa.json_()
    assert len(infer_schema([{f"k{number}": number for number in range(MOST_FIELDS + 2)}])) == MOST_FIELDS + 2


@each(
    ("records", "kind"),
    [
        ([{"a": True}], pa.bool_()),
        ([{"a": 1}], pa.int64()),
        ([{"a": 2**64 - 1}, {"a": 0}], pa.uint64()),
        ([{"a": 2**64}], pa.json_()),
        ([{"a": -1}, {"a": 2**63}], pa.json_()),
        ([{"a": 1}, {"a": 0.5}], pa.float64()),
        ([{"a": "x"}, {"a": b"\xff"}], pa.binary()),
        ([{"a": "x"}, {"a": 1}], pa.json_()),
        ([{"a": []}], pa.json_()),
        ([{"a": {}}], pa.json_()),
        ([{"a": [1, None]}, {"a": []}], pa.list_(pa.field("element", pa.int64()))),
        ([{"a": {"b": "x"}}], pa.struct([pa.field("b", pa.string())])),
        ([{"a": Decimal("1.25")}, {"a": Decimal(-300)}], pa.decimal128(5, 2)),
        ([{"a": Decimal("1E+40")}], pa.decimal256(41, 0)),
        ([{"a": dt.date(2026, 1, 2)}], pa.date32()),
        ([{"a": at(2026, 1, 2)}], pa.timestamp("us")),
        ([{"a": dt.datetime(2026, 1, 2, tzinfo=dt.UTC)}], pa.timestamp("us", "UTC")),
        ([{"a": dt.time(1)}], pa.time64("us")),
        ([{"a": dt.timedelta(1)}], pa.duration("us")),
        ([{"a": np.float32(0.5)}], pa.float64()),
        ([{"a": np.arange(2)}], pa.list_(pa.field("element", pa.int64()))),
    ],
)
def test_the_type_of_a_column_holds_all_of_its_values(records: list[dict[str, Any]], kind: pa.DataType) -> None:
    schema = infer_schema(records)
    assert schema.field("a").type == kind
    assert len(to_table(records, schema)) == len(records)


@each(
    "records",
    [
        [],
        [{"a": 1}, {"a": b"x"}],
        [{"a": at(2026, 1, 2)}, {"a": dt.datetime(2026, 1, 2, tzinfo=dt.UTC)}],
        [{"a": object()}],
        [{"a": Decimal("NaN")}],
        [{"a": {1: 2}}],
        [{"a": None}, {"a": b"x"}, {}],
    ],
)
def test_values_that_no_type_holds_are_refused(records: list[Any]) -> None:
    with pytest.raises(RecordError):
        infer_schema(records)


FIELDS: list[tuple[pa.Field, Any]] = [  # of every type, with a value
    (pa.field("i8", pa.int8()), -128),
    (pa.field("u64", pa.uint64()), 2**64 - 1),
    (pa.field("f32", pa.float32()), 0.5),
    (pa.field("f64", pa.float64()), -0.0),
    (pa.field("yes", pa.bool_()), True),
    (pa.field("text", pa.string(), nullable=False), "ü\0"),
    (pa.field("large", pa.large_string()), ""),
    (pa.field("raw", pa.binary()), b"\xff\0"),
    (pa.field("four", pa.binary(4)), b"abcd"),
    (pa.field("price", pa.decimal128(6, 2)), Decimal("-1234.50")),
    (pa.field("day", pa.date32()), dt.date(1, 1, 1)),
    (pa.field("naive", pa.timestamp("ms")), at(2026, 3, 4, 5, 6, 7, 8000)),
    (pa.field("zoned", pa.timestamp("us", "Europe/Berlin")), dt.datetime(2026, 3, 4, 5, 6, 7, 8, tzinfo=dt.UTC)),
    (pa.field("nanos", pa.timestamp("ns")), "2026-03-04T05:06:07.000008009"),
    (pa.field("clock", pa.time64("ns")), "23:59:59.999999999"),
    (pa.field("took", pa.duration("ns")), "-PT0.000000001S"),
    (pa.field("word", pa.dictionary(pa.int8(), pa.string())), "red"),
    (pa.field("list", pa.list_(pa.field("item", pa.int16(), nullable=False))), [1, 2]),
    (pa.field("long", pa.large_list(pa.string())), ["x", None]),
    (pa.field("pair", pa.list_(pa.int32(), 2)), [1, None]),
    (pa.field("map", pa.map_(pa.string(), pa.int64())), [["k", 1], ["l", None]]),
    (
        pa.field("struct", pa.struct([pa.field("a", pa.int64()), pa.field("b", pa.list_(pa.string()))])),
        {"a": None, "b": ["x"]},
    ),
    (pa.field("any", pa.json_()), {"x": [1, "y", None]}),
    (pa.field("id", pa.uuid()), uuid.UUID(int=7).bytes),
    (pa.field("nothing", pa.null()), None),
]
SCHEMA = pa.schema([field for field, _ in FIELDS], metadata={"author": "somebody"})
ROWS: list[dict[str, Any]] = [
    {field.name: value for field, value in FIELDS},
    {field.name: None if field.nullable else "" for field, _ in FIELDS},
]


def test_records_of_every_type_become_the_same_table_again() -> None:
    table = to_table(ROWS, SCHEMA)
    table.validate(full=True)
    records = to_records(table)
    assert to_table(records, SCHEMA).equals(table)
    assert records[0] | {"zoned": None} == ROWS[0] | {"zoned": None}
    assert records[0]["zoned"] == ROWS[0]["zoned"]
    assert records[1] == ROWS[1]
    lines = [loads(dumps(record)) for record in records]
    assert to_table(lines, SCHEMA).equals(table)


@each(
    ("name", "value"),
    [
        ("i8", 128),
        ("i8", 1.5),
        ("i8", True),
        ("i8", "1"),
        ("u64", -1),
        ("f32", 1e300),
        ("f64", 2**53 + 1),
        ("f64", "1"),
        ("f64", False),
        ("yes", 1),
        ("text", None),
        ("text", b"x"),
        ("text", 1),
        ("text", "\ud800"),
        ("raw", 1),
        ("raw", {"__base64__": "?"}),
        ("four", b"abc"),
        ("price", Decimal("1.234")),
        ("price", Decimal(10**9)),
        ("price", "one"),
        ("price", 1.5),
        ("day", at(2026, 1, 1)),
        ("day", "2026-13-01"),
        ("naive", dt.datetime(2026, 1, 1, tzinfo=dt.UTC)),
        ("naive", at(2026, 1, 1, 0, 0, 0, 1)),
        ("naive", "2026-01-01T00:00:00.000000001"),
        ("naive", 5),
        ("zoned", at(2026, 1, 1)),
        ("nanos", at(9999, 1, 1)),
        ("clock", dt.time(1, tzinfo=dt.UTC)),
        ("took", "1 s"),
        ("word", 1),
        ("list", [1, None]),
        ("list", [1, 2**15]),
        ("list", "ab"),
        ("list", {"a": 1}),
        ("pair", [1]),
        ("map", {"k": "x"}),
        ("map", {None: 1}),
        ("map", [1]),
        ("struct", {"a": 1, "c": 2}),
        ("struct", {"b": [1]}),
        ("struct", [1]),
        ("any", b"x"),
        ("any", {"x": dt.date(2026, 1, 1)}),
        ("any", math.nan),
        ("any", {1: 2}),
        ("nothing", 0),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_its_field(name: str, value: Any) -> None:
    good = ROWS[1]
    with pytest.raises(
        RecordError, match=rf"^a\.jsonl: record 13: field {name}[\w.\[\]]*: expected .+, found .+--schema"
    ):
        to_table([good, good, good, {**good, name: value}, good], SCHEMA, url="a.jsonl", first=10)


def test_a_misfit_is_named_with_its_whole_path() -> None:
    schema = infer_schema([{"a": [{"b c": {"d": 1}}]}])
    with pytest.raises(RecordError, match=r"field a\[1\]\['b c'\]\.d: expected an integer \(int64\), found str 'x'"):
        to_table([{"a": [{"b c": {"d": 1}}, {"b c": {"d": "x"}}]}], schema)


def test_a_null_is_no_absent_key_where_records_tell_them_apart() -> None:
    schema = infer_schema([{"a": 1, "b": 1}, {"a": None}])
    assert to_records(to_table([{"a": None}, {"a": 1, "b": 2}], schema)) == [{"a": None}, {"a": 1, "b": 2}]
    with pytest.raises(RecordError, match=r"field b: expected .*or no such key, found null"):
        to_table([{"a": 1, "b": None}], schema)
    with pytest.raises(RecordError, match=r"field a: expected .*, found no such key"):
        to_table([{"b": 1}], schema)
    with pytest.raises(RecordError, match=r"field c: expected a key of the schema, found another key with int 1"):
        to_table([{"a": 1, "c": 1}], schema)


def test_a_key_that_is_absent_is_null_in_a_given_schema() -> None:
    schema = pa.schema([("a", pa.int64()), pa.field("b", pa.int64(), nullable=False)])
    assert to_table([{"b": 1}], schema).to_pylist() == [{"a": None, "b": 1}]
    with pytest.raises(RecordError, match=r"field b: expected .*, found no such key"):
        to_table([{"a": 1}], schema)


def test_the_first_of_many_misfits_is_named() -> None:
    rows: list[dict[str, Any]] = [{"a": number} for number in range(1000)]
    rows[437] = rows[700] = {"a": "x"}
    with pytest.raises(RecordError, match="record 437: field a"):
        to_table(rows, pa.schema([("a", pa.int64())]))


def test_columns_are_cast_only_without_loss() -> None:
    schema = pa.schema([("a", pa.int32()), ("b", pa.string())])
    batch = pa.record_batch({"b": pa.array(["x"]).dictionary_encode(), "a": pa.array([1], pa.int64())})
    assert to_table(batch, schema).to_pylist() == [{"a": 1, "b": "x"}]
    for found in (
        {"a": pa.array([2**31]), "b": pa.array(["x"])},
        {"a": pa.array(["1"]), "b": pa.array(["x"])},
        {"a": pa.array([1.0]), "b": pa.array(["x"])},
        {"a": pa.array([1]), "b": pa.array([b"x"])},
        {"a": pa.array([1])},
        {"a": pa.array([1]), "b": pa.array(["x"]), "c": pa.array([1])},
    ):
        with pytest.raises(RecordError, match=r"rows from 0: field [abc]: expected"):
            to_table(pa.table(found), schema)
    with pytest.raises(RecordError, match="without nulls"):
        to_table(pa.table({"a": pa.array([None], pa.int64())}), pa.schema([pa.field("a", pa.int64(), nullable=False)]))


def test_a_type_without_python_values_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match=r"column 'a'.*union"):
        to_table([], pa.schema([("a", pa.dense_union([pa.field("x", pa.int64())]))]))


def test_a_copy_shares_nothing_that_can_change() -> None:
    value = {"a": [1, {"b": [2]}], "c": (3,), "d": bytearray(b"x"), "e": np.arange(2)}
    found = copied(value)
    value["a"][1]["b"].append(5)  # type: ignore[index]
    value["d"] += b"y"  # type: ignore[operator]
    assert found == {"a": [1, {"b": [2]}], "c": [3], "d": bytearray(b"x"), "e": [0, 1]}
