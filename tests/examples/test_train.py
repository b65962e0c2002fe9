"""The killed and resumed training example takes the steps of an uninterrupted run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from examples import train


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(Path(train.__file__)), str(folder), "--steps", "90", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_batches_and_losses_are_those_of_the_uninterrupted_run(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert run(whole).returncode == 0
    assert run(broken, "--die-at", "34").returncode == -9
    assert run(broken, "--die-at", "77").returncode == -9
    last = run(broken)
    assert last.stdout.startswith("resuming after step 70\n90 steps")
    expected = (whole / "losses.txt").read_text().splitlines()
    assert (broken / "losses.txt").read_text().splitlines() == expected
    losses = [float.fromhex(line.split()[2]) for line in expected]
    assert len(losses) == 90
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])
