"""What became of the records of a task, as numbers that add up exactly, and statistics, which nothing here reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ledgerbeam.errors import UnsupportedShapeError
from ledgerbeam.ledger.model.values import integer, shown, text

__all__ = ["MOST_NAMES", "RecordCounts", "Statistic"]

MOST_NAMES = 100
"""A task has so many reasons, routes or statistics at most: they are categories, not texts of single records."""

NAME_CHARACTERS = 200
"""No reason, route or name of a statistic is longer."""


class Statistic(NamedTuple):
    """A statistic of a task: what kind it is, and its sketch, which only `ledgerbeam.stats` understands."""

    kind: str
    data: bytes


@dataclass(frozen=True, slots=True)
class RecordCounts:
    """What became of records. Always ``read == kept + sum(dropped) + sum(rejected)``.

    Attributes:
        read: Records that were read.
        kept: Records of which something was written.
        dropped: Records that were left out on purpose, by reason.
        rejected: Records that could not be used, by reason.
        written: Records in the outputs, by route; the empty name stands for what has no route. A record that became
            a list of records is kept once, and written as often as the list is long.

    Raises:
        UnsupportedShapeError: The numbers do not add up, or a name is no short text.
    """

    read: int = 0
    kept: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    rejected: Mapping[str, int] = field(default_factory=dict)
    written: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            for number in (self.read, self.kept):
                integer(number)
            for counts in (self.dropped, self.rejected, self.written):
                for name, number in counts.items():
                    _name(name)
                    integer(number)
        except ValueError as error:
            raise UnsupportedShapeError(f"these counts cannot be recorded: {error}") from None
        if self.read != self.kept + sum(self.dropped.values()) + sum(self.rejected.values()):
            raise UnsupportedShapeError(
                f"these counts cannot be recorded: expected as many records read as kept, dropped and rejected, found "
                f"{self.as_dict()}"
            )

    @classmethod
    def plain(cls, records: int) -> RecordCounts:
        """Return the counts of records that were all read, kept and written without a route."""
        return cls(records, records, {}, {}, {"": records} if records else {})

    def plus(self, other: RecordCounts) -> RecordCounts:
        """Return the sum, name by name."""
        return RecordCounts(
            self.read + other.read,
            self.kept + other.kept,
            _summed(self.dropped, other.dropped, 1),
            _summed(self.rejected, other.rejected, 1),
            _summed(self.written, other.written, 1),
        )

    def minus(self, other: RecordCounts) -> RecordCounts:
        """Return the difference, name by name; names that come to nothing are left out."""
        return RecordCounts(
            self.read - other.read,
            self.kept - other.kept,
            _summed(self.dropped, other.dropped, -1),
            _summed(self.rejected, other.rejected, -1),
            _summed(self.written, other.written, -1),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the counts as a JSON object, names sorted."""
        named = {name: dict(sorted(getattr(self, name).items())) for name in ("dropped", "rejected", "written")}
        return {"read": self.read, "kept": self.kept, **named}


def _name(value: Any) -> None:
    if len(text(value)) > NAME_CHARACTERS:
        raise ValueError(f"expected a name of at most {NAME_CHARACTERS} characters, found {shown(value)}")


def _summed(mine: Mapping[str, int], theirs: Mapping[str, int], sign: int) -> dict[str, int]:
    summed = {name: mine.get(name, 0) + sign * theirs.get(name, 0) for name in {*mine, *theirs}}
    return {name: number for name, number in summed.items() if number}
