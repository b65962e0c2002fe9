"""Measures the cost of a job for each source, task and gigabyte, and predicts the cost of larger jobs.

    python -m benchmarks scale [--full] [--workers N] [--json FILE]

docs/scale-measurements.md explains the figures and has the results of one machine.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.made_sources import make_done
from benchmarks.peer import ROOT, Peer
from benchmarks.scale_law import GIGABYTE, Law, fit
from benchmarks.scale_runs import LINE, Measured, Shape, run, run_twice
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.pipelines.runners.waves import WAVE_SOURCES, WAVE_TASKS
from tests.servers import s3
from tests.servers.s3_proxy import s3_proxy

RECORDS = 10
SOURCES_OF_TASKS = 10
TASK_BYTES = 16_000_000
MANY_TASKS, MANY_SOURCES = 10**9, 10**6
_REQUESTS = {"few": Shape(5, 20, RECORDS), "more tasks": Shape(5, 100, RECORDS), "more sources": Shape(50, 2, RECORDS)}


@dataclass(frozen=True)
class Sizes:
    """Sizes of the measured jobs: numbers of sources, tasks, gigabytes, packed sources, and finished sources."""

    sources: tuple[int, ...]
    tasks: tuple[int, ...]
    gigabytes: tuple[float, ...]
    packed: tuple[int, ...]
    skipped: tuple[int, ...]

    def shapes(self) -> Iterator[tuple[str, Shape]]:
        """Yield name and shape of each job. In a series of jobs only one number differs."""
        for count in self.sources:
            yield "sources", Shape(count, 1, RECORDS)
        for count in self.tasks:
            yield "tasks", Shape(SOURCES_OF_TASKS, count // SOURCES_OF_TASKS, RECORDS)
        for size in self.gigabytes:
            tasks = max(1, round(size * GIGABYTE / TASK_BYTES / SOURCES_OF_TASKS))
            yield "bytes", Shape(SOURCES_OF_TASKS, tasks, TASK_BYTES // len(LINE))
        for count in self.packed:
            yield "packed", Shape(count, 1, RECORDS, TASK_BYTES)


SMALL = Sizes((300, 1_000, 3_000), (300, 1_000, 3_000), (0.16, 0.32), (10_000, 100_000), (100_000, 1_000_000))
FULL = Sizes(
    (1_000, 10_000, 100_000), (1_000, 10_000, 100_000), (0.32, 1.6, 6.4), (10**5, 10**6, 10**7), (10**5, 10**6, 10**7)
)


def main(argv: Sequence[str]) -> int:
    """Print the measurements, the law of the cost, and its predictions. Return 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks scale", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--full", action="store_true", help="up to 100,000 sources and tasks and 10 million skipped")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures there")
    args = parser.parse_args(argv)
    sizes = FULL if args.full else SMALL
    work = ROOT / ".cache" / "bench" / "scale"
    work.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"workers": args.workers, "load before": os.getloadavg()[0]}
    print(f"{args.workers} workers, load {os.getloadavg()[0]:.1f} before; records of {len(LINE)} bytes\n", flush=True)
    with TemporaryDirectory(dir=work) as folder:
        clean = _jobs(sizes, Path(folder), args.workers, found)
        _skipping(sizes, Path(folder), found)
        _requests(Path(folder), args.workers, found)
    laws = _laws(clean, args.workers, found)
    _predict(laws, found)
    found["load after"] = os.getloadavg()[0]
    if max(found["load before"], found["load after"] - args.workers) > 1:
        print("\nthe machine was busy with other things: memory, bytes and requests hold, times do not")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def _jobs(sizes: Sizes, folder: Path, workers: int, found: dict[str, Any]) -> list[Measured]:
    print(
        f"{'series':<9}{'sources':>9}{'tasks':>9}{'GB':>7}{'s':>9}{'rerun s':>9}"
        f"{'launcher MB':>13}{'runner MB':>11}{'worker MB':>11}{'ledger MB':>11}{'load':>6}"
    )
    clean: list[Measured] = []
    rows = found["jobs"] = []
    for series, shape in sizes.shapes():
        first, again = run_twice(folder / "job", shape, workers)
        if not shape.pack_bytes:
            clean.append(first)
        load = os.getloadavg()[0]
        rows.append({"series": series, "clean": asdict(first), "rerun": asdict(again), "load": load})
        memory = [first.memory.get(kind, 0) / 1e6 for kind in ("launcher", "runner", "worker")]
        print(
            f"{series:<9}{shape.sources:>9,}{first.tasks:>9,}{shape.size / GIGABYTE:>7.2f}{first.seconds:>9.1f}"
            f"{again.seconds:>9.1f}{memory[0]:>13.0f}{memory[1]:>11.0f}{memory[2]:>11.0f}"
            f"{first.ledger / 1e6:>11.2f}{load:>6.1f}",
            flush=True,
        )
    print()
    return clean


def _skipping(sizes: Sizes, folder: Path, found: dict[str, Any]) -> None:
    """Create ledgers of finished sources, and skip all of the sources, as a rerun does."""
    print(f"{'skipped sources':>18}{'s':>9}{'MB':>7}{'bytes of ledger each':>22}{'load':>6}")
    rows = found["skipping"] = []
    for count in sizes.skipped:
        ledger = folder / f"ledger-{count}"
        make_done(str(ledger), count)
        with Peer("benchmarks.skip_work") as process:  # whose peak memory is that of skipping alone
            seconds, memory = process.ask("skip_pages", ledger=str(ledger), count=count)
        size = sum(path.stat().st_blocks * 512 for path in ledger.iterdir() if path.is_file())
        load = os.getloadavg()[0]
        rows.append({"sources": count, "seconds": seconds, "memory": memory, "ledger": size, "load": load})
        print(f"{count:>18,}{seconds:>9.2f}{memory:>7.0f}{size / count:>22.0f}{load:>6.1f}", flush=True)
    print()


