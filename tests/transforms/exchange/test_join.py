"""A join finds what nested loops find; what it makes in each format, what it counts, and how far it goes."""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgerbeam.errors import RecordError
from ledgerbeam.io import Sample
from ledgerbeam.io.exchange.order import Joining
from ledgerbeam.io.exchange.slices import Partition
from ledgerbeam.io.tar.writer import encode_tar
from ledgerbeam.ledger import FailedTask, NoneTask, Task
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.transforms import ProcessTask
from ledgerbeam.transforms.exchange import join
from ledgerbeam.transforms.exchange.join import JoinRecords, RightFields
from ledgerbeam.transforms.exchange.keys import RecordKeys
from tests.cases import each
from tests.pipelines.exchanges.stages import Stages, by_file, spoil

HOWS: tuple[Joining, ...] = get_args(Joining)
FIELDS = RightFields(("k",))
LEFT = [{"k": k, "n": n} for n, k in enumerate((1, 2, None, 1, 3, 4))]
RIGHT = [{"k": k, "m": m} for m, k in enumerate((2, 1, None, 1, 9))]


Side = Sequence[Any] | Mapping[str, Sequence[Any]]
"""The records of one file, or those of several."""


def sides(folder: Path, left: Side, right: Side, part_bytes: int = 10**6, **how: Any) -> Stages:
    """Return the exchange of two sides, in one bucket unless more is said."""
    stages = Stages(folder, RecordKeys("hash", ("k",)), part_bytes=part_bytes, beside=1, **{"cuts": [], **how})
    for name, side, keys in (("right", right, RecordKeys("match", ("k",))), ("left", left, None)):
        files = side if isinstance(side, Mapping) else {name[0]: side}
        stages.scatter(by_file(folder / name[0], files), keys=keys, folder=f"{name}/")
    return stages


def rows_of(*done: Any) -> list[dict[str, Any]]:
    some = [task for task in done if not isinstance(task, NoneTask)]
    return [json.loads(line) for task in some for line in task.records.datasets[""].data.splitlines()]


def to_lines(how: Joining, fields: RightFields = RightFields(("k",))) -> JoinRecords:  # noqa: B008 - frozen
    return JoinRecords(how, fields, "json", "jsonl")


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
    expected = plainly(LEFT, RIGHT, how)
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
    done = to_lines(how)(task)
    assert isinstance(done, Task)
    assert done.records.counts == RecordCounts(1, 1, {}, {}, {"": 1})


def test_a_record_without_a_match_has_null_where_one_would_come_to(tmp_path: Path) -> None:
    (task,) = sides(tmp_path, LEFT, RIGHT[:1]).tasks()
    done = to_lines("left", RightFields(under="of"))(task)
    assert isinstance(done, Task)
    expected = [{**row, "of": RIGHT[0] if row["k"] == 2 else None} for row in LEFT]
    assert by_place(rows_of(done)) == expected


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
        done = to_lines(how)(task)
        assert isinstance(done, Task)
        assert sorted(row["__key__"] for row in rows_of(done)) == ["s/1", "s/2"]
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
    done = to_lines("inner")(task)
    return done.error if isinstance(done, FailedTask) else None


def test_just_so_much_of_one_key_is_held_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = [{"k": 1, "m": m} for m in range(3)]
    sizes = sum(map(size_of, right))
    monkeypatch.setattr(join, "MOST_HELD", sizes)
    assert failed(tmp_path / "fits", LEFT, right) is None
    monkeypatch.setattr(join, "MOST_HELD", sizes - 1)
    said = rf"r\.jsonl, record 2: .* exceed {sizes - 1}, .*; give a key that fewer records share, or swap the sides"
    assert re.search(said, failed(tmp_path / "more", LEFT, right) or "")
    # The key of another side's records alone is no burden.
    assert failed(tmp_path / "others", LEFT, [{"k": k, "m": 0} for k in (7, 8, 9, 10)]) is None


def test_some_megabytes_of_one_key_are_no_burden(tmp_path: Path) -> None:
    stages = sides(tmp_path, [{"k": 1, "n": 0}], [{"k": 1, "m": "x" * 2**20}] * 2)
    (task,) = replace(stages, part_bytes=10**8).tasks()
    done = to_lines("inner")(task)
    assert isinstance(done, Task), done
    assert len(done.records.datasets[""]) == 2


def test_just_so_much_is_made_of_one_part_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = [{"k": 1, "m": m} for m in range(3)]
    left = [{"k": 1, "n": n} for n in range(2)]
    made = sum(size_of(row) * len(right) + sum(map(size_of, right)) for row in left)
    monkeypatch.setattr(join, "MOST_MADE", made)
    assert failed(tmp_path / "fits", left, right) is None
    monkeypatch.setattr(join, "MOST_MADE", made - 1)
    said = rf"l\.jsonl, record 1: .* exceed {made - 1}, and this key has 3 right records; give a smaller --shard-bytes"
    assert re.search(said, failed(tmp_path / "more", left, right) or "")


