"""The results of a function, kept until its task is written: each as it was when the function returned it."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from ledgerbeam.errors import FunctionError, RecordError
from ledgerbeam.io import Format, Sample, ShardFile
from ledgerbeam.io.formats.format import TableMaking, is_columnar
from ledgerbeam.io.formats.registry import format_named
from ledgerbeam.io.json_values import NanRule
from ledgerbeam.io.lines.decode import LINE_BREAK, JsonLinesBuilder
from ledgerbeam.io.tar.encode import TarBuilder, TarSamples
from ledgerbeam.ledger import Task

if TYPE_CHECKING:  # only jobs of columns import it
    import pyarrow as pa


CONVERTED = ("shar", "megatron")
"""Formats that only conversions write, which make a new value of each record."""

ROWS_AT_ONCE = 1024
"""Results that become columns in one go."""


class Collector(Protocol):
    """Takes the results of one dataset; after that a function may change or reuse a returned object."""

    def add(self, value: Any) -> None:
        """Take a result, the whole of what came of its record."""

    def hold(self, value: Any) -> Any:
        """Return what stands for a result: `take` takes it, and two are equal if they are written alike.

        Raises:
            RecordError: The format cannot hold it.
        """

    def take(self, held: Any) -> None:
        """Take what `hold` gave."""

    def finish(self) -> Any:
        """Return what was taken, as the records of a task."""


class UnplacedError(RecordError):
    """A result cannot be written, and it is not known of which record it is: the task is to be mapped one by one."""


def collector(output: str | Format, nan: NanRule, route: str = "", *, one_by_one: bool, placed: bool) -> Collector:
    """Return where results are kept for a format.

    Args:
        output: The format, or its name.
        nan: What becomes of NaN and infinities in JSONL.
        route: The route of the results.
        one_by_one: Whether to report at once a result that cannot be written, not at the end of its task.
        placed: Whether columns, too, report it at once; else they raise UnplacedError at the end.
    """
    name = output if isinstance(output, str) else output.name
    if name == "jsonl":
        return _CheckedLines(nan) if one_by_one else _Lines(nan)
    if name == "tar":
        return _Samples()
    if name in CONVERTED:
        return _Values()
    kind = format_named(output) if isinstance(output, str) else output
    if is_columnar(kind):
        try:
            maker = kind.written(route)
        except RecordError as error:
            return _Refused(str(error))
        return _CopiedValues() if maker is None else _Columns(maker, placed=placed)
    return _Copies(kind, one_by_one=one_by_one)


def table_collector(output: str | Format, nan: NanRule, route: str = "") -> Collector:
    """Return where results that are tables are kept for a format of `ARROW_OUTPUTS`; args are those of `collector`."""
    kind = format_named(output) if isinstance(output, str) else output
    if not is_columnar(kind):
        return _TableLines(nan)
    try:
        return _TableParts(kind.written(route))
    except RecordError as error:
        return _Refused(str(error))


class _Lines(JsonLinesBuilder):
    """Encodes at once."""

    def hold(self, value: Any) -> tuple[bytes, int]:
        return self.encode(value)

    def take(self, held: tuple[bytes, int]) -> None:
        self.append(*held)


class _CheckedLines(_Lines):
    """Encodes at once, and refuses a result that is not one line, which otherwise is found only at the end."""

    def hold(self, value: Any) -> tuple[bytes, int]:
        held = self.encode(value)
        if held[0].find(b"\n") != len(held[0]) - 1:
            raise RecordError(f"it {LINE_BREAK}")
        return held

    def add(self, value: Any) -> None:
        self.append(*self.hold(value))


class _TableLines(JsonLinesBuilder):
    """Encodes the rows of tables at once."""

    def hold(self, value: pa.Table) -> list[tuple[bytes, int]]:
        from ledgerbeam.io.columns.values import to_records  # noqa: PLC0415 - only jobs of Arrow batches import it

        return [self.encode(record) for record in to_records(value)]

    def take(self, held: list[tuple[bytes, int]]) -> None:
        for line, nulled in held:
            self.append(line, nulled)


class _TableParts:
    """Takes tables, each cast to the schema; without one, a frame of one batch may have narrower types than others.

    Args:
        maker: Casts them; None if there is no schema yet.
    """

    def __init__(self, maker: TableMaking | None) -> None:
        self._maker = maker
        self._tables: list[pa.Table] = []

    def add(self, value: pa.Table) -> None:
        self.take(self.hold(value))

    def hold(self, value: pa.Table) -> pa.Table:
        return value if self._maker is None else self._maker.table(value)

    def take(self, held: pa.Table) -> None:
        self._tables.append(held)

    def finish(self) -> pa.Table:
        import pyarrow as pa  # noqa: PLC0415 - only jobs of Arrow batches import it

        if not self._tables:
            return ()
        try:
            return pa.concat_tables(self._tables, promote_options="permissive")
        except (pa.ArrowException, ValueError) as error:
            raise RecordError(
                f"the batches of a task have different columns: {error}; return the same of each"
            ) from error


class _Samples:
    """Encodes at once; a sample that no archive can hold is reported at the end, as one that readers would misread."""

    def __init__(self) -> None:
        self._builder = TarBuilder()
        self._error: RecordError | None = None

    def add(self, value: Sample) -> None:
        try:
            if self._error is None:
                self._builder.add(value)
        except RecordError as error:
            self._error = error

    def hold(self, value: Sample) -> _SampleAsWritten:
        return _SampleAsWritten(value)

    def take(self, held: _SampleAsWritten) -> None:
        self.add(held.sample)

    def finish(self) -> TarSamples:
        if self._error is not None:
            raise self._error
        return self._builder.finish()


class _SampleAsWritten:
    """A sample that is compared by its key, and by its members in their order."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, sample: Sample) -> None:
        self.sample = sample

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SampleAsWritten) and self._parts() == other._parts()

    def _parts(self) -> tuple[str, list[tuple[str, bytes]]]:
        return self.sample.key, list(self.sample.items())


