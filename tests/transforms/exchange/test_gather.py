"""The transforms of an exchange as they are built: what they are unless told otherwise, and what they are given."""

from __future__ import annotations

import inspect
import json
import pickle
from collections.abc import Sequence
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ledgerbeam.errors import FunctionError, UnsupportedShapeError
from ledgerbeam.io import JsonlFormat
from ledgerbeam.io.columns.format import ParquetFormat
from ledgerbeam.io.exchange import merge
from ledgerbeam.io.exchange.merge import Bound
from ledgerbeam.io.exchange.order import KeyOrder
from ledgerbeam.ledger import FailedTask, NoneTask, Source, Task
from ledgerbeam.results import Drop, Reject
from ledgerbeam.sources.buckets import GatheredRecords
from ledgerbeam.transforms import Gather, GroupRecords, KeepRecords, MatchSources, Scatter
from ledgerbeam.transforms.beam_yaml import ReadBuckets
from ledgerbeam.transforms.chain.process import ProcessTask
from ledgerbeam.transforms.dedup.duplicates import FindClusters, FindDuplicates, PairRecords
from ledgerbeam.transforms.exchange.gather import as_part, lines_of
from ledgerbeam.transforms.exchange.join import JoinRecords
from ledgerbeam.transforms.exchange.keys import RecordKeys
from ledgerbeam.transforms.exchange.scatter import ScatterResults
from tests.memory import peak_of
from tests.pipelines.exchanges.stages import Stages, by_file, spoil


def group(key: Any, records: Any) -> Any:
    return {"key": key, "records": len(list(records))}


def as_member(key: Any, records: Any) -> Any:
    return {"txt": b"%d" % len(list(records))}


def taking_one(key: Any, records: Any) -> Any:
    return Drop("odd") if next(records)["n"] % 2 else {"key": key}


class Counting:
    """A function of groups that knows the how-manieth object of its class it is."""

    built = 0

    def __init__(self) -> None:
        Counting.built += 1

    def __call__(self, key: Any, records: Any) -> Any:
        return {"key": key, "built": Counting.built, "records": len(list(records))}


def exchange(folder: Path, rows: Sequence[Any], part_bytes: int = 10**6) -> Stages:
    """Return an exchange of one file by the field k, in one bucket."""
    stages = Stages(folder, RecordKeys("key", ("k",)), [], part_bytes, task_records=None)
    stages.scatter(by_file(folder / "in", {"a": rows}))
    return stages


def written(done: Any) -> list[Any]:
    assert isinstance(done, Task), done
    return [json.loads(line) for line in done.records.datasets[""].data.splitlines()]


def test_no_function_of_a_bucket_is_given_a_list_of_all_records() -> None:
    """It takes records as they are read, and merges them as it goes."""
    made: list[Any] = [KeepRecords("jsonl"), GroupRecords(group, "jsonl", by="id"), PairRecords()]
    made += [kind.__new__(kind) for kind in (FindDuplicates, FindClusters, JoinRecords, ScatterResults)]
    assert [function for function in made if not ProcessTask(function).takes_blocks] == []


def test_keys_are_whole_and_run_files_go_unless_told_otherwise() -> None:
    gather = Gather("runs", ledger="scattered")
    assert (gather.whole_keys, gather.keep_runs) == (True, False)
    plain = {name: value for name, value in vars(MatchSources()).items() if not name.startswith("_")}
    assert plain.items() <= vars(gather).items(), "it lists nothing else"
    from_yaml = inspect.signature(ReadBuckets).parameters
    of_python = inspect.signature(Gather).parameters
    assert {name: one.default for name, one in from_yaml.items()} == {
        name: one.default for name, one in of_python.items()
    }


def test_keys_ascend_unless_told_otherwise() -> None:
    scatter = Scatter("runs", by="id")
    assert (scatter.order, scatter.scheme) == (KeyOrder(), "key")
    assert KeyOrder() == KeyOrder(descending=False, nulls="last")


def test_lines_are_joined_without_a_list_of_them() -> None:
    line = b'{"x":"' + b"x" * 1000 + b'"}'
    lines, peak = peak_of(lambda: lines_of(line[:] + b"" for _ in range(10_000)))
    assert lines is not None
    assert lines.data == (line + b"\n") * 10_000
    assert lines.offsets.tolist() == [place * (len(line) + 1) for place in range(10_001)]
    assert peak < 1.4 * len(lines.data)  # it grows by an eighth
    assert lines_of(iter([])) is not None
    assert lines_of([line] * 5000 + [b"\1NaN"]) is None


