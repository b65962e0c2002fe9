"""``python -m tests.fault --kills N [--seed S] [--keep] [--job-share P]``: kills writers and jobs; nothing may be lost.

Lanes run side by side: whole jobs of the command line, forked writers of a local ledger, and forked writers of a
ledger on a real S3 server.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import operator
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

from tests.fault.campaign import Campaign, run_clean
from tests.fault.corpus import Clean
from tests.fault.findings import Figures
from tests.fault.job import environment
from tests.fault.processes import MARK_VARIABLE, end_all, mark_of_this_process
from tests.servers import s3

JOB_SHARE = 0.02
"""Part of the kills that hit whole jobs, which take a second to come to work; `LEAST_JOB_KILLS` at least."""

LEAST_JOB_KILLS = 20
REMOTE_SHARE = 0.35  # part of the others that hit writers of a remote ledger
PROGRESS_SECONDS = 10.0


class WriterLane:
    """A `writers.WriterCampaign` in a process of its own: it forks, and this process has threads."""

    def __init__(self, folder: Path, clean: Path, kills: int, seed: str, server: s3.S3Server | None) -> None:
        self.figures = Figures()
        self._kills = kills
        self._command = [sys.executable, "-m", "tests.fault.writers", str(folder), f"--clean={clean}"]
        self._command += [f"--kills={kills}", f"--seed={seed}"]
        self._env = environment(server.env if server else None)
        if server is not None:
            self._command.append(f"--remote=s3://{server.bucket()}")

    def run(self) -> Figures:
        if self._kills:
            env = {**self._env, MARK_VARIABLE: f"{mark_of_this_process()}writers"}
            with subprocess.Popen(self._command, env=env, stdout=subprocess.PIPE, start_new_session=True) as process:
                for line in process.stdout or ():
                    told = json.loads(line)
                    if "figures" in told:
                        self.figures = pickle.loads(bytes.fromhex(told["figures"]))
                        return self.figures
                    self.figures.kills = told["kills"]
            raise RuntimeError(f"{' '.join(self._command)} ended with status {process.returncode}")
        return self.figures


class Suite:
    """The lanes."""

    def __init__(
        self, folder: Path, kills: int, seed: int, server: s3.S3Server | None, *, keep: bool, job_share: float
    ) -> None:
        self._started = time.monotonic()
        self._stop = threading.Event()
        clean: Clean = run_clean(folder / "clean")
        (folder / "clean.pickle").write_bytes(pickle.dumps(clean))
        of_jobs = min(kills, max(LEAST_JOB_KILLS, round(kills * job_share)))
        of_remote = round((kills - of_jobs) * REMOTE_SHARE) if server else 0
        jobs = Campaign(folder / "lane-jobs", clean, of_jobs, f"{seed}-jobs", keep=keep, stop=self._stop)
        lanes = {"local": (kills - of_jobs - of_remote, None), "remote": (of_remote, server)}
        self._lanes: list[Campaign | WriterLane] = [jobs]
        for name, (share, where) in lanes.items():
            lane = folder / f"lane-{name}"
            self._lanes.append(WriterLane(lane, folder / "clean.pickle", share, f"{seed}-{name}", where))

    def figures(self) -> Figures:
        return functools.reduce(operator.add, (lane.figures for lane in self._lanes))

    def run(self, show: Callable[[str], None]) -> None:
        """Run the lanes; when this returns or raises, no process of theirs is left."""
        with ThreadPoolExecutor(len(self._lanes)) as pool:
            running = [pool.submit(lane.run) for lane in self._lanes]
            try:
                while not all(done.done() for done in running):
                    wait(running, timeout=PROGRESS_SECONDS)
                    show(f"{time.monotonic() - self._started:6.1f} s  {self.figures().line()}")
                for done in running:
                    done.result()
            finally:
                self._stop.set()
                while wait(running, timeout=0.1).not_done:
                    end_all()

    def seconds_a_kill(self) -> float:
        return (time.monotonic() - self._started) / max(self.figures().kills, 1)


def main() -> int:
    """Return 0 if nothing was found, 1 if something was, 130 if it was interrupted."""
    parser = argparse.ArgumentParser(prog="python -m tests.fault", description=__doc__)
    parser.add_argument("--kills", type=int, default=200, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="of what is killed, and when (default: 1)")
    parser.add_argument("--keep", action="store_true", help="keep the folders of all jobs, not only of bad ones")
    share = "of kills, of whole jobs (default: %(default)s)"
    parser.add_argument("--job-share", type=float, default=JOB_SHARE, metavar="PART", help=share)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="ledgerbeam-fault-"))
    bad = True
    try:
        with contextlib.ExitStack() as stack:
            server = None if s3.missing() else stack.enter_context(s3.s3_server(folder))
            if server is None:
                print(f"without remote ledgers: {s3.missing()}")
            suite = Suite(folder, args.kills, args.seed, server, keep=args.keep, job_share=args.job_share)
            suite.run(functools.partial(print, flush=True))
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
            shutil.rmtree(folder, ignore_errors=True)
    for anomaly in figures.anomalies:
        print(f"anomaly: {anomaly}")
    print(f"{figures.details()}, {suite.seconds_a_kill():.2f} s a kill, seed {args.seed}")
    print(figures.line())
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
