"""Functions of pipelines of users, of all kinds: they travel, and an edit of each is noticed and named."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from typing import Any

import pytest

from tests.pipelines.conftest import Programs

HELPERS = "SIGN = '!'\n\ndef mark(text):\n    return text + SIGN\n"

PROGRAM = """
import functools
import apache_beam as beam
import helpers
from ledgerbeam.ledger import Task
from ledgerbeam.io import JsonlFormat
from ledgerbeam.transforms import CommitTasks, MatchSources, PlanTasks, ProcessTask, ReadTasks, SkipCompleted
from ledgerbeam.transforms import WriteTasks

LIMIT = 3

def short(task):
    return task.replace(records=[record for record in task.records if record["id"] >= LIMIT])

def marked(task):
    return task.replace(records=[{**record, "mark": helpers.mark("m")} for record in task.records])

def above(limit):
    def inner(task):
        return task.replace(records=[record for record in task.records if record["id"] > limit])
    return inner

def put(name, value, task):
    return task.replace(records=[{**record, name: value} for record in task.records])

def tagged(task, value):
    return put("b", value, task)

class Once:
    def __init__(self, name):
        self.name = name
    def __call__(self, task):
        return put(self.name, "once", task)
    def twice(self, task):
        return put(self.name, "twice", task)

class Keep(beam.DoFn):
    def __init__(self, factor):
        self.factor = factor
    def process(self, element):
        if isinstance(element, Task):
            element = put("kept", 10 * self.factor, element)
        yield element

class Encode:
    def __init__(self, suffix):
        self.plain = JsonlFormat()
        self.suffix = suffix
    def encode(self, records):
        return self.plain.encode([{**record, "suffix": self.suffix} for record in records])

STEPS = [
    ProcessTask(short),
    ProcessTask(marked),
    ProcessTask(above(4)),
    ProcessTask(above(5)),
    ProcessTask(functools.partial(put, "a", 1)),
    ProcessTask(functools.partial(put, "z", 1)),
    ProcessTask(functools.partial(tagged, value=2)),
    ProcessTask(Once("c")),
    ProcessTask(Once("d")),
    ProcessTask(Once("e").twice),
    ProcessTask(lambda task: put("f", 6, task)),
    ProcessTask(lambda task: put("g", 7, task)),
    ProcessTask(short),
    beam.ParDo(Keep(4)).with_output_types(Task),
    beam.Map(lambda task, n: task, 8).with_output_types(Task),
]

def tasks_done(**more):
    with lb.Pipeline(ledger="L", name="all", workers=2, **more) as pipeline:
        tasks = pipeline | MatchSources("in/*.jsonl") | SkipCompleted() | PlanTasks(task_records=5)
        tasks |= ReadTasks()
        for number, step in enumerate(STEPS):
            tasks |= f"Step{number}" >> step
        tasks | WriteTasks("out", Encode("s")) | CommitTasks()
    return pipeline.result.raise_for_failures().outcome.tasks

try:
    show(tasks=tasks_done())
except lb.LedgerError as error:
    show(error=str(error))
