"""Functions that raise or do anything: the job ends right, or with status 3 and its failures listed; never a hang."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.pipelines.conftest import Ran, Workspace

pytestmark = pytest.mark.long

HOSTILE = '''
import asyncio, collections.abc, os, shutil, signal, sys, tempfile, threading

BAD = 7

def _bad(record):
    return record["id"] == BAD

class Panic(BaseException):
    """As PyO3 raises it of a Rust panic."""

class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no text")

class MuteForGood(Exception):
    def __str__(self):
        raise Panic("no text")

class Told(str):
    def __getitem__(self, item):
        raise RuntimeError("not this way")
    encode = __format__ = __len__ = __getitem__

class Strange(Exception):
    def __str__(self):
        return Told("strange")

class Props(Exception):
    @property
    def __traceback__(self):
        raise RuntimeError("no trace")
    __cause__ = __class__ = __traceback__

class Named(type):
    @property
    def __name__(cls):
        raise RuntimeError("no name")

class Nameless(Exception, metaclass=Named):
    pass

class Mapped(collections.abc.Mapping):
    def __len__(self): return 1
    def __getitem__(self, name): raise Panic("no item")
    def __iter__(self): raise RuntimeError("no names")
    def items(self): raise Panic("no items")
    def get(self, *_): raise RuntimeError("no get")

class Liar:
    @property
    def __class__(self):
        return list

class Crasher:
    @property
    def __class__(self):
        raise Panic("no class")

def _raiser(error):
    def function(record):
        if _bad(record):
            raise error()
        return record
    return function

def _returner(make):
    return lambda record: make() if _bad(record) else record

def _cyclic():
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    one.__context__, two.__context__ = two, one
    return one

def _deep(n):
    return _deep(n + 1) + 1

def _nested():
    value = []
    for _ in range(5000):
        value = [value]
    return {"value": value}

def _looped():
    value = {}
    value["self"] = value
    return value

cancelled = _raiser(asyncio.CancelledError)
panic = _raiser(lambda: Panic("called `Option::unwrap()` on a `None` value"))
exits = _raiser(lambda: SystemExit(0))
generator_exit = _raiser(GeneratorExit)
keyboard = _raiser(KeyboardInterrupt)
mute = _raiser(Mute)
mute_for_good = _raiser(MuteForGood)
strange = _raiser(Strange)
huge = _raiser(lambda: ValueError("x" * 5_000_000))
surrogates = _raiser(lambda: ValueError("\\ud800 \\udcff"))
long_name = _raiser(lambda: type("N" * 1_000_000, (Exception,), {})())
props = _raiser(Props)
nameless = _raiser(Nameless)
cyclic = _raiser(_cyclic)
recursion = lambda record: _deep(0) if _bad(record) else record
group = _raiser(lambda: BaseExceptionGroup("several", [KeyboardInterrupt(), ValueError("x")]))
from_ledgerbeam = _raiser(lambda: __import__("ledgerbeam").errors.NonDeterministicTaskError("mine"))

mapped = _returner(Mapped)
liar = _returner(Liar)
crasher = _returner(Crasher)
nested = _returner(_nested)
looped = _returner(_looped)
lone = _returner(lambda: {"text": "\\ud800"})

def _close(descriptor):
    try:
        os.close(descriptor)
    except OSError:
        pass

def prints_elsewhere(record):
    sys.stdout = sys.stderr = None
    return record

def closes_output(record):
    if record["id"] == 3:
        _close(1)
        _close(2)
    return record

def closes_and_prints(record):
    if record["id"] == 3:
        _close(1)
    if record["id"] > 3:
        try:
            os.write(1, b"x" * 200)
        except OSError:
            pass
    return record

def moves(record):
    if record["id"] == 0:
        os.chdir("/")
    return record

def moves_to_nowhere(record):
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    shutil.rmtree(folder)
    return record

def threads(record):
    threading.Thread(target=threading.Event().wait).start()
    return record

def failing_threads(record):
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
    return record

def signals(record):
    try:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:
        pass
    return record

def interrupts_itself(record):
    if _bad(record):
        os.kill(os.getpid(), signal.SIGINT)
    return record
'''

RAISING = {
    "cancelled": "CancelledError",
    "panic": "Panic: called `Option::unwrap()`",
    "exits": "SystemExit: 0",
    "generator_exit": "GeneratorExit",
    "keyboard": "KeyboardInterrupt",
    "mute": "Mute: (its text cannot be read: RuntimeError)",
    "mute_for_good": "(its text cannot be read: Panic)",
    "strange": "Strange: strange",
    "huge": "(5,000,000 characters)",
    "surrogates": r"\ud800 \udcff",
    "long_name": "NNNN",
    "props": "Props",
    "nameless": "Nameless",
    "cyclic": "ValueError: one",
    "recursion": "RecursionError",
    "group": "BaseExceptionGroup: several",
    "from_ledgerbeam": "NonDeterministicTaskError: mine",
}
RETURNING = {
    "mapped": "Mapped",
    "liar": "Liar",
    "crasher": "Panic",
    "nested": "nested more than 254 times",
    "looped": "nested more than 254 times",
    "lone": "surrogates",
}
DOING = [
    *("prints_elsewhere", "closes_output", "closes_and_prints", "moves", "moves_to_nowhere"),
    *("threads", "failing_threads", "signals"),
]
BROKEN_IMPORTS = {
    "cancels": "import asyncio\nraise asyncio.CancelledError",
    "exits": "import sys\nsys.exit(0)",
    "panics": "class Panic(BaseException): pass\nraise Panic('at import')",
}


CLOSING = """
import os

