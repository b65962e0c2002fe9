"""Audits of finished tasks: the request of a launcher, and the answer of the process that audits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ledgerbeam.ledger.model.rows import Output
from ledgerbeam.ledger.selection import PendingSource


@dataclass(frozen=True)
class AuditRequest:
    """A request to audit one finished task of a source.

    Attributes:
        source: The source with its finished tasks.
        is_complete: Whether all of its tasks are finished.
        outputs: The recorded outputs of the source.
        audited: Nodes of the tasks that were audited before.
        newest: Whether to take the last finished task of the source; else the first.
        seconds: Longest time for mapping records. At least one record is mapped. None maps all records of the task.
    """

    source: PendingSource
    is_complete: bool
    outputs: tuple[Output, ...]
    audited: frozenset[bytes] = frozenset()
    newest: bool = False
    seconds: float | None = None


class AuditAnswer(NamedTuple):
    """The result of an audit.

    Attributes:
        node: The audited task; None if the source has no task left to audit.
        difference: How its results differ; empty if they are the same.
        problem: Why the task could not be computed again; empty if it could.
    """

    node: bytes | None = None
    difference: str = ""
    problem: str = ""
