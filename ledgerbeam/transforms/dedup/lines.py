"""Repeated lines of texts: functions of tasks that find them, write their ranges as columns, and cut ranges out.

A line is repeated if an equal line is earlier, in an earlier record or in the same text. Blank lines are never
repeated. A range is the numbers of its first character and of the character after its last, counted from 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from struct import Struct
from typing import TYPE_CHECKING, Any

import numpy as np

from ledgerbeam import stats
from ledgerbeam.errors import LedgerbeamError, RecordError
from ledgerbeam.io.exchange.hash_run import HASH_BYTES, HashRows, hashes_in
from ledgerbeam.io.exchange.payloads import payload_of
from ledgerbeam.io.lines.rows import ByteRows
from ledgerbeam.ledger import FailedTask, NoneTask, Task
from ledgerbeam.sources.buckets import GatheredRecords
from ledgerbeam.sources.forms import PlacedPart, PlacedRecords
from ledgerbeam.sources.listed import ListedSpan
from ledgerbeam.transforms.dedup.duplicates import HashedRecords, OfBucket, TextRecords, by_file, count_by_source
from ledgerbeam.transforms.exchange.keys import RecordKeys, with_field
from ledgerbeam.transforms.exchange.scatter import moved
from ledgerbeam.transforms.mapping.unchanged import KeepPlaced
from ledgerbeam.user_code.guards import failed_by, message_of

if TYPE_CHECKING:
    import pyarrow as pa

LINES = "duplicate_lines"  # name of the column with the ranges of the repeated lines of a text
CUT = "ranges that were cut out"  # statistic
_ROWS = 1 << 21  # number of lines that are read together
_RANGE = Struct(">II")


class HashLines(TextRecords):
    """A function of one task, for `ProcessTask`, that returns the hash of each line of each record as a key."""

    def __call__(self, task: Task) -> Task | NoneTask | FailedTask:
        """Return the task with `HashedRecords`. The payload of a line has its ranges in the record."""
        records: PlacedRecords = task.records
        keys, places, ranges = list[bytes](), list[int](), list[bytes]()
        without = 0  # records without a text
        try:
            texts = (text for part in records.parts for text in self.texts(part))
            for place, text in zip(records.places.tolist(), texts, strict=True):
                without += not text
                for line, found in _lines_of(text).items():
                    data = line.encode("utf-8", "surrogatepass")
                    keys.append(blake2b(data, digest_size=HASH_BYTES, person=b"lb.line").digest())
                    places.append(place)
                    ranges.append(found)
        except LedgerbeamError as error:
            return failed_by(error, task, message_of(error))
        return moved(task, HashedRecords(hashes_in(b"".join(keys)), np.array(places, np.uint64), ranges), without)


def _lines_of(text: str) -> dict[str, bytes]:
    """Return the ranges of each line of a text that is not blank."""
    found: dict[str, bytes] = {}
    start = 0
    for line in text.split("\n"):
        stop = start + len(line)
        if line and not line.isspace():
            found[line] = found.get(line, b"") + _RANGE.pack(start, stop)
        start = stop + 1
    return found


class FindLines(OfBucket):
    """Find repeated lines: of equal lines all but the first."""

    def found(self, gathered: GatheredRecords) -> HashedRecords | None:
        """Return the records that have repeated lines, with their ranges as notes."""
        parts = [rows for rows in _repeated(gathered) if len(rows)]
        if not parts:
            return None
        rows = HashRows.concatenated(parts)
        count_by_source(gathered, rows)
        rows = rows.at(np.lexsort((rows.numbers, rows.runs)))
        begins = (np.diff(rows.runs, prepend=0) != 0) | (np.diff(rows.numbers, prepend=0) != 0)
        begins[0] = True
        firsts = np.flatnonzero(begins)  # a record is listed once
        ranges: Any = rows.payloads
        notes = [b"".join(some.tolist()) for some in np.split(ranges, firsts[1:])]
        return by_file(gathered, rows.at(firsts), notes)


def _repeated(gathered: GatheredRecords) -> Iterator[HashRows]:
    """Yield lines with the ranges at which they are repeated."""
    before: HashRows | None = None  # the last line of the previous block
    for rows in gathered.hashes(_ROWS):
        if rows.payloads is None:
            continue
        begins = (rows if before is None else before.followed_by(rows)).begin_groups()[-len(rows) :]
        before = rows.at(slice(-1, None))
        repeated = np.empty(len(rows), object)
        repeated[:] = [
            ranges[_RANGE.size :] if is_first else ranges
            for ranges, is_first in zip(rows.payloads.tolist(), begins.tolist(), strict=True)
        ]
        yield replace(rows, payloads=repeated).at(repeated != b"")


def line_columns() -> pa.Schema:
    """Return the schema of the column: ascending ranges; null for a record without repeated lines."""
    import pyarrow as pa  # noqa: PLC0415 - only jobs of columns import it

    return pa.schema([(LINES, pa.list_(pa.struct([("start", pa.int64()), ("stop", pa.int64())])))])


class WriteLines:
    """A function of one task, for `ProcessTask`, that turns the list of a span into the column."""

    def __call__(self, task: Task) -> Task:
        """Return the task with a row for each record."""
        import pyarrow as pa  # noqa: PLC0415 - only jobs of columns import it

        listed: ListedSpan = task.records
        found: list[list[dict[str, int]] | None] = [None] * listed.records
        for row, note in zip(listed.places.tolist(), listed.notes, strict=True):
            found[row] = [{"start": start, "stop": stop} for start, stop in _ranges(note)]
        return task.replace(records=pa.Table.from_pydict({LINES: found}, line_columns()))


@dataclass(frozen=True)
class CutRecords:
    """A function of one task, for `ProcessTask`, that cuts ranges out of a field. Their notes are the ranges.

    Records without ranges keep their bytes.
    """

    field: str  # name of the field with the text, a.b for a nested value
    keep: KeepPlaced  # writes the records

    def __call__(self, task: Task) -> Task | NoneTask | FailedTask:
        """Return the task with the records."""
        records: PlacedRecords = task.records
        try:
            parts = [self._cut(part) for part in records.parts]
        except LedgerbeamError as error:
            return failed_by(error, task, message_of(error))
        return self.keep(task.replace(records=PlacedRecords(parts)))

    def _cut(self, part: PlacedPart) -> PlacedPart:
        notes = part.notes or [None] * len(part)
        noted = np.array([bool(note) for note in notes], np.bool_)
        if not noted.any():
            return part
        texts = TextRecords(RecordKeys("digest", (self.field,)))
        some = part.some(noted)
        places = np.flatnonzero(noted).tolist()
        changed: dict[int, Any] = {}
        for place, record, text, note in zip(places, some.records(), texts.texts(some), some.notes or (), strict=True):
            try:
                ranges = _ranges(note)
                changed[place] = with_field(record, self.field, cut_out(text, ranges))
            except RecordError as error:
                raise RecordError(f"{part.url}: record {int(part.numbers[place])}: {error}") from error
            stats.count(CUT, len(ranges))
        if part.lines is None:
            values = part.values or ()
            return replace(part, values=[changed.get(place, value) for place, value in enumerate(values)])
        lines = (payload_of(changed[place]) if place in changed else line for place, line in enumerate(part.lines))
        return replace(part, lines=ByteRows.of(lines))


def cut_out(text: str, ranges: Sequence[tuple[int, int]]) -> str:
    """Return a text without some ranges, ascending. A range of whole lines takes one line break with it.

    So without some of its lines, a text has the other lines, joined by line breaks.

    Raises:
        RecordError: The text is shorter than a range.
    """
    kept = ""
    place = 0
    for start, stop in ranges:
        if not 0 <= start <= stop <= len(text):
            raise RecordError(
                f"expected ranges of a text of {len(text):,} characters, found {start:,} to {stop:,}; write the column "
                "with the ranges again, or give the right field"
            )
        if stop <= place:
            continue  # inside of an earlier range
        kept += text[place:start]
        ends_line = stop == len(text) or text[stop] == "\n"
        is_line = start < stop and ends_line and (start == 0 or text[start - 1] == "\n")
        if is_line and stop == len(text):
            kept = kept.removesuffix("\n")
        place = stop + is_line
    return kept + text[place:]


def _ranges(note: Any) -> list[tuple[int, int]]:
    """Return the ranges of a note, ascending: of a list, or of a column with pairs or structs."""
    if isinstance(note, bytes):
        return sorted(_RANGE.iter_unpack(note))
    found: list[tuple[int, int]] = [()]  # type: ignore[list-item] # refused below
    with suppress(KeyError, TypeError):
        found = [(one["start"], one["stop"]) if isinstance(one, dict) else tuple(one) for one in note]
    if any([*map(type, one)] != [int, int] for one in found):
        raise RecordError(f"expected a list of ranges, pairs of start and stop, found {note!r:.80}")
    return sorted(found)
