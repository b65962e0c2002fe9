"""How little the processes of a job import."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.pipelines.conftest import Workspace, python

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
    ran = python(RUN, *command, cwd=workspace.root)
    assert ran.status == 0, ran.err
    return set(json.loads(ran.err.splitlines()[-1]))


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


ROOT = Path(__file__).resolve().parents[2]

SEEN = """
import sys

def seen(record):
    return {"beam": "apache_beam" in sys.modules}
"""

AT_ONCE = """
import sys, threading, time
from ledgerbeam._base.process import import_beam

half_way = threading.Event()

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "apache_beam.internal.pickler":
            half_way.set()
            time.sleep(0.5)

def first():
    {first}

sys.meta_path.insert(0, Slow())
other = threading.Thread(target=first)
other.start()
half_way.wait()
import_beam()
assert hasattr(sys.modules["apache_beam"], "Pipeline"), "only a part of it is there"
other.join()
"""


@pytest.mark.parametrize("workers", ["1", "2"])
def test_workers_on_this_machine_need_no_beam(workspace: Workspace, workers: str) -> None:
    (workspace.root / "looking.py").write_text(SEEN)
    workspace.jsonl("a.jsonl", 1)
    command = ("map", "looking:seen", "a.jsonl", "--output", "out", "--to", "jsonl", "--workers", workers)
    workspace.run(*command, status=0)
    assert workspace.records("out") == [{"beam": False}]


@pytest.mark.slow
@pytest.mark.parametrize("first", ["import_beam()", "import apache_beam"])
def test_threads_that_import_it_at_once_both_have_all_of_it(first: str, tmp_path: Path) -> None:
    ran = python(AT_ONCE.format(first=first), cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "PATH": ""})
    assert ran.status == 0, ran.err


@pytest.mark.slow
@pytest.mark.parametrize(
    "first", ["from ledgerbeam.transforms import ProcessTask", "import ledgerbeam; ledgerbeam.Pipeline"]
)
def test_a_name_that_brings_beam_prints_nothing(first: str, tmp_path: Path) -> None:
    code = f"{first}; import sys; assert 'apache_beam' in sys.modules"
    ran = python(code, cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "PATH": ""})
    assert (ran.status, ran.out, ran.err) == (0, "", "")
