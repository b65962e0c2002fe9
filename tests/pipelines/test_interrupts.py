"""Ctrl-C and SIGTERM at every moment of a command or a call: one line or one exception, and the next one works."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipelines.conftest import Workspace, python

AT_IMPORT = """
import os, sys

class Interrupts:
    left = None

    def find_spec(self, name, path=None, target=None):
        if name == "ledgerbeam._base.interrupts":
            type(self).left = int(os.environ["AT"])
        elif self.left is not None:
            if self.left == 0:
                os.kill(os.getpid(), int(os.environ["SIGNAL"]))
            type(self).left -= 1

sys.meta_path.insert(0, Interrupts())
from ledgerbeam.__main__ import main
main()
"""
"""A signal as the Nth module is imported, from the first moment of the command on."""

INTERRUPTED = (130, "ledgerbeam: interrupted\n")


@pytest.fixture
def ledger(workspace: Workspace) -> Workspace:
    workspace.jsonl("in/a.jsonl", 5)
    assert workspace.run("convert", "in/a.jsonl", "--to", "jsonl", "--output", "out", "--ledger", "L").status == 0
    return workspace


def interrupted(workspace: Workspace, at: int, number: signal.Signals, *command: str) -> bool:
    """Interrupt a command at an import, and judge how it ends; return whether it came so far."""
    env = {**workspace.env, "AT": str(at), "SIGNAL": str(int(number))}
    ran = python(AT_IMPORT, *command, cwd=workspace.root, env=env)
    assert (ran.status, ran.err) in ((0, ""), INTERRUPTED)
    return ran.status != 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_as_a_command_begins_is_one_line(workspace: Workspace, number: signal.Signals) -> None:
    for at in (0, 1, 20, 60):
        assert interrupted(workspace, at, number, "--version")


@pytest.mark.slow
@pytest.mark.parametrize("command", [("--version",), ("ledger", "status", "L")], ids=str)
def test_an_interrupt_at_any_import_is_one_line(ledger: Workspace, command: tuple[str, ...]) -> None:
    met = next(at for at in count(step=4) if not interrupted(ledger, at, signal.SIGINT, *command))
    assert met > 50


LOSES_IT = """
import os, signal

try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:  # as compiled modules do, and callbacks of imports
    pass

def keep(record):
    return record
"""

BEGIN = """
import os, signal, sys
from ledgerbeam._base.interrupts import end_when_interrupted, raise_when_interrupted

def hears(number):
    try:
        os.kill(os.getpid(), number)
    except KeyboardInterrupt:
        return "raised"
    return "nothing"
"""

IN_FRONT = f"""{BEGIN}
raise_when_interrupted()
print(hears(signal.SIGINT), hears(signal.SIGTERM), flush=True)
end_when_interrupted()
hears(int(sys.argv[1]))
"""

IN_BACKGROUND = f"""
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does for a job in the background
{BEGIN}
raise_when_interrupted()
print(hears(signal.SIGINT), hears(signal.SIGTERM), flush=True)
end_when_interrupted()
print(hears(signal.SIGINT), flush=True)
hears(signal.SIGTERM)
"""

AT_AN_IMPORT = f"""{BEGIN}
raise_when_interrupted()
sys.path.insert(0, sys.argv[1])
import loses
"""

# A function whose job cannot end before it is told to, however fast the machine is.
WAITING = """import os, time
def for_word(record):
    while record["id"] >= 150 and not os.path.exists("word"):
        time.sleep(0.01)
    time.sleep(0.002)
    return record
