"""The audit of one task: the published results are compared with recomputed ones, in every format of outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgerbeam import Drop, Reject, Route, Rows
from ledgerbeam.io import ShardEncoder
from ledgerbeam.io.formats.compressed import SeekableZstd
from ledgerbeam.io.formats.registry import format_named
from ledgerbeam.io.storage.stat import stat
from ledgerbeam.ledger import Output, Source, Task
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.model.identity import content_checksum
from ledgerbeam.ledger.selection import AuditAnswer, AuditRequest, PendingSource
from ledgerbeam.sources import FileSources, TaskLimits, Unreadable
from ledgerbeam.sources.kind import TaskReader
from ledgerbeam.transforms import MapRecords
from ledgerbeam.transforms.mapping.audit import AuditedWork, audit_task
from ledgerbeam.transforms.mapping.outcomes import NotRecomputedError
from tests.ledger.builders import leaf_of

RECORDS = 30
CHANGED: dict[str, Any] = {"function": lambda record: record}
"""What the function does in a test."""


def function(record: Any) -> Any:
    return CHANGED["function"](record)


def batched(records: list[Any]) -> list[Any]:
    return [CHANGED["function"](record) for record in records]


class Job:
    """A job over one file, of which each task is published by `publish` and audited by `audit`."""

    def __init__(self, folder: Path, to: str, *, encoder: ShardEncoder | None = None, records: int = RECORDS) -> None:
        path = folder / "a.jsonl"
        path.write_text("".join(json.dumps({"id": n, "text": f"text {n} " + "x" * n}) + "\n" for n in range(records)))
        found = stat(str(path))
        self.source = Source(str(path), found.size, found.version)
        self.output = folder / "out"
        self.output.mkdir()
        work = MapRecords(f"{__name__}:function", to)
        chosen = encoder or format_named(to)
        self.work = AuditedWork(work, chosen, FileSources(), TaskLimits(None, 10), str(self.output), {})
        self.outputs: list[Output] = []

    def publish(self, function: Any) -> Job:
        CHANGED["function"] = function
        cut = self.work.sources.kind_of(self.source).cut(self.source, self.work.limits)
        reader = TaskReader(self.work.sources)
        work: Any = self.work.function
        for task in cut.tasks():
            done = work(task.replace(records=reader.read(task)))
            if isinstance(done, Task):
                for route, records in done.records.datasets.items():
                    for file in self.work.encoder.encode(records):
                        name = f"{route}/" * bool(route) + f"a-{task.start:010d}{file.ending}"
                        path = self.output / name
                        path.parent.mkdir(exist_ok=True)
                        path.write_bytes(file.data)
                        checksum = content_checksum([file.data])
                        self.outputs.append(Output(name, len(file.data), checksum, file.records, task.start, 0, route))
        return self

    def audit(self, function: Any, **request: Any) -> AuditAnswer:
        CHANGED["function"] = function
        return audit_task(self.work, AuditRequest(PendingSource(self.source), True, tuple(self.outputs), **request))


def same(record: Any) -> Any:
    return record


def as_text(record: Any) -> Any:
    return record["text"]


def as_sample(record: Any) -> Any:
    return {"txt": record["text"]}


def as_nan(record: Any) -> Any:
    return {**record, "score": float("nan")}


FORMATS = [("jsonl", same), ("text", as_text), ("tar", as_sample), ("parquet", same), ("arrow", same)]


@pytest.mark.parametrize(("to", "function"), [*FORMATS, ("parquet", as_nan)])
@pytest.mark.parametrize("seconds", [None, 0.0, 1e-5, 10.0])
def test_the_same_results_are_no_difference(tmp_path: Path, to: str, function: Any, seconds: float | None) -> None:
    job = Job(tmp_path, to).publish(function)
    for newest in (False, True):
        answer = job.audit(function, newest=newest, seconds=seconds)
        assert answer.node is not None
        assert (answer.difference, answer.problem) == ("", "")


@pytest.mark.parametrize(("to", "function"), FORMATS)
def test_the_record_with_another_result_is_named_with_both(tmp_path: Path, to: str, function: Any) -> None:
    job = Job(tmp_path, to).publish(function)

    def other(record: Any) -> Any:
        return function({**record, "text": f"another {record['id']}"} if record["id"] == 24 else record)

    found = job.audit(other, newest=True).difference
    place, first, again, *_ = found.split("\n")
    assert place.startswith(f"{tmp_path}/out/a-0000000020.")
    assert place.endswith(f"{tmp_path}/a.jsonl, record 24")
    assert "text 24" in first
    assert "another 24" in again


@pytest.mark.parametrize("to", ["jsonl", "parquet", "arrow"])
def test_another_sign_of_zero_is_a_difference(tmp_path: Path, to: str) -> None:
    job = Job(tmp_path, to).publish(lambda record: {"id": record["id"], "zeros": [0.0]})
    assert "-0.0" in job.audit(lambda record: {"id": record["id"], "zeros": [-0.0]}).difference


def test_compressed_shards_are_compared(tmp_path: Path) -> None:
    job = Job(tmp_path, "jsonl", encoder=SeekableZstd(format_named("jsonl"))).publish(same)
    assert job.audit(same).difference == ""
    assert ", record 3\n" in job.audit(lambda record: {**record, "id": -1} if record["id"] == 3 else record).difference


@pytest.mark.parametrize("now", [None, [], "twice"])
def test_a_record_that_is_left_out_or_doubled_is_named(tmp_path: Path, now: Any) -> None:
    def other(record: Any) -> Any:
        if record["id"] != 14:
            return record
        return [record, record] if now == "twice" else now

    job = Job(tmp_path, "jsonl").publish(same)
    found = job.audit(other, newest=True, audited=frozenset({node_of(job, 2)})).difference
    assert ", record 14\n" in found
    assert ("\n  again: no result" in found) == (now != "twice")
    (tmp_path / "other").mkdir()
    kept = Job(tmp_path / "other", "jsonl").publish(other)
    found = kept.audit(same, audited=frozenset({node_of(kept, 0), node_of(kept, 2)})).difference
    assert ", record 14\n" in found


def node_of(job: Job, number: int) -> bytes:
    return job.work.sources.kind_of(job.source).cut(job.source, job.work.limits).tasks()[number].node


def test_a_record_that_takes_another_route_is_a_difference(tmp_path: Path) -> None:
    from ledgerbeam import Route

    job = Job(tmp_path, "jsonl").publish(lambda record: Route("even" if record["id"] % 2 == 0 else "odd", record))
    found = job.audit(lambda record: Route("even" if record["id"] % 2 == 0 or record["id"] == 5 else "odd", record))
    assert ", record 5\n" in found.difference


def test_a_task_without_outputs_is_audited(tmp_path: Path) -> None:
    job = Job(tmp_path, "jsonl").publish(lambda _: None)
    assert job.audit(lambda _: None).difference == ""
    assert ", record 9\n" in job.audit(lambda record: record if record["id"] == 9 else None).difference


def test_outputs_that_are_gone_are_compared_by_their_checksums(tmp_path: Path) -> None:
    job = Job(tmp_path, "jsonl").publish(same)
    for path in job.output.iterdir():
        path.unlink()
    assert job.audit(same).difference == ""
    assert "its bytes differ" in job.audit(lambda record: {**record, "id": 0}).difference


def test_a_function_that_raises_now_is_a_problem_and_no_difference(tmp_path: Path) -> None:
    def broken(record: Any) -> Any:
        raise OSError("no GPU")

    answer = Job(tmp_path, "jsonl").publish(same).audit(broken)
    assert answer.difference == ""
    assert "no GPU" in answer.problem


def test_each_finished_task_is_audited_once_and_no_other(tmp_path: Path) -> None:
    job = Job(tmp_path, "jsonl").publish(same)
    audited: frozenset[bytes] = frozenset()
    while (answer := job.audit(same, audited=audited)).node is not None:
        audited |= {answer.node}
    assert len(audited) == 3
    store = LmdbStore(str(tmp_path / "ledger"))
    store.open(create=True)
    store.register([job.source])
    store.commit([leaf_of(job.source, ((1, 3),))])
    (progress,) = store.progress([job.source.id])
    store.close()
    assert progress is not None
    pending = PendingSource(job.source, *progress)
    assert audit_task(job.work, AuditRequest(pending, False, tuple(job.outputs))).node == node_of(job, 1)


SOURCE = Source("/data/a.jsonl", 100, "1")


def fate(record: Any) -> Any:
    """Return what the record says of itself."""
    number = record["n"]
    match record["fate"]:
        case "drop":
            return Drop("by rule")
        case "none":
            return None
        case "reject":
            return Reject("bad", f"record {number}")
        case "raise":
            raise ValueError(number)
        case "two":
            return [{"n": number}, {"n": number, "again": True}]
        case "route":
            return [Route("other", {"n": number}), {"n": number}]
    return {"n": number, "text": record["fate"]}


def fates(records: list[Any]) -> list[Any]:
    return [fate(record) for record in records]


def even(batch: pa.RecordBatch) -> Any:
    return Rows(batch, drop={"odd": pa.array([n % 2 == 1 for n in batch["n"].to_pylist()])})


def of_whole_batch(records: list[Any]) -> list[Any]:
    return [{"n": record["n"], "of": len(records)} for record in records]


of_whole_batch.batch_invariant = False  # type: ignore[attr-defined]


def never() -> bool:
    return False


def task_of(records: Any) -> Task:
    return Task(SOURCE, 0, len(records), ((0, 1),), records, raw=list)


def datasets(found: Any) -> dict[str, Any]:
    return {route: list(records) for route, records in found.items()}


def mapper(function: str, to: str = "jsonl", **options: Any) -> MapRecords:
    return MapRecords(f"{__name__}:{function}", to, **options)


PACKED = ["keep", "drop", "none", "two", "route"]
REJECTED = [*PACKED, "reject", "raise"]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from(PACKED), max_size=40), st.none() | st.integers(1, 7))
def test_the_results_are_those_of_the_first_run(found: list[str], batch: int | None) -> None:
    records = [{"n": number, "fate": one} for number, one in enumerate(found)]
    work = mapper("fate" if batch is None else "fates", batch=batch)
    first: Any = work(task_of(records))
    again = work.recomputed(task_of(records), never)
    assert (again.first, again.records) == (0, len(records))
    assert datasets(again.datasets) == (datasets(first.records.datasets) if isinstance(first, Task) else {})
    for route, rows in datasets(again.datasets).items():
        assert [row["n"] for row in rows] == list(again.origins[route])


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from(REJECTED), max_size=30), st.none() | st.integers(1, 7), st.integers(1, 10))
def test_the_last_records_are_recomputed_until_it_is_late(found: list[str], batch: int | None, asked: int) -> None:
    records = [{"n": number, "fate": one} for number, one in enumerate(found)]
    calls = 0

    def is_late() -> bool:
        nonlocal calls
        calls += 1
        return calls >= asked

    work = mapper("fate" if batch is None else "fates", batch=batch, on_error="reject")
    whole = work.recomputed(task_of(records), never)
    last = work.recomputed(task_of(records), is_late)
    assert last.records == whole.records == len(records)
    for route, rows in datasets(whole.datasets).items():
        tail = [row for row in rows if row["n"] >= last.first]
        assert datasets(last.datasets).get(route, []) == tail
    if batch is None:
        assert last.first == max(0, len(records) - asked)


def test_records_that_cannot_be_decoded_have_no_result() -> None:
    records = [{"n": 0, "fate": "keep"}, Unreadable("no JSON"), {"n": 2, "fate": "keep"}]
    for batch in (None, 2):
        work = mapper("fate" if batch is None else "fates", batch=batch, on_error="reject")
        assert list(work.recomputed(task_of(records), never).origins[""]) == [0, 2]


@pytest.mark.parametrize("batch", [None, 3])
def test_a_function_that_raises_now_is_told_with_its_record(batch: int | None) -> None:
    records = [{"n": number, "fate": "raise" if number == 4 else "keep"} for number in range(6)]
    work = mapper("fate" if batch is None else "fates", batch=batch)
    with pytest.raises(NotRecomputedError, match=r"/data/a\.jsonl, record \d.*ValueError: 4"):
        work.recomputed(task_of(records), never)


def test_batches_are_those_of_the_first_run_where_results_depend_on_them() -> None:
    records = [{"n": number} for number in range(10)]
    work = mapper("of_whole_batch", batch=4)
    first: Any = work(task_of(records))
    assert datasets(work.recomputed(task_of(records), never).datasets) == datasets(first.records.datasets)


@pytest.mark.parametrize("size", [None, 1, 4])
def test_rows_of_tables_are_recomputed(size: int | None) -> None:
    table = pa.table({"n": list(range(11))})
    work = mapper("even", form="arrow", batch=size)
    first: Any = work(task_of(table))
    again = work.recomputed(task_of(table), never)
    assert datasets(again.datasets) == datasets(first.records.datasets)
    assert (again.first, again.records) == (0, 11)


def test_what_is_observed_again_does_not_count() -> None:
    from ledgerbeam import stats

    with stats.collecting() as collected:
        mapper("observing").recomputed(task_of([{"n": 1}]), never)
    assert not collected.statistics()


def observing(record: Any) -> Any:
    from ledgerbeam import stats

    stats.count("seen")
    return record
