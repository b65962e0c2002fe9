"""A user's object: a function, an object with ``__call__``, or a class from which each worker builds an object.

The launcher checks its parameters and their values. A worker process imports or builds the object once, and closes it
when the process ends. The object may read watched files, such as a word list, which are identified by checksums.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from ledgerbeam._base.process import hold_standard_descriptors, library_logger
from ledgerbeam._base.redaction import refuse_secrets
from ledgerbeam.errors import ChangedSourceError, FunctionError, SourceNotFoundError, UsageError
from ledgerbeam.io import Options
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.urls import canonical_url
from ledgerbeam.ledger.model.job import LONGEST, note_text
from ledgerbeam.ledger.model.values import encode
from ledgerbeam.user_code.adapters import adapted
from ledgerbeam.user_code.async_loop import event_loop
from ledgerbeam.user_code.guards import describe_error, is_interrupt
from ledgerbeam.user_code.loading import Reference, import_object

_ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

OF_A_RECORD, OF_A_GROUP = ("record",), ("the key", "its records")  # what most commands, and ``group``, call with

# Attribute of a function or a class. False means that its result for a record depends on the batch's other records.
BATCH_INVARIANT = "batch_invariant"
_DEEPEST = 20  # largest number of levels of a value of `--set`. A job with a deeper one could not be read again.


def import_callable(
    reference: Reference, style: str | None = None, *, batched: bool = False, may_be_async: bool = False
) -> Callable[..., Any]:
    """Import ``module:object``, and adapt it if it is an object of another library or follows a style.

    Raises FunctionError if the import fails, or the object cannot be called with records; also like `adapted`.
    """
    target: Callable[..., Any] = adapted(import_object(reference), style, batched=batched)
    if not callable(target):
        raise FunctionError(f"{reference}: expected a function, found {type(target).__name__}")
    if inspect.isclass(target) and not any("__call__" in vars(base) for base in target.__mro__):
        raise FunctionError(
            f"{reference} is a class without __call__: expected a function, or a class whose objects take a record; "
            "define __call__(self, record)"
        )
    called = _called(target)
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise FunctionError(
            f"{reference} is a generator function: expected a function that returns a record, None or a list of "
            "records; collect the records in a list, and return it"
        )
    if inspect.iscoroutinefunction(called) and not may_be_async:
        raise FunctionError(
            f"{reference} is an async function, which only map and annotate take: expected a function without `async`; "
            "map the records first, or call the function with asyncio.run in another one"
        )
    return target


def depends_on_batches(target: Any) -> bool:
    """Return whether a function or class declares that its results depend on the batching of records."""
    return getattr(target, BATCH_INVARIANT, True) is False


def check_object(
    reference: Reference,
    values: Mapping[str, Any],
    given: Sequence[str] = OF_A_RECORD,
    style: str | None = None,
    *,
    batched: bool = False,
    may_be_async: bool = False,
) -> Callable[..., Any]:
    """Import the object to be called with records, and check that it takes the values of ``--set``.

    Raises like `import_callable`; FunctionError also if the object does not take the arguments that `given` names;
    UsageError if a name in `values` is not a parameter, or a parameter without a default is not in `values`.
    """
    target = import_callable(reference, style, batched=batched, may_be_async=may_be_async)
    try:
        signature = _signature(target)
    except (ValueError, TypeError):  # some callables that are not written in Python have no signature
        return target
    parameters = list(signature.parameters.values())
    record = None if inspect.isclass(target) else next(iter(parameters), None)
    takes_any = record is not None and record.kind is record.VAR_POSITIONAL
    by_position = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    if not inspect.isclass(target) and not takes_any and len(by_position) < len(given):
        first = "its first parameter is the record" if len(given) == 1 else f"it is called with {' and '.join(given)}"
        raise FunctionError(
            f"{reference}: expected a function of {'one record' if len(given) == 1 else ' and '.join(given)}, found "
            f"{str(reference).partition(':')[2]}{signature}; {first}"
        )
    takes = _value_parameters(target, parameters, given)
    named = _names(takes)
    if not any(one.kind is one.VAR_KEYWORD for one in takes):
        for name in values:
            if name not in named:
                raise UsageError(_unknown(str(reference), name, named, record))
    elif record is not None and record.kind is record.POSITIONAL_OR_KEYWORD and record.name in values:
        raise UsageError(_unknown(str(reference), record.name, named, record))
    needed = [one.name for one in takes if one.default is one.empty and one.kind not in _ANY_NUMBER]
    missing = [name for name in needed if name not in values]
    if missing:
        raise UsageError(
            f"{reference} needs {' and '.join(map(repr, missing))}: give a value with --set {missing[0]}=VALUE"
        )
    return target


def is_async(target: Any) -> bool:
    """Return whether a call of a function, or of an object of a class, returns a coroutine."""
    return inspect.iscoroutinefunction(_called(target))


def takes_value(target: Any, name: str) -> bool:
    """Return whether an object that is called with a record takes a value of ``--set`` of this name."""
    try:
        parameters = list(_signature(target).parameters.values())
    except (ValueError, TypeError):  # see `check_object`
        return False
    takes = _value_parameters(target, parameters, OF_A_RECORD)
    takes_any = any(one.kind is one.VAR_KEYWORD for one in takes)
    return name in _names(takes) or (takes_any and name not in _names(parameters))


def _value_parameters(
    target: Any, parameters: list[inspect.Parameter], given: Sequence[str]
) -> list[inspect.Parameter]:
    """Return the parameters of an object that values of ``--set`` can be given for."""
    is_whole = inspect.isclass(target) or (parameters and parameters[0].kind is inspect.Parameter.VAR_POSITIONAL)
    return parameters if is_whole else parameters[len(given) :]


def _names(parameters: Iterable[inspect.Parameter]) -> list[str]:
    return [one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]


def read_values(given: Mapping[str, Any] | Sequence[str]) -> dict[str, Any]:
    """Return the values of ``--set`` by name. In ``NAME=VALUE``, a value that is not JSON is taken as text.

    Raises UsageError for an item of another form, a value that JSON cannot store, or a name that is given twice.
    """
    if isinstance(given, Mapping):
        return {name: _json_value(name, value) for name, value in given.items()}
    values: dict[str, Any] = {}
    for word in given:
        name, equals, value = word.partition("=")
        if not equals or not name.rpartition(".")[2].isidentifier():
            raise UsageError(f"--set {word}: expected NAME=VALUE, with the name of a parameter such as threshold=0.5")
        if name in values:
            raise UsageError(f"--set {name} is given twice; a list is one value: --set '{name}=[1, 2]'")
        values[name] = _value(refuse_secrets(value, f"a value of --set {name}"))
        _require_shallow(word, values[name], _DEEPEST)
    encode(values)  # raises for values that a ledger cannot store
    return values


def _json_value(name: str, value: Any) -> Any:
    """Return a value encoded to JSON and decoded, so that the function gets the same value in every process."""
    _require_shallow(name, value, _DEEPEST)
    try:
        kept = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"set: {name!r} is a {type(value).__name__} that JSON cannot hold ({error}); give numbers, texts, lists "
            "and mappings of texts, or functools.partial of the function, with any values"
        ) from None
    for text in _texts(kept):
        refuse_secrets(text, f"a value of set, {name}")
    encode({name: kept})  # raises for values that a ledger cannot store
    return kept


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts(part)


def _value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_json, parse_float=_finite)
    except (ValueError, RecursionError):
        return text


def _no_json(word: str) -> Any:
    raise ValueError(word)


def _finite(word: str) -> float:
    return value if math.isfinite(value := float(word)) else _no_json(word)


def _require_shallow(word: str, value: Any, left: int) -> None:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if inner and not left:
        raise UsageError(f"--set {word[:60]}...: expected a value of at most {_DEEPEST} levels of nesting, found more")
    for part in inner:
        _require_shallow(word, part, left - 1)


def _called(target: Any) -> Any:
    """Return the function that a call runs: the function inside partials, or ``__call__`` of an object or a class."""
    while isinstance(target, functools.partial):
        target = target.func
    if inspect.isclass(target):
        return target.__call__
    return target if inspect.isroutine(target) else type(target).__call__


def _signature(target: Any) -> inspect.Signature:
    """Return the signature of a callable.

    `inspect.signature` removes a parameter from the ``__call__`` of an object's class even if it is not a method.
    """
    if inspect.isclass(target) or inspect.isroutine(target) or isinstance(target, functools.partial):
        return inspect.signature(target)
    held = inspect.getattr_static(type(target), "__call__")
    if isinstance(held, functools.singledispatchmethod):  # its result is not bound, but its function is
        return inspect.signature(held.func.__get__(target))
    return inspect.signature(target.__call__)


def _unknown(reference: str, name: str, named: list[str], record: inspect.Parameter | None) -> str:
    takes = f"it takes {', '.join(named)}" if named else "it takes none"
    if record is not None and name == record.name:
        return f"--set {name}: {reference} is given each record as {name!r}; {takes}"
    return f"--set {name}: {reference} has no such parameter; {takes}"


CLOSE_SECONDS = 30.0  # for the `close` of a user's object, without which the process might never end

_log = library_logger(__name__)


@dataclass(frozen=True)
class ReadyObject:
    """A user's object that is ready to be called. If it was built from a class, only one thread at a time calls it."""

    call: Callable[[Any], Any]
    in_turn: AbstractContextManager[Any] = field(default_factory=nullcontext)  # lock to hold during a call
    depends_on_batches: bool = False  # its result for a record may depend on the other records of the batch
    is_async: bool = False  # whether a call returns a coroutine


