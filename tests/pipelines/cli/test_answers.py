"""Async functions of jobs, and answers that are not paid twice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipelines.conftest import Workspace
from tests.servers.model import LoopbackModel, loopback_model

COUNT, FILES, IN_FLIGHT = 120, 4, 4

LABELLING = """
import asyncio, json, os
import ledgerbeam

async def ask(request):
    reader, writer = await asyncio.open_connection("127.0.0.1", {port})
    writer.write(json.dumps(request).encode() + b"\\n")
    await writer.drain()
    answer = json.loads(await reader.readline())
    writer.close()
    return answer

async def label(record):
    answer = await ledgerbeam.remember({{"prompt": record["id"]}}, ask)
    if record["id"] == 17 and os.path.exists("broken"):
        raise ValueError("broken")
    return {{**record, "label": answer["label"]}}

async def labels(records):
    return [await label(record) for record in records]

def plain(record):
    return asyncio.run(label(record))
"""


@pytest.fixture
def model() -> Iterator[LoopbackModel]:
    with loopback_model() as server:
        yield server


@pytest.fixture
def labelling(workspace: Workspace, model: LoopbackModel) -> Workspace:
    (workspace.root / "labelling.py").write_text(LABELLING.format(port=model.port))
    for number in range(FILES):
        workspace.jsonl(f"in/{number}.jsonl", COUNT, first=number * COUNT)
    return workspace


def job(function: str = "label", *more: str) -> tuple[str, ...]:
    words = ("map", f"labelling:{function}", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L")
    return (*words, "--task-bytes", "4K", "--workers", "2", "--in-flight", str(IN_FLIGHT), *more)


def require_all(workspace: Workspace) -> None:
    assert sorted(row["id"] for row in workspace.records("out")) == [*range(FILES * COUNT)]


def test_a_task_that_fails_has_paid_for_its_answers(labelling: Workspace, model: LoopbackModel) -> None:
    (labelling.root / "broken").touch()
    labelling.run(*job(), status=3)
    kept = json.loads(labelling.succeed("ledger", "answers", "L", "--json").out)
    assert kept["sources"] == 1
    assert 0 < kept["answers"] <= COUNT
    labelling.succeed("ledger", "answers", "L", "--output", "answers.jsonl")
    rows = [json.loads(line) for line in (labelling.root / "answers.jsonl").read_text().splitlines()]
    assert len(rows) == kept["answers"]
    assert {Path(row["source"]).name for row in rows} == {"0.jsonl"}
    (labelling.root / "broken").unlink()
    labelling.succeed(*job())
    require_all(labelling)
    assert len(model.asked) <= FILES * COUNT + 3 * IN_FLIGHT, "those in flight when the task failed are asked again"
    assert json.loads(labelling.succeed("ledger", "answers", "L", "--json").out)["answers"] == 0


def test_batches_and_columns_remember_too(labelling: Workspace, model: LoopbackModel) -> None:
    words = ("annotate", "labelling:labels", "in/0.jsonl", "--output", "columns", "--batch", "10", "--ledger", "C")
    labelling.succeed(*words, "--in-flight", "1", "--workers", "1")
    assert (len(model.asked), model.most) == (COUNT, 1), "also those of the records that showed the columns"


def test_a_function_without_async_is_told_to_be_async(labelling: Workspace) -> None:
    done = labelling.run("map", "labelling:plain", "in/0.jsonl", "--output", "out", "--to", "jsonl", status=3)
    assert "write the function with `async def`" in done.err


@pytest.mark.slow
def test_kills_pay_again_only_for_what_was_in_flight(labelling: Workspace, model: LoopbackModel) -> None:
    kills = sum(labelling.is_killed(seconds, *job()) for seconds in (1.5, 2.0, 2.5, 3.0, 3.5))
    labelling.succeed(*job())
    require_all(labelling)
    assert kills >= 3
    asked = Counter(request["prompt"] for request in model.asked)
    assert len(asked) == FILES * COUNT
    assert len(model.asked) - len(asked) <= kills * 2 * IN_FLIGHT
    first = labelling.files("out")
    labelling.succeed(*job())
    assert labelling.files("out") == first
