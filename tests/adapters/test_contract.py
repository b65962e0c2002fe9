"""The published tests for adapters, on the built-in style, the example, and adapters that break them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from examples.own_adapter import CuratorAdapter
from ledgerbeam import Drop
from ledgerbeam.adapters import Adapter
from ledgerbeam.adapters.datasets import DatasetsStyle
from ledgerbeam.adapters.testing import AdapterContract
from tests.cases import each

RECORDS = [{"id": number, "text": number * "word "} for number in range(12)]


class WordCountFilter:
    """A filter with the interface of NeMo Curator, which cannot be installed here."""

    def __init__(self, min_words: int = 5) -> None:
        self.min_words = min_words

    def score_document(self, text: str) -> int:
        return len(text.split())

    def keep_document(self, score: int) -> bool:
        return score >= self.min_words


class PartitionFilter(WordCountFilter):
    def score_document(self, text: Any) -> Any:
        return text.str.len()

    score_document.batched = True  # type: ignore[attr-defined]  # as the decorator of the library sets it


class TestCurator(AdapterContract):
    def adapter(self) -> Adapter:
        return CuratorAdapter()

    def objects(self) -> Sequence[tuple[Any, Mapping[str, Any]]]:
        return [(WordCountFilter(), {}), (WordCountFilter, {"min_words": 2})]

    def refused(self) -> Sequence[Any]:
        return [PartitionFilter(), PartitionFilter]

    def records(self) -> Sequence[Any]:
        return RECORDS


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def lengths(example: Any, factor: int = 1) -> Any:
    """Work on one record and on columns, as functions of `datasets` often do."""
    found = [len(text) * factor for text in _as_list(example["text"])]
    return {"length": found if isinstance(example["text"], list) else found[0]}


def is_long(example: Any) -> Any:
    kept = [len(text) > 20 for text in _as_list(example["text"])]
    return np.array(kept) if isinstance(example["text"], list) else np.bool_(kept[0])


class Lengths:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, example: Any) -> Any:
        return lengths(example, self.factor)


class TestDatasets(AdapterContract):
    def adapter(self) -> Adapter:
        return DatasetsStyle()

    def objects(self) -> Sequence[tuple[Any, Mapping[str, Any]]]:
        values = {"factor": 3}
        return [(lengths, values), (is_long, {}), (Lengths, values), (Lengths(2), {"remove_columns": ["id"]})]

    def refused(self) -> Sequence[Any]:
        async def later(example: Any) -> Any: ...

        def generated(example: Any) -> Any:
            yield example

        return [lambda example, idx: example, lambda example, rank: example, later, generated]

    def records(self) -> Sequence[Any]:
        return RECORDS

    def is_style(self) -> bool:
        return True


class Broken(CuratorAdapter):
    """An adapter that breaks one rule."""

    def __init__(self, rule: str) -> None:
        self._rule = rule

    def knows(self, target: Any) -> bool:
        return self._rule == "knows" or super().knows(target)

    def adapt(self, target: Any, *, batched: bool) -> Callable[..., Any]:
        seen: list[Any] = []

        def stateful(record: Any) -> Any:
            seen.append(record)
            return Drop("every third") if len(seen) % 3 == 0 else record

        match self._rule:
            case "state":
                return stateful
            case "batches" if batched:
                return lambda records: records[1:]
            case "results":
                return lambda given: [True] * len(given) if batched else True
            case "refusal":
                return lambda given: given
        return super().adapt(target, batched=batched)

    def identity(self, target: Any, values: Mapping[str, Any]) -> dict[str, dict[str, str]]:
        return {"draw": {"of": str(random.random())}} if self._rule == "identity" else super().identity(target, values)

    def portable(self, target: Any) -> Any:
        return WordCountFilter(99) if self._rule == "portable" else target


@each(
    ("rule", "test", "said"),
    [
        ("knows", "test_it_knows_the_objects_of_its_library_only", "whether it knows"),
        ("state", "test_a_result_depends_on_its_record_only", "in another order"),
        ("batches", "test_batches_have_the_results_of_single_records", "in batches"),
        ("results", "test_results_are_what_functions_of_jobs_return", "found True"),
        ("identity", "test_its_identity_is_the_same_in_each_process", "the identity"),
        ("portable", "test_instances_can_be_sent_to_workers", "the result of a sent"),
        ("refusal", "test_objects_that_a_job_cannot_call_are_refused", "expected a FunctionError"),
    ],
)
def test_an_adapter_that_breaks_a_rule_fails_the_test_of_the_rule(rule: str, test: str, said: str) -> None:
    contract = TestCurator()
    contract.adapter = lambda: Broken(rule)  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match=said):
        getattr(contract, test)()
