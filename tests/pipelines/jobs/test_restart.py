"""Killed, interrupted and failed jobs resume; two launchers on one local ledger share its tasks."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import tarfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from ledgerbeam.ledger import Source
from ledgerbeam.ledger.model.claims import order_key
from ledgerbeam.ledger.model.job import Job
from ledgerbeam.ledger.opening import open_local_store
from tests.pipelines.conftest import Workspace, make_workspace
from tests.servers.process import wait_until

pytestmark = pytest.mark.slow

SLOW = (
    *("map", "functions:slow", "in/*.jsonl", "--output", "out", "--to", "jsonl"),
    *("--task-bytes", "4000", "--ledger", "L"),
)


def tasks_done(workspace: Workspace) -> int:
    try:
        return open_local_store(str(workspace.root / "L"), create=False, read_only=True).totals().tasks
    except FileNotFoundError:
        return 0


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait for what a process brings about, however slow the machine is; pytest ends a test that hangs."""
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)


def processes_below(pid: int) -> list[int]:
    """Return the processes of the wave that a launcher has started, its workers last."""
    found, parents = [], {pid}
    for entry in sorted(int(e) for e in os.listdir("/proc") if e.isdigit()):
        try:
            with open(f"/proc/{entry}/stat", encoding="utf-8") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent in parents:
            parents.add(entry)
            found.append(entry)
    return found


def write_sources(workspace: Workspace) -> None:
    for name in "abcd":
        workspace.jsonl(f"in/{name}.jsonl", 500, first=1000 * ord(name))


@pytest.fixture(scope="module")
def clean_outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    workspace = make_workspace(tmp_path_factory.mktemp("clean"))
    write_sources(workspace)
    workspace.succeed(*SLOW, "--workers", "2")
    return workspace.files("out")


@pytest.fixture
def clean(workspace: Workspace, clean_outputs: dict[str, bytes]) -> dict[str, bytes]:
    """Makes the sources, and gives the outputs of one clean run."""
    write_sources(workspace)
    return clean_outputs


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_killed_job_ends_with_the_same_bytes(workspace: Workspace, clean: dict[str, bytes], workers: str) -> None:
    process = workspace.start(*SLOW, "--workers", workers)
    wait_for(lambda: tasks_done(workspace) > 5, process)
    children = processes_below(process.pid)
    process.kill()
    process.communicate()
    gone = wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in children), seconds=60)
    assert gone, "the wave outlived its launcher"
    done = tasks_done(workspace)
    assert done > 0
    ran = workspace.succeed(*SLOW, "--workers", workers, "--json")
    assert ran.json["complete"] is True
    assert workspace.files("out") == clean
    assert ran.json["tasks"]["done"] > done


def test_a_killed_worker_does_not_hang_the_job(workspace: Workspace, clean: dict[str, bytes]) -> None:
    process = workspace.start(*SLOW, "--workers", "2")
    wait_for(lambda: tasks_done(workspace) > 3, process)
    os.kill(processes_below(process.pid)[-1], signal.SIGKILL)
    out = process.communicate(timeout=120)[0]
    assert process.returncode == 0, out
    assert "starting again with what is left" in out
    assert workspace.files("out") == clean


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interrupted_job_says_how_to_go_on(workspace: Workspace, clean: dict[str, bytes], name: str) -> None:
    process = workspace.start(*SLOW)
    wait_for(lambda: tasks_done(workspace) > 3, process)
    process.send_signal(getattr(signal, name))
    out = process.communicate(timeout=120)[0]
    assert process.returncode == 130
    assert "to resume, run the same command again" in out
    assert "Traceback" not in out
    assert workspace.run(*SLOW).status == 0
    assert workspace.files("out") == clean


