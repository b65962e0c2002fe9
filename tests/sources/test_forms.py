"""The forms of records: objects, tables or records with places, for readers of all kinds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest

from examples.own_format import TextLines
from ledgerbeam.errors import UsageError
from ledgerbeam.io import Format, JsonlFormat, Reader
from ledgerbeam.io.columns.partial import PartialTable
from ledgerbeam.io.index.reader import RawRecord
from ledgerbeam.ledger import Source
from ledgerbeam.sources import FileSources, TaskLimits
from ledgerbeam.sources.forms import RecordForm
from ledgerbeam.sources.kind import Opened
from tests.io.columns.tables import parquet_bytes
from tests.io.formats.test_contract import Prefixed
from tests.sources.data import put, tar

ROWS = JsonlFormat(schema='{"columns":{"id":"int64"}}')
LINES = b'{"id":0}\n{"id":1}\n{"id":2}\n'
CONTENTS = {
    "a.parquet": parquet_bytes(pa.table({"id": [0, 1, 2]})),
    "a.prefixed": b"".join(map(Prefixed().encode_record, ["0a", "310a0a32", ""])),
    "a.tar": tar("x.json", "y.json"),
}


class _OwnReader:
    """Has only the required members of a `Reader`: neither blocks of records nor their bytes."""

    is_indexed: Literal[True] = True

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.url = reader.url

    def __len__(self) -> int:
        return len(self._reader)

    def __getitem__(self, item: Any, /) -> Any:
        return self._reader[item]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._reader)

    def read_many(self, indices: Any) -> list[Any]:
        return self._reader.read_many(indices)

    def raw(self, index: int) -> bytes:
        return self._reader.raw(index)

    def read_span(self, start: int, stop: int) -> list[Any]:
        return self._reader.read_span(start, stop)

    def read_raw(self, start: int, stop: int) -> list[RawRecord]:
        return self._reader.read_raw(start, stop)

    def close(self) -> None:
        self._reader.close()


@dataclass(frozen=True)
class OwnLines(TextLines):
    """Lines with a reader of their own."""

    name = "own"
    suffixes = (".own",)

    def open(self, *place: Any, **named: Any) -> Reader:
        return _OwnReader(super().open(*place, **named))


def opened(path: Path, data: bytes, form: RecordForm, *configured: Format) -> Opened:
    sources = FileSources(configured, form=form)
    source = put(path, data)
    kind = sources.kind_of(source)
    return kind.open(kind.cut(source, TaskLimits()).source)


@pytest.mark.parametrize(
    ("form", "name", "fetches"),
    [
        ("records", "a.jsonl", True),
        ("records", "a.tar", True),
        ("records", "a.lines", True),
        ("records", "a.own", False),
        ("records", "a.prefixed", False),
        ("records", "a.parquet", False),
        ("arrow", "a.jsonl", False),
        ("placed", "a.jsonl", True),
        ("placed", "a.lines", False),
        ("placed", "a.tar", False),
    ],
)
def test_what_only_fetches_bytes_says_so(tmp_path: Path, form: RecordForm, name: str, *, fetches: bool) -> None:
    """Another thread does that ahead; what also decodes would take the processor from the task that is in work."""
    found = opened(tmp_path / name, CONTENTS.get(name, LINES), form, ROWS, TextLines(), OwnLines(), Prefixed())
    assert found.fetches is fetches
    found.close()


def test_records_that_hold_newlines_are_not_cut_there(tmp_path: Path) -> None:
    found = opened(tmp_path / "a.prefixed", CONTENTS["a.prefixed"], "records", Prefixed())
    assert list(found.read_span(0, 3)) == ["0a", "310a0a32", ""]
    assert list(found.read_span(1, 2)) == ["310a0a32"]
    found.close()


def test_lines_are_read_where_their_reader_only_gives_records(tmp_path: Path) -> None:
    found = opened(tmp_path / "a.own", b"a\n\nc\n", "records", OwnLines())
    assert list(found.read_span(1, 3)) == ["", "c"]
    found.close()


def test_rows_are_tables_of_lines_and_of_columns(tmp_path: Path) -> None:
    lines = opened(tmp_path / "a.jsonl", LINES.replace(b"1", b"x"), "arrow", ROWS)
    assert lines.read_span(2, 3).to_pydict() == {"id": [2]}
    found: PartialTable = lines.read_each(1, 3)
    assert found.table.to_pydict() == {"id": [2]}
    assert list(found.unreadable) == [0]
    lines.close()
    rows = opened(tmp_path / "a.parquet", CONTENTS["a.parquet"], "arrow")
    assert rows.read_span(1, 3).to_pydict() == rows.read_each(1, 3).to_pydict() == {"id": [1, 2]}
    rows.close()


def test_a_file_that_is_no_table_is_named_among_those_of_a_pack(tmp_path: Path) -> None:
    pack = Source.pack([put(tmp_path / "a.jsonl", LINES), put(tmp_path / "b.tar", tar("x.json"))])
    found = FileSources((ROWS,), form="arrow").kind_of(pack).open(pack)
    for read in (found.read_span, found.read_each):
        with pytest.raises(UsageError, match=r"b\.tar: tar cannot be read as Arrow batches"):
            read(0, 2)