def test_a_record_that_cannot_be_joined_fails_its_task_by_name(tmp_path: Path) -> None:
    rows = [{"k": n, "x": n} for n in range(3)]
    assert (failed(tmp_path, rows, rows[1:2]) or "").startswith(f"{tmp_path}/l/l.jsonl, record 1: both")


@pytest.mark.parametrize("spare", [-1, 0, 1])
def test_records_of_a_key_are_the_same_decoded_at_once_or_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spare: int
) -> None:
    right = [{"k": 1, "m": m} for m in range(3)]
    monkeypatch.setattr(join, "MOST_DECODED", sum(map(size_of, right)) + spare)
    left = [{"k": 1, "n": n} for n in range(4)]
    (task,) = sides(tmp_path, left, right).tasks()
    done = to_lines("inner")(task)
    assert isinstance(done, Task)
    assert rows_of(done) == [{**row, "m": other["m"]} for row in left for other in right]


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


KEY = st.none() | st.integers(0, 3) | st.sampled_from([1.0, True, "a", 2**53 + 1, float(2**53)])


SIDE = st.lists(st.lists(KEY, max_size=15), min_size=1, max_size=3)


def as_files(keys: list[list[Any]], number: str) -> dict[str, list[dict[str, Any]]]:
    return {
        f"{number}{file}": [{"k": key, number: 100 * file + n} for n, key in enumerate(some)]
        for file, some in enumerate(keys)
    }


def same(one: Any, other: Any) -> bool:
    """Return whether two keys are equal, and not both missing: true is another key than 1."""
    return one is not None and isinstance(one, bool) is isinstance(other, bool) and one == other


def plainly(left: list[dict[str, Any]], right: list[dict[str, Any]], how: Joining) -> list[dict[str, Any]]:
    """Return what nested loops join."""
    found = []
    for row in left:
        others = [other for other in right if same(row["k"], other["k"])]
        if how in ("inner", "left"):
            found += [{**row, "m": other["m"]} for other in others]
        if (how in ("left", "anti") and not others) or (how == "semi" and others):
            found.append(row)
    return found


def counts_of(task: Any) -> Any:
    return task.counts if isinstance(task, NoneTask) else task.records.counts


@settings(deadline=None, max_examples=60)
@given(SIDE, SIDE, st.sampled_from(HOWS), st.integers(1, 3), st.sampled_from([1, 150, 10**6]))
def test_a_join_is_what_nested_loops_find(
    left_keys: list[list[Any]], right_keys: list[list[Any]], how: Joining, buckets: int, part_bytes: int
) -> None:
    left, right = as_files(left_keys, "n"), as_files(right_keys, "m")
    with tempfile.TemporaryDirectory() as folder:
        done = sides(Path(folder), left, right, part_bytes, cuts=Partition(buckets).cuts()).gather(to_lines(how))
    found = rows_of(*done)
    flat = [row for rows in left.values() for row in rows]
    expected = plainly(flat, [row for rows in right.values() for row in rows], how)
    assert Counter(map(json.dumps, found)) == Counter(map(json.dumps, expected))
    places = defaultdict(list)
    for row in found:
        places[isinstance(row["k"], bool), row["k"]].append((row["n"], row.get("m")))
    assert all(some == sorted(some) for some in places.values()), "by left place, then right place"
    starts = [number for number, row in enumerate(found) if not number or key_of(found[number - 1]) != key_of(row)]
    assert len(starts) == len(places), "the records of a key come together"
    counts = [counts_of(task) for task in done]
    assert sum(count.read for count in counts) == len(flat)
    assert sum(count.kept for count in counts) == len({row["n"] for row in found})
    assert sum(sum(count.written.values()) for count in counts) == len(found)
    assert {reason for count in counts for reason in count.dropped} <= {
        {"inner": "unmatched", "semi": "unmatched", "anti": "matched", "left": ""}[how]
    }


def key_of(row: dict[str, Any]) -> tuple[bool, Any]:
    return isinstance(row["k"], bool), row["k"]


def test_a_key_that_is_heavy_on_the_left_is_cut_into_parts(tmp_path: Path) -> None:
    left = [{"k": "hot", "n": n} for n in range(300)]
    right = [{"k": "hot", "m": m} for m in range(5)] + [{"k": "cold", "m": 9}]
    done = sides(tmp_path, left, right, 500).gather(to_lines("inner"))
    assert len(done) > 5
    assert [(row["n"], row["m"]) for row in rows_of(*done)] == [(n, m) for n in range(300) for m in range(5)]


