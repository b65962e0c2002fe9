"""Measures costs that grow with the number of hosts: requests of launchers of one job, and compaction beside writers.

    python -m benchmarks scale-hosts [--sources N] [--packed N] [--shards N] [--writers N] [--json FILE]

docs/scale-measurements.md has the results.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.fold_work import JOB, sources_of_writers
from benchmarks.peer import ROOT, Peer
from benchmarks.scale_runs import LINE
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.ledger.remote.store import RemoteStore
from tests.servers import s3
from tests.servers.s3_proxy import S3Proxy, s3_proxy

LAUNCHERS = (1, 2, 4)
PACK_BYTES = 100_000
_PUT_AT_ONCE = 16
_KINDS = ("list", "read", "look", "write", "claims", "ledger")


@dataclass(frozen=True)
class Folder:
    """The files that launchers list, and the command line of a job over them."""

    name: str
    files: dict[str, bytes]
    words: tuple[str, ...]


def main(argv: Sequence[str]) -> int:
    """Print the measurements. Return 0, or 1 without an S3 server."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks scale-hosts", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--sources", type=int, default=1_000, metavar="N", help="objects, each a source to index")
    parser.add_argument("--packed", type=int, default=20_000, metavar="N", help="objects in packs of 100 kB")
    parser.add_argument("--shards", type=int, default=1_000, metavar="N", help="shards of a Shar folder")
    parser.add_argument("--writers", type=int, default=50, metavar="N", help="that record while a ledger is compacted")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures there")
    args = parser.parse_args(argv)
    if s3.missing() is not None:
        print(f"not measured: {s3.missing()}")
        return 1
    work = ROOT / ".cache" / "bench" / "scale"
    work.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"load": os.getloadavg()[0]}
    with TemporaryDirectory(dir=work) as folder, s3.s3_server(Path(folder) / "s3") as server, s3_proxy(server) as proxy:
        found["launchers"] = list(_launchers(args, proxy, Path(folder)))
        found["writers"] = list(_compaction(args.writers, proxy, Path(folder))) if args.writers else []
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def _launchers(args: argparse.Namespace, proxy: S3Proxy, folder: Path) -> Iterator[dict[str, Any]]:
    print(f"{'folder':<10}{'objects':>9}{'launchers':>11}{'s':>8}" + "".join(f"{kind:>9}" for kind in _KINDS))
    for listed in _folders(args):
        bucket = proxy.server.bucket()
        objects = ObjectFolder(f"s3://{bucket}", proxy.server.options)
        with ThreadPoolExecutor(_PUT_AT_ONCE) as pool:
            list(pool.map(lambda file, objects=objects: objects.create(*file), listed.files.items()))
        for launchers in LAUNCHERS:
            counts, seconds = _share(listed, launchers, bucket, proxy, folder)
            cells = "".join(f"{counts[kind]:>9,}" for kind in _KINDS)
            print(f"{listed.name:<10}{len(listed.files):>9,}{launchers:>11}{seconds:>8.0f}{cells}", flush=True)
            yield {"folder": listed.name, "launchers": launchers, "objects": len(listed.files), **counts}
    print()


def _folders(args: argparse.Namespace) -> Iterator[Folder]:
    lines = LINE * 10
    if args.sources:
        files = {f"in/{number:08d}.jsonl": lines for number in range(args.sources)}
        yield Folder("sources", files, ("convert", "*.jsonl", "--to=jsonl"))
    if args.packed:
        files = {f"in/{number:08d}.jsonl": lines for number in range(args.packed)}
        yield Folder("packed", files, ("convert", "*.jsonl", "--to=jsonl", f"--pack={PACK_BYTES}"))
    if args.shards:
        files = {}
        for number in range(args.shards):
            cut = {"id": f"cut-{number}", "start": 0.0, "duration": 1.0, "channel": 0, "type": "MonoCut"}
            files[f"in/cuts.{number:06d}.jsonl"] = json.dumps(cut).encode() + b"\n"
            files[f"in/text.{number:06d}.jsonl"] = json.dumps({"cut_id": cut["id"], "text": "a"}).encode() + b"\n"
        yield Folder("shar", files, ("convert", "", "--from=shar", "--to=jsonl"))


