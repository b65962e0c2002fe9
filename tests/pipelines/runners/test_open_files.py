"""A low limit of open files: it is raised if it may be, else a run is refused at once and leaves nothing."""

from __future__ import annotations

import dataclasses
import re

import pytest

from tests.pipelines.conftest import Workspace

COMMAND = ("map", "functions:keep", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L")


def limited(workspace: Workspace, limit: str) -> Workspace:
    workspace.jsonl("in/a.jsonl", 3)
    return dataclasses.replace(workspace, prefix=("sh", "-c", f'ulimit {limit}; exec "$@"', "sh"))


@pytest.mark.parametrize(
    ("limit", "workers", "says"),
    [
        (20, 1, r"1 local worker needs 68: raise the limit and run"),
        (71, 2, r"2 local workers needs 72: raise the limit, or give --workers 1 or fewer, and run"),
    ],
)
def test_a_run_that_may_not_open_the_files_that_it_needs_is_refused(
    workspace: Workspace, limit: int, workers: int, says: str
) -> None:
    ran = limited(workspace, f"-n {limit}").run(*COMMAND, "--workers", str(workers), timeout=60)
    assert ran.status == 1, ran.err
    assert re.search(rf"limit of open files \(ulimit -n\) is {limit}, .*{says}", ran.err), ran.err
    assert not (workspace.root / "out").exists()
    assert not (workspace.root / "L").exists()


@pytest.mark.slow
def test_a_limit_that_may_be_raised_is_raised(workspace: Workspace) -> None:
    ran = limited(workspace, "-S -n 20").run(*COMMAND, "--workers", "2", timeout=60)
    assert ran.status == 0, ran.err
    assert len(workspace.records("out")) == 3
