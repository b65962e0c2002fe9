"""Table: the cost of batches, counts and statistics for a task, compared with a bare loop over the same records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.data import Data
from benchmarks.table import Row, most_row
from benchmarks.timing import best, timed
from ledgerbeam import Drop, stats
from ledgerbeam.ledger import Source, Task
from ledgerbeam.transforms import MapRecords

TITLE = "Functions: overhead of a task of `map` over a bare loop, in this process, without reading or writing"

RECORDS = 20_000
BATCH = 32
RECORD_SECONDS = 10e-6
"""Duration of the work for a record, if there is any: that of a small model."""

ROUNDS = 5


def rows(data: Data) -> Iterator[Row]:
    records = [{"id": number, "text": f"text {number}"} for number in range(data.count(RECORDS))]
    seconds = best(
        {"bare": timed(lambda: _loop(records)), "map": timed(_task("batches", records, batch=BATCH))}, ROUNDS
    )
    yield _over(f"--batch {BATCH}, {1e6 * RECORD_SECONDS:.0f} us a record", seconds, "bare", "map", 5.0)
    seconds = best({"none": timed(_task("halve", records)), "drop": timed(_task("halve_by_reason", records))}, ROUNDS)
    yield _over(
        f"half of the records dropped, {1e6 * RECORD_SECONDS:.0f} us each: Drop(reason) against None",
        seconds,
        "none",
        "drop",
        2.0,
    )
    plain = best({"plain": timed(_task("keep", records))}, ROUNDS)["plain"]
    for name in ("count", "observe", "distinct", "top"):
        observed = best({name: timed(_task(f"observe_{name}", records))}, ROUNDS)[name]
        cost = 1e6 * (observed - plain) / len(records)
        yield most_row(
            f"stats.{name}, a call", cost, 5.0, " us", other=f"the record {1e6 * plain / len(records):.1f} us"
        )


def _over(work: str, seconds: dict[str, float], bare: str, ours: str, limit: float) -> Row:
    percent = 100 * (seconds[ours] / seconds[bare] - 1)
    shown = {name: f"{1000 * value:.1f} ms" for name, value in seconds.items()}
    return most_row(work, percent, limit, " %", ours=shown[ours], other=f"{bare} {shown[bare]}")


def _task(function: str, records: list[Any], batch: int | None = None) -> Callable[[], object]:
    work = MapRecords(f"{__name__}:{function}", "jsonl", batch=batch)
    task = Task(Source("/bench.jsonl", 1, "1"), 0, len(records), (), records)
    return lambda: work(task)


def _loop(records: list[Any]) -> list[bytes]:
    """Do the work of `batches` and encode the records, and nothing else."""
    import orjson  # noqa: PLC0415 - not what is timed

    lines: list[bytes] = []
    for start in range(0, len(records), BATCH):
        lines += [orjson.dumps(record) + b"\n" for record in batches(records[start : start + BATCH])]
    return lines


def batches(records: list[Any]) -> list[Any]:
    """Take as long as a small model."""
    _work(len(records))
    return records


def _work(records: int) -> None:
    until = time.perf_counter() + RECORD_SECONDS * records
    while time.perf_counter() < until:
        pass


def keep(record: Any) -> Any:
    return record


def halve(record: Any) -> Any:
    _work(1)
    return record if record["id"] % 2 else None


def halve_by_reason(record: Any) -> Any:
    _work(1)
    return record if record["id"] % 2 else Drop("even")


def observe_count(record: Any) -> Any:
    stats.count("records")
    return record


def observe_observe(record: Any) -> Any:
    stats.observe("length", len(record["text"]))
    return record


def observe_distinct(record: Any) -> Any:
    stats.distinct("texts", record["text"])
    return record


def observe_top(record: Any) -> Any:
    stats.top("texts", record["text"])
    return record