@dataclass(frozen=True)
class UserObject:
    """The object that a job calls with its records, or the class of this object, and the values of its parameters."""

    reference: Reference
    values: Mapping[str, Any] = field(default_factory=dict)  # keyword arguments, of a class for its constructor
    watched: Mapping[str, str] = field(default_factory=dict)  # checksums of the watched files, by their URLs
    storage_options: Mapping[str, Any] = field(default_factory=dict)  # of these files
    given: tuple[str, ...] = OF_A_RECORD  # descriptions of the positional arguments
    style: str | None = None  # name of the convention of another library that the object follows; None for ours
    batched: bool = False  # whether the object is called with lists of records
    may_be_async: bool = False  # whether calls may return coroutines
    # Whether the watched files are checked after the object was built. Of the functions of a job the last checks them.
    checks: bool = True

    def check(self) -> Callable[..., Any]:
        """Import the object, adapted if it is one of another library, and check its values; see `check_object`."""
        return check_object(
            self.reference, self.values, self.given, self.style, batched=self.batched, may_be_async=self.may_be_async
        )

    def ready(self) -> ReadyObject:
        """Return the object. The first call in a process imports and builds it.

        Raises FunctionError with the cause, UsageError if the object does not take the values, and ChangedSourceError
        if a watched file has changed since the job was created.
        """
        with _lock:
            started = time.monotonic()
            target = self.check()
            key = id(target), json.dumps([self.values, self.watched], sort_keys=True, default=repr)
            if key not in _ready:
                _ready[key] = target, self._make(target)
                note_set_up(time.monotonic() - started)
            if self.checks and key not in _checked:
                require_unchanged(self.watched, self.storage_options)
                _checked.add(key)
            return _ready[key][1]

    def _make(self, target: Any) -> ReadyObject:
        invariant, asynchronous = depends_on_batches(target), is_async(target)
        try:
            called = self._build(target, asynchronous) if inspect.isclass(target) else target
        except FunctionError:
            require_unchanged(self.watched, self.storage_options)  # a changed file is a likely cause
            raise
        if not inspect.isclass(target):
            call = functools.partial(called, **self.values) if self.values else called
            return ReadyObject(call, depends_on_batches=invariant, is_async=asynchronous)
        if asynchronous:
            open_object(str(self.reference), _AsyncObject(called))
            return ReadyObject(called.__call__, depends_on_batches=depends_on_batches(called), is_async=True)
        if callable(getattr(called, "close", None)):
            open_object(str(self.reference), called)
        # The bound method: looking up `__call__` for every record takes time.
        return ReadyObject(called.__call__, threading.Lock(), depends_on_batches(called))

    def _build(self, target: Any, asynchronous: bool) -> Any:
        try:
            return event_loop().run(_entered(target, self.values)) if asynchronous else target(**self.values)
        except BaseException as error:
            if is_interrupt(error):
                raise
            raise FunctionError(
                f"{self.reference} cannot be built: {describe_error(error)}; correct the constructor, __aenter__ or "
                "the values of --set: each worker process builds one object first"
            ) from error
        finally:
            hold_standard_descriptors()  # the constructor may have closed them


