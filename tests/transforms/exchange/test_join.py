"""A join of one part of a bucket: what it makes in each format, what it counts, and how far it goes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from ledgerbeam.errors import RecordError
from ledgerbeam.io import Sample
from ledgerbeam.io.exchange.order import Joining
from ledgerbeam.io.tar.writer import encode_tar
from ledgerbeam.ledger import FailedTask, NoneTask, Task
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.transforms.chain.process import ProcessTask
from ledgerbeam.transforms.exchange import join
from ledgerbeam.transforms.exchange.join import JoinRecords, RightFields
from ledgerbeam.transforms.exchange.keys import RecordKeys
from tests.cases import each
from tests.pipelines.exchanges.stages import Stages, by_file, spoil

HOWS: tuple[Joining, ...] = get_args(Joining)
FIELDS = RightFields(("k",))
LEFT = [{"k": k, "n": n} for n, k in enumerate((1, 2, None, 1, 3, 4))]
RIGHT = [{"k": k, "m": m} for m, k in enumerate((2, 1, None, 1, 9))]


def sides(folder: Path, left: Sequence[Any], right: Sequence[Any]) -> Stages:
    """Return the exchange of two sides, in one bucket."""
    stages = Stages(folder, RecordKeys("hash", ("k",)), [], 10**6, task_records=None, beside=1)
    stages.scatter(by_file(folder / "r", {"b": right}), keys=RecordKeys("match", ("k",)), folder="right/")
    stages.scatter(by_file(folder / "l", {"a": left}), folder="left/")
    return stages


def joined(left: Sequence[Any], right: Sequence[Any], how: Joining) -> list[Any]:
    """Return what nested loops join."""
    found = []
    for row in left:
        others = [other for other in right if row["k"] is not None and other["k"] == row["k"]]
        if how in ("inner", "left"):
            found += [{**row, "m": other["m"]} for other in others]
        if (how in ("left", "anti") and not others) or (how == "semi" and others):
            found.append(row)
    return found


def by_place(rows: Sequence[Any]) -> list[Any]:
    return sorted(rows, key=lambda row: (row["n"], row.get("m", 0)))


@pytest.mark.parametrize("output", ["jsonl", "parquet"])
@pytest.mark.parametrize("how", HOWS)
def test_what_is_joined_is_counted_by_records_of_the_left_side(tmp_path: Path, how: Joining, output: str) -> None:
    (task,) = sides(tmp_path, LEFT, RIGHT).tasks()
    work = JoinRecords(how, FIELDS, "row", output)
    assert ProcessTask(work).takes_blocks
    done = work(task)
    assert isinstance(done, Task)
    assert (done.source, done.start, done.stop) == (task.source, task.start, task.stop)
    expected = joined(LEFT, RIGHT, how)
    assert by_place(list(done.records.datasets[""])) == by_place(expected)
    kept = len({row["n"] for row in expected})
    reason = {"inner": "unmatched", "semi": "unmatched", "anti": "matched"}.get(how)
    dropped = {} if reason is None else {reason: len(LEFT) - kept}
    assert done.records.counts == RecordCounts(6, kept, dropped, {}, {"": len(expected)})
    assert getattr(done.records.datasets[""], "nulled", 0) == 0


@pytest.mark.parametrize("output", ["jsonl", "parquet"])
@pytest.mark.parametrize(("how", "reason"), [("inner", "unmatched"), ("semi", "unmatched"), ("anti", "matched")])
def test_of_a_part_of_which_nothing_is_left_the_counts_stay(
    tmp_path: Path, how: Joining, reason: str, output: str
) -> None:
    (task,) = sides(tmp_path, LEFT[:2], RIGHT if how == "anti" else RIGHT[-1:]).tasks()
    assert JoinRecords(how, FIELDS, "row", output)(task) == NoneTask(task, counts=RecordCounts(2, 0, {reason: 2}))


@pytest.mark.parametrize("how", ["inner", "semi", "anti"])
def test_where_nothing_is_left_out_nothing_is_counted_as_such(tmp_path: Path, how: Joining) -> None:
    (task,) = sides(tmp_path, LEFT[:1], RIGHT[-1:] if how == "anti" else RIGHT[:2]).tasks()
    done = JoinRecords(how, FIELDS, "json", "jsonl")(task)
    assert isinstance(done, Task)
    assert done.records.counts == RecordCounts(1, 1, {}, {}, {"": 1})


def test_a_record_without_a_match_has_null_where_one_would_come_to(tmp_path: Path) -> None:
    (task,) = sides(tmp_path, LEFT, RIGHT[:1]).tasks()
    done = JoinRecords("left", RightFields(under="of"), "json", "jsonl")(task)
    assert isinstance(done, Task)
    expected = [{**row, "of": RIGHT[0] if row["k"] == 2 else None} for row in LEFT]
    assert by_place([json.loads(line) for line in done.records.datasets[""].data.splitlines()]) == expected


def test_records_without_fields_are_the_same_without_a_match() -> None:
    for left in ([1], {"a": 1}, Sample("s", {"txt": b"t"})):
        assert RightFields().without(left) is left
    with pytest.raises(RecordError, match="expected an object on the left side, found a list"):
        RightFields(under="of").without([1])


def test_what_is_no_json_is_written_all_the_same(tmp_path: Path) -> None:
    """A record of another format that is kept as it is becomes a line."""
    stages = sides(tmp_path, [], RIGHT)
    (tmp_path / "a.tar").write_bytes(encode_tar([Sample("s/1", {"txt": b"t"}), Sample("s/2", {"txt": b"u"})])[0])
    left = replace(stages, keys=RecordKeys("hash", ("txt",)))
    left.scatter([str(tmp_path / "a.tar")], folder="left/")
    (task,) = left.tasks()
    for how in ("left", "anti"):
        done = JoinRecords(how, FIELDS, "json", "jsonl")(task)
        assert isinstance(done, Task)
        rows = [json.loads(line) for line in done.records.datasets[""].data.splitlines()]
        assert sorted(row["__key__"] for row in rows) == ["s/1", "s/2"]
        assert done.records.counts.written == {"": 2}


@pytest.mark.parametrize("matches", [1, 2, 3])
def test_a_sample_that_is_joined_with_several_is_several(tmp_path: Path, matches: int) -> None:
    stages = sides(tmp_path, [], [{"k": "t", "m": m} for m in range(matches)])
    (tmp_path / "a.tar").write_bytes(encode_tar([Sample("s/1", {"txt": b"t"})])[0])
    left = replace(stages, keys=RecordKeys("hash", function=f"{__name__}:text_of"))
    left.scatter([str(tmp_path / "a.tar")], folder="left/")
    (task,) = left.tasks()
    done = JoinRecords("inner", RightFields(under="json"), "sample", "tar")(task)
    assert isinstance(done, Task)
    found = [(sample.key, json.loads(sample["json"])["m"]) for sample in done.records.datasets[""]]
    keys = ["s/1"] if matches == 1 else [f"s/1-{m}" for m in range(matches)]
    assert found == list(zip(keys, range(matches), strict=True))


def text_of(sample: Sample) -> str:
    return sample["txt"].decode()


@pytest.mark.parametrize(
    ("suffix", "left", "right", "free"),
    [
        ("_r", {"x": 1, "x_r": 2}, {"x": 3}, False),
        ("_r", {"x": 1}, {"x": 3, "x_r": 2}, False),
        ("_r", {"x": 1, "x_r": 2}, {"x": 3, "x_r": 4}, False),
        ("_s", {"x": 1, "x_r": 2}, {"x": 3, "x_r": 4}, True),
    ],
)
def test_a_name_with_the_suffix_must_be_free_on_both_sides(suffix: str, left: Any, right: Any, free: bool) -> None:
    fields = RightFields(suffix=suffix)
    if free:
        assert fields.join(left, right) == {"x": 1, "x_r": 2, "x_s": 3, "x_r_s": 4}
        return
    with pytest.raises(RecordError, match="the field 'x_r' also exists"):
        fields.join(left, right)


@each(("left", "found"), [([1], "a list"), (None, "null"), (5, "a int"), ("x", "a str"), (True, "a bool")])
def test_a_record_without_fields_is_named_by_what_it_is(left: Any, found: str) -> None:
    for fields in (RightFields(), RightFields(under="of")):
        with pytest.raises(RecordError, match=f"expected an object on the left side, found {found}$"):
            fields.join(left, {"a": 1})


def size_of(row: Any) -> int:
    return len(json.dumps(row))


def failed(folder: Path, left: Sequence[Any], right: Sequence[Any]) -> str | None:
    """Return what a join failed of; None if it has not."""
    (task,) = sides(folder, left, right).tasks()
    done = JoinRecords("inner", FIELDS, "json", "jsonl")(task)
    return done.error if isinstance(done, FailedTask) else None


def test_just_so_much_of_one_key_is_held_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = [{"k": 1, "m": m} for m in range(3)]
    sizes = sum(map(size_of, right))
    for place, (most, fits) in enumerate(((sizes, True), (sizes - 1, False))):
        monkeypatch.setattr(join, "MOST_HELD", most)
        assert (failed(tmp_path / str(place), LEFT, right) is None) is fits
    # The key of another side's records alone is no burden.
    assert failed(tmp_path / "others", LEFT, [{"k": k, "m": 0} for k in (7, 8, 9, 10)]) is None


def test_some_megabytes_of_one_key_are_no_burden(tmp_path: Path) -> None:
    stages = sides(tmp_path, [{"k": 1, "n": 0}], [{"k": 1, "m": "x" * 2**20}] * 2)
    (task,) = replace(stages, part_bytes=10**8).tasks()
    done = JoinRecords("inner", FIELDS, "json", "jsonl")(task)
    assert isinstance(done, Task), done
    assert len(done.records.datasets[""]) == 2


def test_just_so_much_is_made_of_one_part_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = [{"k": 1, "m": m} for m in range(3)]
    left = [{"k": 1, "n": n} for n in range(2)]
    made = sum(size_of(row) * len(right) + sum(map(size_of, right)) for row in left)
    for place, (most, fits) in enumerate(((made, True), (made - 1, False))):
        monkeypatch.setattr(join, "MOST_MADE", most)
        error = failed(tmp_path / str(place), left, right)
        assert (error is None) is fits
        if error is not None:
            assert "with 3 right records of this key, exceed" in error


@pytest.mark.parametrize("spare", [-1, 0, 1])
def test_records_of_a_key_are_the_same_decoded_at_once_or_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spare: int
) -> None:
    right = [{"k": 1, "m": m} for m in range(3)]
    monkeypatch.setattr(join, "MOST_DECODED", sum(map(size_of, right)) + spare)
    left = [{"k": 1, "n": n} for n in range(4)]
    (task,) = sides(tmp_path, left, right).tasks()
    done = JoinRecords("inner", FIELDS, "json", "jsonl")(task)
    assert isinstance(done, Task)
    rows = [json.loads(line) for line in done.records.datasets[""].data.splitlines()]
    assert rows == [{**row, "m": other["m"]} for row in left for other in right]


@pytest.mark.parametrize("kind", ["damaged", "gone"])
@pytest.mark.parametrize("output", ["jsonl", "parquet"])
def test_a_run_file_that_cannot_be_read_fails_the_task(tmp_path: Path, output: str, kind: str) -> None:
    stages = sides(tmp_path, LEFT, RIGHT)
    (task,) = stages.tasks()
    spoil(tmp_path / stages.runs[0].name, kind)
    done = JoinRecords("inner", FIELDS, "row", output)(task)
    assert isinstance(done, FailedTask)
    assert (done.task, done.reason) == (task, {"damaged": "RunFileError", "gone": "SourceNotFoundError"}[kind])


def test_a_pair_that_cannot_be_written_fails_the_task(tmp_path: Path) -> None:
    (task,) = sides(tmp_path, [{"k": 1, "__key__": 5}], RIGHT).tasks()
    done = JoinRecords("left", RightFields(under="of"), "sample", "tar")(task)
    assert isinstance(done, FailedTask)
    assert done.task == task
