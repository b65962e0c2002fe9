"""An exchange by two pipelines of a user: what the commands write, restarted anywhere, and refused where incomplete."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import s3fs

import ledgerbeam as lb
from ledgerbeam.errors import JobMismatchError, ScatterIncompleteError, UnsupportedShapeError, UsageError
from ledgerbeam.ledger import Task
from ledgerbeam.ledger.opening import open_store
from ledgerbeam.ledger.worker.writer import close_shared_writers
from ledgerbeam.pipelines.jobs.pipeline import GatheredRuns
from ledgerbeam.results import Drop, Route
from ledgerbeam.transforms import (
    CommitTasks,
    Gather,
    GroupRecords,
    KeepRecords,
    MapRecords,
    MatchSources,
    PlanTasks,
    ProcessTask,
    ReadTasks,
    Scatter,
    SkipCompleted,
    WriteTasks,
)
from tests.conftest import S3Server
from tests.pages import ROOT
from tests.pipelines.exchanges.stages import write_jsonl
from tests.servers import pins, prism

SIZE = 1500
HASHED: dict[str, Any] = {"order": "hash", "bucket_bytes": SIZE}


def rows(name: str, count: int) -> list[dict[str, Any]]:
    chosen = random.Random(name)
    return [{"k": chosen.choice([None, n % 7, "x", 0.5 * n]), "name": name, "n": n} for n in range(count)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder, with three sources."""
    monkeypatch.chdir(tmp_path)
    for name in "abc":
        write_jsonl(tmp_path / "in" / f"{name}.jsonl", rows(name, 100))
    yield tmp_path
    close_shared_writers()


def scatter(
    *between: Callable[[Task], Any], by: Any = "k", on_job_change: Any = "refuse", **values: Any
) -> lb.PipelineRun:
    with lb.Pipeline(ledger="S", name="scatter", workers=1, on_job_change=on_job_change) as pipeline:
        tasks = pipeline | MatchSources("in/*.jsonl") | SkipCompleted() | PlanTasks(SIZE) | ReadTasks()
        for position, function in enumerate(between):
            tasks = tasks | f"Between {position}" >> ProcessTask(function)
        tasks | Scatter("runs", by, **(values or {"bucket_bytes": SIZE})) | CommitTasks()
    return pipeline.result


def gather(
    *functions: Callable[[Task], Any],
    runs: str = "runs",
    ledger: str = "S",
    size: int = SIZE,
    on_job_change: Any = "refuse",
    **values: Any,
) -> lb.PipelineRun:
    with lb.Pipeline(ledger="G", name="gather", workers=1, on_job_change=on_job_change) as pipeline:
        buckets = pipeline | Gather(runs, ledger=ledger, **values)
        tasks = buckets | SkipCompleted() | PlanTasks(size) | ReadTasks()
        for position, function in enumerate(functions):
            tasks = tasks | f"Function {position}" >> ProcessTask(function)
        tasks | WriteTasks("out", "jsonl") | CommitTasks()
    return pipeline.result


def files(folder: str) -> dict[str, bytes]:
    paths = [path for path in Path(folder).rglob("*") if path.is_file() and path.parent.name != "_ledgerbeam"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def records(folder: str = "out") -> list[Any]:
    paths = sorted(Path(folder).glob("*.jsonl"))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def sources() -> list[dict[str, Any]]:
    return records("in")


def count_and_sum(key: Any, group: Iterator[dict[str, Any]]) -> dict[str, Any]:
    ns = [record["n"] for record in group]
    return {"k": key, "times": len(ns), "sum": sum(ns)}


def is_grouped(task: Task) -> Task:
    assert type(task.records) is list
    return task


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "by", "values"),
    [
        (lb.sort, "k", {}),
        (lb.sort, ["name", "n"], {"descending": True}),
        (lb.sort, lambda record: record["n"] % 5, {}),
        (lb.repartition, None, {}),
        (partial(lb.group, count_and_sum), "k", {}),
    ],
    ids=["sort", "sort by fields", "sort by a function", "repartition", "group"],
)
def test_it_does_what_the_command_does(
    folder: Path, command: Callable[..., Any], by: Any, values: dict[str, Any]
) -> None:
    grouped = command not in (lb.sort, lb.repartition)
    assert scatter(by=by, **(HASHED if grouped else {"bucket_bytes": SIZE, **values})).outcome.complete
    work: Any = GroupRecords(count_and_sum, "jsonl", by="k") if grouped else KeepRecords("jsonl")
    assert gather(work, whole_keys=grouped).outcome.complete
    how = {"shard_bytes": SIZE, "task_bytes": SIZE, "workers": 1, **values}
    command(["in/*.jsonl"], output="by-command", to="jsonl", **how, **({} if by is None else {"by": by}))
    assert files("out") == files("by-command")
    if by is None:
        assert records() == sources()


