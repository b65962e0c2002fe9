"""Trace of a sampled record through several functions: what each of them returned for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import orjson

from ledgerbeam.errors import LedgerbeamError
from ledgerbeam.ledger.model.accounts import NOTHING
from ledgerbeam.results import Drop, Reject, Route
from ledgerbeam.sources.forms import RecordForm
from ledgerbeam.user_code.async_loop import event_loop
from ledgerbeam.user_code.functions_of_job import JobFunction
from ledgerbeam.user_code.guards import describe_error, is_interrupt
from ledgerbeam.user_code.objects import ReadyObject, UserObject


@dataclass
class FunctionTrial:
    """The results of one of several functions for a record of a sample, or for the results of the function before."""

    function: str  # label of the function
    received: int = 0  # number of records that it was called with
    results: dict[str, list[Any]] = field(default_factory=dict)  # results by route, as JSON values
    dropped: dict[str, int] = field(default_factory=dict)  # number of dropped records by reason
    rejected: dict[str, int] = field(default_factory=dict)  # number of rejected records by reason
    error: str = ""  # description of the exception that it raised; empty if it raised none


class Tracer:
    """Collects the results of the functions of a job in `trials`, by label and in order."""

    def __init__(self) -> None:
        self.trials: dict[str, FunctionTrial] = {}

    def traced(self, function: JobFunction, form: RecordForm) -> JobFunction:
        """Return a function whose calls are recorded. Its argument has the form `form`."""

        def tracing(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
            def called(argument: Any) -> Any:
                trial = self.trials.setdefault(function.label, FunctionTrial(function.label))
                is_many = form == "arrow" or function.batch is not None
                trial.received += len(argument) if is_many else 1
                try:
                    result = call(argument)
                except BaseException as error:
                    if not is_interrupt(error):
                        trial.error = describe_error(error)
                    raise
                if form == "arrow":
                    _add_rows(trial, result, len(argument))
                else:
                    for one in result if is_many and isinstance(result, (list, tuple)) else [result]:
                        _add(trial, one)
                return result

            return called

        return replace(function, object=_TracedObject(**vars(function.object), tracing=tracing))


@dataclass(frozen=True)
class _TracedObject(UserObject):
    tracing: Callable[[Callable[[Any], Any]], Callable[[Any], Any]] = lambda call: call

    def ready(self) -> ReadyObject:
        found = super().ready()
        call = partial(_awaited, found.call) if found.is_async else found.call
        return replace(found, call=self.tracing(call), is_async=False)


def _awaited(call: Callable[[Any], Any], argument: Any) -> Any:
    return event_loop().run(call(argument))


def _add(trial: FunctionTrial, result: Any) -> None:
    """Add the result for one record to a trial. Results of a wrong form are added as they are."""
    match result:
        case Reject():
            _count(trial.rejected, str(result.reason))
            trial.error = trial.error or str(result.error)
        case Drop():
            _count(trial.dropped, str(result.reason))
        case _:
            kept = list(_routed(result))
            for route, value in kept:
                trial.results.setdefault(route, []).append(_as_json(value))
            if not kept:
                _count(trial.dropped, NOTHING)


def _count(counts: dict[str, int], reason: str, number: int = 1) -> None:
    counts[reason] = counts.get(reason, 0) + number


def _routed(result: Any, route: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the results in a list or a route, each with its route."""
    for one in result if isinstance(result, list) else [result]:
        if isinstance(one, Route):
            yield from _routed(one.record, str(one.name))
        elif one is not None:
            yield route, one


def _add_rows(trial: FunctionTrial, result: Any, rows: int) -> None:
    from ledgerbeam.io.columns.values import to_records  # noqa: PLC0415 - only jobs of Arrow batches import it
    from ledgerbeam.transforms.mapping.arrow_batches import rows_outcome  # noqa: PLC0415

    try:
        outcome: Any = rows_outcome(result, rows, trial.function)
    except LedgerbeamError:  # the job finds this mistake, too, and reports it
        return
    for route, table, _ in outcome.by_route():
        trial.results.setdefault(route, []).extend(map(_as_json, to_records(table)))
    for reason, number in outcome.dropped.items():
        _count(trial.dropped, reason, number)
    for _, end in outcome.rejected:
        _count(trial.rejected, end.reason)
        trial.error = trial.error or end.error


def _as_json(value: Any) -> Any:
    """Return a copy of a result as JSON. Parts that JSON cannot hold become text."""
    options = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
    try:
        return orjson.loads(orjson.dumps(without_contents(value), _text, options))
    except (TypeError, ValueError):
        return _text(value)


def _text(value: Any) -> str:
    return f"{value!r:.200}"


def without_contents(value: Any) -> Any:
    """Return the sizes of the members of a sample of a tar, by name; any other result unchanged."""
    if isinstance(value, Mapping) and any(isinstance(part, bytes) for part in value.values()):
        return {name: len(part) for name, part in value.items()}
    return value
