"""Columns as records: every type, slices of every type, and what Python's objects do not hold."""

# ruff: noqa: DTZ001 - times without a zone

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerbeam.io import ParquetReader
from ledgerbeam.io.columns.values import FIELD_WORDS, record_json, to_records
from ledgerbeam.io.json_values import dumps
from tests.cases import each
from tests.io.columns.tables import columns, table

NANOSECONDS = 1_700_000_000_123_456_789


def plain(values: list[Any]) -> list[Any]:
    """Pairs of maps as lists."""
    return json.loads(json.dumps(values), parse_float=str)


def expected_of(name: str, column: pa.ChunkedArray) -> list[Any]:
    if name == "json":
        return [None if text is None else json.loads(text) for text in column.to_pylist()]
    if name == "map":
        return plain(column.to_pylist())
    if name == "stamp_ns":
        ticks = column.cast(pa.int64()).to_pylist()
        return [
            None
            if tick is None
            else f"2023-11-14T22:13:20.000000{tick % 1000:03d}"
            if tick % 1000
            else dt.datetime(2023, 11, 14, 22, 13, 20)
            for tick in ticks
        ]
    return column.to_pylist()


@each("name", columns(0))
@each(("start", "rows"), [(0, 12), (5, 4), (1, 0), (2, 1)])
def test_every_type_gives_the_values_that_pyarrow_gives(name: str, start: int, rows: int) -> None:
    part = pa.concat_tables([table(12, name).slice(0, 3), table(12, name).slice(3)]).slice(start, rows)
    found = [row[name] for row in to_records(part)]
    expected = expected_of(name, part.column(name))
    assert found == expected
    assert [type(value) for value in found] == [type(value) for value in expected]


def test_views_run_ends_and_unions_are_read() -> None:
    ends = pa.RunEndEncodedArray.from_arrays([2, 5], pa.array(["a", None]))
    views = pa.array([[1], None, [2, 3], [], [4]], pa.list_view(pa.int64()))
    union = pa.UnionArray.from_sparse(
        pa.array([0, 1, 0, 1, 0], pa.int8()), [pa.array([1, 2, 3, 4, 5]), pa.array(["a", "b", "c", "d", None])]
    )
    found = to_records(pa.table({"ends": ends, "views": views, "union": union}).slice(1))
    assert [row["ends"] for row in found] == ["a", None, None, None]
    assert [row["views"] for row in found] == [None, [2, 3], [], [4]]
    assert [row["union"] for row in found] == ["b", 3, "d", 5]


def test_nested_nulls_and_slices_stay_in_their_place() -> None:
    kind = pa.list_(pa.struct({"m": pa.map_(pa.string(), pa.list_(pa.json_())), "t": pa.timestamp("ns", "UTC")}))
    rows = [
        [{"m": [("a", ['{"x": 1}', None]), ("b", None)], "t": NANOSECONDS}],
        None,
        [],
        [None, {"m": None, "t": None}, {"m": [], "t": NANOSECONDS // 1000 * 1000}],
    ]
    expected = [
        [{"m": [["a", [{"x": 1}, None]], ["b", None]], "t": "2023-11-14T22:13:20.123456789+00:00"}],
        None,
        [],
        [None, {"m": None, "t": None}, {"m": [], "t": dt.datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=dt.UTC)}],
    ]
    storage = pa.list_(pa.struct({"m": pa.map_(pa.string(), pa.list_(pa.string())), "t": pa.timestamp("ns", "UTC")}))
    whole = pa.table({"x": pa.array(rows, storage).cast(kind)})
    for start in range(len(rows)):
        assert [row["x"] for row in to_records(whole.slice(start))] == expected[start:]


def test_digits_below_a_microsecond_are_kept_as_text() -> None:
    found = to_records(
        pa.table(
            {
                "stamp": pa.array([NANOSECONDS, NANOSECONDS - 789, -1], pa.timestamp("ns")),
                "time": pa.array([1, 1000, 3_600_000_000_001], pa.time64("ns")),
                "period": pa.array([1, -1, 1_000_000_000], pa.duration("ns")),
            }
        )
    )
    assert found == [
        {"stamp": "2023-11-14T22:13:20.123456789", "time": "00:00:00.000000001", "period": "PT0.000000001S"},
        {
            "stamp": dt.datetime(2023, 11, 14, 22, 13, 20, 123456),
            "time": dt.time(0, 0, 0, 1),
            "period": "-PT0.000000001S",
        },
        {"stamp": "1969-12-31T23:59:59.999999999", "time": "01:00:00.000000001", "period": dt.timedelta(seconds=1)},
    ]


def test_a_null_that_stands_for_an_absent_key_is_left_out() -> None:
    absent = pa.field("a", pa.int64(), metadata=dict([FIELD_WORDS["null"]]))
    inner = pa.field("b", pa.struct([absent, pa.field("c", pa.int64())]))
    schema = pa.schema([absent, inner])
    rows = [{"a": None, "b": {"a": None, "c": None}}, {"a": 1, "b": {"a": 2, "c": 3}}, {"a": None, "b": None}]
    found = to_records(pa.Table.from_pylist(rows, schema))
    assert found == [{"b": {"c": None}}, {"a": 1, "b": {"a": 2, "c": 3}}, {"b": None}]


def test_rows_without_columns_are_empty_records() -> None:
    empty = pa.Table.from_batches([pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))])
    assert to_records(empty) == [{}, {}]
    assert to_records(pa.table({"s": pa.array([{}, None], pa.struct([]))})) == [{"s": {}}, {"s": None}]


