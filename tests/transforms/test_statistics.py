"""What functions of own pipelines observe is recorded with their tasks: never lost, never twice."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from ledgerbeam import stats
from ledgerbeam.errors import FunctionError, UnsupportedShapeError
from ledgerbeam.ledger import FailedTask, Job, LedgerStore, NoneTask, Source, Task, merged_statistics
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.ledger.opening import open_local_store, open_store
from ledgerbeam.sources.listing import SourceListing
from ledgerbeam.transforms import (
    CommitTasks,
    MatchSources,
    PlanTasks,
    ProcessBatch,
    ProcessTask,
    ReadTasks,
    SkipCompleted,
    WriteTasks,
)
from ledgerbeam.transforms.chain.base import ChainValues, LedgerHandle, give_values

RECORDS = 100


@pytest.fixture
def store(tmp_path: Path) -> LedgerStore:
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"id": i}) + "\n" for i in range(RECORDS)))
    store = open_local_store(str(tmp_path / "ledger"), create=True)
    store.open_job(Job("test", {}))
    return store


def run(tmp_path: Path, *functions: Callable[[Task], Any]) -> dict[str, Any]:
    """Run functions over two sources of eight tasks; return the values of the statistics."""
    with beam.Pipeline("FnApiRunner") as pipeline:
        tasks: Any = pipeline | MatchSources() | SkipCompleted() | PlanTasks(task_records=30) | ReadTasks()
        for number, function in enumerate(functions):
            tasks |= f"Step{number}" >> ProcessTask(function)
        tasks | WriteTasks(str(tmp_path / "out"), "jsonl") | CommitTasks()
        give_values(pipeline, values(tmp_path))
    found = merged_statistics(open_local_store(str(tmp_path / "ledger"), create=False))
    return {name: merged.value() for name, merged in found.items()}


def values(tmp_path: Path) -> ChainValues:
    listing = SourceListing((str(tmp_path / "*.jsonl"),))
    return ChainValues(LedgerHandle(str(tmp_path / "ledger")), listing, base=f"{tmp_path}/")


def observe(task: Task) -> Task:
    for record in task.records:
        stats.count("records")
        stats.distinct("ids", record["id"])
        stats.observe("id", record["id"])
    return task


def in_tens(task: Task) -> list[Task]:
    observe(task)
    return task.fan_out([task.records[at : at + 10] for at in range(0, len(task.records), 10)])


def half(task: Task) -> Any:
    stats.count("seen", len(task.records))
    return task if task.start % 60 == 0 else None


def fail_first(task: Task) -> Any:
    stats.count("seen", len(task.records))
    if task.source.url.endswith("a.jsonl") and task.start == 0 and not Path(task.source.url[:-7] + "mended").exists():
        return FailedTask(task, "not now")
    return task


def test_what_a_function_of_a_task_observes_is_recorded_with_it(tmp_path: Path, store: LedgerStore) -> None:
    found = run(tmp_path, observe)
    assert (found["records"], found["ids"]) == (2 * RECORDS, RECORDS)
    assert (found["id"]["count"], found["id"]["max"]) == (2 * RECORDS, RECORDS - 1)
    assert run(tmp_path, observe) == found, "a second run does nothing"


def test_a_fan_out_is_counted_once(tmp_path: Path, store: LedgerStore) -> None:
    found = run(tmp_path, in_tens)
    assert store.status()["tasks"]["done"] == 20
    assert (found["records"], found["ids"], found["id"]["count"]) == (2 * RECORDS, RECORDS, 2 * RECORDS)


def test_steps_one_after_the_other_add_up(tmp_path: Path, store: LedgerStore) -> None:
    found = run(tmp_path, in_tens, observe)
    assert (found["records"], found["ids"], found["id"]["count"]) == (4 * RECORDS, RECORDS, 4 * RECORDS)


def test_tasks_without_output_count(tmp_path: Path, store: LedgerStore) -> None:
    assert run(tmp_path, observe, half)["seen"] == 2 * RECORDS
    assert run(tmp_path, observe, half)["records"] == 2 * RECORDS
    assert store.status()["filtered"] == 4


def test_a_failed_task_counts_once_it_is_done(tmp_path: Path, store: LedgerStore) -> None:
    assert run(tmp_path, fail_first)["seen"] == 2 * RECORDS - 30
    (tmp_path / "mended").touch()
    assert run(tmp_path, fail_first)["seen"] == 2 * RECORDS


def test_steps_that_disagree_on_a_name_end_the_job(tmp_path: Path, store: LedgerStore) -> None:
    def other(task: Task) -> Task:
        stats.top("records", 1)
        return task

    with pytest.raises(FunctionError, match="two steps of a task made the statistic 'records'"):
        run(tmp_path, observe, other)


def test_a_batch_of_tasks_cannot_observe(tmp_path: Path, store: LedgerStore) -> None:
    def batch(tasks: list[Task]) -> list[Task]:
        return [observe(task) for task in tasks]

    p = beam.Pipeline("FnApiRunner")
    tasks = p | MatchSources() | SkipCompleted() | PlanTasks(task_records=30) | ReadTasks()
    tasks | ProcessBatch(batch) | WriteTasks(str(tmp_path / "out"), "jsonl") | CommitTasks()
    give_values(p, values(tmp_path))
    with pytest.raises(UnsupportedShapeError, match="observed id, ids, records with"):
        p.run()
    assert merged_statistics(store) == {}


def test_a_task_carries_what_was_observed_to_its_first_child() -> None:
    observed: Any = {"x": ("count", b"1")}
    task = Task(Source("/a.jsonl", 1, "1"), 0, 4, statistics=observed)
    for children in (task.fan_out([[1], [2]]), task.split([(0, 2), (2, 4)])):
        assert [child.statistics for child in children] == [observed, {}]
    assert pickle.loads(pickle.dumps(task)) == task
    assert pickle.loads(pickle.dumps(NoneTask(task))).task.statistics == observed


SOURCE = Source("/data/a.jsonl", 10, "1")


def test_the_records_of_the_task_are_dropped_for_the_reason() -> None:
    read = Task(SOURCE, 0, 5, ((0, 1),), [1, 2, 3])
    assert NoneTask(read, "no speech").counts == RecordCounts(3, 0, {"no speech": 3})
    unread = Task(SOURCE, 2, 7, ((0, 1),))
    assert NoneTask(unread, "no speech").counts == RecordCounts(5, 0, {"no speech": 5})
    assert NoneTask(Task(SOURCE, 0, 0, ((0, 1),)), "empty").counts == RecordCounts()


def test_without_a_message_nothing_is_counted_and_given_counts_stay() -> None:
    task = Task(SOURCE, 0, 5, ((0, 1),), [1])
    assert NoneTask(task).counts is None
    counts = RecordCounts(2, 0, {"short": 2})
    assert NoneTask(task, "see counts", counts).counts == counts


def test_it_survives_copies_and_hides_secrets() -> None:
    found = NoneTask(Task(SOURCE, 0, 1, ((0, 1),)), "from s3://key:hunter2@bucket/x")
    assert "hunter2" not in found.message
    assert pickle.loads(pickle.dumps(found)) == found
    assert replace(found, task=found.task.replace(records=[])).counts == found.counts


def test_a_message_is_a_category() -> None:
    with pytest.raises(UnsupportedShapeError, match="expected a name of at most"):
        NoneTask(Task(SOURCE, 0, 1, ((0, 1),)), "x" * 5000)


def drop_even_tasks(task: Task) -> Task | NoneTask:
    return NoneTask(task, "even") if task.start % 4 == 0 else task


def test_the_ledger_counts_them(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(f"{n}\n" for n in range(10)))
    store = open_store(str(tmp_path / "ledger"), create=True)
    job = Job("test", {})
    store.open_job(job)
    store.begin_run({})
    ledger = LedgerHandle(str(tmp_path / "ledger"), job.fingerprint)
    with beam.Pipeline(options=PipelineOptions(["--runner=BundleBasedDirectRunner"])) as pipeline:
        (
            pipeline
            | MatchSources()
            | SkipCompleted()
            | PlanTasks(task_records=2)
            | ReadTasks()
            | ProcessTask(drop_even_tasks)
            | WriteTasks(str(tmp_path / "out"), "jsonl")
            | CommitTasks()
        )
        give_values(pipeline, ChainValues(ledger=ledger, listing=SourceListing((str(tmp_path / "*.jsonl"),))))
    store.refresh()
    records = store.status()["records"]
    assert (records["read"], records["kept"], records["dropped"]) == (10, 4, {"even": 6})
    store.close()
