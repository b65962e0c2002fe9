"""`--dry-run`: the preview equals the run that follows, and nothing is written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.pipelines.conftest import Workspace

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
@pytest.mark.parametrize("command", ["index", "convert"])
def test_every_job_has_it(workspace: Workspace, command: str) -> None:
    workspace.jsonl("in/a.jsonl", 5)
    options = () if command == "index" else ("--output", "out", "--to", "tar")
    found = preview(workspace, command=(command, "in/*.jsonl", *options, "--ledger", "L"))
    assert found["sources"]["new"] == 1


@pytest.mark.slow
def test_packs_are_sources(workspace: Workspace) -> None:
    for number in range(6):
        workspace.jsonl(f"in/{number}.jsonl", 5)
    packed = (*COMMAND, "--pack", "600")
    packs = preview(workspace, command=packed)["sources"]["new"]
    assert 1 < packs < 6
    assert workspace.run(*packed, "--audit=off").status == 0
    assert preview(workspace, command=packed)["sources"]["complete"] == packs


def test_options_that_choose_by_the_ledger_are_refused(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 5)
    workspace.run(*COMMAND, "--dry-run", "--only-failed", "*", status=2, err="leave --only-failed out")
