"""``sort``, ``shuffle`` and ``repartition`` as a user runs them: right, and again when sources or files change."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.pipelines.conftest import Workspace, make_workspace
from tests.pipelines.exchanges.stages import write_jsonl

SORT = (
    *("sort", "in/*.jsonl", "--by", "k", "--output", "out", "--to", "jsonl", "--ledger", "L"),
    *("--task-bytes", "4000", "--shard-bytes", "4000"),
)


def rows(name: str, count: int, *, seed: int = 0) -> list[dict[str, Any]]:
    chosen = random.Random(f"{name}{seed}")
    return [{"k": chosen.choice([None, n % 7, "x", 0.5 * n]), "name": name, "n": n} for n in range(count)]


def write_sources(workspace: Workspace, names: str = "abcd", count: int = 200) -> None:
    for name in names:
        write_jsonl(workspace.root / "in" / f"{name}.jsonl", rows(name, count))


def order(row: dict[str, Any]) -> tuple[Any, ...]:
    k = row["k"]
    return (2, 0) if k is None else (1, k) if isinstance(k, str) else (0, k)


def expected(workspace: Workspace, key: Callable[[dict[str, Any]], Any] = order) -> list[dict[str, Any]]:
    """Return what lies in the sources now, as plain Python sorts it."""
    found: list[dict[str, Any]] = []
    for path in sorted((workspace.root / "in").glob("*.jsonl")):
        found += map(json.loads, path.read_text().splitlines())
    return sorted(found, key=key)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The outputs of a run that nothing disturbed."""
    workspace = make_workspace(tmp_path_factory.mktemp("clean"))
    write_sources(workspace)
    workspace.succeed(*SORT, "--workers", "2")
    assert workspace.records("out") == expected(workspace)
    return workspace.files("out")


@pytest.mark.slow
def test_the_shards_by_their_names_are_the_sorted_corpus(workspace: Workspace, clean: dict[str, bytes]) -> None:
    write_sources(workspace)
    ran = workspace.succeed(*SORT, "--json")
    assert workspace.records("out") == expected(workspace)
    assert workspace.files("out") == clean, "not the same bytes with one worker"
    assert (workspace.root / "out" / "_runs").exists() is False
    found = ran.json
    assert found["complete"] is True
    assert found["sources"] == {"complete": 4, "open": 0, "failed": 0}
    assert found["done"]["records"]["read"] == 800
    assert set(found["stages"]) == {"scatter", "gather"}
    assert (
        found["stages"]["scatter"]["done"]["tasks"] + found["stages"]["gather"]["done"]["tasks"]
        == found["done"]["tasks"]
    )
    workspace.succeed("ledger", "verify", "L")
    again = workspace.run(*SORT, "--json")
    assert (again.status, again.json["done"]["tasks"], again.json["skipped"]) == (0, 0, 4)
    assert workspace.files("out") == clean


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ("--descending", "--nulls", "first"),
        ("--by", "name,n", "--pack", "20000"),
        ("--by", "functions:own_key"),
        ("--bucket-bytes", "100000"),
    ],
)
def test_keys_are_ordered_as_asked(workspace: Workspace, options: tuple[str, ...]) -> None:
    write_sources(workspace)
    with (workspace.root / "functions.py").open("a") as file:
        file.write("\ndef own_key(record):\n    return record['n'] % 5, record['name']\n")
    workspace.succeed(*SORT, *options)
    found = workspace.records("out")
    if "--descending" in options:
        groups = [[row for row in expected(workspace, lambda _: 0) if order(row)[0] == rank] for rank in (2, 1, 0)]
        groups[2].sort(key=lambda row: -row["k"])
        assert found == [row for group in groups for row in group]
    elif "name,n" in options:
        assert found == expected(workspace, lambda row: (row["name"], row["n"]))
    elif "functions:own_key" in options:
        assert found == expected(workspace, lambda row: (row["n"] % 5, row["name"]))
    else:
        assert found == expected(workspace)


