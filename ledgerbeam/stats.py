"""Statistics for user functions: counts, quantiles, distinct values and frequent values.

Call these functions anywhere in the function of a job:

    from ledgerbeam import stats

    def clean(record):
        stats.count("words", len(record["text"].split()))
        stats.observe("length", len(record["text"]))
        stats.distinct("hosts", record["host"])
        stats.top("languages", record["language"])
        return record

The values are recorded with the running task. A task counts once, even if it ran several times or its process died.
``ledgerbeam ledger stats`` shows the merged statistics of all tasks. Outside a job, as in a test of the function, the
calls only check their arguments.
"""

from __future__ import annotations

import contextlib
import operator
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from hashlib import blake2b
from json.encoder import encode_basestring_ascii
from math import isfinite
from threading import Lock
from types import SimpleNamespace
from typing import Any, SupportsFloat, SupportsIndex

from ledgerbeam import sketches
from ledgerbeam.errors import FunctionError
from ledgerbeam.sketches import LARGEST, LIMIT

__all__ = ["Collected", "collecting", "count", "discarded", "distinct", "observe", "top"]

MOST_NAMES = 100
"""Maximum number of statistics, of reasons and of routes in a task. They name categories, not single records."""

NAME_CHARACTERS = 200
"""Greatest length of a name of a statistic or route, and of a reason."""

SEPARATOR = "\x1f"
"""Separates the label of a function of a job from the name of its statistic. No name of a user has this character."""

_SHOWN_CHARACTERS = 128
"""Greatest length of a value of `top`. A longer value is shown by its first characters and a checksum of the whole."""

_current: ContextVar[Collected | None] = ContextVar("ledgerbeam.stats", default=None)

_open = 0
_opening = Lock()


def count(name: str, n: SupportsIndex = 1) -> None:
    """Add to a count, which is exact for any size.

    Args:
        name: Name of the statistic, such as ``words``; at most 100 different ones in a task.
        n: Increment, a whole number from 0.

    Raises:
        FunctionError: An argument is invalid, or another kind of statistic has the name.
    """
    number = n if type(n) is int and 0 <= n <= LIMIT else _whole(name, "count", n, 0)
    found = _sketch(name, "count")
    if found is not None:
        found.add(number)


def observe(name: str, value: SupportsFloat) -> None:
    """Observe a number. Count, minimum, maximum and mean are exact; quantiles are estimates.

    Args:
        name: Name of the statistic, such as ``length``.
        value: A finite number, of Python or NumPy. A bool counts as 0 or 1, so that the mean is a share.

    Raises:
        FunctionError: An argument is invalid (also NaN), or another kind of statistic has the name.
    """
    number = value if type(value) is float and -LARGEST <= value <= LARGEST else _number(name, value)  # NaN is not
    found = _sketch(name, "observe")
    if found is not None:
        found.add(number)


def distinct(name: str, value: Any) -> None:
    """Add a value to the count of distinct values. A small count is exact, a large one is an estimate.

    Equal numbers are one value, such as 1 and 1.0. But ``"1"``, ``b"1"``, ``1`` and ``True`` are four values.

    Args:
        name: Name of the statistic, such as ``hosts``.
        value: A str, bytes, a number, a bool or None.

    Raises:
        FunctionError: An argument is invalid, or another kind of statistic has the name.
    """
    text = encode_basestring_ascii(value) if type(value) is str else _text(name, "distinct", value)
    found = _sketch(name, "distinct")
    if found is not None:
        found.add(text)


def top(name: str, value: Any, n: SupportsIndex = 1) -> None:
    """Count a value with the weight `n`. ``ledgerbeam ledger stats`` shows the values with the greatest counts.

    Args:
        name: Name of the statistic, such as ``languages``.
        value: As in `distinct`. A value of more than 128 characters or bytes is shown cut, with a checksum.
        n: Weight, a whole number from 1.

    Raises:
        FunctionError: An argument is invalid, or another kind of statistic has the name.
    """
    number = n if type(n) is int and 1 <= n <= LIMIT else _whole(name, "top", n, 1)
    if isinstance(value, str | bytes | bytearray | memoryview) and len(value) > _SHOWN_CHARACTERS:
        value = _cut(value)
    text = encode_basestring_ascii(value) if type(value) is str else _text(name, "top", value)
    found = _sketch(name, "top")
    if found is not None:
        found.add(text, number)


