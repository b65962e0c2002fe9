"""`ledger status`: progress, rates, time left and runs of a job."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ledgerbeam.io.storage.stat import stat_many
from ledgerbeam.ledger import Job, LedgerStore, Source
from ledgerbeam.ledger.model.rows import Leaf
from ledgerbeam.ledger.opening import open_local_store, run_folders
from ledgerbeam.pipelines.jobs.one_stage import IndexJob
from ledgerbeam.pipelines.jobs.sources import ListedFiles
from ledgerbeam.pipelines.report.run_info import run_info
from ledgerbeam.pipelines.report.state import JobProgress, job_progress, shown_runs
from tests.pipelines.conftest import Workspace
from tests.pipelines.jobs.test_restart import SLOW, tasks_done, wait_for, write_sources

KEEP = ("map", "functions:keep", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L")


@pytest.mark.slow
def test_status_tells_of_each_run_what_was_done_in_it(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 50)
    assert workspace.run(*KEEP, "--task-bytes", "400").status == 0
    first = workspace.run("ledger", "status", "L", "--json").json["tasks"]["done"]
    workspace.jsonl("in/b.jsonl", 20)
    assert workspace.run(*KEEP, "--task-bytes", "400").status == 0
    status = workspace.run("ledger", "status", "L", "--json").json
    assert status["job"]["pipeline"] == "map"
    assert status["sources"] == {"complete": 2, "open": 0, "failed": 0}
    assert status["tasks"]["failed"] == 0
    assert status["complete"] is True
    assert first > 1
    done = [run["done"] for run in status["runs"]]
    assert [work["tasks"] for work in done] == [first, status["tasks"]["done"] - first]
    assert [work["sources"] for work in done] == [1, 1]
    assert [work["records"] for work in done] == [50, 20]
    assert [run["state"] for run in status["runs"]] == ["done", "done"]
    assert [run["listed"] for run in status["runs"]] == [1, 2]
    assert status["rates"]["run"]["records"] == 20 / status["runs"][1]["seconds"]
    assert status["running"] is False
    assert status["rates"]["minute"] is None
    assert status["time_left"] is None
    text = workspace.run("ledger", "status", "L").out
    assert "2 complete, 0 open, 0 failed" in text
    assert "time left" not in text
    assert text.count(f" on {os.uname().nodename}") == 2
    assert "--task-bytes 400" in text


def test_a_run_that_works_is_told_from_one_that_was_killed(workspace: Workspace) -> None:
    write_sources(workspace)
    process = workspace.start(*SLOW)
    wait_for(lambda: tasks_done(workspace) > 3, process)
    status = workspace.run("ledger", "status", "L", "--json").json
    assert process.poll() is None, "the job has ended before its status was asked for"
    assert status["running"] is True
    assert status["runs"][-1]["state"] == "running"
    assert status["rates"]["minute"]["tasks"] > 0
    assert status["rates"]["run"]["records"] > 0
    process.kill()
    process.communicate()
    status = workspace.run("ledger", "status", "L", "--json").json
    assert status["runs"][-1]["state"] == "killed"
    assert status["running"] is False
    assert status["time_left"] is None
    assert status["rates"] == {"minute": None, "run": None}
    assert status["runs"][-1]["seconds"] is None
    assert status["runs"][-1]["done"]["tasks"] == status["tasks"]["done"] > 3


def progress_of(store: LedgerStore) -> JobProgress:
    return job_progress(store, store.status(), shown_runs(store))


def test_the_time_left_follows_from_the_sizes_of_sources_and_is_none_while_it_is_unknown(tmp_path: Path) -> None:
    sources = [Source(f"/data/{size}", size, "v") for size in (10, 30, 100, 60)]
    store = open_local_store(str(tmp_path / "L"), create=True)
    store.open_job(Job("map", {}))
    assert progress_of(store).time_left is None
    run = store.begin_run(run_info(store, IndexJob(files=ListedFiles()), "local"))
    with run_folders(store).enter(run):
        store.register(sources)
        store.note_listing(run, listed=4, finished=True)
        assert progress_of(store).time_left is None, "no source is complete"
        store.commit([Leaf(source.id, (), "filtered") for source in sources[:2]])
        time.sleep(0.2)
        progress = progress_of(store)
        assert progress.run is not None
        assert progress.run["sources"] == pytest.approx(2 / progress.run["seconds"], rel=0.5)
        seconds = 2 / progress.run["sources"]
        assert progress.time_left == pytest.approx((100 + 60) / (10 + 30) * seconds)
        store.note_listing(run, listed=4, finished=False)
        assert progress_of(store).time_left is None, "what is still to be listed is unknown"
        store.note_listing(run, listed=4, finished=True)
        assert progress_of(store).running
    assert not progress_of(store).running
    store.end_run(run, "interrupted")
    assert progress_of(store).time_left is None, "nothing is at work"


def test_a_run_of_another_host_may_still_work(workspace: Workspace) -> None:
    store = open_local_store(str(workspace.root / "L"), create=True)
    store.open_job(Job("map", {}))
    store.begin_run({"pid": os.getpid(), "host": "another-host"})
    store.close()
    (run,) = workspace.run("ledger", "status", "L", "--json").json["runs"]
    assert run["state"] == "running, or killed"
    assert run["done"] == {"tasks": 0, "records": 0, "bytes": 0, "sources": 0}


def known(workspace: Workspace, *packs: list[Path]) -> None:
    """Registers files in a ledger; a list of files as a pack."""
    store = open_local_store(str(workspace.root / "L"), create=True)
    store.open_job(Job("map", {}))
    for paths in packs:
        members = [Source(info.url, info.size, info.version) for info in stat_many([str(path) for path in paths])]
        store.register(members if len(members) == 1 else [Source.pack(members)])
    store.close()


def test_sources_that_changed_since_are_told_when_asked(workspace: Workspace) -> None:
    files = [workspace.jsonl(f"in/{name}.jsonl", 5) for name in "abcdef"]
    known(workspace, files[:1], files[1:2], files[2:3], files[3:])
    ask = ("ledger", "status", "L", "--check-sources")
    assert workspace.run(*ask, "--json").json["changed_since"] == {"changed": 0, "missing": 0, "sources": []}
    workspace.jsonl("in/a.jsonl", 6)
    (workspace.root / "in/b.jsonl").unlink()
    workspace.jsonl("in/e.jsonl", 5, width=30)  # a member of the pack
    found = workspace.run(*ask, "--json").json["changed_since"]
    assert (found["changed"], found["missing"]) == (2, 1)
    assert sorted((source["problem"], source["source"][-7:]) for source in found["sources"]) == [
        ("changed", "a.jsonl"),
        ("changed", "d.jsonl"),
        ("missing", "b.jsonl"),
    ]
    text = workspace.run(*ask).out
    assert "2 sources changed, 1 missing" in text
    assert f"missing: {workspace.root / 'in/b.jsonl'}" in text
    assert "changed_since" not in workspace.run("ledger", "status", "L", "--json").json