def test_a_key_of_several_fields_with_a_null_in_it_matches_nothing(tmp_path: Path) -> None:
    keys = {scheme: RecordKeys(scheme, ("a", "b")) for scheme in ("hash", "match")}
    stages = Stages(tmp_path, keys["hash"], [], beside=1)
    rows = [{"a": 1, "b": 2, "n": 0}, {"a": 1, "b": None, "n": 1}, {"b": 2, "n": 2}]
    stages.scatter(by_file(tmp_path / "r", {"r": rows}), keys=keys["match"], folder="right/")
    stages.scatter(by_file(tmp_path / "l", {"l": rows}), folder="left/")
    assert sorted(row["n"] for row in rows_of(*stages.gather(to_lines("anti", RightFields())))) == [1, 2]


def test_records_that_stay_as_they_are_keep_their_bytes(tmp_path: Path) -> None:
    for side, lines in (("l", b'{"k": 1,  "a":1.0}\n {"k":2, "a":1e2}\n{"k":null}\n'), ("r", b'{"k":1.0,"b":1}\n')):
        (tmp_path / f"{side}.jsonl").write_bytes(lines)
    found = {}
    for how in HOWS:
        stages = Stages(tmp_path, RecordKeys("hash", ("k",)), [], 10**6, beside=1)
        stages.scatter([str(tmp_path / "r.jsonl")], keys=RecordKeys("match", ("k",)), folder="right/")
        stages.scatter([str(tmp_path / "l.jsonl")], folder="left/")
        (done,) = stages.gather(to_lines(how))
        found[how] = sorted(done.records.datasets[""].data.splitlines())
    one, other, null = b'{"k": 1,  "a":1.0}', b' {"k":2, "a":1e2}', b'{"k":null}'
    pair = b'{"k":1,"a":1.0,"b":1}'
    assert found == {"inner": [pair], "left": [other, pair, null], "semi": [one], "anti": [other, null]}


ONE, OTHER = {"k": 1, "x": "left"}, {"k": 1, "x": "right", "y": [2]}


@each(
    ("fields", "left", "right", "made"),
    [
        (RightFields(("k",), suffix="_r"), ONE, OTHER, {"k": 1, "x": "left", "x_r": "right", "y": [2]}),
        (RightFields(suffix="_s"), {"x": 1, "x_r": 2}, {"x": 3, "x_r": 4}, {"x": 1, "x_r": 2, "x_s": 3, "x_r_s": 4}),
        (RightFields(("k",), under="of"), ONE, OTHER, {"k": 1, "x": "left", "of": OTHER}),
        (RightFields(("id",)), {"k": 1}, {"id": 1, "z": 0}, {"k": 1, "z": 0}),
        (RightFields(("id",)), {"k": 1, "id": "own"}, {"id": 1, "z": 0}, {"k": 1, "id": "own", "z": 0}),
        (RightFields(()), {"k": 1}, Sample("s/1", {"txt": b"t"}), {"k": 1, "__key__": "s/1", "txt": "t"}),
    ],
)
def test_fields_of_both_sides(fields: RightFields, left: Any, right: Any, made: Any) -> None:
    found = fields.join(left, right)
    assert found == made
    assert list(found) == list(made)


def test_samples_take_members(tmp_path: Path) -> None:
    image = Sample("a/1", {"png": b"\x89"})
    found = RightFields(under="json").join(image, {"caption": "x"})
    assert (found.key, dict(found)) == ("a/1", {"png": b"\x89", "json": b'{"caption":"x"}'})
    both = RightFields(("__key__",)).join(image, Sample("a/1", {"txt": b"y"}))
    assert (both.key, dict(both)) == ("a/1", {"png": b"\x89", "txt": b"y"})
    assert RightFields(under="json").without(image) == image
    assert RightFields(under="of").without({"a": 1}) == {"a": 1, "of": None}


@each(
    ("fields", "left", "right", "said"),
    [
        (RightFields(("k",)), ONE, OTHER, "both sides have a field 'x'; give --suffix TEXT"),
        (
            RightFields(("k",), suffix="y"),
            {"k": 1, "": 0},
            {"k": 1, "": 1, "y": 2},
            "the field 'y' also exists; give another --suffix",
        ),
        (RightFields(under="x"), ONE, OTHER, "already has a field 'x'; give another name with --as"),
        (RightFields(), Sample("s", {}), OTHER, "expected a sample of a tar on the right side as well"),
        (RightFields(), [1], OTHER, "expected an object on the left side, found a list"),
        (RightFields(), ONE, None, "expected an object on the right side, found null"),
        (RightFields(under="txt"), Sample("s", {}), OTHER, "under 'txt'"),
        (RightFields(suffix="_r"), {"x": 1, "x_r": 2}, {"x": 3}, "the field 'x_r' also exists"),
        (RightFields(suffix="_r"), {"x": 1}, {"x": 3, "x_r": 2}, "the field 'x_r' also exists"),
        (RightFields(suffix="_r"), {"x": 1, "x_r": 2}, {"x": 3, "x_r": 4}, "the field 'x_r' also exists"),
    ],
)
def test_what_cannot_be_joined_is_refused(fields: RightFields, left: Any, right: Any, said: str) -> None:
    with pytest.raises(RecordError) as caught:
        fields.join(left, right)
    assert said in str(caught.value)
