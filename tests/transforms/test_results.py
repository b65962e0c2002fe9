"""What a function may return for a record, and that every record is accounted for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerbeam import Drop, Reject, Route
from ledgerbeam.io import Sample
from ledgerbeam.io.index.reader import RawRecord
from ledgerbeam.ledger import FailedTask, NoneTask, Source, Task
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.sources.kind import Unreadable
from ledgerbeam.transforms import MapRecords
from ledgerbeam.transforms.mapping.outcomes import Rejection
from tests.cases import each

HERE = __name__


def task_of(records: list[Any]) -> Task:
    source = Source("/data/books.jsonl", 100, "1")
    raws = [RawRecord(source.url, 10 + number, number, number + 1, b"x") for number in range(len(records))]
    return Task(source, 10, 10 + len(records), ((0, 1),), records, raw=lambda: raws)


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


def mapped(records: list[Any], to: str = "jsonl", function: str = "given_by", **options: Any) -> Any:
    return MapRecords(f"{HERE}:{function}", to, **options)(task_of(records))


def counts_of(found: Any) -> RecordCounts:
    counts = found.counts if isinstance(found, NoneTask) else found.records.counts
    assert isinstance(counts, RecordCounts)
    return counts


def returning(*names: Any) -> list[Any]:
    return [{"return": name} for name in names]


def test_each_kind_of_result_is_counted_and_goes_its_way() -> None:
    results = mapped(returning(*GOOD, ["record", "german", "english"])).records
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
    found = mapped(returning("none", "short"))
    assert isinstance(found, NoneTask)
    assert found.counts == RecordCounts(2, 0, {"returned nothing": 1, "too short": 1})
    assert mapped([]).counts == RecordCounts()


def test_a_task_without_a_drop_has_plain_counts() -> None:
    assert mapped(returning("record", "record")).records.counts == RecordCounts.plain(2)


def test_a_reject_fails_its_task_unless_rejects_are_asked_for() -> None:
    failed = mapped(returning("record", "broken"))
    assert isinstance(failed, FailedTask)
    assert (failed.reason, "record 11: " in failed.error, "no text: it has none" in failed.error) == (
        "no text",
        True,
        True,
    )
    results = mapped(returning("record", "broken"), on_error="reject").records
    assert results.counts == RecordCounts(2, 1, {}, {"no text": 1}, {"": 1})
    assert [(row.record, row.rejection) for row in results.rejects] == [(11, Rejection(1, "no text", "it has none"))]


def raises(record: Any) -> Any:
    raise KeyError("text")


def leaves(record: Any) -> Any:
    raise SystemExit(3)


@pytest.mark.parametrize(("function", "reason"), [("raises", "KeyError"), ("leaves", "SystemExit")])
def test_a_record_for_which_the_function_raises_is_rejected_with_the_place(function: str, reason: str) -> None:
    (row,) = mapped([{}], function=function, on_error="reject").records.rejects
    assert row.rejection.reason == reason
    assert "test_results.py:" in row.rejection.at


def test_a_record_that_was_not_decoded_is_rejected_and_not_given_to_the_function() -> None:
    batched: dict[str, Any] = {"batch": 2, "function": "given_in_batches"}
    for options in ({}, batched):
        records = [Unreadable("line 1: no JSON"), *returning("record"), Unreadable("line 3"), Unreadable("line 4")]
        results = mapped(records, on_error="reject", **options).records
        assert results.counts == RecordCounts(4, 1, {}, {"not decoded": 3}, {"": 1})
        assert [row.rejection.position for row in results.rejects] == [0, 2, 3]
        assert results.rejects[0].rejection.error == "line 1: no JSON"


@each("name", [name for name in RESULTS if name not in GOOD and name not in ("broken",)])
def test_what_is_no_result_is_a_mistake_that_is_named_or_a_rejected_record(name: str) -> None:
    failed = mapped(returning(name))
    assert isinstance(failed, FailedTask)
    assert failed.reason in ("FunctionError", "RecordError")
    assert "record 10: " in failed.error
    rejected = mapped(returning("record", name, "record"), on_error="reject").records
    assert rejected.counts == RecordCounts(3, 2, {}, {failed.reason: 1}, {"": 2})


@pytest.mark.parametrize("name", ["short", "broken"])
def test_a_drop_or_reject_in_a_list_is_refused(name: str) -> None:
    assert f"a {type(RESULTS[name]).__name__} inside of a list" in mapped(returning(["record", name])).error


def test_nothing_of_a_rejected_record_is_written() -> None:
    results = mapped(returning(["record", "no json"], ["english", "nan"]), on_error="reject").records
    assert (dict(results.datasets), results.counts.rejected) == ({}, {"RecordError": 2})
    nulled = mapped(returning("nan", ["nan", "no json"]), on_error="reject", nan="null").records
    assert nulled.datasets[""].nulled == 1


def a_broken_line(record: Any) -> Any:
    import orjson

    return orjson.Fragment(b'{\n"a": 1}') if record["broken"] else record


def test_a_line_that_is_none_is_laid_to_its_record() -> None:
    results = mapped([{"broken": False}, {"broken": True}], function="a_broken_line", on_error="reject").records
    assert results.counts.rejected == {"RecordError": 1}


def many_reasons(record: int) -> Any:
    return Drop(f"reason {record}")


def many_routes(record: int) -> Any:
    return Route(f"route {record}", {"n": record})


def many_rejects(record: int) -> Any:
    return Reject(f"reason {record}")


def a_long_reason(record: int) -> Any:
    return Drop("long" * 51)


@pytest.mark.parametrize("function", ["many_reasons", "many_routes", "many_rejects"])
def test_reasons_and_routes_are_categories(function: str) -> None:
    enough = mapped(list(range(100)), function=function, on_error="reject")
    counts = counts_of(enough)
    assert 100 in (len(counts.dropped), len(counts.rejected), len(counts.written))
    failed = mapped(list(range(101)), function=function, on_error="reject")
    assert isinstance(failed, FailedTask)
    assert failed.reason == "FunctionError"
    assert "at most 100 different" in failed.error


def test_a_reason_is_short() -> None:
    failed = mapped([1], function="a_long_reason", on_error="reject")
    assert "at most 200 characters, found one of 204" in failed.error


def routed_samples(record: Any) -> Any:
    return [Route("en", {"txt": b"x"}), Route("de", {"txt": b"y"})]


def one_route(record: Any) -> Any:
    return Route("en", record)


def test_samples_of_routes_have_keys_of_their_own() -> None:
    sample = Sample("k7", {"txt": b"a"})
    found = mapped([sample], "tar", "routed_samples").records.datasets
    assert {route: [one.key for one in samples] for route, samples in found.items()} == {"en": ["k7-0"], "de": ["k7-1"]}
    assert [one.key for one in mapped([sample], "tar", "one_route").records.datasets["en"]] == ["k7"]


async def eventually(record: Any) -> Any:
    return record


def a_promise(record: Any) -> Any:
    return eventually(record)


def test_a_promise_is_no_record() -> None:
    assert "a coroutine" in mapped([{}], function="a_promise").error


def kept_whole(record: Any) -> Any:
    return record


_NAMES = st.sampled_from(sorted(RESULTS))


@given(
    names=st.lists(_NAMES | st.lists(_NAMES, max_size=3), max_size=30),
    batch=st.none() | st.integers(1, 7),
    nan=st.sampled_from(["refuse", "null"]),
)
def test_every_record_is_accounted_for_whatever_is_returned(names: list[Any], batch: int | None, nan: Any) -> None:
    function = "given_by" if batch is None else "given_in_batches"
    options = {"function": function, "batch": batch, "nan": nan}
    found = mapped(returning(*names), on_error="reject", **options)
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
    strict = mapped(returning(*names), on_error="fail", **options)
    assert isinstance(strict, FailedTask) == bool(positions)
    if not positions:
        assert strict.records.counts == counts
