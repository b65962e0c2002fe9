"""Jobs that a program in Python calls for: the same as those of the command line, and done once by either."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.pipelines.conftest import Programs, Workspace
from tests.servers import pins

CLEANING = """
import functools, helpers

def clean(record, limit=1000):
    return {**record, "text": helpers.norm(record["text"])} if record["id"] < limit else None

def wrapped(f):
    @functools.wraps(f)
    def inner(record):
        return f(record)
    return inner

@wrapped
def decorated(record):
    return record

class Model:
    def __init__(self, scale=1):
        self.scale = scale
    def __call__(self, record):
        return {"scaled": record["id"] * self.scale}
    @staticmethod
    def still(record):
        return {"still": record["id"]}
    @classmethod
    def known(cls, record):
        return {"known": cls.__name__}
"""


def write_cleaning(workspace: Workspace, folder: str = ".") -> None:
    for name, text in (("cleaning.py", CLEANING), ("helpers.py", "def norm(text):\n    return text.strip('x ')\n")):
        path = workspace.root / folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (workspace.root / folder / "shop.py").write_text("from cleaning import clean\n")


ZSTD = "compress='zstd', frame=4096"
SAME = [
    ("cleaning:clean", "cleaning.clean", (), ""),
    ("cleaning:clean", "cleaning.clean", ("--set", "limit=7"), "set={'limit': 7}"),
    ("shop:clean", "shop.clean", (), ""),
    ("cleaning:decorated", "cleaning.decorated", ("--on-error", "reject:1%"), "on_error='reject:1%'"),
    ("cleaning:Model", "cleaning.Model", ("--set", "scale=3", "--nan", "null"), "set={'scale': 3}, nan='null'"),
    ("cleaning:Model.still", "cleaning.Model.still", ("--index-root", "idx"), "index_root='idx'"),
    ("cleaning:Model.known", "cleaning.Model.known", ("--compress", "zstd", "--frame", "4K"), ZSTD),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("name", "given", "words", "options"), SAME, ids=str)
def test_a_job_of_either_is_the_job_of_the_other(
    name: str, given: str, words: tuple[str, ...], options: str, programs: Programs
) -> None:
    workspace = programs.workspace
    write_cleaning(workspace)
    for letter in "ab":
        workspace.jsonl(f"in/{letter}.jsonl", 10)
    more = f", {options}" if options else ""
    text = f"""
        import cleaning, shop
        result = lb.map({given}, "in/*.jsonl", output="out", to="jsonl", task_bytes="100", workers=1{more})
        show(tasks=result.tasks, read=result.records.read, complete=result.complete, ledger=result.ledger)
    """
    (first,) = programs.rows(text)
    assert first["tasks"] >= 1
    assert first["read"] == 20
    assert first["complete"] is True
    before = workspace.files("out")
    command = ("map", name, "in/*.jsonl", "--output", "out", "--to", "jsonl", "--task-bytes", "100", *words)
    ran = workspace.run(*command, "--json")
    assert (ran.status, ran.json["ledger"], ran.json["done"]["tasks"]) == (0, first["ledger"], 0), ran.err
    assert workspace.files("out") == before
    # And the other way round: another source by the command line, a third from Python.
    workspace.jsonl("in/c.jsonl", 5)
    assert workspace.run(*command, "--json").json["done"]["records"]["read"] == 5
    workspace.jsonl("in/d.jsonl", 6)
    (last,) = programs.rows(text)
    assert (last["read"], last["ledger"]) == (6, first["ledger"])


@pytest.mark.slow
def test_convert_tokenize_index_and_merge_are_the_jobs_of_the_command_line(programs: Programs) -> None:
    workspace = programs.workspace
    workspace.jsonl("in/a.jsonl", 20)
    rows = programs.rows("""
        from pathlib import Path
        made = [
            lb.index(Path("in") / "*.jsonl", workers=1),
            lb.convert(["in/*.jsonl"], output=Path("tars"), to="tar", workers=1),
            lb.tokenize("in/*.jsonl", output="tokens/a", tokenizer="bytes", workers=1),
        ]
        joined = lb.merge("tokens/a", "tokens/a", output="tokens/two")
        checked = lb.verify("in/*.jsonl", deep=True)
        for result in [*made, joined, checked]:
            show(command=result.command, sources=result.sources, records=result.records.records, output=result.output)
        show(outputs=[row["name"] for row in joined.outputs], html=made[1]._repr_html_(), text=repr(made[1]))
    """)
    assert [row["command"] for row in rows[:-1]] == ["index", "convert", "tokenize", "merge", "verify"]
    assert [row["sources"] for row in rows[:-1]] == [1, 1, 1, 2, 1]
    assert [row["records"] for row in rows[:-1]] == [20, 20, 20, 40, 20]
    root = str(workspace.root)
    outputs = [None, f"{root}/tars", f"{root}/tokens/a", f"{root}/tokens/two", None]
    assert [row["output"] for row in rows[:-1]] == outputs
    assert rows[-1]["outputs"] == [f"{root}/tokens/two.bin", f"{root}/tokens/two.idx"]
    assert "complete; this run: 1 source, 1 task" in rows[-1]["html"]
    said = "<Result of convert: complete; this run: 1 source, 1 task, 20 records read, 20 written, "
    assert rows[-1]["text"].startswith(said)
    for words in (
        ("index", "in/*.jsonl"),
        ("convert", "in/*.jsonl", "--output", "tars", "--to", "tar"),
        ("tokenize", "in/*.jsonl", "--output", "tokens/a", "--tokenizer", "bytes"),
    ):
        ran = workspace.run(*words, "--json")
        assert (ran.status, ran.json["done"]["tasks"], ran.json["skipped"]) == (0, 0, 1), ran.err


OWN = """
    import functools, pathlib
    import helpers
    LIMIT = 15

    def norm(text):
        return helpers.norm(text)

    def clean(record):
        return {**record, "text": norm(record["text"])} if record["id"] < LIMIT else None

    def above(limit):
        return lambda record: record if record["id"] >= limit else None

    class Model:
        def __init__(self, scale=1):
            self.scale = scale
        def __call__(self, record):
            return {"scaled": record["id"] * self.scale}
        def method(self, record):
            return {"method": record["id"] * self.scale}

    @functools.lru_cache
    def cached(number):
        return {"cached": number}

    def add(number, record):
        return {"sum": number + record["id"]}

    def run(function, output, **more):
        return lb.map(function, "in/*.jsonl", output=output, to="jsonl", workers=1, **more)
