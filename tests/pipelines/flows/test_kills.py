"""A flow that is killed at any moment goes on with the same command, and ends as if it had not been."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipelines.flows.world import World, outputs

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
