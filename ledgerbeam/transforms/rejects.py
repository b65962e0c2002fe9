"""Rejected records with their places and bytes."""

from __future__ import annotations

from collections.abc import Sequence

from ledgerbeam.ledger import Task
from ledgerbeam.transforms.task_results import RejectedRecord, Rejection

__all__ = ["rejected_records"]


def rejected_records(task: Task, rejections: Sequence[Rejection]) -> list[RejectedRecord]:
    """Return rejections with the places and the bytes of their records."""
    url, start = task.source.url, task.start
    return [RejectedRecord(url, start + one.position, 0, 0, b"", one) for one in rejections]
