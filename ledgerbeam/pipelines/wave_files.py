"""The files by which a wave's process and its launcher speak: they lie in the wave's folder."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Sequence

from ledgerbeam.ledger import OpenSource

__all__ = ["DIED", "DONE", "STORAGE_OPTIONS", "TRACEBACK", "dump_sources", "load_sources", "read_text", "touch"]

STORAGE_OPTIONS = "LEDGERBEAM_STORAGE_OPTIONS"
"""Environment variable that carries the storage options, as JSON: they may hold credentials, which no file may."""

DIED = "worker-died"
"""Written when a thread of the runner failed: it raises there that a worker process died."""

DONE = "done"
"""Written when the wave has run to its end."""

TRACEBACK = "traceback"
"""What ended the wave, if it was an exception that no worker had reported."""


def touch(run_dir: str, name: str, text: str = "") -> None:
    """Writes one of the files, whole."""
    with open(os.path.join(run_dir, name), "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)


def read_text(run_dir: str, name: str) -> str:
    """Returns what one of the files holds; empty if it is not there."""
    try:
        with open(os.path.join(run_dir, name), encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def dump_sources(path: str, sources: Sequence[OpenSource]) -> None:
    """Writes the sources of a wave, for `load_sources`."""
    with open(path, "wb") as file:
        pickle.dump(len(sources), file)
        for source in sources:
            pickle.dump(source, file)


def load_sources(path: str) -> Iterator[OpenSource]:
    """Yields the sources of a wave file."""
    with open(path, "rb") as file:
        for _ in range(pickle.load(file)):  # noqa: S301 - written by our own launcher, into its own folder
            yield pickle.load(file)  # noqa: S301