class Collected:
    """Statistics collected in the body of `collecting`, by name; with `labels` separately for each function of a job.

    Attributes:
        sketches: The statistics, without `labels`.
        parts: The statistics of each function; empty without `labels`.
        running: Returns the number of the running function. The caller of the functions sets it.
    """

    def __init__(self, labels: Sequence[str] = ()) -> None:
        self.sketches: dict[str, Any] = {}
        self.parts: list[dict[str, Any]] = [{} for _ in labels]
        self.running: Callable[[], int] = int
        self._labels = labels
        self.has_ended = False
        self._lock = Lock()

    @property
    def current(self) -> dict[str, Any]:
        """The statistics of the running function."""
        return self.parts[self.running()] if self.parts else self.sketches

    def statistics(self) -> dict[str, tuple[str, bytes]]:
        """Return the kind and the bytes of each statistic, sorted by name; see `ledgerbeam.sketches`.

        The statistics of several functions have names of label, `SEPARATOR` and name.
        """
        named = zip(self._labels, self.parts, strict=True)
        found = {f"{label}{SEPARATOR}{name}": one for label, part in named for name, one in part.items()}
        return {name: (sketch.kind, sketch.data()) for name, sketch in sorted({**self.sketches, **found}.items())}

    def new(self, name: str, kind: str) -> Any:  # noqa: ARG002 - subclasses use the name
        """Return the sketch of a new statistic."""
        return sketches.begin(kind)

    def begin(self, name: str, kind: str) -> Any:
        """Create the sketch of a new name and return the sketch.

        Raises:
            FunctionError: The task has too many statistics.
        """
        with self._lock:
            current = self.current
            found = current.get(name)
            if found is None:
                if sum(map(len, (self.sketches, *self.parts))) == MOST_NAMES:
                    raise FunctionError(
                        f"stats.{kind}({_shown(name)}): a task has at most {MOST_NAMES} statistics of different names; "
                        "use one name per category, and count record values with stats.top or stats.distinct"
                    )
                found = current[name] = self.new(name, kind)
        return found


class Observing(Collected):
    """Statistics that are only checked here, and kept as observations to `replay`.

    Args:
        labels: As in `Collected`.
        names: Kinds of the statistics that the task has, by name, for each function.
    """

    def __init__(self, labels: Sequence[str] = (), names: Sequence[Mapping[str, str]] = ()) -> None:
        super().__init__(labels)
        self.observations: list[Observation] = []
        for number, known in enumerate(names):
            self.running = number.__index__
            self.current.update({name: self.new(name, kind) for name, kind in known.items()})

    def new(self, name: str, kind: str) -> Any:
        """Return an object in place of a sketch. It keeps the added values."""
        function = self.running() if self.parts else 0
        return SimpleNamespace(kind=kind, add=lambda *args: self.observations.append((function, name, kind, args)))


@contextlib.contextmanager
def collecting(labels: Sequence[str] = (), into: Collected | None = None) -> Iterator[Collected]:
    """Collect the statistics of the body, in this thread and in threads that run in a copy of its context.

    With `labels`, collect them separately for each function of a job; with `into`, in this object.
    A nested `collecting` collects the statistics of its own body instead.
    """
    global _open  # noqa: PLW0603 - says whether any thread of the process is in a task
    collected = Collected(labels) if into is None else into
    token = _current.set(collected)
    with _opening:
        _open += 1
    try:
        yield collected
    finally:
        with _opening:
            _open -= 1
        collected.has_ended = True
        _current.reset(token)


@contextlib.contextmanager
def discarded() -> Iterator[None]:
    """Check the arguments of statistics in the body, but discard the values: the body repeats work that was counted."""
    with collecting():
        yield


# Number of the function in the job, name, kind, and arguments of `add` of the sketch
Observation = tuple[int, str, str, tuple[Any, ...]]


