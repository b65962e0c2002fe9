"""``join``: each record of the left side meets those of the right side of its key, as plain Python finds them."""

from __future__ import annotations

import json
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgerbeam.errors import RecordError
from ledgerbeam.io import Sample
from ledgerbeam.ledger import FailedTask, NoneTask
from ledgerbeam.pipelines.jobs.partition import Partition
from ledgerbeam.transforms import join
from ledgerbeam.transforms.join import Joining, JoinRecords, RightFields
from ledgerbeam.transforms.keys import RecordKeys
from tests.pipelines.exchanges.stages import Stages, by_file

HOWS: tuple[Joining, ...] = get_args(Joining)
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


def joined(
    folder: Path,
    left: dict[str, list[Any]],
    right: dict[str, list[Any]],
    work: JoinRecords,
    *,
    buckets: int = 1,
    part_bytes: int = 10**6,
    names: tuple[str, str] = ("k", "k"),
) -> list[Any]:
    stages = Stages(folder, RecordKeys("hash", (names[0],)), Partition(buckets).cuts(), part_bytes, beside="right/")
    stages.scatter(by_file(folder / "r", right), keys=RecordKeys("match", (names[1],)), folder="right/")
    stages.scatter(by_file(folder / "l", left), folder="left/")
    return stages.gather(work)


def rows_of(done: list[Any]) -> list[dict[str, Any]]:
    some = [task for task in done if not isinstance(task, NoneTask)]
    return [json.loads(line) for task in some for line in task.records.datasets[""].data.splitlines()]


def to_lines(how: Joining, fields: RightFields = RightFields(("k",))) -> JoinRecords:  # noqa: B008 - frozen
    return JoinRecords(how, fields, "json", "jsonl")


def counts_of(task: Any) -> Any:
    return task.counts if isinstance(task, NoneTask) else task.records.counts


@settings(deadline=None, max_examples=60)
@given(SIDE, SIDE, st.sampled_from(HOWS), st.integers(1, 3), st.sampled_from([1, 150, 10**6]))
def test_a_join_is_what_nested_loops_find(
    left_keys: list[list[Any]], right_keys: list[list[Any]], how: Joining, buckets: int, part_bytes: int
) -> None:
    left, right = as_files(left_keys, "n"), as_files(right_keys, "m")
    with tempfile.TemporaryDirectory() as folder:
        done = joined(Path(folder), left, right, to_lines(how), buckets=buckets, part_bytes=part_bytes)
    found = rows_of(done)
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
    left = {"a": [{"k": "hot", "n": n} for n in range(300)]}
    right = {"b": [{"k": "hot", "m": m} for m in range(5)] + [{"k": "cold", "m": 9}]}
    done = joined(tmp_path, left, right, to_lines("inner"), part_bytes=500)
    assert len(done) > 5
    assert [(row["n"], row["m"]) for row in rows_of(done)] == [(n, m) for n in range(300) for m in range(5)]


def test_a_key_of_several_fields_with_a_null_in_it_matches_nothing(tmp_path: Path) -> None:
    keys = {scheme: RecordKeys(scheme, ("a", "b")) for scheme in ("hash", "match")}
    stages = Stages(tmp_path, keys["hash"], [], beside="right/")
    rows = [{"a": 1, "b": 2, "n": 0}, {"a": 1, "b": None, "n": 1}, {"b": 2, "n": 2}]
    stages.scatter(by_file(tmp_path / "r", {"r": rows}), keys=keys["match"], folder="right/")
    stages.scatter(by_file(tmp_path / "l", {"l": rows}), folder="left/")
    assert sorted(row["n"] for row in rows_of(stages.gather(to_lines("anti", RightFields())))) == [1, 2]


