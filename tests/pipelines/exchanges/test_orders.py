"""``shuffle`` and ``repartition`` as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.pipelines.conftest import Workspace
from tests.pipelines.exchanges.stages import write_jsonl


def write_sources(root: Path) -> list[str]:
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
    lines = write_sources(workspace.root / "one")
    write_sources(workspace.root / "else" / "where")
    options = ("--to", "jsonl", "--seed", "7")
    workspace.succeed("shuffle", "one/*.jsonl", "--output", "s1", *options)
    sizes = ("--task-bytes", "5000", "--shard-bytes", "3000")
    assert workspace.run("shuffle", "else/where/*.jsonl", "--output", "s2", *options, *sizes).status == 0
    assert len(list((workspace.root / "s2").glob("*.jsonl"))) > 3
    shuffled = lines_of(workspace, "s1")
    assert shuffled == lines_of(workspace, "s2")
    assert sorted(shuffled) == sorted(lines)
    assert shuffled != lines
    workspace.succeed("shuffle", "one/*.jsonl", "--output", "s3", "--to", "jsonl", "--seed", "8")
    assert lines_of(workspace, "s3") != shuffled


@pytest.mark.slow
def test_repartition_makes_shards_of_one_size_in_the_same_order(workspace: Workspace) -> None:
    lines = write_sources(workspace.root / "in")
    workspace.succeed(
        *("repartition", "in/*.jsonl", "--output", "out", "--to", "jsonl"),
        *("--task-bytes", "6000", "--shard-bytes", "2500"),
    )
    assert lines_of(workspace, "out") == lines
    sizes = [path.stat().st_size for path in sorted((workspace.root / "out").glob("*.jsonl"))]
    assert len(sizes) > 5
    assert max(sizes) < 2 * 2500
    assert sum(size < 1000 for size in sizes) <= 1  # the rest of a source