def _requests(folder: Path, workers: int, found: dict[str, Any]) -> None:
    """Count the requests of jobs of three shapes to an object store, with the ledger on a disk and on the store."""
    if s3.missing() is not None:
        print(f"requests: not counted, {s3.missing()}\n")
        return
    kinds = ("HEAD", "GET", "PUT", "POST", "DELETE")
    print(f"{'requests':<44}" + "".join(f"{kind:>8}" for kind in (*kinds, "ledger")))
    rows = found["requests"] = []
    with s3.s3_server(folder / "s3") as server, s3_proxy(server) as proxy:
        for place in ("disk", "store"):
            counts = {}
            for name, shape in _REQUESTS.items():
                bucket = server.bucket()
                objects = ObjectFolder(f"s3://{bucket}", server.options)
                for number in range(shape.sources):
                    objects.create(f"in/{number:08d}.jsonl", LINE * (shape.records_each * shape.tasks_each))
                local = folder / f"ledger-{bucket}"
                ledger = str(local) if place == "disk" else f"s3://{bucket}/ledger"
                places = {"sources": f"s3://{bucket}/in/*.jsonl", "output": f"s3://{bucket}/out", "ledger": ledger}
                proxy.clear()
                env = {**proxy.env, "LEDGERBEAM_CACHE": str(folder / f"cache-{bucket}")}
                run(places, shape, workers, ledger=local, env=env)
                of_ledger = proxy.count(key=f"*{bucket}/ledger*")
                counts[name] = Counter({kind: proxy.count(kind) for kind in kinds} | {"ledger": of_ledger})
            task = _per(counts["more tasks"], counts["few"], _REQUESTS["more tasks"].tasks - _REQUESTS["few"].tasks)
            source = _per(
                counts["more sources"], counts["few"], _REQUESTS["more sources"].sources - _REQUESTS["few"].sources
            )
            for what, each in (("a task", task), ("a source", source)):
                rows.append({"ledger": place, "of": what, **each})
                cells = "".join(f"{each[kind]:>8.2f}" for kind in (*kinds, "ledger"))
                print(f"{f'{what} more, ledger on the {place}':<44}{cells}", flush=True)
    print()


def _per(more: Counter[str], less: Counter[str], difference: int) -> dict[str, float]:
    return {kind: (more[kind] - less[kind]) / difference for kind in more}


def _laws(clean: Sequence[Measured], workers: int, found: dict[str, Any]) -> dict[str, Law]:
    small = [job for job in clean if job.shape.task_bytes < TASK_BYTES]
    large = [_worker_bytes(job) for job in clean if job.shape.task_bytes == TASK_BYTES]
    laws = {
        "worker seconds": fit(clean, lambda job: job.seconds * workers),
        "ledger bytes": fit(clean, lambda job: job.ledger),
        "launcher bytes": fit(clean, lambda job: job.memory["launcher"]),
        "runner bytes": fit(clean, lambda job: job.memory["runner"]),
        "worker bytes": fit(small, _worker_bytes),
    }
    print(f"{'law':<16}{'start':>14}{'a source':>14}{'a task':>14}{'a GB':>14}{'worst error':>13}")
    for name, law in laws.items():
        parts = "".join(f"{part:>14.4g}" for part in (law.start, law.source, law.task, law.gigabyte))
        print(f"{name:<16}{parts}{law.worst:>12.0%}")
    found["laws"] = {name: asdict(law) for name, law in laws.items()}
    rest = laws["worker bytes"].start
    each = (max(large) - rest) / TASK_BYTES
    found["worker bytes"] = {"at rest": rest, "a byte of a task": each}
    print(f"a worker: {rest / 1e6:.0f} MB, and {each:.1f} bytes for each byte of its task\n")
    return laws


def _worker_bytes(job: Measured) -> int:
    return job.memory.get("worker", job.memory.get("runner", 0))  # a single worker is the runner's own process


def _predict(laws: dict[str, Law], found: dict[str, Any]) -> None:
    """Print the prediction for a job of a thousand million tasks of 16 MB, without the time of its function."""
    gigabytes = MANY_TASKS * TASK_BYTES / GIGABYTE
    seconds = laws["worker seconds"].of(MANY_SOURCES, MANY_TASKS, gigabytes)
    each = MANY_TASKS / MANY_SOURCES
    wave_sources = min(WAVE_SOURCES, WAVE_TASKS / each)
    few, many = found["skipping"][0], found["skipping"][-1]
    listed = 1e6 * (many["memory"] - few["memory"]) / (many["sources"] - few["sources"])
    launcher = laws["launcher bytes"].of(wave_sources, wave_sources * each, 0) + listed * MANY_SOURCES
    predicted = {
        "worker days": seconds / 86_400,
        "ledger GB": laws["ledger bytes"].of(MANY_SOURCES, MANY_TASKS, 0) / 1e9,
        "launcher GB": launcher / 1e9,
        "local runner GB": laws["runner bytes"].of(wave_sources, wave_sources * each, 0) / 1e9,
        "objects written": 2 * MANY_TASKS,
    }
    print(f"predicted for {MANY_TASKS:,} tasks of {TASK_BYTES / 1e6:g} MB in {MANY_SOURCES:,} sources:")
    for name, value in predicted.items():
        print(f"  {name:<24}{value:>18,.1f}")
    found["predicted"] = predicted