"""


def ends(code: str, *words: str) -> str:
    """Run a program that an interrupt ends with one line; return what it had printed."""
    ran = python(code, *words)
    assert (ran.status, ran.err) == INTERRUPTED
    return ran.out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_is_raised_while_something_is_done_and_else_ends_the_process(number: signal.Signals) -> None:
    assert ends(IN_FRONT, str(int(number))) == "raised raised\n"


def test_a_command_in_the_background_leaves_ctrl_c_to_the_one_in_front_and_hears_sigterm() -> None:
    assert ends(IN_BACKGROUND) == "nothing raised\nnothing\n"


def test_an_interrupt_while_a_module_is_imported_is_not_raised(tmp_path: Path) -> None:
    (tmp_path / "loses.py").write_text(LOSES_IT)
    assert ends(AT_AN_IMPORT, str(tmp_path)) == ""


def test_an_interrupt_in_a_module_that_would_lose_it_ends_the_command(workspace: Workspace) -> None:
    (workspace.root / "loses.py").write_text(LOSES_IT)
    workspace.jsonl("in/a.jsonl", 5)
    ran = workspace.run("map", "loses:keep", "in/*.jsonl", "--to", "jsonl", "--output", "out", "--ledger", "L")
    assert (ran.status, ran.err) == INTERRUPTED
    assert not (workspace.root / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("to", ["one", "all"])
def test_an_interrupt_at_any_time_of_a_job_shows_no_traceback(
    workspace: Workspace, tmp_path: Path, number: signal.Signals, to: str
) -> None:
    workspace.jsonl("in/a.jsonl", 200)
    (workspace.root / "waiting.py").write_text(WAITING)
    words = ("map", "waiting:for_word", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--task-bytes", "2000")
    for delay in range(4, 40, 7):
        log = tmp_path / "log"
        with log.open("w", encoding="utf-8") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "ledgerbeam", *words, "--ledger", "L"],
                cwd=workspace.root,
                env={**workspace.env, "PYTHONUNBUFFERED": "1"},
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
            time.sleep(delay * 0.1)  # any moment is one to be interrupted at
            (os.killpg if to == "all" else os.kill)(process.pid, number)
            status = process.wait(120)
        said = log.read_text(encoding="utf-8")
        assert "Traceback" not in said
        assert status == 130, said
        assert "interrupted" in said
    (workspace.root / "word").touch()
    assert workspace.run(*words, "--ledger", "L").status == 0
    assert len(workspace.records("out")) == 200


def test_a_second_interrupt_while_the_first_is_told_is_one_line(workspace: Workspace) -> None:
    twice = f"""
import os, signal, sys
from ledgerbeam.pipelines.cli import cli

def interrupt():
    os.kill(os.getpid(), {int(signal.SIGINT)})

def fails(message, status, debug):
    cli._fail = whole
    interrupt()

whole, cli._fail = cli._fail, fails
cli.parse_words = lambda words: interrupt()
cli.run()
"""
    ran = python(twice, cwd=workspace.root, env=workspace.env)
    assert (ran.status, ran.err) == INTERRUPTED


def test_an_ignored_ctrl_c_stays_ignored(workspace: Workspace) -> None:
    code = "import os; from ledgerbeam.__main__ import main; os.kill(os.getpid(), 2); main()"
    ran = workspace.call("env", "--ignore-signal=INT", sys.executable, "-c", code, "--version")
    assert (ran.status, ran.err) == (0, "")


PROGRAM = """
import os, signal, sys, threading, time

AT, TIMES = sys.argv[1], int(sys.argv[2])
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits that it is ignored


def press():
    for _ in range(TIMES):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.03)


class Presses:
    '''Presses Ctrl-C when the import of a module starts, as a user who waits for it.'''

    is_over = False

    def find_spec(self, name, path=None, target=None):
        if name == AT and not self.is_over:
            type(self).is_over = True
            press()


sys.meta_path.insert(0, Presses())
import ledgerbeam as lb


def call():
    {call}


kept = []
for number in (1, 2):
    try:
        call()
    except BaseException as error:
        kept.append(error)  # as a notebook keeps the last one
        print(type(error).__name__, isinstance(error, lb.JobInterrupt) and error.result.interrupted)
    else:
        print("done")
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""

MAP = 'lb.map(lambda r: r, "a.jsonl", output="out", to="jsonl", workers=1)'
OPEN = 'assert lb.open("a.parquet")[0] == {"id": 1}'


def run(folder: Path, call: str, at: str, times: int = 1) -> list[str]:
    """Call something twice in one process, interrupted as a module is imported; return how both calls ended."""
    ran = python(PROGRAM.replace("{call}", call), at, str(times), cwd=folder)
    assert ran.status == 0, ran.err
    assert "Traceback" not in ran.err
    assert "ignored in" not in ran.err
    return ran.out.splitlines()


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    (tmp_path / "a.jsonl").write_text('{"id": 1}\n')
    pq.write_table(pa.table({"id": [1]}), tmp_path / "a.parquet")
    return tmp_path


