from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ledgerbeam.errors import UsageError
from ledgerbeam.ledger.model import faults

PROGRAM = """
from ledgerbeam.ledger.model.faults import fault_point
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


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The signals that this process would have sent itself; no fault is left armed."""
    found: list[int] = []
    monkeypatch.setattr(os, "kill", lambda process, number: found.append(number))
    yield found
    faults.arm("")


@pytest.mark.parametrize("times", [1, 2, 10])
def test_a_fault_is_due_at_the_nth_time_that_its_point_is_reached(killed: list[int], times: int) -> None:
    faults.arm(f"a:point:{times}")
    for _ in range(times - 1):
        faults.fault_point("a:point")
        faults.fault_point("another")
    assert killed == []
    faults.fault_point("a:point")
    assert killed == [signal.SIGKILL]
    faults.arm(f"a:point:{times + 1}")  # counted anew
    faults.fault_point("a:point")
    assert len(killed) == 1
    faults.arm("")
    faults.fault_point("a:point")
    faults.fault_point("")
    assert len(killed) == 1


@pytest.mark.parametrize("fault", ["point", "point:0", "point:-1", "point:x", "point:1.5", ":1", ":", "point:"])
def test_a_fault_of_another_form_is_not_armed(killed: list[int], fault: str) -> None:
    with pytest.raises(UsageError, match="is not POINT:N with N >= 1"):
        faults.arm(fault)
