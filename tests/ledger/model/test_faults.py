from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

PROGRAM = """
from ledgerbeam.ledger import fault_point
for turn in range(5):
    print(turn, flush=True)
    fault_point("a.point")
    fault_point("another")
"""


def run(fault: str | None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "LEDGERBEAM_FAULT"}
    if fault is not None:
        environment["LEDGERBEAM_FAULT"] = fault
    return subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False)


def test_the_process_dies_when_it_reaches_the_point_for_the_nth_time() -> None:
    ended = run("a.point:3")
    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout.split() == ["0", "1", "2"]


def test_nothing_happens_without_a_fault_or_at_other_points() -> None:
    assert run(None).returncode == 0
    assert run("elsewhere:1").returncode == 0


@pytest.mark.parametrize("fault", ["a.point", "a.point:0", "a.point:x", ":1"])
def test_a_fault_that_cannot_mean_anything_is_refused(fault: str) -> None:
    assert "is not POINT:N" in run(fault).stderr
