"""A Prism that Beam starts for one command: it ends with it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.pipelines.conftest import Workspace
from tests.servers import pins, prism

pytestmark = [pytest.mark.slow, pytest.mark.skipif(prism.missing() is not None, reason="no Prism")]


def processes_of(program: Path) -> list[int]:
    """Return the processes of a program, which is known by the path with which it was started."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:  # it has ended
            continue
        if words[0] == os.fsencode(program):
            found.append(int(pid))
    return found


@pytest.mark.parametrize("function", ["upper", "wrong_shape"])
def test_no_prism_outlives_its_command(workspace: Workspace, function: str) -> None:
    own = workspace.root / "prism-of-this-test"
    own.symlink_to(pins.PRISM.path)
    workspace.jsonl("in/a.jsonl", 3)
    job = ("map", f"functions:{function}", "in/*.jsonl", "--output", "out", "--to", "jsonl")
    ran = workspace.run(*job, "--", "--runner=PrismRunner", f"--prism_location={own}")
    assert (ran.status == 0) == (function == "upper"), ran.err
    assert processes_of(own) == []
