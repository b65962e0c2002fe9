"""Recomputation: a pure function has the same results from the last record to the first, however batches are cut."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgerbeam import Drop, Reject, Route, Rows
from ledgerbeam.ledger import Source, Task
from ledgerbeam.sources import Unreadable
from ledgerbeam.transforms import MapRecords
from ledgerbeam.transforms.mapping.outcomes import NotRecomputedError

HERE = __name__
SOURCE = Source("/data/a.jsonl", 100, "1")


def fate(record: Any) -> Any:
    """Return what the record says of itself."""
    number = record["n"]
    match record["fate"]:
        case "drop":
            return Drop("by rule")
        case "none":
            return None
        case "reject":
            return Reject("bad", f"record {number}")
        case "raise":
            raise ValueError(number)
        case "two":
            return [{"n": number}, {"n": number, "again": True}]
        case "route":
            return [Route("other", {"n": number}), {"n": number}]
    return {"n": number, "text": record["fate"]}


def fates(records: list[Any]) -> list[Any]:
    return [fate(record) for record in records]


def even(batch: pa.RecordBatch) -> Any:
    return Rows(batch, drop={"odd": pa.array([n % 2 == 1 for n in batch["n"].to_pylist()])})


def of_whole_batch(records: list[Any]) -> list[Any]:
    return [{"n": record["n"], "of": len(records)} for record in records]


of_whole_batch.batch_invariant = False  # type: ignore[attr-defined]


def never() -> bool:
    return False


def task_of(records: Any) -> Task:
    return Task(SOURCE, 0, len(records), ((0, 1),), records, raw=list)


def datasets(found: Any) -> dict[str, Any]:
    return {route: list(records) for route, records in found.items()}


def mapper(function: str, to: str = "jsonl", **options: Any) -> MapRecords:
    return MapRecords(f"{HERE}:{function}", to, **options)


KEPT = ["keep", "drop", "none", "two", "route"]
REJECTED = [*KEPT, "reject", "raise"]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from(KEPT), max_size=40), st.none() | st.integers(1, 7))
def test_the_results_are_those_of_the_first_run(found: list[str], batch: int | None) -> None:
    records = [{"n": number, "fate": one} for number, one in enumerate(found)]
    work = mapper("fate" if batch is None else "fates", batch=batch)
    first: Any = work(task_of(records))
    again = work.recomputed(task_of(records), never)
    assert (again.first, again.records) == (0, len(records))
    assert datasets(again.datasets) == (datasets(first.records.datasets) if isinstance(first, Task) else {})
    for route, rows in datasets(again.datasets).items():
        assert [row["n"] for row in rows] == list(again.origins[route])


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from(REJECTED), max_size=30), st.none() | st.integers(1, 7), st.integers(1, 10))
def test_the_last_records_are_recomputed_until_it_is_late(found: list[str], batch: int | None, asked: int) -> None:
    records = [{"n": number, "fate": one} for number, one in enumerate(found)]
    calls = 0

    def is_late() -> bool:
        nonlocal calls
        calls += 1
        return calls >= asked

    work = mapper("fate" if batch is None else "fates", batch=batch, on_error="reject")
    whole = work.recomputed(task_of(records), never)
    last = work.recomputed(task_of(records), is_late)
    assert last.records == whole.records == len(records)
    for route, rows in datasets(whole.datasets).items():
        tail = [row for row in rows if row["n"] >= last.first]
        assert datasets(last.datasets).get(route, []) == tail
    if batch is None:
        assert last.first == max(0, len(records) - asked)


def test_records_that_cannot_be_decoded_have_no_result() -> None:
    records = [{"n": 0, "fate": "keep"}, Unreadable("no JSON"), {"n": 2, "fate": "keep"}]
    for batch in (None, 2):
        work = mapper("fate" if batch is None else "fates", batch=batch, on_error="reject")
        assert list(work.recomputed(task_of(records), never).origins[""]) == [0, 2]


@pytest.mark.parametrize("batch", [None, 3])
def test_a_function_that_raises_now_is_told_with_its_record(batch: int | None) -> None:
    records = [{"n": number, "fate": "raise" if number == 4 else "keep"} for number in range(6)]
    work = mapper("fate" if batch is None else "fates", batch=batch)
    with pytest.raises(NotRecomputedError, match=r"/data/a\.jsonl, record \d.*ValueError: 4"):
        work.recomputed(task_of(records), never)


def test_batches_are_those_of_the_first_run_where_results_depend_on_them() -> None:
    records = [{"n": number} for number in range(10)]
    work = mapper("of_whole_batch", batch=4)
    first: Any = work(task_of(records))
    assert datasets(work.recomputed(task_of(records), never).datasets) == datasets(first.records.datasets)


@pytest.mark.parametrize("size", [None, 1, 4])
def test_rows_of_tables_are_recomputed(size: int | None) -> None:
    table = pa.table({"n": list(range(11))})
    work = mapper("even", form="arrow", batch=size)
    first: Any = work(task_of(table))
    again = work.recomputed(task_of(table), never)
    assert datasets(again.datasets) == datasets(first.records.datasets)
    assert (again.first, again.records) == (0, 11)


def test_what_is_observed_again_does_not_count() -> None:
    from ledgerbeam import stats

    with stats.collecting() as collected:
        mapper("observing").recomputed(task_of([{"n": 1}]), never)
    assert not collected.statistics()


def observing(record: Any) -> Any:
    from ledgerbeam import stats

    stats.count("seen")
    return record
