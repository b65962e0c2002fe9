"""A few hundred seeds of the simulation, and that it can fail and reproduce; the long form is `simulation` itself."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ledgerbeam.ledger.model.claims import MOST_SECONDS, Claims, Span, encode_claims
from tests.fault.simulation import Kind, World, _finish, simulate

SEEDS = 100
STEPS = 60
PART = 25


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


def test_an_undisturbed_launcher_waits_for_as_long_as_a_claim_can_hold(memory: Path) -> None:
    world = World(1, "remote", memory)
    world.scheduler.kill_share = world.objects.error_share = 0
    spans = [Span(source.id, 0, 5) for source in world.listing()]
    for number, (seconds, claimed) in enumerate([(30.0, spans[:1]), (MOST_SECONDS, spans[1:])]):
        claims = encode_claims(Claims("dead", "", number, seconds, claimed))
        world.objects.content[f"claims/{number:06d}/dead.json"] = claims
    with world.installed():
        _finish(world)
    world.close_boards()
    assert (world.overdue, len(spans)) == (0, 4)