@pytest.mark.slow
@pytest.mark.parametrize("keep", [True, False])
def test_a_run_after_any_change_is_a_run_from_nothing(workspace: Workspace, keep: bool) -> None:
    write_sources(workspace, count=80)
    options = ("--keep-runs",) if keep else ()
    workspace.succeed(*SORT, *options)
    first = workspace.files("out")

    def changed() -> dict[str, Any]:
        ran = workspace.succeed(*SORT, *options, "--json")
        assert workspace.records("out") == expected(workspace)
        assert (workspace.root / "out" / "_runs").exists() is keep
        return dict(ran.json["stages"])

    write_jsonl(workspace.root / "in" / "bb.jsonl", [{"k": 3, "name": "bb", "n": 0}])
    stages = changed()
    assert stages["scatter"]["done"]["tasks"] == (1 if keep else stages["scatter"]["tasks"]["done"] - 1), "of the rest"
    assert stages["gather"]["done"]["tasks"] < stages["gather"]["tasks"]["done"], "buckets that did not change"
    time.sleep(0.01)
    write_jsonl(workspace.root / "in" / "c.jsonl", rows("c", 50, seed=1))
    changed()
    for path in (workspace.root / "in").glob("bb.jsonl*"):
        path.unlink()
    write_jsonl(workspace.root / "in" / "c.jsonl", rows("c", 80))
    changed()
    kept = {name: data for name, data in workspace.files("out").items() if not name.startswith("_runs/")}
    assert kept == {name: data for name, data in first.items() if not name.startswith("_runs/")}


def remake_run_files(workspace: Workspace, command: Sequence[str], folder: str) -> Any:
    """Remove a run file, cut another and damage a third; return the run that writes all three again."""
    lost, cut, flipped, *_ = sorted((workspace.root / "out" / folder).rglob("*.run"))
    lost.unlink()
    whole = cut.read_bytes()
    cut.write_bytes(whole[:-7])
    workspace.run(*command, status=1, err=f"{cut}: expected {len(whole):,} bytes")
    cut.unlink()
    data = bytearray(flipped.read_bytes())
    data[40] ^= 1
    flipped.write_bytes(data)
    said = f"{flipped}: the table of blocks at byte 8 does not match its checksum; delete this file"
    workspace.run(*command, status=3, err=said)
    flipped.unlink()
    return workspace.succeed(*command, "--json").json


@pytest.mark.slow
def test_a_run_file_that_is_lost_or_damaged_before_the_gather_is_written_again(
    workspace: Workspace, clean: dict[str, bytes]
) -> None:
    write_sources(workspace)
    workspace.run(*SORT, env={"LEDGERBEAM_FAULT": "exchange.tabulated:1"})
    remake_run_files(workspace, SORT, "_runs")
    assert workspace.files("out") == clean


@pytest.mark.slow
def test_outputs_that_are_gone_are_written_again(workspace: Workspace, clean: dict[str, bytes]) -> None:
    write_sources(workspace)
    workspace.succeed(*SORT)
    (workspace.root / "out" / sorted(clean)[0]).unlink()
    ran = workspace.succeed(*SORT, "--json")
    assert ran.json["stages"]["gather"]["done"]["tasks"] == 1
    assert workspace.files("out") == clean


def test_a_source_that_cannot_be_read_ends_it_before_anything_is_written(workspace: Workspace) -> None:
    write_sources(workspace, "ab", 20)
    with (workspace.root / "in" / "b.jsonl").open("a") as file:
        file.write("{]\n")
    ran = workspace.run(*SORT, "--json", status=3, err="record 20, bytes")
    assert not workspace.records("out")
    assert ran.json["stages"]["scatter"]["tasks"]["failed"] == 1
    assert f"ledger failures {workspace.root / 'L'}\n" in ran.err


@pytest.mark.slow
def test_another_key_is_another_job(workspace: Workspace) -> None:
    write_sources(workspace, "a", 20)
    workspace.succeed(*SORT)
    other = [("n" if word == "k" else word) for word in SORT]
    workspace.run(*other, status=1, err="by: was 'k', is 'n'")
    workspace.succeed(*other, "--on-job-change", "restart")
    assert workspace.records("out") == expected(workspace, lambda row: row["n"])


