"""Rejected records of a job, read from the files that store them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from ledgerbeam._base.names import REJECTS
from ledgerbeam.errors import StorageError
from ledgerbeam.io import Options
from ledgerbeam.io.lines.jsonl_reader import stream_records
from ledgerbeam.ledger import LedgerStore


def rejected_rows(
    store: LedgerStore, options: Options | None = None, *, reason: str | None = None, source: str | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the rejected records of a ledger, each with the name of the ``file`` that stores it.

    Args:
        store: The ledger.
        options: Storage options of the job's outputs.
        reason: Shell pattern. Only records with a matching reason are yielded.
        source: Shell pattern. Only records of matching source URLs are yielded.

    Raises:
        StorageError: A recorded file cannot be read.
    """
    job = store.job()
    root = job.parameters.get("output") if job else None
    asked = {"reason": reason, "source": source}
    for found in store.outputs():
        if found.output.route != REJECTS:
            continue
        try:
            for row in stream_records(f"{root}/{found.output.name}", options):
                if _is_asked_for(row, asked):
                    yield {**row, "file": found.output.name}
        except StorageError as error:
            raise StorageError(
                f"{error}; the ledger has recorded this file: to write it again, run the job's command again"
            ) from error


def _is_asked_for(row: Mapping[str, Any], asked: Mapping[str, str | None]) -> bool:
    return all(
        pattern is None or row[name] == pattern or fnmatchcase(row[name], pattern) for name, pattern in asked.items()
    )
