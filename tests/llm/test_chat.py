"""The client of OpenAI-compatible services: requests, the meaning of responses, checked answers."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerbeam import Reject, Unavailable
from ledgerbeam._base import redaction
from ledgerbeam.errors import ServiceError, UsageError
from ledgerbeam.llm import Chat, chat
from ledgerbeam.llm.prompts import Prompt, most_tokens
from ledgerbeam.llm.service import RefusedError, Service, TransientError
from tests.cases import each
from tests.servers.llm import KEY, LoopbackService, loopback_service

LABEL = {"type": "object", "properties": {"label": {"enum": ["good", "bad"]}}, "required": ["label"]}


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackService]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(redaction, "_secrets_registered", set())
    monkeypatch.setattr(redaction, "_pattern", None)
    monkeypatch.setattr(chat, "_PAUSE_SECONDS", 0.001)
    with loopback_service() as found:
        yield found


def asked(service: LoopbackService, record: Any, **values: Any) -> Any:
    """Return the result of a client for one record."""

    async def ask() -> Any:
        async with Chat(**{"model": "m", "url": service.url, "prompt": "Say {text}", **values}) as client:
            return await client(record)

    return asyncio.run(ask())


def test_a_request_has_the_record_the_parameters_the_schema_and_the_key(service: LoopbackService) -> None:
    values = {"system": "Be {mood}", "temperature": 0.5, "parameters": {"seed": 7}, "max_tokens": 20, "into": "label"}
    found = asked(service, {"text": "a", "mood": "kind"}, **values, schema=LABEL)
    assert found["text"] == "a"
    assert found["label"]["label"] in ("good", "bad")
    (request,) = service.log
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": LABEL, "strict": True}}
    messages = [{"role": "system", "content": "Be kind"}, {"role": "user", "content": "Say a"}]
    assert request.key == KEY
    assert request.body == {
        "model": "m",
        "max_tokens": 20,
        "temperature": 0.5,
        "seed": 7,
        "messages": messages,
        "response_format": form,
    }


@each(
    "template, record, message",
    [
        ("{text}", {"text": "a {b}"}, "a {b}"),
        ("{{}} {a[b]} {n:03d}", {"a": {"b": "c"}, "n": 7}, "{} c 007"),
        (
            "{tags} {yes} {none} {n}",
            {"tags": ["é", {"x": 1}], "yes": True, "none": None, "n": 1.5},
            '["é", {"x": 1}] true null 1.5',
        ),
        ("{txt}", {"txt": "é".encode()}, "é"),
    ],
)
def test_templates_have_fields_of_records(template: str, record: dict[str, Any], message: str) -> None:
    assert Prompt(template, None, None).messages(record) == [{"role": "user", "content": message}]
    parts = [{"role": "user", "content": [{"type": "text", "text": template}]}]
    assert Prompt(None, None, parts).messages(record)[0]["content"] == [{"type": "text", "text": message}]
    assert Prompt(None, None, "chat").messages({"chat": parts}) == parts


@each("template", ['Answer as {"label": ...}', "{}", "{0}", "{text", "{a b}"])
def test_a_prompt_whose_braces_are_no_fields_is_refused(template: str) -> None:
    with pytest.raises(UsageError, match="write other braces twice"):
        Chat("m", prompt=template)


@given(st.lists(st.text(max_size=50), min_size=1, max_size=4), st.integers(1, 1000))
def test_the_estimate_of_tokens_is_at_least_the_bytes_and_the_limit(texts: list[str], limit: int) -> None:
    messages = [{"role": "user", "content": text} for text in texts]
    found = most_tokens({"messages": messages, "max_tokens": limit}, 1.0)
    assert found is not None
    assert found >= sum(len(text.encode()) for text in texts) + limit
    assert most_tokens({"messages": messages}, 1.0) is None


@each(
    "answer, reason, error",
    [
        ({"content": None, "refusal": "No."}, "refused", "No."),
        ('{"label": ', "not JSON", '{"label": '),
        (
            '{"label": "new"}',
            "violates schema",
            "$.label: 'new' is not one of ['good', 'bad']; answer: {\"label\": \"new\"}",
        ),
        ({"message": {"content": '{"label": "go'}, "finish_reason": "length"}, "cut off", '{"label": "go'),
        ({"message": {"content": ""}, "finish_reason": "content_filter"}, "content filter", ""),
        ({"content": None, "tool_calls": [{"id": "t"}]}, "no answer", "tool_calls"),
    ],
)
def test_an_answer_that_cannot_be_used_is_rejected_and_kept(
    service: LoopbackService, answer: Any, reason: str, error: str
) -> None:
    service.content = lambda body: answer
    found = asked(service, {"text": "a"}, schema=LABEL)
    assert isinstance(found, Reject)
    assert found.reason == reason
    assert error in found.error


def test_an_invalid_answer_is_asked_again_as_often_as_wanted(service: LoopbackService) -> None:
    service.fault = lambda number, body: ("invalid", "refusal", None)[number]
    assert asked(service, {"text": "a"}, schema=LABEL, attempts=3, into=None)["label"] in ("good", "bad")
    assert len(service.log) == 3


def test_faults_that_pass_are_retried_and_then_the_service_is_not_available(service: LoopbackService) -> None:
    service.fault = lambda number, body: ("reset", "503", "500", "408", None)[number % 5]
    assert asked(service, {"text": "a"})["text"] == "a"
    assert [one.status for one in service.log] == [0, 503, 500, 408, 200]
    service.log.clear()
    service.fault = lambda number, body: "500"

    async def ask() -> None:
        async with Chat("m", url=service.url, prompt="Say {text}") as client:
            with pytest.raises(Unavailable, match="status 500"):
                await chat._unavailable_after(lambda: client.service().json("POST", "/chat/completions", json={}))

    asyncio.run(ask())


IN_AN_HOUR = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
QUOTA = {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}
LONG = {"error": {"message": "This model's maximum context length is 8192 tokens.", "code": 400}}
FILTERED = {"error": {"message": "The response was filtered", "code": "content_filter"}}
PARAMETER = {"error": {"message": "Invalid schema", "param": "response_format"}}
ECHO = {"error": {"message": f"Incorrect API key provided: {KEY}"}}


@each(
    "response, error, said",
    [
        ((429, {}, {"retry-after": "7"}), Unavailable, 7),
        ((429, {}, {"retry-after": "0.5"}), Unavailable, 0.5),
        ((429, {}, {"retry-after": IN_AN_HOUR}), Unavailable, 3600),
        ((429, {}, {"retry-after-ms": "250", "retry-after": "1"}), Unavailable, 0.25),
        ((429, {}, {}), Unavailable, None),
        ((503, {}, {"retry-after": "3"}), Unavailable, 3),
        ((503, {}, {}), TransientError, "503"),
        ((429, QUOTA, {}), ServiceError, "check the account"),
        ((400, LONG, {}), RefusedError, "context length"),
        ((400, FILTERED, {}), RefusedError, "content filter"),
        ((403, FILTERED, {}), RefusedError, "content filter"),
        ((413, {}, {}), RefusedError, "context length"),
        ((422, {}, {}), RefusedError, "bad request"),
        ((400, PARAMETER, {}), ServiceError, "correct the parameters"),
        ((401, ECHO, {}), ServiceError, "set OPENAI_API_KEY"),
        ((403, {}, {}), ServiceError, "set OPENAI_API_KEY"),
        ((404, {}, {}), ServiceError, "check the url and the model"),
        ((302, {}, {}), ServiceError, "correct the parameters"),
    ],
)
def test_responses_pause_the_job_or_reject_the_record_or_end_the_job(
    service: LoopbackService, response: tuple[int, Any, dict[str, str]], error: type[Exception], said: Any
) -> None:
    status, body, headers = response
    service.fault = lambda number, asked: str(status)
    service.errors, service.retry_after = {status: body} if body else {}, headers

    async def ask() -> None:
        client = Service(service.url, "OPENAI_API_KEY", 5.0)
        try:
            await client.json("POST", "/chat/completions", json={"model": "m"})
        finally:
            await client.close()

    with pytest.raises(error) as raised:
        asyncio.run(ask())
    assert KEY not in repr(raised.value)
    if isinstance(raised.value, Unavailable):
        after = raised.value.retry_after
        assert after == said or (said == 3600 and after is not None and 0 < said - after < 1800)
    elif isinstance(raised.value, RefusedError):
        assert raised.value.reject.reason == said
        assert json.dumps(body)[1:-1] in raised.value.reject.error
    else:
        assert said in str(raised.value)


def test_many_refused_requests_before_any_answer_end_the_job(service: LoopbackService) -> None:
    service.fault = lambda number, body: "400" if "bad" in str(body) else None

    async def ask(texts: list[str]) -> list[Any]:
        async with Chat("m", url=service.url, prompt="{text}") as client:
            return [await client({"text": text}) for text in texts]

    with pytest.raises(ServiceError, match="correct the parameters"):
        asyncio.run(ask(["bad"] * 16))
    found = asyncio.run(ask(["bad", "good", *["bad"] * 20]))
    assert [isinstance(one, Reject) for one in found] == [True, False, *[True] * 20]


def test_a_client_can_be_sent_to_workers_without_its_key(service: LoopbackService) -> None:
    async def ask() -> Any:
        client = Chat("m", url=service.url, prompt="Say {text}", schema=LABEL)
        await client({"text": "a"})
        sent = pickle.dumps(client)
        await client.__aexit__()
        assert KEY.encode() not in sent
        async with pickle.loads(sent) as other:
            return await other({"text": "b"})

    assert asyncio.run(ask())["text"] == "b"
    assert [one.key for one in service.log] == [KEY] * 2


@each(
    "values, said",
    [
        ({"schema": {"type": "nothing"}}, "give a valid JSON Schema"),
        ({"schema": "missing.json"}, "No such file"),
        ({"prompt": None}, "expected either messages or a prompt"),
        ({"messages": []}, "expected either messages or a prompt"),
    ],
)
def test_wrong_values_are_refused_before_any_request(values: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Chat(**{"model": "m", "prompt": "Say {text}", **values})


def test_references_of_a_schema_are_not_fetched(service: LoopbackService) -> None:
    schema = {"$ref": f"{service.url}/schema.json"}
    with pytest.raises(Exception, match=r"schema\.json"):
        asked(service, {"text": "a"}, schema=schema)
    assert {one.path for one in service.log} <= {"/v1/chat/completions"}
