"""``join``: each record of the left side meets those of the right side of its key, as plain Python finds them."""

from __future__ import annotations

import json
import random
import re
import tarfile
import tempfile
import time
from collections import Counter, defaultdict
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
from ledgerbeam.ledger import FailedTask, NoneTask
from ledgerbeam.transforms.exchange import join
from ledgerbeam.transforms.exchange.join import JoinRecords, RightFields
from ledgerbeam.transforms.exchange.keys import RecordKeys
from tests.cases import each
from tests.pipelines.conftest import Workspace, make_workspace
from tests.pipelines.exchanges.killing import run_with_kills
from tests.pipelines.exchanges.stages import Stages, by_file, write_jsonl

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
    stages = Stages(folder, RecordKeys("hash", (names[0],)), Partition(buckets).cuts(), part_bytes, beside=1)
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
    stages = Stages(tmp_path, keys["hash"], [], beside=1)
    rows = [{"a": 1, "b": 2, "n": 0}, {"a": 1, "b": None, "n": 1}, {"b": 2, "n": 2}]
    stages.scatter(by_file(tmp_path / "r", {"r": rows}), keys=keys["match"], folder="right/")
    stages.scatter(by_file(tmp_path / "l", {"l": rows}), folder="left/")
    assert sorted(row["n"] for row in rows_of(stages.gather(to_lines("anti", RightFields())))) == [1, 2]


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
        (RightFields(under="x"), ONE, OTHER, "already has a field 'x'; give another name to --as"),
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
        ("MOST_HELD", r"b\.jsonl, record 1: .* exceed 50, .*; give a key that fewer records share, or swap the sides"),
        ("MOST_MADE", r"a\.jsonl, record 1: .* 2 right records of this key, exceed 140; give a smaller --shard-bytes"),
    ],
)
def test_too_much_of_one_key_is_refused_with_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, said: str
) -> None:
    monkeypatch.setattr(join, bound, {"MOST_HELD": 50, "MOST_MADE": 140}[bound])
    right = [{"k": "hot", "m": "x" * 5}, {"k": "hot", "m": "y" * 12}]
    (done,) = joined(tmp_path, {"a": [{"k": "hot"}] * 9}, {"b": right}, to_lines("inner"))
    assert isinstance(done, FailedTask)
    assert re.search(said, done.error)


def test_many_records_of_a_key_are_decoded_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "MOST_DECODED", 0)
    done = joined(
        tmp_path,
        {"a": [{"k": 1, "n": n} for n in (0, 1)]},
        {"b": [{"k": 1, "m": m} for m in (0, 1)]},
        to_lines("inner"),
    )
    assert [(row["n"], row["m"]) for row in rows_of(done)] == [(0, 0), (0, 1), (1, 0), (1, 1)]


JOIN = (
    *("join", "left/*.jsonl", "right/*.jsonl", "--by", "k", "--right-by", "id", "--how", "left"),
    *("--output", "out", "--to", "jsonl", "--ledger", "L", "--task-bytes", "3000", "--shard-bytes", "1500"),
)
LEDGERS = ("L", "L/right", "L/left")


def side_rows(side: str, name: str, count: int) -> list[dict[str, Any]]:
    chosen = random.Random(f"{side}{name}")
    key = "k" if side == "left" else "id"
    return [
        {key: chosen.choice([None, chosen.randrange(60), "hot"]), side: f"{name}{n}", "x": n % 3} for n in range(count)
    ]


def write_sides(workspace: Workspace, lefts: str = "abc") -> None:
    for side, names in (("left", lefts), ("right", "de")):
        for name in names:
            write_jsonl(workspace.root / side / f"{name}.jsonl", side_rows(side, name, 120 if side == "left" else 40))


def expected(workspace: Workspace, suffix: str = "_r") -> list[str]:
    sides = {}
    for side in ("left", "right"):
        paths = sorted((workspace.root / side).glob("*.jsonl"))
        sides[side] = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    found = []
    for row in sides["left"]:
        others = [other for other in sides["right"] if same(row["k"], other["id"])]
        found += [{**row, "right": other["right"], f"x{suffix}": other["x"]} for other in others] or [row]
    return sorted(map(json.dumps, found))


def as_found(workspace: Workspace) -> list[str]:
    return sorted(map(json.dumps, workspace.records("out")))


