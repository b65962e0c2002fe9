"""How every call begins: secrets are hidden, URLs are checked, and who is told of it is decided."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, ParamSpec

from ledgerbeam._base.names import check_root
from ledgerbeam._base.process import hold_standard_descriptors
from ledgerbeam._base.redaction import refuse_secrets, register_environment, register_secrets, without_secrets
from ledgerbeam.errors import FunctionError, LedgerbeamError, UsageError
from ledgerbeam.pipelines.calls.interruptible import interruptible
from ledgerbeam.pipelines.calls.option_types import refuse_unfit
from ledgerbeam.pipelines.console.run_console import RunConsole

if TYPE_CHECKING:  # the command line, which answers --help without it, is begun here too
    from ledgerbeam.pipelines.calls.result import Result


_P = ParamSpec("_P")

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
}
"""Options that are URLs, and what each is."""

_ROOTS = ("output", "index_root", "ledger", "against")

_refused: str | None = None


def refuse_calls(reason: str) -> None:
    """Have every call in this process refused from now on: it is a worker of a job."""
    global _refused  # noqa: PLW0603 - the process is a worker until it ends
    _refused = reason


def call(function: Callable[_P, Result]) -> Callable[_P, Result]:
    """Make a function a call: a value that is not of the type in its signature is refused before anything else."""

    @interruptible
    @functools.wraps(function)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> Result:
        if _refused is not None:
            raise FunctionError(_refused)
        try:
            refuse_unfit(function, kwargs)
            return function(*args, **kwargs)
        except LedgerbeamError as error:
            if error.args and (safe := without_secrets(str(error.args[0]))) != error.args[0]:
                error.args = (safe, *error.args[1:])
            raise

    return called


def check_urls(values: Mapping[str, Any]) -> None:
    """Refuse URLs with credentials, and folders with `..` in their keys, before anything is named after them.

    Args:
        values: Of options by name; each may be a list.
    """
    for name, what in _URLS.items():
        value = values.get(name)
        for url in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(url, str):
                refuse_secrets(url, what)
                if name in _ROOTS:
                    check_root(os.path.abspath(url) if "://" not in url else url)


def begin_call(
    progress: bool | RunConsole | None,
    storage_options: Mapping[str, Any],
    **urls: Any,
) -> RunConsole:
    """Begin a call; return who is told of it.

    Args:
        progress: Whether it is shown, or who is told; None shows it on a terminal and in a notebook.
        storage_options: Of the call.
        **urls: Options that are URLs.

    Raises:
        UsageError: A URL holds credentials, or names no folder, or `progress` is none of these.
    """
    hold_standard_descriptors()
    register_environment()
    register_secrets(storage_options)
    check_urls({name: os.fspath(url) if isinstance(url, PathLike) else url for name, url in urls.items()})
    if progress is not None and not isinstance(progress, bool):
        if not hasattr(progress, "ended"):
            raise UsageError(f"progress: expected True, False or None, found {progress!r:.80}")
        return progress
    from ledgerbeam.pipelines.console.python_console import PythonConsole

    return PythonConsole(progress)
