"""Jobs in changing working folders, with closed descriptors, and under the signal settings of their parents."""

from __future__ import annotations

import importlib.metadata
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import pytest

from tests.pipelines.conftest import Workspace
from tests.pipelines.jobs.test_restart import wait_for
from tests.servers import pins, prism

pytestmark = pytest.mark.long

TRAP = "import os\nwith open({path!r}, 'a') as file:\n    file.write({name!r} + ' ')\n"
START = [[sys.executable, "-m", "ledgerbeam"], [str(Path(sys.executable).with_name("ledgerbeam"))]]
ORDERS = """
from ledgerbeam.iterators import IndexedManifest

def all_of_it():
    return IndexedManifest("in/a.jsonl")
"""


@pytest.fixture
def trapped(workspace: Workspace) -> Workspace:
    """A working folder with a file of the name of each module of Python and of what is installed."""
    installed = importlib.metadata.packages_distributions()
    names = {*sys.stdlib_module_names, *installed} - {"ledgerbeam"}  # which `python -m` is asked for
    for name in sorted(name for name in names if name.isidentifier()):
        (workspace.root / f"{name}.py").write_text(TRAP.format(path=str(workspace.root / "sprung"), name=name))
    (workspace.root / "orders.py").write_text(ORDERS)
    (workspace.root / "sentences.py").write_text("def by_dot(text):\n    return text.split('.')\n")
    for name in "ab":
        workspace.jsonl(f"in/{name}.jsonl", 20)
    return workspace


