"""The whole chain as a user writes it: what it counts, what it shows, and what it does twice."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import apache_beam as beam
import pytest
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner, split_manager
from apache_beam.runners.runner import PipelineResult
from apache_beam.transforms.display import DisplayData
from apache_beam.transforms.environments import EmbeddedPythonGrpcEnvironment

from ledgerbeam import stats
from ledgerbeam.errors import (
    FunctionError,
    JobMismatchError,
    LedgerNotFoundError,
    StorageError,
    UnsupportedShapeError,
    UsageError,
)
from ledgerbeam.ledger import FailedTask, Job, LedgerStore, NoneTask, Source, Task, merged_statistics
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.ledger.model.rows import SetUps
from ledgerbeam.ledger.opening import open_local_store, open_store
from ledgerbeam.ledger.worker.inflight import InflightMarks
from ledgerbeam.ledger.worker.reports import begin_times, reported_set_ups, reported_times
from ledgerbeam.ledger.worker.writer import close_shared_writers
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
from ledgerbeam.transforms.chain.base import ChainValues, LedgerHandle
from ledgerbeam.transforms.chain.commit import _Commit
from ledgerbeam.transforms.on_beam import ChainDoFn, give_values
from ledgerbeam.user_code.modules import modules_of
from ledgerbeam.user_code.objects import UserObject
from tests.cases import each
from tests.ledger.builders import leaf_of


def keep(task: Task) -> Task:
    return task


def keep_all(tasks: list[Task]) -> list[Task]:
    return tasks


RECORDS = 100


@pytest.fixture
def store(tmp_path: Path, store: LedgerStore) -> LedgerStore:
    """A ledger beside two sources."""
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"id": i}) + "\n" for i in range(RECORDS)))
    return store


def apply(pipeline: beam.Pipeline, tmp_path: Path, *steps: Any, pattern: str = "*.jsonl", records: int = 30) -> None:
    """Apply a chain with these steps over some of the sources."""
    tasks: Any = pipeline | MatchSources() | SkipCompleted() | PlanTasks(task_records=records) | ReadTasks()
    for number, step in enumerate(steps):
        tasks |= f"Step{number}" >> step
    tasks | WriteTasks(str(tmp_path / "out"), "jsonl") | CommitTasks()
    give_values(pipeline, values(tmp_path, pattern))


def run(tmp_path: Path, pattern: str = "*.jsonl") -> PipelineResult:
    pipeline = beam.Pipeline("FnApiRunner")
    apply(pipeline, tmp_path, ProcessTask(keep), ProcessBatch(keep_all, batch_size=3), pattern=pattern)
    result = pipeline.run()
    result.wait_until_finish()
    return result


def values(tmp_path: Path, pattern: str = "*.jsonl") -> ChainValues:
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
        apply(pipeline, tmp_path, ProcessTask(process_while_split), pattern="a.jsonl", records=10)
    (result,) = Split.results
    (cut,) = result.channel_splits
    assert cut.first_residual_element < 9, "nothing was left to another bundle"
    assert sorted(Split.starts) == list(range(0, 100, 10))
    assert store.status()["sources"] == {"complete": 1, "open": 0, "failed": 0}


JOBS = Job("map", {"to": "a"}), Job("map", {"to": "b"})


@pytest.fixture(params=["local", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield str(tmp_path / "ledger") if request.param == "local" else f"memory://{tmp_path.name}/ledger"
    close_shared_writers()


def source(name: str) -> Source:
    return Source(f"/data/{name}.jsonl", 10, "1")


@pytest.fixture
def opened(url: str) -> Iterator[LedgerStore]:
    """The ledger of the first job, which has two sources."""
    store = open_store(url, create=True)
    store.open_job(JOBS[0])
    store.register([source("a"), source("b")])
    yield store
    store.close()


def commit(handle: LedgerHandle, tasks: list[NoneTask | FailedTask]) -> None:
    with beam.Pipeline(options=PipelineOptions(["--runner=BundleBasedDirectRunner"])) as pipeline:
        pipeline | beam.Create(tasks, reshuffle=False) | CommitTasks()
        give_values(pipeline, ChainValues(handle))


def done(*names: str) -> list[NoneTask | FailedTask]:
    return [NoneTask(Task(source(name), 0, 1)) for name in names]


@pytest.mark.parametrize("named", [True, False])
def test_runs_one_after_the_other_record_under_their_own(url: str, opened: LedgerStore, named: bool) -> None:
    for is_first in (True, False):
        run = opened.begin_run({})
        opened.register([source("a"), source("b")])
        commit(LedgerHandle(url, JOBS[0].fingerprint, run=run if named else ""), done("a", "b"))
        opened.refresh()
        assert opened.completed_count() == 2
        if is_first:
            opened.forget("*")  # what the first run records from now on does not count
            assert opened.completed_count() == 0


def test_jobs_one_after_the_other_record_for_themselves(url: str) -> None:
    for job in JOBS:
        store: LedgerStore = open_store(url, create=True)
        store.open_job(job, "restart")
        store.begin_run({})
        store.register([source("a")])
        commit(LedgerHandle(url, job.fingerprint), done("a"))
        store.refresh()
        assert store.completed_count() == 1
        store.close()


def test_two_pipelines_in_one_process_use_writers_of_their_own(url: str, opened: LedgerStore) -> None:
    first = LedgerHandle(url, JOBS[0].fingerprint, run=opened.begin_run({}))
    second = replace(first, run=opened.begin_run({}))
    assert first.writer() is not second.writer()
    assert first.writer() is replace(first).writer()
    assert first.store() is replace(first).store()
    commit(first, done("a"))
    commit(second, done("b"))
    opened.refresh()
    assert opened.completed_count() == 2


def test_what_is_opened_records_for_its_own_job_and_run(url: str, opened: LedgerStore) -> None:
    handle = LedgerHandle(url, JOBS[0].fingerprint, run=opened.begin_run({}))
    assert opened.begin_run({}) != handle.run
    handle.store().commit([leaf_of(source("a"))])
    handle.writer().add(leaf_of(source("b")))
    handle.writer().flush()
    opened.refresh()
    assert [(row.run, row.totals.tasks) for row in opened.recorded().values()] == [(handle.run, 2)]
    with pytest.raises(JobMismatchError):
        LedgerHandle(url, JOBS[1].fingerprint).store().commit([leaf_of(source("a"))])


def test_a_worker_makes_no_ledger(url: str) -> None:
    with pytest.raises(LedgerNotFoundError):
        LedgerHandle(url).store()


def test_commits_are_as_large_and_as_late_as_the_pipeline_says(url: str, opened: LedgerStore) -> None:
    opened.begin_run({})
    writer = LedgerHandle(url, flush_interval=3600.0, flush_entries=2).writer()
    for name, count in (("a", 0), ("b", 2)):
        writer.add(leaf_of(source(name)))
        opened.refresh()
        assert opened.completed_count() == count
    with pytest.raises(UsageError, match=r"needs interval > 0 .* found 0\.0"):
        LedgerHandle(url, JOBS[0].fingerprint, flush_interval=0.0).writer()


def test_a_ledger_that_is_reached_in_two_ways_is_opened_twice(url: str) -> None:
    open_store(url, create=True).close()
    first, second = LedgerHandle(url), LedgerHandle(url, storage_options={"skip_instance_cache": True})
    assert first.writer() is not second.writer()
    assert first.mirror() is second.mirror()


@pytest.mark.parametrize("looks_first", [True, False])
def test_what_only_looks_at_the_ledger_is_not_what_records_in_it(
    url: str, opened: LedgerStore, looks_first: bool
) -> None:
    handle = LedgerHandle(url, JOBS[0].fingerprint, run=opened.begin_run({}))
    opening = [handle.mirror, handle.store][:: 1 if looks_first else -1]
    assert opening[0]() is not opening[1]()
    handle.store().register([source("c")])
    with pytest.raises(UsageError, match="opened read only"):
        handle.mirror().register([source("d")])


def test_a_broken_task_is_recorded_as_such(url: str, opened: LedgerStore) -> None:
    handle = LedgerHandle(url, JOBS[0].fingerprint, run=opened.begin_run({}))
    for _ in range(3):
        commit(handle, [FailedTask(Task(source("a"), 0, 1), "CancelledError", "cancelled", broke=True)])
    opened.refresh()
    (row,) = opened.failures()
    assert (row.reason, row.quarantined) == ("CancelledError", True)


def test_nothing_is_recorded_once_a_module_that_is_imported_late_has_changed(
    url: str, opened: LedgerStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function may import a module of the user's in its first task, or later: it is compared from then on."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("late_one", "late_other"):
        (tmp_path / f"{name}.py").write_text("x = 1\n")
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        monkeypatch.delitem(sys.modules, name)  # it goes again at the end
    modules = modules_of(["late_one", "late_other"])
    handle = LedgerHandle(url, JOBS[0].fingerprint, run=opened.begin_run({}), modules=modules)
    recording = _Commit(handle, has_downstream=False)
    importlib.import_module("late_one")
    recording.process(done("a")[0])
    (tmp_path / "late_other.py").write_text("x = 2\n")
    importlib.import_module("late_other")
    with pytest.raises(FunctionError, match="the module late_other has changed since the job was created"):
        recording.process(done("b")[0])
    opened.refresh()
    assert opened.completed_count() == 1


class Closing:
    """Writes what it has held once it is closed."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, record: Any) -> Any:
        return record

    def close(self) -> None:
        Path(self._path).write_text("closed", encoding="utf-8")


