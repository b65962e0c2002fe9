"""Table: the cost of the ledger in a job of short tasks."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.data import Data
from benchmarks.peer import Peer
from benchmarks.table import Row, most_row
from benchmarks.timing import alternate

TITLE = "Ledger overhead: a Beam pipeline with and without one on disk (local runner, one process, outputs in memory)"

TASKS = 600
ROUNDS = 9
LIMIT_PERCENT = 2


def rows(data: Data) -> Iterator[Row]:
    tasks = data.count(TASKS)
    with Peer("benchmarks.ledger_work") as process:
        folder = str(data.work / "ledger")
        process.ask("make", folder=folder, tasks=tasks)
        # Publishing waits for the disk; in memory it does not, so that of the two only the ledger does.
        with TemporaryDirectory(dir="/dev/shm") as output:
            arguments = {"folder": folder, "output": output, "tasks": tasks}
            contenders = {
                "with": process.contender("run", ledger=True, **arguments),
                "without": process.contender("run", ledger=False, **arguments),
            }
            seconds = alternate(contenders, ROUNDS, warm_up=False)
    for name, judge in (("least", min), ("median", median)):
        with_ledger, without = judge(seconds["with"]), judge(seconds["without"])
        yield most_row(
            f"{tasks:,} tasks of 10 ms CPU, read and published; {name} of {ROUNDS} runs",
            100 * (with_ledger / without - 1),
            LIMIT_PERCENT,
            " %",
            ours=f"{with_ledger:.3f} s",
            other=f"without ledger {without:.3f} s",
        )
