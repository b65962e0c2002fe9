"""Progress of Python calls: a bar on a terminal and in a notebook, elsewhere lines only with `progress=True`."""

from __future__ import annotations

import json
import logging
import os
import pty
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam import open_ledger
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.pipelines.calls.result import Result
from ledgerbeam.pipelines.console import run_console
from ledgerbeam.pipelines.console.run_console import PythonConsole
from ledgerbeam.pipelines.console.run_progress import RunProgress
from ledgerbeam.pipelines.report.ledger import Ledger
from tests.pipelines.python.conftest import Programs

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


def test_elsewhere_nothing_is_shown_but_all_is_logged(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
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
    monkeypatch.setattr(run_console, "LINE_SECONDS", 0.0)
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
    terminal, end = pty.openpty()
    program = programs.command("""
        def clean(record):
            return record
        show(tasks=lb.map(clean, "in/*.jsonl", output="out", to="jsonl", workers=1).tasks)
    """)
    env: dict[str, Any] = {**programs.workspace.env, "PYTHONPATH": os.getcwd(), "TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen(
        program, cwd=programs.workspace.root, env=env, stdout=subprocess.PIPE, stderr=end, text=True
    )
    os.close(end)
    shown = b""
    try:
        while data := os.read(terminal, 65536):
            shown += data
    except OSError:  # its other end is closed
        pass
    finally:
        os.close(terminal)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, '{"tasks": 1}\n')
    assert b"starting workers" in shown


def test_the_import_takes_little_time() -> None:
    program = (
        "import time; before = time.process_time(); import ledgerbeam; ledgerbeam.__all__; "
        "print(1000 * (time.process_time() - before))"
    )
    took = [
        float(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)
        for _ in range(5)
    ]
    assert min(took) < IMPORT_MS


def test_a_result_is_shown_escaped_and_without_secrets() -> None:
    shown = Result(
        "convert",
        sources=2,
        records=RecordCounts(5, 4, {"empty": 1}, {}, {"": 4}),
        complete=False,
        ledger="s3://user:pass-word@bucket/ledger",
        output="/data/<script>alert(1)</script>\udcff\x1b[31m",
    )._repr_html_()
    assert "not complete, 2 sources, 0 tasks, 5 records read, 4 written" in shown
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