def current() -> Collected | None:
    """Return the statistics of the running task; None outside a task."""
    return _current.get()


def replay(observed: Iterable[Observation]) -> None:
    """Add observations of another process to the statistics of the running task, in order. FunctionError as usual."""
    collected = _current.get()
    for function, name, kind, args in observed:
        if collected is not None and collected.parts:
            collected.running = function.__index__
        found = _sketch(name, kind)
        if found is not None:
            found.add(*args)


def _sketch(name: str, kind: str) -> Any:
    """Return the sketch of a name in the running task; None outside a task."""
    collected = _current.get()
    if collected is None:
        _check_name(name, kind)
        if _open:
            raise FunctionError(
                f"stats.{kind}({_shown(name)}): called in a thread without the context of the task; start the thread "
                "with a copy of the context: use executor.submit(contextvars.copy_context().run, function, ...) or "
                "asyncio.to_thread"
            )
        return None
    if collected.has_ended:
        raise FunctionError(
            f"stats.{kind}({_shown(name)}): called after the end of the task; wait for threads before the function "
            "returns"
        )
    known = collected.current if collected.parts else collected.sketches
    found = known.get(name) if type(name) is str else None
    if found is None:
        _check_name(name, kind)
        found = collected.begin(str(name), kind)
    if found.kind != kind:
        raise FunctionError(
            f"stats.{kind}({_shown(name)}): stats.{found.kind} already uses this name; give one of the two statistics "
            "another name"
        )
    return found


def _check_name(name: Any, kind: str) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARACTERS or not name.isprintable():
        raise FunctionError(
            f"stats.{kind}: expected a name of 1 to {NAME_CHARACTERS} printable characters, found {_shown(name)}"
        )


def _whole(name: Any, kind: str, value: Any, least: int) -> int:
    """Return a whole number of any type, such as NumPy's, as an int. FunctionError if it is less than `least`."""
    with contextlib.suppress(TypeError):
        number = operator.index(value)
        if least <= number <= LIMIT:
            return number
    raise FunctionError(
        f"stats.{kind}({_shown(name)}): expected a whole number from {least} to 2**63 - 1, found {_shown(value)}"
    )


def _number(name: Any, value: Any) -> float:
    """Return a number of another type as a float; text is refused."""
    if not isinstance(value, str | bytes | bytearray):
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            number = float(value)
            if -LARGEST <= number <= LARGEST:
                return number
    raise FunctionError(
        f"stats.observe({_shown(name)}): expected a number from -2**960 to 2**960, found {_shown(value)}; skip such "
        "values, or count them with stats.count"
    )


def _text(name: Any, kind: str, value: Any) -> str:
    """Return a value as JSON. Equal values have the same text."""
    if type(value).__module__ == "numpy" and callable(getattr(value, "item", None)):
        with contextlib.suppress(ValueError):  # of more than one value
            value = value.item()
    with contextlib.suppress(ValueError):  # a number of thousands of digits
        match value:
            case None:
                return "null"
            case bool():
                return "true" if value else "false"
            case str():
                return encode_basestring_ascii(value)
            case int():
                return str(int(value))
            case float() if isfinite(value):
                return str(int(value)) if value.is_integer() else repr(float(value))
            case bytes() | bytearray() | memoryview():
                return f'{{"base64":"{b64encode(value).decode("ascii")}"}}'
    raise FunctionError(
        f"stats.{kind}({_shown(name)}): expected a str, bytes, a finite number, a bool or None, found {_shown(value)}; "
        "convert the value, such as with str()"
    )


def _cut(value: str | bytes | bytearray | memoryview) -> str:
    data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else bytes(value)
    front = value[:_SHOWN_CHARACTERS] if isinstance(value, str) else ascii(data[:_SHOWN_CHARACTERS])
    return f"{front}... ({len(value):,} long, {blake2b(data, digest_size=8).hexdigest()})"


def _shown(value: Any) -> str:
    try:
        text = repr(value) if isinstance(value, str | bytes | int | float | None) else f"a {type(value).__name__}"
    except ValueError:  # a number of thousands of digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."
