"""`MapRecords`: what a function may return for a record, and that every record is accounted for."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerbeam import Drop, Reject, Route
from ledgerbeam.io import JsonlFormat, ParquetFormat, Sample
from ledgerbeam.io.columns.schema import JobSchema
from ledgerbeam.io.index.reader import RawRecord
from ledgerbeam.io.lines.jsonl import JsonLines
from ledgerbeam.ledger import FailedTask, NoneTask, Source, Task
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.transforms import MapRecords
from ledgerbeam.transforms.mapping.function import ConvertRecords
from tests.cases import each

HERE = __name__


def upper(record: dict[str, str]) -> dict[str, str]:
    return {"text": record["text"].upper()}


def twice(record: Any) -> list[Any]:
    return [record, record]


def mutating(record: dict[str, Any]) -> dict[str, Any]:
    record["seen"] = record.get("seen", 0) + 1
    return record


def to_members(record: dict[str, str]) -> dict[str, Any]:
    return {"txt": record["text"].encode(), "note": "plain text"}


def task_of(records: list[Any]) -> Task:
    source = Source("/data/books.v1.jsonl", 100, "1")
    raws = [RawRecord(source.url, 10 + number, number, number + 1, b"x") for number in range(len(records))]
    return Task(source, 10, 10 + len(records), ((0, 1),), records, raw=lambda: raws)


def mapped(function: str, records: list[Any], to: str = "jsonl", **options: Any) -> Any:
    return MapRecords(f"{HERE}:{function}", to, **options)(task_of(records))


def written(function: str, records: list[Any], to: str = "jsonl", **options: Any) -> Any:
    """Return the records of what was mapped that has no route."""
    return mapped(function, records, to, **options).records.datasets[""]


def interrupted(record: Any) -> Any:
    raise KeyboardInterrupt


def test_an_interrupt_is_no_failure_of_a_task() -> None:
    with pytest.raises(KeyboardInterrupt):
        mapped("interrupted", [1])


def a_value(record: Any) -> Any:
    return "value"


def keep(record: Any) -> Any:
    return record


@dataclasses.dataclass
class Point:
    x: int


def a_point(record: Any) -> Any:
    return Point(1)


def a_fragment(record: Any) -> Any:
    return orjson.Fragment(b'{"x":1}')


def a_row(record: Any) -> Any:
    return [[1, 2]]


@each(
    ("function", "record", "result"),
    [
        ("keep", True, True),
        ("a_value", [1], "value"),
        ("a_point", {"id": 1}, {"x": 1}),
        ("a_fragment", {"id": 1}, {"x": 1}),
        ("a_row", {"id": 1}, [1, 2]),
    ],
)
def test_what_may_be_meant_as_a_record_is_one(function: str, record: Any, result: Any) -> None:
    assert list(written(function, [record])) == [result]


def test_records_are_encoded_when_they_are_made() -> None:
    records = written("upper", [{"text": "a"}, {"text": "b"}])
    assert isinstance(records, JsonLines)
    assert JsonlFormat().encode(records)[0].data is records.data


def deeply_nested(record: Any) -> Any:
    depth = 0
    while record["in"] is not None:
        record, depth = record["in"], depth + 1
    return {"depth": depth}


def test_a_record_that_is_too_deep_to_be_copied_is_mapped() -> None:
    record: Any = {"in": None}
    for _ in range(900):
        record = {"in": record}
    assert list(written("deeply_nested", [record, {"in": None}])) == [{"depth": 900}, {"depth": 0}]


def test_a_function_may_change_its_argument() -> None:
    assert list(written("mutating", [{"id": 1}])) == [{"id": 1, "seen": 1}]


def test_records_without_keys_make_samples_named_by_source_and_number() -> None:
    (sample,) = written("to_members", [{"text": "a"}], "tar")
    assert isinstance(sample, Sample)
    assert (sample.key, dict(sample)) == ("books-000000010", {"txt": b"a", "note": b"plain text"})


def test_other_formats_take_values_as_they_are() -> None:
    assert written("a_point", [1, 2], "megatron") == [Point(1), Point(1)]
    assert written("twice", [1], "megatron") == [1, 1]


def test_it_travels_to_workers_by_name() -> None:
    mapper = MapRecords(f"{HERE}:upper", "jsonl")
    mapper(task_of([{"text": "a"}]))
    again = pickle.loads(pickle.dumps(mapper))(task_of([{"text": "b"}]))
    assert list(again.records.datasets[""]) == [{"text": "B"}]


def test_a_format_is_given_as_itself_or_by_its_name() -> None:
    for to in (JsonlFormat(), "jsonl"):
        assert MapRecords(f"{HERE}:keep", to, form="arrow").output_format == "jsonl"


def test_a_result_that_fits_no_column_is_laid_to_its_record() -> None:
    columns = ParquetFormat(schema=JobSchema({"": pa.schema([("n", pa.int64())])}))
    mapper = MapRecords(f"{HERE}:keep", columns)
    failed = mapper(task_of([{"n": 0}, {"n": "one"}]))
    assert isinstance(failed, FailedTask)
    assert failed.error.startswith("/data/books.v1.jsonl, record 11: ")


def test_what_a_conversion_makes_of_a_record_is_not_compared() -> None:
    """Two documents of the same tokens are not equal."""
    found: Any = ConvertRecords("document", "megatron")(task_of([{"tokens": [1, 2]}]))
    assert [document.tokens for document in found.records.datasets[""]] == [[1, 2]]


@pytest.mark.parametrize("on_error", ["fail", "reject"])
def test_results_that_fit_columns_one_by_one_but_not_together_fail_their_task(on_error: Any) -> None:
    few = pa.dictionary(pa.int8(), pa.string())
    columns: Any = ParquetFormat(schema=JobSchema({"": pa.schema([("n", few)])}))
    failed = mapped("keep", [{"n": f"{number}"} for number in range(129)], columns, on_error=on_error)
    assert isinstance(failed, FailedTask)
    assert failed.reason == "RecordError"
    assert failed.error.startswith("/data/books.v1.jsonl")
    assert "fit the schema one by one, but not together" in failed.error
    assert failed.error.endswith("Use a smaller --task-bytes or wider types in --schema")


def given_by(record: Any) -> Any:
    return _made(record["return"])


def given_in_batches(records: list[Any]) -> list[Any]:
    return [given_by(record) for record in records]


def _made(name: Any) -> Any:
    return [RESULTS[one] for one in name] if isinstance(name, list) else RESULTS[name]


RESULTS: dict[str, Any] = {
    "record": {"n": 1},
    "none": None,
    "empty": [],
    "two": [{"n": 1}, {"n": 2}],
    "short": Drop("too short"),
    "long": Drop("too long"),
    "english": Route("en", {"n": 3}),
    "german": Route("de", [{"n": 4}, {"n": 5}]),
    "nothing german": Route("de", []),
    "broken": Reject("no text", "it has none"),
    "true": True,
    "text": "text",
    "tuple": ({"n": 1},),
    "set": {1},
    "object": object(),
    "no json": {"n": object()},
    "nan": {"n": float("nan")},
    "route of none": Route("en", None),
    "route of a drop": Route("en", Drop("x")),
    "route in a route": Route("en", Route("de", {})),
    "bad route": Route("../en", {}),
    "hidden route": Route("_rejects", {}),
    "route without a name": Route("", {}),
    "route of a number": Route(1, {}),  # type: ignore[arg-type]
    "drop without a reason": Drop(""),
    "drop of a number": Drop(1),  # type: ignore[arg-type]
    "surrogate": Drop("\ud800"),
    "error of a number": Reject("x", 1),  # type: ignore[arg-type]
}
GOOD = ["record", "none", "empty", "two", "short", "long", "english", "german", "nothing german"]
IN_LISTS = ["record", "english", "german"]


def outcome(records: list[Any], to: str = "jsonl", function: str = "given_by", **options: Any) -> Any:
    return mapped(function, records, to, **options)


def counts_of(found: Any) -> RecordCounts:
    counts = found.counts if isinstance(found, NoneTask) else found.records.counts
    assert isinstance(counts, RecordCounts)
    return counts


def returning(*names: Any) -> list[Any]:
    return [{"return": name} for name in names]


def test_each_kind_of_result_is_counted_and_goes_its_way() -> None:
    results = outcome(returning(*GOOD, ["record", "german", "english"])).records
    assert results.counts == RecordCounts(
        10, 5, {"returned nothing": 3, "too short": 1, "too long": 1}, {}, {"": 4, "en": 2, "de": 4}
    )
    assert {route: list(records) for route, records in results.datasets.items()} == {
        "": [{"n": 1}, {"n": 1}, {"n": 2}, {"n": 1}],
        "en": [{"n": 3}, {"n": 3}],
        "de": [{"n": 4}, {"n": 5}, {"n": 4}, {"n": 5}],
    }
    assert not results.rejects


def test_a_task_of_which_nothing_is_written_has_counts_all_the_same() -> None:
    found = outcome(returning("none", "short"))
    assert isinstance(found, NoneTask)
    assert found.counts == RecordCounts(2, 0, {"returned nothing": 1, "too short": 1})
    assert outcome([]).counts == RecordCounts()


def test_a_task_without_a_drop_has_plain_counts() -> None:
    assert outcome(returning("record", "record")).records.counts == RecordCounts.plain(2)


@each("name", [name for name in RESULTS if name not in (*GOOD, "broken")])
def test_what_is_no_result_is_a_mistake_that_is_named_or_a_rejected_record(name: str) -> None:
    failed = outcome(returning(name))
    assert isinstance(failed, FailedTask)
    assert failed.reason in ("FunctionError", "RecordError")
    assert "record 10: " in failed.error
    rejected = outcome(returning("record", name, "record"), on_error="reject").records
    assert rejected.counts == RecordCounts(3, 2, {}, {failed.reason: 1}, {"": 2})


def test_nothing_of_a_rejected_record_is_written() -> None:
    results = outcome(returning(["record", "no json"], ["english", "nan"]), on_error="reject").records
    assert (dict(results.datasets), results.counts.rejected) == ({}, {"RecordError": 2})
    nulled = outcome(returning("nan", ["nan", "no json"]), on_error="reject", nan="null").records
    assert nulled.datasets[""].nulled == 1


def a_broken_line(record: Any) -> Any:
    return orjson.Fragment(b'{\n"a": 1}') if record["broken"] else record


def test_a_line_that_is_none_is_laid_to_its_record() -> None:
    results = mapped("a_broken_line", [{"broken": False}, {"broken": True}], on_error="reject").records
    assert results.counts.rejected == {"RecordError": 1}


def routed_samples(record: Any) -> Any:
    return [Route("en", {"txt": b"x"}), Route("de", {"txt": b"y"})]


def one_route(record: Any) -> Any:
    return Route("en", record)


def test_samples_of_routes_have_keys_of_their_own() -> None:
    sample = Sample("k7", {"txt": b"a"})
    found = outcome([sample], "tar", "routed_samples").records.datasets
    assert {route: [one.key for one in samples] for route, samples in found.items()} == {"en": ["k7-0"], "de": ["k7-1"]}
    assert [one.key for one in outcome([sample], "tar", "one_route").records.datasets["en"]] == ["k7"]


_NAMES = st.sampled_from(sorted(RESULTS))


@given(
    names=st.lists(_NAMES | st.lists(_NAMES, max_size=3), max_size=30),
    batch=st.none() | st.integers(1, 7),
    nan=st.sampled_from(["refuse", "null"]),
)
def test_every_record_is_accounted_for_whatever_is_returned(names: list[Any], batch: int | None, nan: Any) -> None:
    function = "given_by" if batch is None else "given_in_batches"
    options = {"function": function, "batch": batch, "nan": nan}
    found = outcome(returning(*names), on_error="reject", **options)
    counts = counts_of(found)
    assert counts.read == len(names)  # and RecordCounts itself holds that it adds up
    if isinstance(found, NoneTask):
        assert (counts.kept, counts.written, counts.rejected) == (0, {}, {})
        return
    written = {route: len(records) for route, records in found.records.datasets.items()}
    assert counts.written == written
    assert 0 not in written.values()
    positions = [row.rejection.position for row in found.records.rejects]
    assert positions == sorted(set(positions))
    assert len(positions) == sum(counts.rejected.values())
    strict = outcome(returning(*names), on_error="fail", **options)
    assert isinstance(strict, FailedTask) == bool(positions)
    if not positions:
        assert strict.records.counts == counts
