"""Answers of calls: durable before they are used, asked once, and damaged files."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ledgerbeam
from ledgerbeam.answers import answering, in_job
from ledgerbeam.errors import FunctionError, StorageError
from ledgerbeam.ledger.answer_files import AnswersPlace, entries_of
from ledgerbeam.ledger.answers import TaskAnswers
from tests.servers.s3 import S3Server

SOURCE = bytes(range(16))


def answers(folder: Path | str, start: int = 0, stop: int = 10) -> TaskAnswers:
    return TaskAnswers(AnswersPlace.of(str(folder), None, {}), SOURCE, start, stop)


class Model:
    """Gives another answer to each call."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def __call__(self, request: Any) -> Any:
        self.asked.append(request)
        await asyncio.sleep(0.01)
        return {"number": len(self.asked), "to": request}


def remembered(of: TaskAnswers | None, *requests: Any, call: Callable[..., Awaitable[Any]]) -> list[Any]:
    """Return the answers to requests that are made at once."""

    async def ask() -> list[Any]:
        with answering(of):
            return await asyncio.gather(*(ledgerbeam.remember(request, call) for request in requests))

    return asyncio.run(ask())


def test_a_stored_answer_is_used_again_by_any_later_task_with_its_records(tmp_path: Path) -> None:
    model = Model()
    first = remembered(answers(tmp_path), {"b": 1, "a": 2}, "x", call=model)
    again = remembered(answers(tmp_path, 5, 7), "x", {"a": 2, "b": 1}, call=model)
    assert again == first[::-1]
    assert len(model.asked) == 2
    remembered(answers(tmp_path, 10, 20), "x", call=model)
    assert len(model.asked) == 3, "another task"


def check_first_counts(folder: str, options: Any = None) -> None:
    model = Model()
    one, other = (TaskAnswers(AnswersPlace(folder, options or {}), SOURCE, 0, 10) for _ in range(2))
    for host, request in ((one, "a"), (other, "b")):
        remembered(host, request, call=model)
    first = remembered(one, "x", "y", call=model)
    assert remembered(other, "y", "z", "x", call=model)[::2] == first[::-1]
    assert remembered(one, "z", "b", call=model)[0]["number"] != len(model.asked)
    again = TaskAnswers(AnswersPlace(folder, options or {}), SOURCE, 0, 10)
    asked = len(model.asked)
    assert remembered(again, "x", "y", call=model) == first
    assert len(model.asked) == asked


def test_the_first_answer_counts_for_all_that_work_on_a_task(tmp_path: Path) -> None:
    check_first_counts(str(tmp_path))


@pytest.mark.s3
def test_the_first_answer_counts_for_all_hosts(s3: S3Server) -> None:
    check_first_counts(s3.place(), s3.options)


def test_a_block_that_a_crash_cut_off_is_replaced(tmp_path: Path) -> None:
    model, before = Model(), answers(tmp_path)
    first = remembered(before, "x", call=model)
    (log,) = tmp_path.rglob("*.answers")
    whole = log.read_bytes()
    remembered(before, "y", call=model)
    log.write_bytes(log.read_bytes()[:-1])
    assert remembered(answers(tmp_path), "z", "x", call=model)[1:] == first
    assert log.read_bytes().startswith(whole)
    asked = len(model.asked)
    assert remembered(answers(tmp_path), "x", "z", call=model)[:1] == first
    assert len(model.asked) == asked


def test_equal_requests_at_once_are_one_call(tmp_path: Path) -> None:
    model = Model()
    assert remembered(answers(tmp_path), *[["same"]] * 20, call=model) == [{"number": 1, "to": ["same"]}] * 20
    assert len(model.asked) == 1


def test_a_call_that_fails_is_made_again_by_the_next_that_waits(tmp_path: Path) -> None:
    asked: list[int] = []

    async def fails_once() -> Any:
        asked.append(1)
        await asyncio.sleep(0)
        if len(asked) == 1:
            raise ConnectionError("reset")
        return len(asked)

    async def ask() -> list[Any]:
        with answering(answers(tmp_path)):
            both = (ledgerbeam.remember("x", fails_once) for _ in range(2))
            return await asyncio.gather(*both, return_exceptions=True)

    failed, answered = asyncio.run(ask())
    assert isinstance(failed, ConnectionError)
    assert answered == 2


@given(
    st.lists(
        st.one_of(st.text(), st.integers(-(2**53), 2**53), st.dictionaries(st.text(), st.booleans())),
        unique_by=json.dumps,
    )
)
def test_answers_are_as_json_holds_them(tmp_path_factory: pytest.TempPathFactory, values: list[Any]) -> None:
    folder = tmp_path_factory.mktemp("answers")

    async def echo(request: Any) -> Any:
        return (request,)

    first = remembered(answers(folder), *values, call=echo)
    assert first == [[value] for value in values] == remembered(answers(folder), *values, call=echo)


