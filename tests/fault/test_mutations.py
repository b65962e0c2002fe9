"""The suite can fail: what breaks the library in one way shows in the figure that stands for it."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fault.corpus import RECORDS, TASKS, Clean
from tests.fault.findings import Findings, partly_recorded, recording_seconds
from tests.fault.job import Job, environment
from tests.fault.ledger_mutants import CHECKS
from tests.fault.ledger_mutants import MUTANTS as LEDGER_MUTANTS
from tests.fault.mutants import MUTANTS, arm

LIMIT_SECONDS = 240  # more than a machine under load takes for any step; a job that ends before is noticed at once

pytestmark = [pytest.mark.slow, pytest.mark.timeout(4 * LIMIT_SECONDS)]

FIGURES = {
    "publish late": "lost",
    "drop last output": "lost",
    "name by process": "duplicated",
    "complete early": "false_completions",
    "commit at the end": "rework",
    "forget finished tasks": "rework",
}


def killed_once(folder: Path, clean: Clean, mutant: str | None = None) -> Findings:
    """Kill a job after some work, runs it to its end if all is well until then, and return what was found."""
    env = environment()
    if mutant is not None:
        env |= arm(folder / "hook", mutant, env["PYTHONPATH"])
    job = Job(folder / "job", 1, env)
    killed = job.start()
    try:
        assert killed.wait_until(lambda: job.records_done() >= 4 * TASKS * RECORDS, LIMIT_SECONDS), killed.log()
        if mutant == "forget finished tasks":
            within = functools.partial(killed.stops_where, lambda: partly_recorded(job.files))
            assert killed.wait_until(within, LIMIT_SECONDS), killed.log()
        if mutant == "commit at the end":  # what ended just before the kill may be done again, as it may without it
            assert killed.wait_until(lambda: job.seconds_worked() > 1.5 * recording_seconds(), LIMIT_SECONDS), (
                killed.log()
            )
        killed.kill(killed.pids())
        assert killed.wait_gone(LIMIT_SECONDS) == []
        job.check(clean)
        if not job.findings.bad:
            again = job.start()
            assert again.wait(LIMIT_SECONDS)
            job.check_end(clean)
    finally:
        killed.end()
    return job.findings


def test_without_a_mutant_nothing_is_found(tmp_path: Path, clean: Clean) -> None:
    findings = killed_once(tmp_path, clean)
    assert not findings.bad, findings


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_found(tmp_path: Path, clean: Clean, mutant: str) -> None:
    findings = killed_once(tmp_path, clean, mutant)
    assert getattr(findings, FIGURES[mutant]), findings


def run_check(mutant: str, check: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.fault.ledger_mutants", mutant, check]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.parametrize("check", CHECKS)
def test_unbroken_every_check_passes(check: str) -> None:
    found = run_check("", check)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("mutant", LEDGER_MUTANTS)
def test_a_mutant_of_the_ledger_is_noticed(mutant: str) -> None:
    found = run_check(mutant, LEDGER_MUTANTS[mutant][0])
    assert found.returncode == 1, f"{found.stdout}\n{found.stderr}"
    assert "Traceback" not in found.stderr, found.stderr
