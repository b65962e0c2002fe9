"""The counters of the transforms, as each engine gives them to the program that started the job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.matrix.counted_job import TASK_RECORDS
from tests.servers import flink, pins, prism, spark
from tests.servers.engine import Engine
from tests.servers.flink import FlinkCluster

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.timeout(600)]

FILES = 3
RECORDS = 40

ENGINES: dict[str, tuple[Any, Any]] = {
    "Prism": (prism.missing, prism.prism),
    "Flink": (flink.missing, flink.flink_cluster),
    "Spark": (spark.missing, spark.spark_cluster),
}


TIMES = ("commit_ms", "encode_us", "function_us", "ledger_us", "publish_us", "read_us", "set_up_ms")
"""Of which is known only that they are above 0."""

ATTEMPTS = {"Prism": 3}
"""Prism on a busy machine now and then tells nothing of a bundle that is done: what it then gives is too low."""


@pytest.mark.parametrize("name", ["FnApiRunner", *ENGINES])
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
    missing, start = ENGINES.get(name, (lambda: None, lambda _: nullcontext()))
    if missing() is not None:
        pytest.skip(missing())
    with start(folder / "engine") as engine:
        found = counted(folder, engine)
        if isinstance(engine, FlinkCluster):
            assert [told for told in accumulators(engine) if "tasks_committed" in told]
        again = counted(folder, engine)
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


def counted(folder: Path, engine: Engine | None) -> dict[str, int]:
    options = ["--runner=FnApiRunner"] if engine is None else engine.options
    paths = os.pathsep.join(filter(None, [str(pins.ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "tests.matrix.counted_job", str(folder), *options]
    ran = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=240, check=False
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    told: dict[str, int] = json.loads(ran.stdout.splitlines()[-1])
    return {counter: value for counter, value in told.items() if value}  # not every engine tells of zeros