def test_an_error_that_ends_the_worker_closes_what_functions_have_built_and_leaves_where_its_time_went(
    tmp_path: Path,
) -> None:
    """What a function holds back until then, such as the rows of a log of its own, would be lost."""
    (tmp_path / "run").mkdir()
    handle = LedgerHandle(str(tmp_path / "L"), run_dir=str(tmp_path / "run"))
    child = os.fork()
    if child == 0:  # the worker ends with it
        try:
            begin_times(handle.run_dir)
            UserObject(f"{__name__}:Closing", {"path": str(tmp_path / "told")}).ready()
            with handle.fatal_errors():
                raise StorageError("the disk fails")
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert (tmp_path / "told").read_text() == "closed"
    assert reported_times(str(tmp_path / "run")).workers == 1


def test_a_worker_leaves_where_its_time_went_when_it_begins_a_task_or_is_told_to(tmp_path: Path) -> None:
    handle = LedgerHandle(str(tmp_path / "L"), run_dir=str(tmp_path))
    begin_times()
    with handle.working_on([Task(source("a"), 0, 1)]):
        (path,) = tmp_path.glob("*.time")
    InflightMarks(str(tmp_path)).close()
    path.unlink()
    handle.note_times()  # which is not due so soon
    assert not path.exists()
    handle.note_times(at_once=True)
    assert path.exists()
    replace(handle, run_dir=None).note_times(at_once=True)
    begin_times()


