"""One job on plain hosts that share nothing but an S3 server, while they die, stand still and lose their links.

    python -m tests.fault.hosts [--tasks N] [--seconds S] [--keep]

Three hosts, each with its own network and disk, run the same command on one ledger. They start 0, 10 and 30 s apart;
then one is killed, one is stopped for a while and resumed, and the link of one is cut for a while. Each reaches the
store through a proxy of its own, which counts its requests. It needs root; without it says how to get it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ledgerbeam.io.storage.objects import ObjectFolder
from tests.fault.hosts_work import LOG, PACE
from tests.servers import hosts as namespaces
from tests.servers import pins
from tests.servers.hosts import Hosts, two_hosts
from tests.servers.process import Process
from tests.servers.s3_proxy import S3Proxy, s3_proxy

WORKERS = 2
SPANS = 3
LIMIT_SECONDS = 1500.0
MOST_EXECUTED = 1.05
MOST_MAKESPAN = 1.2
ROUND_SECONDS = 10.0


@dataclass(frozen=True)
class Plan:
    """What befalls the hosts, in seconds from the beginning."""

    tasks: int = 300
    seconds: float = 4.0
    starts: tuple[float, ...] = (0.0, 10.0, 30.0)
    killed: float = 90.0
    stopped: tuple[float, float] = (110.0, 60.0)
    cut: tuple[float, float] = (130.0, 30.0)

    def ideal(self, work: float) -> float:
        """Return when all work could have been done, if hosts lost no time but what they stand still."""
        away = ((self.killed, LIMIT_SECONDS), self.stopped, self.cut)
        hosts = list(zip(self.starts, away, strict=True))
        return ideal(work, lambda now: sum(now >= start and not s <= now < s + length for start, (s, length) in hosts))


def ideal(work: float, working: Callable[[float], int]) -> float:
    """Return when work could have been done of which at each time so many hosts do a part, with all of their workers.

    Both are of seconds.
    """
    now, step = 0.0, 0.05
    while work > 0:
        now += step
        work -= step * WORKERS * working(now)
    return now


@dataclass
class Figures:
    """What came of it."""

    tasks: int
    begun: int
    ended: int
    makespan: float  # seconds until all hosts that live had ended
    ideal: float
    identical: bool  # the outputs are those of an undisturbed run
    statuses: list[int]  # of the launchers that were not killed
    claims: dict[int, dict[str, float]] = field(default_factory=dict)  # requests for each `ROUND_SECONDS`, by host
    listings: dict[int, float] = field(default_factory=dict)  # likewise

    @property
    def executed(self) -> float:
        """How often a task was begun, in the mean."""
        return self.begun / self.tasks

    def problems(self) -> list[str]:
        found = []
        if self.executed > MOST_EXECUTED:
            found.append(f"tasks executed / tasks {self.executed:.3f}, expected at most {MOST_EXECUTED}")
        if self.makespan > MOST_MAKESPAN * self.ideal:
            found.append(f"makespan {self.makespan:.0f} s of {self.ideal:.0f} s, expected at most {MOST_MAKESPAN} x")
        if not self.identical:
            found.append("the outputs are not those of an undisturbed run")
        if any(self.statuses):
            found.append(f"exit statuses {self.statuses}")
        # A launcher may write once more at its beginning and end than rounds have passed.
        found += [
            f"host {host}: {number:.2f} writes of claims each {ROUND_SECONDS:.0f} s"
            for host, counts in self.claims.items()
            if (number := counts.get("PUT", 0.0)) > 1.1
        ]
        return found

    def lines(self) -> Iterator[str]:
        yield f"tasks executed / tasks  {self.begun} / {self.tasks} = {self.executed:.3f} ({self.ended} ended)"
        ratio = self.makespan / self.ideal
        yield f"makespan                {self.makespan:.0f} s, ideal {self.ideal:.0f} s: {ratio:.2f} x"
        yield f"identical               {'yes' if self.identical else 'NO'}, exit statuses {self.statuses}"
        for host, counts in self.claims.items():
            asked = ", ".join(f"{method} {number:.2f}" for method, number in sorted(counts.items()))
            yield f"host {host}, each {ROUND_SECONDS:.0f} s     claims: {asked}; listings {self.listings[host]:.2f}"


def run_hosts(folder: Path, plan: Plan) -> Figures:
    """Run the job on hosts; `folder` takes the logs."""
    with contextlib.ExitStack() as stack:
        hosts = stack.enter_context(two_hosts(folder, count=len(plan.starts)))
        bucket = hosts.s3.bucket()
        work = write_sources(ObjectFolder(f"s3://{bucket}", hosts.s3.options), plan)
        proxies = [stack.enter_context(s3_proxy(hosts.s3, hosts.address(0))) for _ in plan.starts]
        reference(hosts, bucket, folder)
        return _Course(hosts, proxies, bucket, plan).run(work)


def write_sources(objects: ObjectFolder, plan: Plan) -> float:
    """Write sources of a few tasks each, of one record each; return how long their work takes."""
    choice = random.Random(18)
    parts = [choice.choice([0.1, 0.3, 0.6, 1.0, 1.0, 3.0]) for _ in range(plan.tasks)]
    scale = plan.seconds * len(parts) / sum(parts)
    seconds = [round(part * scale, 3) for part in parts]
    for first in range(0, plan.tasks, SPANS):
        rows = [{"id": number, "seconds": seconds[number]} for number in range(first, min(first + SPANS, plan.tasks))]
        data = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
        objects.create(f"in/{first:04d}.jsonl", data)
    return sum(seconds)


def command(bucket: str, output: str) -> list[str]:
    places = ["--output", f"s3://{bucket}/{output}", "--ledger", f"s3://{bucket}/{output}-ledger"]
    how = ["--to", "jsonl", "--task-bytes", "10", "--workers", f"{WORKERS}", "--audit=off"]
    function = "tests.fault.hosts_work:work"
    return [sys.executable, "-m", "ledgerbeam", "map", function, f"s3://{bucket}/in/*.jsonl", *places, *how]


def environment() -> dict[str, str]:
    """Return what the command needs to find the job's function."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(pins.ROOT), os.environ.get("PYTHONPATH")]))}


