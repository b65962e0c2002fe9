"""A source that is done in part, and whose file is replaced by one of the same size and time: never parts of two."""

from __future__ import annotations

import io
import os
import tarfile
import time
from pathlib import Path

import pytest

from ledgerbeam.ledger.opening import open_local_store
from tests.pipelines.conftest import Workspace

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


def tasks_done(workspace: Workspace) -> int:
    try:
        store = open_local_store(str(workspace.root / "L"), create=False, read_only=True)
    except OSError:  # it is not made yet
        return 0
    try:
        return store.totals().tasks
    finally:
        store.close()


@pytest.mark.slow
def test_by_a_run_that_was_killed_before_it_looked_at_it(workspace: Workspace) -> None:
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


@pytest.mark.slow
def test_between_two_passes_of_a_run(workspace: Workspace) -> None:
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


@pytest.mark.slow
def test_by_an_index_of_another_archive_with_as_many_samples(workspace: Workspace) -> None:
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
