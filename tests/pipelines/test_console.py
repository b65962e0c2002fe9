"""What users see of a run: its progress on a terminal, in a pipe and in a notebook, and its result in a notebook."""

from __future__ import annotations

import fcntl
import gzip
import json
import logging
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import types
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from ledgerbeam import open_ledger
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.pipelines.calls.result import Result
from ledgerbeam.pipelines.console import reporter as consoles
from ledgerbeam.pipelines.console.reporter import PythonConsole, Reporter, print_table
from ledgerbeam.pipelines.console.run_progress import RunProgress
from ledgerbeam.pipelines.report.ledger import Ledger
from tests.cases import each
from tests.pipelines.conftest import Programs, Workspace, python

OURS = [sys.executable, "-m", "ledgerbeam"]
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
    assert replace(HALF, failed=3).text().startswith("50 %, 10 s left, 3 failed, 20 of about 40 tasks")
    assert replace(HALF, part="scatter").title == "scatter"
    assert replace(HALF, part="scatter", stage="starting workers").title == "scatter, starting workers"


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


def test_lines_come_without_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    reporter = Reporter()
    with reporter.progress():
        reporter.update(HALF)
        assert capsys.readouterr().err == ""
        monkeypatch.setattr(consoles, "LINE_SECONDS", -1.0)
        reporter.update(HALF)
    assert capsys.readouterr().err == f"working: {HALF.text()}\n"


def test_text_of_users_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Reporter()
    reporter.say("a:smile:.jsonl [red]x[/red]")
    reporter.warn("b:rocket:.jsonl [/]")
    print_table([":key:"], [["c:heart:.jsonl [b]"]])
    assert capsys.readouterr() == ("a:smile:.jsonl [red]x[/red]\n:key:\nc:heart:.jsonl [b]\n", "b:rocket:.jsonl [/]\n")


def on_a_terminal(command: list[str], workspace: Workspace, columns: int = 120) -> tuple[int, str]:
    """Run a command on a terminal; return its status and its output without cursor movements."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    env = {**workspace.env, "TERM": "xterm"}
    process = subprocess.Popen(
        command, cwd=workspace.root, env=env, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    said = bytearray()
    with os.fdopen(ours, "rb", buffering=0) as terminal, suppress(OSError):  # the last of its ends was closed
        while data := terminal.read(65536):
            said += data
    return process.wait(), re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.decode())


@pytest.mark.slow
def test_a_terminal_shows_the_stages(workspace: Workspace) -> None:
    for name in ("a:smile:", "b"):
        workspace.jsonl(f"in/{name}.jsonl", 240)
    command = (
        *("map", "functions:slow", "in/*.jsonl", "--output", "out:rocket:", "--to", "jsonl", "--workers", "2"),
        *("--task-bytes", "400", "--audit=off", "--ledger", "L"),
    )
    status, said = on_a_terminal([*OURS, *command], workspace)
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
def test_a_narrow_terminal_shows_percent_time_and_failures_and_never_runs_backwards(workspace: Workspace) -> None:
    (workspace.root / "failing.py").write_text(FAILING)
    (workspace.root / "in").mkdir()
    for name in "abcd":
        rows = b"".join(b'{"id": %d, "text": "%s"}\n' % (number, b"long " * 40) for number in range(200))
        (workspace.root / f"in/{name}.jsonl.gz").write_bytes(gzip.compress(rows))
    command = (
        *("map", "failing:slow", "in/*.jsonl.gz", "--output", "out", "--to", "jsonl", "--workers", "2"),
        *("--task-bytes", "4000", "--ledger", "L"),
    )
    status, said = on_a_terminal([*OURS, *command], workspace, columns=80)
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


NOW = RunProgress(stage="working", sources=4, sources_done=1, is_listed=True, tasks=2, expected=8, seconds=1.0)
IMPORT_MS = 50


class Display:
    """A stand-in for `IPython.display`."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def display(self, text: str, *, display_id: bool) -> Display:
        assert display_id
        self.shown.append(text)
        return self

    def update(self, text: str) -> None:
        self.shown.append(text)

    def Pretty(self, text: str) -> str:
        return text


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Display:
    display = Display()
    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return display


