"""Runs the tables: `python -m benchmarks [--small] [--long] [--full] [TABLE ...]`; and `python -m benchmarks scale`,
`scale-ledger`, `scale-hosts`, `scale-exchanges` and `scale-prism`."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import sys
import time
import traceback
from collections import Counter
from types import ModuleType

from benchmarks import (
    answers,
    blocks,
    columns,
    commits,
    compressed,
    datasets,
    decontaminating,
    graphs,
    indexing,
    job,
    keyed,
    ledger,
    loaders,
    megatron,
    native,
    near,
    object_store,
    observing,
    packs,
    parquet,
    parquet_reads,
    reads,
    s3,
    scale,
    scale_exchanges,
    scale_hosts,
    scale_ledger,
    scale_prism,
    selecting,
    skipping,
    sorting,
    workers,
)
from benchmarks.data import Data, open_data
from benchmarks.peer import PEERS, ROOT
from benchmarks.table import render

TABLES: dict[str, ModuleType] = {
    "indexing": indexing,
    "reads": reads,
    "compressed": compressed,
    "native": native,
    "datasets": datasets,
    "megatron": megatron,
    "packs": packs,
    "object-store": object_store,
    "s3": s3,
    "graphs": graphs,
    "loaders": loaders,
    "ledger": ledger,
    "commits": commits,
    "skipping": skipping,
    "workers": workers,
    "observing": observing,
    "parquet": parquet,
    "parquet-reads": parquet_reads,
    "job": job,
    "columns": columns,
    "selecting": selecting,
    "near": near,
    "decontaminating": decontaminating,
    "sort": sorting,
    "keyed": keyed,
    "blocks": blocks,
    "answers": answers,
}

SCALES = {
    "scale": scale,
    "scale-ledger": scale_ledger,
    "scale-hosts": scale_hosts,
    "scale-exchanges": scale_exchanges,
    "scale-prism": scale_prism,
}
"""Measurements with other options than the tables, by name."""


def main() -> int:
    """Print the tables. Return 0, or 1 if a table raised an error."""
    if sys.argv[1:2] and sys.argv[1] in SCALES:
        return SCALES[sys.argv[1]].main(sys.argv[2:])
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Speed against peers and limits.")
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(TABLES)} (default: all)")
    parser.add_argument("--small", action="store_true", help="a tenth of the data: quick, without reliable verdicts")
    parser.add_argument("--long", action="store_true", help="skip 10 million finished sources, not 1 million")
    parser.add_argument("--full", action="store_true", help="also measure whole jobs of 10 GB, which takes an hour")
    args = parser.parse_args()
    unknown = [name for name in args.tables if name not in TABLES]
    if unknown:
        parser.error(f"there is no table {unknown[0]!r}; expected one of {', '.join(TABLES)}")
    data = open_data(ROOT / ".cache" / "bench", small=args.small, long=args.long, full=args.full)
    print(_machine(data), flush=True)
    verdicts: Counter[str] = Counter()
    for name in args.tables or TABLES:
        verdicts += _table(TABLES[name], data)
    print(", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items())))
    return 1 if verdicts["broken"] else 0


def _table(module: ModuleType, data: Data) -> Counter[str]:
    """Print one table and count its verdicts."""
    rows = []
    verdicts: Counter[str] = Counter()
    started = time.monotonic()
    try:
        for row in module.rows(data):
            rows.append(row)
            verdicts[row.verdict] += 1
    except Exception:  # noqa: BLE001 - the other tables are still of use
        traceback.print_exc()
        verdicts["broken"] += 1
    seconds = time.monotonic() - started
    print(render(f"{module.TITLE}  [{seconds:.0f} s, load {os.getloadavg()[0]:.1f}]", rows), flush=True)
    return verdicts


def _machine(data: Data) -> str:
    cores = len(os.sched_getaffinity(0))
    packages = " ".join(f"{name} {importlib.metadata.version(name)}" for name in ("numpy", "orjson", "lmdb"))
    peers = " ".join((PEERS / ".ready").read_text().split()) if (PEERS / ".ready").is_file() else "none"
    return (
        f"{cores} cores, {platform.machine()}, Linux {platform.release()}, Python {platform.python_version()}, "
        f"{packages}\npeers: {peers}\nfiles of {data.size / 1e9:g} GB, all warm; best of several alternating runs "
        "unless a row says otherwise\n"
    )


if __name__ == "__main__":
    sys.exit(main())
