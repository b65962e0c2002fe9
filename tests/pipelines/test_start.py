"""How little is imported by a command that finds its job done."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.pipelines.conftest import Workspace

NOT_NEEDED = ["apache_beam", "asyncio", "fsspec", "grpc", "pyarrow", "rich.console", "sqlite3", "ssl", "tenacity"]

RUN = f"""
import sys
from ledgerbeam.pipelines.commands.cli import main

assert main(sys.argv[1:]) == 0
import json
print(json.dumps([name for name in {NOT_NEEDED} if name in sys.modules]), file=sys.stderr)
"""


def test_a_finished_job_on_local_files_needs_none_of_these(workspace: Workspace) -> None:
    workspace.jsonl("a.jsonl", 3)
    command = ("convert", "a.jsonl", "--to", "jsonl", "--output", "out", "--ledger", "progress")
    assert workspace.run(*command).status == 0
    ran = subprocess.run(
        [sys.executable, "-c", RUN, *command], cwd=workspace.root, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "1 skipped as complete before" in ran.stdout
    assert json.loads(ran.stderr.splitlines()[-1]) == []
