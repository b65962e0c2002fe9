"""Rejected records: found again in their source, with place and bytes, and written to a file."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import orjson

from ledgerbeam._base.names import as_unicode
from ledgerbeam._base.redaction import without_secrets
from ledgerbeam.errors import UnsupportedShapeError
from ledgerbeam.io import RawRecord, ShardFile
from ledgerbeam.io.index.raw import NO_BYTES
from ledgerbeam.ledger import Task
from ledgerbeam.sources.blocks import RecordBlocks
from ledgerbeam.transforms.chain.task_results import RejectedRecord, Rejection

MOST_RAW = 64 * 1024
"""Of the bytes of a rejected record, so many are kept at most."""

REJECTS_ENDING = ".jsonl"
"""What the name of a file of rejects ends with, whatever the format of the outputs."""


def rejected_records(task: Task, rejections: Sequence[Rejection]) -> list[RejectedRecord]:
    """Find rejected records in their source again, in the order of `rejections`.

    Args:
        task: What `ReadTasks` gave, with all of its records.
        rejections: Which of them, and why.

    Raises:
        UnsupportedShapeError: If the records are not those that were read, so that their places are not known.
        SourceError, IndexError_, StorageError: If the source cannot be read again, or is not what it was: the task
            has failed then.
    """
    if not rejections:
        return []
    raws = _raw_records(task)
    return [
        RejectedRecord(raw.url, raw.record, raw.start, raw.stop, raw.data, rejection)
        for rejection, raw in ((rejection, raws[rejection.position]) for rejection in rejections)
    ]


def source_record(task: Task, position: int) -> RawRecord | None:
    """Return a record of a task as it is in its source; None if that is not known."""
    try:
        return _raw_records(task)[position]
    except Exception:  # noqa: BLE001 - it is asked for to word another error
        return None


def encode_rejects(rejected: Sequence[RejectedRecord]) -> ShardFile:
    """Encode rejected records, one line each, as a pure function of them."""
    lines = [orjson.dumps(_row(record), option=orjson.OPT_APPEND_NEWLINE) for record in rejected]
    return ShardFile(REJECTS_ENDING, b"".join(lines), len(lines))


def _raw_records(task: Task) -> Sequence[RawRecord]:
    if task.raw is None:
        raise UnsupportedShapeError(
            f"{task.name}: the places of its records are not known, so none can be rejected; expected a task "
            "that ReadTasks read and that was not fanned out since"
        )
    raws = task.raw()
    if isinstance(task.records, RecordBlocks):  # they are what was read
        return raws
    if len(raws) != len(task.records):
        raise UnsupportedShapeError(
            f"{task.name}: expected the {len(raws)} records that were read, found {len(task.records)}; reject records "
            "in the first function of a chain"
        )
    return raws


def _row(record: RejectedRecord) -> dict[str, Any]:
    rejection = record.rejection
    row: dict[str, Any] = {
        "source": as_unicode(without_secrets(record.source)),
        "record": record.record,
        "bytes": None if record.start == NO_BYTES else [record.start, record.stop],
        "reason": as_unicode(rejection.reason),
        "error": as_unicode(rejection.error),
        "at": as_unicode(rejection.at),
    }
    kept = record.raw[:MOST_RAW]
    text = _as_text(kept, is_cut=len(kept) < len(record.raw))
    if text is None:
        row["raw_base64"] = base64.b64encode(kept).decode("ascii")
    else:
        row["raw"] = text
    if len(kept) < len(record.raw):
        row["raw_truncated"] = True
    return row


def _as_text(data: bytes, *, is_cut: bool) -> str | None:
    """Return bytes as text if they are that; a character that the cut went through is left out."""
    for dropped in range(4 if is_cut else 1):
        try:
            return data[: len(data) - dropped].decode("utf-8")
        except UnicodeDecodeError:
            continue
    return None
