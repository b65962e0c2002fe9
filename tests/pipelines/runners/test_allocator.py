"""Workers of a local run give large buffers back, unless their user says otherwise; user code does not see that."""

from __future__ import annotations

import json

import pytest

from tests.pipelines.conftest import Workspace

FUNCTION = """
import os
from pathlib import Path

def look(record):
    began = Path("/proc/self/environ").read_bytes().decode().split("\\0")
    found = dict(row.partition("=")[::2] for row in began)
    return {"began": found.get("MALLOC_MMAP_THRESHOLD_"), "sees": os.environ.get("MALLOC_MMAP_THRESHOLD_")}
"""


@pytest.mark.parametrize(("own", "began"), [(None, "8388608"), ("5000000", "5000000")])
def test_workers_keep_little_of_what_they_have_freed(workspace: Workspace, own: str | None, began: str) -> None:
    (workspace.root / "arenas.py").write_text(FUNCTION)
    workspace.jsonl("in/a.jsonl", 1)
    if own is not None:
        workspace.env["MALLOC_MMAP_THRESHOLD_"] = own
    ran = workspace.run("map", "arenas:look", "in/a.jsonl", "--output", "out", "--to", "jsonl")
    assert ran.status == 0, ran.err
    (shard,) = (workspace.root / "out").glob("*.jsonl")
    assert json.loads(shard.read_text()) == {"began": began, "sees": own}
