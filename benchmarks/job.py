"""Table: whole jobs. `ledgerbeam map` compared with a bare loop and with peers: same function, same records."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.data import GIGABYTE, Data, lines
from benchmarks.far_away import far_away
from benchmarks.job_check import same_records
from benchmarks.job_programs import PROCESSES
from benchmarks.measured import Measured, measure
from benchmarks.peer import PEERS_REMEDY, ROOT, peer_python
from benchmarks.table import Row, absent_row, most_row
from ledgerbeam.io.storage.client import filesystem
from ledgerbeam.ledger.model.rows import MEASURED
from tests.servers import s3

TITLE = f"Whole jobs: JSONL in 8 files, a function of 7 us a record, {PROCESSES} processes, start-up included"

FILES = 8
ROUNDS = 2
SIZE, SMALL_SIZE, FULL_SIZE = 0.6 * GIGABYTE, 0.05 * GIGABYTE, 10 * GIGABYTE
TASK_BYTES = 16 * 2**20

CPU_LIMIT = 1.3
"""Greatest ratio of the CPU time of a job, without its start, to that of the bare loop."""

START_LIMIT, START_CPU_LIMIT, RERUN_LIMIT = 1.3, 3.0, 0.3
MEMORY_LIMIT = 2 * TASK_BYTES + 200_000_000
FAR_LIMIT, FAR_SECONDS = 1.15, 0.02
"""Greatest ratio of the wall time of a job on S3 to that on local files, and the delay of each request in seconds."""

AROUND_LIMIT = 10
"""Greatest share of the CPU time of workers for the ledger and the runner, in per cent."""

AUDIT_LIMIT, AUDIT_SECONDS = 2, 1
"""Per cent of a job's CPU time that its audit may add; a job of less than a minute may spend a second on it."""

_UNAUDITED = "unaudited"
_INDEXES = ("which makes its indexes", "which finds its indexes")

_PEERS = ("polars", "datatrove", "ray")
_NAMES = {
    "bare": "bare loop",
    "beam": "FnApiRunner",
    "datatrove": "datatrove",
    "polars": "Polars",
    "ray": "Ray Data",
}
_IMPORT = "import apache_beam"


@dataclass(frozen=True)
class _Bench:
    """The folder in which jobs of one size run.

    Attributes:
        folder: Folder with the sources in `in`. All other files in it are removed.
        label: The size of the sources, for people.
    """

    folder: Path
    label: str

    def ours(self, *more: str, name: str = "ours") -> list[str]:
        """Return our command line. Another `name` makes it another job."""
        options = (f"--task-bytes={TASK_BYTES}", f"--workers={PROCESSES}", "--quiet", *more)
        return _map(f"{self.folder}/in/*.jsonl", str(self.folder / name), *options)

    def theirs(self, program: str) -> list[str]:
        """Return the command line of a program of `job_programs`."""
        python = str(peer_python()) if program in _PEERS else sys.executable
        return [python, "-m", "benchmarks.job_programs", program, f"{self.folder}/in", f"{self.folder}/{program}"]

    def run(self, program: str) -> Measured:
        """Run a program with an empty output folder, and measure it."""
        for leftover in (program, f"{program}.logs", f"{program}.ledger"):
            shutil.rmtree(self.folder / leftover, ignore_errors=True)
        self.forget()
        ours = {"ours": self.ours(), _UNAUDITED: self.ours("--audit=off", name=_UNAUDITED)}
        command = ours.get(program) or self.theirs(program)
        return measure(command, self.folder / program)

    def forget(self) -> None:
        """Remove the indexes that a job has written, because each measured job must write them."""
        for index in (self.folder / "in").glob("*.idx"):
            index.unlink()

    def put(self, store: Any, place: str) -> None:
        """Upload the sources to `in` below a place in a store."""
        for path in sorted((self.folder / "in").glob("*.jsonl")):
            store.put_file(str(path), f"{place}/in/{path.name}")

    def take(self, program: str) -> tuple[int, int]:
        """Return `same_records` of the outputs of a program, and remove the outputs, to save space."""
        found = same_records(str(self.folder / program))
        shutil.rmtree(self.folder / program)
        return found