held = []

def closes(record):
    if not held:
        os.closerange(3, 1000)
        for number in range(40):
            held.append(open(f"mine-{number}", "wb", buffering=0))
            held[-1].write(b"mine")
    return record
"""


@pytest.fixture
def hostile(workspace: Workspace) -> Workspace:
    (workspace.root / "hostile.py").write_text(HOSTILE)
    workspace.jsonl("in/a.jsonl", 20)
    return workspace


def run(workspace: Workspace, function: str, *options: str, to: str = "jsonl", **how: Any) -> Ran:
    command = ("map", f"hostile:{function}", "in/a.jsonl", "--output", "out", "--to", to, "--task-bytes", "200")
    ran = workspace.run(*command, "--ledger", "L", *options, **how)
    assert "Traceback" not in ran.err
    assert len(ran.err) < 20_000
    return ran


def ids(workspace: Workspace) -> list[int]:
    return [record["id"] for record in workspace.records("out")]


@pytest.mark.parametrize("function", [*RAISING, *RETURNING])
def test_whatever_a_function_raises_or_returns_fails_its_task_alone(hostile: Workspace, function: str) -> None:
    ran = run(hostile, function, status=3)
    assert {**RAISING, **RETURNING}[function] in ran.err
    assert "in/a.jsonl, record 7: " in ran.err
    assert "its worker died" not in ran.err
    kept = ids(hostile)
    assert kept == [number for number in range(20) if number in kept]
    assert 7 not in kept
    assert len(kept) >= 20 - 6
    failures = hostile.run("ledger", "failures", "L", "--json").json
    assert len(json.dumps(failures)) < 20_000


@pytest.mark.slow
@pytest.mark.parametrize("function", ["cancelled", "keyboard", "exits", "panic", "long_name"])
def test_workers_of_their_own_survive_it_too(hostile: Workspace, function: str) -> None:
    ran = run(hostile, function, "--workers", "2", status=3)
    assert RAISING[function] in ran.err
    assert "worker died" not in ran.err
    assert len(ids(hostile)) >= 20 - 6


def test_a_task_that_would_have_ended_three_workers_is_not_begun_again(hostile: Workspace) -> None:
    with (hostile.root / "hostile.py").open("a") as file:
        file.write("\ndef counted(record):\n    open('calls', 'a').write('x')\n    return cancelled(record)\n")
    calls = []
    for times in range(1, 5):
        run(hostile, "counted", status=3)
        (failure,) = hostile.run("ledger", "failures", "L", "--json").json["failures"]
        assert failure["reason"] == "CancelledError"
        assert failure["quarantined"] == (times >= 3)
        calls.append((hostile.root / "calls").stat().st_size)
    assert calls[0] < calls[1] < calls[2] == calls[3]


@pytest.mark.parametrize("function", ["mapped", "crasher"])
def test_samples_whose_methods_raise_fail_their_task(hostile: Workspace, function: str) -> None:
    with (hostile.root / "hostile.py").open("a") as file:
        file.write(f"\n_make = {function}\ndef as_sample(record):\n")
        file.write("    return _make(record) if _bad(record) else {'txt': str(record['id'])}\n")
    run(hostile, "as_sample", to="tar", status=3, err="record 7: hostile:as_sample raised")


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.slow)])
@pytest.mark.parametrize("function", DOING)
def test_whatever_a_function_does_to_its_process_all_is_right(hostile: Workspace, function: str, workers: str) -> None:
    run(hostile, function, "--workers", workers, status=0)
    assert ids(hostile) == list(range(20))
    assert hostile.run("ledger", "verify", "L").status == 0
    assert not Path("/out").exists(), "below a folder that the function has moved to"


def test_a_function_that_closes_what_is_open_ends_the_job_and_no_file_of_others_is_written(hostile: Workspace) -> None:
    """The files that it opens then have the descriptors of the ledger and of the board of tasks."""
    (hostile.root / "hostile.py").write_text(CLOSING)
    ran = run(hostile, "closes", "--workers", "1", status=1)
    assert "descriptors of its files were closed in this process by other code" in ran.err
    mine = list(hostile.root.glob("mine-*"))
    assert len(mine) == 40
    assert {path.read_bytes() for path in mine} == {b"mine"}
    (hostile.root / "hostile.py").write_text(CLOSING.replace("os.closerange(3, 1000)", "pass"))
    assert run(hostile, "closes", "--on-job-change", "accept").status == 0
    assert ids(hostile) == list(range(20))


@pytest.mark.parametrize("name", BROKEN_IMPORTS)
def test_a_module_that_raises_at_import_is_told_before_anything_runs(hostile: Workspace, name: str) -> None:
    (hostile.root / "hostile.py").write_text(BROKEN_IMPORTS[name])
    run(hostile, "function", status=1, err="module 'hostile' cannot be imported")
    assert not (hostile.root / "out").exists()


@pytest.mark.parametrize("name", BROKEN_IMPORTS)
def test_a_module_that_raises_at_import_in_a_worker_ends_the_job(hostile: Workspace, name: str) -> None:
    """The launcher sets a variable that workers see, so only they fail; no task is to blame for what all would meet."""
    body = BROKEN_IMPORTS[name].replace("\n", "\n    ")
    text = f"import os\nif os.environ.get('IMPORTED'):\n    {body}\nos.environ['IMPORTED'] = '1'\n"
    (hostile.root / "hostile.py").write_text(f"{text}def function(record):\n    return record\n")
    ran = run(hostile, "function", status=1, err="module 'hostile' cannot be imported")
    assert "worker died" not in ran.err
    assert json.loads(hostile.run("ledger", "status", "L", "--json").out)["tasks"] == {"done": 0, "failed": 0}


GRAPH = """
import asyncio
from ledgerbeam.iterators import IndexedManifest, Map

def bad(item):
    if item["id"] == 7:
        raise asyncio.CancelledError
    return item

def items():
    return Map(IndexedManifest("in/a.jsonl"), bad)

def cancelled():
    raise asyncio.CancelledError

def split(text):
    if text.startswith("text 7"):
        raise asyncio.CancelledError
    return [text]
"""


def test_graphs_and_splitters_that_raise_fail_their_task(hostile: Workspace) -> None:
    (hostile.root / "graphs.py").write_text(GRAPH)
    assert hostile.run("index", "in/a.jsonl").status == 0
    command = ("--output", "out", "--to", "jsonl", "--task-records", "5")
    hostile.run("materialize", "graphs:items", *command, status=3, err="CancelledError")
    assert len(ids(hostile)) == 15
    hostile.run("materialize", "graphs:cancelled", *command, status=1, err="graphs:cancelled raised CancelledError")
    tokens = ("--output", "tokens", "--tokenizer", "bytes", "--no-append-eod", "--split-sentences", "graphs:split")
    hostile.run("tokenize", "in/a.jsonl", *tokens, status=3, err="record 7: graphs:split raised CancelledError")
