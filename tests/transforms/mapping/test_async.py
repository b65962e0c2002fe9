"""Async functions: many records in flight, and the outcomes of a function without `async`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerbeam.errors import UsageError
from ledgerbeam.ledger import FailedTask, Task
from ledgerbeam.transforms import MapRecords
from ledgerbeam.transforms.chain.schedule import this_overlap
from ledgerbeam.user_code.objects import close_objects
from tests.cases import each
from tests.transforms.mapping.test_map_records import task_of
from tests.user_code import asynchronous

MODULE = "tests.user_code.asynchronous"


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    this_overlap().begin()
    asynchronous.log.clear()
    asynchronous.running.clear()
    yield
    close_objects()


def mapped(records: list[Any], functions: Any = "waits", **options: Any) -> Any:
    names = [functions] if isinstance(functions, str) else functions
    given: dict[str, Any] = {"on_error": "reject", **options}
    return MapRecords([f"{MODULE}:{name}" for name in names], "jsonl", **given)(task_of(records))


def ids(found: Any, route: str = "") -> list[int]:
    return [record["id"] for record in found.records.datasets[route]]


def rejects(found: Any) -> list[tuple[int, str]]:
    return [(one.rejection.position, one.rejection.reason) for one in found.records.rejects]


DOES = ["", "raise", "exit", "drop", "reject", "route", "none", "many"]


@given(st.lists(st.tuples(st.sampled_from(DOES), st.integers(0, 3)), max_size=40), st.integers(1, 5))
def test_outcomes_do_not_depend_on_what_is_in_flight(what: list[tuple[str, int]], most: int) -> None:
    records = [{"id": number, "do": do, "seconds": ticks / 1000} for number, (do, ticks) in enumerate(what)]
    asynchronous.log.clear()
    many = mapped(records, in_flight=most)
    assert max(map(int, asynchronous.log), default=0) <= most
    one = mapped(records, in_flight=1)
    assert type(many) is type(one)
    if isinstance(many, Task):
        results, expected = many.records, one.records
        assert {route: list(rows) for route, rows in results.datasets.items()} == {
            route: list(rows) for route, rows in expected.datasets.items()
        }
        assert rejects(many) == rejects(one)
        assert (results.counts, results.statistics) == (expected.counts, expected.statistics)


def test_many_records_are_in_flight_and_their_results_are_in_order() -> None:
    records = [{"id": number, "seconds": 0.05 if number % 10 == 0 else 0.001} for number in range(100)]
    found = mapped(records, in_flight=8)
    assert ids(found) == [*range(100)]
    assert max(map(int, asynchronous.log)) == 8
    assert found.records.statistics["calls"].kind == "count"


@each(
    ("do", "reason"),
    [("raise", "KeyError"), ("exit", "SystemExit"), ("reject", "bad")],
)
def test_a_record_that_fails_is_rejected_alone_or_fails_its_task(do: str, reason: str) -> None:
    records = [{"id": 0}, {"id": 1, "do": do}, {"id": 2}]
    found = mapped(records)
    assert (ids(found), rejects(found)) == ([0, 2], [(1, reason)])
    failed = mapped(records, on_error="fail")
    assert isinstance(failed, FailedTask)
    assert "record 1" in str(failed.error)
    assert asynchronous.running == []


def test_a_call_that_takes_too_long_is_cancelled_and_its_record_rejected() -> None:
    found = mapped([{"id": 0}, {"id": 1, "seconds": 60.0}, {"id": 2}], record_timeout=0.2)
    assert (ids(found), rejects(found)) == ([0, 2], [(1, "timeout")])
    assert found.records.rejects[0].rejection.error == f"{MODULE}:waits took more than 0.2 s"
    assert asynchronous.running == []


def test_calls_in_flight_are_cancelled_when_their_task_fails() -> None:
    failed = mapped([{"id": 0, "do": "raise"}, *({"id": n, "seconds": 60.0} for n in range(1, 9))], on_error="fail")
    assert isinstance(failed, FailedTask)
    MapRecords(f"{MODULE}:waits", "jsonl")(task_of([{"id": 10}]))  # the loop has run meanwhile
    assert asynchronous.running == []


def test_a_function_may_return_the_same_object_and_cancel_itself() -> None:
    assert ids(mapped([{"id": number} for number in range(50)], "same_object")) == [*range(50)]
    found = mapped([{"id": number} for number in range(3)], "cancels")
    assert (ids(found), rejects(found)) == ([0, 2], [(1, "CancelledError")])


def test_a_class_is_built_entered_and_closed_on_the_loop() -> None:
    assert ids(mapped([{"id": 1}, {"id": 2}], "Client", values={"step": 10})) == [11, 12]
    assert asynchronous.log == ["entered"]
    assert ids(mapped([{"id": 1}], "Closing")) == [1]
    close_objects()
    assert asynchronous.log == ["entered", "closed", "left"]


def test_async_and_other_functions_form_chains() -> None:
    found = mapped([{"id": number} for number in range(20)], ["plain", "waits", "Client", "plain"])
    assert ids(found) == [number + 1 for number in range(20) if number % 5 and (number + 1) % 5]
    assert all(record["done"] and record["plain"] for record in found.records.datasets[""])


def test_batches_are_taken_too() -> None:
    found = mapped([{"id": number} for number in range(10)], ["waits", "of_batch"], batch={"of_batch": 4})
    assert [record["batch"] for record in found.records.datasets[""]] == [4] * 8 + [2] * 2


def test_calls_for_later_tasks_start_before_their_turn() -> None:
    """The last record of the first task is in flight while the calls of the second one are done."""
    first = task_of([{"id": 0, "seconds": 0.3}])
    second = first.replace(start=1, stop=4, records=[{"id": number} for number in range(1, 4)])
    mapping = MapRecords(f"{MODULE}:waits", "jsonl", in_flight=4)
    overlap = this_overlap()
    overlap.begin(second)
    overlap.read, overlap.records_of = first.records, lambda task: task.records
    assert ids(mapping(first)) == [0]
    assert len(asynchronous.log) == 4
    overlap.begin()
    overlap.read = second.records
    assert ids(mapping(second)) == [1, 2, 3]
    assert len(asynchronous.log) == 4


def test_calls_made_ahead_are_not_taken_for_other_records() -> None:
    """A function before this one in the pipeline has changed the records of the second task."""
    first = task_of([{"id": 0, "seconds": 0.1}])
    second = first.replace(start=1, stop=2, records=[{"id": 1}])
    mapping = MapRecords(f"{MODULE}:waits", "jsonl")
    overlap = this_overlap()
    overlap.begin(second)
    overlap.read, overlap.records_of = first.records, lambda task: task.records
    assert ids(mapping(first)) == [0]
    assert ids(mapping(second.replace(records=[{"id": 7}]))) == [7]


def test_calls_in_flight_are_at_least_one() -> None:
    with pytest.raises(UsageError, match="in_flight: expected at least 1"):
        MapRecords(f"{MODULE}:waits", "jsonl", in_flight=0)


def test_several_batches_are_in_flight_and_a_batch_that_fails_is_divided() -> None:
    records = [{"id": number, "do": "raise" if number == 7 else ""} for number in range(20)]
    found = mapped(records, "batch_waits", batch=4)
    assert (ids(found), rejects(found)) == ([*range(7), *range(8, 20)], [(7, "KeyError")])
    assert max(map(int, asynchronous.log)) == 5


def test_an_exit_in_a_task_of_a_function_is_its_error() -> None:
    found = mapped([{"id": number} for number in range(4)], "exits_inside")
    assert (ids(found), rejects(found)) == ([0, 1, 3], [(2, "SystemExit")])


def test_a_function_that_is_not_cancelled_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledgerbeam.transforms.mapping.async_calls._CANCEL_SECONDS", 0.1)
    found = mapped([{"id": number} for number in range(3)], "stubborn", record_timeout=0.2)
    assert (ids(found), rejects(found)) == ([0, 2], [(1, "timeout")])
