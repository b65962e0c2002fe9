"""Runs seeds of the simulation of runs."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import nullcontext

from tests.fault.runs.world import BREAKAGES, STEPS, simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fault.runs", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--first", action="store_true", help="end with the first seed that fails")
    parser.add_argument("--broken", choices=BREAKAGES, help="take a check out of the library")
    args = parser.parse_args()
    broken = BREAKAGES[args.broken] if args.broken else nullcontext()
    started, done, failed, steps = time.monotonic(), 0, 0, 0
    for seed in range(args.seed, args.seed + args.seeds):
        with broken:
            schedule, error = simulate(seed, args.steps)
        done += 1
        steps += len(schedule)
        if args.seeds == 1:
            print("\n".join(schedule))
        if error:
            failed += 1
            shown = error if args.seeds == 1 or args.first else error.strip().splitlines()[-1][:600]
            print(f"seed {seed} --steps {args.steps}: {shown}", flush=True)
            if args.first:
                break
    print(f"{done} seeds, {steps} steps, {failed} failed, {time.monotonic() - started:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