def halves(task: Task) -> list[Task]:
    found = [{**record, "half": record["n"] // 2, "text": "é" * 3} for record in task.records]
    return task.fan_out([found[::2], found[1::2]])


def even(record: dict[str, Any]) -> Any:
    return Drop("odd") if record["n"] % 2 else [record, {**record, "again": True}]


@pytest.mark.slow
@pytest.mark.parametrize("by", ["half", pytest.param(None, marks=pytest.mark.slow)])
def test_functions_may_stand_before_and_behind(folder: Path, by: str | None) -> None:
    scatter(halves, by=by, **({"cuts": [10, 20, 5, 40]} if by else {"buckets": 4}))
    mapped = MapRecords(f"{__name__}:even", "jsonl")
    result = gather(mapped)
    made = [{**row, "half": row["n"] // 2, "text": "é" * 3} for row in sources()]
    if by:
        assert (result.outcome.summary["sources"]["complete"], result.status["records"]["dropped"]) == (5, {"odd": 150})
        # Those of the first half of a task lie before those of the second.
        expected = sorted((row for row in made if row["n"] % 2 == 0), key=lambda row: row["half"])
        assert [row for row in records() if "again" not in row] == expected
    else:
        found = [row for row in records() if "again" not in row]
        assert [(row["name"], row["n"]) for row in found] == [
            (row["name"], row["n"]) for row in made if not row["n"] % 2
        ]


@pytest.mark.slow
def test_a_function_of_records_may_stand_before(folder: Path) -> None:
    mapped = MapRecords(f"{__name__}:even", "jsonl")
    done = scatter(mapped, **HASHED)
    assert done.status["records"]["dropped"] == {"odd": 150}
    gather(is_grouped)
    key = lambda row: (str(row["k"]), row["name"], row["n"], "again" in row)  # noqa: E731
    expected = [one for row in sources() if row["n"] % 2 == 0 for one in (row, {**row, "again": True})]
    assert sorted(records(), key=key) == sorted(expected, key=key)
    # The sequence of a key is that of sources and records.
    of_x = [(row["name"], row["n"]) for row in records() if row["k"] == "x"]
    assert of_x == sorted(of_x)


@pytest.mark.slow
def test_all_records_of_a_key_are_in_one_task(folder: Path) -> None:
    scatter(buckets=2)
    seen = folder / "seen"

    def note(task: Task) -> Task:
        with seen.open("a") as file:
            file.write(json.dumps(sorted({repr(record["k"]) for record in task.records})) + "\n")
        return task

    gather(note, size=500)
    keys = [key for line in seen.read_text().splitlines() for key in json.loads(line)]
    assert len(seen.read_text().splitlines()) > 4
    assert len(keys) == len(set(keys))


def broken(task: Task) -> Task:
    if task.source.url.endswith("b.jsonl"):
        raise ValueError("not today")
    return task


@pytest.mark.slow
def test_what_is_not_all_scattered_is_refused(folder: Path) -> None:
    with pytest.raises(ScatterIncompleteError, match=r"runs: no pipeline has scattered with \S+/S: .*run the pipeline"):
        gather()
    assert scatter(broken, **HASHED).state == "FAILED"
    with pytest.raises(
        ScatterIncompleteError, match=r"expected every source of \S+/S complete, found 2 complete, 0 open, 1 failed"
    ):
        gather()
    assert not (folder / "out").exists()
    assert not (folder / "G").exists()


@pytest.mark.slow
def test_run_files_that_are_gone_are_scattered_again(folder: Path) -> None:
    scatter(**HASHED)
    lost, *_ = sorted((folder / "runs").rglob("*.run"))
    lost.unlink()
    with pytest.raises(ScatterIncompleteError, match=r"missing 1 run file of the ledger \S+/S\. .*keep_runs=True"):
        gather()
    assert scatter(**HASHED).outcome.tasks == 3, "those of its source"
    assert gather().outcome.complete
    assert len(records()) == 300
    assert not list((folder / "runs").rglob("*.run"))
    assert scatter(**HASHED).outcome.tasks == 0, "what is gathered is not scattered again"
    assert gather().outcome.tasks == 0


@pytest.mark.slow
@pytest.mark.parametrize("keep", [True, False])
def test_what_has_changed_is_gathered_again_and_nothing_else(folder: Path, keep: bool) -> None:
    scatter(**HASHED)
    gather(KeepRecords("jsonl"), keep_runs=keep)
    assert bool(list(Path("runs").rglob("*.run"))) is keep
    before = {path: path.stat().st_mtime_ns for path in (folder / "out").glob("*.jsonl")}
    write_jsonl(folder / "in" / "d.jsonl", [{"k": "x", "name": "d", "n": 0}])
    assert (scatter(**HASHED).outcome.tasks == 1) is keep
    done = gather(KeepRecords("jsonl"), keep_runs=keep)
    assert done.outcome.sources == 1
    assert done.outcome.tasks < len(before) / 2
    after = {path: path.stat().st_mtime_ns for path in (folder / "out").glob("*.jsonl")}
    assert 1 <= sum(after[path] != time for path, time in before.items()) <= done.outcome.tasks
    assert sorted(map(str, records())) == sorted(map(str, sources()))
    (folder / "in" / "d.jsonl").unlink()
    scatter(**HASHED)
    gather(KeepRecords("jsonl"), keep_runs=keep)
    assert sorted(map(str, records())) == sorted(map(str, sources()))


@pytest.mark.slow
def test_another_scatter_is_another_job_to_gather(folder: Path) -> None:
    scatter(**HASHED)
    gather()
    with pytest.raises(JobMismatchError, match=r"scatter buckets: was not set, is 3"):
        scatter(order="hash", buckets=3)
    with pytest.raises(JobMismatchError, match=r"whole_keys: was True, is False"):
        gather(whole_keys=False)
    with pytest.raises(JobMismatchError, match=r"task_bytes: was 1500, is 5000"):
        gather(size=5000)


@pytest.mark.slow
def test_gather_takes_the_ledger_that_has_scattered_there(folder: Path) -> None:
    scatter(**HASHED)

    with pytest.raises(UsageError, match=r"Gather\('\S+/other'\): the pipeline of \S+/S has scattered to \S+/runs"):
        gather(runs="other")
    gather()
    with pytest.raises(UsageError, match=r"expected the ledger of a pipeline that ends with Scatter .* of 'gather'"):
        gather(ledger="G")


@pytest.mark.slow
def test_groups_are_those_of_the_key_that_was_scattered(folder: Path) -> None:
    scatter(**HASHED)
    with pytest.raises(UsageError, match=r"expected the key of Scatter in \S+/S, k, found name; use the same key"):
        gather(GroupRecords(count_and_sum, "jsonl", by="name"))
    with pytest.raises(UsageError, match="it needs all records of a key in one task; leave whole_keys=False out"):
        gather(GroupRecords(count_and_sum, "jsonl", by="k"), whole_keys=False)
    with pytest.raises(
        UnsupportedShapeError, match=r"KeepRecords received a list for .*: expected records of a bucket"
    ):
        gather(is_grouped, KeepRecords("jsonl"))


def test_a_task_of_a_bucket_has_a_size_in_bytes(folder: Path) -> None:
    scatter(**HASHED)
    pipeline = lb.Pipeline(ledger="G", name="gather")
    buckets = pipeline | Gather("runs", ledger="S") | SkipCompleted() | PlanTasks(task_records=5)
    buckets | ReadTasks() | WriteTasks("out", "jsonl") | CommitTasks()
    with pytest.raises(UsageError, match="after Gather, the size of a task is in bytes; give task_bytes"):
        pipeline.run()


def test_a_key_that_the_sources_do_not_have_needs_cuts(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"half: expected two or more keys in a sample of the sources.*give cuts"):
        scatter(halves, by="half", buckets=4)


def test_a_key_that_no_record_has_is_told(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    scatter(by="key", order="hash", buckets=2)
    assert "none of 300 records has a key: key is missing, null or empty in each" in caplog.text


def route(record: dict[str, Any]) -> Any:
    return Route("other", record)


def refuse(record: dict[str, Any]) -> Any:
    if record["n"] == 3:
        raise ValueError("not this one")
    return record


@pytest.mark.slow
def test_rejects_stay_behind_and_routes_are_refused(folder: Path) -> None:
    with lb.Pipeline(ledger="S", name="scatter", workers=1) as pipeline:
        read = pipeline | MatchSources("in/*.jsonl") | SkipCompleted() | PlanTasks(SIZE)
        tasks = read | ReadTasks("reject")
        mapped = tasks | ProcessTask(MapRecords(f"{__name__}:refuse", "jsonl", on_error="reject"))
        mapped | Scatter("runs", by="k", buckets=2) | CommitTasks()
    assert pipeline.result.status["records"]["rejected"] == {"ValueError": 3}
    gather()
    assert len(records()) == 297
    assert len(list((folder / "runs" / "_rejects").glob("*.jsonl"))) == 3
    failed = lb.Pipeline(ledger="S2", name="scatter", workers=1)
    read = failed | MatchSources("in/*.jsonl") | SkipCompleted() | PlanTasks(SIZE) | ReadTasks()
    mapped = read | ProcessTask(MapRecords(f"{__name__}:route", "jsonl"))
    mapped | Scatter("runs2", by="k", buckets=2) | CommitTasks()
    run: Any = failed.run()
    with pytest.raises(lb.TasksFailedError, match="found the route 'other'"):
        run.raise_for_failures()


@pytest.mark.slow
def test_what_is_gathered_can_be_scattered_again(folder: Path) -> None:
    scatter(**HASHED)
    with lb.Pipeline(ledger="S2", name="again", workers=1) as pipeline:
        buckets = pipeline | Gather("runs", ledger="S") | SkipCompleted() | PlanTasks(SIZE) | ReadTasks()
        buckets | Scatter("runs2", by="n", cuts=[30, 60]) | CommitTasks()
    gather(runs="runs2", ledger="S2")
    assert [record["n"] for record in records()] == sorted(record["n"] for record in sources())


PROGRAM = ROOT / "examples" / "own_exchange.py"


def start(folder: Path, *options: str, place: str = "", **environment: str) -> subprocess.Popen[str]:
    """Start the example over the pages in the folder, or in another place."""
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, str(PROGRAM), f"{place}pages/*.jsonl", "--size", "1500"]
    for option, name in (("output", "out"), ("runs", "runs"), ("ledger", "L")):
        command += [f"--{option}", f"{place}{name}"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    env = {**os.environ, "PYTHONPATH": paths, **environment}
    return subprocess.Popen([*command, *options], cwd=folder, env=env, **pipes)


def ended(process: subprocess.Popen[str]) -> None:
    out, _ = process.communicate(timeout=240)
    assert process.returncode == 0, out


def write_pages(folder: Path) -> None:
    for name in "abcdefgh":
        pages = [{"url": f"u{number % 40}", "text": f" {name * (number % 9)} "} for number in range(200)]
        write_jsonl(folder / "pages" / f"{name}.jsonl", pages)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What an undisturbed run of the example leaves."""
    folder = tmp_path_factory.mktemp("clean")
    write_pages(folder)
    ended(start(folder))
    return files(str(folder / "out"))


def tasks_done(folder: Path) -> int:
    done = 0
    for ledger in ("scatter", "gather"):
        try:
            done += open_store(str(folder / "L" / ledger), read_only=True).totals().tasks
        except lb.LedgerError:
            continue
    return done


def die_once(mark: str, task: Task) -> Task:
    """Kill the worker at the first task, once."""
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return task
    os.kill(os.getpid(), signal.SIGKILL)
    return task


@pytest.mark.slow
def test_a_worker_that_dies_in_either_pipeline_changes_nothing(folder: Path) -> None:
    for output, marks in (("clean", ("never", "never")), ("out", ("in-scatter", "in-gather"))):
        (folder / "never").touch()
        before, behind = (partial(die_once, str(folder / mark)) for mark in marks)
        scatter(before, **HASHED)
        gather(behind)
        if output == "clean":
            (folder / "out").rename("clean")
            for ledger in "SG":
                shutil.rmtree(ledger)
    assert (folder / "in-scatter").exists()
    assert (folder / "in-gather").exists()
    assert files("out") == files("clean")
    assert len(records()) == 300


@pytest.mark.slow
def test_a_kill_between_the_two_pipelines_changes_nothing(tmp_path: Path, clean: dict[str, bytes]) -> None:
    write_pages(tmp_path)
    killed = start(tmp_path, LEDGERBEAM_FAULT="exchange.tabulated:1")
    killed.communicate(timeout=240)
    assert killed.returncode == -9
    with pytest.raises(ScatterIncompleteError, match="ended before it recorded its buckets; run the pipeline"):
        GatheredRuns.found(f"{tmp_path}/runs", f"{tmp_path}/L/scatter", {}, task_bytes=1500, whole_keys=True)
    close_shared_writers()
    ended(start(tmp_path))
    assert files(str(tmp_path / "out")) == clean
    assert not list((tmp_path / "runs").rglob("*.run"))


@pytest.mark.slow
def test_a_program_that_is_killed_again_and_again_ends_with_the_same_bytes(
    tmp_path: Path, clean: dict[str, bytes]
) -> None:
    write_pages(tmp_path)
    kills = 0
    while True:
        before = tasks_done(tmp_path)
        process = start(tmp_path)
        while process.poll() is None and tasks_done(tmp_path) < before + 10:
            time.sleep(0.005)
        if process.poll() is not None:
            ended(process)
            break
        process.kill()
        process.communicate()
        kills += 1
    assert kills
    assert files(str(tmp_path / "out")) == clean


@pytest.mark.slow
@pytest.mark.skipif(prism.missing() is not None, reason="no Prism")
def test_prism_does_the_same(tmp_path: Path, clean: dict[str, bytes]) -> None:
    write_pages(tmp_path)
    options = ("--runner=PrismRunner", f"--prism_location={pins.PRISM.path}")
    ended(start(tmp_path, *options))
    assert files(str(tmp_path / "out")) == clean


@pytest.mark.slow
@pytest.mark.s3
def test_all_of_it_may_lie_on_an_object_store(folder: Path, s3: S3Server, clean: dict[str, bytes]) -> None:
    bucket = s3.bucket()
    store = s3fs.S3FileSystem(**s3.options)
    write_pages(folder)
    store.put(f"{folder}/pages/", f"{bucket}/pages/", recursive=True)

    def run() -> None:
        ended(start(folder, place=f"s3://{bucket}/", LEDGERBEAM_CACHE=str(folder / "cache"), **s3.env))

    def written() -> dict[str, bytes]:
        store.invalidate_cache()
        names = [name for name in store.find(f"{bucket}/out") if "/_ledgerbeam/" not in name]
        return {name.rpartition("/")[2]: store.cat_file(name) for name in names}

    run()
    assert written() == clean
    assert not [name for name in store.find(f"{bucket}/runs") if name.endswith(".run")]
    store.pipe_file(f"{bucket}/pages/a.jsonl", b'{"url": "u1", "text": "longer than all others"}\n')
    run()
    found = [json.loads(line) for name, data in written().items() if name.endswith("l") for line in data.splitlines()]
    assert {page["url"]: page["text"] for page in found}["u1"] == "longer than all others"
    assert len(found) == 40


@pytest.mark.slow
def test_both_pipelines_may_be_restarted_as_other_jobs(folder: Path) -> None:
    scatter(**HASHED)
    gather()

    for cuts in ([20, 40, 60, 80], [50]):
        scatter(is_grouped, by="n", on_job_change="restart", cuts=cuts)
        gather(on_job_change="restart")
        assert [record["n"] for record in records()] == sorted(record["n"] for record in sources())
        assert len({path.name.partition("-0000000")[0] for path in Path("out").glob("*.jsonl")}) == len(cuts) + 1
