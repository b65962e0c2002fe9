"""Some seeds of the simulation of runs, that it reproduces, and that it notices what is broken.

The long form is the command: ``python -m tests.fault.runs --seeds COUNT``. A seed runs in a process of its own, so what
other tests have left in this one makes no difference.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.fault.runs.world import BREAKAGES

SEEDS = 40
PART = 10
FOUND_BY = {"no look in planning": 136, "parts of two files": 86, "no look for unrecorded shards": 16}
"""Where the search for a seed that notices a breakage begins: with one that did, when this was written.

A seed counts calls of the library, so it does something else once they change. Of the first sixty
one or two noticed.
"""

SEARCHED = 100


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.fault.runs", *words]
    env = {**os.environ, **environment}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=600)


@pytest.mark.slow
def test_a_few_steps_and_undisturbed_runs_after_them_end_well() -> None:
    done = run("--seed", "0", "--steps", "10")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, SEEDS, PART))
def test_seeds(first: int) -> None:
    done = run("--seed", str(first), "--seeds", str(PART))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_a_seed_reproduces_whatever_the_process() -> None:
    first, second = (run("--seed", "14", PYTHONHASHSEED=hashing).stdout.splitlines()[:-1] for hashing in "12")
    assert len(first) > 100
    assert first == second


@pytest.mark.long
@pytest.mark.timeout(660)  # if the search goes far
@pytest.mark.parametrize("broken", BREAKAGES)
def test_what_is_broken_is_noticed(broken: str) -> None:
    done = run("--seed", str(FOUND_BY[broken]), "--seeds", str(SEARCHED), "--first", "--broken", broken)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "SimulationError" in done.stdout
    assert "a worker raised" not in done.stdout, done.stdout  # what is broken breaks nothing else
