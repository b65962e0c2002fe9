"""``python -m tests.matrix.accounts --engine Flink --kills 50``: what became of every record, after kills.

A job over broken lines, with a function that raises, drops for six reasons and writes three routes, is killed in the
launcher, the Python workers and the engine's own processes, started again until it is done, and compared with what
`accounts_work` computes without the library. At the end its rejected records are done again by a mended function.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ledgerbeam.io.storage.objects import ObjectFolder
from tests.matrix.accounts_work import (
    BROKEN,
    MENDED,
    RAISING,
    SECONDS,
    expected_counts,
    expected_statistics,
    is_chosen,
    line,
)
from tests.matrix.runs import Contents, Launcher, descendants
from tests.servers import flink, pins, s3
from tests.servers.flink import FlinkCluster, flink_cluster
from tests.servers.process import wait_until
from tests.servers.s3 import S3Server

FILES = 7
TASK_BYTES = "20K"
ENGINES = ("local", "Flink")
MOST_STARTS = 400
DISTINCT_ERROR = 0.05


class Accounts:
    """The job on one engine, with all that it writes on an S3 server. Without a cluster it is run locally."""

    def __init__(
        self, folder: Path, server: S3Server, cluster: FlinkCluster | None, lines: int, choice: random.Random
    ) -> None:
        self._folder = folder
        self._cluster = cluster
        self._lines = lines
        self._choice = choice
        self._url = f"s3://{server.bucket()}"
        self._objects = ObjectFolder(self._url, server.options)
        self._starts = 0
        self._env = pins.environment({**server.env, "LEDGERBEAM_CACHE": str(folder / "cache")})
        for number in range(FILES):
            self._objects.create(f"in/{number}.jsonl", b"".join(line(at, lines) for at in self.numbers(number)))

    def numbers(self, file: int) -> range:
        """Return the numbers of the lines of a source; they have different sizes."""
        edges = [self._lines * number**2 // FILES**2 for number in range(FILES + 1)]
        return range(edges[file], edges[file + 1])

    def reference(self) -> Contents:
        """Return what a mended function leaves, undisturbed, on the local runner."""
        launcher = self._start("reference", mended=True, local=True)
        assert launcher.end() == 0, launcher.log()
        return self.contents("reference")

    def run(self, name: str, kills: int) -> int:
        """Run the job until it is done, with at most so many kills; return how many there were."""
        killed = 0
        for _ in range(MOST_STARTS):
            launcher = self._start(name)
            while killed < kills and self._wait_for_progress(name, launcher):
                time.sleep(self._choice.uniform(0, 2))
                if launcher.ended:
                    break
                victim = self._choice.choice(self._victims(launcher))
                victim()
                killed += 1
                print(f"  {name}: {killed} kills, {victim.__name__}", flush=True)
            with contextlib.suppress(AssertionError):  # it does not end, and was killed for that
                launcher.end()
            self._tidy()
            if launcher.process.returncode == 0:
                return killed
        raise AssertionError(f"{name}: not done after {MOST_STARTS} starts\n{launcher.log()}")

    def heal(self, name: str) -> None:
        """Do the records that made the function raise again, with a mended one."""
        launcher = self._start(name, "--only-rejected", "ValueError", mended=True, local=True)
        assert launcher.end() == 0, launcher.log()

    def check(self, name: str, *, mended: bool) -> Iterator[str]:
        """Compare what a job left with what it had to leave; yield what is wrong."""
        records = self._ask("status", name)["records"]
        expected = expected_counts(range(self._lines), self._lines, mended=mended)
        if records != expected:
            yield f"counts: expected {expected}, found {records}"
        yield from self._check_sources(name, mended=mended)
        yield from self._check_statistics(name)
        yield from self._check_rejects(name, mended=mended)

    def _check_sources(self, name: str, *, mended: bool) -> Iterator[str]:
        rows = self._table(name, "sources")
        if len(rows) != FILES:
            yield f"sources: expected {FILES}, found {len(rows)}"
        for row in rows:
            file = int(row["source"].rpartition("/")[2].partition(".")[0])
            expected = expected_counts(self.numbers(file), self._lines, mended=mended)
            found = {key: row[key] for key in expected}
            if found != expected:
                yield f"source {file}: expected {expected}, found {found}"

    def _check_statistics(self, name: str) -> Iterator[str]:
        expected = expected_statistics(self._lines)
        found = self._ask("stats", name)
        if found["characters"] != expected["characters"]:
            yield f"characters: expected {expected['characters']}, found {found['characters']}"
        distinct = found["lengths"]["value"] if isinstance(found["lengths"], dict) else found["lengths"]
        if abs(distinct - expected["lengths"]) > DISTINCT_ERROR * expected["lengths"]:
            yield f"lengths: expected about {expected['lengths']}, found {distinct}"

    def _check_rejects(self, name: str, *, mended: bool) -> Iterator[str]:
        rejects = [data or b"" for path, data in self.contents(name).items() if path.startswith("_rejects/")]
        rows = [json.loads(row) for data in rejects for row in data.splitlines()]
        found = sorted((row["source"], row["record"], row["reason"], row["raw"]) for row in rows)
        expected = sorted(self._rejects(mended=mended))
        if found != expected:
            yield f"rejects: expected {len(expected)}, found {len(found)}: {sorted(set(found) ^ set(expected))[:4]}"

    def _rejects(self, *, mended: bool) -> Iterator[tuple[str, int, str, str]]:
        for file in range(FILES):
            for record, number in enumerate(self.numbers(file)):
                raw = line(number, self._lines).decode().rstrip("\n")
                if is_chosen(number, self._lines, BROKEN, 5):
                    yield f"{self._url}/in/{file}.jsonl", record, "not decoded", raw
                elif is_chosen(number, self._lines, RAISING, 9) and not mended:
                    yield f"{self._url}/in/{file}.jsonl", record, "ValueError", raw

    def contents(self, name: str) -> Contents:
        """Return the outputs of a job by their names below its folder."""
        names = [found for found in self._objects.names(name) if "/_ledgerbeam/" not in found]
        return {found[len(name) + 1 :]: data for found, data in zip(names, self._objects.read(names), strict=True)}

    def _start(self, name: str, *more: str, mended: bool = False, local: bool = False) -> Launcher:
        self._starts += 1
        command = ["map", "tests.matrix.accounts_work:work", f"{self._url}/in/*.jsonl"]
        command += ["--output", f"{self._url}/{name}", "--to", "jsonl", "--ledger", f"{self._url}/{name}-ledger"]
        command += ["--flush-interval", "0.3", "--task-bytes", TASK_BYTES, "--on-error", "reject:48", *more]
        if local or self._cluster is None:
            command += ["--workers", "2"]
        else:
            command += ["--", *self._cluster.options]
        env = {**self._env, **({MENDED: "1"} if mended else {})}
        if local:
            env[SECONDS] = "0"
        return Launcher(command, self._folder, env, self._folder / f"launcher-{self._starts:03d}.log")

    def _wait_for_progress(self, name: str, launcher: Launcher) -> bool:
        """Wait until a job has recorded something more; return whether it is still at work."""
        before = self._segments(name)
        assert wait_until(lambda: launcher.ended or self._segments(name) > before, seconds=240), launcher.log()
        return not launcher.ended

    def _segments(self, name: str) -> int:
        return len([found for found in self._objects.names(f"{name}-ledger/segments") if "/t-" in found])

    def _victims(self, launcher: Launcher) -> list[Callable[[], None]]:
        def kill_launcher() -> None:
            launcher.kill()

        def kill_worker() -> None:
            self._kill(self._workers(launcher))

        def kill_executor() -> None:
            assert self._cluster is not None
            self._kill(self._cluster.executors)
            self._cluster.add_task_manager()

        return [kill_launcher, kill_worker, *([kill_executor] if self._cluster is not None else [])]

    def _workers(self, launcher: Launcher) -> list[int]:
        if self._cluster is not None:
            return self._cluster.workers
        return [pid for pid in descendants(launcher.process.pid) if pid != launcher.process.pid]

    def _kill(self, pids: list[int]) -> None:
        if pids:  # else it has just ended by itself
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._choice.choice(pids), signal.SIGKILL)

    def _tidy(self) -> None:
        """Cancel what a killed launcher left on the cluster, sometimes only after it has worked beside the next."""
        if self._cluster is not None:
            time.sleep(self._choice.choice([0, 0, 4]))
            for job in self._cluster.running():
                self._cluster.cancel(job)

    def _ask(self, action: str, name: str) -> Any:
        return json.loads(self._ledger(action, name, "--json"))

    def _table(self, name: str, table: str) -> list[dict[str, Any]]:
        path = self._folder / f"{name}-{table}.jsonl"
        self._ledger("export", name, "--table", table, "--output", str(path))
        return [json.loads(row) for row in path.read_text().splitlines()]

    def _ledger(self, action: str, name: str, *options: str) -> bytes:
        command = [sys.executable, "-m", "ledgerbeam", "ledger", action, f"{self._url}/{name}-ledger", *options]
        return subprocess.run(command, cwd=self._folder, env=self._env, stdout=subprocess.PIPE, check=True).stdout


def main() -> int:
    """Run the jobs; return 0 if nothing was wrong."""
    parser = argparse.ArgumentParser(prog="tests.matrix.accounts", description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, default="local")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--record-seconds", default="0.002")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    wrong = 0
    os.environ[SECONDS] = args.record_seconds
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        server = stack.enter_context(s3.s3_server())
        cluster = None
        if args.engine == "Flink":
            if flink.missing() is not None:
                parser.error(f"no Flink: {flink.missing()}")
            env = {**server.env, SECONDS: args.record_seconds, "LEDGERBEAM_CACHE": str(folder / "workers")}
            cluster = stack.enter_context(flink_cluster(folder / "flink", env=env))
        accounts = Accounts(folder, server, cluster, args.lines, random.Random(args.seed))
        reference = accounts.reference()
        killed = runs = 0
        while killed < args.kills:
            name = f"run{runs}"
            killed += accounts.run(name, args.kills - killed)
            found = [*accounts.check(name, mended=False)]
            accounts.heal(name)
            found += [f"healed: {text}" for text in accounts.check(name, mended=True)]
            if accounts.contents(name) != reference:
                found.append("healed: the outputs are not those of a clean run")
            runs += 1
            wrong += len(found)
            print(f"{name}: {killed} of {args.kills} kills", *found, sep="\n  ", flush=True)
    print(f"{args.engine}: {args.lines} lines, {runs} jobs, {killed} kills, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
