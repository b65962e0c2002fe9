"""After any events, a run of an exchange makes what a run from nothing makes.

Sources come, go and change, outputs and run files are removed, runs are killed: what is chosen follows from a seed.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ledgerbeam
from tests.mutation.loading import ROOT
from tests.pipelines.exchanges.test_gone import CALLS, contents, dedup, folder

__all__ = ["folder"]

ROUNDS = 6
DOING = "from tests.pipelines.exchanges.test_events import EVERY; EVERY[{!r}]()"
EVERY: dict[str, Callable[..., ledgerbeam.Result]] = {"dedup": dedup, **CALLS}
SEEDS = 1


def _lines(chosen: random.Random, count: int) -> list[dict[str, Any]]:
    words = [f"w{chosen.randrange(60)}" for _ in range(12)]
    texts = [" ".join(chosen.sample(words, 8)) for _ in range(5)]
    return [
        {"k": chosen.choice([None, chosen.randrange(40)]), "text": chosen.choice(texts), "n": n} for n in range(count)
    ]


def made_by(name: str, folder: Path) -> object:
    """Return what lies in the output folder; where the first run has cut buckets, without regard to these."""
    found = {name: data for name, data in contents(folder).items() if not name.endswith(".idx")}
    lines = [line.replace(bytes(folder), b"") for name in sorted(found) for line in found[name].splitlines()]
    if name.startswith(("sort", "shuffle", "repartition", "group")):
        return lines
    return sorted(lines) if "join" in name or "marks" in name else found


class World:
    """The folder in which a user works, and what may happen in it."""

    def __init__(self, root: Path, name: str, seed: int) -> None:
        self.root = root
        self.name = name
        self.chosen = random.Random(f"{name} {seed}")
        self.happened: list[str] = []

    def sources(self) -> list[Path]:
        return sorted((self.root / "in").glob("*.jsonl"))

    def write(self, path: Path, mode: str = "w") -> None:
        time.sleep(0.01)  # a file's time tells changes apart
        with path.open(mode) as file:
            file.writelines(json.dumps(row) + "\n" for row in _lines(self.chosen, self.chosen.randrange(1, 150)))

    def source_comes(self) -> None:
        self.write(self.root / "in" / f"{self.chosen.choice('0abz')}{self.chosen.randrange(9)}.jsonl")

    def source_goes(self) -> None:
        if len(self.sources()) > 1:
            path = self.chosen.choice(self.sources())
            for one in path.parent.glob(f"{path.name}*"):
                one.unlink()

    def source_changes(self) -> None:
        self.write(self.chosen.choice(self.sources()), self.chosen.choice("wa"))

    def source_is_written_again(self) -> None:
        path = self.chosen.choice(self.sources())
        time.sleep(0.01)
        path.write_bytes(path.read_bytes())

    def outputs_go(self) -> None:
        shutil.rmtree(self.root / "out", ignore_errors=True)

    def some_outputs_go(self) -> None:
        below = [
            path
            for path in sorted((self.root / "out").rglob("*"))
            if path.is_file() and "_ledgerbeam" not in path.parts
        ]
        for path in self.chosen.sample(below, min(len(below), self.chosen.randrange(1, 4))):
            path.unlink()

    def internal_folders_go(self) -> None:
        for path in (self.root / "out").glob("_*"):
            if path.name != "_ledgerbeam" and self.chosen.random() < 0.5:
                shutil.rmtree(path)

    def a_run_is_killed(self) -> None:
        environment = {**os.environ, "PYTHONPATH": ROOT}
        command = [sys.executable, "-c", DOING.format(self.name)]
        with subprocess.Popen(command, cwd=self.root, env=environment, stderr=subprocess.DEVNULL) as launcher:
            with contextlib.suppress(subprocess.TimeoutExpired):
                launcher.wait(self.chosen.uniform(0.5, 4))
            launcher.kill()

    def run_files_stay(self) -> None:
        EVERY[self.name](keep_runs=True)

    def something_happens(self) -> None:
        what: Callable[[], None] = self.chosen.choice(
            [
                self.source_comes,
                self.source_goes,
                self.source_changes,
                self.source_is_written_again,
                self.outputs_go,
                self.some_outputs_go,
                self.internal_folders_go,
                self.a_run_is_killed,
                self.run_files_stay,
            ]
        )
        self.happened.append(what.__name__)
        what()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("name", EVERY)
def test_after_any_events_a_run_is_one_from_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, seed: int
) -> None:
    world = World(folder, name, seed)
    fresh = folder / "fresh"
    for number in range(ROUNDS):
        for _ in range(world.chosen.randrange(1, 4)):
            world.something_happens()
        assert EVERY[name]().complete, world.happened
        made = made_by(name, folder)
        if number % 2:
            continue
        shutil.rmtree(fresh, ignore_errors=True)
        for part in ("in", "right"):
            shutil.copytree(folder / part, fresh / part, ignore=shutil.ignore_patterns("*.idx"))
        monkeypatch.chdir(fresh)
        assert EVERY[name]().complete
        monkeypatch.chdir(folder)
        assert made == made_by(name, fresh), world.happened
