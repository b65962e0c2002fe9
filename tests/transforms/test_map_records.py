"""`MapRecords`: user functions by name, and their mistakes."""

from __future__ import annotations

import dataclasses
import itertools
import pickle
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest

from ledgerbeam.errors import FunctionError
from ledgerbeam.io import JsonlFormat, ParquetFormat, Sample
from ledgerbeam.io.columns.schema import JobSchema
from ledgerbeam.io.lines.jsonl import JsonLines
from ledgerbeam.ledger import FailedTask, NoneTask, Source, Task
from ledgerbeam.transforms import MapRecords
from ledgerbeam.transforms.mapping.function import ConvertRecords
from ledgerbeam.user_code.loading import import_function
from tests.cases import each

HERE = __name__
counter = itertools.count()


def upper(record: dict[str, str]) -> dict[str, str]:
    return {"text": record["text"].upper()}


def drop(record: Any) -> None:
    return None


def twice(record: Any) -> list[Any]:
    return [record, record]


def a_tuple(record: Any) -> Any:
    return (record, record)


def counting(record: Any) -> Any:
    return {"n": next(counter)}


def mutating(record: dict[str, Any]) -> dict[str, Any]:
    record["seen"] = record.get("seen", 0) + 1
    return record


def to_members(record: dict[str, str]) -> dict[str, Any]:
    return {"txt": record["text"].encode(), "note": "plain text"}


def not_bytes(record: Any) -> dict[str, Any]:
    return {"txt": 3}


def with_key(record: Any) -> dict[str, Any]:
    return {"__key__": "mine", "txt": b"x"}


def task_of(records: list[Any]) -> Task:
    return Task(Source("/data/books.v1.jsonl", 100, "1"), 10, 10 + len(records), ((0, 1),), records)


def mapped(function: str, records: list[Any], to: str = "jsonl", **options: Any) -> Any:
    return MapRecords(f"{HERE}:{function}", to, **options)(task_of(records))


def written(function: str, records: list[Any], to: str = "jsonl", **options: Any) -> Any:
    """Return the records of what was mapped that has no route."""
    return mapped(function, records, to, **options).records.datasets[""]


def test_records_are_mapped_in_order() -> None:
    assert list(written("upper", [{"text": "a"}, {"text": "b"}])) == [{"text": "A"}, {"text": "B"}]


def test_a_list_makes_several_records_and_none_drops() -> None:
    assert list(written("twice", [1, 2])) == [1, 1, 2, 2]
    assert isinstance(mapped("drop", [1, 2]), NoneTask)


def test_an_exception_names_record_function_and_place() -> None:
    failed = mapped("upper", [{"text": "a"}, {"txet": "b"}])
    assert isinstance(failed, FailedTask)
    assert failed.reason == "KeyError"
    assert "/data/books.v1.jsonl, record 11" in failed.error
    assert "test_map_records.py:" in failed.error


def test_a_place_is_told_no_more_exactly_than_it_is_known() -> None:
    """Blank lines before a record were left out, and the records of a pack are of several files."""
    source = Source("/data/books.v1.jsonl", 100, "1")
    mapper = MapRecords(f"{HERE}:upper", "jsonl")
    blank = Task(source, 10, 15, ((0, 1),), [{"text": "a"}, {}])
    pack = Task(Source.pack([source, Source("/data/c.jsonl", 1, "1")]), 0, 2, ((0, 1),), [{"text": "a"}, {}])
    for task in (blank, pack):
        failed = mapper(task)
        assert isinstance(failed, FailedTask)
        assert failed.error.startswith(f"{task.name}, its record 1: ")


def interrupted(record: Any) -> Any:
    raise KeyboardInterrupt


def test_an_interrupt_is_no_failure_of_a_task() -> None:
    with pytest.raises(KeyboardInterrupt):
        mapped("interrupted", [1])


def unserialisable(record: Any) -> Any:
    return {"value": object()}


def broken_line(record: Any) -> Any:
    return orjson.Fragment(b'{\n"a": 1}')


@each(
    ("function", "reason", "said"),
    [
        ("unserialisable", "RecordError", "/data/books.v1.jsonl, record 10: output record 0 (dict) cannot be written"),
        ("broken_line", "RecordError", "output record 0 holds a line break"),
        ("a_tuple", "FunctionError", f"/data/books.v1.jsonl, record 10: {HERE}:a_tuple returned a tuple: expected"),
        ("a_flag", "FunctionError", "returned a bool (True): expected"),
        ("a_numpy_flag", "FunctionError", "`return record if ... else None`"),
        ("a_value", "FunctionError", "returned a str for a record that is a dict: expected"),
        ("none_in_a_list", "FunctionError", "leave None out of a list"),
    ],
)
def test_a_mistake_is_told_by_its_own_words(function: str, reason: str, said: str) -> None:
    failed = mapped(function, [{"id": 1}])
    assert isinstance(failed, FailedTask)
    assert failed.reason == reason
    assert said in failed.error
    assert "raised" not in failed.error


