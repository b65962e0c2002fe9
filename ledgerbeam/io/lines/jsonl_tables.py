"""JSON lines as tables of a schema: parsed by pyarrow where its parser is exact, else decoded as records.

Checks before and after the parser find lines that it would change or accept wrongly. Such lines are decoded as records,
which are put into columns. The checks find:

- by the first and last bytes of lines, and their number: several values in a line, a value over several lines, a byte
  order mark, a line that is not an object
- by the largest number of each column of floats: integers that a float rounds, NaN and infinities
- by a validation of the table: text that is not UTF-8
- by the errors of the parser: keys that occur twice, are not in the schema, or have values of another type
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.json as pj

from ledgerbeam.errors import RecordError
from ledgerbeam.io.columns.infer import EXACT_INT, infer_schema
from ledgerbeam.io.columns.schema import schema_json, schema_of
from ledgerbeam.io.columns.tables import REMEDY, TableMaker
from ledgerbeam.io.columns.values import is_json, record_is_value
from ledgerbeam.io.index.reader import RawRecord
from ledgerbeam.io.json_values import holds_wide
from ledgerbeam.io.lines.jsonl import decode_line, decode_lines

PIECE = 64 * 2**20  # bytes that are parsed at once, unless a line has more
_MOST = 2**31 - 64  # pyarrow counts the bytes of a block in 32 bits
_NEWLINE, _RETURN, _OPEN, _CLOSE = b"\n\r{}"

_REMEDY = "give a --batch-schema that holds it, set such records aside with --on-error reject, or leave --as arrow out"


def schema_of_lines(records: Sequence[Any]) -> str:
    """Return the schema of records as JSON. RecordError if there are no records, or some are not objects."""
    schema = infer_schema(records, exact=False)
    if record_is_value(schema):
        raise RecordError("expected lines that are objects with keys, found other values; leave --as arrow out")
    return orjson.dumps(schema_json(schema)).decode()


@cache
def tables_of(schema: str) -> JsonTables:
    """Return the `JsonTables` of a schema in JSON."""
    return JsonTables(schema_of(orjson.loads(schema)))


class JsonTables:
    """Makes tables of JSON lines. A key that a line lacks is null."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._maker = TableMaker(schema)
        kinds = [_parsed_type(field.type) for field in schema]
        self._parsed: pa.Schema | None = None
        if None not in kinds:
            self._parsed = pa.schema([pa.field(name, kind) for name, kind in zip(schema.names, kinds, strict=True)])

    def table(self, data: bytes) -> pa.Table:
        """Return lines as a table, without blank ones. RecordError, without details: a line does not fit the schema."""
        parts = []
        for piece in _pieces(data):
            if (found := self._by_parser(piece)) is None:
                found = self._maker.table(decode_lines(piece.split(b"\n"), "", 0, 0, wide=holds_wide(piece)))
            parts.append(found)
        return pa.concat_tables(parts) if parts else self._none()

    def each(self, raws: Sequence[RawRecord]) -> tuple[pa.Table, dict[int, str]]:
        """Return the lines that fit the schema as a table, and the error of each other line by its position."""
        tables: list[pa.Table] = [self._none()]
        errors: dict[int, str] = {}
        left = [(0, len(raws))] if raws else []
        while left:
            start, stop = left.pop()
            try:
                if stop - start == 1:
                    tables.append(self.one(raws[start]))
                else:
                    tables.append(self.table(b"\n".join(raw.data for raw in raws[start:stop])))
            except RecordError as error:
                if stop - start == 1:
                    errors[start] = str(error)
                else:
                    middle = (start + stop) // 2
                    left += [(middle, stop), (start, middle)]
        return pa.concat_tables(tables), dict(sorted(errors.items()))

    def one(self, raw: RawRecord) -> pa.Table:
        """Return one line as a table. RecordError, with its position, if it is not JSON or does not fit the schema."""
        record = decode_line(raw.data, raw.url, raw.record, raw.start)
        try:
            return self._maker.table([record])
        except RecordError as error:
            place = f"{raw.url}: record {raw.record}, bytes [{raw.start}, {raw.stop})"
            misfit = str(error).removeprefix("record 0: ").removesuffix(f"; {REMEDY}")
            raise RecordError(f"{place}: {misfit}; {_REMEDY}") from None

    def _none(self) -> pa.Table:
        return self._maker.table([])  # pyarrow has no empty column of some types

    def _by_parser(self, data: bytes) -> pa.Table | None:
        """Return the table of pyarrow's parser; None if it may differ from the lines."""
        count = _objects(data)
        if self._parsed is None or not count or len(data) > _MOST:
            return self._none() if count == 0 else None
        try:
            found = pj.read_json(
                pa.BufferReader(data),
                read_options=pj.ReadOptions(use_threads=False, block_size=len(data) + 1),
                parse_options=pj.ParseOptions(explicit_schema=self._parsed, unexpected_field_behavior="error"),
            )
            if found.num_rows != count or not all(map(_is_exact, found.columns)):
                return None
            found.validate(full=True)
        except pa.ArrowException:
            return None
        columns = [_typed(column, field.type) for column, field in zip(found.columns, self.schema, strict=True)]
        return pa.Table.from_arrays(columns, schema=self.schema)


