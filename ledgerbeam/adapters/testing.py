"""Tests for adapters of your own: derive a class, define adapter, objects and records, and run it with pytest.

class TestCurator(AdapterContract):
    def adapter(self):
        return CuratorAdapter()

    def objects(self):
        return [(WordCountFilter(min_words=2), {}), (WordCountFilter, {"min_words": 2})]

    def records(self):
        return [{"id": number, "text": number * "word "} for number in range(20)]
"""

# ruff: noqa: D102 - the names of the tests describe them

from __future__ import annotations

import copy
import functools
import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import cloudpickle

from ledgerbeam import stats
from ledgerbeam.errors import FunctionError
from ledgerbeam.results import Drop, Reject, Route
from ledgerbeam.user_code.adapters import Adapter

_OUTCOMES = (Drop, Reject, Route, list)


class AdapterContract(ABC):
    """The behaviour that every adapter must have."""

    @abstractmethod
    def adapter(self) -> Adapter:
        """Create the adapter."""

    @abstractmethod
    def objects(self) -> Sequence[tuple[Any, Mapping[str, Any]]]:
        """Return objects of the library, instances and classes, each with values of ``--set``."""

    @abstractmethod
    def records(self) -> Sequence[Any]:
        """Return different records that raise no error. At least one gives a result that is not the record."""

    def refused(self) -> Sequence[Any]:
        """Return objects of the library that a job cannot call."""
        return ()

    def is_style(self) -> bool:
        """Return whether the adapter is used only with ``--style``."""
        return False

    def test_it_knows_the_objects_of_its_library_only(self) -> None:
        for target, _ in self.objects():
            _equal(self.adapter().knows(target), not self.is_style(), f"whether it knows {target!r}")
        for other in (len, dict, json.JSONEncoder, json.JSONEncoder(), self.objects, type(self)):
            _equal(self.adapter().knows(other), False, f"whether it knows {other!r}")

    def test_a_result_depends_on_its_record_only(self) -> None:
        """Records in another order, or with other records between them, have the same results."""
        changed = False
        for target, call in self._calls(batched=False):
            records = list(self.records())
            expected = [call(copy.deepcopy(record)) for record in records]
            for position in (*reversed(range(len(records))), *range(len(records))):
                found = call(copy.deepcopy(records[position]))
                _equal(found, expected[position], f"the result of {target!r} for record {position} in another order")
            changed = changed or expected != records
        _equal(changed, True, "whether some result is not its record")

    def test_batches_have_the_results_of_single_records(self) -> None:
        for (target, one), (_, many) in zip(self._calls(batched=False), self._calls(batched=True), strict=True):
            records = list(self.records())
            expected = [one(copy.deepcopy(record)) for record in records]
            for size in (1, 3, len(records)):
                parts = [many(copy.deepcopy(records[at : at + size])) for at in range(0, len(records), size)]
                found = [result for part in parts for result in part]
                _equal(list(map(_alone, found)), list(map(_alone, expected)), f"the results of {target!r} in batches")

    def test_results_are_what_functions_of_jobs_return(self) -> None:
        for target, call in self._calls(batched=False):
            for record in self.records():
                found = call(copy.deepcopy(record))
                is_valid = found is None or isinstance(found, (*_OUTCOMES, type(record)))
                _equal(is_valid, True, f"whether {target!r} returned a record or an outcome, found {found!r:.80}")

    def test_its_identity_is_the_same_in_each_process(self) -> None:
        for target, values in self.objects():
            found = self.adapter().identity(target, values)
            _equal(self.adapter().identity(target, values), found, f"the identity of {target!r}")
            texts = [text for group in found.values() for pair in group.items() for text in pair]
            _equal(all(type(text) is str for text in texts), True, f"whether {found} holds texts")

    def test_instances_can_be_sent_to_workers(self) -> None:
        for target, values in self.objects():
            sent = cloudpickle.loads(cloudpickle.dumps(self.adapter().portable(target)))
            one, other = (_built(self.adapter().adapt(one, batched=False), values) for one in (target, sent))
            for record in self.records():
                _equal(other(copy.deepcopy(record)), one(copy.deepcopy(record)), f"the result of a sent {target!r}")
            _equal(self.adapter().identity(sent, values), self.adapter().identity(target, values), "its identity")

    def test_objects_that_a_job_cannot_call_are_refused(self) -> None:
        for target in self.refused():
            _equal(self.adapter().knows(target), not self.is_style(), f"whether it knows {target!r}")
            try:
                self.adapter().adapt(target, batched=False)
            except FunctionError as error:
                _equal(";" in str(error), True, f"whether the error has a remedy after a semicolon: {error}")
            else:
                raise AssertionError(f"{target!r}: expected a FunctionError, found none")

    def _calls(self, *, batched: bool) -> Iterator[tuple[Any, Callable[[Any], Any]]]:
        for target, values in self.objects():
            call = _built(self.adapter().adapt(target, batched=batched), values)

            def counted(given: Any, call: Callable[[Any], Any] = call) -> Any:
                with stats.discarded():
                    return call(given)

            yield target, counted


def _built(made: Callable[..., Any], values: Mapping[str, Any]) -> Callable[[Any], Any]:
    inspect.signature(made).bind(*(() if inspect.isclass(made) else (None,)), **values)
    built: Any = made(**values) if inspect.isclass(made) else functools.partial(made, **values)
    call: Callable[[Any], Any] = built
    return call


def _alone(result: Any) -> Any:
    """Return a list of one record as this record: both mean the same."""
    return result[0] if isinstance(result, list) and len(result) == 1 else result


def _equal(found: Any, expected: Any, what: str) -> None:
    if found != expected:
        raise AssertionError(f"{what}: expected {expected!r:.300}, found {found!r:.300}")
