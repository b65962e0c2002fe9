"""The internals of Beam that local runs use, on the installed version of Beam."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

import ledgerbeam
from ledgerbeam.pipelines.runners.pipeline import fn_api_runner
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


def write(path: Path, count: int = 300) -> None:
    path.write_text(
        "".join(json.dumps({"n": number * 7919 % 1009}) + "\n" for number in range(count)), encoding="utf-8"
    )


def numbers(folder: Path) -> list[int]:
    lines = [
        line for path in sorted(folder.glob("**/*.jsonl")) for line in path.read_text(encoding="utf-8").splitlines()
    ]
    return [json.loads(line)["n"] for line in lines]


def keep_odd(record: dict[str, int]) -> dict[str, int] | None:
    return record if record["n"] % 2 else None


def test_one_worker_runs_in_this_process() -> None:
    with beam.Pipeline(fn_api_runner("warning"), PipelineOptions([])) as pipeline:
        _ = pipeline | beam.Create([1, 2, 3]) | beam.Map(lambda number: number + 1)


@pytest.mark.slow
def test_a_command_starts_workers(tmp_path: Path) -> None:
    command = f'exec "{sys.executable}" -m apache_beam.runners.worker.sdk_worker_main'
    marker = tmp_path / "ran"
    options = PipelineOptions(["--direct_num_workers=1"])
    with beam.Pipeline(fn_api_runner("error", command), options) as pipeline:
        _ = pipeline | beam.Create([1]) | beam.Map(lambda _: marker.write_text("ran", encoding="utf-8"))
    assert marker.read_text(encoding="utf-8") == "ran"


@pytest.mark.slow
def test_a_map_and_a_sort_run(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl")
    mapped = ledgerbeam.map(keep_odd, tmp_path / "a.jsonl", output=tmp_path / "mapped", to="jsonl", workers=2)
    assert mapped.complete
    ledgerbeam.sort(tmp_path / "mapped" / "*.jsonl", output=tmp_path / "sorted", to="jsonl", by="n", workers=2)
    found = numbers(tmp_path / "sorted")
    assert found == sorted(numbers(tmp_path / "mapped"))
    assert len(found) > 100


@pytest.mark.slow
def test_a_pipeline_of_a_user_runs(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl")
    pipeline = ledgerbeam.Pipeline(ledger=str(tmp_path / "ledger"), name="own")
    _ = (
        pipeline
        | MatchSources(str(tmp_path / "a.jsonl"))
        | SkipCompleted()
        | PlanTasks()
        | ReadTasks()
        | ProcessTask(MapRecords(keep_odd, "jsonl"))
        | WriteTasks(str(tmp_path / "out"), "jsonl")
        | CommitTasks()
    )
    result: Any = pipeline.run()
    result.raise_for_failures()
    assert all(number % 2 for number in numbers(tmp_path / "out"))
