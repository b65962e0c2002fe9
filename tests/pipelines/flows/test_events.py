"""Flows after any events, and after kills at any moment, end like a run from nothing."""

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
from tests.pipelines.flows.test_run import planned, write_lines

SETTINGS: dict[str, Any] = {"mark": "x", "shortest": 3, "by": "text", "descending": False}
RUN = "from tests.pipelines.flows.test_events import here; here('.').run(workers=1)"


def cleaner(mark: str) -> Callable[..., Any]:
    def clean(record: dict[str, Any], shortest: int) -> Any:
        text = " ".join(record["text"].split())
        if len(text) < shortest:
            return None
        cleaned = {**record, "text": text, "mark": mark}
        return ledgerbeam.Route("odd", cleaned) if record["n"] % 2 else cleaned

    return clean


def here(root: str | Path) -> ledgerbeam.Flow:
    """Return the flow of a folder, as its settings have it."""
    settings = {**SETTINGS, **json.loads((Path(root) / "settings.json").read_text())}
    return ledgerbeam.Flow(
        "flow",
        {
            "clean": {
                "map": cleaner(settings["mark"]),
                "sources": "in/*.jsonl",
                "set": {"shortest": settings["shortest"]},
            },
            "unique": {"dedup": True, "from": ["clean", "clean/odd"], "by": settings["by"]},
            "ordered": {
                "sort": True,
                "from": "unique",
                "by": "k",
                "shard_bytes": 4000,
                "descending": settings["descending"],
            },
            "tokens": {"tokenize": "bytes", "from": "ordered"},
            "odd": {"convert": True, "from": "clean/odd", "pack": "3K"},
        },
        defaults={"workers": 1, "task_bytes": 3000, "to": "jsonl"},
        folder=str(Path(root).resolve()),
    )


def outputs(root: Path) -> dict[str, Any]:
    """Return what lies in the output folders; of the sort, whose first run has cut buckets, the lines in order."""
    found: dict[str, Any] = {}
    lines: list[bytes] = []
    for path in sorted((root / "flow").glob("*/output/**/*")):
        name = path.relative_to(root / "flow").as_posix()
        if not path.is_file() or "/_ledgerbeam/" in name or ".parts/" in name:
            continue
        if not name.startswith("ordered/"):
            found[name] = path.read_bytes()
        elif name.endswith(".jsonl"):
            lines += path.read_bytes().splitlines()
    return {**found, "ordered": lines}


