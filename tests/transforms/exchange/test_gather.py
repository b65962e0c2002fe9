"""The transforms of an exchange as they are built: what they are unless told otherwise, and what they are given."""

from __future__ import annotations

import json
import pickle
import tempfile
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import nan
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgerbeam import Drop, Reject, Route
from ledgerbeam.errors import FunctionError, UnsupportedShapeError
from ledgerbeam.io import JsonlFormat
from ledgerbeam.io.columns.format import ParquetFormat
from ledgerbeam.io.exchange import merge
from ledgerbeam.io.exchange.merge import Bound
from ledgerbeam.io.exchange.order import KeyOrder
from ledgerbeam.io.exchange.slices import NO_MERGES, Merges, Partition
from ledgerbeam.io.lines.rows import ByteRows
from ledgerbeam.ledger import FailedTask, NoneTask, Source, Task
from ledgerbeam.sources.buckets import GatheredRecords
from ledgerbeam.transforms import GroupRecords, KeepRecords, ProcessTask
from ledgerbeam.transforms.dedup.duplicates import FindClusters, FindDuplicates, PairRecords
from ledgerbeam.transforms.exchange.gather import MergeRuns, as_part, lines_of
from ledgerbeam.transforms.exchange.join import JoinRecords
from ledgerbeam.transforms.exchange.keys import RecordKeys
from ledgerbeam.transforms.exchange.scatter import ScatterResults
from tests.memory import peak_of
from tests.pipelines.exchanges.stages import Stages, by_file, spoil


def group(key: Any, records: Any) -> Any:
    return {"key": key, "records": len(list(records))}


def as_member(key: Any, records: Any) -> Any:
    return {"txt": b"%d" % len(list(records))}


class Counting:
    """A function of groups that knows the how-manieth object of its class it is."""

    built = 0

    def __init__(self) -> None:
        Counting.built += 1

    def __call__(self, key: Any, records: Any) -> Any:
        return {"key": key, "built": Counting.built, "records": len(list(records))}


def exchange(folder: Path, rows: Sequence[Any], part_bytes: int = 10**6) -> Stages:
    """Return an exchange of one file by the field k, in one bucket."""
    folder.mkdir(exist_ok=True)
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