async def _entered(target: Any, values: Mapping[str, Any]) -> Any:
    """Build an object on the event loop, because a client of a service may need a running loop, and enter it."""
    built = target(**values)
    if hasattr(type(built), "__aenter__"):
        await built.__aenter__()
    return built


@dataclass(frozen=True)
class _AsyncObject:
    """Closes an object whose calls return coroutines: with ``__aexit__``, or with ``close`` of either kind."""

    built: Any

    def close(self) -> None:
        event_loop().run(self._closed(), CLOSE_SECONDS)

    async def _closed(self) -> None:
        if hasattr(type(self.built), "__aexit__"):
            await self.built.__aexit__(None, None, None)
        elif callable(close := getattr(self.built, "close", None)) and inspect.isawaitable(closing := close()):
            await closing


def open_object(reference: str, built: Any) -> None:
    """Register an object whose method `close` is to be called at the end of the process."""
    with _lock:
        if not _open:
            atexit.register(close_objects)
        _open.append((reference, built))


def close_objects() -> None:
    """Close the objects that were built in this process and have a method `close`, the last one first.

    If `close` raises, or takes more than 30 s, log a warning and continue, because all records are done.
    """
    atexit.unregister(close_objects)
    with _lock:
        closing = _open[::-1]
        _open.clear()
        _ready.clear()
        _checked.clear()
    for reference, built in closing:
        closer = threading.Thread(target=_close, args=(reference, built), name="ledgerbeam-close", daemon=True)
        try:
            closer.start()
        except RuntimeError:  # the interpreter is ending and starts no more threads
            _close(reference, built)
            continue
        closer.join(CLOSE_SECONDS)
        if closer.is_alive():
            _log.warning("%s: close() did not return within %.0f s; continuing without it", reference, CLOSE_SECONDS)
    if closing:
        hold_standard_descriptors()


