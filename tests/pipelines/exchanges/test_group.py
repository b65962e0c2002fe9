"""``group``: each key once, with all of its records in their order, streamed."""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgerbeam import Drop, Route
from ledgerbeam.io.exchange import merge
from ledgerbeam.io.exchange.slices import Partition
from ledgerbeam.ledger import FailedTask, NoneTask
from ledgerbeam.transforms.exchange.gather import GroupRecords
from ledgerbeam.transforms.exchange.keys import RecordKeys
from tests.pipelines.conftest import Workspace
from tests.pipelines.exchanges.stages import Stages, by_file, write_jsonl

REDUCE = f"{__name__}:listed"
KEY = st.none() | st.integers(0, 3) | st.sampled_from([1.0, True, "a", "b"])


def listed(key: Any, records: Iterator[dict[str, Any]]) -> dict[str, Any]:
    return {"key": key, "numbers": [record["n"] for record in records]}


def first_only(key: Any, records: Iterator[dict[str, Any]]) -> Any:
    record = next(records)
    if key == 2:
        return Drop("two")
    return Route("odd", record) if record["n"] % 2 else [record, {"again": record["n"]}]


def counted(key: Any, records: Iterator[dict[str, Any]]) -> dict[str, Any]:
    return {"key": key, "count": sum(1 for _ in records)}


def failing(key: Any, records: Iterator[dict[str, Any]]) -> Any:
    raise KeyError(f"nothing for {key} and {next(records)['n']}")


def how_many(key: Any, records: Iterator[dict[str, Any]]) -> Any:
    return sum(1 for _ in records)


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
        done = stages.gather(GroupRecords(REDUCE, "jsonl", by=record_keys))
    groups = [json.loads(line) for task in done for line in task.records.datasets[""].data.splitlines()]
    expected = by_key([row for rows in files.values() for row in rows])
    assert {(isinstance(group["key"], bool), group["key"]): group["numbers"] for group in groups} == expected
    assert len(groups) == len(expected)
    for task in done:
        counts = task.records.counts
        assert counts.read == counts.kept
    assert sum(task.records.counts.read for task in done) == sum(map(len, keys))


def made(tmp_path: Path, rows: list[Any], reference: str) -> list[Any]:
    keys = RecordKeys("hash", ("k",))
    stages = Stages(tmp_path, keys, [], 10**6, within_keys=False)
    stages.scatter(by_file(tmp_path / "in", {"a": rows}))
    return stages.gather(GroupRecords(reference, "jsonl", by=keys))


def test_results_are_those_of_a_function_of_map_and_counts_are_of_records(tmp_path: Path) -> None:
    rows = [{"k": n % 3, "n": n} for n in range(9)]
    (done,) = made(tmp_path, rows, f"{__name__}:first_only")
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


def test_a_function_that_raises_fails_its_task_and_names_the_key(tmp_path: Path) -> None:
    (done,) = made(tmp_path, [{"k": "x", "n": 5}], f"{__name__}:failing")
    assert isinstance(done, FailedTask)
    assert done.reason == "KeyError"
    assert "the key 'x': raised KeyError: 'nothing for x and 5'" in done.error


def test_a_bare_value_for_records_that_are_objects_fails_its_task(tmp_path: Path) -> None:
    (done,) = made(tmp_path, [{"k": "x", "n": 5}], f"{__name__}:how_many")
    assert isinstance(done, FailedTask)
    assert "returned a int for a record that is a dict" in done.error
    (done,) = made(tmp_path / "bare", [5, 5], f"{__name__}:how_many")
    assert done.records.datasets[""].data == b"2\n"


def test_nothing_that_is_kept_is_no_output(tmp_path: Path) -> None:
    (done,) = made(tmp_path, [{"k": 2, "n": 0}], f"{__name__}:first_only")
    assert isinstance(done, NoneTask)
    assert done.counts is not None
    assert done.counts.dropped == {"two": 1}


def test_a_heavy_key_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "HELD_BYTES", 1)
    held: list[int] = []
    original = merge._merge_blocks

    def watched(parts: Any) -> Any:
        found = original(parts)
        held.append(len(found.keys))
        return found

    monkeypatch.setattr(merge, "_merge_blocks", watched)
    (done,) = made(tmp_path, [{"k": "hot", "n": n} for n in range(400)], f"{__name__}:counted")
    assert [json.loads(line) for line in done.records.datasets[""].data.splitlines()] == [{"key": "hot", "count": 400}]
    assert len(held) > 50
    assert max(held) < 20


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
    refused = workspace.run(*command[:5], "--output", "other", "--to", "parquet")
    assert refused.status == 2
    assert "give --schema FILE" in refused.err


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
    ran = workspace.run("group", *options, "in/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L")
    assert ran.status == 1
    assert message in ran.err
    assert not (workspace.root / "out").exists()
    assert not (workspace.root / "L").exists()