def in_shell(workspace: Workspace, code: str, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command by a line of the shell, in which it is `"$@"`."""
    words = ["sh", "-c", code, "sh", *command]
    where: dict[str, Any] = {"cwd": workspace.root, "env": workspace.env, "stdin": subprocess.DEVNULL, "timeout": 120}
    return subprocess.run(words, **where, capture_output=True, text=True, check=False)


def run(workspace: Workspace, start: Sequence[str], *words: str) -> None:
    done = in_shell(workspace, 'exec "$@"', *start, *words)
    sprung = workspace.root / "sprung"
    assert not sprung.exists(), f"{words}: {sprung.read_text()}"
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("start", START, ids=["module", "script"])
@pytest.mark.slow
def test_no_command_runs_what_lies_in_the_working_folder(trapped: Workspace, start: list[str]) -> None:
    one = ("--workers", "1")
    run(trapped, start, "--help")
    run(trapped, start, "index", "in/*.jsonl", *one)
    run(trapped, start, "verify", "in/*.jsonl", "--deep")
    run(trapped, start, "show", "in/a.jsonl", "0")
    to = ("--to", "webdataset", "--ledger", "L")
    run(trapped, start, "map", "functions:sample", "in/*.jsonl", "--output", "mapped", *to, "--workers", "2")
    for words in (
        *(["status"], ["failures"], ["outputs"], ["verify"], ["export", "--output", "tables", "--format", "parquet"]),
        *(["report", "--output", "r.html"], ["forget", "*a.jsonl"]),
    ):
        run(trapped, start, "ledger", words[0], "L", *words[1:])
    run(trapped, start, "convert", "in/*.jsonl", "--output", "converted", "--to", "jsonl", *one, "--ledger", "C")
    run(trapped, start, "publish", "C", "--as", "idxpack")
    tokens = ("in/*.jsonl", "--tokenizer", "bytes", *one)
    run(trapped, start, "tokenize", *tokens, "--output", "t/all")
    run(trapped, start, "tokenize", *tokens, "--output", "t/split", "--split-sentences", "sentences:by_dot")
    run(trapped, start, "merge", "t/all", "t/split", "--output", "t/both")
    run(trapped, start, "materialize", "orders:all_of_it", "--output", "ordered", "--to", "jsonl", *one)
    assert len(trapped.records("ordered")) == 20


@pytest.mark.skipif(prism.missing() is not None, reason="no Prism")
@pytest.mark.slow
def test_no_process_of_a_runner_does(trapped: Workspace) -> None:
    job = ("map", "functions:upper", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L")
    run(trapped, START[0], *job, "--", "--runner=PrismRunner", f"--prism_location={pins.PRISM.path}")
    assert len(trapped.records("out")) == 40


def test_a_function_may_import_what_lies_beside_it(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 3)
    (workspace.root / "cleaning").mkdir()
    (workspace.root / "cleaning" / "__init__.py").write_text("from ours import keep\n")
    (workspace.root / "ours.py").write_text("def keep(record):\n    return record\n")
    (workspace.root / "numpy").mkdir()  # a folder is no module
    job = ("in/*.jsonl", "--output", "out", "--to", "jsonl")
    for words, env in (
        (("cleaning:keep", *job), {}),
        (("ours:keep", *job, "--workers", "2"), {}),
        (("ours:keep", *job), {"PYTHONPATH": os.pathsep.join([workspace.env.get("PYTHONPATH", ""), "."])}),
    ):
        workspace.succeed("map", *words, "--on-job-change", "accept", env=env)
    assert len(workspace.records("out")) == 3


@pytest.mark.parametrize("start", START, ids=["module", "script"])
def test_a_working_folder_that_was_removed_is_told(workspace: Workspace, start: Sequence[str]) -> None:
    source = workspace.jsonl("in/a.jsonl", 3)
    (workspace.root / "gone").mkdir()
    job = ("convert", source, "--output", workspace.root / "out", "--to", "jsonl", "--ledger", workspace.root / "L")
    ran = in_shell(workspace, 'cd gone && rmdir ../gone && exec "$@"', *start, *job)
    assert ran.returncode == 1
    assert ran.stderr.startswith("ledgerbeam: error: the working folder was removed; go to another folder")


SLOW = (
    *("map", "functions:slow", "in/*.jsonl", "--output", "out", "--to", "jsonl"),
    *("--task-bytes", "4000", "--ledger", "L"),
)


@pytest.fixture
def records(workspace: Workspace) -> int:
    """Makes sources that take some seconds; gives how many records they have."""
    for number in range(2):
        workspace.jsonl(f"in/{number}.jsonl", 500, first=1000 * number)
    return 1000


def inheriting(workspace: Workspace, *how: str) -> Workspace:
    """Return the same folder, in which commands start with signals set as ``env`` of coreutils says."""
    return Workspace(workspace.root, workspace.env, ("env", *how))


def started(workspace: Workspace, process: subprocess.Popen[str]) -> None:
    """Wait until a job has published something."""
    wait_for(lambda: any((workspace.root / "out").glob("**/*.jsonl")), process)


@pytest.mark.parametrize("how", ["--ignore-signal=INT,TERM,QUIT", "--block-signal=INT,TERM", "--ignore-signal"])
def test_sigterm_ends_a_job_however_its_parent_had_set_it(workspace: Workspace, records: int, how: str) -> None:
    inherited = inheriting(workspace, how)
    process = inherited.start(*SLOW)
    started(workspace, process)
    process.send_signal(signal.SIGTERM)
    out = process.communicate(timeout=120)[0]
    assert process.returncode == 130, out
    assert "to resume, run the same command again" in out
    assert inherited.run(*SLOW).status == 0
    assert len(workspace.records("out")) == records


def test_a_job_in_the_background_does_not_mind_ctrl_c(workspace: Workspace, records: int) -> None:
    process = inheriting(workspace, "--ignore-signal=INT").start(*SLOW)
    started(workspace, process)
    process.send_signal(signal.SIGINT)
    out = process.communicate(timeout=120)[0]
    assert process.returncode == 0, out
    assert len(workspace.records("out")) == records


@pytest.mark.parametrize("how", ["--ignore-signal", "--block-signal"])
def test_deaths_are_noticed_whatever_signals_are_ignored_or_blocked(workspace: Workspace, how: str) -> None:
    workspace.jsonl("in/a.jsonl", 20)
    command = ("map", "functions:poison", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L")
    ran = inheriting(workspace, how).run(*command, "--workers", "2")
    assert ran.status == 3, ran.err
    assert "(death 1 of 3)" in ran.err
    assert "record 13: functions:poison was killed by signal 9" in ran.err
    assert "Traceback" not in ran.err


CLOSED = list(chain.from_iterable(combinations(("<&-", ">&-", "2>&-"), count) for count in (1, 2, 3)))

LOUD = """
import os, subprocess, sys

def loud(record):
    print("printed", record["id"] * 1000, flush=True)
    print("complained", record["id"] * 1000, file=sys.stderr, flush=True)
    for descriptor in (1, 2):
        os.write(descriptor, b"written " * 500)
    if record["id"] == 3:
        subprocess.run(["sh", "-c", "echo from a child; echo from a child >&2; cat"], check=True)
    return record
"""

OWN = """
import os, sys
from ledgerbeam.ledger import Job, Source
from ledgerbeam.ledger.model.rows import Leaf
from ledgerbeam.ledger.opening import open_local_store

store = open_local_store("L", create=True)
store.open_job(Job("own", {}))
source = Source("/data/a", 1, "1")
store.register([source])
for descriptor in (1, 2):
    os.write(descriptor, b"written " * 5000)
print("printed " * 5000, flush=True)
print("printed " * 5000, flush=True, file=sys.stderr)
store.commit([Leaf(source.id, ())])
store.close()
store = open_local_store("L", create=False)
os._exit(0 if store.completed_count() == 1 else 7)
"""


def run_closed(workspace: Workspace, closed: tuple[str, ...], *command: str | Path) -> subprocess.CompletedProcess[str]:
    return in_shell(workspace, f'exec "$@" {" ".join(closed)}', sys.executable, *command)


RUNS = [pytest.param(closed, "1", id="".join(closed)) for closed in CLOSED] + [
    pytest.param(closed, "2", id=f"{''.join(closed)}-2", marks=pytest.mark.slow) for closed in CLOSED
]


@pytest.mark.parametrize(("closed", "workers"), RUNS)
def test_a_job_that_prints_to_closed_descriptors_is_right(
    workspace: Workspace, closed: tuple[str, ...], workers: str
) -> None:
    (workspace.root / "loud_functions.py").write_text(LOUD)
    for name in "ab":
        workspace.jsonl(f"in/{name}.jsonl", 5)
    job = ("-m", "ledgerbeam", "map", "loud_functions:loud", "in/*.jsonl", "--output", "out", "--to", "jsonl")
    ran = run_closed(workspace, closed, *job, "--ledger", "L", "--workers", workers)
    assert ran.returncode == 0, ran.stderr + ran.stdout
    assert "Traceback" not in ran.stderr + ran.stdout
    status = workspace.run("ledger", "status", "L", "--json")
    assert status.json["complete"] is True, status.err
    workspace.run("ledger", "verify", "L", status=0)
    assert [record["id"] for record in workspace.records("out")] == 2 * list(range(5))


COMMANDS = [("status", "L"), ("status", "L", "--json"), ("outputs", "L"), ("verify", "L"), ("status", "missing")]


@pytest.mark.parametrize("closed", [(">&-",), ("2>&-",), CLOSED[-1]], ids="".join)
def test_what_is_told_to_a_closed_stream_is_dropped(failed_job: Workspace, closed: tuple[str, ...]) -> None:
    for command in COMMANDS:
        ran = run_closed(failed_job, closed, "-m", "ledgerbeam", "ledger", *command)
        missing = "missing" in command
        assert ran.returncode == int(missing), ran.stderr + ran.stdout
        assert (ran.stdout == "") == (">&-" in closed or missing)
        assert (ran.stderr == "") == ("2>&-" in closed or not missing)


@pytest.mark.parametrize("command", [*COMMANDS[:3], ("outputs", "L", "--json"), ("failures", "L")], ids=" ".join)
def test_what_is_told_to_a_full_disk_is_an_error_of_one_line(failed_job: Workspace, command: tuple[str, ...]) -> None:
    ran = run_closed(failed_job, (">/dev/full",), "-m", "ledgerbeam", "ledger", *command)
    assert ran.returncode == 1
    (line,) = ran.stderr.splitlines()
    assert line.startswith("ledgerbeam: error: standard output: No space left on device; free some space or")


def run_unread(workspace: Workspace, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command whose output goes to a pipe that nobody reads any more."""
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, "-m", "ledgerbeam", *command]
    with os.fdopen(writing, "wb") as unread:
        return subprocess.run(
            words, cwd=workspace.root, env=workspace.env, stdout=unread, stderr=subprocess.PIPE, text=True, check=False
        )


