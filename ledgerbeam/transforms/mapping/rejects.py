"""Rejected records: their positions and bytes in the source, and the file of rejects."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import orjson

from ledgerbeam._base.names import as_unicode
from ledgerbeam._base.redaction import without_secrets
from ledgerbeam.errors import UnsupportedShapeError
from ledgerbeam.io import ShardFile
from ledgerbeam.io.index.reader import NO_BYTES, RawRecord
from ledgerbeam.ledger import Task
from ledgerbeam.sources.forms import RecordBlocks
from ledgerbeam.transforms.chain.task_results import RejectedRecord, Rejection

MOST_RAW = 64 * 1024  # maximum number of bytes that are kept of a rejected record
REJECTS_ENDING = ".jsonl"  # suffix of a file of rejects, for any output format


def rejected_records(task: Task, rejections: Sequence[Rejection]) -> list[RejectedRecord]:
    """Read rejected records from their source again, in the order of `rejections`.

    Args:
        task: The output of `ReadTasks`, with all of its records.
        rejections: Positions and reasons of the rejected records.

    Raises:
        UnsupportedShapeError: If the records were changed after reading, so that their positions are unknown.
        SourceError, IndexError_, StorageError: If the source cannot be read again or has changed. The task fails.
    """
    if not rejections:
        return []
    raws = _raw_records(task)
    return [
        RejectedRecord(raw.url, raw.record, raw.start, raw.stop, raw.data, rejection)
        for rejection, raw in ((rejection, raws[rejection.position]) for rejection in rejections)
    ]


def source_record(task: Task, position: int) -> RawRecord | None:
    """Return a record of a task as stored in its source; None if it cannot be found."""
    try:
        return _raw_records(task)[position]
    except Exception:  # noqa: BLE001 - the caller describes another error with it
        return None


def encode_rejects(rejected: Sequence[RejectedRecord]) -> ShardFile:
    """Encode rejected records as JSON, one line each. Equal records give equal bytes."""
    lines = [orjson.dumps(_row(record), option=orjson.OPT_APPEND_NEWLINE) for record in rejected]
    return ShardFile(REJECTS_ENDING, b"".join(lines), len(lines))


def _raw_records(task: Task) -> Sequence[RawRecord]:
    if task.raw is None:
        raise UnsupportedShapeError(
            f"{task.name}: expected the output of ReadTasks, found a task that was made or fanned out by a function; "
            "reject records in the first function after ReadTasks"
        )
    raws = task.raw()
    if isinstance(task.records, RecordBlocks):  # unchanged since reading
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
    """Decode UTF-8 bytes; None if they are not UTF-8. A character cut at the end is left out."""
    for dropped in range(4 if is_cut else 1):
        try:
            return data[: len(data) - dropped].decode("utf-8")
        except UnicodeDecodeError:
            continue
    return None
