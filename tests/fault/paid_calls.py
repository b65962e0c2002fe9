"""One job that pays for calls, while its workers and launchers are killed.

    python -m tests.fault.paid_calls [--kills N] [--hosts 1|2] [--s3] [--seed N]

The model on loopback gives another answer to each call, within a rate. It refuses some calls and resets others. The
job is judged by the requests that the model answered, and by the records that the job wrote.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.fault.processes import MARK_VARIABLE, mark_of_this_process, processes, wait_until
from tests.servers.model import LoopbackModel, loopback_model
from tests.servers.s3 import s3_server

IN_FLIGHT, WORKERS, RATE = 16, 2, 150
LATENCY_SECONDS, FLUSH_SECONDS = 0.2, 0.05
RECORDS_PER_KILL, FILE_RECORDS = 150, 300
LIMIT_SECONDS = 300.0

FUNCTION = """
import asyncio, json, os
import ledgerbeam

async def ask(request):
    reader, writer = await asyncio.open_connection("127.0.0.1", int(os.environ["MODEL_PORT"]))
    try:
        writer.write(json.dumps(request).encode() + b"\\n")
        await writer.drain()
        line = await reader.readline()
    except ConnectionError:
        line = b""
    finally:
        writer.close()
    if not line:
        raise ledgerbeam.Unavailable("connection reset", 0.0)
    answer = json.loads(line)
    if "down" in answer:
        raise ledgerbeam.Unavailable("too many requests", answer["down"])
    return answer

async def label(record):
    answer = await ledgerbeam.remember({"prompt": record["id"]}, ask)
    return {**record, "label": answer["label"]}
