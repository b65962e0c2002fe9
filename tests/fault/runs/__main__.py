"""Runs seeds of the simulation of runs."""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from tests.fault.runs.world import STEPS, simulate


def main() -> int:
    """Runs seeds. Returns 1 if one fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.fault.runs", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=STEPS)
    args = parser.parse_args()
    started, failed, steps = time.monotonic(), 0, 0
    for seed in range(args.seed, args.seed + args.seeds):
        try:
            world = simulate(seed, args.steps)
        except Exception as error:  # noqa: BLE001 - the next seed is of use all the same
            failed += 1
            shown = "".join(traceback.format_exception(error)) if args.seeds == 1 else f"{error}"[:600]
            print(f"seed {seed} --steps {args.steps}: {type(error).__name__}: {shown}", flush=True)
            continue
        steps += len(world.scheduler.schedule)
        if args.seeds == 1:
            print("\n".join(world.scheduler.schedule))
    print(f"{args.seeds} seeds, {steps} steps, {failed} failed, {time.monotonic() - started:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
