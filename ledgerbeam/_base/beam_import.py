"""How Beam is imported: without what no job needs, and without a word in programs whose logging is their own."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final, Literal

BeamParts = Literal["whole", "lean"]
WHOLE: Final = "whole"
LEAN: Final = "lean"

_OPTIONAL = ("IPython", "apache_beam.io.aws", "apache_beam.io.azure", "apache_beam.io.gcp", "bson", "pandas", "pymongo")
"""What Beam imports if it is there, and works without: sources of other systems, and frames as elements."""


_importing = threading.Lock()


def import_beam() -> None:
    """Import Beam, which already logs then; once it returns, all of Beam is there, whichever thread has imported it."""
    with _importing:
        if "apache_beam" in sys.modules:
            import_module("apache_beam")  # waits for a thread of the program that imports it
            return
        beam = logging.getLogger("apache_beam")
        before = beam.level
        beam.setLevel(logging.CRITICAL)
        try:
            with logging_kept():
                import_module("apache_beam")
        finally:
            beam.setLevel(before)


@contextmanager
def beam_parts(how: BeamParts) -> Iterator[None]:
    """Have Beam imported whole, or lean, while the body runs.

    Lean, it goes without the file systems, databases and frames that it knows, and without the notebook that its graphs
    are shown in: that is two thirds of the time. All of it can be imported afterwards, but Beam does not use it then.

    Args:
        how: `WHOLE`, for processes in which code of the user may call Beam; or `LEAN`.
    """
    if how == WHOLE:
        yield
        return
    finder = _NotFound()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _NotFound:
    """Finds none of the modules that Beam works without, as if they were not installed."""

    @staticmethod
    def find_spec(
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG004 - of the protocol, as is the next
        target: ModuleType | None = None,  # noqa: ARG004
    ) -> ModuleSpec | None:
        """Refuse what is left out, and leave all else to other finders."""
        if any(name == left_out or name.startswith(f"{left_out}.") for left_out in _OPTIONAL):
            raise ModuleNotFoundError(f"{name} is left out of Beam", name=name)
        return None


@contextmanager
def logging_kept() -> Iterator[None]:
    """Keep the root logger as it is while the body runs, though Beam logs to it.

    Where it has no handler, the first record that is logged to it would give it one, for good. So it has one meanwhile,
    which does what Python does without: it prints warnings.
    """
    root = logging.getLogger()
    handler = None if root.handlers else logging.StreamHandler()
    root.addFilter(is_not_of_beam)
    if handler is not None:
        handler.setLevel(logging.WARNING)
        handler.addFilter(is_not_of_beam)
        root.addHandler(handler)
    try:
        yield
    finally:
        root.removeFilter(is_not_of_beam)
        if handler is not None:
            root.removeHandler(handler)


def is_not_of_beam(record: logging.LogRecord) -> bool:
    """Return whether a record was logged elsewhere than in Beam."""
    return "apache_beam" not in record.pathname
