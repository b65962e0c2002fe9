"""Record counts of a task, which add up exactly, and its statistics as opaque bytes."""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ledgerbeam.errors import UnsupportedShapeError
from ledgerbeam.ledger.model.values import integer, row, rows, shown, text
from ledgerbeam.stats import MOST_NAMES, NAME_CHARACTERS, SEPARATOR

NOTHING = "returned nothing"  # the reason of records that a function dropped without a reason
FUNCTIONS = SEPARATOR  # name of the statistic with the counts of several functions of a job
STATISTIC_BYTES = 1 << 20  # largest size of a sketch, in bytes
STATISTICS_BYTES = 4 << 20  # largest size of all sketches of a task together, in bytes

Part = tuple[str, str]
"""Key of one number of `RecordCounts`: the attribute, and the reason or route; empty for ``read`` and ``kept``."""

_PLAIN_PARTS = ("read", "kept")
_NAMED_PARTS = ("dropped", "rejected", "written")
PARTS = (*_PLAIN_PARTS, *_NAMED_PARTS)  # the attributes of `RecordCounts`, in order


class Statistic(NamedTuple):
    """A statistic of a task: its kind, and its sketch, which only `ledgerbeam.stats` can interpret."""

    kind: str
    data: bytes


@dataclass(frozen=True, slots=True)
class RecordCounts:
    """Counts of records by result. Always ``read == kept + sum(dropped) + sum(rejected)``.

    Attributes:
        read: Records that were read.
        kept: Records with at least one written record.
        dropped: Records that were left out on purpose, by reason.
        rejected: Records that could not be used, by reason.
        written: Records in the outputs, by route; the empty name stands for the main dataset. A record that became a
            list of n records counts once as kept and n times as written.

    Raises:
        UnsupportedShapeError: The numbers do not add up, or a name is not a short text.
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
                "these counts cannot be recorded: expected the number of records read to be the sum of those kept, "
                f"dropped and rejected, found {self.as_dict()}"
            )

    @classmethod
    def plain(cls, records: int) -> RecordCounts:
        """Return the counts of `records` that were all read, kept and written to the main dataset."""
        return cls(records, records, {}, {}, {"": records} if records else {})

    def of_read(self, read: int) -> RecordCounts:
        """Convert these counts, of the records that a function received, to counts of the `read` records of its task.

        The numbers differ if an earlier function made several records from one, or dropped some. Too many records are
        cut to `read`: dropped ones first, then kept ones. Missing records count as dropped by an earlier function.
        """
        if read == self.read:
            return self
        parts, counted, left = dict(self.parts()), Counter[Part](), read
        for kind in ("rejected", "kept", "dropped"):
            for part in sorted(part for part in parts if part[0] == kind):
                counted[part] = min(parts[part], left)
                left -= counted[part]
        counted["dropped", NOTHING] += left
        written = {part: number for part, number in parts.items() if part[0] == "written"}
        return RecordCounts.from_parts(counted | written | {("read", ""): read})

    def plus(self, other: RecordCounts) -> RecordCounts:
        """Return the sum, separately for each name."""
        sums = Counter(dict(self.parts()))
        sums.update(dict(other.parts()))
        return RecordCounts.from_parts(sums)

    def since(self, before: RecordCounts) -> RecordCounts:
        """Return the counts that were added since `before`, separately for each name.

        Counts that decreased meanwhile, because a source changed or was forgotten, are taken as unchanged.
        """
        sums = Counter(dict(self.parts()))
        sums.subtract(dict(before.parts()))
        gained = Counter({part: max(0, number) for part, number in sums.items()})
        gained["read", ""] = sum(number for (part, _), number in gained.items() if part not in ("read", "written"))
        return RecordCounts.from_parts(gained)

    def as_dict(self) -> dict[str, Any]:
        """Return the counts as a JSON object, names sorted."""
        named = {name: dict(sorted(getattr(self, name).items())) for name in _NAMED_PARTS}
        return {"read": self.read, "kept": self.kept, **named}

    @property
    def records(self) -> int:
        """Records that were written, over all routes."""
        return sum(self.written.values())

    @property
    def is_plain(self) -> bool:
        """Whether all records were read, kept and written to the main dataset, as in `plain`."""
        return self.read == self.kept == self.records == self.written.get("", 0)

    def parts(self) -> Iterator[tuple[Part, int]]:
        """Yield each number after its key: a part, such as ``dropped``, and a name. `from_parts` is the inverse."""
        yield ("read", ""), self.read
        yield ("kept", ""), self.kept
        for part in _NAMED_PARTS:
            for name, number in getattr(self, part).items():
                yield (part, name), number

    @classmethod
    def from_parts(cls, parts: Mapping[Part, int]) -> RecordCounts:
        """Return the counts from numbers as `parts` yields them, without names whose number is zero.

        Raises UnsupportedShapeError if the numbers do not add up, or one is below zero.
        """
        named: dict[str, dict[str, int]] = {part: {} for part in _NAMED_PARTS}
        for (part, name), number in parts.items():
            if number and part in named:
                named[part][name] = number
        return cls(parts.get(("read", ""), 0), parts.get(("kept", ""), 0), **named)


def read_shares(read: int, sizes: Sequence[int]) -> list[int]:
    """Divide `read`, the number of records that a task has read, among its children, of which there is at least one.

    `sizes` has the number of records of each child. Each child, in order, gets at most its number. The first child gets
    the rest in addition. So the sum of the shares is `read`.
    """
    shares, left = [], read
    for size in sizes:
        shares.append(min(size, left))
        left -= shares[-1]
    shares[0] += left
    return shares


def task_counts(counts: RecordCounts, records: int) -> None:
    """Check that a task's counts have at most `MOST_NAMES` names, and count `records` as written. Raises ValueError."""
    for part in _NAMED_PARTS:
        if len(getattr(counts, part)) > MOST_NAMES:
            raise ValueError(
                f"expected at most {MOST_NAMES} names in {part}, found {len(getattr(counts, part))}; use a few "
                "categories as names, not a text for each record"
            )
    if counts.records != records:
        raise ValueError(f"expected {records} records written, as in the outputs, found {counts.as_dict()}")


