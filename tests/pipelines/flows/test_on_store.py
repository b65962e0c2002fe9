"""A flow whose sources, outputs and ledgers are on an object store."""

from __future__ import annotations

import json
from typing import Any

import pytest
import s3fs

import ledgerbeam
from ledgerbeam.errors import TasksFailedError
from tests.conftest import S3Server


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
