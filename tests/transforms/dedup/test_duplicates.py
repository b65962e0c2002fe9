"""Which records of a key go, and what is left of a task without them."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ledgerbeam import stats
from ledgerbeam.io.exchange.slices import Partition
from ledgerbeam.io.lines.jsonl import HeldLines
from ledgerbeam.io.tar.sample import Sample
from ledgerbeam.ledger import FailedTask, NoneTask, Source, Task
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.sources.forms import PlacedPart, PlacedRecords
from ledgerbeam.sources.listed import RemainingRecords, file_key
from ledgerbeam.transforms.chain.process import ProcessTask
from ledgerbeam.transforms.dedup.duplicates import BY_SOURCE, GROUP_SIZE, FindDuplicates, KeepRemaining
from ledgerbeam.transforms.exchange.keys import RecordKeys
from ledgerbeam.transforms.exchange.scatter import ScatteredRecords
from tests.pipelines.exchanges.stages import Stages, by_file
from tests.test_statistics import value_of

TASK = Task(Source("/in/a.jsonl", 10, "1"), 0, 3, ((0, 1),))


def remaining(values: list[Any], dropped: int = 0, lines: list[bytes] | None = None) -> Task:
    numbers = np.arange(len(values if lines is None else lines), dtype=np.uint64)
    part = PlacedPart("/in/a.jsonl", numbers, None if lines else values, HeldLines.joined(lines) if lines else None)
    return TASK.replace(records=RemainingRecords(PlacedRecords([part]), dropped))


def test_duplicates_are_rows_in_order_or_places_by_file(tmp_path: Path) -> None:
    stages = Stages(tmp_path, RecordKeys("digest", ("k",)), Partition(1).cuts(), 10**6, within_keys=False)
    urls = by_file(tmp_path / "in", {"a": [{"k": 1}, {"k": 2}, {"k": 1}], "b": [{"k": 2}, {"k": 1}, {"k": 3}]})
    stages.scatter(urls)
    (rows,) = stages.gather(FindDuplicates(as_rows=True))
    (places,) = stages.gather(FindDuplicates(as_rows=False))
    expected = [(urls[0], 2), (urls[1], 0), (urls[1], 1)]
    assert rows.records == [{"source": url, "record": number} for url, number in expected]
    assert isinstance(places.records, ScatteredRecords)
    found = list(zip(places.records.keys, places.records.numbers.tolist(), strict=True))
    assert found == sorted((file_key(url), number) for url, number in expected)
    assert places.records.numbers.dtype == np.uint64
    assert places.records.payloads == [b""] * 3


def test_without_duplicates_nothing_is_written(tmp_path: Path) -> None:
    stages = Stages(tmp_path, RecordKeys("digest", ("k",)), Partition(1).cuts(), 10**6, within_keys=False)
    stages.scatter(by_file(tmp_path / "in", {"a": [{"k": 1}, {"k": 2}]}))
    for as_rows in (True, False):
        (done,) = stages.gather(FindDuplicates(as_rows))
        assert isinstance(done, NoneTask)


SCORED = {"a": ((1, 3), (2, 2), (1, 3), (4, 0), (5, 1)), "b": ((2, 2), (1, 1), (3, 9), (1, 0), (1, 1), (2, 1), (5, 1))}
ROWS = {name: [{"k": k, "s": s} for k, s in some] for name, some in SCORED.items()}


@pytest.mark.parametrize("scored", [False, True])
def test_the_best_of_a_key_stays_or_else_the_first_and_what_goes_is_counted(tmp_path: Path, scored: bool) -> None:
    score = RecordKeys("key", ("s",)) if scored else None
    stages = Stages(tmp_path, RecordKeys("digest", ("k",)), Partition(1).cuts(), 10**6, within_keys=False, score=score)
    stages.scatter(by_file(tmp_path / "in", ROWS))
    (task,) = stages.tasks()
    work = FindDuplicates(as_rows=True)
    assert ProcessTask(work).takes_blocks
    with stats.collecting() as collected:
        done = work(task)
    groups: dict[int, list[tuple[int, str, int]]] = {}
    for name, rows in ROWS.items():
        for number, row in enumerate(rows):
            groups.setdefault(row["k"], []).append((row["s"] if scored else 0, f"{tmp_path}/in/{name}.jsonl", number))
    gone = sorted(place for group in groups.values() for _, *place in sorted(group)[1:])
    assert isinstance(done, Task)
    assert [[row["source"], row["record"]] for row in done.records] == gone
    found = value_of(collected, GROUP_SIZE)
    assert (found["count"], found["min"], found["max"]) == (3, 2, 5)
    assert found["mean"] == pytest.approx(10 / 3)
    by_source = {one["value"]: one["estimate"] for one in value_of(collected, BY_SOURCE)}
    assert by_source == Counter(url for url, _ in gone)


@pytest.mark.parametrize("gone", [False, True])
def test_a_run_file_that_cannot_be_read_fails_the_task(tmp_path: Path, gone: bool) -> None:
    stages = Stages(tmp_path, RecordKeys("digest", ("k",)), Partition(1).cuts(), 10**6, within_keys=False)
    stages.scatter(by_file(tmp_path / "in", {"a": [{"k": 1}, {"k": 1}]}))
    (task,) = stages.tasks()
    path = tmp_path / stages.runs[0].name
    if gone:
        path.unlink()
    else:
        path.write_bytes(bytes(len(path.read_bytes())))
    done = FindDuplicates(as_rows=True)(task)
    assert isinstance(done, FailedTask)
    assert (done.task, done.reason) == (task, "SourceNotFoundError" if gone else "RunFileError")
    assert str(path) in done.error


@pytest.mark.parametrize("lines", [None, [b'{"a": 1}', b'{"a":2}']])
def test_what_is_left_is_written_and_counted(lines: list[bytes] | None) -> None:
    task = remaining([{"a": 1}, {"a": 2}], 3, lines)
    done = KeepRemaining("json", "jsonl")(task)
    assert isinstance(done, Task)
    assert done.records.counts == RecordCounts(5, 2, {"duplicate": 3}, {}, {"": 2})
    assert list(done.records.datasets) == [""]
    found = done.records.datasets[""]
    assert list(found) == [{"a": 1}, {"a": 2}]
    assert found.data == (b"\n".join(lines or [b'{"a":1}', b'{"a":2}']) + b"\n")
    whole = KeepRemaining("json", "jsonl")(remaining([{"a": 1}], 0))
    assert isinstance(whole, Task)
    assert whole.records.counts == RecordCounts(1, 1, {}, {}, {"": 1})


def test_of_what_is_dropped_as_a_whole_the_counts_stay() -> None:
    task = remaining([], 4)
    assert KeepRemaining("json", "jsonl")(task) == NoneTask(task, counts=RecordCounts(4, 0, {"duplicate": 4}))
    task = remaining([], 0)
    assert KeepRemaining("json", "jsonl")(task) == NoneTask(task, counts=RecordCounts())


def test_records_that_are_no_lines_are_converted() -> None:
    task = remaining([Sample("k", {"txt": b"a"})], 2)
    done = KeepRemaining("json", "jsonl")(task)
    assert isinstance(done, Task), done
    assert done.records.counts == RecordCounts(3, 1, {"duplicate": 2}, {}, {"": 1})
    kept = KeepRemaining("sample", "tar")(task)
    assert isinstance(kept, Task)
    assert list(kept.records.datasets[""]) == [Sample("k", {"txt": b"a"})]
    assert kept.records.counts == done.records.counts


def test_a_record_that_cannot_be_written_fails_the_task() -> None:
    task = remaining([{"a": math.nan}])
    done = KeepRemaining("json", "jsonl")(task)
    assert isinstance(done, FailedTask)
    assert done.task.node == task.node
    broken = remaining([], 0, [b"{"])
    done = KeepRemaining("json", "parquet")(broken)
    assert isinstance(done, FailedTask)
    assert done.task == broken
    assert "/in/a.jsonl" in done.error
