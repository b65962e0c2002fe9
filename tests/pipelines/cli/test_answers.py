"""Async functions of jobs, and answers that are not paid twice."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import ledgerbeam
from ledgerbeam.errors import UsageError
from tests.cases import each
from tests.pipelines.conftest import Workspace
from tests.servers.model import LoopbackModel, loopback_model
from tests.servers.s3 import S3Server

COUNT, FILES, IN_FLIGHT = 120, 4, 4

LABELLING = """
import asyncio, json, os
import ledgerbeam

async def ask(request):
    reader, writer = await asyncio.open_connection("127.0.0.1", {port})
    try:  # a call may be cancelled
        writer.write(json.dumps(request).encode() + b"\\n")
        await writer.drain()
        answer = json.loads(await reader.readline())
    finally:
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

def same(record):
    return record

async def swallow(record):
    async def refused(request):
        raise ledgerbeam.errors.ServiceError("the key is wrong")
    try:
        return await ledgerbeam.remember(record["id"], refused if record["id"] == 17 else ask)
    except Exception:
        return record

async def twins(record):
    await ledgerbeam.remember(record["id"] // 4, ask)
    return record

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
    assert len(model.asked) == FILES * COUNT, "calls in progress when the task failed were stored, too"
    assert json.loads(labelling.succeed("ledger", "answers", "L", "--json").out)["answers"] == 0


def test_batches_and_columns_remember_too(labelling: Workspace, model: LoopbackModel) -> None:
    words = ("annotate", "labelling:labels", "in/0.jsonl", "--output", "columns", "--batch", "10", "--ledger", "C")
    labelling.succeed(*words, "--in-flight", "1", "--workers", "1")
    assert (len(model.asked), model.most) == (COUNT, 1), "also those of the records that showed the columns"


def test_a_service_that_refuses_ends_the_job_though_the_function_goes_on(labelling: Workspace) -> None:
    ended = labelling.run(*job("swallow", "--on-error", "reject"), status=1)
    assert "the key is wrong" in ended.err


def test_the_time_of_a_record_is_without_that_of_a_request_like_its_own(
    labelling: Workspace, model: LoopbackModel
) -> None:
    for number in range(1, FILES):
        (labelling.root / f"in/{number}.jsonl").unlink()
    labelling.jsonl("in/0.jsonl", 8)
    labelling.succeed(*job("twins", "--rate", "1/s", "--record-timeout", "1"))
    assert len(model.asked) == 2


@pytest.mark.parametrize("more", [(), ("--then", "labelling:same"), ("--answers", "kept")], ids=["", "a chain", "kept"])
def test_the_job_uses_the_answers_of_its_sample(
    labelling: Workspace, model: LoopbackModel, more: tuple[str, ...]
) -> None:
    labelling.run(*job("label", *more, "--sample", "8"))
    assert len(model.asked) == 8
    labelling.run(*job("label", *more, "--sample", "8", "--budget", "4"))
    labelling.run(*job("label", *more))
    assert len(model.asked) == FILES * COUNT
    labelling.run(*job("label", "--ledger", "M", "--sample", "8", "--budget", "4"), status=3)
    assert len(model.asked) == FILES * COUNT + 4


def test_a_function_without_async_is_told_to_be_async(labelling: Workspace) -> None:
    done = labelling.run("map", "labelling:plain", "in/0.jsonl", "--output", "out", "--to", "jsonl", status=3)
    assert "write the function with `async def`" in done.err


@pytest.fixture(params=["local", pytest.param("s3", marks=[pytest.mark.s3, pytest.mark.slow])])
def kept(request: pytest.FixtureRequest, labelling: Workspace) -> tuple[Workspace, str]:
    """A workspace, and a URL for answers."""
    if request.param == "local":
        return labelling, "kept"
    server: S3Server = request.getfixturevalue("s3")
    return replace(labelling, env={**labelling.env, **server.env}), f"{server.place()}/kept"


def edit(workspace: Workspace, model: LoopbackModel, old: str, new: str) -> None:
    """Edit the function, and forget what was asked."""
    text = (workspace.root / "labelling.py").read_text()
    assert old in text
    (workspace.root / "labelling.py").write_text(text.replace(old, new))
    model.asked.clear()


def another(number: int, *more: str) -> list[str]:
    """Return the job as another one, with an own ledger and output."""
    return [f"{word}{number}" if word in {"L", "out"} else word for word in job(*more)]


def test_kept_answers_are_used_by_other_jobs(kept: tuple[Workspace, str], model: LoopbackModel) -> None:
    workspace, url = kept
    workspace.succeed(*job("label", "--answers", url))
    assert len(model.asked) == FILES * COUNT
    edit(workspace, model, '"label": answer["label"]', '"text": "", "label": [answer["label"]]')
    done = workspace.succeed(*another(2, "label", "--answers", url))
    assert (model.asked, "warning" in done.err) == ([], False)
    first, second = workspace.records("out"), workspace.records("out2")
    assert [row["label"] for row in second] == [[row["label"]] for row in first]
    counted = workspace.succeed("ledger", "answers", "L2", "--json").json
    assert (counted["answers"], counted["kept_at"].endswith("kept")) == (FILES * COUNT, True)

    rows = [{"id": row["id"] + (10_000 if row["id"] % 100 == 50 else 0)} for row in first]
    workspace.write("in/0.jsonl", rows[: FILES * COUNT // 2])
    workspace.write("in/1.jsonl", rows[FILES * COUNT // 2 :])
    for number in range(2, FILES):
        workspace.write(f"in/{number}.jsonl", ())
    workspace.succeed(*another(3, "labels", "--answers", url, "--batch", "7", "--task-bytes", "1K"))
    assert sorted(request["prompt"] for request in model.asked) == [10_050, 10_150, 10_250, 10_350, 10_450]

    model.asked.clear()
    words = ("annotate", "labelling:label", "in/*.jsonl", "--output", "columns", "--answers", url)
    workspace.succeed(*words)
    assert model.asked == [], "also for the records that show the columns"
    workspace.succeed("ledger", "answers", "L", "--forget")
    workspace.succeed(*another(4, "label", "--answers", url))
    assert len(model.asked) == FILES * COUNT


@pytest.mark.slow
def test_jobs_at_once_and_killed_ones_keep_answers(kept: tuple[Workspace, str], model: LoopbackModel) -> None:
    workspace, url = kept
    assert workspace.is_killed(3, *job("label", "--answers", url)) or len(model.asked) == FILES * COUNT
    workspace.succeed(*another(2, "label", "--answers", url))
    assert len({request["prompt"] for request in model.asked}) == FILES * COUNT
    assert len(model.asked) <= FILES * COUNT + 2 * IN_FLIGHT, "only what was in flight is asked again"
    edit(workspace, model, '"prompt": record["id"]', '"prompt": str(record["id"])')
    both = [workspace.start(*another(number, "label", "--answers", url)) for number in (3, 4)]
    said = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    model.asked.clear()
    workspace.succeed(*another(5, "label", "--answers", url))
    assert len(workspace.records("out5")) == FILES * COUNT
    assert model.asked == []


def test_a_job_that_begins_to_keep_answers_keeps_those_that_it_has(labelling: Workspace, model: LoopbackModel) -> None:
    (labelling.root / "broken").touch()
    labelling.run(*job(), status=3)
    before = labelling.succeed("ledger", "answers", "L", "--json").json["answers"]
    (labelling.root / "broken").unlink()
    model.asked.clear()
    labelling.succeed(*job("label", "--answers", "kept"))
    assert len(model.asked) <= COUNT - before
    done = labelling.succeed(*job())
    assert "the last run has kept answers at" in done.err
    assert json.loads(labelling.succeed("ledger", "answers", "L", "--json").out)["answers"] == 0


FLOW = """
root = "flow"

[steps.label]
map = "labelling:label"
sources = "in/*.jsonl"
to = "jsonl"
answers = "kept"
"""

PIPELINE = """
import ledgerbeam as lb
from ledgerbeam.transforms import (
    CommitTasks, MapRecords, MatchSources, PlanTasks, ProcessTask, ReadTasks, SkipCompleted, WriteTasks
)

with lb.Pipeline(ledger="P", name="label", answers="kept", workers=2) as pipeline:
    process = ProcessTask(MapRecords("labelling:label", "jsonl"))
    chain = pipeline | MatchSources("in/*.jsonl") | SkipCompleted() | PlanTasks() | ReadTasks() | process
    chain | WriteTasks("out", "jsonl") | CommitTasks()
"""


@pytest.mark.slow
def test_a_pipeline_uses_the_answers_of_a_flow(labelling: Workspace, model: LoopbackModel) -> None:
    (labelling.root / "flow.toml").write_text(FLOW)
    labelling.succeed("run", "flow.toml")
    assert len(model.asked) == FILES * COUNT
    (labelling.root / "pipeline.py").write_text(PIPELINE)
    labelling.call(sys.executable, "pipeline.py", status=0)
    require_all(labelling)
    assert len(model.asked) == FILES * COUNT
    assert labelling.succeed("ledger", "answers", "P", "--json").json["answers"] == FILES * COUNT
    assert {path.name for path in (labelling.root / "kept").iterdir()} == {"packed"}, "no worker has left a file"


def test_a_pipeline_has_a_budget(labelling: Workspace, model: LoopbackModel) -> None:
    program = PIPELINE.replace('answers="kept"', "budget=BUDGET, rate='200/s'")
    for budget, asked in ((50, 50), (480, FILES * COUNT)):
        (labelling.root / "pipeline.py").write_text(program.replace("BUDGET", str(budget)))
        labelling.call(sys.executable, "pipeline.py")
        assert len(model.asked) == asked
    require_all(labelling)


@each(
    ("url", "said"),
    [
        ("out", "--answers {root}/out: expected a folder apart from --output {root}/out"),
        ("out/answers", "expected a folder apart from --output"),
        (".", "expected a folder apart from --output"),
        ("L/work/answers", "expected a folder apart from --ledger {root}/L"),
        ("file", "expected a folder, found a file; give another --answers"),
        ("hf://datasets/a/b/c", "would be a commit"),
        ("s3://key:secret@bucket/answers", "expected a folder of answers without credentials"),
    ],
)
def test_a_folder_that_cannot_keep_answers_is_refused(
    url: str, said: str, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def label(record: Any) -> Any:
        return record

    monkeypatch.chdir(workspace.root)
    workspace.jsonl("in/a.jsonl", 1)
    (workspace.root / "file").touch()
    with pytest.raises(UsageError) as refused:
        ledgerbeam.map(label, "in/*.jsonl", output="out", to="jsonl", ledger="L", answers=url)
    assert said.format(root=workspace.root) in str(refused.value)
    assert "secret" not in str(refused.value)
    assert not (workspace.root / "L").exists()
    with pytest.raises(UsageError, match="--answers is for async functions"):
        ledgerbeam.map(lambda record: record, "in/*.jsonl", output="out", to="jsonl", ledger="L", answers="kept")


def test_answers_are_exported_in_both_forms(labelling: Workspace) -> None:
    labelling.succeed(*job("label", "--answers", "kept"))
    for name in ("a.jsonl", "a.parquet"):
        labelling.succeed("ledger", "answers", "L", "--output", name)
    rows = [json.loads(line) for line in (labelling.root / "a.jsonl").read_text().splitlines()]
    table = pq.read_table(labelling.root / "a.parquet").to_pylist()
    assert [{**row, "answer": json.loads(row["answer"])} for row in table] == rows
    assert len(rows) == FILES * COUNT


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
    words[words.index("400")] = "1000"
    labelling.succeed(*words, env=places[0])
    require_all(labelling)


def test_limits_are_for_calls_that_are_remembered(labelling: Workspace) -> None:
    (labelling.root / "direct.py").write_text("async def label(record):\n    return record\n")
    words = [word.replace("labelling:", "direct:") for word in job("label", "--rate", "5/s")]
    assert "limited nothing" in labelling.succeed(*words).err


def test_a_limit_of_tokens_ends_a_job_whose_calls_have_none(labelling: Workspace, model: LoopbackModel) -> None:
    ended = labelling.run(*job("twins", "--rate", "1000tokens/s"), status=1)
    assert "tokens=1200" in ended.err
    assert not model.asked
    labelling.succeed(*job("twins"))
    require_all(labelling)


AUDITED = """

seen = []

async def numbered(record):
    seen.append(record["id"])
    answer = await ledgerbeam.remember({"prompt": record["id"]}, ask, tokens=10)
    return {**record, "label": answer["label"], "number": len(seen)}

async def counting(record):
    seen.append(record["id"])
    answer = await ledgerbeam.remember({"prompt": record["id"], "number": len(seen)}, ask, tokens=10)
    return {**record, "label": answer["label"]}

async def replacing(record):
    async def call(request):
        answer = await ask(request)
        return answer["label"] if record["id"] % 5 else int("no number")

    try:
        return {**record, "label": await ledgerbeam.remember({"prompt": record["id"]}, call)}
    except ValueError:
        return {**record, "label": 0.0}
"""


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("label", ""),
        ("numbered", "returned another result when it was audited"),
        ("counting", "made a request that has no stored answer: it depends on more than the record"),
        ("replacing", "or its call had failed"),
    ],
)
def test_the_audit_uses_the_stored_answers(
    labelling: Workspace, model: LoopbackModel, function: str, message: str
) -> None:
    program = labelling.root / "labelling.py"
    program.write_text(program.read_text() + AUDITED)
    differs = "returned another result" in message
    ran = labelling.run(*job(function, "--audit", "100%", "--in-flight", "1"), status=1 if differs else 0)
    assert message in ran.err
    assert set(Counter(request["prompt"] for request in model.asked).values()) == {1}, "the audit calls nothing"
    status = json.loads(labelling.run("ledger", "status", "L", "--json").out)
    assert status["audit"]["differ"] == differs
    assert differs or message or status["audit"]["tasks"] >= FILES, status["audit"]
