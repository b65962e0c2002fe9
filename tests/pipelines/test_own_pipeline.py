"""Pipelines of users: what their ledger knows and counts, what a rerun does, and what comes behind the chain."""

from __future__ import annotations

import functools
import importlib
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

import ledgerbeam as lb
from ledgerbeam.errors import (
    JobMismatchError,
    LedgerbeamError,
    LedgerError,
    UnsupportedShapeError,
    UsageError,
    WorkerDiedError,
)
from ledgerbeam.io import JsonlReader
from ledgerbeam.ledger import FailedTask, LedgerStore, NoneTask, Task
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.ledger.opening import open_store
from ledgerbeam.ledger.worker.writer import close_shared_writers
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.runners import job_files as wave_files
from ledgerbeam.pipelines.runners import waves
from ledgerbeam.transforms import (
    CommitTasks,
    CommittedTask,
    EachRecord,
    FilterRecords,
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

RECORDS = 40


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder, with three sources."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    for name in "abc":
        write(tmp_path / "in" / f"{name}.jsonl", RECORDS)
    yield tmp_path
    close_shared_writers()


def write(path: Path, records: int) -> None:
    lines = (json.dumps({"id": f"{path.stem}{number}"}) + "\n" for number in range(records))
    path.write_text("".join(lines), encoding="utf-8")


def double(task: Task) -> Task:
    return task.replace(records=[{"id": record["id"] * 2} for record in task.records])


def planned(pipeline: beam.Pipeline, task_records: int = 10) -> Any:
    return pipeline | MatchSources("in/*.jsonl") | SkipCompleted() | PlanTasks(task_records=task_records)


def build(
    pipeline: beam.Pipeline,
    function: Callable[[Task], Any] = double,
    task_records: int = 10,
    step: beam.PTransform[Any, Any] | None = None,
) -> Any:
    tasks = planned(pipeline, task_records) | ReadTasks()
    return tasks | (step or ProcessTask(function)) | WriteTasks("out", "jsonl") | CommitTasks()


def run(function: Callable[[Task], Any] = double, *, workers: int = 1, **values: Any) -> lb.PipelineRun:
    with lb.Pipeline(ledger="L", name="double", workers=workers, **values) as pipeline:
        build(pipeline, function)
    return pipeline.result


def ids(folder: Path) -> list[str]:
    paths = sorted((folder / "out").rglob("*.jsonl"))
    return sorted(record["id"] for path in paths for record in JsonlReader(str(path)))


def store() -> LedgerStore:
    return open_store("L", read_only=True)


def test_a_pipeline_is_a_job_as_those_of_the_command_line(folder: Path) -> None:
    result = run()
    assert ids(folder) == sorted(f"{name}{number}" * 2 for name in "abc" for number in range(RECORDS))
    assert result.status["sources"] == {"complete": 3, "open": 0, "failed": 0}
    assert (result.outcome.tasks, result.outcome.records.read, result.state) == (12, 3 * RECORDS, "DONE")
    job = store().job()
    assert job is not None
    assert (job.pipeline, job.parameters["output"], job.parameters["to"]) == ("double", f"{folder}/out", "jsonl")
    assert (job.parameters["task_records"], job.parameters["base"]) == (10, f"{folder}/in/")
    (recorded,) = store().runs()
    assert (recorded["outcome"], recorded["listed"]) == ("done", 3)
    assert len(list((folder / "out" / "_ledgerbeam").iterdir())) == 1


def is_even(record: dict[str, Any]) -> bool:
    return int(record["id"][1:]) % 2 == 0


def upper(record: dict[str, Any]) -> dict[str, Any]:
    return {"id": record["id"].upper()}


@pytest.mark.slow
def test_bodies_of_map_and_filter_work_on_records_and_their_labels_are_shown(folder: Path) -> None:
    with lb.Pipeline(ledger="L", name="even", workers=1) as pipeline:
        tasks = planned(pipeline)
        tasks = tasks | ReadTasks() | "even" >> ProcessTask(FilterRecords(is_even))
        tasks = tasks | "upper" >> ProcessTask(EachRecord(upper))
        tasks | WriteTasks("out", "jsonl") | CommitTasks()
    assert ids(folder) == sorted(f"{name}{number}" for name in "ABC" for number in range(0, RECORDS, 2))
    counts = pipeline.result.outcome.records
    assert (counts.read, counts.records) == (3 * RECORDS, 3 * RECORDS / 2)
    (recorded,) = store().runs()
    assert recorded["info"]["steps"] == ["even", "upper"]


def test_a_refusal_shows_no_frames_of_ours(folder: Path) -> None:
    with pytest.raises(UnsupportedShapeError) as refused, lb.Pipeline(ledger="L", name="wrong") as pipeline:
        build(pipeline, step=beam.Reshuffle())
    assert len(refused.traceback) <= 2
    assert refused.value.__cause__ is None


@pytest.mark.slow
def test_a_rerun_does_nothing_and_what_is_out_of_date_goes(folder: Path) -> None:
    run()
    before = {path: path.stat().st_mtime_ns for path in (folder / "out").glob("*.jsonl")}
    assert run().outcome.tasks == 0
    assert {path: path.stat().st_mtime_ns for path in (folder / "out").glob("*.jsonl")} == before
    write(folder / "in" / "c.jsonl", 5)
    assert run().outcome.tasks == 1
    assert len(ids(folder)) == 2 * RECORDS + 5


@pytest.mark.slow
def test_what_shapes_the_outputs_is_a_part_of_the_job(folder: Path) -> None:
    def other(task: Task) -> Task:
        return double(task)

    run(parameters={"model": 1})
    with pytest.raises(JobMismatchError, match="model: was 1, is 2"):
        run(parameters={"model": 2})
    with pytest.raises(JobMismatchError, match=r"functions code .*other: was not set"):
        run(other, parameters={"model": 1})
    with (
        pytest.raises(JobMismatchError, match="pipeline: was 'double', is 'triple'"),
        lb.Pipeline(ledger="L", name="triple", workers=1) as pipeline,
    ):
        build(pipeline)
    with (
        pytest.raises(JobMismatchError, match="task_records: was 10, is 5"),
        lb.Pipeline(ledger="L", name="double", workers=1, parameters={"model": 1}) as pipeline,
    ):
        build(pipeline, task_records=5)
    assert run(parameters={"model": 2}, on_job_change="restart").outcome.tasks == 12


def test_a_plain_pipeline_can_be_run_under_a_ledger(folder: Path) -> None:
    pipeline = beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"]))
    build(pipeline)
    assert lb.run(pipeline, ledger="L", name="double", workers=1).outcome.tasks == 12
    assert run().outcome.tasks == 0, "another job"


def test_a_pipeline_without_a_ledger_is_refused(folder: Path) -> None:
    pipeline = beam.Pipeline("FnApiRunner")
    build(pipeline)
    with pytest.raises(UsageError, match=r"this pipeline has no ledger: make it with ledgerbeam\.Pipeline"):
        pipeline.run()
    assert not (folder / "out").exists()


def test_sizes_may_be_texts(folder: Path) -> None:
    with lb.Pipeline(ledger="L", name="double", workers=1) as pipeline:
        chain = pipeline | MatchSources("in/*.jsonl", pack="2K") | SkipCompleted() | PlanTasks("20K")
        chain | ReadTasks() | WriteTasks("out", "jsonl") | CommitTasks()
    job = store().job()
    assert job is not None
    assert (job.parameters["pack_bytes"], job.parameters["task_bytes"]) == (2048, 20480)
    with pytest.raises(UsageError, match="MatchSources: pack: expected a size such as 16M, found 'big'"):
        MatchSources("in/*.jsonl", pack="big")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"name": None}, "the pipeline has no name"),
        ({"on_job_change": "ignore"}, "on_job_change: expected one of 'refuse', 'restart', 'accept'"),
        ({"existing": "burn"}, "existing: expected one of 'replace', 'keep', None, found 'burn'"),
        ({"parameters": {"output": 1}}, "parameters: output: the pipeline sets these itself"),
        ({"options": ["--no_such_option=1"]}, "unknown Beam options: --no_such_option"),
    ],
)
def test_what_cannot_mean_anything_is_refused_before_a_run(folder: Path, values: dict[str, Any], said: str) -> None:
    pipeline = lb.Pipeline(**{"ledger": "L", "name": "double", **values})
    build(pipeline)
    with pytest.raises(UsageError, match=said):
        pipeline.run()
    assert sorted(os.listdir(folder)) == ["in"]