@pytest.mark.parametrize(("function", "reason"), [("poison", "signal 9"), ("leaves", "exit status 0")])
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_record_that_kills_its_worker_is_found_and_the_rest_is_done(
    workspace: Workspace, function: str, reason: str, workers: str
) -> None:
    for i in range(4):
        workspace.jsonl(f"in/{i}.jsonl", 10, first=10 * i)
    command = ("map", f"functions:{function}", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L")
    ran = workspace.run(*command, "--workers", workers, "--json", timeout=240, status=3)
    assert ran.json["sources"] == {"complete": 3, "open": 0, "failed": 1}
    assert sorted(r["id"] for r in workspace.records("out")) == [*range(10), *range(20, 40)]
    (failure,) = workspace.run("ledger", "failures", "L", "--json").json["failures"]
    assert (failure["quarantined"], failure["reason"]) == (False, reason)
    assert failure["source"].endswith("in/1.jsonl")
    assert "in/1.jsonl, record 3: functions:" in failure["error"]
    again = workspace.run(*command, "--workers", workers, "--json", status=3)
    assert "starting again" not in again.err
    rejecting = workspace.run(*command, "--workers", workers, "--on-error", "reject", "--json")
    assert rejecting.json["records"]["rejected"] == {reason: 1}
    kept = [r["id"] for r in workspace.records("out") if "id" in r]  # the rejected record has a row, too
    assert sorted(kept) == [n for n in range(40) if n != 13]


def test_a_failed_task_is_retried_by_the_next_run(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 20)
    workspace.jsonl("in/b.jsonl", 20, first=20)
    command = ("map", "functions:bad_seven", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L")
    workspace.run(*command, "--task-bytes", "200", status=3, err=("seven is bad", "record 7"))
    status = workspace.run("ledger", "status", "L", "--json").json
    assert status["sources"] == {"complete": 1, "open": 0, "failed": 1}
    assert status["tasks"]["failed"] == 1
    assert status["complete"] is False
    functions = workspace.root / "functions.py"
    functions.write_text(functions.read_text().replace('raise ValueError("seven is bad")', "return None"))
    workspace.run(*command, "--task-bytes", "200", status=1, err="module functions: changed")
    workspace.succeed(*command, "--task-bytes", "200", "--on-job-change", "accept")
    assert [r["id"] for r in workspace.records("out")] == [i for i in range(40) if i != 7]
    assert workspace.run("ledger", "failures", "L", "--json").json["failures"] == []


@pytest.mark.parametrize("kill", [False, True], ids=["", "stopped before it was read"])
def test_a_restarted_job_reads_what_was_appended_since(workspace: Workspace, kill: bool) -> None:
    """The index beside the source is of the former content, and the restarted ledger still knows that."""
    source = workspace.jsonl("in/a.jsonl", 20)
    command = ("map", "functions:keep", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L")
    assert workspace.run(*command).status == 0
    source.write_text(source.read_text() + '{"id": 20}\n')
    restarted = (*command, "--task-bytes", "1000", "--on-job-change", "restart")
    if kill:
        store = open_local_store(str(workspace.root / "L"), create=False)
        stored = store.job()
        assert stored is not None
        store.open_job(Job("map", {**stored.parameters, "task_bytes": 1000}), "restart")
        store.close()
    workspace.run(*restarted, status=0, err="in/a.jsonl: changed since this job read it; indexing it again")
    assert [record["id"] for record in workspace.records("out")] == list(range(21))


def test_forgotten_sources_run_again(workspace: Workspace) -> None:
    for name in "ab":
        workspace.jsonl(f"in/{name}.jsonl", 5)
    command = ("map", "functions:keep", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L", "--json")
    workspace.run(*command)
    (workspace.root / "out/a.jsonl-0000000000.jsonl").unlink()
    (workspace.root / "out/b.jsonl-0000000000.jsonl").write_text("x")
    ran = workspace.run("ledger", "verify", "L", status=1)
    assert "a.jsonl-0000000000.jsonl" in ran.out
    assert "expected" in ran.out
    assert len(workspace.run("ledger", "forget", "L", "*.jsonl", "--json").json["forgotten"]) == 2
    assert workspace.run(*command).json["skipped"] == 0
    assert workspace.run("ledger", "verify", "L").status == 0


def test_every_bundle_run_twice_gives_the_same_outputs(workspace: Workspace, clean: dict[str, bytes]) -> None:
    workspace.succeed(*SLOW, "--workers", "1", "--", "--direct_runner_bundle_repeat=1")
    assert workspace.files("out") == clean


REPEATING = "--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner"
"""Not the local runner, whose workers draw each task once."""


def test_a_task_that_ends_otherwise_than_recorded_is_an_error(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 20)
    ran = workspace.run(
        *("map", "functions:random_text", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--workers", "1"),
        *("--audit=off", "--", REPEATING, "--direct_runner_bundle_repeat=1"),
    )
    assert ran.status == 1
    assert "in/a.jsonl" in ran.err
    assert "Traceback" not in ran.err


WORK = """
import os, time
def slow(record):
    log = os.environ["DONE_LOG"]
    with open(log, "a") as file:
        file.write(f"{record['id']} {os.getpid()}\\n")
    time.sleep(0.15)
    while "WAITS" in os.environ and len({line.split()[1] for line in open(log)}) < 2:
        time.sleep(0.05)
    return record
"""
COMMAND = ("map", "sharing_work:slow", "in/*.jsonl", "--to", "jsonl", "--task-bytes", "1", "--audit=off")


def test_two_launchers_share_a_local_ledger(workspace: Workspace) -> None:
    (workspace.root / "sharing_work.py").write_text(WORK)
    for name in "abcd":
        workspace.jsonl(f"in/{name}.jsonl", 40)
    workspace.env["DONE_LOG"] = str(workspace.root / "clean-log")
    assert workspace.run(*COMMAND, "--output", "clean", "--workers", "2").status == 0
    workspace.env["DONE_LOG"] = str(workspace.root / "log")
    shared = (*COMMAND, "--output", "out", "--ledger", "L", "--workers", "1")
    first = workspace.start(*shared, env={"WAITS": "for the other one, however long its start takes"})
    log = workspace.root / "log"
    wait_for(log.exists, first)
    workspace.run(*shared, status=0, err=("another run is at work on this ledger", "the runs share its tasks"))
    said = first.communicate(timeout=120)[0]
    assert first.returncode == 0, said
    lines = [line.split() for line in log.read_text().splitlines()]
    assert len(lines) <= 1.05 * 160
    assert min(Counter(pid for _, pid in lines).values()) > 30  # each has done its part
    assert workspace.files("out") == workspace.files("clean")


STANDS = """
import os, time
def stands(record):
    if str(record["id"]) == os.environ.get("STANDS"):
        open("reached", "w").close()
        while not os.path.exists("go-on"):
            time.sleep(0.05)
    return {"id": record["id"], "text": record["text"].upper()}
"""


def begin_with(source: Path, ordinal: int, tasks: int) -> None:
    """Give a source a time with which the first run of a ledger begins with this task of it: its identity decides."""
    size, time = source.stat().st_size, source.stat().st_mtime_ns
    while True:
        known = Source(str(source), size, str(time)).id
        if min(range(tasks), key=lambda task: order_key("000001", known, ((task, tasks),))) == ordinal:
            break
        time -= 1
    os.utime(source, ns=(time, time))


@pytest.mark.parametrize(
    ("text", "task", "stands", "status"),
    [
        pytest.param("y", 2, 5, 0, id="of the same size"),
        pytest.param("yy", 0, 25, 0, id="of another size"),
        pytest.param("yy", 2, 5, 3, id="of another size, an output of which has another name"),
    ],
)
def test_a_launcher_that_stood_still_does_not_bring_back_what_a_source_was(
    workspace: Workspace, text: str, task: int, stands: int, status: int
) -> None:
    """An output of its first task whose name the new content lacks is out of date, and stays while it lives."""
    (workspace.root / "standing.py").write_text(STANDS)
    source = workspace.jsonl("in/a.jsonl", 40)
    begin_with(source, task, tasks=3)
    command = ("map", "standing:stands", "in/*.jsonl", "--to", "jsonl", "--task-bytes", "800", "--audit=off")
    shared = (*command, "--output", "out", "--ledger", "L", "--workers", "1")
    first = workspace.start(*shared, env={"STANDS": str(stands)})
    wait_for((workspace.root / "reached").exists, first)
    store = open_local_store(str(workspace.root / "L"), create=False, read_only=True)
    wait_for(lambda: store.output_count() > 0, first)
    before = {row.output.name for row in store.outputs()}
    store.close()
    assert before == set(workspace.files("out"))
    source.write_text(source.read_text().replace("xx", f"{text}x"))
    second = workspace.run(*shared, status=status)
    assert ("kept 2 stale outputs" in second.err) is bool(status)
    (workspace.root / "go-on").touch()
    said = first.communicate(timeout=120)[0]
    assert first.returncode == 0, said
    assert workspace.run(*command, "--output", "clean").status == 0
    assert workspace.files("out") == workspace.files("clean")
    assert bool(before - workspace.files("out").keys()) is bool(status)
    assert workspace.run("ledger", "verify", "L").status == 0


MEDDLING = '''
"""A user function whose worker is killed once, after the file that it reads was replaced."""
import os, pathlib, signal, time

def meddle(record):
    if record["id"] == 13 and not os.path.exists("meddled"):
        pathlib.Path("meddled").touch()
        deadline = time.monotonic() + 60
        while not os.path.exists("replaced") and time.monotonic() < deadline:
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)
    return record
'''


def replace(path: Path) -> None:
    """Put a file with other records of the same lengths in the place of one, and return it the time of that."""
    before = path.stat()
    aside = path.with_suffix(".new")
    aside.write_text(path.read_text(encoding="utf-8").replace("text", "next"))
    os.utime(aside, ns=(before.st_atime_ns, before.st_mtime_ns))
    aside.replace(path)
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def editions(workspace: Workspace) -> set[str]:
    return {word for record in workspace.records("out") for word in ("text", "next") if word in str(record)}


def test_a_source_that_was_done_in_part_is_replaced_before_a_run_looked_at_it(workspace: Workspace) -> None:
    path = workspace.jsonl("in/a.jsonl", 20)
    command = ("map", "functions:needs_service", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L")
    workspace.run(*command, "--task-bytes", "100", status=3)
    assert editions(workspace) == {"text"}
    replace(path)
    store = open_local_store(str(workspace.root / "L"), create=False)
    store.begin_run({"pid": 1, "runner": "local", "place": store.environment_id()})
    store.close()
    (workspace.root / "functions.py").write_text((workspace.root / "functions.py").read_text().replace("== 7", "== 77"))
    (workspace.root / "service-is-up").touch()
    ran = workspace.succeed(*command, "--task-bytes", "100", "--on-job-change", "accept")
    assert editions(workspace) == {"next"}
    assert "it changed after parts of it were done" in ran.err


def test_a_source_that_was_done_in_part_is_replaced_between_two_passes_of_a_run(workspace: Workspace) -> None:
    path = workspace.jsonl("in/a.jsonl", 20)
    (workspace.root / "meddling.py").write_text(MEDDLING)
    command = ("map", "meddling:meddle", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L")
    running = workspace.start(*command, "--task-bytes", "100", "--workers", "2", "--flush-interval", "0.1")
    while not (workspace.root / "meddled").exists() or not tasks_done(workspace):
        assert running.poll() is None, running.communicate()
        time.sleep(0.05)
    replace(path)
    (workspace.root / "replaced").touch()
    said, _ = running.communicate(timeout=120)
    assert running.returncode == 0, said
    assert editions(workspace) == {"next"}, said


def write_pairs(path: Path, *seconds: int) -> None:
    """Write 42 members of one size, each a sample, but that the `seconds` belong to the sample before them."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for number in range(42):
            info = tarfile.TarInfo(f"{number - 1:03d}.bin" if number in seconds else f"{number:03d}.txt")
            info.size = 1
            tar.addfile(info, io.BytesIO(b"x"))


def test_an_index_of_another_archive_with_as_many_samples_is_refused(workspace: Workspace) -> None:
    """Between the places in which they differ, the index gave each sample the number of the one after it."""
    (workspace.root / "in").mkdir()
    path = workspace.root / "in/a.tar"
    write_pairs(path, 31)
    assert workspace.run("index", "in/a.tar").status == 0
    write_pairs(path, 9)
    index = workspace.root / "in/a.tar.idx"
    os.utime(index)
    command = ("map", "functions:members", "in/a.tar", "--to", "jsonl", "--task-bytes", "5000", "--workers", "1")
    ran = workspace.run(*command, "--output", "out", "--ledger", "L")
    assert (ran.status, tasks_done(workspace)) == (3, 7), ran.err
    assert "Rebuild it" in ran.err
    index.unlink()
    workspace.succeed(*command, "--output", "out", "--ledger", "L")
    assert workspace.run(*command, "--output", "clean", "--ledger", "C").status == 0
    assert workspace.files("out") == workspace.files("clean")
