"""Notes of the tasks that the workers of a local run were about to record, for the steps after the chain.

A note is written before its task is recorded, so that no recorded task lacks a note when a worker dies. A note of a
task that was not recorded in the end is skipped: the ledger decides.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any

from ledgerbeam.ledger.model.store import LedgerStore
from ledgerbeam.ledger.worker.run_folders import file_errors

_SUFFIX = ".committed"


class CommitNotes:
    """The notes of one process.

    Args:
        run_dir: Folder of the run.

    Raises:
        DiskFullError: There is no room for the file.
        StorageError: The file cannot be created.
    """

    def __init__(self, run_dir: str) -> None:
        self._path = os.path.join(run_dir, f"{os.getpid()}-{os.urandom(4).hex()}{_SUFFIX}")
        with file_errors(self._path):
            self._file = open(self._path, "xb", buffering=0)  # noqa: SIM115 - for as long as the process works

    def add(self, source_id: bytes, node: bytes, summary: Any) -> None:
        """Write the note of a task that is about to be recorded.

        Raises:
            DiskFullError: There is no room for the note.
            StorageError: The note cannot be written.
        """
        data = memoryview(pickle.dumps((source_id, node, summary)))
        with file_errors(self._path):
            while data:
                data = data[self._file.write(data) :]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def committed_notes(run_dir: str, store: LedgerStore) -> Iterator[Any]:
    """Yield the summaries of the noted tasks that are recorded, each task once.

    Args:
        run_dir: Folder of a run whose processes have ended.
        store: The ledger, refreshed.
    """
    seen: set[bytes] = set()  # a task may have several notes, because earlier steps may repeat it
    for name in sorted(os.listdir(run_dir)):
        if name.endswith(_SUFFIX):
            # The tasks of a source are mostly consecutive, so its entries are read once.
            for source_id, notes in groupby(_read(os.path.join(run_dir, name)), key=itemgetter(0)):
                recorded = None if store.completed_mask([source_id])[0] else store.applied(source_id)
                for _, node, summary in notes:
                    if node not in seen and (recorded is None or node in recorded):
                        seen.add(node)
                        yield summary


def _read(path: str) -> Iterator[tuple[bytes, bytes, Any]]:
    with file_errors(path, "read"), open(path, "rb") as file:
        while True:
            try:
                yield pickle.load(file)  # noqa: S301 - written by our own workers, into the run's own folder
            except (EOFError, pickle.UnpicklingError):  # the end, or a note truncated by a kill before the commit
                return
