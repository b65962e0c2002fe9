"""The suite can fail: each way to break the ledger is noticed by the check that is named beside it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.fault.ledger_mutants import CHECKS, MUTANTS

pytestmark = pytest.mark.slow

LIMIT_SECONDS = 200


def run(mutant: str, check: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.fault.ledger_mutants", mutant, check]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)


@pytest.mark.parametrize("check", CHECKS)
def test_unbroken_every_check_passes(check: str) -> None:
    found = run("", check)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_noticed(mutant: str) -> None:
    found = run(mutant, MUTANTS[mutant][0])
    assert found.returncode == 1, f"{found.stdout}\n{found.stderr}"
    assert "Traceback" not in found.stderr.splitlines()[-1:], found.stderr
