"""The user's object in a worker process: imported or built once, and closed when the process ends."""

from __future__ import annotations

import atexit
import functools
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from ledgerbeam._base.process import hold_standard_descriptors, library_logger
from ledgerbeam.errors import FunctionError
from ledgerbeam.user_code.errors import describe_error, is_interrupt
from ledgerbeam.user_code.loading import Reference
from ledgerbeam.user_code.objects import OF_A_RECORD, check_object, depends_on_batches, is_built
from ledgerbeam.user_code.watched_files import require_unchanged

CLOSE_SECONDS = 30.0
"""Time limit of the `close` method of a user's object, in seconds. Without it, the process might never end."""

_log = library_logger(__name__)


@dataclass(frozen=True)
class ReadyObject:
    """A user's object that is ready to be called.

    Attributes:
        call: The function; it takes a record, or a batch of records.
        in_turn: Lock to hold during a call: an object that was built is called by one thread at a time.
        depends_on_batches: Whether its result for a record may depend on the other records of the batch.
    """

    call: Callable[[Any], Any]
    in_turn: AbstractContextManager[Any] = field(default_factory=nullcontext)
    depends_on_batches: bool = False


@dataclass(frozen=True)
class UserObject:
    """The object, by name, that a job calls with its records.

    Attributes:
        reference: ``module:object``, or the object itself: a function, an object with ``__call__``, or a class of
            such objects.
        values: Keyword arguments of the function, or of the constructor of the class.
        watched: Checksums of the watched files, by their URLs.
        storage_options: Storage options of these files.
        given: Descriptions of the positional arguments.
    """

    reference: Reference
    values: Mapping[str, Any] = field(default_factory=dict)
    watched: Mapping[str, str] = field(default_factory=dict)
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    given: tuple[str, ...] = OF_A_RECORD

    def ready(self) -> ReadyObject:
        """Return the object. The first call in a process imports and builds it.

        Raises:
            FunctionError: It cannot be imported, or its class raised; the message has the cause.
            UsageError: It does not take the values.
            ChangedSourceError: A watched file has changed since the job was created.
        """
        with _lock:
            started = time.monotonic()
            target = check_object(self.reference, self.values, self.given)
            key = id(target), json.dumps([self.values, self.watched], sort_keys=True, default=repr)
            if key not in _ready:
                _ready[key] = target, self._make(target)
                _set_ups.append(time.monotonic() - started)
            return _ready[key][1]

    def _make(self, target: Any) -> ReadyObject:
        invariant = depends_on_batches(target)
        try:
            called = self._build(target) if is_built(target) else target
        except FunctionError:
            require_unchanged(self.watched, self.storage_options)  # a changed file is a likely cause
            raise
        require_unchanged(self.watched, self.storage_options)
        if not is_built(target):
            call = functools.partial(called, **self.values) if self.values else called
            return ReadyObject(call, depends_on_batches=invariant)
        if callable(getattr(called, "close", None)):
            if not _open:
                atexit.register(close_objects)
            _open.append((str(self.reference), called))
        # The bound method: looking up `__call__` for every record takes time.
        return ReadyObject(called.__call__, threading.Lock(), depends_on_batches(called))

    def _build(self, target: Any) -> Any:
        try:
            return target(**self.values)
        except BaseException as error:
            if is_interrupt(error):
                raise
            raise FunctionError(
                f"{self.reference} cannot be built: {describe_error(error)}; each worker process builds it once, and "
                "the job cannot start without it"
            ) from error
        finally:
            hold_standard_descriptors()  # the constructor may have closed them


def close_objects() -> None:
    """Close the objects that were built in this process and have a method `close`, the last one first.

    If `close` raises, or does not return in time, a warning is logged and the process continues: the records are done.
    """
    atexit.unregister(close_objects)
    with _lock:
        closing = _open[::-1]
        _open.clear()
        _ready.clear()
    for reference, built in closing:
        closer = threading.Thread(target=_close, args=(reference, built), name="ledgerbeam-close", daemon=True)
        try:
            closer.start()
        except RuntimeError:  # the interpreter is ending and starts no more threads
            _close(reference, built)
            continue
        closer.join(CLOSE_SECONDS)
        if closer.is_alive():
            _log.warning(
                "%s: its close() has not returned for %.0f s; not waiting any longer", reference, CLOSE_SECONDS
            )
    if closing:
        hold_standard_descriptors()


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
        _log.warning("%s: its close() raised %s", reference, describe_error(error))


_lock = threading.RLock()
_ready: dict[tuple[int, str], tuple[Any, ReadyObject]] = {}
_open: list[tuple[str, Any]] = []
_set_ups: list[float] = []


def _forget_after_fork() -> None:
    """Forget the parent's objects in a forked process: only the parent closes them."""
    global _lock  # noqa: PLW0603 - the inherited one may be held by a thread that does not exist here
    _lock = threading.RLock()
    for known in (_ready, _open, _set_ups):
        known.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
