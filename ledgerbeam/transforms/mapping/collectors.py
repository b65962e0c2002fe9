"""Collectors of the results of a task. The function may change or reuse a result after it was collected."""

from __future__ import annotations

import copy
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ledgerbeam.errors import FunctionError, RecordError
from ledgerbeam.io import Format, Sample
from ledgerbeam.io.formats.format import TableMaking, is_columnar
from ledgerbeam.io.formats.registry import format_named
from ledgerbeam.io.json_values import NanRule
from ledgerbeam.io.lines.jsonl import LINE_BREAK, JsonLinesBuilder
from ledgerbeam.io.tar.writer import TarBuilder, TarSamples
from ledgerbeam.ledger import Task

if TYPE_CHECKING:  # only jobs of columns import it
    import pyarrow as pa


CONVERTED = ("shar", "megatron")  # formats that only conversions write. A conversion makes a new value for each record.
ROWS_AT_ONCE = 1024  # number of results that are converted to columns together


class Collector(ABC):
    """A collector of the results of one dataset: those without a route, or those of one route."""

    def add(self, value: Any) -> None:
        """Add the only result of a record."""
        self.take(self.hold(value))

    @abstractmethod
    def hold(self, value: Any) -> Any:
        """Encode or copy a result; `take` collects what this returns. RecordError: the format cannot store it."""

    @abstractmethod
    def take(self, held: Any) -> None:
        """Collect a result that `hold` has encoded or copied."""

    @abstractmethod
    def finish(self) -> Any:
        """Return the added results as the records of a task."""


def name_of(output: str | Format) -> str:
    """Return the name of a format."""
    return output if isinstance(output, str) else output.name


class UnplacedError(RecordError):
    """A result cannot be written, and its record is unknown. Map the task again with `placed=True` to find it."""


def collector(output: str | Format, nan: NanRule, route: str = "", *, one_by_one: bool, placed: bool) -> Collector:
    """Return a collector for the results of a route.

    If the format cannot store a result, `finish` raises an error; with `one_by_one`, `add` does: its caller knows the
    record. For formats of columns, `finish` raises UnplacedError; with `placed`, `add` raises an error.
    """
    name = name_of(output)
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
            return _Values(_refusing(error))
        if maker is not None:
            return _Columns(maker, placed=placed)
        from ledgerbeam.io.columns.tables import copied  # noqa: PLC0415 - only jobs of columns import pyarrow

        return _Values(copied)  # each dataset gets a schema of its own
    return _Values(_copying(kind) if one_by_one else copy.deepcopy)  # the format encodes the copies later


def table_collector(output: str | Format, nan: NanRule, route: str = "") -> Collector:
    """Return a collector of tables for a format of `ARROW_OUTPUTS`. The arguments are those of `collector`."""
    kind = format_named(output) if isinstance(output, str) else output
    if not is_columnar(kind):
        return _TableLines(nan)
    try:
        return _TableParts(kind.written(route))
    except RecordError as error:
        return _Values(_refusing(error))


def _refusing(error: RecordError) -> Callable[[Any], Any]:
    """Return a function that raises for each result: the route has no schema."""

    def refuse(_: Any) -> Any:
        raise RecordError(str(error))

    return refuse


def _copying(kind: Format) -> Callable[[Any], Any]:
    """Return a function that copies a result, and raises if the format cannot encode it."""

    def copied(value: Any) -> Any:
        kind.encode([found := copy.deepcopy(value)])
        return found

    return copied


class _Lines(JsonLinesBuilder, Collector):
    """Encodes each result when it is passed to `hold`."""

    def hold(self, value: Any) -> tuple[bytes, int]:
        return self.encode(value)

    def take(self, held: tuple[bytes, int]) -> None:
        self.append(*held)


class _CheckedLines(_Lines):
    """Encodes each result in `hold` and raises for a result that is not one line. `_Lines` checks that in `finish`."""

    def hold(self, value: Any) -> tuple[bytes, int]:
        held = self.encode(value)
        if held[0].find(b"\n") != len(held[0]) - 1:
            raise RecordError(f"the result {LINE_BREAK}")
        return held

    def add(self, value: Any) -> None:
        self.append(*self.hold(value))


class _TableLines(JsonLinesBuilder, Collector):
    """Encodes the rows of tables in `hold`."""

    def hold(self, value: pa.Table) -> list[tuple[bytes, int]]:
        from ledgerbeam.io.columns.values import to_records  # noqa: PLC0415 - only jobs of Arrow batches import it

        return [self.encode(record) for record in to_records(value)]

    def take(self, held: list[tuple[bytes, int]]) -> None:
        for line, nulled in held:
            self.append(line, nulled)


