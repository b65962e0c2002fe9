"""What a user's object is, what it takes, and how values are written on a command line."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from ledgerbeam.errors import FunctionError, UsageError
from ledgerbeam.ledger.model.user_objects import check_object, depends_on_batches, import_callable, read_values

HERE = __name__


def plain(record: Any) -> Any: ...


def with_values(record: Any, threshold: float, *, words: Any = ()) -> Any: ...


def with_any(record: Any, **values: Any) -> Any: ...


def positional(record: Any, other: int, /) -> Any: ...


def all_positional(*records: Any) -> Any: ...


def by_name(*, record: Any) -> Any: ...


def nothing() -> Any: ...


def generator(record: Any) -> Any:
    yield record


async def coroutine(record: Any) -> Any: ...


async def async_generator(record: Any) -> Any:
    yield record


class Model:
    batch_invariant = False

    def __init__(self, path: str, size: int = 3) -> None: ...

    def __call__(self, record: Any) -> Any: ...


class Generating:
    def __call__(self, record: Any) -> Any:
        yield record


class NotCalled:
    pass


made = Model("p")
making = Generating()
partial = functools.partial(with_values, threshold=3)
partial_generator = functools.partial(generator)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("plain", {}),
        ("with_values", {"threshold": 1}),
        ("with_values", {"threshold": 1, "words": []}),
        ("with_any", {"anything": 1}),
        ("all_positional", {}),
        ("Model", {"path": "x"}),
        ("Model", {"path": "x", "size": 3}),
        ("made", {}),
        ("partial", {"words": 1}),
    ],
)
def test_what_takes_its_values_passes(name: str, values: dict[str, Any]) -> None:
    assert check_object(f"{HERE}:{name}", values) is globals()[name]


def test_a_function_without_a_signature_is_taken_as_it_is() -> None:
    assert check_object("builtins:max", {"key": 1}) is max


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("plain", {"x": 1}, "--set x: .*:plain has no such parameter; it takes none"),
        ("with_values", {"treshold": 1}, "--set treshold: .* no such parameter; it takes threshold, words"),
        ("with_values", {}, "needs 'threshold': give a value with --set threshold=VALUE"),
        ("with_values", {"record": 1, "threshold": 2}, "is given each record as 'record'; it takes threshold"),
        ("with_any", {"record": 1}, "is given each record as 'record'"),
        ("Model", {}, "needs 'path'"),
        ("Model", {"path": 1, "self": 1}, "--set self: .* no such parameter; it takes path, size"),
        ("made", {"x": 1}, "it takes none"),
        ("positional", {"other": 1}, "--set other: .* has no such parameter"),
        ("positional", {}, "needs 'other'"),
    ],
)
def test_what_does_not_take_a_value_says_what_it_takes(name: str, values: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_object(f"{HERE}:{name}", values)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("generator", "is a generator function: .* collect what it yields in a list"),
        ("async_generator", "is a generator function"),
        ("coroutine", "is a coroutine function: .* asyncio.run"),
        ("Generating", "is a generator function"),
        ("making", "is a generator function"),
        ("partial_generator", "is a generator function"),
        ("NotCalled", "is a class without __call__: .* define __call__"),
        ("by_name", "its first parameter is the record"),
        ("nothing", r"expected a function of one record, found nothing\(\)"),
    ],
)
def test_what_cannot_be_a_function_of_records_is_refused_by_name(name: str, said: str) -> None:
    with pytest.raises(FunctionError, match=said):
        check_object(f"{HERE}:{name}", {})


def test_what_depends_on_its_batches_says_so_itself() -> None:
    assert depends_on_batches(Model)
    assert depends_on_batches(made)
    assert not depends_on_batches(plain)
    assert import_callable(f"{HERE}:Model") is Model


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.5", 0.5),
        ("5", 5),
        ("true", True),
        ("True", "True"),
        ("null", None),
        ("", ""),
        ("word", "word"),
        ('"5"', "5"),
        ("[1, 2]", [1, 2]),
        ('{"a": {"b": 1}}', {"a": {"b": 1}}),
        ("a=b", "a=b"),
        ("NaN", "NaN"),
        ("-Infinity", "-Infinity"),
        ("1e999", "1e999"),
        ("[1,", "[1,"),
        ("18446744073709551615", 18446744073709551615),
        (" 1 ", 1),
        ("ä", "ä"),
        ("\udce9", "\udce9"),
        ("[" * 10_000, "[" * 10_000),
        ("/a/b.txt", "/a/b.txt"),
        ("s3://bucket/a", "s3://bucket/a"),
    ],
)
def test_a_value_is_json_or_the_text_as_it_stands(text: str, value: Any) -> None:
    found = read_values([f"x={text}"])["x"]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["x"], "--set x: expected NAME=VALUE"),
        (["=1"], "expected NAME=VALUE"),
        (["a-b=1"], "expected NAME=VALUE"),
        (["x=1", "x=2"], "--set x is given twice; a list is one value"),
        (["x=18446744073709551616"], "64"),
        ([f"x={'[' * 22}{']' * 22}"], "at most 20 levels"),
        (["x=https://me:hunter2@host/a"], "a value of --set x without credentials"),
    ],
)
def test_what_cannot_be_a_value_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        read_values(words)
    assert "hunter2" not in str(refused.value)
