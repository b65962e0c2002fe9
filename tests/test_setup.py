"""`make setup` after an interrupt and after dropped downloads."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.pages import ROOT

PYTHON = """#!/bin/bash
# Stands in for Python: makes an environment, and installs as the files beside the Makefile say.
if [[ "$1 $2" == "-m venv" ]]; then mkdir -p "$3/bin" && cp "$0" "$3/bin/python"; exit; fi
echo "$@" >> calls
if [[ "$*" == *editable* ]]; then
  if [ -e drops ]; then rm drops; exit 1; fi
  if [ -e broken ]; then exit 1; fi
  if [ -e waits ]; then touch .venv/half; sleep 600; fi
fi
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", "setup.py", "ledgerbeam/io/_native.c"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    return tmp_path


def make(folder: Path, target: str = "setup") -> subprocess.CompletedProcess[str]:
    command = ["make", target, "PYTHON=./python"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_set_up_that_was_interrupted_starts_anew(folder: Path, number: signal.Signals) -> None:
    (folder / "waits").touch()
    with subprocess.Popen(
        ["env", "--default-signal=INT", "make", "setup", "PYTHON=./python"], cwd=folder, start_new_session=True
    ) as process:
        while not (folder / ".venv/half").exists():
            assert process.poll() is None
            time.sleep(0.01)
        while process.poll() is None:  # a signal between two commands of a shell can be lost
            os.killpg(process.pid, number)
            time.sleep(0.1)
    (folder / "waits").unlink()
    assert make(folder).returncode == 0
    assert not (folder / ".venv/half").exists()
    calls = (folder / "calls").read_text()
    assert make(folder).returncode == 0
    assert (folder / "calls").read_text() == calls, "a second call does nothing"


@pytest.mark.slow
def test_a_dropped_download_is_tried_again_and_told_if_it_stays_away(folder: Path) -> None:
    (folder / "drops").touch()
    assert make(folder).returncode == 0
    (folder / "broken").touch()
    os.utime(folder / ".venv/.ready", (1, 1))  # older than pyproject.toml
    failed = make(folder)
    assert failed.returncode != 0
    assert "run the same command again" in failed.stderr
    (folder / "broken").unlink()
    assert make(folder).returncode == 0
