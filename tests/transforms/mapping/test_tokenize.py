"""Text of records as tokens of documents, and what is told of records that have none."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from ledgerbeam.errors import FunctionError
from ledgerbeam.io.datasets.megatron.tokenizer import read_tokenizer
from ledgerbeam.io.index.reader import RawRecord
from ledgerbeam.ledger import FailedTask, NoneTask, Source, Task
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.sources.kind import Unreadable
from ledgerbeam.transforms import TokenizeRecords
from ledgerbeam.transforms.mapping import tokenize as tokenize_module
from ledgerbeam.user_code.loading import GivenObject
from tests.cases import each

HERE = __name__


def task_of(*records: Any) -> Task:
    return Task(Source("/data/a.jsonl", 100, "1"), 10, 10 + len(records), ((0, 1),), list(records))


def tokenized(*records: Any, keys: tuple[str, ...] = ("text",), split: str | None = None, **more: Any) -> Any:
    return TokenizeRecords("bytes", "", keys, split and f"{HERE}:{split}", **more)(task_of(*records))


def texts(found: Any) -> list[dict[str, list[str]]]:
    """For each record the texts of its documents by key."""
    return [
        {key: [bytes(tokens.tolist()).decode() for tokens in document] for key, document in documents.items()}
        for documents in found.records.datasets[""]
    ]


def words(text: str) -> list[str]:
    return text.split()


def no_list(text: str) -> Any:
    return text


def numbers(text: str) -> Any:
    return [1]


def raising(text: str) -> Any:
    raise ValueError("no words")


def refusing(text: str) -> Any:
    raise FunctionError("not like this")


def interrupted(text: str) -> Any:
    raise KeyboardInterrupt


def test_each_record_is_a_document_for_each_key() -> None:
    found = tokenized(
        {"text": "ab", "meta": {"title": "x"}},
        {"text": ["c", "de"], "meta": {"title": ""}},
        keys=("text", "meta.title"),
    )
    assert texts(found) == [{"text": ["ab"], "meta.title": ["x"]}, {"text": ["c", "de"], "meta.title": [""]}]
    assert found.lineage == task_of().lineage


def test_a_whole_name_with_a_dot_comes_before_a_nested_one() -> None:
    assert texts(tokenized({"a.b": "whole", "a": {"b": "nested"}}, keys=("a.b",))) == [{"a.b": ["whole"]}]


def test_texts_are_split() -> None:
    assert texts(tokenized({"text": "a bc"}, {"text": ["d", "e f"]}, {"text": ""}, split="words")) == [
        {"text": ["a", "bc"]},
        {"text": ["d", "e", "f"]},
        {"text": []},
    ]


def test_a_task_without_records_is_finished() -> None:
    assert tokenized() == NoneTask(task_of(), counts=RecordCounts(0, 0, {}, {}, {}))


@each(
    ("record", "said"),
    [
        ({"id": 1, "b": 2}, "no field 'text': found a record with 'id', 'b'; name the text with --key"),
        (["text"], "no field 'text': found ['text']"),
        ("a" * 100, "no field 'text': found '" + "a" * 79 + "; name the text with --key"),
        ({"text": 5}, "expected text under 'text', found int; name the text with --key"),
        ({"text": ["a", 5]}, "expected text under 'text', found list"),
        ({"text": None}, "expected text under 'text', found NoneType"),
    ],
)
def test_a_record_without_text_fails_its_task_and_is_named(record: Any, said: str) -> None:
    failed = tokenized({"text": "a"}, record)
    assert isinstance(failed, FailedTask)
    assert failed.reason == "RecordError"
    assert failed.error.startswith(f"/data/a.jsonl, record 11: {said}")


def test_a_path_that_ends_early_names_the_record() -> None:
    for record in ({"a": "text"}, {"a": {"c": "text"}}):
        assert "no field 'a.b': found a record with 'a'" in tokenized(record, keys=("a.b",)).error


@pytest.mark.parametrize(
    ("split", "reason", "said"),
    [
        ("no_list", "FunctionError", f"{HERE}:no_list returned a str: expected a list of texts"),
        ("numbers", "FunctionError", f"{HERE}:numbers returned a list: expected a list of texts"),
        ("raising", "ValueError", f"{HERE}:raising raised "),
        ("refusing", "FunctionError", "record 10: not like this"),
    ],
)
def test_a_mistake_in_splitting_is_told(split: str, reason: str, said: str) -> None:
    failed = tokenized({"text": "a"}, split=split)
    assert isinstance(failed, FailedTask)
    assert failed.reason == reason
    assert said in failed.error


def test_a_function_that_is_not_there_ends_the_job() -> None:
    with pytest.raises(FunctionError, match="missing"):
        tokenized({"text": "a"}, split="missing")


def test_records_that_cannot_be_tokenized_are_rejected_and_the_others_are_kept() -> None:
    places = [RawRecord("/data/a.jsonl", 10 + number, 0, 9, b"{}") for number in range(5)]
    unreadable = Unreadable("expected JSON")
    task = task_of({"text": "a"}, {}, unreadable, {"text": "\ud800"}, {"text": "b"}).replace(raw=lambda: places)
    found: Any = TokenizeRecords("bytes", "", ("text",), on_error="reject")(task)
    assert texts(found) == [{"text": ["a"]}, {"text": ["b"]}]
    counts = RecordCounts(5, 2, {}, {"RecordError": 2, "not decoded": 1}, {"": 2})
    assert found.records.counts == counts
    assert [(row.raw.record, row.rejection.reason) for row in found.records.rejects] == [
        (11, "RecordError"),
        (12, "not decoded"),
        (13, "RecordError"),
    ]
    assert "the text under 'text': bytes raised UnicodeEncodeError: " in found.records.rejects[2].rejection.error


def test_a_text_that_cannot_be_tokenized_fails_its_task_and_its_record_is_named() -> None:
    failed = tokenized({"text": "a", "title": "c"}, {"text": "b", "title": "\udfff"}, keys=("text", "title"))
    assert isinstance(failed, FailedTask)
    assert failed.reason == "RecordError"
    assert failed.error.startswith("/data/a.jsonl, record 11: the text under 'title': bytes raised UnicodeEncodeError")


def test_an_interrupt_is_no_failure() -> None:
    with pytest.raises(KeyboardInterrupt):
        tokenized({"text": "a"}, split="interrupted")


def test_what_shapes_the_tokens_is_the_tokenizer_the_keys_and_what_splits() -> None:
    keys = ("text", "title")
    plain = TokenizeRecords("bytes", "sum", keys).identity()
    assert plain == {"tokenizer": "sum", "keys": ["text", "title"], "special_tokens": "text"}
    found: Any = TokenizeRecords("bytes", "sum", keys, GivenObject("words", words)).identity()
    assert {name: found.pop(name) for name in plain} == plain
    assert found.pop("split") == "words"
    assert HERE in found["module"]


def test_the_tokenizer_is_read_with_the_options_of_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def noting(url: str, options: Any, **others: Any) -> Any:
        given.append(options)
        return read_tokenizer(url, options, **others)

    monkeypatch.setattr(tokenize_module, "read_tokenizer", noting)
    tokenize = TokenizeRecords("bytes", "", ("text",))
    of_store = tokenize.with_storage_options({"anon": True})
    for one in (of_store, tokenize):
        assert texts(one(task_of({"text": "a"}))) == [{"text": ["a"]}]
    assert given == [{"anon": True}, {}]


def test_the_tokenizer_is_read_once_in_each_process(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def noting(url: str, *args: Any, **options: Any) -> Any:
        read.append(url)
        assert options["checksum"] == ""
        return read_tokenizer(url, *args, **options)

    monkeypatch.setattr(tokenize_module, "read_tokenizer", noting)
    tokenize = TokenizeRecords("bytes", "", ("text",))
    for _ in range(2):
        tokenize(task_of({"text": "a"}))
    assert read == ["bytes"]
    assert texts(pickle.loads(pickle.dumps(tokenize))(task_of({"text": "a"}))) == [{"text": ["a"]}]
    assert read == ["bytes"] * 2
