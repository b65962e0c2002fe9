"""What results mean by themselves: reasons and routes are categories, and what can hardly be meant is refused."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson
import pytest

from ledgerbeam import Drop, Reject, Route
from ledgerbeam.errors import FunctionError
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.stats import MOST_NAMES, NAME_CHARACTERS
from ledgerbeam.transforms.mapping.collectors import collector
from ledgerbeam.transforms.mapping.outcomes import (
    CategoryError,
    Tally,
    check_value,
    require_category,
    require_reason,
    route_name,
    routed,
)
from tests.cases import each


def tally() -> Tally:
    return Tally(collector("jsonl", "refuse", one_by_one=False, placed=False))


def test_what_becomes_of_records_adds_up() -> None:
    counted = tally()
    counted.drop("short")
    counted.drop("short", 3)
    counted.drop("long", 2)
    counted.reject("bad")
    counted.reject("bad")
    counted.reject("worse")
    assert counted.counts(20, {"": [1, 2], "en": [3]}) == RecordCounts(
        20, 11, {"short": 4, "long": 2}, {"bad": 2, "worse": 1}, {"": 2, "en": 1}
    )
    assert tally().counts(2, {"": [1, 2]}) == RecordCounts.plain(2)


@pytest.mark.parametrize("act", ["drop", "reject"])
def test_a_task_has_so_many_reasons_of_a_kind(act: str) -> None:
    counted = tally()
    for number in range(MOST_NAMES):
        getattr(counted, act)(f"reason {number}")
    getattr(counted, act)("reason 0")  # one that is known
    with pytest.raises(CategoryError, match=rf"at most {MOST_NAMES} different reasons of .*, found one more: 'again'"):
        getattr(counted, act)("again")
    other = {"drop": "reject", "reject": "drop"}[act]
    getattr(counted, other)("again")


def test_a_category_has_so_many_characters() -> None:
    require_category("ä" * NAME_CHARACTERS, "routes", MOST_NAMES - 1)
    with pytest.raises(CategoryError, match=f"at most {NAME_CHARACTERS} characters, found one of 201: 'ä{{60}}' "):
        require_category("ä" * (NAME_CHARACTERS + 1), "routes", 0)
    with pytest.raises(CategoryError, match="different routes, found one more"):
        require_category("x", "routes", MOST_NAMES)


class OwnList(list[Any]):
    """A list of a class of the user's."""


class OwnRoute(Route):
    """A route of a class of the user's."""


def test_results_are_records_with_their_routes() -> None:
    for result, expected in (
        (1, [("", 1)]),
        ([], []),
        ([1, [2]], [("", 1), ("", [2])]),
        (Route("en", 1), [("en", 1)]),
        (Route("en", []), []),
        ([Route("en", [1, 2]), 3, OwnRoute("de", OwnList([4]))], [("en", 1), ("en", 2), ("", 3), ("de", 4)]),
        (OwnList([1, 2]), [("", 1), ("", 2)]),
        ((1, 2), [("", (1, 2))]),
    ):
        assert list(routed(result, "f")) == expected


@each(
    ("result", "said"),
    [
        ([Drop("x")], "f returned a Drop inside of a list: expected records"),
        ([1, Reject("x")], "f returned a Reject inside of a list: expected records"),
        (Route("en", Drop("x")), "f returned a Drop inside of a Route: expected records"),
        (Route("en", [1, Reject("x")]), "f returned a Reject inside of a Route"),
        (Route("en", None), "f returned a Route of None"),
        (Route("en", Route("de", 1)), "f returned a Route in a Route"),
        (Route("en", [OwnRoute("de", 1)]), "f returned a Route in a Route"),
        (Route("a/b", 1), "f returned a Route: "),
    ],
)
def test_what_stands_for_a_whole_record_stands_alone(result: Any, said: str) -> None:
    with pytest.raises(FunctionError, match=said):
        list(routed(result, "f"))


class OwnText(str):
    """A text of a class of the user's, which may be anything when it is compared."""


def test_a_reason_is_a_text_and_so_is_an_error() -> None:
    for good in (Drop("short"), Reject("bad"), Reject("bad", "error"), Reject("bad", "")):
        require_reason(good, "f")
    for reason in ("", 1, None, b"short", "\ud800", OwnText("short")):
        for kind in (Drop, Reject):
            with pytest.raises(FunctionError, match=rf"f returned {kind.__name__}\(.*\): expected a short text"):
                require_reason(kind(reason), "f")  # type: ignore[arg-type]
    with pytest.raises(FunctionError, match="f returned a Reject whose error is no text"):
        require_reason(Reject("bad", 1), "f")  # type: ignore[arg-type]


def test_a_route_is_named_as_a_folder_can_be() -> None:
    assert route_name("en", "f") == "en"
    for name in ("", "a/b", "..", "_rejects", 1):
        with pytest.raises(FunctionError, match="f returned a Route: "):
            route_name(name, "f")


@dataclasses.dataclass
class Point:
    x: int = 1


def generated() -> Iterator[int]:
    yield 1


async def promised() -> int:
    return 1


@each(
    ("value", "record", "output"),
    [
        ({"a": 1}, {"a": 1}, "jsonl"),
        (Point(), {"a": 1}, "jsonl"),
        (orjson.Fragment(b"1"), {"a": 1}, "jsonl"),
        ([1], {"a": 1}, "jsonl"),
        ("text", "other", "jsonl"),
        ("text", 1, "parquet"),
        ("text", {"a": 1}, "megatron"),
        (1, Point(), "own"),
        (True, False, "jsonl"),
        (np.bool_(True), True, "jsonl"),
        (1, 1, "jsonl"),
    ],
)
def test_what_may_be_meant_as_a_record_is_taken(value: Any, record: Any, output: str) -> None:
    check_value(value, record, "f", output)


@each(
    ("value", "record", "output", "said"),
    [
        ((1,), 1, "megatron", "f returned a tuple: expected a record"),
        ({1}, 1, "megatron", "f returned a set: expected a record"),
        (generated(), 1, "megatron", "f returned a generator: expected a record"),
        (True, 1, "megatron", r"f returned a bool \(True\): expected a record"),
        (np.bool_(True), 1, "megatron", "f returned a bool"),
        (True, {"a": 1}, "jsonl", "to keep some records"),
        *(("text", {"a": 1}, output, "a str for a record that is a dict") for output in ("jsonl", "tar", "parquet")),
        (None, {"a": 1}, "arrow", "a NoneType for a record that is a dict.* leave None out of a list"),
        (1, Point(), "jsonl", "an? int for a record that is a Point"),
    ],
)
def test_what_can_hardly_be_meant_as_a_record_is_refused(value: Any, record: Any, output: str, said: str) -> None:
    with pytest.raises(FunctionError, match=said):
        check_value(value, record, "f", output)


def test_a_promise_is_refused_and_ended() -> None:
    promise = promised()
    with pytest.raises(FunctionError, match=r"f returned a coroutine: .*asyncio.run"):
        check_value(promise, {}, "f", "jsonl")
    assert inspect.getcoroutinestate(promise) == inspect.CORO_CLOSED

    class Awaited:
        def __await__(self) -> Iterator[Any]:
            yield 1

    with pytest.raises(FunctionError, match=r"f returned a Awaited: .*asyncio.run"):
        check_value(Awaited(), {}, "f", "megatron")