class _TableParts(Collector):
    """Casts tables to the schema. Without a schema, the frame of one batch may have narrower types than another."""

    def __init__(self, maker: TableMaking | None) -> None:
        self._maker = maker
        self._tables: list[pa.Table] = []

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
                f"the batches of a task have different columns: {error}; return the same columns for each batch"
            ) from error


class _Samples(Collector):
    """Encodes each sample in `take`. `finish` raises for samples that a tar archive cannot store or readers misread."""

    def __init__(self) -> None:
        self._builder = TarBuilder()
        self._error: RecordError | None = None

    def hold(self, value: Sample) -> Sample:
        return value

    def take(self, held: Sample) -> None:
        try:
            if self._error is None:
                self._builder.add(held)
        except RecordError as error:
            self._error = error

    def finish(self) -> TarSamples:
        if self._error is not None:
            raise self._error
        return self._builder.finish()


class _Values(Collector):
    """Keeps the results, or the copies that `copied` returns for them."""

    def __init__(self, copied: Callable[[Any], Any] = lambda value: value) -> None:
        self._copied = copied
        self._values: list[Any] = []

    def hold(self, value: Any) -> Any:
        return self._copied(value)

    def take(self, held: Any) -> None:
        self._values.append(held)

    def finish(self) -> list[Any]:
        return self._values


class _Columns(Collector):
    """Converts copies of results to columns in blocks: garbage collection of a whole task of copies would be slow."""

    def __init__(self, maker: TableMaking, *, placed: bool) -> None:
        self._maker = maker
        self._placed = placed
        self._copied = maker.copied
        self._rows: list[Any] = []
        self._tables: list[pa.Table] = []
        self._error: RecordError | None = None

    def add(self, value: Any) -> None:
        self.take(self.hold(value) if self._placed else self._copied(value))

    def hold(self, value: Any) -> Any:
        row = self._copied(value)
        self._maker.require(row)
        return row

    def take(self, held: Any) -> None:
        self._rows.append(held)
        if len(self._rows) == ROWS_AT_ONCE:
            self._make()

    def finish(self) -> pa.Table:
        self._make()
        if self._error is not None:
            kind = RecordError if self._placed else UnplacedError  # placed: each result fits, but not together
            raise kind(f"result {self._error}") from self._error
        return self._maker.joined(self._tables)

    def _make(self) -> None:
        rows, self._rows = self._rows, []
        try:
            if self._error is None:
                self._tables.append(self._maker.table(rows, first=len(self._tables) * ROWS_AT_ONCE))
        except RecordError as error:
            self._error = error


def as_samples(results: list[Any], record: Any, task: Task, position: int) -> list[Sample]:
    """Return the results of one record as tar samples with unique keys."""
    key = record.key if isinstance(record, Sample) else _record_key(task, position)
    if len(results) == 1:
        return [_as_sample(results[0], key, key)]
    return [_as_sample(value, key, f"{key}-{ordinal}") for ordinal, value in enumerate(results)]


def _as_sample(value: Any, origin: str, default_key: str) -> Sample:
    """Return a mapping from extension to bytes as a sample. Text is encoded as UTF-8.

    The key is the value of ``__key__``; else the key of a `Sample` if it was changed, so that it is not `origin`, the
    key of the mapped record; else `default_key`.
    """
    if not isinstance(value, Mapping):
        raise FunctionError(
            f"expected a mapping from extension to bytes, such as {{'txt': b'...'}}, found {type(value).__name__}"
        )
    own = value.key if isinstance(value, Sample) and value.key != origin else default_key
    key = value.get("__key__", own)
    members: dict[str, bytes] = {}
    for extension, content in value.items():
        if extension == "__key__":
            continue
        data = content.encode() if isinstance(content, str) else content
        if not isinstance(data, bytes | bytearray | memoryview):
            raise FunctionError(f"extension {extension!r}: expected bytes or a string, found {type(content).__name__}")
        members[str(extension)] = bytes(data)
    return Sample(str(key), members)


def _record_key(task: Task, position: int) -> str:
    """Return the key of a sample from a format without keys: stem of the source and record number."""
    stem = os.path.basename(task.source.url).partition(".")[0]
    return f"{stem}-{task.start + position:09d}"