def a_flag(record: Any) -> Any:
    return True


def a_numpy_flag(record: Any) -> Any:
    return np.bool_(True)


def a_value(record: Any) -> Any:
    return "value"


def none_in_a_list(record: Any) -> Any:
    return [record, None]


@dataclasses.dataclass
class Point:
    x: int


def keep(record: Any) -> Any:
    return record


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
        ("keep", "text", "text"),
        ("keep", 1, 1),
        ("a_value", 1, "value"),
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


def test_a_tuple_is_refused_rather_than_guessed() -> None:
    failed = mapped("a_tuple", [1])
    assert failed.reason == "FunctionError"
    assert "expected a record, None or a list of records" in failed.error


def test_a_function_may_change_its_argument() -> None:
    assert list(written("mutating", [{"id": 1}])) == [{"id": 1, "seen": 1}]


def test_records_without_keys_make_samples_named_by_source_and_number() -> None:
    (sample,) = written("to_members", [{"text": "a"}], "tar")
    assert isinstance(sample, Sample)
    assert (sample.key, dict(sample)) == ("books-000000010", {"txt": b"a", "note": b"plain text"})


def test_samples_keep_their_key_and_several_of_one_get_ordinals() -> None:
    sample = Sample("k7", {"txt": b"a"})
    assert [s.key for s in written("upper_members", [sample], "tar")] == ["k7"]
    assert [s.key for s in written("two_members", [sample], "tar")] == ["k7-0", "k7-1"]
    assert [s.key for s in written("twice", [sample], "tar")] == ["k7-0", "k7-1"]


def upper_members(record: Any) -> dict[str, bytes]:
    return {extension: content.upper() for extension, content in record.items()}


def two_members(record: Any) -> list[dict[str, bytes]]:
    return [{"txt": b"x"}, {"txt": b"y"}]


def test_a_function_may_name_its_sample() -> None:
    assert written("with_key", [1], "tar")[0].key == "mine"


def sample_of_another_key(record: Any) -> Any:
    return [Sample("other", {"txt": b"a"}), record, {"txt": b"c"}]


def test_a_sample_of_another_key_keeps_that() -> None:
    found = written("sample_of_another_key", [Sample("k7", {"txt": b"b"})], "tar")
    assert [(sample.key, dict(sample)) for sample in found] == [
        ("other", {"txt": b"a"}),
        ("k7-1", {"txt": b"b"}),
        ("k7-2", {"txt": b"c"}),
    ]


def test_the_name_of_a_sample_is_no_member() -> None:
    assert dict(written("with_key", [1], "tar")[0]) == {"txt": b"x"}


def test_what_is_no_sample_is_told() -> None:
    assert "expected a mapping of extension to bytes, found str" in mapped("a_value", [1], "tar").error


def test_other_formats_take_values_as_they_are() -> None:
    assert written("a_point", [1, 2], "megatron") == [Point(1), Point(1)]
    assert written("twice", [1], "megatron") == [1, 1]


def test_a_member_that_is_not_bytes_is_named() -> None:
    assert "extension 'txt': expected bytes, found int" in mapped("not_bytes", [1], "tar").error


def test_it_travels_to_workers_by_name() -> None:
    mapper = MapRecords(f"{HERE}:upper", "jsonl")
    mapper(task_of([{"text": "a"}]))
    again = pickle.loads(pickle.dumps(mapper))(task_of([{"text": "b"}]))
    assert list(again.records.datasets[""]) == [{"text": "B"}]


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("no-colon", "expected module:function"),
        ("missing_module_x:f", "there is no module"),
        (f"{HERE}:missing", "has no 'missing'; it has"),
        (f"{HERE}:HERE", "expected a function, found str"),
    ],
)
def test_a_function_that_cannot_be_imported_says_why(reference: str, message: str) -> None:
    with pytest.raises(FunctionError, match=message):
        import_function(reference)


def test_a_format_is_given_as_itself_or_by_its_name() -> None:
    for given in (JsonlFormat(), "jsonl"):
        assert MapRecords(f"{HERE}:keep", given, form="arrow").output_format == "jsonl"


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
    assert "fit one by one, but not together" in failed.error
    assert failed.error.endswith("give a --schema with a wider type, or smaller tasks")