def test_a_dry_run_writes_nothing(workspace: Workspace) -> None:
    write_sources(workspace, "ab", 20)
    ran = workspace.succeed(*SORT, "--dry-run", "--json")
    assert ran.json["sources"]["new"] == 2
    assert sorted(path.name for path in workspace.root.iterdir() if not path.name.startswith(".")) == [
        "functions.py",
        "in",
    ]


def test_more_slices_than_any_number_of_rounds_allows_are_refused_with_what_helps(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ledgerbeam.errors import UsageError
    from ledgerbeam.pipelines.calls.exchanges import sort

    write_sources(workspace)
    monkeypatch.chdir(workspace.root)
    with pytest.raises(
        UsageError, match=r"At most 20 are allowed, .* such as --task-bytes .* or a larger --max-slices"
    ):
        sort("in/*.jsonl", by="k", output="out", to="jsonl", task_bytes=2000, shard_bytes=2000, max_slices=20)


@pytest.mark.slow
def test_rows_of_parquet_are_sorted_with_their_types(workspace: Workspace) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (workspace.root / "in").mkdir()
    table = pa.table(
        {
            "k": pa.array([3, 1, None, 2], pa.int16()),
            "x": pa.array([float("nan"), 1.5, float("inf"), None], pa.float32()),
            "data": pa.array([b"\x00\xff", b"", None, b"z"]),
            "when": pa.array([0, 10**15, None, 5], pa.timestamp("us", "UTC")),
        }
    )
    pq.write_table(table, workspace.root / "in" / "a.parquet")
    workspace.succeed("sort", "in/*.parquet", "--by", "k", "--output", "out", "--to", "parquet")
    (path,) = (workspace.root / "out").glob("*.parquet")
    found = pq.read_table(path)
    assert found.schema.remove_metadata() == table.schema.remove_metadata()
    assert str(found.to_pydict()) == str(table.take([1, 3, 0, 2]).to_pydict())  # nan is not equal to itself


def write_unequal_sources(root: Path) -> list[str]:
    """Write sources of very different sizes; return their lines in order."""
    lines = []
    for name, count in (("a", 3), ("b", 400), ("c", 0), ("d", 150)):
        rows = [{"id": f"{name}{n}", "text": "x" * (n % 40)} for n in range(count)]
        write_jsonl(root / f"{name}.jsonl", rows)
        lines += [json.dumps(row) for row in rows]
    return lines


def lines_of(workspace: Workspace, folder: str) -> list[str]:
    found = workspace.files(folder)
    return [line for name in found if name.endswith(".jsonl") for line in found[name].decode().splitlines()]


@pytest.mark.slow
def test_a_shuffle_is_the_same_wherever_the_files_lie_and_however_they_are_cut(workspace: Workspace) -> None:
    lines = write_unequal_sources(workspace.root / "one")
    write_unequal_sources(workspace.root / "else" / "where")
    options = ("--to", "jsonl", "--seed", "7")
    workspace.succeed("shuffle", "one/*.jsonl", "--output", "s1", *options)
    sizes = ("--task-bytes", "5000", "--shard-bytes", "3000")
    workspace.succeed("shuffle", "else/where/*.jsonl", "--output", "s2", *options, *sizes)
    assert len(list((workspace.root / "s2").glob("*.jsonl"))) > 3
    shuffled = lines_of(workspace, "s1")
    assert shuffled == lines_of(workspace, "s2")
    assert sorted(shuffled) == sorted(lines)
    assert shuffled != lines
    workspace.succeed("shuffle", "one/*.jsonl", "--output", "s3", "--to", "jsonl", "--seed", "8")
    assert lines_of(workspace, "s3") != shuffled


@pytest.mark.slow
def test_repartition_makes_shards_of_one_size_in_the_same_order(workspace: Workspace) -> None:
    lines = write_unequal_sources(workspace.root / "in")
    workspace.succeed(
        *("repartition", "in/*.jsonl", "--output", "out", "--to", "jsonl"),
        *("--task-bytes", "6000", "--shard-bytes", "2500"),
    )
    assert lines_of(workspace, "out") == lines
    sizes = [path.stat().st_size for path in sorted((workspace.root / "out").glob("*.jsonl"))]
    assert len(sizes) > 5
    assert max(sizes) < 2 * 2500
    assert sum(size < 1000 for size in sizes) <= 1  # the rest of a source
