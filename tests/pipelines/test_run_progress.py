"""Progress of a run: stage, share and time left, on a terminal and in a pipe."""

from __future__ import annotations

import fcntl
import gzip
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from dataclasses import replace

import pytest

from ledgerbeam.pipelines.console import reporter as console
from ledgerbeam.pipelines.console.reporter import Reporter, print_table
from ledgerbeam.pipelines.console.run_progress import RunProgress
from tests.cases import each
from tests.pipelines.conftest import Workspace

HALF = RunProgress(
    stage="working",
    sources_done=3,
    sources=10,
    skipped=2,
    is_listed=True,
    tasks=20,
    bytes=5_000_000,
    expected=40,
    seconds=10.0,
)


def test_it_tells_share_bytes_tasks_sources_rates_and_time_left() -> None:
    assert HALF.text() == "50 %, 10 s left, 20 of about 40 tasks, 3 of 10 sources, 2.0 tasks/s, 500.0 kB/s"


def test_without_a_task_it_tells_what_there_is_to_do() -> None:
    begun = replace(HALF, tasks=0, bytes=0, sources_done=2, seconds=1.0)
    assert begun.text() == "0 %, 0 of about 40 tasks, 2 of 10 sources"
    assert RunProgress(sources=1).text() == "1 source"


@each(
    ("now", "share"),
    [
        (HALF, 0.5),
        (replace(HALF, tasks=10), 0.25),
        (replace(HALF, tasks=39), 0.975),
        (replace(HALF, tasks=200), 1 / 8),  # more tasks than expected from the sizes
        (replace(HALF, tasks=200, least=0.94), 0.94),  # never less than before
        (replace(HALF, tasks=200, sources_done=2), 1 / 16),
        (replace(HALF, sources_done=10), 1.0),
        (replace(HALF, is_listed=False), None),
    ],
)
def test_the_share_goes_by_what_is_known(now: RunProgress, share: float | None) -> None:
    assert now.share == (share if share is None else pytest.approx(share))


def test_failures_are_shown() -> None:
    assert replace(HALF, failed=3).text().startswith("50 %, 10 s left, 3 failed, 20 of about 40 tasks")


def test_the_stage_of_an_exchange_is_shown() -> None:
    assert replace(HALF, part="scatter").title == "scatter"
    assert replace(HALF, part="scatter", stage="starting workers").title == "scatter, starting workers"


def test_lines_come_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reporter = Reporter()
    with reporter.progress():
        reporter.update(HALF)
        assert capsys.readouterr().err == ""
        monkeypatch.setattr(console, "LINE_SECONDS", -1.0)
        reporter.update(HALF)
    assert capsys.readouterr().err == f"working: {HALF.text()}\n"


def test_text_of_users_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Reporter()
    reporter.say("a:smile:.jsonl [red]x[/red]")
    reporter.warn("b:rocket:.jsonl [/]")
    print_table([":key:"], [["c:heart:.jsonl [b]"]])
    assert capsys.readouterr() == ("a:smile:.jsonl [red]x[/red]\n:key:\nc:heart:.jsonl [b]\n", "b:rocket:.jsonl [/]\n")


def on_a_terminal(workspace: Workspace, *args: str, columns: int = 120) -> tuple[int, str]:
    """Run a command on a terminal; return its status and its output without cursor movements."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    env = {**workspace.env, "TERM": "xterm"}
    command = [sys.executable, "-m", "ledgerbeam", *args]
    process = subprocess.Popen(
        command, cwd=workspace.root, env=env, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    said = bytearray()
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # the last of its ends was closed
            break
        if not data:
            break
        said += data
    os.close(ours)
    return process.wait(), re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.decode())


@pytest.mark.slow
def test_a_terminal_shows_the_stages(workspace: Workspace) -> None:
    for name in ("a:smile:", "b"):
        workspace.jsonl(f"in/{name}.jsonl", 240)
    status, said = on_a_terminal(
        workspace,
        *("map", "functions:slow", "in/*.jsonl", "--output", "out:rocket:", "--to", "jsonl", "--workers", "2"),
        *("--task-bytes", "400", "--audit=off", "--ledger", "L"),
    )
    assert status == 0, said
    places = [said.find(word) for word in ("listing", "starting workers", "working", "done: 2 sources complete")]
    assert places == sorted(places)
    assert min(places) >= 0
    assert re.search(r"working \S+ +\d+ %, (?:[^,]+ left, )?\d+ of about \d+ tasks, \d of 2 sources", said), said
    assert "out:rocket:" in said
    assert "🚀" not in said


FAILING = """import time
def slow(record):
    time.sleep(0.01)
    if record["id"] % 100 == 7:
        raise ValueError("bad")
    return record
"""


@pytest.mark.slow
def test_a_terminal_of_80_columns_shows_percent_time_and_failures_and_never_runs_backwards(
    workspace: Workspace,
) -> None:
    (workspace.root / "failing.py").write_text(FAILING)
    (workspace.root / "in").mkdir()
    for name in "abcd":
        rows = b"".join(b'{"id": %d, "text": "%s"}\n' % (number, b"long " * 40) for number in range(200))
        (workspace.root / f"in/{name}.jsonl.gz").write_bytes(gzip.compress(rows))
    status, said = on_a_terminal(
        workspace,
        *("map", "failing:slow", "in/*.jsonl.gz", "--output", "out", "--to", "jsonl", "--workers", "2"),
        *("--task-bytes", "4000", "--ledger", "L"),
        columns=80,
    )
    assert status == 3, said
    lines = [line for line in re.split(r"[\r\n]+", said) if "%" in line]
    shares = [int(found) for line in lines for found in re.findall(r"(\d+) %", line)]
    assert shares == sorted(shares)
    assert any(10 < share < 90 for share in shares)
    assert any(re.search(r" %, [^,]+ left, \d+ failed, \d+ of", line) for line in lines), said


@pytest.mark.slow
def test_nothing_is_padded_or_printed_twice_in_a_pipe(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 10)
    ran = workspace.run("map", "functions:bad_seven", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L")
    assert ran.status == 3
    for text in (
        ran.out,
        ran.err,
        workspace.run("ledger", "failures", "L").out,
        workspace.run("ledger", "status", "L").out,
    ):
        lines = text.splitlines()
        assert [line for line in lines if line != line.rstrip()] == []
        assert sorted(filter(None, lines)) == sorted(set(filter(None, lines)))
    assert "1 task of 1 source failed" in ran.err