def test_workers_in_the_cloud_cannot_reach_local_files(folder: Path) -> None:
    options = ["--runner=PortableRunner", "--job_endpoint=localhost:1", "--environment_type=DOCKER"]
    pipeline = lb.Pipeline(ledger="L", name="double", options=options)
    build(pipeline)
    with pytest.raises(UsageError, match="must be on an object store"):
        pipeline.run()


def fail(task: Task) -> Any:
    return FailedTask(task, "not now") if task.start == 0 else double(task)


@pytest.mark.slow
@pytest.mark.parametrize("error", [LedgerError, ValueError])
def test_what_was_done_before_a_transform_of_the_user_raised_is_recorded(folder: Path, error: type[Exception]) -> None:
    """The worker is the wave itself, and its writer would wait for longer than the run takes."""
    done: list[Task] = []

    def give_on(task: Task) -> Task:
        if len(done) == 7:
            raise error("of the user")
        done.append(task)
        return task

    with (
        pytest.raises(LedgerbeamError, match="of the user"),
        lb.Pipeline(ledger="L", name="give on", workers=1, flush_interval=100) as pipeline,
    ):
        build(pipeline, step=beam.Map(give_on).with_output_types(Task))
    assert store().status()["tasks"]["done"] > 0


@pytest.mark.slow
def test_failed_tasks_are_told_and_tried_again(folder: Path) -> None:
    result = run(fail)
    assert (result.state, result.status["tasks"]) == ("FAILED", {"done": 9, "failed": 3})
    with pytest.raises(
        lb.LedgerbeamError, match=r"3 failed tasks: \S+/a.jsonl\[0:10\]: not now; .*; call it again to retry"
    ):
        result.raise_for_failures()
    run(parameters={}, on_job_change="accept").raise_for_failures()


