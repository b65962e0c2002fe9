"""Counts of an own pipeline: whatever its functions return, read = kept + dropped + rejected, of all that was read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest

import ledgerbeam as lb
from ledgerbeam.ledger import NoneTask, Task
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.ledger.opening import open_store
from ledgerbeam.ledger.worker.writer import close_shared_writers
from ledgerbeam.transforms import (
    CommitTasks,
    MapRecords,
    MatchSources,
    PlanTasks,
    ProcessBatch,
    ProcessTask,
    ReadTasks,
    SkipCompleted,
    WriteTasks,
)
from ledgerbeam.transforms.chain.base import TASKS

RECORDS = 7

NOTHING = "returned nothing"


class InBlocks:
    """A function that takes records as they are decoded."""

    takes_blocks = True

    def __call__(self, task: Task) -> list[Task]:
        records = [record for block in task.records for record in block]
        return task.fan_out([records[:2], records[2:3]])


def with_other_records(task: Task) -> Task:
    return Task(task.source, task.start, task.stop, task.lineage, task.records[:5])


def in_place(task: Task) -> Task:
    del task.records[1:]
    return task


CASES: dict[str, tuple[Callable[[Task], Any], RecordCounts]] = {
    "all": (lambda task: task, RecordCounts.plain(7)),
    "none": (lambda _: None, RecordCounts(7, 0, {NOTHING: 7})),
    "reason": (lambda task: NoneTask(task.replace(records=[]), "short"), RecordCounts(7, 0, {"short": 7})),
    "fewer": (lambda task: task.replace(records=task.records[:4]), RecordCounts(7, 4, {NOTHING: 3}, {}, {"": 4})),
    "empty": (lambda task: task.replace(records=[]), RecordCounts(7, 0, {NOTHING: 7})),
    "twice": (lambda task: task.replace(records=2 * task.records), RecordCounts(7, 7, {}, {}, {"": 14})),
    "in-place": (in_place, RecordCounts(7, 1, {NOTHING: 6}, {}, {"": 1})),
    "new-task": (with_other_records, RecordCounts(7, 5, {NOTHING: 2}, {}, {"": 5})),
    "no-children": (lambda task: task.fan_out([]), RecordCounts(7, 0, {NOTHING: 7})),
    "parts": (lambda task: task.fan_out([task.records[:3], [], task.records[3:]]), RecordCounts.plain(7)),
    "part": (lambda task: task.fan_out([task.records[6:], []]), RecordCounts(7, 1, {NOTHING: 6}, {}, {"": 1})),
    "copies": (lambda task: task.fan_out([task.records] * 3), RecordCounts(7, 7, {}, {}, {"": 21})),
}


def by_source(task: Task) -> Any:
    return CASES[Path(task.source.url).stem][0](task)


def by_sources(tasks: list[Task]) -> list[Any]:
    return [by_source(task) for task in tasks]


def without_odd(task: Task) -> Task | None:
    return None if task.lineage[-1][0] % 2 else task


def cut(task: Any) -> Any:
    return task.replace(records=task.records[:1]) if isinstance(task, Task) else task


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The working folder, with a source for each case."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    for name in CASES:
        write(tmp_path / "in" / f"{name}.jsonl")
    yield tmp_path
    close_shared_writers()


def write(path: Path) -> None:
    path.write_text("".join(json.dumps({"id": number}) + "\n" for number in range(RECORDS)), encoding="utf-8")


def counts_of(*steps: Any, pattern: str = "in/*.jsonl") -> dict[str, RecordCounts]:
    """Run a pipeline, and return the counts of each source by its name."""
    with lb.Pipeline(ledger="L", name="counted", workers=1) as pipeline:
        elements = pipeline | MatchSources(pattern) | SkipCompleted() | PlanTasks(task_records=100)
        elements |= ReadTasks()
        for number, step in enumerate(steps):
            elements |= f"step {number}" >> step
        elements | WriteTasks("out", "jsonl") | CommitTasks()
    assert pipeline.result.state == "DONE"
    found = {Path(row.url).stem: row.counts for row in open_store("L", read_only=True).sources()}
    assert pipeline.result.status["records"]["read"] == RECORDS * len(found)
    return found


@pytest.mark.slow
def test_every_result_of_a_function_of_one_task_counts_what_was_read() -> None:
    found = counts_of(ProcessTask(by_source))
    assert found == {name: counts for name, (_, counts) in CASES.items()}


@pytest.mark.slow
def test_results_of_a_function_of_several_tasks_count_what_was_read(folder: Path) -> None:
    for name in ("no-children", "parts", "part", "copies"):  # a batch has one result for each task
        (folder / "in" / f"{name}.jsonl").unlink()
    found = counts_of(ProcessBatch(by_sources, batch_size=3))
    assert found == {name: CASES[name][1] for name in found}


@pytest.mark.slow
def test_functions_that_follow_others_count_what_was_read() -> None:
    cutting = beam.Map(cut).with_output_types(TASKS)
    found = counts_of(ProcessTask(by_source), ProcessTask(without_odd), ProcessTask(by_source), cutting)
    assert found["none"] == RecordCounts(7, 0, {NOTHING: 7})
    assert found["twice"] == RecordCounts(7, 1, {NOTHING: 6}, {}, {"": 1})
    assert found["copies"].read == found["parts"].read == RECORDS


@pytest.mark.slow
def test_records_that_other_functions_have_made_are_mapped_and_count_as_what_was_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(folder)
    (folder / "parity.py").write_text(
        "import ledgerbeam as lb\ndef even(record):\n    return record if record['id'] % 2 == 0 else lb.Drop('odd')\n"
    )
    found = counts_of(ProcessTask(by_source), ProcessTask(MapRecords("parity:even", "jsonl")))
    assert found["all"] == RecordCounts(7, 4, {"odd": 3}, {}, {"": 4})
    assert found["fewer"] == RecordCounts(7, 2, {"odd": 2, NOTHING: 3}, {}, {"": 2})
    assert found["twice"] == RecordCounts(7, 7, {}, {}, {"": 8})
    assert found["empty"] == RecordCounts(7, 0, {NOTHING: 7})
    assert found["reason"] == RecordCounts(7, 0, {"short": 7})


@pytest.mark.slow
def test_a_function_of_blocks_counts_what_was_read() -> None:
    found = counts_of(ProcessTask(InBlocks()), pattern="in/all.jsonl")
    assert found == {"all": RecordCounts(7, 3, {NOTHING: 4}, {}, {"": 3})}