def test_a_worker_leaves_how_long_its_set_ups_took_if_there_were_any(tmp_path: Path) -> None:
    handle = LedgerHandle(str(tmp_path / "L"), run_dir=str(tmp_path))
    handle.note_set_ups([])
    replace(handle, run_dir=None).note_set_ups([4.0])
    assert list(tmp_path.iterdir()) == []
    handle.note_set_ups([1.5, 0.5])
    assert reported_set_ups(str(tmp_path)) == SetUps(2, 2.0, 1.5)


def observed_by(tmp_path: Path, *functions: Callable[[Task], Any]) -> dict[str, Any]:
    """Run functions over two sources of eight tasks; return the values of the statistics."""
    with beam.Pipeline("FnApiRunner") as pipeline:
        apply(pipeline, tmp_path, *map(ProcessTask, functions))
    found = merged_statistics(open_local_store(str(tmp_path / "ledger"), create=False))
    return {name: merged.value() for name, merged in found.items()}


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
    found = observed_by(tmp_path, observe)
    assert (found["records"], found["ids"]) == (2 * RECORDS, RECORDS)
    assert (found["id"]["count"], found["id"]["max"]) == (2 * RECORDS, RECORDS - 1)
    assert observed_by(tmp_path, observe) == found, "a second run does nothing"


def test_a_fan_out_is_counted_once(tmp_path: Path, store: LedgerStore) -> None:
    found = observed_by(tmp_path, in_tens)
    assert store.status()["tasks"]["done"] == 20
    assert (found["records"], found["ids"], found["id"]["count"]) == (2 * RECORDS, RECORDS, 2 * RECORDS)


