"""User objects: their kinds, their parameters, and values on the command line."""

from __future__ import annotations

import functools
import json
from hashlib import blake2b
from pathlib import Path
from typing import Any

import fsspec
import pytest

from ledgerbeam.errors import ChangedSourceError, FunctionError, UsageError
from ledgerbeam.user_code import objects as watched
from ledgerbeam.user_code.objects import (
    OF_A_GROUP,
    check_object,
    depends_on_batches,
    import_callable,
    read_values,
    require_unchanged,
    watched_checksums,
)
from tests.cases import each

HERE = __name__


def plain(record: Any) -> Any: ...


def with_values(record: Any, threshold: float, *, words: Any = ()) -> Any: ...


def with_any(record: Any, **values: Any) -> Any: ...


def positional(record: Any, other: int, /) -> Any: ...


def all_positional(*records: Any) -> Any: ...


def positional_and_any(record: Any, /, **values: Any) -> Any: ...


def of_any_number(*records: Any, k: int) -> Any: ...


def of_a_group(key: Any, records: Any, k: int = 1) -> Any: ...


def without_signature(record: Any) -> Any: ...


without_signature.__signature__ = 5  # type: ignore[attr-defined]


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


class AnyModel:
    def __init__(self, **values: Any) -> None: ...

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


@each(
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
        ("positional_and_any", {"record": 1}),
        ("of_any_number", {"k": 1}),
        ("AnyModel", {"record": 1}),
        ("without_signature", {"anything": 1}),
    ],
)
def test_what_takes_its_values_passes(name: str, values: dict[str, Any]) -> None:
    assert check_object(f"{HERE}:{name}", values) is globals()[name]


def test_a_function_without_a_signature_is_taken_as_it_is() -> None:
    assert check_object("builtins:max", {"key": 1}) is max


@each(
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


@each(
    ("name", "said"),
    [
        ("generator", "is a generator function: .* collect the records in a list"),
        ("coroutine", "is an async function, which only map and annotate take: .* asyncio.run"),
        *((name, "a generator function") for name in ("async_generator", "Generating", "making", "partial_generator")),
        ("NotCalled", "is a class without __call__: .* define __call__"),
        ("by_name", "its first parameter is the record"),
        ("nothing", r"expected a function of one record, found nothing\(\)"),
    ],
)
def test_what_cannot_be_a_function_of_records_is_refused_by_name(name: str, said: str) -> None:
    with pytest.raises(FunctionError, match=said):
        check_object(f"{HERE}:{name}", {})


@pytest.mark.parametrize("name", ["of_a_group", "of_any_number"])
def test_what_is_called_with_groups_takes_their_key_and_records(name: str) -> None:
    assert check_object(f"{HERE}:{name}", {"k": 2}, OF_A_GROUP) is globals()[name]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("plain", r"expected a function of the key and its records, found plain\(.*it is called with the key and its"),
        ("nothing", r"found nothing\(.*it is called with the key and its records"),
    ],
)
def test_what_does_not_take_a_group_is_refused(name: str, said: str) -> None:
    with pytest.raises(FunctionError, match=said):
        check_object(f"{HERE}:{name}", {}, OF_A_GROUP)


def test_what_depends_on_its_batches_says_so_itself() -> None:
    assert depends_on_batches(Model)
    assert depends_on_batches(made)
    assert not depends_on_batches(plain)
    assert import_callable(f"{HERE}:Model") is Model


@each(
    ("text", "value"),
    [
        ("0.5", 0.5),
        ("5", 5),
        ("true", True),
        ("null", None),
        ('"5"', "5"),
        ("[1, 2]", [1, 2]),
        ('{"a": {"b": 1}}', {"a": {"b": 1}}),
        ("18446744073709551615", 18446744073709551615),
        (" 1 ", 1),
        *((text, text) for text in ("True", "", "word", "a=b", "NaN", "-Infinity", "1e999", "[1,", "[" * 10_000)),
        *((text, text) for text in ("ä", "\udce9", "/a/b.txt", "s3://bucket/a")),
    ],
)
def test_a_value_is_json_or_the_text_as_it_stands(text: str, value: Any) -> None:
    found = read_values([f"x={text}"])["x"]
    assert (found, type(found)) == (value, type(value))


@each(
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


def nested(levels: int, value: Any = 1) -> Any:
    for _ in range(levels):
        value = [value]
    return value


def named(levels: int, value: Any = 1) -> Any:
    for _ in range(levels):
        value = {"a": value}
    return value


def test_values_of_a_call_are_given_as_json_has_them() -> None:
    given = {"a": (1, [2.5, None]), "b": {"c": True}, "d": {1: "x"}, "e": nested(20), "f": named(20)}
    assert read_values(given) == {**given, "a": [1, [2.5, None]], "d": {"1": "x"}}
    assert read_values({}) == read_values([]) == {}


@each(
    ("value", "said"),
    [
        (object(), "set: 'x' is a object that JSON cannot hold"),
        ({1, 2}, "set: 'x' is a set that JSON cannot hold"),
        (float("nan"), "set: 'x' is a float that JSON cannot hold"),
        ([float("inf")], "set: 'x' is a list that JSON cannot hold"),
        (2**64, "64"),
        (nested(21), "at most 20 levels"),
        (named(21), "at most 20 levels"),
        ("https://me:hunter2@host/a", "a value of set, x without credentials"),
        (["a", {"b": "https://me:hunter2@host/a"}], "a value of set, x without credentials"),
        ({"a": ["https://me:hunter2@host/a"]}, "a value of set, x without credentials"),
    ],
)
def test_what_cannot_be_a_value_of_a_call_is_refused(value: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        read_values({"y": 1, "x": value})
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("value", [nested(20), named(20)])
def test_a_value_has_so_many_levels_at_most(value: Any) -> None:
    assert read_values([f"x={json.dumps(value)}"]) == {"x": value}
    with pytest.raises(UsageError, match="expected a value of at most 20 levels of nesting, found more"):
        read_values([f"x={json.dumps([value])}"])


def test_the_whole_content_counts_however_large_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "READ_BYTES", 3)
    path = tmp_path / "words"
    for content in (b"", b"abc", b"abcdefgh"):
        path.write_bytes(content)
        assert watched_checksums([str(path)]) == {str(path): blake2b(content, digest_size=16).hexdigest()}


def test_any_store_will_do() -> None:
    with fsspec.open("memory://watched/words", "wb") as file:
        file.write(b"abc")
    found = watched_checksums(["memory://watched/words"])
    assert list(found.values()) == [blake2b(b"abc", digest_size=16).hexdigest()]
    require_unchanged(found)
    fsspec.filesystem("memory").rm("/watched/words")
    with pytest.raises(ChangedSourceError, match="found no file"):
        require_unchanged(found)


def test_a_file_that_is_not_there_is_a_mistake_of_the_user(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"--watch-file {tmp_path}/none: there is no such file"):
        watched_checksums([f"{tmp_path}/none"])
    with pytest.raises(UsageError):
        watched_checksums([str(tmp_path)])


def test_a_file_that_changes_is_told_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "words"
    path.write_text("one")
    found = watched_checksums([str(path)])
    require_unchanged(found)
    path.write_text("two")
    with pytest.raises(ChangedSourceError, match=f"{path}: this watched file has changed"):
        require_unchanged(found)