@pytest.mark.slow
def test_a_task_that_a_transform_of_the_user_drops_is_not_lost_in_silence(folder: Path) -> None:
    def first(task: Any) -> list[Any]:
        return [task] if getattr(task, "start", 0) == 0 else []

    pipeline = lb.Pipeline(ledger="L", name="double", workers=1)
    tasks = planned(pipeline)
    kept = tasks | ReadTasks() | beam.FlatMap(first).with_output_types(TASKS)
    kept | WriteTasks("out", "jsonl") | CommitTasks()
    with pytest.raises(LedgerError, match="3 sources left open, although nothing failed"):
        pipeline.run()


def die_once(mark: str, task: Task) -> Task:
    """Kill the worker at the third task of all that are begun, once."""
    if task.start == 20:
        try:
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return double(task)
        os.kill(os.getpid(), signal.SIGKILL)
    return double(task)


def note(path: str, line: Any) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(f"{line}\n")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_what_comes_behind_the_chain_has_all_that_a_run_did_whatever_died(
    folder: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waves, "WAVE_TASKS", 6)  # each source makes a wave

    def go(function: Callable[[Task], Any], marked: str) -> None:
        with lb.Pipeline(ledger="L", name="double", workers=workers, on_job_change="accept") as pipeline:
            committed = build(pipeline, function)
            (
                committed
                | beam.Map(lambda task: task.records)
                | beam.CombineGlobally(sum)
                | beam.Map(functools.partial(note, marked))
            )
            (
                committed
                | "Spans" >> beam.Map(lambda task: (os.path.basename(task.source), task.start, task.stop))
                | ("Note" >> beam.Map(functools.partial(note, f"{marked}.spans")))
            )

    go(functools.partial(die_once, str(folder / "died")), str(folder / "first"))
    assert (folder / "died").exists()
    assert (folder / "first").read_text() == f"{3 * RECORDS}\n", "it ran once, with all waves"
    spans = [(f"{name}.jsonl", start, start + 10) for name in "abc" for start in range(0, RECORDS, 10)]
    assert sorted((folder / "first.spans").read_text().splitlines()) == [str(span) for span in spans]

    write(folder / "in" / "d.jsonl", 7)
    go(double, str(folder / "second"))
    assert (folder / "second").read_text() == "7\n", "what this run did, and nothing else"


