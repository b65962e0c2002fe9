"""How little a launcher imports: it waits while the processes that it started do the work."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.pipelines.conftest import Workspace

FAR = ["apache_beam", "fsspec", "grpc", "scipy.sparse"]
NOT_NEEDED = [*FAR, "asyncio", "numpy", "pyarrow", "rich.console", "sqlite3", "ssl", "tenacity"]

RUN = f"""
import sys
from ledgerbeam.pipelines.cli.cli import main

assert main(sys.argv[1:]) == 0
import json
print(json.dumps([name for name in {sorted({*FAR, *NOT_NEEDED})} if name in sys.modules]), file=sys.stderr)
"""


def imported(workspace: Workspace, *command: str) -> set[str]:
    """Run a command; return what of this it has imported."""
    ran = subprocess.run(
        [sys.executable, "-c", RUN, *command], cwd=workspace.root, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return set(json.loads(ran.stderr.splitlines()[-1]))


@pytest.mark.parametrize("command", ["convert", "index"])
def test_a_finished_job_on_local_files_needs_none_of_these(workspace: Workspace, command: str) -> None:
    workspace.jsonl("a.jsonl", 3)
    output = [] if command == "index" else ["--to", "jsonl", "--output", "out"]
    words = (command, "a.jsonl", *output, "--ledger", "progress")
    assert workspace.run(*words).status == 0
    assert imported(workspace, *words).isdisjoint(NOT_NEEDED)


@pytest.mark.slow
def test_the_stages_of_an_exchange_on_local_files_need_none_of_these(workspace: Workspace) -> None:
    workspace.jsonl("a.jsonl", 3)
    command = ("dedup", "a.jsonl", "--near", "text", "--to", "jsonl", "--output", "out")
    assert imported(workspace, *command).isdisjoint(FAR)
