"""Stages of the functions of a job: runs of functions of single records as one call, and functions of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import groupby
from typing import Any

from ledgerbeam.errors import ServiceError
from ledgerbeam.io import Sample
from ledgerbeam.results import Drop, Reject
from ledgerbeam.stats import Collected
from ledgerbeam.transforms.mapping.async_calls import AsyncCalls
from ledgerbeam.transforms.mapping.outcomes import ChildFailedError, End, Results, copied, read_result
from ledgerbeam.user_code.functions_of_job import JobFunction
from ledgerbeam.user_code.guards import ReportedError, is_interrupt
from ledgerbeam.user_code.objects import ReadyObject, is_async

# Types of the results of a function that are the records of the next one without more checks.
_RECORDS = frozenset({dict, Sample, str, bytes, int, float})

# Takes values, and returns the function to call with them: `IsolatedCalls.ahead`, or `AsyncCalls.ahead`
Ahead = Callable[..., Callable[[Any], Any]]


@dataclass(frozen=True)
class ReadyFunction:
    """A function of a job, ready to be called."""

    name: str  # for messages
    call: Callable[[Any], Any]
    label: str = ""
    batch: int | None = None  # maximum number of records of a call; None for single records
    invariant: bool = True  # whether the outcome of a record is independent of the other records of its batch
    is_async: bool = False  # whether a call returns a coroutine


@dataclass
class CallStage:
    """A run of functions of single records, or one function of batches.

    Attributes:
        first: Number of its first function in the job.
        functions: Its functions.
        output: Format of the outputs if the stage has the last function; else empty.
        size: Maximum number of values of a call; None for single values.
        call: The only place in which functions are called. A stage of single values takes a value and returns a dict,
            which is the result of all functions, or another result of its only function, or `Results`. A stage of
            batches takes a list of values and returns a list of results of its function, or of `Results`.
    """

    first: int
    functions: Sequence[ReadyFunction]
    output: str
    size: int | None
    collected: Collected  # statistics of the functions
    ahead: Ahead | None = None  # of the stage, if its calls are made ahead
    measured: Callable[[Any], Any] = lambda call: call  # wraps calls, to measure their time
    call: Callable[[Any], Any] = field(init=False)
    running: Callable[[], int] = field(init=False)  # returns the number of the running function in the job

    def __post_init__(self) -> None:
        calls = [function.call for function in self.functions]
        self.running = self.first.__index__
        if self.ahead is not None:
            self.call = lambda value: self.calls([value])(value)
        elif self.collected.parts and self.size is None:
            self.call, self.running = _fused(len(calls))(calls, self.first, _RECORDS, self.read)
        else:
            (self.call,) = calls

    @property
    def stop(self) -> int:
        """Number of the function after the last one."""
        return self.first + len(self.functions)

    @property
    def is_async(self) -> bool:
        """Whether calls of its only function return coroutines."""
        return self.functions[0].is_async

    @property
    def invariant(self) -> bool:
        """Whether the outcome of a value is independent of the other values of a call."""
        return all(function.invariant for function in self.functions)

    @property
    def name(self) -> str:
        """Name of its last function, for messages."""
        return self.functions[-1].name

    def measure(self, measured: Callable[[Any], Any]) -> None:
        """Wrap all calls."""
        if self.ahead is None:
            self.call = measured(self.call)
        else:
            self.measured = measured

    def calls(self, values: Iterable[Any]) -> Callable[[Any], Any]:
        """Return a function to call with each of `values`, in order, like `call`. It may map some of them ahead."""
        if self.ahead is None:
            return self.call
        call = self.measured(self.ahead(values))
        if self.size is not None or not self.collected.parts:
            return call

        def called(value: Any) -> Any:
            try:
                return call(value)
            except BaseException as error:
                if is_interrupt(error) or type(error) in (ChildFailedError, ServiceError):
                    raise
                last = len(self.functions) - 1  # the result of the last one could not be sent
                ended = type(error) is ReportedError and error.has_ended
                return self.read(value, None, error.function - self.first if ended else last, error)  # type: ignore[attr-defined]

        return called

    def has_observed(self) -> bool:
        """Return whether functions of the stage have made statistics for this task."""
        return any(self.collected.parts[self.first : self.stop] or [self.collected.sketches])

    def read(
        self, value: Any, result: Any, number: int = 0, error: BaseException | None = None, source: Any = None
    ) -> Results:
        """Read the result of one function for a value, and call the following functions of the stage with its records.

        Args:
            value: The value with which the function was called.
            result: Its result.
            number: Number of the function in the stage.
            error: The error that it raised.
            source: The value with which the first function was called, unless it is `value`.
        """
        records, received, ends = [("", value)], [1] * number, list[End]()
        source = value if source is None else source
        for at, function in enumerate(self.functions[number:], self.first + number):
            received.append(len(records))
            output = self.output if at == self.stop - 1 else ""
            self.collected.running = at.__index__
            made: list[tuple[str, Any]] = []
            for route, record in records:
                try:
                    if error is not None:
                        raise error
                    returned = result if at == self.first + number else function.call(record)
                    found = read_result(returned, source if output else record, function.name, output)
                    if isinstance(found, Drop | Reject):
                        ends.append(End.of_result(found, function.name, at))
                    else:
                        # The function may return the same object again, or have several references to it in a list.
                        is_one = len(records) == len(found) == 1
                        made += [(name or route, one if is_one else copied(one)) for name, one in found]
                except BaseException as raised:
                    if is_interrupt(raised):
                        raise
                    ends.append(End.of_error(raised, function.name, at))
                error = None
            records = made
            if not records:
                break
        self.collected.running = self.running
        return Results(records, ends, received)


def stages_of(
    functions: Sequence[ReadyFunction],
    output: str,
    collected: Collected,
    ahead: Ahead | None = None,
    asynchronous: AsyncCalls | None = None,
) -> list[CallStage]:
    """Divide the functions of a job into stages. `collected` has parts if there are several functions.

    `ahead` makes all calls ahead, in another process. Without it, `asynchronous` makes the calls of async functions.
    """
    stages: list[CallStage] = []
    alone = groupby(enumerate(functions), lambda one: (one[1].batch, one[0] if one[1].batch or one[1].is_async else -1))
    for (size, _), group in alone:
        numbers, members = zip(*group, strict=True)
        is_last = numbers[-1] == len(functions) - 1
        ahead_of_stage: Ahead | None = None
        if ahead is not None:
            ahead_of_stage = partial(ahead, stage=len(stages))
        elif members[0].is_async:
            calls = asynchronous or AsyncCalls()
            ahead_of_stage = partial(
                calls.ahead, call=members[0].call, name=members[0].name, number=numbers[0], batched=size is not None
            )
        stages.append(CallStage(numbers[0], members, output if is_last else "", size, collected, ahead_of_stage))
    return stages


@dataclass(frozen=True)
class HostedFunctions:
    """The functions of a job, in a form that can be sent to another process, also by cloudpickle."""

    functions: Sequence[JobFunction]
    output: str  # name of the format of the outputs
    size: int | None = None  # maximum number of records of a call of a function without a size of its own

    @property
    def names(self) -> Sequence[str]:
        """Names of the functions, for messages."""
        return [str(one.object.reference) for one in self.functions]

    @property
    def labels(self) -> Sequence[str]:
        """Labels of several functions; empty for one function."""
        return [one.label for one in self.functions] if len(self.functions) > 1 else ()

    @property
    def are_async(self) -> bool:
        """Whether calls of the functions return coroutines. The functions are imported."""
        return any(is_async(one.object.check()) for one in self.functions)

    def load(self) -> None:
        """Import the modules of the functions."""
        for one in self.functions:
            one.object.check()

    def build(self) -> tuple[ReadyObject, ...]:
        """Return the objects of the functions, which each process builds once."""
        return tuple(one.object.ready() for one in self.functions)

    def mapped(self, ready: Sequence[ReadyObject]) -> list[ReadyFunction]:
        """Return the functions with their objects."""
        return [
            ReadyFunction(
                name, loaded.call, one.label, one.batch or self.size, not loaded.depends_on_batches, loaded.is_async
            )
            for name, one, loaded in zip(self.names, self.functions, ready, strict=True)
        ]

    def stages(self, ready: Sequence[ReadyObject], collected: Collected) -> list[CallStage]:
        """Return the stages of the functions."""
        return stages_of(self.mapped(ready), self.output, collected)


@cache
def _fused(count: int) -> Any:
    """Return a function that makes a `CallStage.call` of `count` functions, and its `CallStage.running`.

    A loop over the functions would take twice as long: the interpreter specializes a call only if it always calls the
    same function. So the code has one call for each function.
    """
    names = ", ".join(f"call_{number}" for number in range(count))
    steps = "".join(
        f"""
            number = {number}
            value_{number + 1} = call_{number}(value_{number})
            if type(value_{number + 1}) is not dict and type(value_{number + 1}) not in records:
                return read(value_{number}, value_{number + 1}, {number}, None, value_0)"""
        for number in range(count)
    )
    code = f"""
def make(calls, first, records, read):
    {names}, = calls
    number = 0
    def call(value_0):
        nonlocal number
        try:{steps}
        except BaseException as error:
            return read(locals()[f"value_{{number}}"], None, number, error, value_0)
        if type(value_{count}) is dict:
            return value_{count}
        return read(value_{count - 1}, value_{count}, {count - 1}, None, value_0)
    return call, lambda: first + number
"""
    made: dict[str, Any] = {}
    exec(compile(code, f"<call of {count} functions>", "exec"), made)  # noqa: S102 - its only variable is a count
    return made["make"]