def test_records_that_stay_as_they_are_keep_their_bytes(tmp_path: Path) -> None:
    for side, lines in (("l", b'{"k": 1,  "a":1.0}\n {"k":2, "a":1e2}\n{"k":null}\n'), ("r", b'{"k":1.0,"b":1}\n')):
        (tmp_path / f"{side}.jsonl").write_bytes(lines)
    found = {}
    for how in HOWS:
        stages = Stages(tmp_path, RecordKeys("hash", ("k",)), [], 10**6, beside="right/")
        stages.scatter([str(tmp_path / "r.jsonl")], keys=RecordKeys("match", ("k",)), folder="right/")
        stages.scatter([str(tmp_path / "l.jsonl")], folder="left/")
        (done,) = stages.gather(to_lines(how))
        found[how] = sorted(done.records.datasets[""].data.splitlines())
    one, other, null = b'{"k": 1,  "a":1.0}', b' {"k":2, "a":1e2}', b'{"k":null}'
    pair = b'{"k":1,"a":1.0,"b":1}'
    assert found == {"inner": [pair], "left": [other, pair, null], "semi": [one], "anti": [other, null]}


ONE, OTHER = {"k": 1, "x": "left"}, {"k": 1, "x": "right", "y": [2]}


@pytest.mark.parametrize(
    ("fields", "left", "right", "made"),
    [
        (RightFields(("k",), suffix="_r"), ONE, OTHER, {"k": 1, "x": "left", "x_r": "right", "y": [2]}),
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


@pytest.mark.parametrize(
    ("fields", "left", "right", "said"),
    [
        (RightFields(("k",)), ONE, OTHER, "both sides have a 'x'; give --suffix TEXT"),
        (RightFields(("k",), suffix="y"), {"k": 1, "": 0}, {"k": 1, "": 1, "y": 2}, "and there is a 'y', too"),
        (RightFields(under="x"), ONE, OTHER, "the left side has a 'x' itself"),
        (RightFields(), Sample("s", {}), OTHER, "expected a sample on the right side as well, found an object"),
        (RightFields(), [1], OTHER, "expected an object on the left side, found a list"),
        (RightFields(), ONE, None, "expected an object on the right side, found null"),
        (RightFields(under="txt"), Sample("s", {}), OTHER, "under 'txt'"),
    ],
)
def test_what_cannot_be_joined_is_refused(fields: RightFields, left: Any, right: Any, said: str) -> None:
    with pytest.raises(RecordError) as caught:
        fields.join(left, right)
    assert said in str(caught.value)


def test_a_record_that_cannot_be_joined_fails_its_task_by_name(tmp_path: Path) -> None:
    rows = [{"k": n, "x": n} for n in range(3)]
    (done,) = joined(tmp_path, {"a": rows}, {"b": rows[1:2]}, to_lines("inner"))
    assert isinstance(done, FailedTask)
    assert (done.reason, done.error.partition(": both")[0]) == ("RecordError", f"{tmp_path}/l/a.jsonl, record 1")


@pytest.mark.parametrize(
    ("bound", "said"),
    [
        ("MOST_HELD", "b.jsonl, record 1: the right side has more than 50 of records of its key"),
        ("MOST_MADE", "a.jsonl, record 1: with the 2 records of the right side that have its key, more than 140 would"),
    ],
)
def test_too_much_of_one_key_is_refused_with_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, said: str
) -> None:
    monkeypatch.setattr(join, bound, {"MOST_HELD": 50, "MOST_MADE": 140}[bound])
    right = [{"k": "hot", "m": "x" * 5}, {"k": "hot", "m": "y" * 12}]
    (done,) = joined(tmp_path, {"a": [{"k": "hot"}] * 9}, {"b": right}, to_lines("inner"))
    assert isinstance(done, FailedTask)
    assert said in done.error


def test_many_records_of_a_key_are_decoded_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "MOST_DECODED", 0)
    done = joined(
        tmp_path,
        {"a": [{"k": 1, "n": n} for n in (0, 1)]},
        {"b": [{"k": 1, "m": m} for m in (0, 1)]},
        to_lines("inner"),
    )
    assert [(row["n"], row["m"]) for row in rows_of(done)] == [(0, 0), (0, 1), (1, 0), (1, 1)]
