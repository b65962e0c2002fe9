"""What a merge makes of run files: fewer for each bucket, with the same records in the same order, and their places."""

from __future__ import annotations

import tempfile
from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerbeam.errors import UnsupportedShapeError
from ledgerbeam.io.exchange.merge import Bound
from ledgerbeam.io.exchange.order import KeyOrder
from ledgerbeam.io.exchange.slices import NO_MERGES, Merges, Partition
from ledgerbeam.ledger import FailedTask, NoneTask, Source, Task
from ledgerbeam.sources.buckets import GatheredRecords
from ledgerbeam.transforms.chain.process import ProcessTask
from ledgerbeam.transforms.exchange.gather import MergeRuns
from ledgerbeam.transforms.exchange.keys import RecordKeys
from tests.pipelines.exchanges.stages import Stages, by_file

BY_K = RecordKeys("key", ("k",))
CUTS = (1, 2, 3, 5, 6, 7, 8, 9)
ROWS = st.lists(st.integers(0, 6), max_size=9)
FILES = st.lists(ROWS, min_size=1, max_size=9)


def written(folder: Path, files: Sequence[Sequence[int]], merges: Merges, pack: int | None, sides: int = 1) -> Stages:
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
            placed(written(Path(folder) / name, files, how, pack, sides))
            for name, how in (("1", NO_MERGES), ("2", merges))
        )
        assert [(url.replace(f"{folder}/2/", f"{folder}/1/"), *rest) for url, *rest in several] == one
        assert len(one) == sum(map(len, files))


def test_a_bucket_is_read_from_fewer_run_files_behind_a_merge(tmp_path: Path) -> None:
    files = [[0, 1, 2, 3, 4, 5, 6]] * 24
    read = []
    for number, merges in enumerate((NO_MERGES, Merges(1, 4), Merges(2, 4))):
        stages = written(tmp_path / str(number), files, merges, None)
        read.append(max(len(task.records._bucket.runs) for task in stages.tasks()))
    assert read[0] == 48  # two tasks each
    assert read[0] >= 3 * read[1] >= 6 * read[2]


@pytest.mark.parametrize("merges", [Merges(1, 4), Merges(2, 3), Merges(2, 2), Merges(3, 2)])
def test_merged_records_lie_in_the_order_of_all_of_them(tmp_path: Path, merges: Merges) -> None:
    files = [[6, 0, 3], [1, 1, 2, 5], [], [4, 3, 2, 1, 0]]
    stages = written(tmp_path, files, merges, None)
    found = [record for task in stages.tasks() for record in task.records.listed()]
    assert found == sorted(({"k": k, "n": n} for n, keys in enumerate(files) for k in keys), key=itemgetter("k"))
    assert len(list(stages.tasks())) > 1


@pytest.mark.parametrize("merges", [Merges(1, 4), Merges(2, 2), Merges(3, 2)])
def test_merged_records_lie_in_the_buckets_of_their_keys(tmp_path: Path, merges: Merges) -> None:
    for task in written(tmp_path, [[*range(10)], [9, 1, 4]], merges, None).tasks():
        buckets = {bisect_right(CUTS, record["k"]) for record in task.records.listed()}
        assert buckets == {task.records.bucket}


def test_a_run_file_that_is_gone_fails_the_task_and_nothing_is_no_run_file(tmp_path: Path) -> None:
    stages = written(tmp_path, [[0] * 9], NO_MERGES, None)
    (task,) = stages.tasks()
    merge = MergeRuns(stages.partition, 0)
    assert ProcessTask(merge).takes_blocks, "it merges records as it goes"
    done = merge(task)
    assert isinstance(done, Task)
    assert len(done.records) == 9
    with pytest.raises(TypeError, match="no access to single records"):
        done.records[0]
    behind = task.replace(records=GatheredRecords(task.records._bucket, Bound(b"\xff"), None))
    assert merge(behind) == NoneTask(behind)
    next(iter(tmp_path.glob("0/*.run"))).unlink()
    done = merge(task)
    assert isinstance(done, FailedTask)
    assert (done.task, done.reason) == (task, "SourceNotFoundError")


def test_damage_fails_the_task_with_the_name_of_the_run_file(tmp_path: Path) -> None:
    stages = written(tmp_path, [[0] * 9, [0] * 9], Merges(1, 2), None)
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
