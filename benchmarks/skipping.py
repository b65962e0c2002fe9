"""Table: speed and memory of a rerun that skips finished sources."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.data import Data
from benchmarks.peer import Peer
from benchmarks.table import Row, Work, least_row, most_row, rate

TITLE = "Rerun of a finished job: the launcher's whole listing, one core, on a real LMDB ledger"

REAL_FILES = 200_000
RATE = 250_000
MEMORY_MB = 400
ROUNDS = 3


def rows(data: Data) -> Iterator[Row]:
    count = data.count(REAL_FILES)
    folder, ledger = str(data.folder / "sources"), str(data.folder / f"ledger-real-{count}")
    with Peer("benchmarks.skip_work") as maker:
        maker.ask("make_files", folder=folder, ledger=ledger, count=count)
        made = str(data.folder / f"ledger-done-{data.finished}")
        maker.ask("make_done", ledger=made, count=data.finished)
    # A process each: peak memory is that of the skipping alone, and every run reads the ledger anew.
    real, bare = [], []
    for _ in range(ROUNDS):
        real.append(_fresh("skip_files", folder=folder, ledger=ledger))
        bare.append(_fresh("stat_files", folder=folder)[0])
    synthetic = [_fresh("skip_pages", ledger=made, count=data.finished) for _ in range(ROUNDS)]
    everything = Work(f"list + stat + identity + lookup + gone, {count:,} real files", "sources", count)
    note = f" (bare scandir + stat: {rate(count / min(bare), 'sources')})"
    yield least_row(everything, min(seconds for seconds, _ in real), RATE, note=note)
    lookup = Work(
        f"identity + lookup + gone, {data.finished:,} sources, pages made in memory", "sources", data.finished
    )
    yield least_row(lookup, min(seconds for seconds, _ in synthetic), RATE)
    for what, runs in ((f"{count:,} real files", real), (f"{data.finished:,} sources", synthetic)):
        yield most_row(f"peak memory, {what}", max(memory for _, memory in runs), MEMORY_MB, " MB")


def _fresh(work: str, **arguments: object) -> tuple[float, float]:
    """Run work in a separate process. Return its seconds, and the peak memory of the process in MB."""
    with Peer("benchmarks.skip_work") as process:
        seconds, memory = process.ask(work, **arguments)
    return float(seconds), float(memory)