def test_lines_are_joined_without_a_list_of_them() -> None:
    line = b'{"x":"' + b"x" * 1000 + b'"}'
    for count, most in ((1, 1.1), (20, 1.4)):  # of several parts it grows by an eighth
        parts = [ByteRows.of([line] * (10_000 // count))] * count
        lines, peak = peak_of(partial(lines_of, parts))
        assert lines is not None
        assert lines.data == (line + b"\n") * 10_000
        assert lines.offsets.tolist() == [place * (len(line) + 1) for place in range(10_001)]
        assert peak < most * len(lines.data)
    assert lines_of([[line] * 5000 + [b"\1NaN"]]) is None


def test_lines_are_lines_however_many_parts_they_come_in() -> None:
    for counts in ([], [1], [3, 0, 2], [1, 1025, 2048]):
        data = [[b"%d" % number for number in range(count)] for count in counts]
        lines = lines_of(data)
        assert lines is not None
        assert (len(lines), lines.data) == (sum(counts), b"".join(line + b"\n" for part in data for line in part))
        assert lines_of([*data, [b"\1NaN"]]) is None


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
        (KeyError("no"), "KeyError", "the key 1: raised KeyError: 'no'"),
        (7, "FunctionError", "the key 1: "),
    ],
)
def test_a_group_that_comes_to_nothing_that_can_be_written_fails_the_task(
    tmp_path: Path, told_value: Any, reason: str, said: str
) -> None:
    (task,) = exchange(tmp_path, [{"k": k} for k in range(3)]).tasks()

    def give(key: Any, records: Any) -> Any:
        if key == 1 and isinstance(told_value, Exception):
            raise told_value
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


BY_K = RecordKeys("key", ("k",))
CUTS = (1, 2, 3, 5, 6, 7, 8, 9)
FILE = st.lists(st.integers(0, 6), max_size=9)
FILES = st.lists(FILE, min_size=1, max_size=9)


def scattered(folder: Path, files: Sequence[Sequence[int]], merges: Merges, pack: int | None, sides: int = 1) -> Stages:
    """Return an exchange of files with rows of these keys, of two folders if there are two sides."""
    folder.mkdir(exist_ok=True)
    cuts = [KeyOrder().encode(key) for key in CUTS]
    stages = Stages(folder, BY_K, cuts, 300, merges=merges)
    for side in range(sides):
        named = {f"{side}{n}": [{"k": k, "n": n} for k in keys] for n, keys in enumerate(files) if n % sides == side}
        stages.scatter(by_file(folder / "in", named), pack_bytes=pack, folder=f"{side}/")
    return stages


def placed(stages: Stages) -> list[Any]:
    """Return all records in the order of an exchange, with their places."""
    return [
        (*task.records.place(run, number), payload, task.records._bucket.runs[run].side)
        for task in stages.tasks()
        for part in task.records.merged()
        for run, number, payload in zip(part.runs, part.numbers, part.payloads, strict=True)
    ]


@pytest.mark.slow
@given(
    files=FILES,
    merges=st.builds(Merges, st.integers(1, 3), st.integers(2, 4)),
    pack=st.sampled_from([None, 40]),
    sides=st.integers(1, 2),
)
def test_records_keep_order_and_place_however_often_they_are_merged(
    files: Sequence[Sequence[int]], merges: Merges, pack: int | None, sides: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        one, several = (
            placed(scattered(Path(folder) / name, files, how, pack, sides))
            for name, how in (("1", NO_MERGES), ("2", merges))
        )
        assert [(url.replace(f"{folder}/2/", f"{folder}/1/"), *rest) for url, *rest in several] == one
        assert len(one) == sum(map(len, files))


def test_a_bucket_is_read_from_fewer_run_files_behind_a_merge(tmp_path: Path) -> None:
    files = [[0, 1, 2, 3, 4, 5, 6]] * 24
    read = []
    for number, merges in enumerate((NO_MERGES, Merges(1, 4), Merges(2, 4))):
        stages = scattered(tmp_path / str(number), files, merges, None)
        read.append(max(len(task.records._bucket.runs) for task in stages.tasks()))
    assert read[0] == 48  # two tasks each
    assert read[0] >= 3 * read[1] >= 6 * read[2]


@pytest.mark.parametrize("merges", [Merges(1, 4), Merges(2, 3), Merges(2, 2), Merges(3, 2)])
def test_merged_records_lie_in_the_order_of_all_of_them(tmp_path: Path, merges: Merges) -> None:
    files = [[6, 0, 3], [1, 1, 2, 5], [], [4, 3, 2, 1, 0]]
    stages = scattered(tmp_path, files, merges, None)
    found = [record for task in stages.tasks() for record in task.records.listed()]
    assert found == sorted(({"k": k, "n": n} for n, keys in enumerate(files) for k in keys), key=itemgetter("k"))
    assert len(list(stages.tasks())) > 1


@pytest.mark.parametrize("merges", [Merges(1, 4), Merges(2, 2), Merges(3, 2)])
def test_merged_records_lie_in_the_buckets_of_their_keys(tmp_path: Path, merges: Merges) -> None:
    for task in scattered(tmp_path, [[*range(10)], [9, 1, 4]], merges, None).tasks():
        buckets = {bisect_right(CUTS, record["k"]) for record in task.records.listed()}
        assert buckets == {task.records.bucket}


def test_a_run_file_that_is_gone_fails_the_task_and_nothing_is_no_run_file(tmp_path: Path) -> None:
    stages = scattered(tmp_path, [[0] * 9], NO_MERGES, None)
    (task,) = stages.tasks()
    merge = MergeRuns(stages.partition, 0)
    assert ProcessTask(merge).takes_blocks, "it merges records as it goes"
    done = merge(task)
    assert isinstance(done, Task)
    assert len(done.records) == 9
    behind = task.replace(records=GatheredRecords(task.records._bucket, Bound(b"\xff"), None))
    assert merge(behind) == NoneTask(behind)
    next(iter(tmp_path.glob("0/*.run"))).unlink()
    done = merge(task)
    assert isinstance(done, FailedTask)
    assert (done.task, done.reason) == (task, "SourceNotFoundError")


def test_damage_fails_the_task_with_the_name_of_the_run_file(tmp_path: Path) -> None:
    stages = scattered(tmp_path, [[0] * 9, [0] * 9], Merges(1, 2), None)
    assert len(list(stages.tasks())) > 0
    path = next(iter(sorted(tmp_path.glob("0/*.run"))))
    data = bytearray(path.read_bytes())
    data[130] ^= 1
    path.write_bytes(data)
    with pytest.raises(AssertionError, match=rf"FailedTask.*{path}: .*; delete this file and run the same command"):
        list(stages.tasks())


def test_records_of_another_task_are_refused() -> None:
    task = Task(Source("s", 1, "v"), 0, 1, ((0, 1),)).replace(records=[1])
    with pytest.raises(UnsupportedShapeError, match="MergeRuns received a list"):
        MergeRuns(Partition(1), 1)(task)
    assert not isinstance(task, FailedTask)


KEY = st.none() | st.integers(0, 3) | st.sampled_from([1.0, True, "a", "b"])


def listed(key: Any, records: Iterator[dict[str, Any]]) -> dict[str, Any]:
    return {"key": key, "numbers": [record["n"] for record in records]}


def first_only(key: Any, records: Iterator[dict[str, Any]]) -> Any:
    record = next(records)
    if key == 2:
        return Drop("two")
    return Route("odd", record) if record["n"] % 2 else [record, {"again": record["n"]}]


def by_key(rows: list[dict[str, Any]]) -> dict[Any, list[int]]:
    """Return what plain Python groups: true is another key than 1, 1.0 is none."""
    found = defaultdict(list)
    for row in rows:
        found[isinstance(row["k"], bool), row["k"]].append(row["n"])
    return dict(found)


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.lists(KEY, max_size=20), min_size=1, max_size=3), st.integers(1, 3), st.sampled_from([1, 150, 10**6])
)
def test_each_key_comes_once_with_its_records_in_order(keys: list[list[Any]], buckets: int, part_bytes: int) -> None:
    files = {
        f"f{file}": [{"k": key, "n": 100 * file + n} for n, key in enumerate(some)] for file, some in enumerate(keys)
    }
    record_keys = RecordKeys("hash", ("k",))
    with tempfile.TemporaryDirectory() as folder:
        stages = Stages(Path(folder), record_keys, Partition(buckets).cuts(), part_bytes, within_keys=False)
        stages.scatter(by_file(Path(folder) / "in", files))
        done = stages.gather(GroupRecords(listed, "jsonl", by=record_keys))
    groups = [row for task in done for row in written(task)]
    expected = by_key([row for rows in files.values() for row in rows])
    assert {(isinstance(group["key"], bool), group["key"]): group["numbers"] for group in groups} == expected
    assert len(groups) == len(expected)
    for task in done:
        counts = task.records.counts
        assert counts.read == counts.kept
    assert sum(task.records.counts.read for task in done) == sum(map(len, keys))


