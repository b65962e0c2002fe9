"""Hosts that share a job in simulated time: what they do twice, and how long they take."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.sharing import simulate


@pytest.mark.parametrize("seed", range(2))
def test_three_hosts_that_die_stand_still_and_lose_their_link(memory: Path, seed: int) -> None:
    found = simulate(seed, 3, 300, memory)
    assert found.executed <= 1.05 * found.tasks, found
    assert found.makespan <= 1.2 * found.ideal, found
    assert max(found.asked.values()) <= 1.0, found


def test_three_hosts_that_nothing_befalls_do_nothing_twice(memory: Path) -> None:
    found = simulate(7, 3, 150, memory, calm=True)
    assert found.executed <= found.tasks + 1, found
    assert found.makespan <= 1.2 * found.ideal, found


@pytest.mark.slow
def test_twenty_hosts(memory: Path) -> None:
    found = simulate(1, 20, 600, memory)
    assert found.executed <= 1.05 * found.tasks, found
    assert max(found.asked.values()) <= 1.0, found


def test_one_host_asks_nobody(memory: Path) -> None:
    found = simulate(3, 1, 30, memory, calm=True)
    assert found.executed == found.tasks
    assert found.asked["read of each other"] == 0
    assert found.asked["written"] <= 1.0
