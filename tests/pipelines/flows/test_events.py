"""After any events, a run of a flow makes what a run from nothing makes, and the next run does nothing."""

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
