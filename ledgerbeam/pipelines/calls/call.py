"""Public calls: check the values that a user gives, then run the job."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from ledgerbeam._base.interrupts import Interruptible
from ledgerbeam._base.names import check_root
from ledgerbeam._base.process import hold_standard_descriptors
from ledgerbeam._base.redaction import refuse_secrets, register_environment, register_secrets, without_secrets
from ledgerbeam.errors import FunctionError, LedgerbeamError, UsageError
from ledgerbeam.pipelines.calls import MODULES
from ledgerbeam.pipelines.calls.values import given, parse_options

if TYPE_CHECKING:  # the help of commands does without them
    from ledgerbeam.pipelines.calls.call_spec import CallSpec
    from ledgerbeam.pipelines.calls.result import Result
    from ledgerbeam.pipelines.console.reporter import RunConsole

_P = ParamSpec("_P")
_R = TypeVar("_R")

_URLS = {
    "patterns": "a source",
    "source": "a source",
    "sources_from": "a list of sources",
    "output": "an output",
    "left": "a source",
    "right": "a source",
    "ledger": "a ledger",
    "against": "a ledger",
    "url": "a ledger",
    "index_root": "a folder of indexes",
    "base": "a folder",
    "tokenizer": "a tokenizer",
    "watch_file": "a watched file",
    "profile": "a profile",
    "answers": "a folder of answers",
}
"""Options that are URLs, and the role of each in messages."""

_ROOTS = ("output", "index_root", "ledger", "against", "answers")

_refused: str | None = None


class Values(SimpleNamespace):
    """Parsed values of all arguments and options of a call, as attributes with their names."""


class Runnable(Protocol):
    """A call whose values are valid, and which has not run yet."""

    def result(self, console: RunConsole, /) -> Result:
        """Run the call."""


_specs: dict[str, CallSpec] = {}
_calls: dict[str, Callable[..., Any]] = {}
_builders: dict[str, Callable[[Values], Runnable]] = {}  # functions that check the values of a call, and do not run it


def spec_of(name: str) -> CallSpec:
    """Return the specification of a call by its name."""
    importlib.import_module(f"{__package__}.{MODULES[name]}")
    return _specs[name]


def call_of(name: str) -> Callable[..., Any]:
    """Return a call by its name."""
    return _calls[spec_of(name).name]


def document(call: Any) -> None:
    """Set the signature and the docstring of a call, if they are not set yet. Commands need neither."""
    if not hasattr(call, "__signature__"):
        call.__signature__ = call.spec.signature
        call.__doc__ = call.spec.reference(call.__doc__ or "")


def public(
    spec: CallSpec, build: Callable[[Values], Runnable] | None = None
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Return a decorator that makes a function a public call with the options of a specification.

    `build` checks the values of a call and returns its `Runnable`; it is None for a call without a job.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @interruptible
        @functools.wraps(function)
        def called(*args: _P.args, **options: _P.kwargs) -> _R:
            refuse_in_worker()
            try:
                spec.signature.bind(*args, **options)
            except TypeError as error:
                raise TypeError(f"{spec.name}() {error}") from None
            with errors_without_secrets():
                return function(*args, **options)

        called.spec = spec  # type: ignore[attr-defined]
        _specs[spec.name], _calls[spec.name] = spec, called
        if build is not None:
            _builders[spec.name] = build
        return called

    return decorate


def interruptible(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Wrap a function so that Ctrl-C raises `JobInterrupt` in it; during an import, only after the import has ended."""

    @functools.wraps(function)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with Interruptible(functools.partial(interrupt_of, function.__name__)):
            return function(*args, **kwargs)

    return called


def interrupt_of(name: str) -> KeyboardInterrupt:
    """Return the error to raise if Ctrl-C ends a call of this name before or after its run."""
    from ledgerbeam.pipelines.calls.result import JobInterrupt, Result

    result = Result(name, complete=False, interrupted=True)
    return JobInterrupt(f"{name} was interrupted; finished work is recorded. To resume, repeat the call", result)


def refuse_calls(reason: str) -> None:
    """Make every later call in this process raise `FunctionError` with a reason. Workers of jobs call this."""
    global _refused  # noqa: PLW0603 - the process is a worker until it ends
    _refused = reason


def refuse_in_worker() -> None:
    """Raise `FunctionError` if this process refuses calls, as workers of jobs do."""
    if _refused is not None:
        raise FunctionError(_refused)


@contextmanager
def errors_without_secrets() -> Iterator[None]:
    """Remove secrets from the message of an error that the `with` block raises."""
    try:
        yield
    except LedgerbeamError as error:
        if error.args and (safe := without_secrets(str(error.args[0]))) != error.args[0]:
            error.args = (safe, *error.args[1:])
        raise


def run_call(spec: CallSpec, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Result:
    """Run a call that has a job; see `read_values` for the arguments."""
    values, console = begin(spec, arguments, options)
    return _builders[spec.name](values).result(console)


def prepare(spec: CallSpec, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Runnable:
    """Check the values of a call that has a job; return it, not run yet. See `read_values` for the arguments."""
    with errors_without_secrets():
        return _builders[spec.name](read_values(spec, arguments, options))


def begin(spec: CallSpec, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> tuple[Values, RunConsole]:
    """Return the values of a call, and the console of its run; see `read_values` for the arguments."""
    values = read_values(spec, arguments, options)
    progress: bool | RunConsole | None = values.progress  # None shows progress on a terminal and in a notebook
    if progress is not None and not isinstance(progress, bool):
        if not hasattr(progress, "ended"):
            raise UsageError(f"progress: expected True, False or None, found {progress!r:.80}")
        return values, progress
    from ledgerbeam.pipelines.console.reporter import PythonConsole

    return values, PythonConsole(progress)


def read_values(spec: CallSpec, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Values:
    """Return the parsed values of all arguments and options. An option that was not given has its default.

    Raises:
        UsageError: A value is invalid, or a URL holds credentials.
    """
    hold_standard_descriptors()
    register_environment()
    spec.check(options)
    register_secrets(given("storage_options", options.get("storage_options"), parse_options))
    values = spec.parse(arguments, options)
    check_urls(values)
    return Values(**values)


def check_urls(values: Mapping[str, Any]) -> None:
    """Raise `UsageError` for a URL with credentials, or for a URL of a folder whose path contains `..`."""
    for name, what in _URLS.items():
        value = values.get(name)
        for one in value if isinstance(value, (list, tuple)) else [value]:
            url = os.fspath(one) if isinstance(one, PathLike) else one
            if isinstance(url, str):
                refuse_secrets(url, what)
                if name in _ROOTS:
                    check_root(os.path.abspath(url) if "://" not in url else url)