"""


@dataclass
class Figures:
    """The result of a campaign."""

    kills: int
    paid: int  # calls that the model answered
    paid_twice: int
    may_be_paid_twice: int
    most_in_a_second: int
    seconds: float
    problems: list[str] = field(default_factory=list)


class PaidJob:
    """The job, its hosts and its model.

    Args:
        root: An empty folder.
        hosts: Number of launchers. Several need a remote ledger.
        store: URL of the ledger, and environment variables for the store.
    """

    def __init__(self, root: Path, model: LoopbackModel, records: int, hosts: int, store: tuple[str, dict[str, str]]):
        self.root, self.model, self.records, self.hosts = root, model, records, hosts
        ledger, env = store
        (root / "in").mkdir(parents=True)
        (root / "paying.py").write_text(FUNCTION)
        for first in range(0, records, FILE_RECORDS):
            rows = (json.dumps({"id": number}) for number in range(first, min(records, first + FILE_RECORDS)))
            (root / f"in/{first:06d}.jsonl").write_text("\n".join(rows) + "\n")
        words = ["map", "paying:label", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", ledger]
        more = ["--task-bytes", "1K", "--rate", f"{RATE}/s", "--in-flight", str(IN_FLIGHT), "--workers", str(WORKERS)]
        self._command = [sys.executable, "-m", "ledgerbeam", *words, *more, "--quiet", "--flush-interval", "0.2"]
        self._env = {**os.environ, **env, "MODEL_PORT": str(model.port)}
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, host: int) -> None:
        """Start the launcher of a host, unless it runs."""
        if host in self._running and self._running[host].poll() is None:
            return
        place = {"LEDGERBEAM_CACHE": str(self.root / f"host{host}"), MARK_VARIABLE: self._mark(host)}
        with open(self.root / f"host{host}.log", "ab") as log:
            self._running[host] = subprocess.Popen(
                self._command, cwd=self.root, env={**self._env, **place}, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self, host: int, chance: random.Random) -> bool:
        """Kill a worker, the launcher, or all processes of a host. Return False if there are none."""
        found = processes(self._mark(host))
        workers = [one.pid for one in found if one.role == "worker"]
        launchers = [one.pid for one in found if one.role == "launcher"]
        match chance.choice(["worker", "launcher", "all"]):
            case "worker":
                chosen = workers[:1]
            case "launcher":
                chosen = launchers
            case _:
                chosen = [one.pid for one in found]
        for pid in chosen:
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                chosen = []
        return bool(chosen)

    def wait(self, seconds: float) -> list[int | None]:
        """Wait for all launchers, and return their exit statuses."""
        wait_until(lambda: all(one.poll() is not None for one in self._running.values()), seconds)
        return [self._running[host].poll() for host in sorted(self._running)]

    def outputs(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in sorted((self.root / "out").glob("*.jsonl"))}

    def _mark(self, host: int) -> str:
        return f"{mark_of_this_process()}{self.root.name}-{host};"


def campaign(job: PaidJob, kills: int, chance: random.Random) -> Figures:
    """Kill until there were enough kills, let the job finish, and judge it."""
    began, done = time.monotonic(), 0
    while done < kills and len(job.model.answered) < 0.9 * job.records:
        for host in range(job.hosts):
            job.start(host)
        asked = len(job.model.asked)
        wait_until(lambda: len(job.model.asked) > asked + chance.randrange(150), 20)  # noqa: B023
        done += job.kill(chance.randrange(job.hosts), chance)
    deadline, statuses = time.monotonic() + LIMIT_SECONDS, list[int | None]()
    while statuses != [0] * job.hosts and time.monotonic() < deadline:
        for host in range(job.hosts):
            job.start(host)
        statuses = job.wait(LIMIT_SECONDS)
    seconds = time.monotonic() - began
    given = defaultdict[int, list[float]](list)
    for request, answer in job.model.answered:
        given[request["prompt"]].append(answer)
    twice = len(job.model.answered) - len(given)
    # Those in flight, and those answered within the flush before the kill.
    each = job.hosts * WORKERS * IN_FLIGHT * (1 + FLUSH_SECONDS / LATENCY_SECONDS)
    figures = Figures(done, len(job.model.answered), twice, int(done * each), job.model.most_within(1), seconds)
    figures.problems += _problems(job, statuses, given, figures)
    return figures


def _problems(
    job: PaidJob, statuses: Sequence[int | None], given: Mapping[int, Sequence[float]], figures: Figures
) -> Iterator[str]:
    if statuses != [0] * job.hosts:
        yield f"exit statuses {statuses}, expected 0"
    outputs = job.outputs()
    rows = [json.loads(line) for data in outputs.values() for line in data.splitlines()]
    if sorted(row["id"] for row in rows) != list(range(job.records)):
        yield f"{len(rows)} records were written, expected each of {job.records} once"
    for row in rows:
        if row["label"] not in given[row["id"]]:
            yield f"record {row['id']} has an answer that the model did not give"
    if figures.paid_twice > figures.may_be_paid_twice:
        yield f"{figures.paid_twice} calls were paid twice, expected at most {figures.may_be_paid_twice}"
    if figures.most_in_a_second > RATE:
        yield f"{figures.most_in_a_second} calls came in a second, expected at most {RATE}"
    paid = figures.paid
    for host in range(job.hosts):
        job.start(host)
    if job.wait(60.0) != [0] * job.hosts or job.outputs() != outputs or len(job.model.answered) != paid:
        yield "another run called the model, or wrote other bytes"


def run(kills: int, *, hosts: int = 1, s3: bool = False, seed: int = 0, root: Path | None = None) -> Figures:
    """Run a campaign in a new folder."""
    chance = random.Random(seed)
    with ExitStack() as stack:
        folder = root or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ledgerbeam-paid-")))
        model = stack.enter_context(loopback_model(LATENCY_SECONDS))
        model.is_down, model.wait = lambda _: chance.random() < 0.02, 0.2
        model.is_reset = lambda _: chance.random() < 0.05
        ledger, env = "progress", {}
        if s3:
            server = stack.enter_context(s3_server(folder / "s3"))
            ledger, env = f"{server.place()}/progress", server.env
        job = PaidJob(folder / "job", model, max(600, kills * RECORDS_PER_KILL), hosts, (ledger, env))
        return campaign(job, kills, chance)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--hosts", type=int, default=1, choices=(1, 2))
    parser.add_argument("--s3", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    figures = run(args.kills, hosts=args.hosts, s3=args.s3 or args.hosts > 1, seed=args.seed)
    print(figures)
    return 1 if figures.problems else 0


if __name__ == "__main__":
    sys.exit(main())