"""


GIVEN = """
    given = {
        "own": clean, "lambda": lambda record: {"id": record["id"], "limit": LIMIT}, "closure": above(18),
        "partial": functools.partial(add, 100), "object": Model(3), "method": Model(4).method, "class": Model,
        "cached": lambda record: cached(record["id"]),
    }
    for name, function in given.items():
        more = {"set": {"scale": 5}} if name == "class" else {}
        first, again = run(function, name, **more), run(function, name, **more)
        show(name=name, read=first.records.read, kept=first.records.kept, again=again.tasks, function=again.command)
"""


@pytest.mark.slow
def test_functions_that_no_module_holds_travel_with_what_they_capture(programs: Programs) -> None:
    workspace = programs.workspace
    write_cleaning(workspace, "scripts")  # beside the program, not in the working folder
    workspace.jsonl("in/a.jsonl", 20)
    text = f"{OWN}{GIVEN}"
    rows = programs.rows(text, name="scripts/program.py")
    assert [(row["read"], row["again"]) for row in rows] == [(20, 0)] * 8
    assert {row["name"]: row["kept"] for row in rows if row["kept"] != 20} == {"own": 15, "closure": 2}
    for name, record in {
        "own": {"id": 14, "text": "text 14"},
        "lambda": {"id": 19, "limit": 15},
        "closure": {"id": 19, "text": "text 19 xxxxxxxxxxxx"},
        "partial": {"sum": 119},
        "object": {"scaled": 57},
        "method": {"method": 76},
        "class": {"scaled": 95},
        "cached": {"cached": 19},
    }.items():
        assert workspace.records(name)[-1] == record
    # Another process makes the same job of the same program.
    assert [row["read"] for row in programs.rows(text, name="scripts/program.py")] == [0] * 8


@pytest.mark.slow
def test_what_has_changed_of_a_function_is_named_and_refused(programs: Programs) -> None:
    workspace = programs.workspace
    write_cleaning(workspace)
    workspace.jsonl("in/a.jsonl", 20)
    calls = """
    for name, function in {"own": clean, "closure": above(18), "object": Model(3)}.items():
        try:
            show(tasks=run(function, name).tasks)
        except lb.LedgerError as error:
            show(error=str(error))
    """
    assert programs.rows(OWN + calls) == [{"tasks": 1}] * 3
    edited = OWN.replace("LIMIT = 15", "LIMIT = 16").replace('["id"] * self', '["id"] + self')
    helpers = workspace.root / "helpers.py"
    helpers.write_text(helpers.read_text() + "\n")
    own, closure, model = (row["error"] for row in programs.rows(edited + calls.replace("above(18)", "above(17)")))
    assert "captured value 'LIMIT' of clean: was '15', is '16'" in own
    assert "module helpers: changed" in own
    assert "code " not in own
    assert "captured value 'limit' of <lambda>: was '18', is '17'" in closure
    assert "code Model.__call__: changed" in model
    assert "code Model.method: changed" in model
    kept = edited + "show(tasks=run(clean, 'own', on_job_change='accept').tasks)\n"
    assert programs.rows(kept.replace("\nshow", "\n    show")) == [{"tasks": 0}]


@pytest.mark.slow
def test_a_cell_of_a_notebook_is_a_module_of_its_own(programs: Programs) -> None:
    """A notebook compiles each cell by itself, and runs all in `__main__`, with the working folder on the path."""
    workspace = programs.workspace
    write_cleaning(workspace)
    workspace.jsonl("in/a.jsonl", 4)
    rows = programs.rows("""
        sys.path[0] = ""
        def cell(text):
            exec(compile(text, "<cell>", "exec"), globals())
        cell("import helpers\\nSUFFIX = '!'\\ndef mark(text):\\n    return helpers.norm(text) + SUFFIX")
        cell("def clean(record):\\n    return {'text': mark(record['text'])}")
        call = "result = lb.map(clean, 'in/*.jsonl', output='out', to='jsonl', workers=1)\\nshow(tasks=result.tasks)"
        cell(call)
        cell(call)
        cell("SUFFIX = '?'")
        try:
            cell(call)
        except lb.LedgerError as error:
            show(error=str(error))
    """)
    assert rows[:2] == [{"tasks": 1}, {"tasks": 0}]
    assert "captured value 'SUFFIX' of mark" in rows[2]["error"]
    assert workspace.records("out")[0] == {"text": "text 0!"}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("lambda record: LOCK", "the captured value 'LOCK' is or contains a lock"),
        pytest.param(
            "lambda record: CHANGING",
            "captured value 'CHANGING' of <lambda> differs each time it is pickled",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "lambda record: STRANGE", "cannot be sent to other processes: TypeError: not today", marks=pytest.mark.slow
        ),
        pytest.param("generator", "is a generator function", marks=pytest.mark.slow),
        ("3", "expected"),
    ],
)
def test_what_cannot_travel_is_refused_before_anything_is_made(function: str, message: str, programs: Programs) -> None:
    programs.workspace.jsonl("in/a.jsonl", 4)
    ran = programs.run(f"""
        import itertools, threading
        LOCK = threading.Lock()
        def generator(record):
            yield record
        class Changing:
            numbers = itertools.count()
            def __getstate__(self):
                return {{"n": next(Changing.numbers)}}
        class Strange:
            calls = 0
            def __reduce__(self):
                Strange.calls += 1
                if Strange.calls > 1:
                    raise TypeError("not today")
                return Strange, ()
        CHANGING, STRANGE = Changing(), Strange()
        lb.map({function}, "in/*.jsonl", output="out", to="jsonl", workers=1)
    """)
    assert ran.status == 1
    assert "FunctionError: " in ran.err
    assert message in ran.err
    assert not (programs.workspace.root / "out").exists()
    assert not (programs.workspace.root / ".ledgerbeam").exists()


@pytest.mark.slow
def test_a_module_that_calls_when_it_is_imported_is_told_so(programs: Programs) -> None:
    programs.workspace.jsonl("in/a.jsonl", 4)
    programs.write("""
        def clean(record):
            return record
        lb.map(clean, "in/*.jsonl", output="out", to="jsonl", workers=1)
    """, "unguarded.py")  # fmt: skip
    programs.run("import unguarded", status=1, err='put the call under if __name__ == "__main__"')


@pytest.mark.slow
def test_failures_and_rejects_are_values(programs: Programs) -> None:
    programs.workspace.jsonl("in/a.jsonl", 10)
    rows = programs.rows("""
        from ledgerbeam import stats
        def strict(record):
            stats.count("seen")
            if record["id"] in (3, 4):
                raise ValueError("no such thing")
            return record if record["id"] else lb.Drop("zero")
        asked = dict(to="jsonl", workers=1, task_bytes=100)
        failed = lb.map(strict, "in/*.jsonl", output="failed", **asked)
        show(complete=failed.complete, failures=list(failed.failures), arrow=failed.failures.to_arrow().num_rows)
        try:
            failed.raise_for_failures()
        except lb.TasksFailedError as error:
            show(error=str(error), kind=isinstance(error, lb.LedgerbeamError))
        rejected = lb.map(strict, "in/*.jsonl", output="rejected", on_error="reject", **asked).raise_for_failures()
        records = rejected.records
        show(records=records.as_dict(), rejects=list(rejected.rejects), stats=rejected.stats, n=len(rejected.rejects))
        ledger = lb.open_ledger(rejected.ledger)
        show(status=ledger.status()["tasks"], rows=[row["id"] for row in map(lambda r: json.loads(r["raw"]), ledger.rejects())],
             table=ledger.rejects().to_arrow().column_names, outputs=len(ledger.outputs()), stats=ledger.stats())
        again = lb.map(strict, "in/*.jsonl", output="rejected", on_error="reject", only_rejected=True, **asked)
        show(tasks=again.tasks, rejected=again.records.rejected)
        show(preview=lb.map(strict, "in/*.jsonl", output="new", dry_run=True, **asked).summary["tasks"],
             sample=[row["outcome"] for row in lb.map(strict, "in/*.jsonl", output="new", sample=3, **asked).summary["sample"]])
    """)  # noqa: E501
    assert rows[0]["complete"] is False
    assert rows[0]["arrow"] == len(rows[0]["failures"]) > 0
    assert {"source", "task", "reason", "error", "attempts", "last", "quarantined"} == set(rows[0]["failures"][0])
    assert rows[1]["kind"] is True
    assert "record 3: __main__:strict raised ValueError: no such thing" in rows[1]["error"]
    assert rows[2]["records"] == {
        "read": 10, "kept": 7, "dropped": {"zero": 1}, "rejected": {"ValueError": 2}, "written": {"": 7},
    }  # fmt: skip
    assert [row["record"] for row in rows[2]["rejects"]] == [3, 4]
    assert rows[2]["stats"] == {"seen": 10}
    assert rows[2]["n"] == 2
    assert rows[3]["rows"] == [3, 4]
    assert rows[3]["table"] == ["source", "function", "reason", "error", "at", "file", "record", "start", "stop", "raw"]
    assert rows[3]["stats"] == {"seen": 10}
    assert rows[4]["tasks"] >= 1
    assert rows[4]["rejected"] == {"ValueError": 2}
    assert rows[5]["preview"] > 1
    assert len(rows[5]["sample"]) == 3
    assert not (programs.workspace.root / "new").exists()


@pytest.mark.slow
def test_nothing_is_printed_and_nothing_of_the_program_is_changed(programs: Programs) -> None:
    programs.workspace.jsonl("in/a.jsonl", 4)
    ran = programs.run("""
        import logging, os, signal, threading
        def look():
            root = logging.getLogger()
            signals = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)]
            streams = [sys.stdout, sys.stderr, sys.excepthook]
            return [list(root.handlers), root.level, list(root.filters), dict(os.environ), list(sys.path), os.getcwd(),
                    signals, streams]
        before = look()
        def clean(record):
            return record
        lb.map(clean, "in/*.jsonl", output="out", to="jsonl", workers=2)
        local = look()
        lb.map(clean, "in/*.jsonl", output="out2", to="jsonl", options=["--runner=BundleBasedDirectRunner"])
        for was, then, now in zip(before, local, look()):
            assert was == then == now, (was, then, now)
        assert [type(one).__name__ for one in logging.getLogger("ledgerbeam").handlers] == ["NullHandler"]
    """)
    assert (ran.status, ran.out, ran.err) == (0, "", "")


@pytest.mark.slow
def test_the_log_has_the_course_of_a_run(programs: Programs) -> None:
    programs.workspace.jsonl("in/a.jsonl", 4)
    ran = programs.run("""
        import logging
        logging.basicConfig(level=logging.INFO, format="%(name)s %(levelname)s %(message)s")
        def bad(record):
            raise ValueError("no")
        lb.map(bad, "in/*.jsonl", output="out", to="jsonl", workers=1)
    """)
    lines = [line for line in ran.err.splitlines() if line.startswith("ledgerbeam ")]
    assert lines[0].startswith("ledgerbeam INFO ledger: .ledgerbeam/map-")
    assert lines[1].startswith("ledgerbeam INFO <Result of map: not complete")
    assert lines[2].startswith("ledgerbeam WARNING 1 task of 1 source failed")
    assert "apache_beam" not in ran.err


@pytest.mark.slow
def test_threads_that_are_not_the_main_one_run_jobs_side_by_side(programs: Programs) -> None:
    for letter in "ab":
        programs.workspace.jsonl(f"{letter}/x.jsonl", 10)
    rows = programs.rows("""
        from concurrent.futures import ThreadPoolExecutor
        def clean(record):
            return record
        def run(letter):
            return lb.map(clean, f"{letter}/*.jsonl", output=f"out-{letter}", to="jsonl", workers=1).tasks
        with ThreadPoolExecutor() as pool:
            show(tasks=list(pool.map(run, "ab")))
            show(tasks=list(pool.map(run, "ab")))
    """)
    assert rows == [{"tasks": [1, 1]}, {"tasks": [0, 0]}]


SLOW = """
    import time
    def slow(record):
        time.sleep(0.1)
        return {"id": record["id"]}
    def run(**more):
        return lb.map(slow, "in/*.jsonl", output="out", to="jsonl", workers=1, task_bytes=100, **more)
