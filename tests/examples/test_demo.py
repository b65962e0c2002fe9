"""The programs that are killed and resumed: `make demo`, with little text, and training."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from examples import demo, train


@pytest.mark.slow
def test_the_demo_kills_a_job_and_proves_that_nothing_is_lost(tmp_path: Path) -> None:
    command, env = [sys.executable, demo.__file__, "--megabytes", "16"], {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "identical, byte for byte" in done.stdout
    assert "0 problems" in done.stdout
    skipped = re.search(r"recorded before the kill: (\d+) tasks", done.stdout)
    repeated = re.search(r"Done by the second run: (\d+) of (\d+) tasks", done.stdout)
    assert skipped
    assert repeated
    assert 0 < int(skipped[1]) < int(repeated[2])
    assert int(skipped[1]) + int(repeated[1]) == int(repeated[2])
    assert not list(tmp_path.iterdir()), "the demo left something behind"


def test_a_difference_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for root in ("one", "other"):
        (tmp_path / root / "part").mkdir(parents=True)
        (tmp_path / root / "part" / "a.jsonl").write_text("{}\n")
    assert demo.compare(tmp_path / "one", tmp_path / "other")

    (tmp_path / "other" / "part" / "b.jsonl").write_text("")
    assert not demo.compare(tmp_path / "one", tmp_path / "other")
    assert "DIFFERENT" in capsys.readouterr().out
    (tmp_path / "one" / "part" / "b.jsonl").write_text("{}\n")
    assert not demo.compare(tmp_path / "one", tmp_path / "other")
    assert not demo.compare(tmp_path / "nothing", tmp_path / "nothing either")


def test_the_same_interpreter_makes_the_same_shards(tmp_path: Path) -> None:
    made = [demo.make_shards(tmp_path / name, 2_000_000) for name in ("one", "other")]
    assert made[0] == made[1]
    assert demo.compare(tmp_path / "one", tmp_path / "other")
    assert len(list((tmp_path / "one").iterdir())) == demo.JSONL_SHARDS + demo.TAR_SHARDS


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
