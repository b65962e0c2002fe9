"""Jobs that ask a model: what a kill, an edit and a refused key cost."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.pipelines.conftest import Workspace
from tests.servers.llm import KEY, LoopbackService, loopback_service

COUNT, FILES, IN_FLIGHT = 100, 3, 4
SCHEMA = {"type": "object", "properties": {"label": {"enum": ["good", "bad"]}}, "required": ["label"]}

LABELLING = """
import os
from ledgerbeam.llm import Chat, ChatBatches

class Label(Chat):
    def result(self, record, answer):
        if record["id"] == 299 and os.path.exists("broken"):
            raise ValueError("broken")
        return super().result(record, answer)
"""


@pytest.fixture
def service() -> Iterator[LoopbackService]:
    with loopback_service(seconds=0.02) as found:
        yield found


@pytest.fixture
def labelling(workspace: Workspace, service: LoopbackService) -> Workspace:
    (workspace.root / "labelling.py").write_text(LABELLING)
    (workspace.root / "schema.json").write_text(json.dumps(SCHEMA))
    for number in range(FILES):
        workspace.jsonl(f"in/{number}.jsonl", COUNT, first=number * COUNT)
    return replace(workspace, env={**workspace.env, "OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": service.url})


def job(function: str = "ledgerbeam.llm:Chat", *more: str) -> tuple[str, ...]:
    words = ("map", function, "in/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L", "--task-bytes", "2K")
    values = ("--set", "model=m", "--set", "prompt=Classify {id}", "--set", "schema=schema.json", "--set", "into=label")
    return (*words, *values, "--workers", "2", "--in-flight", str(IN_FLIGHT), *more)


def require_labels(workspace: Workspace) -> None:
    records = workspace.records("out")
    assert sorted(record["id"] for record in records) == [*range(FILES * COUNT)]
    assert {record["label"]["label"] for record in records} <= {"good", "bad"}


def test_a_refused_key_ends_the_job_and_is_written_nowhere(labelling: Workspace, service: LoopbackService) -> None:
    service.fault = lambda number, body: "401"
    service.errors = {401: {"error": {"message": f"Incorrect API key provided: {KEY}"}}}
    done = labelling.run(*job("ledgerbeam.llm:Chat", "--on-error", "reject"), status=1)
    assert "error: http://127.0.0.1" in done.err
    assert "set OPENAI_API_KEY to a key that may use this model" in done.err
    service.fault = lambda number, body: "invalid" if body["messages"][0]["content"] == "Classify 7" else None
    labelling.succeed(*job("ledgerbeam.llm:Chat", "--on-error", "reject"))
    assert {request.key for request in service.log} == {KEY}
    kept = labelling.succeed("ledger", "rejects", "L").out
    assert "1 record of 1 source: not JSON" in kept
    assert 'answer: {"label":' in kept
    assert labelling.succeed("ledger", "stats", "L", "--json").out.count("prompt_tokens") == 1
    said = done.out + done.err + kept
    assert KEY not in said
    holding = [path for path in labelling.root.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert holding == []


def test_an_edit_of_schema_or_function_asks_nothing_again(labelling: Workspace, service: LoopbackService) -> None:
    (labelling.root / "broken").touch()
    labelling.run(*job("labelling:Label"), status=3)
    (labelling.root / "broken").unlink()
    (labelling.root / "schema.json").write_text(json.dumps({**SCHEMA, "minProperties": 1}))
    labelling.run(*job("labelling:Label"), status=1, err="asset schema")
    labelling.succeed(*job("labelling:Label", "--on-job-change", "accept"))
    require_labels(labelling)
    paid = Counter(service.prompts())
    assert len(paid) == FILES * COUNT
    assert paid.total() - len(paid) <= IN_FLIGHT, "those in flight when the task failed"


@pytest.mark.parametrize(("function", "more"), [("Chat", ("--batch", "5")), ("ChatBatches", ())])
def test_the_option_for_batches_is_that_of_the_client(
    labelling: Workspace, function: str, more: tuple[str, ...]
) -> None:
    done = labelling.run(*job(f"ledgerbeam.llm:{function}", "--on-error", "reject", *more), status=1)
    assert ("leave out --batch" if more else "ChatBatches takes batches of records; add --batch N") in done.err


@pytest.mark.slow
def test_kills_among_faults_pay_again_only_for_what_was_in_flight(
    labelling: Workspace, service: LoopbackService
) -> None:
    service.faults = {"reset": 0.03, "503": 0.03, "429": 0.01}
    service.retry_after = {"retry-after": "1"}
    kills = sum(labelling.is_killed(seconds, *job()) for seconds in (1.5, 2.0, 2.5, 3.0, 3.5))
    labelling.succeed(*job())
    require_labels(labelling)
    assert kills >= 3
    paid = Counter(service.prompts())
    assert len(paid) == FILES * COUNT
    assert paid.total() - len(paid) <= kills * 2 * IN_FLIGHT


@pytest.mark.slow
def test_a_killed_job_awaits_the_batches_that_it_has_sent(labelling: Workspace, service: LoopbackService) -> None:
    service.batch_seconds = 5.0
    words = job("ledgerbeam.llm:ChatBatches", "--batch", "50", "--set", "poll=0.2")
    running = labelling.start(*words)
    while len(service.batches) < 3:
        assert running.poll() is None
        time.sleep(0.05)
    os.killpg(running.pid, signal.SIGKILL)
    running.communicate()
    labelling.succeed(*words)
    require_labels(labelling)
    paid = Counter(service.prompts())
    assert (len(paid), paid.total()) == (FILES * COUNT, FILES * COUNT)