@pytest.mark.parametrize("command", [*COMMANDS[:3], ("failures", "L"), ("metrics", "L")], ids=" ".join)
def test_whoever_reads_no_more_was_given_what_he_wanted_to_see(failed_job: Workspace, command: tuple[str, ...]) -> None:
    ran = run_unread(failed_job, "ledger", *command)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_of_what_does_something_the_status_is_not_that_of_its_reader(failed_job: Workspace) -> None:
    """A job ended at its first line, with nothing done and status 0."""
    job = ("map", "functions:keep", "in/*.jsonl", "--output", "kept", "--to", "jsonl", "--workers", "1")
    for command in (job, ("ledger", "verify", "L"), ("ledger", "forget", "L", "*")):
        ran = run_unread(failed_job, *command)
        assert ran.returncode == 1, command
        assert "standard output: its reader has ended (broken pipe); send it elsewhere" in ran.stderr
    assert failed_job.run(*job).status == 0
    assert failed_job.files("kept")


@pytest.mark.parametrize("closed", CLOSED, ids="".join)
def test_a_program_of_its_own_that_opens_a_ledger_keeps_it_whole(workspace: Workspace, closed: tuple[str, ...]) -> None:
    ran = run_closed(workspace, closed, "-c", OWN)
    assert ran.returncode == 0, ran.stderr + ran.stdout
    assert workspace.run("ledger", "status", "L", "--json").json["sources"]["complete"] == 1