def test_lines_are_lines_however_many_are_joined_in_one_go() -> None:
    for count in (1, 1023, 1024, 1025, 2048, 2049):
        data = [b"%d" % number for number in range(count)]
        lines = lines_of(data)
        assert lines is not None
        assert (len(lines), lines.data) == (count, b"".join(line + b"\n" for line in data))
        assert lines_of([*data, b"\1NaN"]) is None


ROWS = [{"k": n % 3, "n": n} for n in range(9)]
IN_ORDER = sorted(ROWS, key=lambda row: row["k"])


def test_kept_records_are_those_of_the_part_in_each_format(tmp_path: Path) -> None:
    found: dict[str, list[Any]] = {"jsonl": [], "parquet": [], "tar": []}
    tasks = list(exchange(tmp_path, ROWS, part_bytes=50).tasks())
    assert len(tasks) > 2
    for task in tasks:
        for output, records in found.items():
            done = KeepRecords(output)(task)
            assert isinstance(done, Task)
            assert (done.source, done.start, done.stop, done.node) == (task.source, task.start, task.stop, task.node)
            if output == "jsonl":
                records += [json.loads(line) for line in done.records.data.splitlines()]
            else:
                records += list(done.records.datasets[""])
    assert found["jsonl"] == found["parquet"] == IN_ORDER
    assert [json.loads(sample["json"]) for sample in found["tar"]] == IN_ORDER
    assert len({sample.key for sample in found["tar"]}) == len(ROWS)
    assert found["tar"][0].key == "part-000000-000000-000000000"
    assert found["tar"][-1].key.startswith(f"part-000000-{len(tasks) - 1:06d}-")


def test_a_format_is_known_by_its_name() -> None:
    assert KeepRecords(JsonlFormat()).identity() == KeepRecords("jsonl").identity()
    assert KeepRecords("tar").identity() != KeepRecords("jsonl").identity()
    assert GroupRecords(group, JsonlFormat(), by="k").output_format == "jsonl"
    named, other = (GroupRecords(f"{__name__}:{name}", "jsonl", by="k").identity() for name in ("group", "as_member"))
    assert named["function"] == f"{__name__}:group"
    assert named != other


def test_a_record_that_cannot_be_written_fails_the_task_of_its_bucket(tmp_path: Path) -> None:
    (task,) = exchange(tmp_path, [{"k": 1, "__key__": 5}]).tasks()
    done = KeepRecords("tar")(task)
    assert isinstance(done, FailedTask)
    assert done.task == task
    assert "part-000000-000000[0:0], its record 0: expected a string under '__key__'" in done.error


def test_a_part_without_records_is_kept_as_nothing(tmp_path: Path) -> None:
    (task,) = exchange(tmp_path, ROWS).tasks()
    behind = task.replace(records=GatheredRecords(task.records._bucket, Bound(b"\xff"), None))
    for output in ("jsonl", "tar"):
        done = KeepRecords(output)(behind)
        assert isinstance(done, NoneTask)
        assert done.task == behind


@pytest.mark.parametrize("kind", ["damaged", "gone"])
@pytest.mark.parametrize("work", [KeepRecords("jsonl"), KeepRecords("tar"), GroupRecords(group, "jsonl", by="k")])
def test_a_run_file_that_cannot_be_read_fails_the_task(tmp_path: Path, work: Any, kind: str) -> None:
    stages = exchange(tmp_path, ROWS)
    (task,) = stages.tasks()
    run = tmp_path / stages.runs[0].name
    spoil(run, kind)
    done = work(task)
    assert isinstance(done, FailedTask)
    assert (done.task, done.reason) == (task, {"damaged": "RunFileError", "gone": "SourceNotFoundError"}[kind])
    assert str(run) in done.error


@pytest.mark.parametrize("kind", ["damaged", "gone"])
def test_a_run_file_that_cannot_be_read_amid_a_group_is_no_fault_of_the_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(merge, "HELD_BYTES", 1)
    stages = exchange(tmp_path, [{"k": "hot", "n": n} for n in range(100)])
    (task,) = stages.tasks()
    run = tmp_path / stages.runs[0].name
    seen: list[int] = []

    def spoil(key: Any, records: Any) -> Any:
        for record in records:
            seen.append(record["n"])
            if len(seen) == 1 and kind == "gone":
                run.unlink()
            elif len(seen) == 1:
                run.write_bytes(bytes(run.stat().st_size))
        return {"key": key}

    done = GroupRecords(spoil, "jsonl", by="k")(task)
    assert 0 < len(seen) < 100
    assert isinstance(done, FailedTask)
    assert (done.task, done.reason) == (task, {"damaged": "RunFileError", "gone": "SourceNotFoundError"}[kind])
    assert str(run) in done.error
    assert "hot" not in done.error
    assert "spoil" not in done.error


