"""A task that is filtered with a message: its records are counted as dropped for that reason."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from ledgerbeam.errors import UnsupportedShapeError
from ledgerbeam.ledger import Job, NoneTask, Source, Task
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.ledger.opening import open_store
from ledgerbeam.sources.listing import SourceListing
from ledgerbeam.transforms import (
    CommitTasks,
    MatchSources,
    PlanTasks,
    ProcessTask,
    ReadTasks,
    SkipCompleted,
    WriteTasks,
)
from ledgerbeam.transforms.chain.base import ChainValues, LedgerHandle, give_values

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
