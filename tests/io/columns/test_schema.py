"""Schemas as JSON and as parameters of a job, without loss, and the common schema of a job's sources."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from ledgerbeam.errors import RecordError, UsageError
from ledgerbeam.io.columns.schema import JobSchema, common_schema, schema_json, schema_of
from ledgerbeam.io.columns.values import absent_field, exact_schema, null_is_absent, value_schema
from tests.cases import each
from tests.io.columns.tables import arrow_bytes, parquet_bytes

TYPES = [
    pa.null(),
    pa.bool_(),
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64()),
    *(pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(5)),
    *(pa.decimal32(5, 2), pa.decimal64(12, -3), pa.decimal128(20, 2), pa.decimal256(60, 10)),
    *(pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.timestamp("s"), pa.timestamp("ms", "UTC"), pa.timestamp("us", "+02:00"), pa.timestamp("ns", "Europe/Berlin")),
    *(pa.duration("s"), pa.duration("ns"), pa.month_day_nano_interval()),
    pa.list_(pa.int8()),
    pa.list_(pa.field("element", pa.int8(), nullable=False)),
    pa.large_list(pa.field("x", pa.string(), metadata={"k": "v"})),
    pa.list_(pa.list_(pa.int8()), 3),
    pa.list_view(pa.int8()),
    pa.large_list_view(pa.int8()),
    pa.struct([]),
    pa.struct([pa.field("b", pa.int8(), nullable=False), absent_field(pa.field("a", pa.struct([("c", pa.json_())])))]),
    pa.map_(pa.string(), pa.field("value", pa.int8(), nullable=False)),
    pa.map_(pa.int64(), pa.string(), keys_sorted=True),
    pa.dictionary(pa.int16(), pa.large_string(), ordered=True),
    pa.dictionary(pa.uint8(), pa.decimal128(4, 1)),
    *(pa.json_(), pa.json_(pa.large_string()), pa.uuid(), pa.bool8()),
    pa.fixed_shape_tensor(pa.float32(), [2, 3]),
    pa.run_end_encoded(pa.int32(), pa.string()),
    pa.dense_union([pa.field("x", pa.int64())]),
]


@each("kind", TYPES, ids=str)
def test_a_type_is_the_same_again_from_json(kind: pa.DataType) -> None:
    schema = pa.schema(
        [pa.field("a b", kind), pa.field("z", pa.int8()), pa.field("", kind, nullable=pa.types.is_null(kind))]
    )
    text = json.dumps(schema_json(schema))
    assert schema_of(json.loads(text)).equals(schema, check_metadata=True)
    kept = json.loads(json.dumps(JobSchema({"": schema}).parameters(), sort_keys=True))
    again = JobSchema.recorded(kept)
    assert again is not None
    assert again.of().equals(schema, check_metadata=True)


def test_the_json_of_a_schema_is_for_people() -> None:
    schema = exact_schema(
        [
            pa.field("text", pa.string()),
            pa.field("score", pa.float64(), nullable=False),
            absent_field(pa.field("tags", pa.list_(pa.field("element", pa.string())))),
            pa.field("any", pa.json_()),
        ]
    ).with_metadata({**exact_schema([]).metadata, b"author": b"me", b"raw": b"\xff"})
    assert schema_json(schema) == {
        "columns": {
            "text": "string",
            "score": {"type": "double", "nullable": False},
            "tags": {"type": "list", "items": "string", "null": "absent"},
            "any": "json",
        },
        "keys": "exact",
        "metadata": {"author": "me", "raw": {"__base64__": "/w=="}},
    }
    assert schema_of(schema_json(schema)).equals(schema, check_metadata=True)


@each(
    ("found", "message"),
    [
        ([], "expected a JSON object"),
        ({}, "columns"),
        ({"columns": {}}, "columns"),
        ({"columns": {"a": "strnig"}}, "column 'a': expected the name of a type such as string.*found 'strnig'"),
        ({"columns": {"a": 5}}, "column 'a': expected the name of a type"),
        ({"columns": {"a": {"type": "list"}}}, "column 'a': expected 'items' for the type list"),
        ({"columns": {"a": {"type": "list", "items": "x"}}}, r"column 'a'\[\]: expected the name of a type"),
        ({"columns": {"a": {"type": "string", "nulable": True}}}, "column 'a': unknown 'nulable'"),
        ({"columns": {"a": {"type": "string", "nullable": 1}}}, "column 'a': expected true or false"),
        ({"columns": {"a": {"type": "null", "nullable": False}}}, "column 'a': expected a column of nulls"),
        ({"columns": {"a": {"type": "string", "null": "missing"}}}, "column 'a': expected 'absent' under 'null'"),
        ({"columns": {"a": {"type": "string", "metadata": {"x": 1}}}}, "column 'a': expected strings as metadata"),
        ({"columns": {"a": {"type": "struct", "fields": {"b": "x"}}}}, r"column 'a'\.b: expected the name of a type"),
        ({"columns": {"a": "decimal128(90, 1)"}}, "column 'a': expected the name of a type"),
        ({"columns": {"a": "string"}, "colunms": {}}, "unknown 'colunms'"),
        ({"columns": {"a": "string"}, "routes": []}, "expected an object of schemas under 'routes'"),
        ({"routes": {"r": {"columns": {"a": "x"}}}}, "route 'r': column 'a'"),
    ],
)
def test_a_json_schema_that_is_none_is_refused_by_its_place(found: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        JobSchema.given(json.dumps(found).encode(), "s.json")


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="two of the name 'a'"):
        schema_json(pa.schema([("a", pa.int8()), ("a", pa.int8())]))


def test_a_file_gives_the_schema_of_its_rows() -> None:
    table = pa.table({"a": [1]})
    for data in (parquet_bytes(table), arrow_bytes(table)):
        given = JobSchema.given(data, "x")
        assert given.of("any route").equals(table.schema)
        with pytest.raises(UsageError, match="x: "):
            JobSchema.given(data[:-20], "x")
    with pytest.raises(UsageError, match="expected a schema as `ledgerbeam schema` prints it"):
        JobSchema.given(b"message x {}", "x")


def test_a_route_has_its_own_schema_or_that_of_all() -> None:
    one, other = pa.schema([("a", pa.int8())]), value_schema(pa.field("text", pa.string()))
    inferred = JobSchema({"": one, "r": other})
    assert inferred.of("r") == other
    with pytest.raises(RecordError, match=r"the route 's', .*known routes \('r'\).*--schema"):
        inferred.of("s")
    assert JobSchema({"r": other}).of() == JobSchema({"r": other}).of("s") == other
    assert JobSchema({"r": other, "s": other}).of("t") == other
    assert JobSchema({"": one, "r": other}, others=one).of("s") == one
    with pytest.raises(RecordError, match="records without a route"):
        JobSchema({}).of()
    some = JobSchema({"": one, "r": other}, others=one)
    for schemas in (inferred, some, JobSchema({"r": other}), JobSchema({"": one}, is_of_all=True, is_exact=True)):
        assert JobSchema.from_json(json.loads(json.dumps(schemas.as_json()))).others == schemas.others
        assert JobSchema.recorded(json.loads(json.dumps(schemas.parameters()))) == schemas
        assert JobSchema.from_json(json.loads(json.dumps(schemas.as_json()))).by_route == schemas.by_route
    assert JobSchema.recorded({"function": "x"}) is None


def test_a_route_that_was_not_seen_has_what_the_others_have_in_common() -> None:
    schemas = JobSchema.inferred({"de": [{"n": 1, "text": "a"}], "fr": [{"n": 1.5, "text": "b", "score": 2}]})
    seen = schemas.of("it")
    assert {field.name: str(field.type) for field in seen} == {"n": "double", "text": "string", "score": "int64"}
    assert [field.name for field in seen if null_is_absent(field)] == ["score"]
    assert schemas.of("de").names == ["n", "text"]
    assert JobSchema.inferred({"de": [{"n": 1}], "fr": [{"n": 2}]}).others is None
    with pytest.raises(RecordError, match=r"the route 'it'.*no common schema"):
        JobSchema.inferred({"de": [{"n": b"1"}], "fr": [{"n": 2}]}).of("it")


@each(
    ("other", "message"),
    [
        (pa.schema([("a", pa.int8())]), "column 'b' is only in the first"),
        (pa.schema([("a", pa.int8()), ("b", pa.string()), ("c", pa.int8())]), "column 'c' is only in the second"),
        (pa.schema([("b", pa.string()), ("a", pa.int8())]), "the order of their columns"),
        (pa.schema([("a", pa.int8()), ("b", pa.large_string())]), "column 'b' is string and large_string"),
        (pa.schema([("a", pa.int8()), pa.field("b", pa.string(), nullable=False)]), "string and string not null"),
        (pa.schema([("a", pa.int8()), pa.field("b", pa.string(), metadata={"x": "y"})]), "with other metadata"),
        (pa.schema([("a", pa.int8()), ("b", pa.string())], {"x": "y"}), "their metadata"),
    ],
)
def test_sources_that_differ_are_named(other: pa.Schema, message: str) -> None:
    one = pa.schema([("a", pa.int8()), ("b", pa.string())])
    assert common_schema([]) is None
    assert common_schema([("x", one), ("y", one)]) == one
    with pytest.raises(UsageError, match=f"x and z have different schemas: .*{message}"):
        common_schema([("x", one), ("y", one), ("z", other)])
