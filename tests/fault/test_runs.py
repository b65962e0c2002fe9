"""Some seeds of the simulation of runs, and that it reproduces; the long form is `tests.fault.runs` itself."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fault.runs.world import simulate

pytestmark = pytest.mark.slow

SEEDS = 30
STEPS = 120
PART = 5


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory: what is tested is not the disk."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.mark.parametrize("first", range(0, SEEDS, PART))
def test_seeds(memory: Path, first: int) -> None:
    for seed in range(first, first + PART):
        simulate(seed, memory / str(seed), STEPS)


def test_a_seed_reproduces_whatever_the_process() -> None:
    def schedule(hashing: str) -> str:
        command = [sys.executable, "-m", "tests.fault.runs", "--seed", "1", "--steps", "40"]
        environment = {**os.environ, "PYTHONHASHSEED": hashing}
        done = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=120)
        lines = [line for line in done.stdout.splitlines()[:-1] if b"/dev/shm" not in line]  # a name by chance
        return hashlib.sha256(b"\n".join(lines)).hexdigest()

    assert schedule("1") == schedule("2")
