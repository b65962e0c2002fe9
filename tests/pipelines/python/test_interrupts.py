"""Ctrl-C during calls in Python: `JobInterrupt` at any moment, and the same call works in the same process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipelines.conftest import python

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
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "a.jsonl").write_text('{"id": 1}\n')
    pq.write_table(pa.table({"id": [1]}), tmp_path / "a.parquet")
    return tmp_path


@pytest.mark.parametrize(
    "at", ["ledgerbeam.pipelines.calls.map", "ledgerbeam.pipelines.jobs.one_stage", "numpy", "orjson"]
)
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
    assert run(sources, MAP, at, times) == ["JobInterrupt True", "done"]


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
