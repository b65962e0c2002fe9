"""Async functions of jobs, and answers that are not paid twice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import S3Server
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
    if "down" in answer:
        raise ledgerbeam.Unavailable("the model is down", answer["down"])
    return answer

async def label(record):
    answer = await ledgerbeam.remember({{"prompt": record["id"]}}, ask, tokens=10)
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


def test_a_rate_is_kept_by_all_workers_and_nearly_reached(labelling: Workspace, model: LoopbackModel) -> None:
    labelling.succeed(*job("label", "--rate", "100/s", "--in-flight", "30"))
    require_all(labelling)
    assert model.most_within(1) <= 100
    assert len(model.asked) / (model.times[-1] - model.times[0]) >= 60, "a busy machine is slower"


def test_a_budget_ends_the_job_and_a_larger_one_resumes_it(labelling: Workspace, model: LoopbackModel) -> None:
    ended = labelling.run(*job("label", "--budget", "300"), status=3)
    assert "the budget is spent (--budget 300)" in ended.err
    assert len(model.asked) == 300
    status = json.loads(labelling.run("ledger", "status", "L", "--json").out)
    assert status["tasks"]["failed"] == 0
    labelling.run(*job("label", "--budget", "300"), status=3)
    assert len(model.asked) == 300
    labelling.run(*job("label", "--budget", "4000tokens"), status=3)
    labelling.succeed(*job("label", "--budget", "480", "--rate", "100000tokens/min"))
    require_all(labelling)
    assert len(model.asked) == FILES * COUNT


def test_a_service_that_is_down_pauses_the_job(labelling: Workspace, model: LoopbackModel) -> None:
    model.is_down, model.wait = lambda number: 100 <= number < 130, 4.0
    found = labelling.succeed(*job("label", "--record-timeout", "3", "--workers", "1", "--in-flight", "24"))
    require_all(labelling)
    assert "the service is not available (the model is down): calls wait" in found.err
    assert len(model.asked) == FILES * COUNT + 30
    waits = sorted(after - before for before, after in zip(model.times, model.times[1:], strict=False))
    assert waits[-1] > 3.9, "time that a record waits is not its own"


@pytest.mark.s3
def test_hosts_share_a_rate_and_a_budget(labelling: Workspace, model: LoopbackModel, s3: S3Server) -> None:
    ledger = f"{s3.place()}/L"
    words = [ledger if word == "L" else word for word in job("label", "--rate", "40/s", "--budget", "400")]
    places = [{**s3.env, "LEDGERBEAM_CACHE": str(labelling.root / name)} for name in ("one", "two")]
    hosts = [labelling.start(*words, env=place) for place in places]
    said = [host.communicate(timeout=120)[0] for host in hosts]
    assert [host.returncode for host in hosts] == [3, 3], said
    assert model.most_within(1) <= 40
    assert 380 <= len(model.asked) <= 400


def test_limits_are_for_calls_that_are_remembered(labelling: Workspace) -> None:
    (labelling.root / "direct.py").write_text("async def label(record):\n    return record\n")
    words = [word.replace("labelling:", "direct:") for word in job("label", "--rate", "5/s")]
    assert "limited nothing" in labelling.succeed(*words).err
