"""Every command can be a step, and its outputs, where they are files of records, the sources of another one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ledgerbeam
from ledgerbeam.pipelines.flows.step import COMMANDS
from tests.pipelines.exchanges.test_near import rows_of
from tests.pipelines.flows.world import write_lines


def counted(key: Any, records: Iterator[Any]) -> dict[str, Any]:
    return {"k": key, "number": sum(1 for _ in records)}


def with_text(record: Any) -> Any:
    return {**record, "text": record["text"] or ""}


STEPS: dict[str, dict[str, Any]] = {
    "mapped": {"map": with_text, "sources": "in/*.jsonl", "to": "parquet"},
    "plain": {"convert": True, "from": "mapped"},
    "packed": {"convert": True, "from": "plain", "pack": "64K", "to": "tar"},
    "compressed": {"convert": True, "from": "plain", "compress": "zstd"},
    "parts": {"split": True, "from": "compressed", "by": "k", "parts": {"train": 3, "val": 1}},
    "sorted": {"sort": True, "from": "parts/train", "by": "k", "shard_bytes": "3K"},
    "shuffled": {"shuffle": True, "from": "sorted", "seed": 3},
    "resized": {"repartition": True, "from": "shuffled", "shard_bytes": "3K"},
    "numbers": {"group": counted, "from": ["parts/train", "parts/val"], "by": "k"},
    "joined": {"join": True, "left_from": "resized", "right_from": "numbers", "by": "k"},
    "unlike": {"dedup": True, "from": "joined", "near": "text", "minhash": "6x2", "ngram": 2},
    "marked": {"dedup": True, "from": "joined", "by": "k", "mark": True},
    "tokens": {"tokenize": "bytes", "from": "unlike"},
}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_chain_of_all_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert {command for step in STEPS.values() for command in step if command in COMMANDS} == {*COMMANDS}
    for name in "ab":
        rows = [{**row, "k": number % 11} for number, row in enumerate(rows_of(name, 60))]
        write_lines(tmp_path / "in" / f"{name}.jsonl", rows)
    flow = ledgerbeam.Flow("flow", STEPS, defaults={"to": "jsonl", "workers": 1, "task_bytes": "4K"})
    done = flow.run().raise_for_failures()
    assert all(result.tasks for result in done.steps.values())
    assert sum(row["records"] for row in done["joined"].outputs) == sum(
        row["records"] for row in done["resized"].outputs
    )
    assert [str(step) for step in flow.plan().steps.values() if not step.is_complete] == []
    assert flow.run().tasks == 0
    (tmp_path / "in" / "b.jsonl").unlink()
    (tmp_path / "in" / "b.jsonl.idx").unlink()
    after = flow.run().raise_for_failures()
    assert flow.plan().is_complete
    assert {row["source"] for row in after["mapped"].outputs} == {str(tmp_path / "in" / "a.jsonl")}
    left = sum(row["records"] for row in after["numbers"].outputs)
    assert left == 11


@pytest.mark.slow
def test_what_is_withdrawn_leaves_exchanges_on_other_runners_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in "abc":
        write_lines(tmp_path / "in" / f"{name}.jsonl", [{"k": n, "of": name} for n in range(4)])
    steps: dict[str, dict[str, Any]] = {
        "first": {"convert": True, "sources": "in/*.jsonl"},
        "sorted": {"sort": True, "from": "first", "by": "k"},
        "unique": {"dedup": True, "from": "first", "by": "k"},
    }
    flow = ledgerbeam.Flow("flow", steps, defaults={"to": "jsonl", "workers": 1})
    options = ["--runner=BundleBasedDirectRunner"]
    flow.run(options=options).raise_for_failures()
    for name in ("a.jsonl", "a.jsonl.idx"):
        (tmp_path / "in" / name).unlink()
    flow.run(options=options).raise_for_failures()
    for step, records in (("sorted", 8), ("unique", 4)):
        lines = [path.read_text() for path in (tmp_path / "flow" / step / "output").glob("*.jsonl")]
        assert "".join(lines).count("\n") == records, step
        assert '"a"' not in "".join(lines)
    assert flow.run(options=options).tasks == 0