"""


@pytest.mark.slow
@pytest.mark.parametrize("command", [False, True], ids=["from Python", "by the command line"])
def test_an_interrupt_saves_the_state_and_the_next_call_finishes(command: bool, programs: Programs) -> None:
    workspace = programs.workspace
    workspace.jsonl("in/a.jsonl", 100)
    (workspace.root / "slow_job.py").write_text(
        "import time\ndef slow(record):\n    time.sleep(0.1)\n    return record\n"
    )
    text = SLOW.replace("def slow", "from slow_job import slow\n    def _unused") if command else SLOW
    program = programs.command(text + """
    try:
        run(ledger="L", progress=True)
    except KeyboardInterrupt as stopped:
        show(tasks=stopped.result.tasks, interrupted=stopped.result.interrupted, error=str(stopped))
    """)  # fmt: skip
    process = subprocess.Popen(
        program, cwd=workspace.root, env={**workspace.env, "PYTHONPATH": os.getcwd()}, stdout=subprocess.PIPE, text=True
    )
    _wait_for_outputs(workspace, process)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    stopped = json.loads(out)
    assert stopped["interrupted"] is True
    assert "run the same call again" in stopped["error"]
    left = int(workspace.run("ledger", "status", "L", "--json").json["tasks"]["done"])
    assert left == stopped["tasks"] > 0
    if command:
        words = ("map", "slow_job:slow", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--task-bytes", "100")
        ran = workspace.run(*words, "--ledger", "L", "--json", status=0)
        done = ran.json["done"]["tasks"]
    else:
        (row,) = programs.rows(
            text + "\n    result = run(ledger='L')\n    show(tasks=result.tasks, ok=result.complete)\n"
        )
        assert row["ok"] is True
        done = row["tasks"]
    status = workspace.run("ledger", "status", "L", "--json").json
    assert status["complete"] is True
    assert left + done == status["tasks"]["done"]
    assert [row["id"] for row in workspace.records("out")] == list(range(100))
    assert [run["state"] for run in status["runs"]] == ["interrupted", "done"]


def _wait_for_outputs(workspace: Workspace, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while len(list((workspace.root / "out").glob("*.jsonl"))) < 12:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)


RUNNERS = ["--runner=BundleBasedDirectRunner", "--runner=FnApiRunner", "--runner=PrismRunner"]


@pytest.mark.slow
@pytest.mark.parametrize("runner", RUNNERS)
def test_other_runners_get_functions_that_no_module_holds(runner: str, programs: Programs) -> None:
    if "Prism" in runner and not Path(pins.PRISM.path).exists():
        pytest.skip(pins.REMEDY)
    options = [runner, f"--prism_location={pins.PRISM.path}"] if "Prism" in runner else [runner]
    programs.workspace.jsonl("in/a.jsonl", 10)
    rows = programs.rows(f"""
        LIMIT = 5
        def clean(record):
            return record if record["id"] < LIMIT else None
        for _ in range(2):
            result = lb.map(clean, "in/*.jsonl", output="out", to="jsonl", options={options})
            show(tasks=result.tasks, sources=result.sources, kept=result.records.kept)
    """)
    assert rows == [{"tasks": 1, "sources": 1, "kept": 5}, {"tasks": 0, "sources": 0, "kept": 0}]


@pytest.mark.slow
def test_what_a_program_has_made_as_a_module_travels_too(programs: Programs) -> None:
    programs.workspace.jsonl("in/a.jsonl", 4)
    rows = programs.rows("""
        import types
        made = sys.modules["made"] = types.ModuleType("made")
        exec("K = 2\\ndef clean(record):\\n    return {'k': K, 'id': record['id']}", made.__dict__)
        show(tasks=lb.map(made.clean, "in/*.jsonl", output="out", to="jsonl", workers=1).tasks)
    """)
    assert rows == [{"tasks": 1}]
    assert programs.workspace.records("out")[-1] == {"k": 2, "id": 3}


@pytest.mark.slow
def test_a_graph_is_materialized_by_the_function_that_builds_it(programs: Programs) -> None:
    programs.workspace.jsonl("in/a.jsonl", 10)
    rows = programs.rows("""
        from ledgerbeam.iterators import IndexedManifest, Map
        lb.index_source("in/a.jsonl")
        FACTOR = 3
        def graph():
            return Map(IndexedManifest("in/a.jsonl"), scaled)
        def scaled(item):
            return {"id": item["id"] * FACTOR}
        for _ in range(2):
            result = lb.materialize(graph, output="out", to="jsonl", workers=1)
            show(tasks=result.tasks, written=result.records.records)
    """)
    assert rows == [{"tasks": 1, "written": 10}, {"tasks": 0, "written": 0}]
    assert programs.workspace.records("out")[-1] == {"id": 27}


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
