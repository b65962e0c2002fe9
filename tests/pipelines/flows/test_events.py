"""Flows after any events, and after kills at any moment, end like a run from nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipelines.flows.world import World, outputs

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
        assert all([*step] == ["complete"] for step in world.plan().values()), (world.plan(), world.happened)


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