def indexes_there(task: Task) -> Task:
    found = sum(name.endswith(".idx") for name in os.listdir(os.path.dirname(task.source.url)))
    return task.replace(records=[{"id": f"{os.path.basename(task.source.url)} {found}"}])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first_bytes", "workers", "there"),
    [(1, 1, (1, 2, 3)), (1 << 30, 1, (3, 3, 3)), (1, 2, (2, 2, 3))],
)
def test_the_first_tasks_wait_for_the_indexes_of_the_first_wave_alone(
    folder: Path, first_bytes: int, workers: int, there: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waves, "FIRST_BYTES", first_bytes)
    monkeypatch.setattr(waves, "WAVE_GROWTH", 0)
    run(indexes_there, workers=workers)
    seen = zip("abc", there, strict=True)
    assert ids(folder) == [f"{name}.jsonl {count}" for name, count in seen for _ in range(0, RECORDS, 10)]


@pytest.mark.slow
def test_a_worker_that_dies_behind_the_chain_ends_the_run(folder: Path) -> None:
    pipeline = lb.Pipeline(ledger="L", name="double", workers=1)
    build(pipeline) | beam.Map(lambda _: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(WorkerDiedError, match=r"after CommitTasks\. All tasks of this run are recorded"):
        pipeline.run()
    assert store().status()["sources"]["complete"] == 3


def test_summaries_on_another_runner_come_after_their_commit(folder: Path) -> None:
    marked = str(folder / "committed")

    def look(task: CommittedTask) -> None:
        done = {row.output.name for row in open_store(str(folder / "L"), read_only=True).outputs()}
        assert {output.name for output in task.outputs} <= done
        note(marked, task.start)

    options = ["--runner=BundleBasedDirectRunner"]
    with lb.Pipeline(ledger="L", name="double", options=options) as pipeline:
        build(pipeline) | beam.Map(look)
    assert pipeline.result.outcome.tasks == 12
    assert len(Path(marked).read_text(encoding="utf-8").split()) == 12


@pytest.mark.slow
def test_a_task_that_ends_its_workers_is_set_aside(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    def deadly(task: Task) -> Task:
        if task.source.url.endswith("b.jsonl") and task.start == 10:
            os.kill(os.getpid(), signal.SIGKILL)
        return double(task)

    result = run(deadly)
    assert result.status["tasks"] == {"done": 11, "failed": 1}
    assert "quarantined, since its worker died 3 times" in caplog.text


@pytest.mark.slow
def test_no_secret_goes_to_a_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    dump = wave_files.dump_job

    def noting(job: JobSpec) -> bytes:
        written.append(dump(job))
        return written[-1]

    monkeypatch.setattr(wave_files, "dump_job", noting)
    (folder / "records_of_mine.py").write_text("def same(record):\n    return record\n")
    work = MapRecords("records_of_mine:same", "jsonl")
    run(work, storage_options={"auto_mkdir": True, "key": "very-secret"})
    assert written
    assert all(b"very-secret" not in data for data in written)


@pytest.mark.slow
def test_a_function_may_be_in_a_module_beside_the_program(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "lib").mkdir()
    (folder / "lib" / "beside_program.py").write_text(
        "def same(task):\n    return task.replace(records=list(task.records))\n"
    )
    monkeypatch.syspath_prepend(folder / "lib")
    same = importlib.import_module("beside_program").same

    assert run(same, workers=2).outcome.tasks == 12
    (folder / "lib" / "beside_program.py").write_text("def same(task):\n    return task\n")
    with pytest.raises(JobMismatchError, match="functions module beside_program"):
        run(same)


@pytest.mark.slow
def test_a_function_of_records_says_itself_what_it_is_made_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "records_said.py").write_text("def same(record, n=1):\n    return record\n")

    def go(**values: Any) -> lb.PipelineRun:
        return run(MapRecords("records_said:same", "jsonl", values=values))

    assert go(n=1).outcome.tasks == 12
    with pytest.raises(JobMismatchError, match="set n: was 1, is 2"):
        go(n=2)


def test_the_default_ledger_lies_below_the_working_folder(folder: Path) -> None:
    with lb.Pipeline(name="double", workers=1) as pipeline:
        build(pipeline)
    assert str(pipeline.result.outcome.ledger).startswith(f"{folder}/.ledgerbeam/pipeline-")


def test_the_parts_of_a_chain_are_told_apart_in_the_error(folder: Path) -> None:
    with (
        pytest.raises(UnsupportedShapeError, match="no MatchSources; start the chain with it"),
        lb.Pipeline(name="x") as pipeline,
    ):
        pipeline | beam.Create([1])


READ = 7

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


@pytest.fixture
def cases(folder: Path) -> Path:
    """The working folder, with a source for each case."""
    shutil.rmtree("in")
    os.mkdir("in")
    for name in CASES:
        rows = "".join(json.dumps({"id": number}) + "\n" for number in range(READ))
        (folder / "in" / f"{name}.jsonl").write_text(rows)
    return folder


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
    assert pipeline.result.status["records"]["read"] == READ * len(found)
    return found


@pytest.mark.slow
def test_every_result_of_a_function_of_one_task_counts_what_was_read(cases: Path) -> None:
    found = counts_of(ProcessTask(by_source))
    assert found == {name: counts for name, (_, counts) in CASES.items()}


@pytest.mark.slow
def test_results_of_a_function_of_several_tasks_count_what_was_read(cases: Path) -> None:
    for name in ("no-children", "parts", "part", "copies"):  # a batch has one result for each task
        (cases / "in" / f"{name}.jsonl").unlink()
    found = counts_of(ProcessBatch(by_sources, batch_size=3))
    assert found == {name: CASES[name][1] for name in found}


@pytest.mark.slow
def test_functions_that_follow_others_count_what_was_read(cases: Path) -> None:
    cutting = beam.Map(cut).with_output_types(TASKS)
    found = counts_of(ProcessTask(by_source), ProcessTask(without_odd), ProcessTask(by_source), cutting)
    assert found["none"] == RecordCounts(7, 0, {NOTHING: 7})
    assert found["twice"] == RecordCounts(7, 1, {NOTHING: 6}, {}, {"": 1})
    assert found["copies"].read == found["parts"].read == READ


@pytest.mark.slow
def test_records_that_other_functions_have_made_are_mapped_and_count_as_what_was_read(
    cases: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(cases)
    (cases / "parity.py").write_text(
        "import ledgerbeam as lb\ndef even(record):\n    return record if record['id'] % 2 == 0 else lb.Drop('odd')\n"
    )
    found = counts_of(ProcessTask(by_source), ProcessTask(MapRecords("parity:even", "jsonl")))
    assert found["all"] == RecordCounts(7, 4, {"odd": 3}, {}, {"": 4})
    assert found["fewer"] == RecordCounts(7, 2, {"odd": 2, NOTHING: 3}, {}, {"": 2})
    assert found["twice"] == RecordCounts(7, 7, {}, {}, {"": 8})
    assert found["empty"] == RecordCounts(7, 0, {NOTHING: 7})
    assert found["reason"] == RecordCounts(7, 0, {"short": 7})


@pytest.mark.slow
def test_a_function_of_blocks_counts_what_was_read(cases: Path) -> None:
    found = counts_of(ProcessTask(InBlocks()), pattern="in/all.jsonl")
    assert found == {"all": RecordCounts(7, 3, {NOTHING: 4}, {}, {"": 3})}