def reference(hosts: Hosts, bucket: str, folder: Path) -> None:
    """Run the job undisturbed on this machine, at once; it makes the indexes, too."""
    env = {**os.environ, **environment(), **hosts.s3.env, PACE: "0", "LEDGERBEAM_CACHE": str(folder / "cache")}
    done = subprocess.run(command(bucket, "clean"), env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the undisturbed run ended with status {done.returncode}: {done.stderr}")


def contents(hosts: Hosts, bucket: str, output: str) -> dict[str, bytes | None]:
    """Return what lies in an output folder, but for who owns it."""
    objects = ObjectFolder(f"s3://{bucket}/{output}", hosts.s3.options)
    names = [name for name in objects.names("") if not name.startswith("_ledgerbeam/")]
    return dict(zip(names, objects.read(names), strict=True))


class _Course:
    def __init__(self, hosts: Hosts, proxies: Sequence[S3Proxy], bucket: str, plan: Plan) -> None:
        self._hosts = hosts
        self._proxies = proxies
        self._bucket = bucket
        self._plan = plan
        self._launchers: dict[int, Process] = {}
        self._ended: dict[int, float] = {}
        self._began = 0.0

    def run(self, work: float) -> Figures:
        plan = self._plan
        events: list[tuple[float, Callable[[], None]]] = [
            (at, partial(self._start, host)) for host, at in enumerate(plan.starts, 1)
        ]
        events += [
            (plan.killed, partial(self._signal, 1, signal.SIGKILL)),
            (plan.stopped[0], partial(self._signal, 2, signal.SIGSTOP)),
            (sum(plan.stopped), partial(self._signal, 2, signal.SIGCONT)),
            (plan.cut[0], partial(self._hosts.cut, 3)),
            (sum(plan.cut), partial(self._hosts.heal, 3)),
        ]
        self._began = time.monotonic()
        for at, event in sorted(events, key=lambda pair: pair[0]):
            while self._now() < at:
                self._look()
                time.sleep(0.1)
            event()
        while len(self._ended) < len(self._launchers):
            self._look()
            time.sleep(0.1)
            if self._now() > LIMIT_SECONDS:
                raise RuntimeError(f"not done: {[process.tail() for process in self._launchers.values()]}")
        return self._figures(work)

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _look(self) -> None:
        for host, launcher in self._launchers.items():
            if host not in self._ended and not launcher.alive:
                self._ended[host] = self._now()

    def _start(self, host: int) -> None:
        own = str(self._hosts.folder)
        env = {**environment(), "LEDGERBEAM_CACHE": f"{own}/cache", LOG: f"{own}/log"}
        env |= self._proxies[host - 1].env
        self._launchers[host] = self._hosts.run(command(self._bucket, "out"), host=host, env=env)

    def _signal(self, host: int, number: signal.Signals) -> None:
        self._launchers[host].signal_all(number)

    def _figures(self, work: float) -> Figures:
        logs = [self._hosts.disk(host) / "log" for host in self._launchers]
        lines = [line.split() for log in logs if log.exists() for line in log.read_text().splitlines()]
        counts = Counter(what for what, *_ in lines)
        living = [host for host in self._launchers if host != 1]
        figures = Figures(
            self._plan.tasks,
            counts["begin"],
            counts["end"],
            max(self._ended[host] for host in living),
            self._plan.ideal(work),
            contents(self._hosts, self._bucket, "out") == contents(self._hosts, self._bucket, "clean"),
            [self._launchers[host].wait(1) for host in living],
        )
        for host, proxy in enumerate(self._proxies, 1):
            rounds = (self._ended[host] - self._plan.starts[host - 1]) / ROUND_SECONDS
            asked = Counter(request.method for request in proxy.requests if "/claims/" in request.key)
            figures.claims[host] = {method: number / rounds for method, number in asked.items()}
            listed = [one for one in proxy.requests if "list-type" in one.query and "ledger" in one.query]
            figures.listings[host] = len(listed) / rounds
        return figures


def main() -> int:
    """Run it. Returns 1 if something is not as it must be, 2 if there is no way to run it."""
    parser = argparse.ArgumentParser(prog="python -m tests.fault.hosts", description=__doc__)
    parser.add_argument("--tasks", type=int, default=Plan.tasks)
    parser.add_argument("--seconds", type=float, default=Plan.seconds, help="of a task in the mean")
    parser.add_argument("--keep", action="store_true", help="keep the logs")
    args = parser.parse_args()
    if (missing := namespaces.missing()) is not None:
        print(missing)
        return 2
    folder = Path(tempfile.mkdtemp(prefix="ledgerbeam-hosts-"))
    figures = run_hosts(folder, Plan(tasks=args.tasks, seconds=args.seconds))
    print("\n".join(figures.lines()))
    problems = figures.problems()
    print("\n".join(problems) or "all as it must be")
    if args.keep:
        print(f"logs: {folder}")
    else:
        shutil.rmtree(folder)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
