"""Spans are a pure function of the index: they tile the records, in order, within their limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ledgerbeam.io.listing.pages import list_pages
from ledgerbeam.ledger import Source, Task
from ledgerbeam.ledger.model.identity import ROOT
from ledgerbeam.ledger.model.store import MAX_ATTEMPTS
from ledgerbeam.ledger.selection import PendingSource
from ledgerbeam.sources import FileSources, TaskLimits
from ledgerbeam.sources.kind import plan_spans
from ledgerbeam.transforms.chain.plan import _Plan

sizes = st.lists(st.integers(1, 50), max_size=60)


def offsets_of(lengths: list[int]) -> NDArray[np.uint64]:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.uint64)


@given(sizes, st.integers(1, 200), st.none() | st.integers(1, 20))
def test_spans_tile_all_records_in_order(lengths: list[int], task_bytes: int, task_records: int | None) -> None:
    spans = plan_spans(offsets_of(lengths), task_bytes=task_bytes, task_records=task_records)
    assert [i for start, stop in spans for i in range(start, stop)] == list(range(len(lengths)))
    assert all(start < stop for start, stop in spans)


@given(sizes, st.integers(1, 200))
def test_a_span_exceeds_its_bytes_by_less_than_one_record(lengths: list[int], task_bytes: int) -> None:
    offsets = offsets_of(lengths)
    for start, stop in plan_spans(offsets, task_bytes=task_bytes):
        assert int(offsets[stop - 1] - offsets[start]) < task_bytes


@given(sizes, st.integers(1, 20))
def test_a_span_holds_at_most_its_records(lengths: list[int], task_records: int) -> None:
    assert all(b - a <= task_records for a, b in plan_spans(offsets_of(lengths), task_records=task_records))


def test_a_source_without_records_has_no_spans() -> None:
    for offset in (0, 7):
        offsets = np.full(1, offset, np.uint64)
        assert plan_spans(offsets, task_bytes=10) == plan_spans(offsets, task_records=10) == plan_spans(offsets) == []


def test_a_record_that_begins_at_a_multiple_begins_a_span() -> None:
    assert plan_spans(offsets_of([10] * 4), task_bytes=10) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert plan_spans(offsets_of([10] * 4) + np.uint64(3), task_bytes=20) == [(0, 2), (2, 4)]


def test_offsets_are_compared_exactly_however_large_they_are() -> None:
    assert plan_spans(offsets_of([1] * 3) + np.uint64(2**60), task_bytes=1) == [(0, 1), (1, 2), (2, 3)]


def test_without_limits_all_records_are_one_span() -> None:
    assert plan_spans(offsets_of([5, 100, 5])) == [(0, 3)]


def test_one_record_larger_than_a_task_is_a_span_of_its_own() -> None:
    assert plan_spans(offsets_of([5, 100, 5]), task_bytes=10) == [(0, 2), (2, 3)]


def test_what_is_done_or_quarantined_is_not_planned(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": 1}\n' * 4)
    (page,) = list_pages([str(tmp_path / "a.jsonl")])
    source = Source(page.urls[0], page.sizes[0], page.versions[0])

    def planned(**known: Any) -> list[int]:
        plan = _Plan(None, FileSources(), TaskLimits(task_records=1))
        found = [*plan.process(PendingSource(source, **known)), *(one.value for one in plan.finish_bundle())]
        return [task.start for task in found if isinstance(task, Task)]

    tasks = [Task(source, n, n + 1, ((n, 4),)) for n in range(4)]
    assert planned() == [0, 1, 2, 3]
    assert planned(applied={ROOT: 3, tasks[1].node: -1}) == [0, 2, 3]
    attempts = {tasks[2].node: MAX_ATTEMPTS, tasks[3].node: MAX_ATTEMPTS - 1}
    assert planned(attempts=attempts) == [0, 1, 3]
    assert planned(applied={ROOT: 3, tasks[1].node: -1}, attempts=attempts) == [0, 3]
    assert planned(attempts={Task(source, 0, 0).node: MAX_ATTEMPTS}) == []
    assert planned(attempts={Task(source, 0, 0).node: MAX_ATTEMPTS - 1}) == [0, 1, 2, 3]