def _share(listed: Folder, launchers: int, bucket: str, proxy: S3Proxy, folder: Path) -> tuple[Counter[str], float]:
    """Start launchers of one job at the same time. Return the number of their requests by purpose, and the seconds."""
    command, pattern, *options = listed.words
    words = [sys.executable, "-m", "ledgerbeam", command, f"s3://{bucket}/in/{pattern}".rstrip("/"), *options]
    for option in ("output", "ledger", "index-root"):
        words += [f"--{option}", f"s3://{bucket}/{option}-{launchers}"]
    words += ["--workers=1", "--json"]
    proxy.clear()
    started = time.perf_counter()
    running = []
    for launcher in range(launchers):
        own = {
            "PYTHONPATH": str(ROOT),
            **proxy.env,
            "LEDGERBEAM_CACHE": str(folder / f"{bucket}-{launchers}-{launcher}"),
        }
        running.append(
            subprocess.Popen(
                words, env={**os.environ, **own}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    for process in running:
        _, said = process.communicate()
        if process.returncode:
            raise RuntimeError(f"{' '.join(words)} ended with {process.returncode}:\n{said[-4000:]}")
    seconds = time.perf_counter() - started
    return Counter(_kind(asked.method, asked.key, asked.query) for asked in proxy.requests), seconds


def _kind(method: str, key: str, query: str) -> str:
    """Return the purpose of a request, such as listing or reading sources, or writing outputs."""
    if "/claims/" in key:
        return "claims"
    if "/ledger-" in key or "prefix=ledger-" in query:
        return "ledger"
    if "prefix=" in query:
        return "list"
    return {"GET": "read", "HEAD": "look", "PUT": "write"}.get(method, "other")


def _compaction(writers: int, proxy: S3Proxy, folder: Path) -> Iterator[dict[str, Any]]:
    """Let writers record for a while: alone, and while their ledger is compacted again and again."""
    print(
        f"{writers} writers{'':<16}{'s':>6}{'commits':>9}{'a second':>10}{'slowest s':>11}{'requests':>10}"
        f"{'compactions':>13}{'segments':>10}{'their requests':>16}"
    )
    for beside in (False, True):
        row = _write_beside(writers, beside, proxy, folder)
        yield row
        name = "beside compactions" if beside else "alone"
        print(
            f"{name:<24}{row['seconds']:>6.0f}{row['commits']:>9,}{row['commits'] / row['seconds']:>10.1f}"
            f"{row['slowest']:>11.2f}{row['requests']:>10,}{row['compactions']:>13}{row['replaced']:>10,}"
            f"{row['compaction requests']:>16,}",
            flush=True,
        )
    print()


def _write_beside(writers: int, beside: bool, proxy: S3Proxy, folder: Path) -> dict[str, Any]:
    url = f"s3://{proxy.server.bucket()}/ledger"
    store = RemoteStore(ObjectFolder(url, proxy.server.options), str(folder / f"{url[5:].replace('/', '-')}"))
    store.open(create=True)
    store.open_job(JOB)
    run = store.begin_run({})
    made = sources_of_writers(writers)
    store.register(made)
    ended = threading.Event()
    proxy.clear()
    with (
        Peer("benchmarks.fold_work") as writing,
        Peer("benchmarks.fold_work") as compacting,
        s3_proxy(proxy.server) as own,
        ThreadPoolExecutor(2) as pool,
    ):
        ways = {"url": url, "options": proxy.options}
        compactions = pool.submit(_compact_until, ended, compacting, {**ways, "options": own.options}, folder, beside)
        try:
            written = writing.ask("write", **ways, run=run, writers=writers)
        finally:
            ended.set()
        replaced = compactions.result()
        asked = len(own.requests)
    fresh = RemoteStore(ObjectFolder(url, proxy.server.options), str(folder / f"fresh-{beside}"))
    fresh.open()
    tasks, complete = fresh.totals().tasks, fresh.completed_count()
    if (tasks, complete) != (len(made), len(made)):
        raise RuntimeError(f"{url}: expected {len(made)} tasks and sources, found {tasks} and {complete}")
    for each in (store, fresh):
        each.close()
    return {
        "beside": beside,
        **written,
        "requests": len(proxy.requests),
        "compactions": len(replaced),
        "replaced": sum(replaced),
        "compaction requests": asked,
    }


def _compact_until(ended: threading.Event, peer: Peer, ways: dict[str, Any], folder: Path, beside: bool) -> list[int]:
    """Compact again and again until the writers have ended. Return the number of objects that each run replaced."""
    replaced: list[int] = []
    while beside and not ended.is_set():
        replaced.append(int(peer.ask("compact_once", **ways, sidecar=str(folder / "compacting"))))
    return replaced
