"""Join: combine each record of the left side of an exchange with the records of the right side that have its key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, ClassVar

from ledgerbeam._base.disk import size_text
from ledgerbeam.errors import LedgerbeamError, RecordError, SourceError, StorageError
from ledgerbeam.io import Format, Sample
from ledgerbeam.io.exchange.order import Joining
from ledgerbeam.io.exchange.payloads import is_json_text, record_of
from ledgerbeam.io.formats.format import json_value
from ledgerbeam.io.lines.jsonl import JsonLinesBuilder
from ledgerbeam.io.tar.sample import member_bytes
from ledgerbeam.ledger import FailedTask, NoneTask, Task
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.sources.buckets import GatheredRecords
from ledgerbeam.transforms.exchange.gather import as_bucket, as_part
from ledgerbeam.transforms.mapping.function import ConvertRecords
from ledgerbeam.transforms.mapping.outcomes import TaskResults
from ledgerbeam.user_code.guards import failed_by, message_of

MATCHED, UNMATCHED = "matched", "unmatched"  # drop reasons of records of the left side
MOST_HELD = 256 * 2**20  # maximum size in bytes of the right records of one key, which are held in memory
MOST_DECODED = 16 * 2**20  # most bytes of a key's decoded right records; larger groups are decoded for each left record
MOST_MADE = 2**30  # maximum size in bytes of the joined records of a part, which are held until they are written


@dataclass(frozen=True)
class RightFields:
    """Rules that add the fields of a right record to a left record."""

    left_out: tuple[str, ...] = ()  # fields of the right side that are not added: the key
    # Suffix for the right field of a name that both sides have. None raises an error for such a field.
    suffix: str | None = None
    under: str | None = None  # name of one field for the whole right record; None adds its fields

    def join(self, left: Any, right: Any) -> Any:
        """Return the joined record of two records. Raises RecordError if they cannot be joined."""
        if self.under is not None:
            return self._nested(left, self.under, right)
        is_sample = isinstance(left, Sample)
        if is_sample and not isinstance(right, Sample):
            raise RecordError(
                f"expected a sample of a tar on the right side as well, found {_kind(right)}; give --as NAME to store "
                "the right record as a member, such as --as json"
            )
        more = right if is_sample else _fields(right, "right")
        made = dict(left) if is_sample else dict(_fields(left, "left"))
        for name, value in more.items():
            if name not in self.left_out:
                made[self._free_name(name, made, more)] = value
        return Sample(left.key, made) if is_sample else made

    def without(self, left: Any) -> Any:
        """Return the joined record of a left record without a match. Raises RecordError if it cannot be joined."""
        if self.under is None or isinstance(left, Sample):
            return left
        return self._nested(left, self.under, None)

    def _nested(self, left: Any, under: str, right: Any) -> Any:
        made = left if isinstance(left, Sample) else _fields(left, "left")
        if under in made:
            raise RecordError(f"the left record already has a field {under!r}; give another name with --as")
        value = json_value(right)
        if isinstance(left, Sample):
            return Sample(left.key, {**left, under: member_bytes(under, value)})
        return {**made, under: value}

    def _free_name(self, name: str, made: Mapping[str, Any], more: Mapping[str, Any]) -> str:
        if name not in made:
            return name
        if self.suffix is None:
            raise RecordError(
                f"both sides have a field {name!r}; give --suffix TEXT to rename the right field, or --as NAME to put "
                "the whole right record into one field"
            )
        free = f"{name}{self.suffix}"
        if free in made or free in more:
            raise RecordError(
                f"both sides have a field {name!r}, and the field {free!r} also exists; give another --suffix"
            )
        return free


def _fields(record: Any, side: str) -> Mapping[str, Any]:
    value = json_value(record)
    if not isinstance(value, Mapping):
        raise RecordError(f"expected an object on the {side} side, found {_kind(value)}")
    return value


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):
        return "an object"
    return "null" if value is None else f"a {type(value).__name__}"


@dataclass(frozen=True)
class JoinRecords:
    """A function of one task, for `ProcessTask`, that joins the records of both sides."""

    how: Joining
    fields: RightFields  # rules that add the fields of a right record
    conversion: str  # name of the conversion to the format, see `io.conversion`
    output_format: str | Format  # format of the outputs, or its name

    takes_blocks: ClassVar[bool] = True

    def __call__(self, task: Task) -> Task | NoneTask | FailedTask:
        """Return the task with the joined records, and the counts of left records."""
        gathered: GatheredRecords = task.records
        made: _Made = _MadeLines() if self.output_format == "jsonl" else _MadeRecords(self)
        try:
            counts = _Join(self, gathered, made).run()
            if not len(made):
                return NoneTask(task, counts=counts)
            done = made.written(task)
        except (SourceError, StorageError) as error:
            return failed_by(error, task, message_of(error))
        if not isinstance(done, Task):
            return done
        results: Any = done.records
        return done.replace(records=replace(results, counts=counts))


class _Join:
    """The join of one part of a bucket."""

    def __init__(self, rules: JoinRecords, gathered: GatheredRecords, made: _Made) -> None:
        self._rules = rules
        self._gathered = gathered
        self._made = made
        self._bytes = 0

    def run(self) -> RecordCounts:
        """Join all records and return the counts of left records."""
        left_out = {"inner": UNMATCHED, "semi": UNMATCHED, "anti": MATCHED}.get(self._rules.how)
        read = dropped = 0
        for run, number, payload, right in _left_records(self._gathered):
            read += 1
            if left_out is not None and (left_out == MATCHED) is bool(right):
                dropped += 1
                continue
            try:
                self._take(payload, right)
            except LedgerbeamError as error:
                url, place = self._gathered.place(run, number)
                raise RecordError(f"{url}, record {place}: {message_of(error)}") from error
        counts = {} if left_out is None or not dropped else {left_out: dropped}
        return RecordCounts(read, read - dropped, counts, {}, {"": len(self._made)} if len(self._made) else {})

    def _take(self, payload: bytes, right: _Held) -> None:
        """Join a left record with each of the right records of its key."""
        rules = self._rules
        if rules.how in ("semi", "anti") or not (right or rules.fields.under):
            self._made.take(payload)
            return
        left = record_of(payload)
        if not right:
            self._made.add(rules.fields.without(left))
            return
        self._bytes += len(payload) * len(right) + right.size
        if self._bytes > MOST_MADE:
            raise RecordError(
                f"the joined records of one task exceed {size_text(MOST_MADE)}, and this key has {len(right):,} right "
                "records; give a smaller --shard-bytes, or a key that fewer records share"
            )
        for ordinal, other in enumerate(right.records()):
            one = left
            if isinstance(left, Sample) and len(right) > 1:
                one = Sample(f"{left.key}-{ordinal}", left)
            self._made.add(rules.fields.join(one, other))


class _Held:
    """The right records of one key."""

    def __init__(self) -> None:
        self._payloads: list[bytes] = []
        self._decoded: list[Any] | None = None
        self.size = 0

    def __len__(self) -> int:
        return len(self._payloads)

    def add(self, payload: bytes) -> None:
        self._payloads.append(payload)
        self.size += len(payload)

    def records(self) -> Iterable[Any]:
        if self.size > MOST_DECODED:
            return map(record_of, self._payloads)
        if self._decoded is None:
            self._decoded = list(map(record_of, self._payloads))
        return self._decoded


def _left_records(gathered: GatheredRecords) -> Iterator[tuple[int, int, bytes, _Held]]:
    """Yield run file, number and bytes of each left record, and its right records. RecordError: these are too large."""
    beside, held = gathered.beside, _Held()
    current: bytes | None = None
    for part in chain(gathered.begun(), gathered.merged()):
        for key, run, number, payload in part.rows():
            if key != current:
                current, held = key, _Held()
            if run >= beside:
                yield run, number, payload, held
                continue
            held.add(payload)
            if held.size > MOST_HELD:
                url, place = gathered.place(run, number)
                raise RecordError(
                    f"{url}, record {place}: the right records of this key exceed {size_text(MOST_HELD)}, the most "
                    "that a join holds in memory; give a key that fewer records share, or swap the sides"
                )


class _MadeLines:
    """Joined records as lines of JSON."""

    def __init__(self) -> None:
        self._lines = JsonLinesBuilder()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def take(self, payload: bytes) -> None:
        if not is_json_text(payload):
            self.add(record_of(payload))
            return
        self._lines.append(payload + b"\n", 0)
        self._count += 1

    def add(self, record: Any) -> None:
        self._lines.add(json_value(record))
        self._count += 1

    def written(self, task: Task) -> Task:
        """Return the task with `TaskResults`. The caller sets the counts of the join."""
        return task.replace(records=TaskResults({"": self._lines.finish()}, RecordCounts()))


class _MadeRecords:
    """Joined records in any other format."""

    def __init__(self, rules: JoinRecords) -> None:
        self._convert = ConvertRecords(rules.conversion, rules.output_format)
        self._records: list[Any] = []

    def __len__(self) -> int:
        return len(self._records)

    def take(self, payload: bytes) -> None:
        self._records.append(record_of(payload))

    def add(self, record: Any) -> None:
        self._records.append(record)

    def written(self, task: Task) -> Any:
        return as_bucket(self._convert(as_part(task).replace(records=self._records)), task)


# A collector of the joined records of a part: `take` adds an unchanged record, `add` a joined one.
_Made = _MadeLines | _MadeRecords