@each(
    "column",
    [
        pa.array([b"\xff"]).view(pa.string()),
        pa.array([4_000_000], pa.date32()),
        pa.array([2**60], pa.timestamp("us")),
        pa.array(["{"], pa.json_()),
        pa.array([0], pa.timestamp("us", "No/Such_Zone")),
    ],
)
def test_what_python_has_no_object_for_is_a_value_error(column: pa.Array) -> None:
    with pytest.raises((ValueError, ArithmeticError, LookupError)):
        to_records(pa.table({"x": column}))


def test_records_have_one_form_as_json() -> None:
    record = {
        "bytes": b"\xff\x00",
        "decimal": Decimal("1.50"),
        "date": dt.date(2024, 2, 29),
        "time": dt.time(1, 2, 3, 4),
        "stamp": dt.datetime(2024, 2, 29, 1, 2, 3, tzinfo=dt.UTC),
        "period": dt.timedelta(days=-1, microseconds=5),
        "wide": 2**70,
    }
    expected = {
        "bytes": {"__base64__": "/wA="},
        "decimal": "1.50",
        "date": "2024-02-29",
        "time": "01:02:03.000004",
        "stamp": "2024-02-29T01:02:03+00:00",
        "period": "-PT86399.999995S",
        "wide": 2**70,
    }
    assert json.loads(dumps(record)) == expected
    assert json.loads(record_json({"x": [float("nan"), 1.5], **record})) == {"x": ["nan", 1.5], **expected}


LEAVES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.uint8(), st.integers(0, 255)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text()),
    (pa.large_binary(), st.binary()),
    (pa.string_view(), st.text()),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), st.datetimes()),
    (pa.decimal128(10, 2), st.integers(-(10**9), 10**9).map(lambda number: Decimal(number).scaleb(-2))),
]


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def lists(of: tuple[pa.DataType, Any], make: Any) -> tuple[pa.DataType, Any]:
        return make(of[0]), st.lists(st.none() | of[1], max_size=3)

    def structs(parts: list[tuple[pa.DataType, Any]]) -> tuple[pa.DataType, Any]:
        fields = {f"f{number}": part for number, part in enumerate(parts)}
        kinds = pa.struct([(name, part[0]) for name, part in fields.items()])
        return kinds, st.fixed_dictionaries({name: st.none() | part[1] for name, part in fields.items()})

    makers = st.sampled_from([pa.list_, pa.large_list, pa.list_view])
    return st.builds(lists, inner, makers) | st.lists(inner, min_size=1, max_size=3).map(structs)


@given(st.data())
def test_any_nesting_gives_back_what_it_was_made_of(data: st.DataObject) -> None:
    kind, values = data.draw(st.recursive(st.sampled_from(LEAVES), nested, max_leaves=4))
    rows = data.draw(st.lists(st.none() | values, max_size=8))
    start = data.draw(st.integers(0, len(rows)))
    found = to_records(pa.table({"x": pa.array(rows, kind)}).slice(start))
    assert [row["x"] for row in found] == rows[start:]


@pytest.mark.parametrize(
    "nested", [pa.struct([("a", pa.json_())]), pa.list_(pa.json_()), pa.map_(pa.string(), pa.json_())]
)
def test_no_rows_of_nested_json_are_an_empty_table(tmp_path: Path, nested: pa.DataType) -> None:
    empty = pa.Table.from_batches([], pa.schema([("x", nested)]))
    pq.write_table(empty, tmp_path / "a.parquet")
    with ParquetReader(f"{tmp_path}/a.parquet") as reader:
        assert reader.read_batch(0, 0).equals(empty)
        assert reader.read_span(0, 0) == []
