"""The files by which a wave's process and its launcher speak: they lie in the wave's folder."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import orjson

from ledgerbeam.ledger import Source

__all__ = ["DIED", "DONE", "TRACEBACK", "dump_sources", "load_sources", "read_text", "touch"]

DIED = "worker-died"
"""Written when a thread of the runner failed: it raises there that a worker process died."""

DONE = "done"
"""Written when the wave has run to its end."""

TRACEBACK = "traceback"
"""What ended the wave, if it was an exception that no worker had reported."""


def touch(run_dir: str, name: str, text: str = "") -> None:
    """Writes one of the files, whole."""
    with open(os.path.join(run_dir, name), "w", encoding="utf-8") as file:
        file.write(text)


def read_text(run_dir: str, name: str) -> str:
    """Returns what one of the files holds; empty if it is not there."""
    try:
        with open(os.path.join(run_dir, name), encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def dump_sources(path: str, sources: Sequence[Source]) -> None:
    """Writes the sources of a wave, for `load_sources`."""
    rows = [[s.url, s.size, s.version, [[m.url, m.size, m.version] for m in s.members]] for s in sources]
    with open(path, "wb") as file:
        file.write(orjson.dumps(rows))


def load_sources(path: str) -> Iterator[Source]:
    """Yields the sources of a wave file."""
    with open(path, "rb") as file:
        rows = orjson.loads(file.read())
    for url, size, version, members in rows:
        yield Source(url, size, version, tuple(Source(*member) for member in members))
