"""Table: reading the 1,000 records of a task from an object store."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import fsspec
import orjson

from benchmarks.data import Data, lines
from benchmarks.minio import BINARY, REMEDY, s3_server
from benchmarks.table import Row, Work, absent_row, most_row, speed_row
from benchmarks.timing import best, timed
from ledgerbeam.io import JsonlReader, write_index
from ledgerbeam.io.index.file import Offsets
from ledgerbeam.io.index.newlines import build_jsonl_index

TITLE = "Object store (MinIO on loopback): a task of 1,000 records of 600 bytes, decoded"

RECORDS = 20_000
TASK = 1_000
FIRST = 7_000


def rows(data: Data) -> Iterator[Row]:
    if not BINARY.is_file():
        yield absent_row("requests of a task", "<= 2", REMEDY)
        yield absent_row("a task, vs one GET a record", ">= 10", REMEDY)
        return
    with s3_server(data.work) as options:
        store = fsspec.filesystem("s3", **options)
        store.mkdir("bench")
        url = "s3://bench/lines.jsonl"
        store.pipe_file(url, b"".join(lines(RECORDS)))
        offsets = build_jsonl_index(url, options)
        write_index(f"{url}.idx", offsets, options)
        yield from _rows(store, url, offsets, options)


def _rows(store: Any, url: str, offsets: Offsets, options: dict[str, Any]) -> Iterator[Row]:
    def task() -> list[Any]:
        # As a job does: planning has checked the index, and no task finds it in memory.
        with JsonlReader(url, options=options, check=False) as reader:
            return reader.read_span(FIRST, FIRST + TASK)

    starts, stops = offsets[FIRST : FIRST + TASK].tolist(), offsets[FIRST + 1 : FIRST + TASK + 1].tolist()

    def one_by_one() -> list[Any]:
        bounds = zip(starts, stops, strict=True)
        return [orjson.loads(store.cat_file(url, start=start, end=stop)) for start, stop in bounds]

    def at_once() -> list[Any]:
        return [orjson.loads(line) for line in store.cat_ranges([url] * TASK, starts, stops)]

    if not task() == one_by_one() == at_once():
        raise RuntimeError(f"{url}: the task and single GETs give different records")
    yield most_row("requests of a task (index slice, data)", _requests(task), 2, "", other="1,000: one GET a record")
    seconds = best({"task": timed(task), "one by one": timed(one_by_one), "at once": timed(at_once)})
    work, note = Work("a task: two GETs", "records", TASK), " (index already in memory)"
    for peer in ("one by one", "at once"):
        name = f"one GET a record, {peer}:"
        yield speed_row(work, seconds["task"], name, seconds[peer], 10, note=note)


def _requests(task: Any) -> int:
    """Count the requests of s3fs, by its log."""
    calls: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: calls.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("s3fs")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        task()
    finally:
        log.setLevel(level)
        log.removeHandler(handler)
    return sum(call.startswith("CALL: ") for call in calls)
