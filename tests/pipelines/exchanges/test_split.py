"""``split`` and ``group``: what becomes of a record is decided by its key alone."""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.pipelines.calls.values import parse_shares
from ledgerbeam.transforms.exchange.keys import RecordKeys, part_of
from tests.cases import each
from tests.pipelines.conftest import Workspace
from tests.pipelines.exchanges.stages import write_jsonl

KEYS = RecordKeys("hash", ("user",))


def test_shares_hold_and_more_parts_at_the_end_take_from_all() -> None:
    keys = [KEYS.key({"user": n}) for n in range(20_000)]
    found = [part_of(key, (80, 15, 5)) for key in keys]
    counts = [found.count(part) for part in range(3)]
    assert all(abs(count - expected) < 400 for count, expected in zip(counts, (16_000, 3_000, 1_000), strict=True))


def test_a_part_ends_where_its_share_of_all_hashes_ends() -> None:
    for shares in ((1, 1), (80, 15, 5), (1, 2, 4), (7,)):
        total = sum(shares)
        for part in range(len(shares) - 1):
            end = -(-sum(shares[: part + 1]) * 2**64 // total)
            assert part_of((end - 1).to_bytes(8, "big") + b"\xff" * 9, shares) == part
            assert part_of(end.to_bytes(8, "big") + b"\0", shares) == part + 1
        assert part_of(bytes(8), shares) == 0
        assert part_of(b"\xff" * 30, shares) == len(shares) - 1


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("a=1,b=2", (("a", 1), ("b", 2))),
        ({"x": 9}, (("x", 9),)),
        (12, tuple((f"part-{n:02d}", 1) for n in range(12))),
        ("2", (("part-0", 1), ("part-1", 1))),
    ],
)
def test_parts_as_they_are_given(given: Any, meant: Any) -> None:
    assert parse_shares(given) == meant


@each("given", ["", "a", "a=0", "a=x", "a=1,a=2", "0", "_x=1", "a/b=1", {}, 10_001])
def test_what_are_no_parts_is_refused(given: Any) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected"):
        parse_shares(given)


def parts_of(root: Path) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = defaultdict(list)
    for path in sorted(root.glob("[!_]*/*.jsonl")):
        found[path.parent.name] += map(json.loads, path.read_text().splitlines())
    return dict(found)


@pytest.mark.slow
def test_split_as_a_user_runs_it_killed_and_with_more_sources(workspace: Workspace) -> None:
    rows = [{"user": n % 50, "n": n} for n in range(600)]
    for part in range(3):
        write_jsonl(workspace.root / "in" / f"{part}.jsonl", rows[200 * part : 200 * part + 200])
    command = (
        *("split", "in/*.jsonl", "--by", "user", "--parts", "train=3,val=1"),
        *("--output", "out", "--to", "jsonl", "--ledger", "L", "--task-bytes", "1000"),
    )
    workspace.run(*command, "--flush-interval", "0.01", env={"LEDGERBEAM_FAULT": "flush.after_commit:4"})
    ran = workspace.succeed(*command, "--json")
    found = parts_of(workspace.root / "out")
    assert set(found) == {"train", "val"}
    users = {name: {row["user"] for row in some} for name, some in found.items()}
    assert not users["train"] & users["val"]
    for name, some in found.items():
        assert some == [row for row in rows if row["user"] in users[name]]
    assert ran.json["records"]["written"] == {name: len(some) for name, some in found.items()}
    write_jsonl(workspace.root / "in" / "9.jsonl", [{"user": n, "n": -1} for n in range(50)])
    workspace.succeed(*command)
    after = parts_of(workspace.root / "out")
    assert {name: {row["user"] for row in some} for name, some in after.items()} == users


@pytest.mark.slow
def test_parts_of_columns_have_one_schema(workspace: Workspace) -> None:
    import pyarrow.parquet as pq

    write_jsonl(workspace.root / "in" / "a.jsonl", [{"user": n, "x": [n]} for n in range(40)])
    workspace.succeed("split", "in/*.jsonl", "--by", "user", "--parts", "3", "--output", "out", "--to", "parquet")
    tables = [pq.read_table(path) for path in sorted((workspace.root / "out").glob("part-*/*.parquet"))]
    assert len(tables) == 3
    assert len({table.schema.remove_metadata() for table in tables}) == 1
    assert sum(map(len, tables)) == 40


REDUCE = f"{__name__}:listed"


@pytest.mark.slow
def test_group_as_a_user_runs_it(workspace: Workspace) -> None:
    rows: list[dict[str, Any]] = [{"user": f"u{n % 37}", "n": n} for n in range(900)]
    for part in range(3):
        write_jsonl(workspace.root / "in" / f"{part}.jsonl", rows[300 * part : 300 * (part + 1)])
    with (workspace.root / "functions.py").open("a") as file:
        file.write("\ndef total(user, records):\n    return {'user': user, 'sum': sum(r['n'] for r in records)}\n")
    command = (
        *("group", "functions:total", "in/*.jsonl", "--by", "user"),
        *("--output", "out", "--to", "jsonl", "--ledger", "L"),
    )
    sizes = ("--task-bytes", "3000", "--shard-bytes", "3000")
    killed = workspace.run(*command, *sizes, env={"LEDGERBEAM_FAULT": "exchange.tabulated:1"})
    assert killed.status != 0
    ran = workspace.succeed(*command, *sizes, "--json")
    found = workspace.records("out")
    expected: dict[str, int] = defaultdict(int)
    for row in rows:
        expected[row["user"]] += row["n"]
    assert {row["user"]: row["sum"] for row in found} == expected
    assert len(found) == 37
    assert ran.json["records"]["read"] == 900
    workspace.run(*command[:5], "--output", "other", "--to", "parquet", status=2, err="give --schema FILE")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("functions:listed", "--by", "user"), "functions:listed is a generator function"),
        (("functions:alone", "--by", "user"), "expected a function of the key and its records"),
        (("functions:fine", "--by", "functions:listed"), "functions:listed is a generator function"),
    ],
)
def test_what_is_no_function_of_groups_or_of_keys_is_refused_first(
    workspace: Workspace, options: tuple[str, ...], message: str
) -> None:
    write_jsonl(workspace.root / "in" / "a.jsonl", [{"user": 1}])
    with (workspace.root / "functions.py").open("a") as file:
        file.write("\ndef listed(record):\n    yield record\n\ndef alone(user):\n    return user\n")
        file.write("\ndef fine(user, records):\n    return user\n")
    ran = workspace.run("group", *options, "in/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L", status=1)
    assert message in ran.err
    assert not (workspace.root / "out").exists()
    assert not (workspace.root / "L").exists()