def rows(data: Data) -> Iterator[Row]:
    start, imported = yield from _start(data)
    size = SMALL_SIZE if data.factor < 1 else SIZE
    yield from _size(_sources(data, size), start, imported, rounds=ROUNDS)
    yield from _object_store(_sources(data, size), start, rounds=ROUNDS)
    if data.full:
        yield from _size(_sources(data, FULL_SIZE), start, imported, rounds=1)
        yield from _object_store(_sources(data, FULL_SIZE), start, rounds=1)
    yield from _far_store(_sources(data, size))


def _start(data: Data) -> Generator[Row, None, tuple[Measured, Measured]]:
    """Yield the rows of very small jobs. Return the cost of a job of one record, and of an import of Beam."""
    folder = data.work / "job-start"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "one.jsonl").write_bytes(next(lines(1)))
    jobs, again, imports = [], [], []
    for number in range(ROUNDS + 1):  # the first of each warms the disk up
        imports.append(measure([sys.executable, "-c", _IMPORT], folder))
        command = _map(str(folder / "one.jsonl"), str(folder / f"out-{number}"), "--quiet")
        jobs.append(measure(command, folder / f"out-{number}"))
        again.append(measure(command, folder))
    shutil.rmtree(folder)
    job, rerun, plain = (_least(found[1:]) for found in (jobs, again, imports))
    yield most_row(
        "a job of one record, vs importing Beam",
        job.wall / plain.wall,
        START_LIMIT,
        " x",
        ours=_shown(job),
        other=f"{_IMPORT} {_shown(plain)}",
    )
    yield most_row("a job of one record, processors", job.cpu, START_CPU_LIMIT, " s", ours=_shown(job))
    yield most_row("the same job again, finished", rerun.wall, RERUN_LIMIT, " s", ours=_shown(rerun))
    return job, plain


def _size(bench: _Bench, start: Measured, imported: Measured, *, rounds: int) -> Iterator[Row]:
    """Yield the rows of the jobs of one size."""
    programs = ["bare", "ours", _UNAUDITED, "beam", *(_PEERS if peer_python() else ())]
    runs: dict[str, list[Measured]] = {program: [] for program in programs}
    written: dict[str, tuple[int, int]] = {}
    for number in range(rounds):
        for program in programs if number % 2 == 0 else reversed(programs):
            runs[program].append(bench.run(program))
            written[program] = bench.take(program)
    time = _time_of(bench.folder / "ours.ledger")
    _check(bench.folder, written)
    found = {program: _least(each) for program, each in runs.items()}
    ours, bare = found["ours"], found["bare"]
    yield from _against_bare(f"map of {bench.label}", ours, bare, start)
    yield _audit(bench.label, ours, found[_UNAUDITED])
    for program in ("beam", *_PEERS):
        work = f"map of {bench.label}, vs {_NAMES[program]}"
        if program not in found:
            yield absent_row(work, "<= 1 x", PEERS_REMEDY)
            continue
        theirs = found[program]
        other = f"{_shown(theirs)}; {theirs.wall / bare.wall:.2f} x the bare loop"
        yield most_row(work, ours.wall / theirs.wall, 1, " x", ours=_shown(ours), other=other)
    peers = {program: each for program, each in found.items() if program not in ("bare", "ours", _UNAUDITED)}
    best = min(peers, key=lambda program: peers[program].wall)
    yield most_row(
        f"map of {bench.label}, vs the best peer",
        ours.wall / peers[best].wall,
        1,
        " x",
        ours=_shown(ours),
        other=f"{_NAMES[best]} {_shown(peers[best])}",
    )
    yield most_row(
        f"memory of a worker, {bench.label}",
        ours.memory / 1e6,
        MEMORY_LIMIT / 1e6,
        " MB",
        other=", ".join(f"{_NAMES[name]} {each.memory / 1e6:.0f}" for name, each in found.items() if name in _NAMES),
    )
    # What it takes to begin, and one task at the speed of the bare loop in one process.
    task = PROCESSES * bare.wall * TASK_BYTES / _bytes(bench.folder / "in")
    first = min(each.first for each in runs["ours"])
    limit = START_LIMIT * imported.wall + task
    yield most_row(f"first output of {bench.label}", first, round(limit, 2), " s", ours=f"{first:.2f} s")
    yield from _parts(bench.label, time)


