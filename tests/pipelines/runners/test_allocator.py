"""Workers of a local run give large buffers back, unless their user says otherwise; user code does not see that."""

from __future__ import annotations

import json

import pytest

from tests.pipelines.conftest import Workspace

FUNCTION = """
import gc
import os
from pathlib import Path

def look(record):
    began = Path("/proc/self/environ").read_bytes().decode().split("\\0")
    found = dict(row.partition("=")[::2] for row in began)
    names = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
    return {"began": [*map(found.get, names)], "sees": [*map(os.environ.get, names)], "frozen": gc.get_freeze_count()}
"""


@pytest.mark.slow
@pytest.mark.parametrize(("own", "began"), [(None, "4194304"), ("5000000", "5000000")])
def test_workers_keep_little_of_what_they_have_freed(workspace: Workspace, own: str | None, began: str) -> None:
    (workspace.root / "arenas.py").write_text(FUNCTION)
    workspace.jsonl("in/a.jsonl", 1)
    if own is not None:
        workspace.env["MALLOC_MMAP_THRESHOLD_"] = own
    ran = workspace.run("map", "arenas:look", "in/a.jsonl", "--output", "out", "--to", "jsonl", "--audit=off")
    assert ran.status == 0, ran.err
    (shard,) = (workspace.root / "out").glob("*.jsonl")
    found = json.loads(shard.read_text())
    assert found["began"] == [began, "33554432"]
    assert found["sees"] == [own, None]
    assert found["frozen"] > 50_000, "what is imported before the fork is no garbage"
