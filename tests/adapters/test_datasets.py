"""Functions in the style of Hugging Face `datasets`, in jobs and alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ledgerbeam
from ledgerbeam import Drop, FunctionError, Reject
from ledgerbeam.user_code.loading import GivenObject
from ledgerbeam.user_code.objects import UserObject
from tests.cases import each

RECORDS = [{"id": number, "text": "word " * (number % 7)} for number in range(100)]


def called(function: Any, given: Any, *, batched: bool = False, **values: Any) -> Any:
    """Return the result of a function of the style for a record or a batch."""
    return UserObject(GivenObject("f", function), values, style="datasets", batched=batched).ready().call(given)


class Row(dict[str, Any]):
    """A mapping of another type, as the records of a library."""


@each(
    ("returned", "result"),
    [
        ({"length": 3}, {"id": 1, "text": "abc", "length": 3}),
        ({"text": "x"}, {"id": 1, "text": "x"}),
        (Row(a=np.float32(0.5), b=np.arange(2)), {"id": 1, "text": "abc", "a": 0.5, "b": [0, 1]}),
        (True, {"id": 1, "text": "abc"}),
        (np.True_, {"id": 1, "text": "abc"}),
        (False, Drop("returned False")),
        (None, {"id": 1, "text": "abc"}),
        (Drop("short"), Drop("short")),
        (Reject("bad"), Reject("bad")),
    ],
)
def test_a_result_for_one_record(returned: Any, result: Any) -> None:
    assert called(lambda example: returned, {"id": 1, "text": "abc"}) == result


@each("returned", [1, "abc", [{"text": "abc"}], {"a"}])
def test_other_results_are_errors(returned: Any) -> None:
    with pytest.raises(FunctionError, match="expected a mapping that updates the record, a bool, or None"):
        called(lambda example: returned, {"text": "abc"})


def test_a_function_cannot_change_the_record_in_place() -> None:
    record = {"id": 1, "text": "abc"}

    def shorten(example: dict[str, Any]) -> bool:
        example["text"] = ""
        return True

    assert called(shorten, record) == {"id": 1, "text": "abc"}


BATCH = [{"id": 1, "text": "a"}, {"id": 2, "text": "bb", "more": 1}]


@each(
    ("returned", "results"),
    [
        (
            {"length": [1, 2]},
            [{"id": 1, "text": "a", "length": 1}, {"id": 2, "text": "bb", "more": 1, "length": 2}],
        ),
        ({"length": np.array([1, 2])}, [{**BATCH[0], "length": 1}, {**BATCH[1], "length": 2}]),
        ([True, False], [BATCH[0], Drop("returned False")]),
        (np.array([False, True]), [Drop("returned False"), BATCH[1]]),
        (None, BATCH),
        ({}, BATCH),
    ],
)
def test_a_result_for_a_batch(returned: Any, results: Any) -> None:
    assert called(lambda examples: returned, BATCH, batched=True) == results


def test_a_batch_is_a_mapping_of_columns_and_missing_values_are_none() -> None:
    found: list[Any] = []
    called(found.append, BATCH, batched=True)
    assert found == [{"id": [1, 2], "text": ["a", "bb"], "more": [None, 1]}]


@each(
    ("returned", "said"),
    [
        ({"a": [1, 2, 3]}, "returned 3 rows for 2 records, .*: --batch 1"),
        ({"a": []}, "returned 0 rows for 2 records"),
        ({"a": [1, 2], "b": [1]}, "different lengths: 'a' 2, 'b' 1"),
        ({"a": 1}, "returned a int for the column 'a'"),
        ({"a": "ab"}, "returned a str for the column 'a'"),
        ([True], "a list of 2 bools"),
        ([1, 0], "a list of 2 bools"),
        (True, "a list of 2 bools"),
    ],
)
def test_other_results_for_a_batch_are_errors(returned: Any, said: str) -> None:
    with pytest.raises(FunctionError, match=said):
        called(lambda examples: returned, BATCH, batched=True)


def chunks(examples: dict[str, list[Any]], size: int = 2) -> dict[str, list[Any]]:
    return {"chunk": [text[at : at + size] for text in examples["text"] for at in range(0, len(text), size)]}


def test_a_batch_of_one_record_may_give_another_number_of_rows() -> None:
    one = [{"id": 1, "text": "abcde"}]
    removed = ["id", "text"]
    found = called(chunks, one, batched=True, remove_columns=removed)
    assert found == [[{"chunk": "ab"}, {"chunk": "cd"}, {"chunk": "e"}]]
    assert called(chunks, [{"id": 1, "text": "ab"}], batched=True, remove_columns=removed) == [{"chunk": "ab"}]
    assert called(chunks, [{"id": 1, "text": ""}], batched=True, remove_columns=removed) == [[]]
    with pytest.raises(FunctionError, match=r"the columns 'id', 'text' have one value: .*remove_columns"):
        called(chunks, one, batched=True)


def run(folder: Path, function: Any, **options: Any) -> tuple[list[Any], ledgerbeam.Result]:
    source = folder / "a.jsonl"
    source.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    result = ledgerbeam.map(
        function, str(source), output=str(folder / "out"), ledger=str(folder / "ledger"), to="jsonl", style="datasets",
        workers=1, task_bytes=1000, **options,
    )  # fmt: skip
    lines = [line for path in sorted((folder / "out").glob("*.jsonl")) for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines], result


def lengths(examples: dict[str, list[Any]]) -> dict[str, list[int]]:
    return {"length": [len(text) for text in examples["text"]]}


def is_long(example: dict[str, Any], least: int) -> bool:
    return len(example["text"]) >= least


def test_a_job_with_a_batched_function_updates_each_record(tmp_path: Path) -> None:
    found, _ = run(tmp_path, lengths, batch=8)
    assert found == [{**record, "length": len(str(record["text"]))} for record in RECORDS]


def test_a_job_counts_filtered_records_and_takes_values(tmp_path: Path) -> None:
    found, result = run(tmp_path, is_long, set={"least": 20})
    assert found == [record for record in RECORDS if len(str(record["text"])) >= 20]
    assert result.records.dropped == {"returned False": 100 - len(found)}


def test_a_job_of_chunks_counts_each_record_once(tmp_path: Path) -> None:
    found, result = run(tmp_path, chunks, batch=1, set={"remove_columns": ["id", "text"], "size": 5})
    assert found == [{"chunk": "word "} for record in RECORDS for _ in range(len(str(record["text"])) // 5)]
    assert result.records.kept == sum(bool(record["text"]) for record in RECORDS)
    assert result.records.written == {"": len(found)}