class World:
    """The folder in which a user works, and what may happen in it."""

    def __init__(self, root: Path, seed: object) -> None:
        self.root = root
        self.chosen = random.Random(f"flow {seed}")
        self.settings = dict(SETTINGS)
        self.happened: list[str] = []
        self.keep_settings()
        for _ in range(3):
            self.source_comes()
        self.happened.clear()

    def keep_settings(self) -> None:
        (self.root / "settings.json").write_text(json.dumps(self.settings))

    @property
    def sources(self) -> list[Path]:
        return sorted((self.root / "in").glob("*.jsonl"))

    def write(self, path: Path) -> None:
        time.sleep(0.01)  # a file's time tells changes apart
        Path(f"{path}.idx").unlink(missing_ok=True)
        chosen = self.chosen
        texts = [" ".join(f"w{chosen.randrange(30)}" for _ in range(chosen.randrange(4))) for _ in range(20)]
        number = chosen.randrange(1, 120)
        write_lines(path, [{"n": n, "k": chosen.randrange(40), "text": chosen.choice(texts)} for n in range(number)])

    def source_comes(self) -> None:
        self.write(self.root / "in" / f"{self.chosen.choice('abz')}{self.chosen.randrange(9)}.jsonl")

    def source_goes(self) -> None:
        if len(self.sources) > 1:
            path = self.chosen.choice(self.sources)
            for one in path.parent.glob(f"{path.name}*"):
                one.unlink()

    def source_changes(self) -> None:
        self.write(self.chosen.choice(self.sources))

    def source_is_written_again(self) -> None:
        path = self.chosen.choice(self.sources)
        time.sleep(0.01)
        path.write_bytes(path.read_bytes())
        Path(f"{path}.idx").unlink(missing_ok=True)

    def function_changes(self) -> None:
        self.settings["mark"] = self.chosen.choice("xyz")

    def options_change(self) -> None:
        choices: list[tuple[str, list[Any]]] = [
            ("shortest", [1, 3, 6]),
            ("by", ["text", "k,text"]),
            ("descending", [False, True]),
        ]
        name, values = self.chosen.choice(choices)
        self.settings[name] = self.chosen.choice(values)

    def outputs_go(self) -> None:
        shutil.rmtree(self.root / "flow" / self.chosen.choice(STEPS) / "output", ignore_errors=True)

    def some_outputs_go(self) -> None:
        below = [path for path in sorted((self.root / "flow").glob("*/output/**/*")) if path.is_file()]
        below = [path for path in below if "_ledgerbeam" not in path.parts]
        for path in self.chosen.sample(below, min(len(below), self.chosen.randrange(1, 4))):
            path.unlink()

    def outputs_are_written_again(self) -> None:
        """Touch shards: the bytes are the same, the times are not."""
        for path in (self.root / "flow").glob("*/output/*.jsonl"):
            path.write_bytes(path.read_bytes())

    def a_run_is_killed(self) -> None:
        self.killed(self.chosen.uniform(0.5, 7))

    def killed(self, seconds: float) -> bool:
        """Run the flow in a process of its own, and kill it after some time; return whether it was killed."""
        self.keep_settings()
        command = [sys.executable, "-c", RUN]
        environment = {**os.environ, "PYTHONPATH": ROOT}
        with subprocess.Popen(command, cwd=self.root, env=environment, stderr=subprocess.DEVNULL) as launcher:
            with contextlib.suppress(subprocess.TimeoutExpired):
                launcher.wait(seconds)
                return False
            launcher.kill()
        return True

    def something_happens(self) -> None:
        what: Callable[[], None] = self.chosen.choice(EVENTS).__get__(self)
        self.happened.append(what.__name__)
        what()
        self.keep_settings()

    def run(self) -> ledgerbeam.FlowRun:
        return here(self.root).run(workers=1).raise_for_failures()

    def made_from_nothing(self) -> dict[str, Any]:
        """Return what the same flow makes of the same sources, with nothing there: in the same place, as packs are cut
        by names."""
        flow, kept = self.root / "flow", self.root / "kept"
        flow.rename(kept)
        here(self.root).run(workers=1).raise_for_failures()
        made = outputs(self.root)
        shutil.rmtree(flow)
        kept.rename(flow)
        return made


STEPS = ("clean", "unique", "ordered", "tokens", "odd")
EVENTS: list[Any] = [
    World.source_comes,
    World.source_goes,
    World.source_changes,
    World.source_is_written_again,
    World.function_changes,
    World.options_change,
    World.outputs_go,
    World.some_outputs_go,
    World.outputs_are_written_again,
    World.a_run_is_killed,
]


ROUNDS = 4


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(3))
def test_after_any_events_a_run_is_one_from_nothing(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path, seed)
    for _ in range(ROUNDS):
        for _ in range(world.chosen.randrange(1, 4)):
            world.something_happens()
        world.run()
        made = outputs(world.root)
        assert made == world.made_from_nothing(), world.happened
        assert world.run().tasks == 0, world.happened
        plan = planned(here(world.root))
        assert all([*step] == ["complete"] for step in plan.values()), (plan, world.happened)


KILLS = 12


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(2))
def test_a_flow_that_is_killed_again_and_again_ends_as_one_run_from_nothing(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path, f"kills {seed}")
    kills = 0
    while kills < KILLS:
        if world.killed(world.chosen.uniform(1, 9)):
            kills += 1
        else:  # it came to its end: there is more to do
            world.source_changes()
            world.source_comes()
            world.source_goes()
            world.function_changes()
    world.run()
    assert outputs(world.root) == world.made_from_nothing()
    assert world.run().tasks == 0
