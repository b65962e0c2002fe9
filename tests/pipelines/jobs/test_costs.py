"""Cost estimates of jobs: by the law, and by the tasks that a ledger has recorded."""

from __future__ import annotations

import dataclasses
import gzip
import os
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.ledger import Job, Source
from ledgerbeam.ledger.opening import open_local_store
from ledgerbeam.pipelines.jobs.map import MapJob, MappedFunction
from ledgerbeam.pipelines.jobs.sources import ListedFiles
from ledgerbeam.pipelines.preview.costs import CostShape, CostTally, Pace, cost_of_rest
from tests.ledger.stores import finish
from tests.pipelines.conftest import Workspace

GIGABYTE, TASK = 10**9, 16 * 2**20


def shape(*on_stores: str, workers: int = 2, task_bytes: int | None = TASK, is_packed: bool = False) -> CostShape:
    size = task_bytes or 1000
    return CostShape(task_bytes, lambda total: max(1, -(-total // size)), is_packed, workers, frozenset(on_stores))


def tally(given: CostShape, sizes: list[int], members: int = 0, pace: Pace | None = None) -> CostTally:
    made = CostTally(given, pace)
    for size in sizes:
        made.add(size, members)
    return made


def test_the_law_gives_back_the_job_that_it_was_measured_by() -> None:
    """10 sources of 6.4 GB in 400 tasks took two workers 88 s; so docs/scale-measurements.md says."""
    cost = tally(shape(), [640_000_000] * 10).cost()
    assert cost.tasks == 390
    assert cost.seconds == pytest.approx(88, rel=0.1)
    assert cost.requests == 0
    assert cost.ledger_bytes == pytest.approx(0.46e6, rel=0.3)
    assert cost.memory_bytes == pytest.approx(263e6, rel=0.15)
    assert (cost.outputs, cost.output_bytes, cost.basis) == (780, None, "law")


def test_a_hundred_thousand_small_sources_are_better_packed() -> None:
    """They took 117 s in tasks of their own, and 5.8 s packed."""
    made = tally(shape(), [1000] * 100_000)
    assert made.cost().seconds == pytest.approx(117, rel=0.15)
    (packed,) = [cost for cost in made.other_ways() if cost.change.startswith("--pack")]
    assert packed.change == "--pack 16M"
    assert packed.seconds == pytest.approx(5.8, rel=0.2)
    assert packed.ledger_bytes == pytest.approx(27e6, rel=0.4)


def test_a_job_of_few_large_sources_is_not_better_packed() -> None:
    changes = [cost.change for cost in tally(shape(), [GIGABYTE] * 4).other_ways()]
    assert changes == ["--task-bytes 64M", "--task-bytes 256M"]
    assert list(tally(shape(task_bytes=None, is_packed=True), [10**6] * 3).other_ways()) == []


def test_requests_are_those_to_what_lies_on_a_store() -> None:
    found = {
        stores: tally(shape(*stores), [TASK] * 100).cost().requests
        for stores in [(), ("outputs",), ("ledger",), ("sources",), ("sources", "outputs", "ledger")]
    }
    assert list(found.values()) == [0, 200, 10, 600, 810]


def test_hosts_share_only_what_a_ledger_on_a_store_records() -> None:
    assert [cost.change for cost in tally(shape("ledger"), [TASK] * 10).other_ways()] == ["4 hosts"]
    here, there = tally(shape("ledger"), [GIGABYTE] * 10), tally(shape(), [GIGABYTE] * 10)
    assert not [cost for cost in there.other_ways() if "hosts" in cost.change]
    hosts = {cost.change: cost.seconds for cost in here.other_ways()}
    assert hosts["16 hosts"] < hosts["4 hosts"] < here.cost().seconds
    assert hosts["4 hosts"] - 0.8 == pytest.approx((here.cost().seconds - 0.8) / 4, rel=0.01)  # 0.8 s of the start


def test_what_was_recorded_counts_for_more_than_the_law() -> None:
    cost = tally(shape(), [10 * TASK] * 4, pace=Pace(seconds=3.0, written_bytes=1000)).cost()
    assert cost.basis == "recorded"
    assert cost.worker_seconds == pytest.approx(120, rel=0.01)
    assert cost.output_bytes == 40_000


def test_tasks_that_are_done_cost_nothing_more() -> None:
    made = CostTally(shape())
    assert (made.cost().seconds, made.cost().requests, list(made.other_ways())) == (0, 0, [])
    assert made.add(10 * TASK, 0, done=4) == 6
    assert made.cost().read_bytes == 6 * TASK
    assert made.add(TASK, 0, done=5) == 1  # an open source has at least one task left


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ({"output": "/out", "ledger": "/L"}, set()),
        ({"output": "s3://b/out", "ledger": "/L"}, {"outputs"}),
        ({"output": "/out", "ledger": "s3://b/L", "patterns": ("s3://b/*.jsonl",)}, {"ledger", "sources"}),
    ],
)
def test_the_shape_of_a_job(job: dict[str, object], expected: set[str]) -> None:
    files = ListedFiles(patterns=job.pop("patterns", ("/in/*.jsonl",)), pack_bytes=100)  # type: ignore[arg-type]
    made = MapJob(files=files, functions=(MappedFunction("f", "m:f", {"module": {}}),), to="jsonl", workers=3, **job)  # type: ignore[arg-type]
    found = CostShape.of_job(made)
    assert (set(found.on_stores), found.is_packed, found.workers, found.task_bytes) == (expected, True, 3, TASK)
    counted = dataclasses.replace(made, files=dataclasses.replace(files, task_records=5, pack_bytes=None))
    assert CostShape.of_job(counted).task_bytes is None


@pytest.mark.parametrize("sources", [[], [Source("/in/a.jsonl", 10 * TASK, "1")]])
def test_the_rest_of_a_job_that_has_just_begun_or_has_no_outputs(tmp_path: Path, sources: list[Source]) -> None:
    store = open_local_store(str(tmp_path / "L"), create=True)
    store.open_job(Job("index", {"task_bytes": TASK}))
    store.begin_run({"workers": 2})
    store.register(sources)
    cost = cost_of_rest(store, store.status()["sources"])
    assert (None if cost is None else (cost.tasks, cost.requests)) == ((10, 0) if sources else None)
    store.close()


@pytest.mark.slow
def test_a_dry_run_and_the_status_tell_it(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 300)
    workspace.jsonl("in/b.jsonl", 300, first=300)
    job = ("map", "functions:keep", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L")
    command = (*job, "--task-bytes", "500")
    planned = workspace.run(*command, "--dry-run", "--json").json
    here, *others = planned["costs"]
    assert here["tasks"] == planned["tasks"] > 20
    assert [cost["change"] for cost in others] == ["--task-bytes 2000", "--task-bytes 8000"]
    lines = workspace.run(*command, "--dry-run").out.splitlines()
    assert any(line.startswith("predicted: about ") for line in lines)
    workspace.succeed(*command, "--limit-tasks", "20")
    status = workspace.run("ledger", "status", "L", "--json").json
    rest = status["rest"]
    assert (rest["basis"], rest["tasks"]) == ("recorded", here["tasks"] - 20)
    assert rest["output_bytes"] > 0
    assert "\nrest " in workspace.run("ledger", "status", "L").out
    assert workspace.run(*command).status == 0
    assert workspace.run("ledger", "status", "L", "--json").json["rest"] is None


SLOW = """import time
def slow(record):
    time.sleep(0.02)
    return record
"""


def test_a_dry_run_measures_the_function_and_looks_into_compressed_sources(workspace: Workspace) -> None:
    (workspace.root / "slowly.py").write_text(SLOW)
    (workspace.root / "in").mkdir()
    rows = b"".join(b'{"id": %d, "text": "%s"}\n' % (number, b"long " * 40) for number in range(1000))
    (workspace.root / "in/a.jsonl.gz").write_bytes(gzip.compress(rows))
    job = ("map", "slowly:slow", "in/*", "--output", "out", "--to", "jsonl", "--workers", "2", "--task-bytes", "10000")
    planned = workspace.run(*job, "--dry-run", "--json").json
    cost = planned["costs"][0]
    assert (planned["tasks"], cost["basis"]) == (pytest.approx(len(rows) / 10_000, rel=0.2), "measured")
    assert 1000 * 0.02 * 0.9 < cost["worker_seconds"] < 1000 * 0.02 * 10  # a busy machine takes longer
    assert not (workspace.root / "out").exists()


def test_the_rest_of_compressed_sources_goes_by_those_that_are_complete(tmp_path: Path) -> None:
    store = open_local_store(str(tmp_path / "L"), create=True)
    store.open_job(Job("map", {"task_bytes": TASK}))
    store.begin_run({"workers": 2})
    done, left = (Source(f"/in/{name}.jsonl.gz", TASK, "1") for name in "ab")
    store.register([done, left])
    finish(store, done, 5)
    cost = cost_of_rest(store, store.status()["sources"])
    assert cost is not None
    assert (cost.tasks, cost.basis) == (5, "recorded")
    store.close()


COMMAND = ("map", "functions:bad_seven", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L")


def tree(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return every file and folder, with its times and content; LMDB's table of readers is no data."""
    found = {}
    for path in sorted(root.rglob("*")):
        if path.name != "lock.mdb":
            state = path.stat()
            found[str(path)] = (state.st_mtime_ns, state.st_size, path.read_bytes() if path.is_file() else b"")
    return found


def preview(workspace: Workspace, *options: str, command: tuple[str, ...] = COMMAND) -> Any:
    """Return the output of a dry run, after a check that it has written nothing."""
    before = tree(workspace.root)
    ran = workspace.succeed(*command, "--dry-run", "--json", *options)
    assert tree(workspace.root) == before
    plain = workspace.succeed(*command, "--dry-run", *options)
    assert "nothing was written" in plain.out
    assert tree(workspace.root) == before
    return {**ran.json, "text": plain.out}


def test_nothing_is_there_and_nothing_is_made(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 100)
    workspace.jsonl("in/b.jsonl", 10)
    found = preview(workspace, "--task-bytes", "1000")
    assert found["new"]
    assert found["sources"] == {"complete": 0, "new": 2, "changed": 0, "failed": 0, "open": 0, "gone": 0}
    assert 4 <= found["tasks"] <= 6
    assert not (workspace.root / "L").exists()
    assert not (workspace.root / "out").exists()


@pytest.mark.slow
def test_each_source_has_its_state_and_the_run_does_as_was_said(workspace: Workspace) -> None:
    for name, first in (("done", 100), ("fails", 0), ("changes", 200), ("goes", 300)):
        workspace.jsonl(f"in/{name}.jsonl", 10, first=first)
    assert workspace.run(*COMMAND).status == 3
    workspace.jsonl("in/changes.jsonl", 12, first=200)
    workspace.jsonl("in/fresh.jsonl", 10, first=400)
    (workspace.root / "in/goes.jsonl").unlink()
    found = preview(workspace)
    assert found["sources"] == {"complete": 1, "new": 1, "changed": 1, "failed": 1, "open": 0, "gone": 1}
    names = {state: [os.path.basename(url) for url in urls] for state, urls in found["examples"].items()}
    assert names == {
        "complete": ["done.jsonl"],
        "new": ["fresh.jsonl"],
        "changed": ["changes.jsonl"],
        "failed": ["fails.jsonl"],
        "gone": ["goes.jsonl"],
    }
    assert found["tasks"] == 3
    assert (found["removed"]["count"], found["refused"], found["differences"]) == (2, [], [])  # the shard and its index
    ran = workspace.run(*COMMAND, "--json", status=3)
    assert ran.json["tasks"] == {"done": 4, "failed": 1}  # done, changes, goes, fresh; fails failed again


@pytest.mark.slow
def test_a_changed_function_is_named_with_what_each_choice_does(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 5)
    assert workspace.run(*COMMAND).status == 0
    with (workspace.root / "functions.py").open("a") as file:
        file.write("\n# changed\n")
    refused = preview(workspace)
    assert len(refused["differences"]) == 1
    assert "the ledger holds another job" in refused["refused"][0]
    assert "the run would be refused" in refused["text"]
    restart = preview(workspace, "--on-job-change", "restart")
    assert (restart["sources"]["new"], restart["removed"]["count"], restart["refused"]) == (1, 2, [])
    accept = preview(workspace, "--on-job-change", "accept")
    assert (accept["sources"]["complete"], accept["tasks"]) == (1, 0)


@pytest.mark.slow
def test_a_folder_of_others_is_told(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 5)
    assert workspace.run(*COMMAND).status == 0
    other = (*COMMAND[:-1], "M")
    assert "belongs to another ledger" in preview(workspace, command=other)["refused"][0]
    replaced = preview(workspace, "--existing", "replace", command=other)
    assert (replaced["refused"], replaced["removed"]["count"]) == ([], 2)
    assert preview(workspace, "--existing", "keep", command=other)["removed"]["count"] == 0
    named = preview(workspace, "--existing", "replace", command=(*other[:3], "out/*.jsonl", *other[3:]))
    assert "--existing replace would remove it" in named["refused"][0]
    assert named["removed"]["count"] == 0


@pytest.mark.slow
def test_packs_are_sources(workspace: Workspace) -> None:
    for number in range(6):
        workspace.jsonl(f"in/{number}.jsonl", 5)
    packed = (*COMMAND, "--pack", "600")
    packs = preview(workspace, command=packed)["sources"]["new"]
    assert 1 < packs < 6
    assert workspace.run(*packed, "--audit=off").status == 0
    assert preview(workspace, command=packed)["sources"]["complete"] == packs
