"""Some seeds of the simulations of a ledger's hosts; the long forms are `simulation` and `sharing` themselves."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ledgerbeam.ledger.model.claims import MOST_SECONDS, Claims, Span, encode_claims
from tests.fault.sharing import share_job
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


@pytest.mark.parametrize("seed", range(2))
def test_three_hosts_that_die_stand_still_and_lose_their_link(memory: Path, seed: int) -> None:
    found = share_job(seed, 3, 300, memory)
    assert found.executed <= 1.05 * found.tasks, found
    assert found.makespan <= 1.2 * found.ideal, found
    assert max(found.asked.values()) <= 1.0, found


def test_three_hosts_that_nothing_befalls_do_nothing_twice(memory: Path) -> None:
    found = share_job(7, 3, 150, memory, calm=True)
    assert found.executed <= found.tasks + 1, found
    assert found.makespan <= 1.2 * found.ideal, found


@pytest.mark.parametrize(("hosts", "spread", "mean"), [(2, 0.0, 4.0), (3, 0.2, 4.0), (3, 40.0, 0.3), (2, 0.0, 20.0)])
def test_hosts_of_a_job_that_pays_begin_nothing_twice(memory: Path, hosts: int, spread: float, mean: float) -> None:
    found = share_job(hosts, hosts, 150, memory, calm=True, mean=mean, spread=spread, exclusive=True)
    assert found.executed == found.tasks, found
    # They end later than others by the time in which they learn of each other's claims.
    assert found.recorded <= 1.2 * found.ideal + 20, found


@pytest.mark.slow
def test_twenty_hosts(memory: Path) -> None:
    found = share_job(1, 20, 600, memory)
    assert found.executed <= 1.05 * found.tasks, found
    assert max(found.asked.values()) <= 1.0, found


def test_one_host_asks_nobody(memory: Path) -> None:
    found = share_job(3, 1, 30, memory, calm=True)
    assert found.executed == found.tasks
    assert found.asked["read of each other"] == 0
    assert found.asked["written"] <= 1.0