"""


def ran(programs: Programs, program: str = PROGRAM, helpers: str = HELPERS) -> Any:
    """Run the program, which lies with its helper in another folder than the working one; return its row."""
    folder = programs.workspace.root / "scripts"
    folder.mkdir(exist_ok=True)
    (folder / "helpers.py").write_text(helpers)
    (row,) = programs.rows(program, name="scripts/program.py")
    return row


EDITS = {  # what takes the place of what, and what is said of it
    "LIMIT = 3|LIMIT = 2": "captured value 'LIMIT' of short: was '3', is '2'",
    'record["id"] >= LIMIT|LIMIT <= record["id"]': "code short: changed",
    "above(5)|above(6)": "captured value 'limit' of inner 2: was '5', is '6'",
    '"a", 1)|"a", 3)': "captured value argument 2 of partial put: was '1', is '3'",
    '"z", 1)|"z", 3)': "captured value argument 2 of partial put (2): was '1', is '3'",
    "value=2)|value=3)": "captured value 'value' of partial tagged: was '2', is '3'",
    'Once("c")|Once("x")': "captured value 'name' of Once: was",
    'Once("d")|Once("x")': "captured value 'name' of Once (2): was",
    'Once("e")|Once("x")': "captured value 'name' of Once (3): was",
    '"twice"|"thrice"': "code Once.twice: changed",
    '"f", 6|"f", 9': "code <lambda>: changed",
    '"g", 7|"g", 9': "code <lambda> 2: changed",
    "Keep(4)|Keep(5)": "captured value 'factor' of Keep: was '4', is '5'",
    "10 * self|11 * self": "code Keep.process: changed",
    "n: task, 8|n: task, 9": "captured value argument 1 of partial <lambda> 3: was '8', is '9'",
    'Encode("s")|Encode("t")': "captured value 'suffix' of Encode: was",
    "    ProcessTask(short),\n    beam|    beam": "functions order: was",
}


@pytest.mark.slow
def test_functions_of_all_kinds_travel_and_each_edit_is_named(programs: Programs) -> None:
    workspace = programs.workspace
    workspace.jsonl("in/a.jsonl", 10)
    assert ran(programs) == {"tasks": 2}
    (workspace.root / "helpers.py").write_text("a file of the working folder that is no module")
    (last,) = [record for record in workspace.records("out") if record["id"] == 9]
    marks = {"mark": "m!", "a": 1, "b": 2, "c": "once", "d": "once", "e": "twice", "f": 6, "g": 7}
    assert {name: last[name] for name in (*marks, "kept", "suffix")} == {**marks, "kept": 40, "suffix": "s"}
    assert min(record["id"] for record in workspace.records("out")) == 6
    assert ran(programs) == {"tasks": 0}

    edited = [PROGRAM.replace(before, after) for before, after in (edit.split("|") for edit in EDITS)]
    assert PROGRAM not in edited
    rows = programs.rows(
        f"""
        for text in {edited!r}:
            exec(compile(text, "program.py", "exec"), {{"__name__": "__main__", "lb": lb, "show": show}})
        """,
        name="scripts/edits.py",
    )
    assert len(rows) == len(EDITS)
    for said, row in zip(EDITS.values(), rows, strict=True):
        assert said in row["error"]
        assert row["error"].count("functions ") < 4, "and hardly anything else"
    assert "functions module helpers: changed" in ran(programs, helpers=HELPERS.replace("!", "?"))["error"]


FAILING = """
import os
from ledgerbeam.transforms import CommitTasks, MatchSources, PlanTasks, ProcessTask, ReadTasks, SkipCompleted
from ledgerbeam.transforms import WriteTasks

def strict(task):
    assert os.path.exists("mended")
    return task

with lb.Pipeline(ledger="L", name="strict", workers=1) as pipeline:
    chain = pipeline | MatchSources(sys.argv[1]) | SkipCompleted() | PlanTasks("20K") | ReadTasks()
    chain | ProcessTask(strict) | WriteTasks("out", "jsonl") | CommitTasks()
show(state=pipeline.result.state)
"""


@pytest.mark.slow
def test_a_ledger_says_how_to_run_the_program_again(programs: Programs) -> None:
    workspace = programs.workspace
    workspace.jsonl("in/a.jsonl", 10)
    command = [*programs.command(FAILING, "scripts/strict.py"), "in/*.jsonl"]
    env = {**workspace.env, "PYTHONPATH": os.getcwd()}
    subprocess.run(command, cwd=workspace.root, env=env, capture_output=True, check=True)
    (group,) = json.loads(workspace.run("ledger", "failures", "L", "--json").out)["groups"]
    assert group["retry"] == shlex.join(command)
    assert f"last command, in {workspace.root}:\n  {shlex.join(command)}" in workspace.run("ledger", "status", "L").out
    (workspace.root / "mended").touch()
    again = subprocess.run(group["retry"], shell=True, cwd=workspace.root, env=env, capture_output=True, check=True)
    assert json.loads(again.stdout) == {"state": "DONE"}