def test_records_that_are_not_those_of_a_bucket_are_refused() -> None:
    task = Task(Source("/in/a.jsonl", 1, "1"), 0, 1).replace(records=[{"k": 1}])
    for work in (KeepRecords("jsonl"), GroupRecords(group, "jsonl", by="k")):
        with pytest.raises(UnsupportedShapeError, match=f"^{type(work).__name__}.* received a list for /in/a.jsonl"):
            work(task)


def test_groups_are_made_of_any_part_and_their_results_belong_to_it(tmp_path: Path) -> None:
    stages = replace(exchange(tmp_path, ROWS, part_bytes=50), within_keys=False)
    tasks = list(stages.tasks())
    done = [GroupRecords(group, "jsonl", by="k")(task) for task in tasks]
    assert [row for one in done for row in written(one)] == [{"key": key, "records": 3} for key in range(3)]
    for one, task in zip(done, tasks, strict=True):
        assert isinstance(one, Task)
        assert (one.source, one.start, one.stop) == (task.source, task.start, task.stop)
    by_member: Any = GroupRecords(as_member, "tar", by="k")
    made = [by_member(task).records.datasets[""] for task in tasks]
    samples = [sample for some in made for sample in some]
    assert [dict(sample) for sample in samples] == [{"txt": b"3"}] * 3
    assert len({sample.key for sample in samples}) == 3
    assert all(sample.key.startswith(f"part-000000-{n:06d}-") for n, some in enumerate(made) for sample in some)


def test_records_that_a_function_does_not_take_are_counted_all_the_same(tmp_path: Path) -> None:
    rows = [{"k": k, "n": n} for k, n in (("a", 0), ("a", 1), ("b", 3), ("b", 0), ("b", 0), ("c", 5), ("d", 2))]
    (task,) = exchange(tmp_path, rows).tasks()
    done = GroupRecords(taking_one, "jsonl", by="k")(task)
    assert isinstance(done, Task)
    assert written(done) == [{"key": "a"}, {"key": "d"}]
    counts = done.records.counts
    assert (counts.read, counts.kept, counts.dropped) == (7, 3, {"odd": 4})


def test_of_columns_too_the_key_is_named_whose_row_does_not_fit(tmp_path: Path) -> None:
    (task,) = exchange(tmp_path, [{"k": k} for k in range(3)]).tasks()
    columns = ParquetFormat(schema=pa.schema([("x", pa.int64())]))

    def give(key: Any, records: Any) -> Any:
        return {"x": "a" if key == 1 else len(list(records))}

    done = GroupRecords(give, columns, by="k")(task)
    assert isinstance(done, FailedTask)
    assert (done.task, done.reason) == (task, "RecordError")
    assert "the key 1: " in done.error


@pytest.mark.parametrize(
    ("told_value", "reason", "said"),
    [
        (Reject("bad", "why"), "bad", "rejected it: bad: why"),
        ({"x": nan}, "RecordError", "the key 1: "),
        (7, "FunctionError", "the key 1: "),
    ],
)
def test_a_group_that_comes_to_nothing_that_can_be_written_fails_the_task(
    tmp_path: Path, told_value: Any, reason: str, said: str
) -> None:
    (task,) = exchange(tmp_path, [{"k": k} for k in range(3)]).tasks()

    def give(key: Any, records: Any) -> Any:
        return told_value if key == 1 else list(records)

    done = GroupRecords(give, "jsonl", by="k")(task)
    assert isinstance(done, FailedTask)
    assert (done.task, done.reason) == (task, reason)
    assert said in done.error
    assert "raised FunctionError" not in done.error


def test_a_class_of_groups_is_built_once_in_a_process(tmp_path: Path) -> None:
    (task,) = exchange(tmp_path, ROWS).tasks()
    work = GroupRecords(Counting, "jsonl", by=RecordKeys("key", ("k",)))
    built = Counting.built
    for _ in range(2):
        assert {row["built"] for row in written(work(task))} == {built + 1}
    again = pickle.loads(pickle.dumps(work))
    assert {row["built"] for row in written(again(task))} == {built + 1}


def test_a_key_function_that_there_is_not_is_found_before_any_group() -> None:
    with pytest.raises(FunctionError, match="none_such"):
        GroupRecords(group, "jsonl", by=f"{__name__}:none_such").set_up()


def test_parts_of_a_bucket_have_names_of_their_own_however_many_they_are() -> None:
    bucket = Source("buckets://0", 1, "1")
    urls = [as_part(Task(bucket, number, number + 1)).source.url for number in (0, 1, 1000, 10**6)]
    assert len(set(urls)) == 4
