"""`ledger failures`: failures by reason. The printed command of a group retries only this group."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.ledger.model.rows import Mark
from ledgerbeam.ledger.model.store import MAX_ATTEMPTS
from ledgerbeam.ledger.opening import open_local_store
from ledgerbeam.pipelines.report.run_info import retry_command
from tests.pipelines.conftest import FAILING, Workspace, run_failing


def failures(workspace: Workspace) -> Any:
    ran = workspace.run("ledger", "failures", "L", "--json", status=0)
    return ran.json


def in_shell(workspace: Workspace, command: str) -> subprocess.CompletedProcess[str]:
    """Run a printed command line with the `ledgerbeam` of this interpreter."""
    function = f'ledgerbeam() {{ "{sys.executable}" -m ledgerbeam "$@"; }}\n'
    return subprocess.run(
        ["bash", "-c", function + command],
        cwd=workspace.root,
        env=workspace.env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_failures_come_in_groups_the_largest_first(failed_job: Workspace) -> None:
    found = failures(failed_job)
    groups = [(g["reason"], g["count"], g["sources"], g["quarantined"]) for g in found["groups"]]
    assert groups == [("ConnectionError", 2, 2, 0), ("ValueError", 1, 1, 0)]
    assert "record 7" in found["groups"][1]["example"]["error"]
    assert sorted(row["reason"] for row in found["failures"]) == ["ConnectionError", "ConnectionError", "ValueError"]
    text = failed_job.run("ledger", "failures", "L").out
    assert text.index("2 tasks of 2 sources: ConnectionError") < text.index("1 task of 1 source: ValueError")
    for group in found["groups"]:
        assert group["retry"] in text
    assert "replace *** with yours" in text


def test_each_failure_is_printed_once_and_nothing_is_padded(failed_job: Workspace) -> None:
    text = failed_job.run("ledger", "failures", "L").out
    for row in failures(failed_job)["failures"]:
        assert text.count(row["error"]) == 1
    assert not [line for line in text.splitlines() if line != line.rstrip()]
    table = failed_job.run("ledger", "status", "L").out
    assert not [line for line in table.splitlines() if line != line.rstrip()]


@pytest.mark.slow
def test_a_run_with_failed_tasks_is_not_recorded_as_done(failed_job: Workspace, tmp_path: Path) -> None:
    status = failed_job.run("ledger", "status", "L", "--json").json
    assert [(run["outcome"], run["state"]) for run in status["runs"]] == [("tasks failed", "tasks failed")]
    assert status["last_run"]["outcome"] == "tasks failed"
    assert "tasks failed" in failed_job.run("ledger", "status", "L").out
    failed_job.run("ledger", "export", "L", "--table", "runs", "--output", tmp_path / "runs.jsonl", status=0)
    assert '"state":"tasks failed"' in (tmp_path / "runs.jsonl").read_text()
    pytest.importorskip("jinja2")
    pytest.importorskip("vl_convert")
    assert failed_job.run("ledger", "report", "L", "--output", tmp_path / "page.html").status == 0
    assert "tasks failed" in (tmp_path / "page.html").read_text()


@pytest.mark.slow
def test_once_all_tasks_are_done_a_run_is_recorded_as_done(workspace: Workspace) -> None:
    run_failing(workspace)
    (workspace.root / "service-is-up").touch()
    (workspace.root / "functions.py").write_text("def needs_service(record):\n    return record\n")
    workspace.run(*FAILING, "--on-job-change", "accept", status=0)
    runs = workspace.run("ledger", "status", "L", "--json").json["runs"]
    assert [run["outcome"] for run in runs] == ["tasks failed", "done"]


def test_a_ledger_without_failures_says_so(workspace: Workspace) -> None:
    store = open_local_store(str(workspace.root / "L"), create=True)
    store.close()
    assert workspace.run("ledger", "failures", "L").out == "no failures\n"
    assert failures(workspace) == {"groups": [], "failures": []}


@pytest.mark.slow
def test_the_command_of_a_group_does_again_the_sources_of_that_group_only(workspace: Workspace) -> None:
    run_failing(workspace)
    _, value = failures(workspace)["groups"]
    retried = in_shell(workspace, value["retry"])
    assert retried.returncode == 3, retried.stderr
    assert attempts(workspace) == {"a.jsonl": [2, 2], "b.jsonl": [1]}, "b has no ValueError and was done again"

    quarantine(workspace, "b.jsonl")
    (workspace.root / "service-is-up").touch()
    workspace.jsonl("in/d.jsonl", 5, first=100)  # new: a retry leaves it open
    (quarantined,) = [group for group in failures(workspace)["groups"] if group["quarantined"]]
    assert quarantined["sources"] == 1
    retried = in_shell(workspace, quarantined["retry"])
    assert retried.returncode == 3, retried.stderr
    assert attempts(workspace) == {"a.jsonl": [2, 2]}
    status = workspace.run("ledger", "status", "L", "--json").json
    assert status["sources"] == {"complete": 2, "open": 1, "failed": 1}
    assert status["gone"] == 0
    assert status["complete"] is False
    assert sorted(r["id"] for r in workspace.records("out") if r["id"] >= 10) == list(range(10, 30))


def attempts(workspace: Workspace) -> dict[str, list[int]]:
    """Return the number of attempts of each failed task, by source."""
    found: dict[str, list[int]] = {}
    for row in failures(workspace)["failures"]:
        found.setdefault(row["source"][-7:], []).append(row["attempts"])
    return found


def quarantine(workspace: Workspace, name: str) -> None:
    """Record that the failed tasks of a source killed their workers."""
    store = open_local_store(str(workspace.root / "L"), create=False)
    marks = [Mark(row.source_id, row.node, row.task) for row in store.failures() if row.url.endswith(name)]
    for _ in range(MAX_ATTEMPTS):
        store.record_deaths(marks)
    assert any(row.quarantined for row in store.failures())
    store.close()


def test_a_reason_that_no_failure_has_is_refused(failed_job: Workspace) -> None:
    failed_job.run(
        *FAILING, "--only-failed", "No*Error", status=2, err=("no failure has such a reason", "ledger failures")
    )


@pytest.mark.parametrize(
    "words",
    [
        ("map", "functions:odd", "--only-failed", "*"),
        ("map", "functions:odd", "--only-rejected", "*"),
        ("sort", "--by", "id", "--only-failed", "*"),
    ],
    ids=["map failed", "map rejected", "sort failed"],
)
def test_a_choice_of_what_no_job_has_done_makes_nothing(workspace: Workspace, words: Sequence[str]) -> None:
    workspace.jsonl("in/a.jsonl", 3)
    before = sorted(workspace.root.rglob("*"))
    ran = workspace.run(*words, "in/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L")
    assert ran.status == 1
    assert (
        f"error: ledger {workspace.root}/L: it does not exist; check the path, or run the job that creates" in ran.err
    )
    assert sorted(workspace.root.rglob("*")) == before


def test_a_retry_of_some_is_refused_on_other_runners(failed_job: Workspace) -> None:
    failed_job.run(*FAILING, "--only-failed", "*", "--", "--runner=PrismRunner", status=2, err="local runner")


def test_a_retry_command_names_the_ledger_and_the_folder_and_stands_before_beam_options() -> None:
    words = ["ledgerbeam", "map", "f:g", "in/*.jsonl", "--only-failed", "Old", "--", "--direct_runner_bundle_repeat=1"]
    run = {"info": {"command": words, "folder": os.getcwd()}}
    assert retry_command(run, "/data/L", "Why? [x]*") == (
        "ledgerbeam map f:g 'in/*.jsonl' --ledger /data/L '--only-failed=Why[?] [[]x][*]' "
        "-- --direct_runner_bundle_repeat=1"
    )
    run = {"info": {"command": [*words[:4], "--ledger=L"], "folder": "/some where"}}
    assert retry_command(run, "/data/L", "E") == (
        "cd '/some where' && ledgerbeam map f:g 'in/*.jsonl' --ledger=L --only-failed=E"
    )
    for rejected in (["--only-rejected", "KeyError"], ["--only-rejected=KeyError"], ["--only-rejected"]):
        run = {"info": {"command": [*words[:3], *rejected, "--ledger=L"], "folder": os.getcwd()}}
        assert retry_command(run, "/data/L", "E") == "ledgerbeam map f:g --ledger=L --only-failed=E"
    assert retry_command({"info": {"pid": 1}}, "/data/L", "E") is None
    assert retry_command(None, "/data/L", "E") is None
