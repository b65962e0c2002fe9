"""Results are kept as they were when they were given, are equal if they are written alike, and are refused in time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import orjson
import pyarrow as pa
import pytest

from ledgerbeam.errors import FunctionError, RecordError
from ledgerbeam.io import JsonlFormat, ParquetFormat, Sample, ShardFile
from ledgerbeam.io.columns.schema import JobSchema
from ledgerbeam.ledger import Source, Task
from ledgerbeam.transforms.mapping import collectors
from ledgerbeam.transforms.mapping.collectors import Collector, UnplacedError, as_samples, collector, table_collector
from tests.cases import each


class Own:
    """A format of the user, of numbers below ten."""

    name = "own"

    def encode(self, records: Sequence[Any]) -> list[ShardFile]:
        for record in records:
            if record["n"] > 9:
                raise RecordError(f"{record['n']} is too large")
        return [ShardFile(".own", repr([record["n"] for record in records]).encode(), len(records))]


COLUMNS = ParquetFormat(schema=JobSchema({"": pa.schema([("n", pa.float64())])}))
ROWS = [{"n": float(number)} for number in range(5)]
SAMPLES = [Sample(f"k{number}", {"txt": b"%d" % number, "x": b""}) for number in range(5)]
KINDS: dict[str, tuple[Any, list[Any]]] = {
    "lines": ("jsonl", ROWS),
    "lines of a format": (JsonlFormat(), ROWS),
    "samples": ("tar", SAMPLES),
    "values": ("megatron", ROWS),
    "columns": (COLUMNS, ROWS),
    "columns without a schema": ("parquet", ROWS),
    "own": (Own(), ROWS),
}


def made(output: Any, *, one_by_one: bool = False, placed: bool = False, **more: Any) -> Collector:
    return collector(output, more.get("nan", "refuse"), more.get("route", ""), one_by_one=one_by_one, placed=placed)


def plain(found: Any) -> list[Any]:
    """Return what was taken as values that can be compared."""
    rows = found.to_pylist() if isinstance(found, pa.Table) else list(found)
    return [(row.key, dict(row)) if isinstance(row, Sample) else row for row in rows]


@each("one_by_one", [False, True])
@each("kind", KINDS)
def test_what_is_held_and_taken_is_what_is_added(kind: str, one_by_one: bool) -> None:
    output, records = KINDS[kind]
    adding, taking = (made(output, one_by_one=one_by_one, placed=one_by_one) for _ in range(2))
    for record in records:
        adding.add(record)
        taking.take(taking.hold(record))
    assert plain(adding.finish()) == plain(taking.finish()) == plain(records)
    assert plain(made(output, one_by_one=one_by_one).finish()) == []


@each("kind", [kind for kind in KINDS if kind not in ("samples", "values")])
def test_a_result_may_be_changed_once_it_is_given(kind: str) -> None:
    output, records = KINDS[kind]
    adding, taking = made(output), made(output)
    for record in map(dict, records):
        held = taking.hold(record)
        adding.add(record)
        record["n"] = 7.0
        taking.take(held)
    assert plain(adding.finish()) == plain(taking.finish()) == records


def test_what_is_not_one_line_is_refused_at_once_or_at_the_end() -> None:
    broken = orjson.Fragment(b'{\n"n": 1}')
    at_once = made("jsonl", one_by_one=True)
    for give in (at_once.add, at_once.hold):
        with pytest.raises(RecordError, match="the result holds a line break"):
            give(broken)
    at_once.add({"n": 1})
    assert plain(at_once.finish()) == [{"n": 1}]
    at_the_end = made("jsonl")
    at_the_end.add(broken)
    with pytest.raises(RecordError, match="line break"):
        at_the_end.finish()


def test_what_is_no_number_is_null_in_lines_if_that_is_asked_for() -> None:
    for output in ("jsonl", JsonlFormat()):
        for one_by_one in (False, True):
            keeping = made(output, nan="null", one_by_one=one_by_one)
            keeping.add({"n": math.nan})
            assert plain(keeping.finish()) == [{"n": None}]
            with pytest.raises(RecordError):
                made(output, one_by_one=one_by_one).add({"n": math.nan})


def test_an_own_format_refuses_a_result_at_once_only_if_it_is_asked_one_by_one() -> None:
    with pytest.raises(RecordError, match="10 is too large"):
        made(Own(), one_by_one=True).add({"n": 10})
    with pytest.raises(RecordError, match="10 is too large"):
        made(Own(), one_by_one=True).hold({"n": 10})
    late = made(Own())
    late.add({"n": 10})
    assert late.finish() == [{"n": 10}]


def test_the_first_sample_that_no_archive_can_hold_is_told_at_the_end() -> None:
    keeping = made("tar")
    for key in ("good", "/first", "/second", "better"):
        keeping.add(Sample(key, {"txt": b"x"}))
    with pytest.raises(RecordError, match="/first"):
        keeping.finish()


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 7])
def test_columns_are_the_same_however_many_results_become_them_in_one_go(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(collectors, "ROWS_AT_ONCE", 3)
    keeping = made(COLUMNS)
    rows = [{"n": float(number)} for number in range(count)]
    for row in rows:
        keeping.add(row)
    found = keeping.finish()
    assert found.to_pylist() == rows
    assert found.schema == pa.schema([("n", pa.float64())])


@pytest.mark.parametrize(("bad", "first"), [([0], 0), ([2], 2), ([3], 3), ([4, 7], 4), ([7], 7)])
def test_the_first_result_that_fits_no_column_is_told_by_its_number(
    monkeypatch: pytest.MonkeyPatch, bad: list[int], first: int
) -> None:
    monkeypatch.setattr(collectors, "ROWS_AT_ONCE", 3)
    keeping = made(COLUMNS)
    for number in range(8):
        keeping.add({"n": f"bad {number}" if number in bad else 1.0})
    with pytest.raises(UnplacedError, match=rf"^result .*\b{first}\b.*'bad {first}'"):
        keeping.finish()


def test_columns_refuse_a_result_at_once_where_its_place_is_asked_for() -> None:
    with pytest.raises(RecordError, match="bad") as found:
        made(COLUMNS, placed=True).add({"n": "bad"})
    assert type(found.value) is RecordError
    with pytest.raises(RecordError, match="bad"):
        made(COLUMNS).hold({"n": "bad"})


def test_a_route_without_a_schema_takes_nothing() -> None:
    schemas = {"": pa.schema([("n", pa.float64())]), "de": pa.schema([("m", pa.int64())])}
    columns = ParquetFormat(schema=JobSchema(schemas))
    for keeping in (made(columns, route="en"), table_collector(columns, "refuse", "en")):
        for give in (keeping.add, keeping.hold):
            with pytest.raises(RecordError, match="no schema is known for the route 'en'"):
                give({"n": 1.0})
        assert keeping.finish() == []


def numbers(*values: Any, kind: Any = None) -> pa.Table:
    return pa.table({"n": pa.array(values, kind or pa.int32())})


@pytest.mark.parametrize("output", ["jsonl", JsonlFormat()])
def test_rows_of_tables_become_lines(output: Any) -> None:
    adding, taking = (table_collector(output, "null") for _ in range(2))
    for table in (numbers(1, 2), numbers(), numbers(3, math.nan, kind=pa.float64())):
        taking.take(taking.hold(table))
        for row in table.to_pylist():
            adding.add(row)
    assert plain(taking.finish()) == plain(adding.finish()) == [{"n": 1}, {"n": 2}, {"n": 3.0}, {"n": None}]


def test_tables_are_of_the_schema_or_of_the_widest_of_their_types() -> None:
    wide, exact = table_collector("parquet", "refuse"), table_collector(COLUMNS, "refuse")
    for keeping, kind in ((wide, pa.int64()), (exact, pa.float64())):
        keeping.add(numbers(1))
        keeping.take(keeping.hold(numbers(2, kind=pa.int64())))
        found = keeping.finish()
        assert found.to_pylist() == [{"n": 1}, {"n": 2}]
        assert found.schema.field("n").type == kind
    assert len(table_collector("parquet", "refuse").finish()) == 0


def test_tables_of_different_columns_are_refused() -> None:
    keeping = table_collector("parquet", "refuse")
    keeping.add(numbers(1))
    keeping.add(numbers("a", kind=pa.string()))
    with pytest.raises(RecordError, match="the batches of a task have different columns"):
        keeping.finish()
    with pytest.raises(RecordError, match="n"):
        table_collector(COLUMNS, "refuse").add(numbers("a", kind=pa.string()))


TASK = Task(Source("/data/in.v1/books.v2.jsonl.gz", 10, "1"), 10, 20)


@each(
    ("results", "record", "keys"),
    [
        ([{"txt": b"x"}], {}, ["books-000000013"]),
        ([{"txt": b"x"}, {"txt": b"y"}], {}, ["books-000000013-0", "books-000000013-1"]),
        ([{"txt": b"x"}], Sample("k7", {"a": b""}), ["k7"]),
        ([{"txt": b"x"}, {"__key__": 5, "txt": b"y"}], Sample("k7", {"a": b""}), ["k7-0", "5"]),
        ([Sample("k7", {"txt": b"x"}), Sample("own", {"txt": b"y"})], Sample("k7", {"a": b""}), ["k7-0", "own"]),
        ([Sample("k8", {"txt": b"x", "__key__": b"x"})], Sample("k7", {"a": b""}), ["b'x'"]),
    ],
)
def test_samples_are_named_by_themselves_by_their_record_or_by_its_place(
    results: list[Any], record: Any, keys: list[str]
) -> None:
    assert [sample.key for sample in as_samples(results, record, TASK, 3)] == keys


def test_members_of_a_sample_are_bytes_or_text() -> None:
    given = {"a": "ä", "b": b"b", "c": bytearray(b"c"), "d": memoryview(b"d"), 5: b"", "__key__": "k"}
    (sample,) = as_samples([given], {}, TASK, 0)
    assert sample == Sample("k", {"a": "ä".encode(), "b": b"b", "c": b"c", "d": b"d", "5": b""})
    assert {type(content) for content in sample.values()} == {bytes}
    for bad, said in (("text", "a mapping from extension to bytes"), ({"a": 1}, "'a': expected bytes or a string")):
        with pytest.raises(FunctionError, match=said):
            as_samples([bad], {}, TASK, 0)