SUFFIX = ("--suffix", "_r")


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The outputs of a run that nothing disturbed."""
    workspace = make_workspace(tmp_path_factory.mktemp("clean"))
    write_sides(workspace)
    ran = workspace.succeed(*JOIN, *SUFFIX, "--workers", "2", "--json")
    assert as_found(workspace) == expected(workspace)
    assert not (workspace.root / "out" / "_runs").exists()
    assert len(workspace.files("out")) > 10
    found = ran.json
    assert found["records"]["read"] == found["records"]["kept"] == 360
    assert found["records"]["written"] == {"": len(expected(workspace))}
    assert found["sources"] == {"complete": 5, "open": 0, "failed": 0}
    assert list(found["stages"]) == ["right", "left", "gather"]
    again = workspace.run(*JOIN, *SUFFIX, "--json")
    assert (again.status, again.json["done"]["tasks"], again.json["skipped"]) == (0, 0, 5)
    status = workspace.run("ledger", "status", "L", "--json").json
    assert status["complete"] is True
    assert list(status["stages"]) == ["right", "left"]
    assert workspace.run("ledger", "verify", "L").status == 0
    return workspace.files("out")


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["publish.after:9", "exchange.tabulated:1", "flush.after_commit:9"])
def test_a_kill_at_a_point_of_any_stage_changes_nothing(
    workspace: Workspace, clean: dict[str, bytes], fault: str
) -> None:
    write_sides(workspace)
    options = (*SUFFIX, "--workers", "1", "--flush-interval", "0.01")
    workspace.run(*JOIN, *options, env={"LEDGERBEAM_FAULT": fault})
    workspace.succeed(*JOIN, *options)
    assert workspace.files("out") == clean


@pytest.mark.slow
def test_launchers_killed_all_over_the_stages_end_with_the_same_bytes(
    workspace: Workspace, clean: dict[str, bytes]
) -> None:
    write_sides(workspace)
    run_with_kills(workspace, (*JOIN, *SUFFIX), LEDGERS, 3)
    assert workspace.files("out") == clean


@pytest.mark.slow
def test_a_run_after_any_change_of_either_side_is_a_run_from_nothing(workspace: Workspace) -> None:
    write_sides(workspace)

    def changed(*options: str) -> dict[str, Any]:
        ran = workspace.succeed(*JOIN, *SUFFIX, *options, "--json")
        assert as_found(workspace) == expected(workspace)
        return {name: stage["done"]["tasks"] for name, stage in ran.json["stages"].items()}

    whole = changed("--keep-runs")
    write_jsonl(workspace.root / "right" / "f.jsonl", [{"id": 5, "right": "f0", "x": 0}])
    some = changed("--keep-runs")
    assert (some["right"], some["left"]) == (1, 0)
    assert some["gather"] < whole["gather"]
    time.sleep(0.01)
    write_jsonl(workspace.root / "left" / "b.jsonl", side_rows("left", "z", 50))
    some = changed()
    assert (some["right"], some["left"]) == (0, 1)
    for path in (workspace.root / "right").glob("d.jsonl*"):
        path.unlink()
    some = changed()
    assert some["right"] > 0, "run files that had been removed"


@pytest.mark.slow
def test_other_results_are_other_jobs_and_conflicts_are_named(workspace: Workspace) -> None:
    write_sides(workspace)
    failed = workspace.run(*JOIN, "--json")
    assert failed.status == 3
    assert "both sides have a field 'x'; give --suffix TEXT" in failed.err
    nested = workspace.run(*JOIN, "--as", "other")
    assert nested.status == 1
    assert "as: was" in nested.err
    workspace.succeed(*JOIN, "--as", "other", "--on-job-change", "restart")
    found = workspace.records("out")
    assert {row["other"] and row["other"]["id"] == row["k"] for row in found} == {None, True}
    anti = workspace.succeed(*JOIN, "--how", "anti", "--on-job-change", "restart", "--json")
    assert as_found(workspace) == sorted(
        json.dumps(row) for row in map(json.loads, expected(workspace)) if "right" not in row
    )
    assert anti.json["records"]["dropped"] == {"matched": 360 - anti.json["records"]["kept"]}
    workspace.succeed(*JOIN, *SUFFIX, "--how", "inner", "--on-job-change", "restart", "--json")
    assert as_found(workspace) == sorted(
        json.dumps(row) for row in map(json.loads, expected(workspace)) if "right" in row
    )


@pytest.mark.slow
def test_what_means_nothing_is_refused_and_a_dry_run_writes_nothing(workspace: Workspace) -> None:
    write_sides(workspace)
    for options, said in (
        (("--how", "anti", *SUFFIX), "leave --suffix and --as out"),
        ((*SUFFIX, "--as", "x"), "give one"),
        (("--to", "parquet"), "both sides have a column 'x'; give --suffix TEXT"),
    ):
        refused = workspace.run(*JOIN, *options)
        assert refused.status == 2, refused.err
        assert said in refused.err
    nothing = workspace.run("join", "left/*.jsonl", "no/*.jsonl", *JOIN[3:])
    assert nothing.status == 1
    assert f"{workspace.root}/no/*.jsonl" in nothing.err
    preview = workspace.succeed(*JOIN, *SUFFIX, "--dry-run", "--json")
    assert preview.json["sources"]["new"] == 5
    assert not workspace.records("out")


@pytest.mark.slow
def test_images_take_their_captions_and_a_corpus_is_joined_with_itself(workspace: Workspace) -> None:
    data, _ = encode_tar([Sample(f"i/{n}", {"png": bytes([n])}) for n in range(9)])
    (workspace.root / "images.tar").write_bytes(data)
    write_jsonl(workspace.root / "captions.jsonl", [{"id": f"i/{n}", "caption": str(n)} for n in range(0, 9, 2)])
    workspace.succeed(
        *("join", "images.tar", "captions.jsonl", "--by", "__key__", "--right-by", "id", "--as", "json"),
        *("--output", "pairs", "--to", "tar"),
    )
    shards = [load_tar(path) for path in sorted((workspace.root / "pairs").glob("*.tar"))]
    found = {key: members for shard in shards for key, members in shard.items()}
    assert found == {
        f"i/{n}": {"png": bytes([n]), "json": b'{"id":"i/%d","caption":"%d"}' % (n, n)} for n in range(0, 9, 2)
    }
    write_jsonl(workspace.root / "tree.jsonl", [{"id": n, "parent": n // 2 or None} for n in range(1, 12)])
    workspace.succeed(
        *("join", "tree.jsonl", "tree.jsonl", "--by", "parent", "--right-by", "id", "--as", "up"),
        *("--output", "edges", "--to", "jsonl"),
    )
    assert sorted((row["id"], row["up"]["id"]) for row in workspace.records("edges")) == [
        (n, n // 2) for n in range(2, 12)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("nested", [True, False])
def test_columns_are_those_of_both_sides(workspace: Workspace, nested: bool) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sides = {
        "left": {"id": pa.array([1, 2, None], pa.int16()), "when": pa.array([0, 10**15, 5], pa.timestamp("us", "UTC"))},
        "right": {"id": pa.array([2, 3], pa.int64()), "data": pa.array([b"\x00\xff", b""]), "when": pa.array([1.5, 2])},
    }
    for side, columns in sides.items():
        pq.write_table(pa.table(columns), workspace.root / f"{side}.parquet")
    options = ("--as", "of") if nested else ("--suffix", "_r")
    workspace.succeed(
        *("join", "left.parquet", "right.parquet", "--by", "id", "--how", "left", *options),
        *("--output", "out", "--to", "parquet"),
    )
    (path,) = (workspace.root / "out").glob("*.parquet")
    found = pq.read_table(path).sort_by("id")
    left, right = (pa.table(columns) for columns in sides.values())
    row = right.slice(0, 1).to_pylist()[0]
    more = {"of": row} if nested else {"data": row["data"], "when_r": row["when"]}
    expected = [{**one, **(more if one["id"] == 2 else dict.fromkeys(more))} for one in left.to_pylist()]
    assert found.to_pylist() == expected
    assert found.schema.field("id").type == pa.int16()
    assert found.schema.names == [*left.schema.names, *more]


def load_tar(path: Path) -> dict[str, dict[str, bytes]]:
    """Return the members of the samples of a tar, as the standard library reads it."""
    found: dict[str, dict[str, bytes]] = defaultdict(dict)
    with tarfile.open(path) as archive:
        for member in archive:
            key, _, extension = member.name.partition(".")
            content = archive.extractfile(member)
            assert content is not None
            found[key][extension] = content.read()
    return dict(found)