def task_statistics(statistics: Mapping[str, Statistic]) -> None:
    """Check the number, names, kinds and sizes of the statistics of one task. Raises ValueError."""
    if len(statistics.keys() - {FUNCTIONS}) > MOST_NAMES:
        raise ValueError(f"expected at most {MOST_NAMES} statistics of a task, found {len(statistics)}")
    size = 0
    for name, statistic in statistics.items():
        _name(text(name).rpartition(SEPARATOR)[2])  # without the label of its function
        kind, data = row(statistic, 2)
        _name(kind)
        if not isinstance(data, bytes):
            raise ValueError(f"expected the sketch of the statistic {shown(name)} as bytes, found {shown(data)}")
        if len(data) > STATISTIC_BYTES:
            raise ValueError(
                f"expected at most {STATISTIC_BYTES} bytes in the statistic {shown(name)}, found {len(data)}"
            )
        size += len(data)
    if size > STATISTICS_BYTES:
        raise ValueError(f"expected at most {STATISTICS_BYTES} bytes for all sketches of a task, found {size}")


def counts_row(counts: RecordCounts) -> list[Any]:
    """Return counts as a JSON row: read, kept, then the (name, number) pairs of dropped, of rejected and of written."""
    named = [[list(pair) for pair in sorted(getattr(counts, part).items())] for part in _NAMED_PARTS]
    return [counts.read, counts.kept, *named]


def read_counts(value: Any) -> RecordCounts:
    """Read a row of `counts_row`. Raises ValueError."""
    read, kept, *named = row(value, 5)
    return RecordCounts(read, kept, *(_read_named(pairs) for pairs in named))


def statistics_row(statistics: Mapping[str, Statistic]) -> list[Any]:
    """Return statistics as a JSON row, sorted by name: name, kind, and the sketch in base64."""
    return [[name, kind, base64.b64encode(data).decode()] for name, (kind, data) in sorted(statistics.items())]


def read_statistics(value: Any) -> dict[str, Statistic]:
    """Read a row of `statistics_row`. Raises ValueError."""
    found: dict[str, Statistic] = {}
    for name, kind, encoded in (row(item, 3) for item in rows(value)):
        try:
            data = base64.b64decode(text(encoded), validate=True)
        except binascii.Error as error:
            raise ValueError(f"expected a sketch in base64, found {shown(encoded)} ({error})") from None
        if text(name) in found:
            raise ValueError(f"expected each statistic once, found {shown(name)} again")
        found[name] = Statistic(text(kind), data)
    task_statistics(found)
    return found


def _read_named(value: Any) -> dict[str, int]:
    pairs = [row(pair, 2) for pair in rows(value)]
    found = {text(name): integer(number) for name, number in pairs}
    if len(found) != len(pairs):
        raise ValueError(f"expected each name once, found {shown(value)}")
    return found


def _name(value: Any) -> None:
    if len(text(value)) > NAME_CHARACTERS:
        raise ValueError(f"expected a name of at most {NAME_CHARACTERS} characters, found {shown(value)}")
