"""The whole chain as a user writes it: what it counts, what it shows, and what it does twice."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import apache_beam as beam
import pytest
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner, split_manager
from apache_beam.runners.runner import PipelineResult
from apache_beam.transforms.display import DisplayData
from apache_beam.transforms.environments import EmbeddedPythonGrpcEnvironment

from ledgerbeam.errors import UnsupportedShapeError
from ledgerbeam.ledger import Job, LedgerStore, Task
from ledgerbeam.ledger.opening import open_local_store
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
from ledgerbeam.transforms.chain.base import ChainDoFn, ChainValues, LedgerHandle, give_values
from tests.cases import each


def keep(task: Task) -> Task:
    return task


def keep_all(tasks: list[Task]) -> list[Task]:
    return tasks


@pytest.fixture
def store(tmp_path: Path) -> LedgerStore:
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"id": i}) + "\n" for i in range(100)))
    store = open_local_store(str(tmp_path / "ledger"), create=True)
    store.open_job(Job("test", {}))
    return store


def run(tmp_path: Path, pattern: str = "*.jsonl") -> PipelineResult:
    pipeline = beam.Pipeline("FnApiRunner")
    (
        pipeline
        | MatchSources()
        | SkipCompleted()
        | PlanTasks(task_records=30)
        | ReadTasks()
        | ProcessTask(keep)
        | ProcessBatch(keep_all, batch_size=3)
        | WriteTasks(str(tmp_path / "out"), "jsonl")
        | CommitTasks()
    )
    give_values(pipeline, values(tmp_path, pattern))
    result = pipeline.run()
    result.wait_until_finish()
    return result


def values(tmp_path: Path, pattern: str) -> ChainValues:
    listing = SourceListing((str(tmp_path / pattern),))
    return ChainValues(LedgerHandle(str(tmp_path / "ledger")), listing, base=f"{tmp_path}/")


def counters(result: PipelineResult) -> dict[str, int]:
    found = result.metrics().query(MetricsFilter().with_namespace("ledgerbeam"))["counters"]
    return {metric.key.metric.name: metric.committed for metric in found}


def test_sources_tasks_records_and_bytes_are_counted(tmp_path: Path, store: LedgerStore) -> None:
    found = counters(run(tmp_path))
    assert found["sources_open"] == 2
    assert found["tasks_planned"] == found["tasks_committed"] == 8
    assert found["records_read"] == found["records_written"] == 200
    assert found["bytes_written"] == sum(p.stat().st_size for p in tmp_path.glob("out/*.jsonl"))
    assert store.status()["sources"] == {"complete": 2, "open": 0, "failed": 0}


def test_blank_lines_are_skipped_and_counted(tmp_path: Path, store: LedgerStore) -> None:
    (tmp_path / "c.jsonl").write_text('{"id": 1}\n\n  \n{"id": 2}\n')
    found = counters(run(tmp_path, "c.jsonl"))
    assert (found["records_read"], found["blank_lines_skipped"]) == (2, 2)


def test_commit_time_is_a_distribution(tmp_path: Path, store: LedgerStore) -> None:
    found = run(tmp_path).metrics().query(MetricsFilter().with_name("commit_ms"))["distributions"]
    assert found[0].committed.count >= 1


def test_a_second_run_skips_what_is_complete_and_finished_tasks_of_the_rest(tmp_path: Path, store: LedgerStore) -> None:
    run(tmp_path, "a.jsonl")
    found = counters(run(tmp_path))
    assert (found["sources_skipped"], found["sources_open"], found["tasks_committed"]) == (1, 1, 4)


@each(
    ("transform", "shown"),
    [
        (MatchSources("/data/*.jsonl"), "/data/*.jsonl"),
        (PlanTasks(task_bytes=1234), 1234),
        (ProcessTask(keep), "keep"),
        (ProcessBatch(keep_all, batch_size=17), 17),
        (WriteTasks("/out", "tar"), "tar"),
    ],
)
def test_a_console_shows_what_a_transform_does(transform: Any, shown: object) -> None:
    assert shown in [item.value for item in DisplayData.create_from(transform).items]
    step = beam.ParDo(ChainDoFn(transform))  # all that a console has whose runner keeps the innermost steps alone
    assert shown in [item.value for item in DisplayData.create_from(step).items]


def test_what_was_not_written_is_not_recorded(tmp_path: Path, store: LedgerStore) -> None:
    p = beam.Pipeline("FnApiRunner")
    p | MatchSources() | SkipCompleted() | PlanTasks() | CommitTasks()
    give_values(p, values(tmp_path, "*.jsonl"))
    with pytest.raises(UnsupportedShapeError, match="was not written"):
        p.run()
    assert store.status()["tasks"]["done"] == 0


class Split:
    """A bundle that is split while it runs: the worker is in the first task of it until the runner has split it."""

    began = threading.Event()
    made = threading.Event()
    starts: ClassVar[list[int]] = []
    results: ClassVar[list[Any]] = []

    @classmethod
    def fractions(cls, elements: int) -> Iterator[float | None]:
        if elements < 2 or cls.results:
            return
        yield None  # the elements are sent now
        assert cls.began.wait(30)
        cls.results.append((yield 0.5))
        cls.made.set()

    @classmethod
    def process(cls, task: Task) -> Task:
        cls.began.set()
        assert cls.made.wait(30)
        cls.starts.append(task.start)
        return task


def process_while_split(task: Task) -> Task:
    return Split.process(task)


def test_a_bundle_that_is_split_while_it_runs_does_each_task_once(tmp_path: Path, store: LedgerStore) -> None:
    runner = FnApiRunner(EmbeddedPythonGrpcEnvironment.default())  # which can be asked while it works
    with split_manager("ReadTasks/ReadTasks", Split.fractions), beam.Pipeline(runner) as pipeline:
        (
            pipeline
            | MatchSources()
            | SkipCompleted()
            | PlanTasks(task_records=10)
            | ReadTasks()
            | ProcessTask(process_while_split)
            | WriteTasks(str(tmp_path / "out"), "jsonl")
            | CommitTasks()
        )
        give_values(pipeline, values(tmp_path, "a.jsonl"))
    (result,) = Split.results
    (cut,) = result.channel_splits
    assert cut.first_residual_element < 9, "nothing was left to another bundle"
    assert sorted(Split.starts) == list(range(0, 100, 10))
    assert store.status()["sources"] == {"complete": 1, "open": 0, "failed": 0}