def tell(console: PythonConsole) -> None:
    with console.progress():
        console.update(NOW)
        console.say("a line")
        console.warn("a worker \x1b[1m died")
    console.warn("a task failed")


def test_a_notebook_has_the_progress_in_its_cell_and_warnings_above_it(
    notebook: Display, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("ledgerbeam"), "propagate", False)  # to the handlers of pytest
    tell(PythonConsole(None))
    working = f"working: {NOW.text()}"
    died = "a worker \\x1b[1m died"
    assert notebook.shown == ["listing", working, f"{died}\n{working}", died, f"{died}\na task failed"]
    assert capfd.readouterr() == ("", "")


def test_a_notebook_without_progress_shows_nothing(notebook: Display, capfd: pytest.CaptureFixture[str]) -> None:
    tell(PythonConsole(False))
    assert notebook.shown == []
    assert capfd.readouterr() == ("", "")


def test_elsewhere_all_is_logged_alone(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ledgerbeam")
    tell(PythonConsole(None))
    assert capfd.readouterr() == ("", "")
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
        ("INFO", "a line"),
        ("WARNING", "a worker \\x1b[1m died"),
        ("WARNING", "a task failed"),
    ]


def test_lines_on_standard_error_when_progress_is_asked_for(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consoles, "LINE_SECONDS", 0.0)
    monkeypatch.setattr(logging.getLogger("ledgerbeam"), "propagate", False)
    tell(PythonConsole(True))
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines() == [f"working: {NOW.text()}", "a worker \\x1b[1m died", "a task failed"]


def test_warnings_are_shown_once(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    logger, handler = logging.getLogger("ledgerbeam"), logging.StreamHandler(sys.stdout)
    monkeypatch.setattr(logger, "propagate", False)
    logger.addHandler(handler)
    try:
        tell(PythonConsole(True))
    finally:
        logger.removeHandler(handler)
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_a_terminal_has_a_bar(programs: Programs) -> None:
    programs.workspace.jsonl("in/a.jsonl", 4)
    program = programs.command("""
        def clean(record):
            return record
        lb.map(clean, "in/*.jsonl", output="out", to="jsonl", workers=1)
    """)
    status, said = on_a_terminal(program, programs.workspace)
    assert status == 0, said
    assert "starting workers" in said


def test_the_import_takes_little_time() -> None:
    program = (
        "import time; before = time.process_time(); import ledgerbeam; ledgerbeam.__all__; "
        "print(1000 * (time.process_time() - before))"
    )
    assert min(float(python(program).out) for _ in range(5)) < IMPORT_MS


def test_a_result_is_shown_escaped_and_without_secrets() -> None:
    shown = Result(
        "convert",
        sources=2,
        records=RecordCounts(5, 4, {"empty": 1}, {}, {"": 4}),
        complete=False,
        ledger="s3://user:pass-word@bucket/ledger",
        output="/data/<script>alert(1)</script>\udcff\x1b[31m",
    )._repr_html_()
    assert "not complete; this run: 2 sources, 0 tasks, 5 records read, 4 written" in shown
    assert "<script>" not in shown
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown
    assert "pass-word" not in shown
    assert "\x1b" not in shown
    assert json.loads(json.dumps(shown).encode()) == shown


def test_a_result_of_a_long_name_stays_small() -> None:
    assert len(Result("convert", output="/" + "x" * 100_000)._repr_html_()) < 2_000


def test_a_ledger_is_shown_with_its_counts(tmp_path: Path) -> None:
    url = str(tmp_path / "<b>ledger")
    made = LmdbStore(url)
    made.open(create=True)
    made.close()
    shown = open_ledger(url)._repr_html_()
    for text in ("0 complete, 0 open, 0 failed", "0 read, 0 kept, 0 dropped, 0 rejected", "&lt;b&gt;ledger"):
        assert text in shown
    assert "<b>" not in shown


def test_a_ledger_that_cannot_be_read_is_shown_with_its_error(tmp_path: Path) -> None:
    store = LmdbStore(str(tmp_path / "ledger"))
    shown = Ledger(store)._repr_html_()
    assert "error" in shown
