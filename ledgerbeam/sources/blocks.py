"""The records of a task in memory: decoded in blocks where a consumer takes blocks, else a list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Self

from ledgerbeam.io.formats.blocks import Blocks
from ledgerbeam.sources.kind import unreadable


@dataclass(eq=False)
class RecordBlocks:
    """The records of a task, whose bytes are in memory. Every pass decodes them again, so that never all are held.

    Attributes:
        parts: Consecutive records.
        each: Whether an `Unreadable` takes the place of each record that cannot be decoded; else a pass raises the
            error there.
        passed: Number of records of the last complete pass; None before.
    """

    parts: Sequence[Blocks]
    each: bool = False
    passed: int | None = field(default=None, init=False)

    def __iter__(self) -> Iterator[list[Any]]:
        """Start a pass: yield the records in order, in lists.

        Raises:
            SourceError: A record cannot be decoded; also IndexMismatchError, like `Blocks`.
        """
        passed = 0
        for part in self.parts:
            for block in part.decoded(each=self.each):
                passed += len(block)
                yield unreadable(block) if self.each else block
        self.passed = passed

    def marking(self) -> Self:
        """Return the same records, with marks for records that cannot be decoded."""
        return replace(self, each=True)

    def listed(self) -> list[Any]:
        """Return all records; raises like a pass."""
        return list(chain.from_iterable(self))


def blocks_of(records: Any) -> Iterable[Sequence[Any]]:
    """Return the records of a task as blocks; a list is one block."""
    return records if isinstance(records, RecordBlocks) else [records]


def listed(records: Any) -> Any:
    """Return blocks as a list of all their records, raising like a pass; return other records unchanged."""
    return records.listed() if isinstance(records, RecordBlocks) else records