class _Values:
    """Takes results of conversions, which make a new value of each record."""

    def __init__(self) -> None:
        self._values: list[Any] = []

    def add(self, value: Any) -> None:
        self._values.append(value)

    def hold(self, value: Any) -> Any:
        return value

    def take(self, held: Any) -> None:
        self._values.append(held)

    def finish(self) -> list[Any]:
        return self._values


class _CopiedValues(_Values):
    """Takes copies of results, of which each dataset is to have a schema of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._copied = _copier()

    def add(self, value: Any) -> None:
        super().add(self._copied(value))

    def hold(self, value: Any) -> Any:
        return self._copied(value)


class _Refused:
    """Refuses results of a route that has no schema."""

    def __init__(self, error: str) -> None:
        self._error = error

    def add(self, value: Any) -> None:
        self.hold(value)

    def hold(self, value: Any) -> Any:
        del value
        raise RecordError(self._error)

    def take(self, held: Any) -> None:
        self.hold(held)

    def finish(self) -> list[Any]:
        return []


class _Columns:
    """Takes copies of results, which become columns some at a time: a task of copies would be long in collecting."""

    def __init__(self, maker: TableMaking, *, placed: bool) -> None:
        self._maker = maker
        self._placed = placed
        self._copied = maker.copied
        self._rows: list[Any] = []
        self._tables: list[pa.Table] = []
        self._error: RecordError | None = None

    def add(self, value: Any) -> None:
        row = self._copied(value)
        if self._placed:
            self._maker.require(row)
        self._append(row)

    def hold(self, value: Any) -> _RowAsWritten:
        row = self._copied(value)
        self._maker.require(row)
        return _RowAsWritten(self._maker, row)

    def take(self, held: _RowAsWritten) -> None:
        self._append(held.row)

    def finish(self) -> pa.Table:
        self._make()
        if self._error is not None:
            kind = RecordError if self._placed else UnplacedError  # each was asked for: they do not fit together
            raise kind(f"result {self._error}") from self._error
        return self._maker.joined(self._tables)

    def _append(self, row: Any) -> None:
        self._rows.append(row)
        if len(self._rows) == ROWS_AT_ONCE:
            self._make()

    def _make(self) -> None:
        rows, self._rows = self._rows, []
        try:
            if self._error is None:
                self._tables.append(self._maker.table(rows, first=len(self._tables) * ROWS_AT_ONCE))
        except RecordError as error:
            self._error = error


class _RowAsWritten:
    """A result that is compared by the columns that it becomes, of which NaN is equal to NaN."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, maker: TableMaking, row: Any) -> None:
        self._maker = maker
        self.row = row

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _RowAsWritten) and self._written() == other._written()

    def _written(self) -> bytes:
        return self._maker.encoded(self.row)


def _copier() -> Callable[[Any], Any]:
    from ledgerbeam.io.columns.tables import copied  # noqa: PLC0415 - only jobs of columns import pyarrow

    return copied


class _Copies:
    """Takes copies of results, which the format encodes at the end."""

    def __init__(self, kind: Format, *, one_by_one: bool) -> None:
        self._format = kind
        self._one_by_one = one_by_one
        self._values: list[Any] = []

    def add(self, value: Any) -> None:
        self.take(self.hold(value))

    def hold(self, value: Any) -> _AsWritten:
        copied = copy.deepcopy(value)
        if self._one_by_one:
            self._format.encode([copied])
        return _AsWritten(self._format, copied)

    def take(self, held: _AsWritten) -> None:
        self._values.append(held.value)

    def finish(self) -> list[Any]:
        return self._values


class _AsWritten:
    """A result that is compared by its written bytes: the equality of an object may be arbitrary."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, kind: Format, value: Any) -> None:
        self._format = kind
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _AsWritten) and self._encoded() == other._encoded()

    def _encoded(self) -> list[ShardFile] | None:
        try:
            return self._format.encode([self.value])
        except Exception:  # noqa: BLE001 - `WriteTasks` reports what cannot be encoded
            return None


def as_samples(results: list[Any], record: Any, task: Task, position: int) -> list[Sample]:
    """Return the results of one record as samples of a tar, with keys of their own."""
    key = record.key if isinstance(record, Sample) else _record_key(task, position)
    if len(results) == 1:
        return [_as_sample(results[0], key, key)]
    return [_as_sample(value, key, f"{key}-{ordinal}") for ordinal, value in enumerate(results)]


def _as_sample(value: Any, origin: str, default_key: str) -> Sample:
    """Return a mapping of extension to bytes as a sample of its own; text is encoded as UTF-8.

    Its key is what it names as ``__key__``, else its own if it is a sample of another key than its `origin`.
    """
    if not isinstance(value, Mapping):
        raise FunctionError(f"expected a mapping of extension to bytes, found {type(value).__name__}")
    own = value.key if isinstance(value, Sample) and value.key != origin else default_key
    key = value.get("__key__", own)
    members: dict[str, bytes] = {}
    for extension, content in value.items():
        if extension == "__key__":
            continue
        data = content.encode() if isinstance(content, str) else content
        if not isinstance(data, bytes | bytearray | memoryview):
            raise FunctionError(f"extension {extension!r}: expected bytes, found {type(content).__name__}")
        members[str(extension)] = bytes(data)
    return Sample(str(key), members)


def _record_key(task: Task, position: int) -> str:
    """Name a sample that came from a format without keys, by its source and its place in it."""
    stem = os.path.basename(task.source.url).partition(".")[0]
    return f"{stem}-{task.start + position:09d}"
