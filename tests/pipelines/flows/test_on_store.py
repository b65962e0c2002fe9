"""Flows on an object store, and flows of all commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import s3fs

import ledgerbeam
from ledgerbeam.errors import TasksFailedError
from ledgerbeam.pipelines.flows.step import COMMANDS
from tests.conftest import S3Server
from tests.pipelines.exchanges.test_near import rows_of
from tests.pipelines.flows.world import write_lines


def put(store: Any, bucket: str, name: str, numbers: range) -> None:
    lines = "".join(json.dumps({"n": n, "text": f"text {n % 50}"}) + "\n" for n in numbers)
    store.pipe_file(f"{bucket}/in/{name}.jsonl", lines.encode())


def flow_of(s3: S3Server, bucket: str, root: str) -> ledgerbeam.Flow:
    return ledgerbeam.Flow(
        f"s3://{bucket}/{root}",
        {
            "clean": {"convert": True, "sources": f"s3://{bucket}/in/*.jsonl"},
            "unique": {"dedup": True, "from": "clean", "by": "text"},
            "packed": {"convert": True, "from": "unique", "pack": "2K"},
            "tokens": {"tokenize": "bytes", "from": "unique"},
        },
        defaults={"to": "jsonl", "task_bytes": 500, "workers": 1, "storage_options": s3.options},
    )


def contents(store: Any, bucket: str, root: str) -> dict[str, bytes]:
    """Return what a flow has written by name; what was packed as one, since URLs decide how packs are cut."""
    found = [name for name in store.find(f"{bucket}/{root}") if "/output/" in name and "/_ledgerbeam/" not in name]
    made = {name.removeprefix(f"{bucket}/{root}"): store.cat_file(name) for name in found}
    packed = sorted(name for name in made if name.startswith("/packed/"))
    shards = [made.pop(name) for name in packed if name.endswith(".jsonl")]
    return {**{name: data for name, data in made.items() if name not in packed}, "/packed": b"".join(shards)}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_flow_on_a_store(s3: S3Server) -> None:
    bucket = s3.bucket()
    store = s3fs.S3FileSystem(**s3.options, skip_instance_cache=True, use_listings_cache=False)
    for number, name in enumerate("abc"):
        put(store, bucket, name, range(10 * number, 10 * number + 60))
    flow = flow_of(s3, bucket, "flow")
    first = flow.run().raise_for_failures()
    assert first.tasks
    assert flow.plan().is_complete
    assert flow.run().tasks == 0

    put(store, bucket, "b", range(30, 45))
    put(store, bucket, "d", range(5))
    store.rm_file(f"{bucket}/in/c.jsonl")
    plan = flow.plan()
    assert plan.steps["clean"].withdrawn == 1
    assert plan.steps["clean"].sources == 2
    done = flow.run().raise_for_failures()
    flow_of(s3, bucket, "fresh").run().raise_for_failures()
    assert contents(store, bucket, "flow") == contents(store, bucket, "fresh")
    assert done["clean"].sources == 2

    shard = next(name for name in store.find(f"{bucket}/flow/clean/output") if "/d.jsonl" in name and name[-1] == "l")
    good = store.cat_file(shard)
    put(store, bucket, "d", range(1, 6))
    flow.run("clean").raise_for_failures()
    store.pipe_file(shard, good)  # other bytes of the same size than were recorded
    with pytest.raises(TasksFailedError, match="it was edited or damaged"):
        flow.run().raise_for_failures()
    store.rm_file(shard)
    flow.run().raise_for_failures()
    flow_of(s3, bucket, "last").run().raise_for_failures()
    assert contents(store, bucket, "flow") == contents(store, bucket, "last")


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
