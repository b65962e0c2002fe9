"""Some seeds of the simulation of runs, and that it reproduces; the long form is `tests.fault.runs` itself."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

from tests.fault.runs.world import simulate

pytestmark = pytest.mark.slow

SEEDS = 30
STEPS = 120
PART = 5


@pytest.mark.parametrize("first", range(0, SEEDS, PART))
def test_seeds(first: int) -> None:
    for seed in range(first, first + PART):
        simulate(seed, STEPS)


def test_a_seed_reproduces_whatever_the_process() -> None:
    def schedule(hashing: str) -> str:
        command = [sys.executable, "-m", "tests.fault.runs", "--seed", "1", "--steps", "40"]
        environment = {**os.environ, "PYTHONHASHSEED": hashing}
        done = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=120)
        return hashlib.sha256(b"\n".join(done.stdout.splitlines()[:-1])).hexdigest()

    assert schedule("1") == schedule("2")