def note_set_up(seconds: float) -> None:
    """Record the duration of a set-up, for `take_set_ups`."""
    with _lock:
        _set_ups.append(seconds)


def take_set_ups() -> list[float]:
    """Return the durations of the set-ups in this process since the last call, in seconds."""
    with _lock:
        found = _set_ups[:]
        _set_ups.clear()
    return found


def _close(reference: str, built: Any) -> None:
    try:
        built.close()
    except BaseException as error:  # noqa: BLE001 - the process must continue to its end
        _log.warning("%s: close() raised %s; continuing without it", reference, describe_error(error))


_lock = threading.RLock()
_ready: dict[tuple[int, str], tuple[Any, ReadyObject]] = {}
_checked: set[tuple[int, str]] = set()  # keys of `_ready` after whose objects the watched files were checked
_open: list[tuple[str, Any]] = []
_set_ups: list[float] = []


def _forget_after_fork() -> None:
    """Forget the parent's objects in a forked process: only the parent closes them."""
    global _lock  # noqa: PLW0603 - the inherited one may be held by a thread that does not exist here
    _lock = threading.RLock()
    for known in (_ready, _checked, _open, _set_ups):
        known.clear()


os.register_at_fork(after_in_child=_forget_after_fork)


READ_BYTES = 8 << 20  # bytes of a file that are held in memory at once


def watched_checksums(urls: Iterable[str], options: Options | None = None) -> dict[str, str]:
    """Return the checksum of the content of each file, by its canonical URL. Raises UsageError for a missing file."""
    found: dict[str, str] = {}
    for url in map(canonical_url, urls):
        try:
            found[url] = _checksum(url, options)
        except SourceNotFoundError as error:
            raise UsageError(f"--watch-file {url}: there is no such file; name one that the function reads") from error
    return found


def require_unchanged(watched: Mapping[str, str], options: Options | None = None) -> None:
    """Check that watched files did not change since the job was created. Raises ChangedSourceError if one did."""
    for url, expected in watched.items():
        try:
            found = _checksum(url, options)
        except SourceNotFoundError:
            found = "no file"
        if found != expected:
            raise ChangedSourceError(
                f"{url}: this watched file has changed since the job was created: expected the checksum {expected}, "
                f"found {found}; restore it, or run the command again as another job (--on-job-change)"
            )


def _checksum(url: str, options: Options | None) -> str:
    digest = blake2b(digest_size=16)  # part of the job's identity: another algorithm would change every job
    text = b""
    with RangeReader(url, options) as reader:
        for block in reader.blocks(READ_BYTES):
            digest.update(block)
            text += block if len(text) <= LONGEST else b""
    if len(text) <= LONGEST:
        note_text(digest.hexdigest(), text.decode, is_code=False)
    return digest.hexdigest()
