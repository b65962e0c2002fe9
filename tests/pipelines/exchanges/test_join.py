"""``join``: each record of the left side meets those of the right side of its key, as plain Python finds them."""

from __future__ import annotations

import json
import random
import tarfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.io import Sample
from ledgerbeam.io.tar.writer import encode_tar
from tests.pipelines.conftest import Workspace
from tests.pipelines.exchanges.stages import write_jsonl

JOIN = (
    *("join", "left/*.jsonl", "right/*.jsonl", "--by", "k", "--right-by", "id", "--how", "left"),
    *("--output", "out", "--to", "jsonl", "--ledger", "L", "--task-bytes", "3000", "--shard-bytes", "1500"),
)


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
        others = [other for other in sides["right"] if row["k"] is not None and row["k"] == other["id"]]
        found += [{**row, "right": other["right"], f"x{suffix}": other["x"]} for other in others] or [row]
    return sorted(map(json.dumps, found))


def as_found(workspace: Workspace) -> list[str]:
    return sorted(map(json.dumps, workspace.records("out")))


SUFFIX = ("--suffix", "_r")


def undisturbed(workspace: Workspace) -> dict[str, bytes]:
    """Return what a run leaves that nothing disturbs, after a look at all that it tells."""
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
    workspace.succeed("ledger", "verify", "L")
    return workspace.files("out")


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
    workspace.run(*JOIN, "--json", status=3, err="both sides have a field 'x'; give --suffix TEXT")
    workspace.run(*JOIN, "--as", "other", status=1, err="as: was")
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
        refused = workspace.run(*JOIN, *options, status=2)
        assert said in refused.err
    workspace.run("join", "left/*.jsonl", "no/*.jsonl", *JOIN[3:], status=1, err=f"{workspace.root}/no/*.jsonl")
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
