"""What a process under judgement does first: load one module from a changed text, or note the lines that it runs.

Both are told by variables of the environment, so that they hold in every process that a test starts.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import resource
import sys
import threading
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SITE = os.path.join(ROOT, "tests", "mutation", "site")
ANYWHERE = "*"  # in the place of a path, with line 0: a test that may run any line

ACTIVE, CHANGED, TRACED = "MUTATION_OF_LEDGERBEAM", "MUTATION_OF_LEDGERBEAM_CHANGED", "LEDGERBEAM_MUTATION_TRACED"
"""Tests of the command line start it without variables that begin with ``LEDGERBEAM_``: traced, jobs would take too
long. Such a test judges no mutant."""


def module_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def arm(variable: str, value: str) -> None:
    """Make this process, and those that it starts, do as a variable says."""
    os.environ[ACTIVE] = "1"
    os.environ[variable] = value
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join([SITE, *[part for part in before if part and part != SITE]])


def begin() -> None:
    """Do in this process what the environment says."""
    changed = os.environ.get(CHANGED)
    if changed is not None:
        path, text = changed.split("\n")
        sys.meta_path.insert(0, _Finder(path, text))
    if os.environ.get(TRACED) is not None:
        _tracers.append(_Tracer(os.environ[TRACED]))
        resume_tracing()


def resume_tracing(test: str | None = None) -> None:
    """Trace on: Python ends it when the tracer itself meets an error, as it does at the bottom of a deep recursion.

    A test that has ended, and was not traced to its end, counts as one that runs any line.
    """
    for tracer in _tracers:
        if test is not None and sys.gettrace() is None:
            tracer.note(test, ANYWHERE, 0)
        tracer.start()


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles a module from another text; its path stays."""

    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self._text = text

    def get_code(self, fullname: str) -> Any:
        with open(self._text, "rb") as file:
            return compile(file.read(), self.path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module, at its path, with the text of another file."""

    def __init__(self, path: str, text: str) -> None:
        self._name, self._path, self._text = module_name(path), os.path.join(ROOT, path), text

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        folder = [os.path.dirname(self._path)] if self._path.endswith("__init__.py") else None
        loader = _Loader(fullname, self._path, self._text)
        return importlib.machinery.ModuleSpec(fullname, loader, origin=self._path, is_package=folder is not None)


_tracers: list[_Tracer] = []


class _Tracer:
    """Appends each line of the library to a file when the test at work runs it first: nothing is lost by a kill."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._library = os.path.join(ROOT, "ledgerbeam") + os.sep
        self._seen: set[tuple[str, str, int]] = set()

    def start(self) -> None:
        threading.settrace(self._call)
        sys.settrace(self._call)

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(self._library) else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
        row = (test, frame.f_code.co_filename, frame.f_lineno)
        if row not in self._seen:
            self._seen.add(row)
            self.note(test, os.path.relpath(row[1], ROOT), row[2])
        return self._line

    def note(self, test: str, path: str, line: int) -> None:
        most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most[1], most[1]))  # a test may let no file grow
        os.write(self._file, f"{test}\t{path}\t{line}\n".encode("utf-8", "backslashreplace"))
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
