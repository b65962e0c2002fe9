"""Functions that end the process that calls them: the launcher, which looks at samples, says so and is never done."""

from __future__ import annotations

import pytest

from tests.pipelines.conftest import Workspace

ENDING = """
import os

def ends(record):
    if record["id"] == 7:
        os._exit(0)
    return record

def key(record):
    return ends(record)["id"]
"""


def test_a_function_that_ends_the_launcher_is_told_by_record(workspace: Workspace) -> None:
    (workspace.root / "ending.py").write_text(ENDING)
    workspace.jsonl("in/a.jsonl", 20)
    ran = workspace.run("map", "ending:ends", "in/*", "--output", "out", "--to", "jsonl", "--sample", "20")
    assert "SystemExit: os._exit(0)" in ran.out, ran.err
    (workspace.root / "at_import.py").write_text("import os\nos._exit(0)")
    ran = workspace.run("map", "at_import:f", "in/*", "--output", "out", "--to", "jsonl")
    assert ran.status != 0
    assert "cannot be imported: SystemExit: os._exit(0)" in ran.err


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("map", "ending:ends", "in/*.jsonl", "--to", "parquet"),
        ("sort", "in/*.jsonl", "--by", "ending:key", "--to", "jsonl", "--shard-bytes", "300"),
    ],
)
def test_a_job_whose_function_ends_processes_is_not_done(workspace: Workspace, command: tuple[str, ...]) -> None:
    (workspace.root / "ending.py").write_text(ENDING)
    workspace.jsonl("in/a.jsonl", 20)
    ran = workspace.run(*command, "--output", "out", "--ledger", "L", "--workers", "1")
    assert ran.status == 3, ran.err
    assert "a.jsonl" in ran.err
