"""`ledger watch`: a live view of many hosts. It writes nothing, and survives a lost connection."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import s3fs

from ledgerbeam import open_ledger
from tests.pipelines.conftest import Workspace
from tests.pipelines.jobs.test_restart import WORK, wait_for
from tests.servers.s3_proxy import Fault, S3Proxy

TASKS = 80


@contextlib.contextmanager
def reading(process: subprocess.Popen[str]) -> Iterator[list[str]]:
    """Collect the output lines of a process while the body runs."""
    lines: list[str] = []
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    yield lines
    process.kill()
    process.communicate()


def take(process: subprocess.Popen[str], lines: list[str]) -> list[str]:
    assert process.stdout is not None
    while line := process.stdout.readline():
        lines.append(line.rstrip("\n"))
    return lines


@pytest.mark.s3
@pytest.mark.slow
def test_hosts_on_a_store_are_watched_with_few_requests_and_over_a_link_that_is_cut(
    workspace: Workspace, faulty_s3: S3Proxy
) -> None:
    bucket = faulty_s3.server.bucket()
    store = s3fs.S3FileSystem(**faulty_s3.server.options, skip_instance_cache=True)
    for number in range(4):
        rows = ({"id": i} for i in range(20 * number, 20 * (number + 1)))
        store.pipe_file(f"{bucket}/in/{number}.jsonl", b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    (workspace.root / "sharing_work.py").write_text(WORK.replace("0.15", "0.5"))
    workspace.env["DONE_LOG"] = str(workspace.root / "log")
    ledger = f"s3://{bucket}/L"
    command = (
        *("map", "sharing_work:slow", f"s3://{bucket}/in/*.jsonl", "--to", "jsonl", "--task-bytes", "1"),
        *("--audit=off", "--output", f"s3://{bucket}/out", "--ledger", ledger),
    )
    envs = [{**faulty_s3.server.env, "LEDGERBEAM_CACHE": str(workspace.root / f"host-{n}")} for n in range(2)]
    processes = [workspace.start(*command, env=env) for env in envs]
    log = workspace.root / "log"
    wait_for(
        lambda: log.exists() and len({line.split()[1] for line in log.read_text().splitlines()}) == 2, processes[0]
    )
    own = {**faulty_s3.env, "LEDGERBEAM_CACHE": str(workspace.root / "reader")}
    watching = workspace.start("ledger", "watch", ledger, "--interval", "1", env=own)
    with reading(watching) as lines:
        wait_for(lambda: any("2 runs on 1 host" in line for line in take(watching, lines)), watching)
        began, before = time.monotonic(), len(faulty_s3.requests)
        looks = sum(line.startswith("at work") for line in take(watching, lines))
        wait_for(lambda: sum(line.startswith("at work") for line in take(watching, lines)) >= looks + 4, watching)
        seconds, asked = time.monotonic() - began, faulty_s3.requests[before:]
        assert {request.method for request in asked} <= {"GET"}
        listings = [request for request in asked if "list-type=2" in request.query]
        claims = [request for request in asked if "/L/claims/" in request.key]
        segments = [request.key for request in asked if "/L/segments/" in request.key]
        assert len(listings) <= seconds + 2
        assert len(claims) <= 2 * (seconds / 10 + 1)
        assert len(segments) == len(set(segments)), "every object is read once"
        assert len(asked) == len(listings) + len(claims) + len(segments)
        cut = Fault("reset")
        faulty_s3.faults.append(cut)
        wait_for(
            lambda: any("the store does not answer; it is asked again" in x for x in take(watching, lines)), watching
        )
        faulty_s3.faults.remove(cut)
        for process in processes:
            said = process.communicate(timeout=120)[0]
            assert process.returncode == 0, said
        assert watching.wait(timeout=60) == 0, take(watching, lines)
        take(watching, lines)
    blocks = "\n".join(lines).split("\n\n")
    assert f"{TASKS} of about" in blocks[-2] or f"{TASKS} done (100.0 %)" in blocks[-2], blocks[-2:]
    assert any("record" in block and "last minute" in block for block in blocks)


@pytest.fixture
def begun(workspace: Workspace) -> Workspace:
    """A ledger of an incomplete job without an active run."""
    workspace.jsonl("in/a.jsonl", 20)
    command = ("map", "functions:bad_seven", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L")
    assert workspace.run(*command).status == 3
    return workspace


def test_once_and_as_json(begun: Workspace) -> None:
    ran = begun.run("ledger", "watch", "L", "--once")
    assert (ran.status, ran.err) == (0, "")
    assert "0 runs on 0 hosts" in ran.out
    assert "1 failed" in ran.out
    (found,) = map(json.loads, begun.run("ledger", "watch", "L", "--once", "--json").out.splitlines())
    assert found["tasks"]["failed"] == 1
    assert [run["state"] for host in found["hosts"] for run in host["runs"]] == ["tasks failed"]
    assert found["hosts"][0]["failures"] == 1
    assert found["hosts"] == open_ledger(begun.root / "L").hosts(), "as Python has it"
    begun.run("ledger", "watch", "nothing", "--once", status=1, err="does not exist")


@pytest.mark.parametrize("on_terminal", [False, True])
def test_ctrl_c_ends_it_without_a_word(begun: Workspace, on_terminal: bool) -> None:
    main, side = pty.openpty() if on_terminal else os.pipe()
    command = [sys.executable, "-m", "ledgerbeam", "ledger", "watch", "L", "--interval", "0.5"]
    env = {**begun.env, "TERM": "xterm", "COLUMNS": "150", "LINES": "40"}
    process = subprocess.Popen(
        command, cwd=begun.root, env=env, stdout=side, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    os.close(side)
    seen = b""
    while seen.count(b"0 runs on 0 hosts") < 2:
        seen += os.read(main, 4096)
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(OSError):  # no process writes to the terminal any more
        while more := os.read(main, 4096):
            seen += more
    assert process.communicate(timeout=30)[1] == ""
    assert process.returncode == 130
    assert (b"Ctrl-C ends" in seen) is on_terminal
    os.close(main)


def test_looking_changes_nothing(begun: Workspace) -> None:
    data = begun.root / "L" / "data.mdb"
    before = data.read_bytes()
    assert begun.run("ledger", "watch", "L", "--once").status == 0
    assert begun.run("ledger", "status", "L", "--by-host").status == 0
    assert data.read_bytes() == before


def test_two_ways_of_looking_are_not_mixed(begun: Workspace) -> None:
    begun.run("ledger", "status", "L", "--by-host", "--check-sources", status=2, err="--check-sources")
    assert Path(begun.root / "L").is_dir()
