"""A few hundred seeds of the simulation, and that it can fail and reproduce; the long form is `simulation` itself."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fault.simulation import Kind, simulate

SEEDS = 100
STEPS = 60
PART = 25


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory: what is tested is not the disk."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.mark.parametrize("kind", ["local", "remote"])
@pytest.mark.parametrize("first", range(0, SEEDS, PART))
def test_seeds(memory: Path, kind: Kind, first: int) -> None:
    for seed in range(first, first + PART):
        simulate(seed, kind, memory / str(seed), STEPS)


def test_a_seed_reproduces_whatever_the_process() -> None:
    def schedule(hashing: str) -> str:
        command = [sys.executable, "-m", "tests.fault.simulation", "--seed", "5", "--steps", "60", "--kind", "remote"]
        environment = {**os.environ, "PYTHONHASHSEED": hashing}
        found = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=60).stdout
        return hashlib.sha256(b"\n".join(found.splitlines()[:-1])).hexdigest()

    assert schedule("1") == schedule("2")
