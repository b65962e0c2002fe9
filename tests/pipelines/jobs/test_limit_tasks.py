"""`--limit-tasks N`: exactly so many tasks, whatever the workers do, and the same command goes on."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.io.listing.pages import list_pages
from ledgerbeam.ledger import LedgerStore, Source
from ledgerbeam.ledger.model.rows import Failure, Leaf
from ledgerbeam.ledger.worker.run_folders import TaskBudget
from ledgerbeam.pipelines.console.reporter import Reporter
from ledgerbeam.pipelines.jobs.one_stage import IndexJob
from ledgerbeam.pipelines.jobs.sources import ListedFiles
from ledgerbeam.pipelines.runners.local import LocalRunner
from ledgerbeam.pipelines.runners.run import run_job
from ledgerbeam.pipelines.runners.waves import WaveEnd, Waves
from tests.pipelines.conftest import Workspace

COMMAND = (
    *("map", "functions:upper", "in/*", "--output", "out", "--to", "jsonl", "--ledger", "L"),
    *("--task-bytes", "1000", "--json"),
)


def run(workspace: Workspace, *options: str, status: int = 0) -> Any:
    ran = workspace.run(*COMMAND, *options, status=status)
    return {**ran.json, "err": ran.err}


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_exactly_so_many_tasks_are_done_and_the_next_run_goes_on(workspace: Workspace, workers: str) -> None:
    for name in "abcdef":
        workspace.jsonl(f"in/{name}.jsonl", 100)  # about five tasks
    limited = ("--workers", workers, "--limit-tasks", "7")
    first = run(workspace, *limited)
    assert (first["tasks"]["done"], first["limited"], first["complete"]) == (7, True, False)
    assert "stopped after 7 tasks because of --limit-tasks" in first["err"]
    shards = [name for name in workspace.files("out") if name.endswith(".jsonl")]
    assert len(shards) == 7
    second = run(workspace, *limited)
    assert (second["tasks"]["done"], second["limited"]) == (14, True)
    last = run(workspace, "--workers", workers)
    assert (last["complete"], last["limited"]) == (True, False)
    assert sorted(record["id"] for record in workspace.records("out")) == sorted(list(range(100)) * 6)
    assert last["tasks"]["done"] == len([name for name in workspace.files("out") if name.endswith(".jsonl")])


@pytest.mark.slow
def test_a_limit_of_all_that_is_left_ends_the_job_as_ever(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 40)
    workspace.jsonl("in/b.jsonl", 40)
    done = run(workspace, "--limit-tasks", "1000")
    assert (done["complete"], done["limited"]) == (True, False)
    tasks = done["tasks"]["done"]
    again = run(workspace, "--ledger", "M", "--existing", "replace", "--limit-tasks", str(tasks))
    assert (again["tasks"]["done"], again["complete"], again["limited"]) == (tasks, True, False)


@pytest.mark.slow
def test_a_compressed_source_is_done_in_part(workspace: Workspace) -> None:
    plain = workspace.jsonl("a.jsonl", 200)
    (workspace.root / "in").mkdir()
    (workspace.root / "in/a.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    assert run(workspace, "--limit-tasks", "3")["tasks"]["done"] == 3
    assert len(workspace.records("out")) < 200
    assert run(workspace)["complete"]
    assert [record["id"] for record in workspace.records("out")] == list(range(200))


@pytest.mark.slow
def test_tasks_that_fail_count_so_that_a_broken_function_ends(workspace: Workspace) -> None:
    for name in "abcdef":
        workspace.jsonl(f"in/{name}.jsonl", 20)
    workspace.succeed(*COMMAND, "--limit-tasks", "2", "--task-bytes", "1M", "--workers", "2")
    (workspace.root / "functions.py").write_text("def upper(record):\n    raise ValueError('no')\n")
    broken = run(workspace, "--ledger", "M", "--existing", "keep", "--task-bytes", "1M", "--limit-tasks", "2", status=3)
    assert (broken["tasks"]["failed"], broken["limited"]) == (2, True)


@pytest.mark.slow
def test_a_worker_that_dies_does_not_lift_the_limit(workspace: Workspace) -> None:
    (workspace.root / "functions.py").write_text(
        "import os, signal\n"
        "def upper(record):\n"
        "    if record['id'] == 30 and not os.path.exists('died'):\n"
        "        open('died', 'w').close()\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return record\n"
    )
    for name in "abc":
        workspace.jsonl(f"in/{name}.jsonl", 100)
    ran = run(workspace, "--limit-tasks", "6", "--workers", "2", "--audit=off", "--flush-interval", "0.05")
    assert (workspace.root / "died").exists()
    assert ran["tasks"]["done"] == 6


def test_where_a_worker_died_tasks_that_failed_before_count_too(
    tmp_path: Path, store: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n" * 9)
    (page,) = list_pages([str(tmp_path / "a.jsonl")])
    source = Source(page.urls[0], page.sizes[0], page.versions[0])
    granted: list[int] = []

    def wave(runner: LocalRunner, part: str, folder: str, *_: Any) -> WaveEnd:
        budget = TaskBudget.below(folder)
        granted.append(budget.left())
        if len(granted) > 1:
            budget.claim(granted[-1])
            return WaveEnd()
        done = Leaf(source.id, ((0, 9),), "published", (), 1, 3)
        store.commit([done], [Failure(source.id, ((1, 9),), "task", "ValueError", "no")])
        return WaveEnd("a worker process ended", [])

    monkeypatch.setattr(LocalRunner, "_wave", wave)
    files = ListedFiles(patterns=(str(tmp_path / "*.jsonl"),), base=f"{tmp_path}/")
    job = IndexJob(files=files, task_limit=5).resolve_ledger(str(tmp_path / "L"))
    console = Reporter(as_json=False, quiet=True)
    run_job(job, store, iter([page]), console, waves=Waves("warning"))
    assert granted == [5, 3]


def test_a_budget_grants_what_is_left(tmp_path: Path) -> None:
    budget = TaskBudget.below(str(tmp_path))
    budget.make(5)
    assert [budget.claim(1), budget.claim(3), budget.claim(3), budget.claim(1)] == [1, 3, 1, 0]
    assert budget.left() == 0