def test_results_are_those_of_a_function_of_map_and_counts_are_of_records(tmp_path: Path) -> None:
    rows = [{"k": n % 3, "n": n} for n in range(9)]
    (done,) = exchange(tmp_path, rows).gather(GroupRecords(first_only, "jsonl", by="k"))
    results = done.records
    found = {route: [json.loads(line) for line in data.data.splitlines()] for route, data in results.datasets.items()}
    assert found == {"": [{"k": 0, "n": 0}, {"again": 0}], "odd": [{"k": 1, "n": 1}]}
    assert results.counts.as_dict() == {
        "read": 9,
        "kept": 6,
        "dropped": {"two": 3},
        "rejected": {},
        "written": {"": 2, "odd": 1},
    }


def test_a_bare_value_for_records_that_are_objects_fails_its_task(tmp_path: Path) -> None:
    def how_many(key: Any, records: Any) -> Any:
        return sum(1 for _ in records)

    work = GroupRecords(how_many, "jsonl", by="k")
    (done,) = exchange(tmp_path, [{"k": "x", "n": 5}]).gather(work)
    assert isinstance(done, FailedTask)
    assert "returned an int for a record that is a dict" in done.error
    (done,) = exchange(tmp_path / "bare", [5, 5]).gather(work)
    assert written(done) == [2]


def test_a_heavy_key_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "HELD_BYTES", 1)
    held: list[int] = []
    original = merge._merge_blocks

    def watched(parts: Any) -> Any:
        found = original(parts)
        held.append(len(found.keys))
        return found

    monkeypatch.setattr(merge, "_merge_blocks", watched)
    hot = exchange(tmp_path, [{"k": "hot", "n": n} for n in range(400)])
    (done,) = hot.gather(GroupRecords(group, "jsonl", by="k"))
    assert written(done) == [{"key": "hot", "records": 400}]
    assert len(held) > 50
    assert max(held) < 20