def _against_bare(work: str, ours: Measured, bare: Measured, start: Measured) -> Iterator[Row]:
    yield most_row(
        f"{work}, processors, start-up apart, vs a bare loop",
        max(0.0, ours.cpu - start.cpu) / bare.cpu,
        CPU_LIMIT,
        " x",
        ours=f"{_shown(ours)}; {ours.wall / bare.wall:.2f} x the wall, {ours.cpu / bare.cpu:.2f} x all CPU",
        other=f"bare loop {_shown(bare)}",
    )


def _audit(label: str, ours: Measured, unaudited: Measured) -> Row:
    """Return the row of the CPU time that an audit adds to a job."""
    limit = max(AUDIT_LIMIT, 100 * AUDIT_SECONDS / unaudited.cpu if unaudited.wall < 60 else 0)
    return most_row(
        f"map of {label}, CPU time that the audit adds",
        100 * (ours.cpu / unaudited.cpu - 1),
        round(limit, 1),
        " %",
        ours=_shown(ours),
        other=f"without an audit {_shown(unaudited)}",
    )


def _parts(label: str, time: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the row of the CPU time of workers, by part of their time."""
    cpu = time["cpu"]
    whole = sum(cpu.values())
    work = ", ".join(f"{part} {cpu[part]:.2f}" for part in MEASURED if part != "ledger")
    around = cpu["ledger"] + cpu["wait"]
    yield most_row(
        f"CPU seconds of workers by part, {label}; the share of the last two",
        100 * around / whole,
        AROUND_LIMIT,
        " %",
        ours=work,
        other=f"ledger {cpu['ledger']:.2f}, the runner around it {cpu['wait']:.2f}",
    )


def _object_store(bench: _Bench, start: Measured, *, rounds: int) -> Iterator[Row]:
    """Yield the row of a job on S3. The bare loop reads and writes large pieces of objects."""
    label = f"map of {bench.label} on S3"
    if missing := s3.missing():
        yield absent_row(label, f"<= {CPU_LIMIT:g} x", missing)
        return
    with s3.s3_server() as server:
        name = "MinIO" if s3.minio() else "moto"
        place = server.place()
        store = filesystem(place, server.options)
        bench.put(store, place)
        runs: dict[str, list[Measured]] = {"bare": [], "ours": []}
        for number in range(rounds):
            options = (f"--task-bytes={TASK_BYTES}", f"--workers={PROCESSES}", "--quiet")
            ours = _map(f"{place}/in/*.jsonl", f"{place}/ours-{number}", *options, suffix=".ledger")
            out = f"{place}/bare-{number}"
            bare = [sys.executable, "-m", "benchmarks.job_programs", "bare_s3", f"{place}/in", out]
            _forget(store, place)
            for program, command in (("bare", bare), ("ours", ours)):
                runs[program].append(measure(command, bench.folder / "none", environment=server.env))
        written: dict[str, tuple[int, int]] = {}
        for program in runs:  # one after the other: the disk need not hold a copy of both
            copied = bench.folder / f"{program}-s3"
            shutil.rmtree(copied, ignore_errors=True)
            store.get(f"{place}/{program}-0/", f"{copied}/", recursive=True)
            written[copied.name] = bench.take(copied.name)
        _check(bench.folder, written)
    yield from _against_bare(f"{label} ({name})", _least(runs["ours"]), _least(runs["bare"]), start)


def _far_store(bench: _Bench) -> Iterator[Row]:
    """Yield two rows of a job with one worker on an S3 server with latency: without indexes, and with indexes.

    The server and the relay stand for other machines. So they run on one core, and the job has the others.
    """
    label = f"map of {bench.label} on S3, {1000 * FAR_SECONDS:.0f} ms away, vs local files, one worker"
    if missing := s3.missing():
        yield absent_row(label, f"<= {FAR_LIMIT:g} x", missing)
        return
    options = (f"--task-bytes={TASK_BYTES}", "--workers=1", "--quiet")
    runs: dict[str, list[Measured]] = {"here": [], "far": []}
    core = max(os.sched_getaffinity(0))
    with (
        s3.s3_server(prefix=("taskset", "--cpu-list", str(core))) as server,
        far_away(server.endpoint, FAR_SECONDS, core) as endpoint,
    ):
        place = server.place()
        store = filesystem(place, server.options)
        bench.put(store, place)
        bench.forget()
        for number in range(len(_INDEXES)):  # the first makes the indexes
            here = _map(f"{bench.folder}/in/*.jsonl", str(bench.folder / f"here-{number}"), *options)
            far = _map(f"{place}/in/*.jsonl", f"{place}/far-{number}", *options)
            runs["here"].append(measure(here, bench.folder / "none"))
            runs["far"].append(measure(far, bench.folder / "none", environment=s3.env_of(endpoint)))
        store.get(f"{place}/far-0/", f"{bench.folder}/far-0/", recursive=True)
        _check(bench.folder, {name: bench.take(name) for name in ("far-0", "here-0")})
    for indexes, ours, local in zip(_INDEXES, runs["far"], runs["here"], strict=True):
        ratio = ours.wall / local.wall
        other = f"local files {_shown(local)}"
        yield most_row(f"{label}, {indexes}", ratio, FAR_LIMIT, " x", ours=_shown(ours), other=other)


def _forget(store: Any, place: str) -> None:
    """Remove the indexes that a job has written to a store."""
    if left := store.glob(f"{place}/in/*.idx"):
        store.rm(left)


def _check(folder: Path, written: Mapping[str, tuple[int, int]]) -> None:
    """Raise RuntimeError if the programs have not written the same records, and remove their files."""
    for one, other in pairwise(written):
        if written[one] != written[other] or not written[one][0]:
            raise RuntimeError(f"{folder}: {one} wrote {written[one]} (records, digest), {other} {written[other]}")
    for path in folder.iterdir():
        if path.name != "in":
            shutil.rmtree(path)


def _sources(data: Data, size: float) -> _Bench:
    """Return a bench with sources of a size, which are made once."""
    folder = data.folder.parent / f"job-{size / GIGABYTE:g}"
    made = folder / "in"
    if not made.is_dir():
        partial = folder / "partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for number in range(FILES):
            with (partial / f"{number:02d}.jsonl").open("wb") as file:
                for line in lines(int(size), seed=number):
                    file.write(line)
                    if file.tell() >= size / FILES:
                        break
        partial.rename(made)
    return _Bench(folder, f"{size / GIGABYTE:g} GB")


def _map(sources: str, out: str, *options: str, suffix: str = ".ledger") -> list[str]:
    command = [sys.executable, "-m", "ledgerbeam", "map", "benchmarks.functions:describe", sources]
    return [*command, f"--output={out}", "--to=jsonl", f"--ledger={out}{suffix}", *options]


def _time_of(ledger: Path) -> Mapping[str, Any]:
    command = [sys.executable, "-m", "ledgerbeam", "ledger", "status", str(ledger), "--json"]
    shown = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    time: Mapping[str, Any] = json.loads(shown)["last_run"]["time"]
    return time


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.suffix == ".jsonl")


def _least(runs: list[Measured]) -> Measured:
    """Return the least value of each figure."""
    return Measured(*(min(figures) for figures in zip(*(vars(run).values() for run in runs), strict=True)))


def _shown(found: Measured) -> str:
    return f"{found.wall:.2f} s, {found.cpu:.2f} CPU s"
