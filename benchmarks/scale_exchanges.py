"""Measures how the cost of an exchange grows with its corpus: a `sort` on an object store, with counted requests.

    python -m benchmarks scale-exchanges [--full] [--json FILE]

docs/scale-measurements.md has the results and the predictions from them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.data import GIGABYTE
from benchmarks.measured import Measured, measure
from benchmarks.peer import ROOT
from benchmarks.peer_sorts import FIELD, write_sources
from benchmarks.scale_runs import disk_bytes
from ledgerbeam.io.storage.client import filesystem
from tests.servers import s3
from tests.servers.s3_proxy import S3Proxy, s3_proxy

MEGABYTE = GIGABYTE // 1000
SIZES = ((100 * MEGABYTE, 8), (200 * MEGABYTE, 8), (200 * MEGABYTE, 16))
"""Size of a corpus in bytes, and of its tasks and shards in MB."""

FULL = ((10 * GIGABYTE, 64),)
_COLUMNS = ("corpus", "task", "runs", "shards", "sources", "run files", "3*R*P", "put", "ledgers", "worker", "s")


@dataclass(frozen=True)
class Found:
    """The cost of one sort.

    Attributes:
        corpus: Bytes of the sources.
        task_bytes: Bytes of a task, and of a shard.
        runs: Run files that were written.
        shards: Shards that were written.
        source_reads: Requests that read sources and their indexes.
        run_reads: Requests that read run files.
        writes: Requests that wrote run files and shards with their indexes.
        ledger_bytes: Size of the ledgers of both stages.
        took: Wall seconds, CPU seconds, and the peak memory of a worker.
    """

    corpus: int
    task_bytes: int
    runs: int
    shards: int
    source_reads: int
    run_reads: int
    writes: int
    ledger_bytes: int
    took: Measured


def main(argv: Sequence[str]) -> int:
    """Print the measurements. Return 0, or 1 without an S3 server."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks scale-exchanges", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--full", action="store_true", help="10 GB too, which needs 35 GB of disk")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures there")
    args = parser.parse_args(argv)
    if s3.missing() is not None:
        print(f"not measured: {s3.missing()}")
        return 1
    print("".join(f"{name:>11}" for name in _COLUMNS))
    found = []
    for one in _measured((*SIZES, *FULL) if args.full else SIZES):
        print("".join(f"{value:>11}" for value in _shown(one)), flush=True)
        found.append(asdict(one))
    if args.json:
        args.json.write_text(json.dumps({"load": os.getloadavg()[0], "sorts": found}, indent=1) + "\n")
    return 0


def _measured(sizes: Sequence[tuple[int, int]]) -> Iterator[Found]:
    work = ROOT / ".cache" / "bench" / "scale"
    work.mkdir(parents=True, exist_ok=True)
    for corpus, millions in sizes:
        with TemporaryDirectory(dir=work) as made:
            folder = Path(made)
            with s3.s3_server(folder / "s3") as server, s3_proxy(server) as proxy:
                yield _sorted(folder, proxy, corpus, millions * MEGABYTE)


def _sorted(folder: Path, proxy: S3Proxy, corpus: int, size: int) -> Found:
    place = proxy.server.place()
    store = filesystem(place, proxy.server.options)
    write_sources(folder / "in", corpus)
    for path in sorted((folder / "in").iterdir()):
        store.put_file(str(path), f"{place}/in/{path.name}")
    shutil.rmtree(folder / "in")
    command = [sys.executable, "-m", "ledgerbeam", "sort", f"{place}/in/*.jsonl", "--by", FIELD, "--to", "jsonl"]
    sizes = (f"--task-bytes={size}", f"--shard-bytes={size}", "--workers=2", "--quiet")
    places = ("--output", f"{place}/out", "--ledger", f"{folder}/ledger")
    took = measure([*command, *places, *sizes], folder / "none", environment=proxy.env)
    asked = [(request.method, request.key.partition("/")[2]) for request in proxy.requests]
    runs = {key for method, key in asked if method == "PUT" and _is_run(key)}
    return Found(
        corpus,
        size,
        runs=len(runs),
        shards=len(store.glob(f"{place}/out/*.jsonl")),
        source_reads=sum(method == "GET" and key.startswith("in/") for method, key in asked),
        run_reads=sum(method == "GET" and _is_run(key) for method, key in asked),
        writes=sum(method == "PUT" and key.startswith("out/") for method, key in asked),
        ledger_bytes=disk_bytes(folder / "ledger"),
        took=took,
    )


def _is_run(key: str) -> bool:
    return key.endswith(".run")


def _shown(found: Found) -> Iterator[str]:
    yield f"{found.corpus / GIGABYTE:g} GB"
    yield f"{found.task_bytes / MEGABYTE:g} MB"
    for number in (found.runs, found.shards, found.source_reads, found.run_reads, 3 * found.runs * found.shards):
        yield f"{number:,}"
    yield f"{found.writes:,}"
    yield f"{found.ledger_bytes / MEGABYTE:.2f} MB"
    yield f"{found.took.memory / MEGABYTE:.0f} MB"
    yield f"{found.took.wall:.1f}"
