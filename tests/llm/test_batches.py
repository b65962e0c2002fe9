"""Batch endpoints: requests in files, answers that are paid once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam import Reject
from ledgerbeam.answers import answering
from ledgerbeam.errors import ServiceError
from ledgerbeam.ledger.answer_files import AnswersPlace
from ledgerbeam.ledger.answers import TaskAnswers
from ledgerbeam.llm import Chat, ChatBatches, batches, chat
from tests.servers.llm import LoopbackService, loopback_service

RECORDS = [{"text": f"text {number}"} for number in range(30)]


class KilledError(BaseException):
    """The end of a process."""


class StoredAnswers:
    """Answers that survive a kill: `most` more are stored, then the process is killed."""

    def __init__(self) -> None:
        self.known: dict[bytes, bytes] = {}
        self.most = 1 << 30

    async def answer(self, key: bytes, call: Callable[[], Any], *tokens: int | None) -> bytes:
        if key not in self.known:
            answer = await call()
            if not self.most:
                raise KilledError
            self.most -= 1
            self.known[key] = answer
        return self.known[key]


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackService]:
    monkeypatch.setattr(chat, "_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(batches, "_QUIET_SECONDS", 0.05)
    with loopback_service(batch_seconds=0.05) as found:
        yield found


@pytest.fixture
def answers() -> Iterator[StoredAnswers]:
    found = StoredAnswers()
    with answering(found):
        yield found


def mapped(service: LoopbackService, *calls: Any, kind: type[Chat] = ChatBatches, **values: Any) -> list[Any]:
    """Return the results of one client for batches that are in flight together, or for records."""

    async def run() -> list[Any]:
        given = {
            "prompt": "Say {text}",
            "parameters": None,
            **({"poll": 0.01} if kind is ChatBatches else {}),
            **values,
        }
        async with kind("m", url=service.url, **given) as client:
            return await asyncio.gather(*map(client, calls))

    return asyncio.run(run())


def test_the_requests_of_a_batch_are_one_file_and_answers_are_those_of_single_requests(
    service: LoopbackService, answers: StoredAnswers
) -> None:
    (found,) = mapped(service, [*RECORDS, {"other": 1}, RECORDS[0]])
    assert len(service.batches) == 1
    assert Counter(service.prompts()) == Counter(f"Say {record['text']}" for record in RECORDS)
    assert found[30] == Reject("KeyError", "'text'")
    assert found[31] == found[0]
    assert mapped(service, *RECORDS, kind=Chat) == found[:30]
    assert mapped(service, RECORDS[:7], RECORDS[5:])[1] == found[5:30]
    assert len(service.batches) == 1, "answers are stored for single requests"
    mapped(service, [*RECORDS[:7], {"text": "new"}])
    assert service.prompts()[30:] == ["Say new"]


@pytest.mark.parametrize("most", [0, 1, 12, 30])
def test_after_a_kill_the_same_batch_is_awaited(service: LoopbackService, answers: StoredAnswers, most: int) -> None:
    answers.most = most  # before the ID of the batch is stored, before its answers are, and among them
    with pytest.raises(KilledError):
        mapped(service, RECORDS)
    answers.most = 1 << 30
    (found,) = mapped(service, RECORDS)
    assert [record["text"] for record in found] == [record["text"] for record in RECORDS]
    assert len(service.batches) == 1


def test_a_batch_whose_creation_was_not_answered_is_found(service: LoopbackService, answers: StoredAnswers) -> None:
    service.lost = ["POST /v1/batches", "POST /v1/files", "GET /v1/batches/batch-0"]
    mapped(service, RECORDS)
    assert service.lost == []
    assert len(service.batches) == 1


def test_what_expires_is_sent_again_alone_and_never_for_ever(service: LoopbackService, answers: StoredAnswers) -> None:
    service.expires = lambda body: len(service.batches) == 1 and body["messages"][0]["content"] < "Say text 2"
    (found,) = mapped(service, RECORDS)
    assert [len(service._lines(batch)) for batch in service.batches.values()] == [30, 12]
    assert all("answer" in record for record in found)
    service.expires = lambda body: True
    with pytest.raises(ServiceError, match="3 batches in a row expired"):
        mapped(service, [{"text": "never"}])
    assert len(service.batches) == 5


def test_responses_of_a_batch_mean_what_they_mean_alone(service: LoopbackService, answers: StoredAnswers) -> None:
    faults = {"Say text 3": "400", "Say text 4": "refusal", "Say text 5": "500"}
    service.fault = lambda number, body: (
        faults.get(body["messages"][0]["content"]) if len(service.batches) == 1 else None
    )
    (found,) = mapped(service, RECORDS)
    reasons = {at: one.reason for at, one in enumerate(found) if isinstance(one, Reject)}
    assert reasons == {3: "bad request", 4: "refused"}
    assert service.prompts()[30:] == ["Say text 5"]
    service.fault = lambda number, body: "404"
    with pytest.raises(ServiceError, match="check the url and the model"):
        mapped(service, [{"text": "new"}])


def test_batches_in_flight_with_the_same_requests_do_not_wait_for_each_other(
    service: LoopbackService, tmp_path: Path
) -> None:
    with answering(TaskAnswers(AnswersPlace(str(tmp_path)), b"0" * 16, 0, 60)):
        results = mapped(service, RECORDS[:20], RECORDS[10:], RECORDS[25:] + RECORDS[:5])
    assert [len(one) for one in results] == [20, 20, 10]
    assert max(Counter(service.prompts()).values()) == 1


def test_a_batch_that_the_provider_refuses_pauses_or_ends_the_job(
    service: LoopbackService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ledgerbeam.answers._FIRST_WAIT", 0.01)
    service.batch_errors = ["token_limit_exceeded"]
    mapped(service, RECORDS)
    assert [one["status"] for one in service.batches.values()] == ["failed", "completed"]
    service.batch_errors = ["invalid_model"]
    with pytest.raises(ServiceError, match=r"invalid_model.*correct the parameters"):
        mapped(service, [{"text": "new"}])
