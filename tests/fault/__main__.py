"""``python -m tests.fault --kills N [--seed S] [--keep]``: kills local jobs and checks that nothing is lost."""

from __future__ import annotations

import argparse
import functools
import operator
import shutil
import signal
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

from tests.fault.campaign import Campaign, run_clean
from tests.fault.figures import Figures
from tests.fault.processes import end_all

LANES = 2
"""Campaigns at a time: jobs mostly start and sleep."""

PROGRESS_KILLS = 10


class Suite:
    """Several campaigns side by side.

    Args:
        folder: Where everything lies; exists.
        kills: How many to make, in all.
        seed: Of what is killed, and when.
        keep: Whether the folders of good jobs are kept.
    """

    def __init__(self, folder: Path, kills: int, seed: int, *, keep: bool) -> None:
        self._started = time.monotonic()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._shown = 0
        clean = run_clean(folder / "clean")
        shares = [(kills + lane) // LANES for lane in range(LANES)]
        self._campaigns = [
            Campaign(
                folder / f"lane-{lane}",
                clean,
                share,
                f"{seed}-{lane}",
                keep=keep,
                on_kill=self._show,
                stop=self._stop,
            )
            for lane, share in enumerate(shares)
        ]

    def figures(self) -> Figures:
        return functools.reduce(operator.add, (campaign.figures for campaign in self._campaigns))

    def run(self) -> None:
        """Runs the campaigns; when this returns or raises, no process of theirs is left."""
        with ThreadPoolExecutor(LANES) as pool:
            running = [pool.submit(campaign.run) for campaign in self._campaigns]
            try:
                for done in running:
                    done.result()
            finally:
                self._stop.set()
                while wait(running, timeout=0.1).not_done:
                    end_all()

    def seconds_a_kill(self) -> float:
        return (time.monotonic() - self._started) / max(self.figures().kills, 1)

    def _show(self) -> None:
        with self._lock:
            figures = self.figures()
            if figures.kills >= self._shown + PROGRESS_KILLS:
                self._shown = figures.kills
                print(f"{time.monotonic() - self._started:6.1f} s  {figures.line()}", flush=True)


def main() -> int:
    """Returns 0 if nothing was found, 1 if something was, 130 if it was interrupted."""
    parser = argparse.ArgumentParser(prog="python -m tests.fault", description=__doc__)
    parser.add_argument("--kills", type=int, default=200, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="of what is killed, and when (default: 1)")
    parser.add_argument("--keep", action="store_true", help="keep the folders of all jobs, not only of bad ones")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="ledgerbeam-fault-"))
    bad = True
    try:
        suite = Suite(folder, args.kills, args.seed, keep=args.keep)
        suite.run()
        figures = suite.figures()
        bad = not figures.ok
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        bad = False
        return 130
    finally:
        if args.keep or bad:
            print(f"jobs, logs and traces: {folder}")
        else:
            shutil.rmtree(folder)
    for anomaly in figures.anomalies:
        print(f"anomaly: {anomaly}")
    print(f"{figures.details()}, {suite.seconds_a_kill():.2f} s a kill, seed {args.seed}")
    print(figures.line())
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