def test_steps_one_after_the_other_add_up(tmp_path: Path, store: LedgerStore) -> None:
    found = observed_by(tmp_path, in_tens, observe)
    assert (found["records"], found["ids"], found["id"]["count"]) == (4 * RECORDS, RECORDS, 4 * RECORDS)


def test_tasks_without_output_count(tmp_path: Path, store: LedgerStore) -> None:
    assert observed_by(tmp_path, observe, half)["seen"] == 2 * RECORDS
    assert observed_by(tmp_path, observe, half)["records"] == 2 * RECORDS
    assert store.status()["filtered"] == 4


def test_a_failed_task_counts_once_it_is_done(tmp_path: Path, store: LedgerStore) -> None:
    assert observed_by(tmp_path, fail_first)["seen"] == 2 * RECORDS - 30
    (tmp_path / "mended").touch()
    assert observed_by(tmp_path, fail_first)["seen"] == 2 * RECORDS


def test_steps_that_disagree_on_a_name_end_the_job(tmp_path: Path, store: LedgerStore) -> None:
    def other(task: Task) -> Task:
        stats.top("records", 1)
        return task

    with pytest.raises(FunctionError, match="two functions made the statistic 'records'"):
        observed_by(tmp_path, observe, other)


def test_a_batch_of_tasks_cannot_observe(tmp_path: Path, store: LedgerStore) -> None:
    def batch(tasks: list[Task]) -> list[Task]:
        return [observe(task) for task in tasks]

    p = beam.Pipeline("FnApiRunner")
    apply(p, tmp_path, ProcessBatch(batch))
    with pytest.raises(UnsupportedShapeError, match=r"used ledgerbeam\.stats \(id, ids, records\) for a batch"):
        p.run()
    assert merged_statistics(store) == {}


def test_a_task_carries_what_was_observed_to_its_first_child() -> None:
    observed: Any = {"x": ("count", b"1")}
    task = Task(Source("/a.jsonl", 1, "1"), 0, 4, statistics=observed)
    for children in (task.fan_out([[1], [2]]), task.split([(0, 2), (2, 4)])):
        assert [child.statistics for child in children] == [observed, {}]
    assert pickle.loads(pickle.dumps(task)) == task
    assert pickle.loads(pickle.dumps(NoneTask(task))).task.statistics == observed


READ_SOURCE = Source("/data/a.jsonl", 10, "1")


def test_the_records_of_the_task_are_dropped_for_the_reason() -> None:
    read = Task(READ_SOURCE, 0, 5, ((0, 1),), [1, 2, 3])
    assert NoneTask(read, "no speech").counts == RecordCounts(3, 0, {"no speech": 3})
    unread = Task(READ_SOURCE, 2, 7, ((0, 1),))
    assert NoneTask(unread, "no speech").counts == RecordCounts(5, 0, {"no speech": 5})
    assert NoneTask(Task(READ_SOURCE, 0, 0, ((0, 1),)), "empty").counts == RecordCounts()


def test_without_a_message_nothing_is_counted_and_given_counts_stay() -> None:
    task = Task(READ_SOURCE, 0, 5, ((0, 1),), [1])
    assert NoneTask(task).counts is None
    counts = RecordCounts(2, 0, {"short": 2})
    assert NoneTask(task, "see counts", counts).counts == counts


def test_it_survives_copies_and_hides_secrets() -> None:
    found = NoneTask(Task(READ_SOURCE, 0, 1, ((0, 1),)), "from s3://key:hunter2@bucket/x")
    assert "hunter2" not in found.message
    assert pickle.loads(pickle.dumps(found)) == found
    assert replace(found, task=found.task.replace(records=[])).counts == found.counts


def test_a_message_is_a_category() -> None:
    with pytest.raises(UnsupportedShapeError, match="expected a name of at most"):
        NoneTask(Task(READ_SOURCE, 0, 1, ((0, 1),)), "x" * 5000)


def drop_even_tasks(task: Task) -> Task | NoneTask:
    return NoneTask(task, "even") if task.start % 60 == 0 else task


def test_the_ledger_counts_them(tmp_path: Path, store: LedgerStore) -> None:
    store.begin_run({})
    observed_by(tmp_path, drop_even_tasks)
    store.refresh()
    records = store.status()["records"]
    assert (records["read"], records["kept"], records["dropped"]) == (2 * RECORDS, 80, {"even": 120})