def test_what_is_not_json_or_not_async_is_refused(tmp_path: Path) -> None:
    async def objects() -> Any:
        return object()

    with pytest.raises(FunctionError, match="the request is not JSON"):
        remembered(answers(tmp_path), object(), call=objects)
    with pytest.raises(FunctionError, match="the answer is not JSON"):
        remembered(answers(tmp_path), 1, call=objects)
    with in_job(), pytest.raises(FunctionError, match="async def"):
        remembered(None, 1, call=objects)


def test_a_file_that_is_cut_off_has_the_answers_before_the_cut(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = Model()
    for number in range(3):
        remembered(answers(tmp_path), number, call=model)
    (path,) = tmp_path.rglob("*.answers")
    whole = path.read_bytes()
    assert [json.loads(answer)["number"] for _, answer in entries_of(whole, "x")] == [1, 2, 3]
    for size in range(len(whole)):
        found = [json.loads(answer)["number"] for _, answer in entries_of(whole[:size], "x")]
        assert found == [1, 2, 3][: len(found)]
    assert (found, caplog.text) == ([1, 2], "")


def test_damage_is_reported_and_its_calls_are_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = Model()
    for number in range(2):
        remembered(answers(tmp_path), number, call=model)
    (path,) = tmp_path.rglob("*.answers")
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    remembered(answers(tmp_path), 0, call=model)
    assert len(model.asked) == 3
    assert "damaged at byte 0" in caplog.text


def test_an_answer_that_cannot_be_stored_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "work").write_text("no folder")
    of = answers(tmp_path)
    with pytest.raises(StorageError):
        remembered(of, 1, call=Model())
    assert of.failure is not None


def test_answers_of_sources_are_forgotten(tmp_path: Path) -> None:
    remembered(answers(tmp_path), 1, 2, call=Model())
    stored = AnswersPlace.of(str(tmp_path), None, {})
    assert [source for source, *_ in stored.entries()] == [SOURCE] * 2
    assert stored.forget(dict.fromkeys(stored.files())) == 1
    assert [*stored.entries()] == []
    remembered(answers(tmp_path), 3, call=Model())
    assert len([*stored.entries()]) == 1, "the file is made again"


def test_numbers_that_json_lacks_are_refused(tmp_path: Path) -> None:
    async def nan(request: Any) -> Any:
        return [request, float("nan")]

    for request in ({"temperature": float("nan")}, {"temperature": None}):
        with pytest.raises(FunctionError, match="is not JSON"):
            remembered(answers(tmp_path), request, call=nan)


def test_a_call_takes_the_request_or_nothing_but_not_perhaps(tmp_path: Path) -> None:
    async def perhaps(request: Any = None) -> Any:
        return request

    async def any_number(*requests: Any) -> Any:
        return [*requests]

    with pytest.raises(FunctionError, match="'request' of the call has a default"):
        remembered(answers(tmp_path), 1, call=perhaps)
    assert remembered(answers(tmp_path), 1, call=any_number) == [[1]]
    with pytest.raises(FunctionError, match="expected an async function for the call, which returned int"):
        remembered(answers(tmp_path), 2, call=lambda: 2)  # type: ignore[arg-type, return-value]


def test_a_call_that_remembers_its_own_request_is_refused(tmp_path: Path) -> None:
    async def again() -> Any:
        return await ledgerbeam.remember("x", again)

    with pytest.raises(FunctionError, match="remembers this request itself"):
        remembered(answers(tmp_path), "x", call=again)


def test_an_answer_whose_caller_has_no_time_left_is_kept(tmp_path: Path) -> None:
    model, of = Model(), answers(tmp_path)

    async def ask() -> Any:
        with answering(of):
            first = asyncio.ensure_future(ledgerbeam.remember("x", model))
            while not model.asked:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.0105)  # the answer is there, and perhaps not stored
            first.cancel()
            await asyncio.wait([first])
            return await ledgerbeam.remember("x", model)

    assert asyncio.run(ask())["to"] == "x"
    again = remembered(answers(tmp_path), "x", call=model)
    assert again[0]["number"] == len(model.asked)


@pytest.mark.parametrize(("given", "seconds"), [(-1, None), (0, None), (float("nan"), None), (1e999, None), ("5", 5.0)])
def test_a_time_that_is_none_does_not_repeat_calls_at_once_or_never(given: Any, seconds: float | None) -> None:
    assert ledgerbeam.Unavailable("busy", given).retry_after == seconds