@pytest.mark.parametrize("at", ["ledgerbeam.pipelines.calls.map", "ledgerbeam.pipelines.jobs.map", "numpy", "orjson"])
@pytest.mark.parametrize("times", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_a_call_that_is_interrupted_while_it_imports_can_be_repeated(sources: Path, at: str, times: int) -> None:
    dry = MAP.replace("workers=1", "dry_run=True")
    assert run(sources, dry, at, times) == ["JobInterrupt True", "done"]


@pytest.mark.parametrize("at", ["ledgerbeam.io.any_source", "pyarrow.lib", "numpy"])
def test_opening_a_source_that_is_interrupted_while_it_imports_can_be_repeated(sources: Path, at: str) -> None:
    assert run(sources, OPEN, at) == ["JobInterrupt True", "done"]


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 4])
@pytest.mark.parametrize("at", ["apache_beam", "grpc._cython.cygrpc", "apache_beam.runners.worker"])
def test_a_job_that_is_interrupted_while_it_imports_beam_can_be_repeated(sources: Path, at: str, times: int) -> None:
    on_beam = MAP.replace("workers=1", 'workers=1, options=["--runner=FnApiRunner"]')
    assert run(sources, on_beam, at, times) == ["JobInterrupt True", "done"]


@pytest.mark.slow
@pytest.mark.parametrize("at", ["apache_beam.pipeline", "ledgerbeam.pipelines.own_pipeline"])
def test_an_own_pipeline_that_is_interrupted_while_it_imports_can_be_repeated(sources: Path, at: str) -> None:
    chain = 't.MatchSources("a.jsonl") | t.SkipCompleted() | t.PlanTasks() | t.ReadTasks()'
    chain += ' | t.ProcessTask(t.MapRecords(lambda r: r, "jsonl")) | t.WriteTasks("out", "jsonl")'
    call = 'with lb.Pipeline(ledger="L", name="x", workers=1) as pipeline:\n        import ledgerbeam.transforms as t\n'
    call += f"        pipeline | {chain} | t.CommitTasks()"
    assert run(sources, call, at) == ["JobInterrupt True", "done"]


def test_the_import_of_a_users_module_can_be_interrupted(sources: Path) -> None:
    (sources / "endless.py").write_text(
        "import os, time\n"
        "if not os.path.exists('seen'):\n"
        "    open('seen', 'w').close()\n"
        "    __import__('threading').Timer(0.2, lambda: os.kill(os.getpid(), 2)).start()\n"
        "    time.sleep(600)\n"
        "def same(record): return record\n"
    )
    call = 'lb.map("endless:same", "a.jsonl", output="out", to="jsonl", dry_run=True)'
    assert run(sources, call, "no.such.module") == ["JobInterrupt True", "done"]


IN_THE_LEDGER = """
import signal, sys
import ledgerbeam as lb

signal.signal(signal.SIGINT, signal.default_int_handler)
is_over = False
def press(event, what):
    global is_over
    if event == "os.remove" and what[0] == "ledgerbeam-run.json" and not is_over:  # locks are released after it
        is_over = True
        signal.raise_signal(signal.SIGINT)
sys.addaudithook(press)
kept = []
for number in (1, 2):
    try:
        lb.map("json:loads", "a.jsonl", output="out", to="jsonl", workers=1)
    except KeyboardInterrupt as error:
        kept.append(error)
        print(type(error).__name__)
    else:
        print("done")
"""


@pytest.mark.slow
def test_a_call_that_is_interrupted_before_it_releases_its_locks_can_be_repeated(sources: Path) -> None:
    ran = python(IN_THE_LEDGER, cwd=sources)
    assert (ran.out, ran.err) == ("JobInterrupt\ndone\n", "")


HANDLED = """
import os, signal, sys
import ledgerbeam as lb

seen = []
signal.signal(signal.SIGINT, lambda *_: seen.append(1))
class Presses:
    def find_spec(self, name, path=None, target=None):
        if name == "orjson":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Presses())
lb.map("json:loads", "a.jsonl", output="out", to="jsonl", dry_run=True)
signal.raise_signal(signal.SIGINT)
print(len(seen))
"""


def test_the_handler_of_the_program_stays_in_charge(sources: Path) -> None:
    ran = python(HANDLED, cwd=sources)
    assert (ran.out, ran.err) == ("2\n", "")
