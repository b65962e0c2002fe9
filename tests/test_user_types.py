"""What type checkers make of users' programs: the blocks of the pages check, and a wrong call does not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mypy import api

from tests.pages import ROOT

pytestmark = pytest.mark.long

PAGES = ("docs/own-exchange.md", "docs/own-pipeline.md", "docs/python.md")

PROGRAM = """
import ledgerbeam as lb
from ledgerbeam.ledger import FailedTask, Task
from ledgerbeam.transforms import CommitTasks, MatchSources, PlanTasks, ProcessTask, ReadTasks, SkipCompleted
from ledgerbeam.transforms import WriteTasks


def strict(task: Task) -> Task | FailedTask:
    return task if task.records else FailedTask(task, "empty")


result: lb.Result = lb.map("cleaning:clean", "in/*.jsonl", output="out", to="jsonl", task_bytes="20K", workers=2)
read: int = result.raise_for_failures().records.read
with lb.Pipeline(ledger="L", name="strict", on_job_change="accept") as pipeline:
    chain = pipeline | MatchSources(["in/*.jsonl"], pack="2K") | SkipCompleted() | PlanTasks("20K")
    chain | ReadTasks() | ProcessTask(strict) | WriteTasks("out", "jsonl") | CommitTasks()
run: lb.PipelineRun = pipeline.result.raise_for_failures()
outcome: lb.Result = run.outcome
"""

WRONG = {
    'lb.map("cleaning:clean", "in/*.jsonl", output="out")': 'Missing named argument "to"',
    'lb.map("cleaning:clean", "a", output="o", to="jsonl", on_job_change="no")': 'Argument "on_job_change" to "map"',
    'lb.Pipeline(ledger="L", nane="strict")': 'Unexpected keyword argument "nane"',
    "PlanTasks(task_records='many')": 'Argument "task_records" to "PlanTasks"',
    "lb.nothing": 'Module has no attribute "nothing"',
}


IMPORTS = "import ledgerbeam as lb; from ledgerbeam.transforms import PlanTasks\n"


def checked(folder: Path, texts: dict[str, str], *more: str) -> str:
    """Return what mypy says of files of a user, whose functions need no annotations, nor do those of Beam."""
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    cache = str(ROOT / ".mypy_cache" / "users")
    words = ["--strict", "--follow-imports=silent", "--cache-dir", cache, "--config-file=", *more]
    said, wrong, _ = api.run([*words, *(str(folder / f"{name}.py") for name in texts)])
    assert not wrong
    return said


def test_a_program_of_a_user_checks(tmp_path: Path) -> None:
    said = checked(tmp_path, {"program": PROGRAM})
    assert said.startswith("Success"), said


def test_a_wrong_call_is_found(tmp_path: Path) -> None:
    said = checked(tmp_path, {"wrong": IMPORTS + "\n".join(WRONG)}).splitlines()
    for line, message in enumerate(WRONG.values(), 2):
        assert any(f"wrong.py:{line}: error" in one and message in one for one in said), said


@pytest.mark.parametrize("page", PAGES)
def test_the_programs_of_a_page_check(page: str, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    texts = {f"block_{number}": block for number, block in enumerate(blocks)}
    own = ("--allow-untyped-defs", "--allow-untyped-calls", "--ignore-missing-imports")  # such as its cleaning.py
    said = checked(tmp_path, texts, *own)
    assert said.startswith("Success"), said