def _pieces(data: bytes) -> Iterator[bytes]:
    """Divide lines into pieces that end with a newline."""
    start = 0
    while len(data) - start > PIECE:
        stop = data.rfind(b"\n", start, start + PIECE) + 1 or data.find(b"\n", start + PIECE) + 1 or len(data)
        yield data[start:stop]
        start = stop
    if start < len(data):
        yield data[start:] if start else data


def _objects(data: bytes) -> int | None:
    """Return the number of lines if all, except empty ones, start and end like objects; else None.

    Then each value is in one line, since `{` cannot follow `}` inside an object.
    """
    letters = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(letters == _NEWLINE)
    if len(data) and letters[-1] != _NEWLINE:
        ends = np.append(ends, len(data))
    starts = np.empty_like(ends)
    starts[:1] = 0
    starts[1:] = ends[:-1] + 1
    is_full = ends > starts
    starts, lasts = starts[is_full], ends[is_full] - 1
    if not len(starts):
        return 0
    lasts = lasts - ((letters[lasts] == _RETURN) & (lasts > starts))
    is_object = (letters[starts] == _OPEN) & (letters[lasts] == _CLOSE)
    return len(starts) if bool(is_object.all()) else None


def _parsed_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type with which the parser reads a column; None if it cannot. Of JSON text it reads only nulls."""
    if is_json(kind):
        return pa.null()
    if isinstance(kind, pa.StructType):
        parts = [(kind.field(place).name, _parsed_type(kind.field(place).type)) for place in range(kind.num_fields)]
        return None if any(part is None for _, part in parts) else pa.struct(parts)
    if isinstance(kind, pa.ListType):
        item = _parsed_type(kind.value_type)
        return kind if item is not None and item.equals(kind.value_type) else None
    plain = (pa.bool_(), pa.int64(), pa.uint64(), pa.float64(), pa.string())
    return kind if kind in plain else None


def _typed(column: Any, kind: pa.DataType) -> Any:
    """Return a parsed column, converted to its type in the schema."""
    if column.type.equals(kind):
        return column
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([_typed(chunk, kind) for chunk in column.chunks], kind)
    if is_json(kind):
        return pa.nulls(len(column), kind)
    fields = [kind.field(place) for place in range(kind.num_fields)]
    arrays = [_typed(column.field(place), field.type) for place, field in enumerate(fields)]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=column.is_null())


def _is_exact(column: Any) -> bool:
    """Return whether all floats of a column equal the numbers in the lines: there is no NaN and no rounded integer."""
    kind = column.type
    if isinstance(column, pa.ChunkedArray):
        return all(map(_is_exact, column.chunks))
    if isinstance(kind, pa.StructType):
        return all(map(_is_exact, column.flatten()))
    if isinstance(kind, pa.ListType):
        return _is_exact(column.flatten())
    if not pa.types.is_floating(kind):
        return True
    values = column.drop_null().to_numpy(zero_copy_only=False)
    return bool((np.abs(values) < EXACT_INT).all())
