"""The counters of the transforms, as each engine gives them to the program that started the job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.options.pipeline_options import PipelineOptions

from ledgerbeam.ledger import Job
from ledgerbeam.ledger.opening import open_local_store
from ledgerbeam.sources.listing import SourceListing
from ledgerbeam.transforms import (
    CommitTasks,
    MapRecords,
    MatchSources,
    PlanTasks,
    ProcessTask,
    ReadTasks,
    SkipCompleted,
    WriteTasks,
)
from ledgerbeam.transforms.chain.base import ChainValues, LedgerHandle
from ledgerbeam.transforms.on_beam import give_values
from tests.matrix.conftest import STARTS
from tests.servers import pins
from tests.servers.engine import Engine
from tests.servers.flink import FlinkCluster

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.timeout(600)]

FILES = 3
RECORDS = 40

# Of which is known only that they are above 0.
TIMES = ("commit_ms", "encode_us", "function_us", "ledger_us", "publish_us", "read_us", "set_up_ms")
# Prism on a busy machine now and then tells nothing of a bundle that is done: what it then gives is too low.
ATTEMPTS = {"Prism": 3}


@pytest.mark.parametrize("name", ["FnApiRunner", *STARTS])
def test_the_counters_of_a_job_add_up(tmp_path: Path, name: str) -> None:
    for attempt in range(ATTEMPTS.get(name, 1)):
        folder = tmp_path / str(attempt)
        found, expected = first_and_second_run(folder, name)
        if found == expected:
            return
        assert all(found.get(counter, 0) <= count for counter, count in expected.items())
    assert found == expected


def first_and_second_run(folder: Path, name: str) -> tuple[dict[str, int], dict[str, int]]:
    """Return the counters of a job's first run with those of its second, and what they should be."""
    write_sources(folder / "in")
    missing, start = STARTS.get(name, (lambda: None, lambda _: nullcontext()))
    if missing() is not None:
        pytest.skip(missing())
    with start(folder / "engine") as engine:
        found = run_counted(folder, engine)
        if isinstance(engine, FlinkCluster):
            assert [told for told in accumulators(engine) if "tasks_committed" in told]
        again = run_counted(folder, engine)
    for counter in TIMES:
        found[counter] = min(found.get(counter, 0), 1)
        again.pop(counter, None)  # some engines begin and end bundles in which nothing was
    for counters in (found, again):
        counters.pop("index_us", None)  # some engines index in processes that record nothing, and so tell nothing
    tasks, records = FILES * RECORDS // TASK_RECORDS, FILES * RECORDS
    outputs = list((folder / "out").glob("*.jsonl"))
    expected = {
        **dict.fromkeys(TIMES, 1),
        "sources_open": FILES,
        "tasks_planned": tasks,
        "records_read": records,
        "records_written": records // 2,
        "bytes_written": sum(path.stat().st_size for path in outputs),
        "tasks_committed": tasks,
    }
    assert again.keys() <= {"sources_skipped"}
    return {**found, **again}, {**expected, "sources_skipped": FILES}


def accumulators(cluster: FlinkCluster) -> list[str]:
    """Return what Flink's own page shows of each job's accumulators."""
    urls = [f"{cluster.endpoint}/jobs/{job}/accumulators" for job in cluster.jobs()]
    return [urllib.request.urlopen(url, timeout=30).read().decode() for url in urls]


def write_sources(folder: Path) -> None:
    folder.mkdir(parents=True)
    for number in range(FILES):
        rows = [{"id": number * RECORDS + record} for record in range(RECORDS)]
        (folder / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def run_counted(folder: Path, engine: Engine | None) -> dict[str, int]:
    options = ["--runner=FnApiRunner"] if engine is None else engine.options
    command = [sys.executable, "-m", "tests.matrix.test_counters", str(folder), *options]
    where: dict[str, Any] = {"env": pins.environment(), "timeout": 240}
    ran = subprocess.run(command, **where, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    told: dict[str, int] = json.loads(ran.stdout.splitlines()[-1])
    return {counter: value for counter, value in told.items() if value}  # not every engine tells of zeros


TASK_RECORDS = 10


def counted(folder: str, options: Sequence[str]) -> dict[str, int]:
    """Run the chain over `FOLDER/in`; return each counter, and of each distribution how many values it has."""
    job = Job("counted", {"folder": folder})
    store = open_local_store(f"{folder}/ledger", create=True)
    store.open_job(job)
    pipeline = beam.Pipeline(options=PipelineOptions(list(options)))
    (
        pipeline
        | MatchSources()
        | SkipCompleted()
        | PlanTasks(task_records=TASK_RECORDS)
        | ReadTasks()
        | ProcessTask(MapRecords("tests.matrix.work:count", "jsonl"))
        | WriteTasks(f"{folder}/out", "jsonl")
        | CommitTasks()
    )
    listing = SourceListing((f"{folder}/in/*.jsonl",))
    give_values(pipeline, ChainValues(LedgerHandle(store.url, job.fingerprint), listing, base=f"{folder}/in/"))
    result = pipeline.run()
    result.wait_until_finish()
    found = result.metrics().query(MetricsFilter().with_namespace("ledgerbeam"))
    # `result` is what was committed, where a runner tells it, else what was attempted.
    told: Counter[str] = Counter()
    for row in found["counters"]:
        told[row.key.metric.name] += row.result or 0
    for row in found["distributions"]:
        told[row.key.metric.name] += row.result.count if row.result else 0
    store.close()
    return told


if __name__ == "__main__":
    print(json.dumps(counted(sys.argv[1], sys.argv[2:])))
    # A thread of gRPC that Beam leaves behind may hold a lock which the interpreter waits for as it ends, for ever.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
