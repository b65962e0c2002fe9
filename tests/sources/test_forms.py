"""The forms of records: objects, tables or records with places; and files of columns, cut and read by rows."""

from __future__ import annotations

import dataclasses
import gzip
import math
import os
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.own_format import TextLines
from ledgerbeam.errors import ArchiveError, ChangedSourceError, IndexMismatchError, RecordError, SourceError, UsageError
from ledgerbeam.io import (
    ArrowFormat,
    Format,
    JsonlFormat,
    ParquetFormat,
    Reader,
    Sample,
    TarFormat,
    publish_bytes,
    write_index,
)
from ledgerbeam.io.columns.format import ColumnFileFormat
from ledgerbeam.io.formats import streamed as blocks_module
from ledgerbeam.io.formats.format import RowGroup, StreamSpan
from ledgerbeam.io.formats.registry import format_named
from ledgerbeam.io.formats.streamed import HeldBlock, LineBlocks
from ledgerbeam.io.index.file import IndexLocation
from ledgerbeam.io.index.reader import RawRecord
from ledgerbeam.io.lines.jsonl import JsonLines
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.io.tar.reader import TarReader
from ledgerbeam.io.tar.writer import encode_tar
from ledgerbeam.ledger import Source
from ledgerbeam.ledger.model.task import pack_sources
from ledgerbeam.sources import FileSources, TaskLimits, Unreadable
from ledgerbeam.sources.files import ColumnFile
from ledgerbeam.sources.forms import (
    PartialTable,
    PlacedForm,
    PlacedPart,
    PlacedRecords,
    RecordBlocks,
    RecordForm,
    blocks_of,
)
from ledgerbeam.sources.kind import LEAST_ROW, MOST_EXPANSION, Opened, plan_rows
from tests.io.columns.tables import arrow_bytes, parquet_bytes, table
from tests.io.conftest import Place, place, s3_place  # noqa: F401 - fixtures
from tests.io.formats.test_contract import Prefixed
from tests.sources.data import listed, put, put_index, tar

ROWS = JsonlFormat(schema='{"columns":{"id":"int64"}}')
LINES = b'{"id":0}\n{"id":1}\n{"id":2}\n'
CONTENTS = {
    "a.parquet": parquet_bytes(pa.table({"id": [0, 1, 2]})),
    "a.prefixed": b"".join(map(Prefixed().encode_record, ["0a", "310a0a32", ""])),
    "a.tar": tar("x.json", "y.json"),
}


class _OwnReader:
    """Has only the required members of a `Reader`: neither blocks of records nor their bytes."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        for name in ("url", "is_indexed", "read_many", "raw", "read_span", "read_raw", "close"):
            setattr(self, name, getattr(reader, name))

    def __len__(self) -> int:
        return len(self._reader)

    def __getitem__(self, item: Any, /) -> Any:
        return self._reader[item]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._reader)


@dataclass(frozen=True)
class OwnLines(TextLines):
    """Lines with a reader of their own."""

    name = "own"
    suffixes = (".own",)

    def open(self, *given: Any, **named: Any) -> Any:
        return _OwnReader(super().open(*given, **named))


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


MANY_LINES = b"".join(b'{"id": %d}\n\n' % number for number in range(50)) + b'{"id": "last"}'


@pytest.mark.parametrize("size", [0, 1, 7, 40, 10_000])
@pytest.mark.parametrize("data", [MANY_LINES, MANY_LINES + b"\n", b"", b"\n", b"1"])
def test_a_pass_over_lines_gives_what_a_list_holds(monkeypatch: pytest.MonkeyPatch, size: int, data: bytes) -> None:
    monkeypatch.setattr(blocks_module, "BLOCK_BYTES", size)
    lines = data.count(b"\n") + (data[-1:] not in (b"", b"\n"))
    for span in (None, StreamSpan(7, lines, 100, 100 + len(data))):
        records = RecordBlocks([LineBlocks(JsonlFormat(), data, "a.jsonl", span)])
        for _ in range(2):
            assert records.listed() == JsonlFormat().split(data, "a.jsonl")
        assert records.passed == len(JsonlFormat().split(data, "a.jsonl"))
        assert pickle.loads(pickle.dumps(records)).listed() == records.marking().listed() == records.listed()
        if size < 10 and len(data) > 100:
            assert len(list(records)) > 40


@pytest.mark.parametrize("size", [1, 10_000])
def test_a_line_that_cannot_be_decoded_has_its_place_however_blocks_are_cut(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(blocks_module, "BLOCK_BYTES", size)
    data = b'{"id": 0}\n{"id"}\n{"id": 2}\n'
    records = RecordBlocks([LineBlocks(JsonlFormat(), data, "a.jsonl", StreamSpan(5, 3, 1000, 1000 + len(data)))])
    with pytest.raises(RecordError, match=r"a\.jsonl: record 6, bytes \[1010, 1016\)"):
        records.listed()
    assert records.passed is None
    first, broken, last = records.marking().listed()
    assert (first, last) == ({"id": 0}, {"id": 2})
    assert type(broken) is Unreadable
    assert "record 6, bytes [1010, 1016)" in broken.error


def test_who_asks_for_marks_changes_nothing_for_others() -> None:
    records = RecordBlocks([LineBlocks(JsonlFormat(), b"1\n{\n", "a.jsonl", StreamSpan(0, 2, 0, 4))])
    assert type(records.marking().listed()[1]) is Unreadable
    with pytest.raises(RecordError, match=r"a\.jsonl: record 1"):
        records.listed()


def test_lines_of_another_number_than_the_span_says_are_an_error() -> None:
    blocks = LineBlocks(JsonlFormat(), b"1\n2\n", "a.jsonl", StreamSpan(0, 3, 0, 4))
    with pytest.raises(ArchiveError, match=r"expected records \[0, 3\)"):
        list(blocks.decoded())


def test_parts_follow_each_other() -> None:
    records = RecordBlocks([HeldBlock([1, Unreadable("no")]), LineBlocks(JsonlFormat(), b"2\n3\n", "a.jsonl")])
    assert list(chain.from_iterable(blocks_of(records))) == [1, Unreadable("no"), 2, 3]
    assert list(blocks_of([4, 5])) == [[4, 5]]


def test_samples_are_decoded_one_after_the_other(tmp_path: Path) -> None:
    samples = [Sample(f"s{number}", {"txt": b"%d" % number, "json": b"{}"}) for number in range(20)]
    path = tmp_path / "a.tar"
    data, offsets = encode_tar(samples, group="key")
    path.write_bytes(data)
    write_index(f"{path}.idx", offsets)
    reader = TarReader(str(path), group="key")
    for start, stop in ((0, 20), (3, 9), (4, 4)):
        found: list[list[Any]] = list(reader.read_blocks(start, stop).decoded())
        assert found == [[sample] for sample in samples[start:stop]]
    assert list(pickle.loads(pickle.dumps(reader.read_blocks(3, 5))).decoded()) == [[samples[3]], [samples[4]]]
    moved = offsets.copy()
    moved[10] += 512
    write_index(f"{path}.idx", moved)
    passing = TarReader(str(path), group="key").read_blocks(0, 20).decoded()
    assert [next(passing) for _ in range(8)] == [[sample] for sample in samples[:8]]
    with pytest.raises((IndexMismatchError, SourceError), match="expected sample"):
        list(passing)


JSONL: Any = format_named("jsonl")
SPARSE_LINES = b'{"a": 1}\n\n \t\r\n{"a":3}\r\n[]\n\n{"a": 36893488147419103232}'
VALUES = {0: {"a": 1}, 3: {"a": 3}, 4: [], 6: {"a": 2**65}}


def read(source: Source, limits: TaskLimits, index: Path) -> list[tuple[str, int, Any, bytes]]:
    """Return URL, number, record and bytes of all records of a source, in steps."""
    kind = FileSources(form="placed", index=IndexLocation(root=str(index))).kind_of(source)
    cut = kind.cut(source, limits)
    opened = kind.open(cut.source)
    found: list[Any] = []
    for start, stop in cut.spans:
        for part in opened.read_span(start, stop).parts:
            rows = zip(part.numbers.tolist(), part.records(), part.payloads(), strict=True)
            found += [(part.url, number, record, bytes(data)) for number, record, data in rows]
    opened.close()
    return found


@pytest.mark.parametrize("records", [1, 2, 100])
def test_lines_have_the_numbers_of_lines_and_blank_ones_count(tmp_path: Path, records: int) -> None:
    source = put(tmp_path / "in" / "a.jsonl", SPARSE_LINES)
    found = read(source, TaskLimits(task_records=records), tmp_path / "index")
    assert {number: record for _, number, record, _ in found} == VALUES
    assert [number for _, number, _, _ in found] == list(VALUES)
    assert [data for _, _, _, data in found] == [line for line in SPARSE_LINES.split(b"\n") if line.strip()]
    assert {url for url, _, _, _ in found} == {source.url}


def test_each_file_of_a_pack_has_numbers_of_its_own(tmp_path: Path) -> None:
    files = [put(tmp_path / "in" / f"{name}.jsonl", SPARSE_LINES) for name in "ab"]
    (pack,) = pack_sources(files, target_bytes=10**6)
    found = read(pack, TaskLimits(task_records=100), tmp_path / "index")
    assert [(url, number) for url, number, _, _ in found] == [(file.url, n) for file in files for n in VALUES]


@pytest.mark.parametrize("records", [1, 2, 100])
def test_samples_and_rows_have_their_numbers(tmp_path: Path, records: int) -> None:
    samples = [Sample(f"s{n}", {"txt": b"%d" % n}) for n in range(5)]
    tar = put(tmp_path / "in" / "a.tar", encode_tar(samples)[0])
    found = read(tar, TaskLimits(task_records=records), tmp_path / "index")
    assert [(number, dict(record)) for _, number, record, _ in found] == list(enumerate(map(dict, samples)))
    table = pa.table({"a": [1.5, None, math.nan]})
    path = tmp_path / "in" / "a.parquet"
    pq.write_table(table, path, row_group_size=2)
    rows = read(put(path, path.read_bytes()), TaskLimits(task_records=records), tmp_path / "index")
    assert [number for _, number, _, _ in rows] == [0, 1, 2]
    assert [record for _, _, record, _ in rows][:2] == [{"a": 1.5}, {"a": None}]
    assert rows[2][3] == b'\x01{"a":NaN}'


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_line_that_is_no_json_is_named_by_its_number_and_place(tmp_path: Path, name: str) -> None:
    data = b'{"a": 1}\n\n{"a": }\n{"a": 2}\n{\n'
    source = put(tmp_path / "in" / name, gzip.compress(data) if name.endswith(".gz") else data)
    put_index(source)
    kind = FileSources(form="placed").kind_of(source)
    cut = kind.cut(source, TaskLimits(task_records=2))
    opened = kind.open(cut.source)
    parts = [opened.read_span(start, stop).parts[0] for start, stop in cut.spans]
    assert list(parts[0].records()) == [{"a": 1}]
    for part, where in ((parts[1], r"record 2, bytes \[10, 17\)"), (parts[2], r"record 4, bytes \[27, 28\)")):
        with pytest.raises(RecordError, match=f"^{source.url}: {where}: expected JSON"):
            list(part.records())
    assert list(parts[2].payloads()) == [b"{"]


def test_lines_in_memory_are_counted_from_the_first_of_their_span() -> None:
    form = PlacedForm()
    whole = form.split(JSONL, SPARSE_LINES, "/a.jsonl")
    assert whole.places.tolist() == list(VALUES)
    assert whole[:] == list(VALUES.values())
    assert (len(whole), whole[1], whole[-1]) == (4, {"a": 3}, {"a": 2**65})
    some = form.split(JSONL, b"1\n\n2\n", "/a.jsonl", StreamSpan(7, 3, 100, 105))
    assert some.places.tolist() == [7, 9]
    assert some.parts[0].span == StreamSpan(7, 3, 100, 105)
    for data in (b"1\n2\n", b"1\n\n2\n3\n"):
        with pytest.raises(ArchiveError, match=r"^/a\.jsonl: expected records \[7, 10\) in bytes \[100, 105\)"):
            form.split(JSONL, data, "/a.jsonl", StreamSpan(7, 3, 100, 105))
    empty = form.split(JSONL, b"", "/a.jsonl")
    assert (len(empty), empty.places.tolist()) == (0, [])


def test_samples_in_memory_are_counted_from_the_first_of_their_span() -> None:
    tar: Any = format_named("tar")
    data = encode_tar([Sample(f"s{n}", {"txt": b"a"}) for n in range(2)])[0]
    assert PlacedForm().split(tar, data, "/a.tar").places.tolist() == [0, 1]
    assert PlacedForm().split(tar, data, "/a.tar", StreamSpan(5, 2, 0, len(data))).places.tolist() == [5, 6]


class Skipping:
    """A reader of a format that leaves some records out of a span."""

    url = "/in/a.own"

    def read_span(self, start: int, stop: int) -> list[int]:
        return [number for number in range(start, stop) if number != 1]

    def read_raw(self, start: int, stop: int) -> list[RawRecord]:
        return [RawRecord(self.url, number, number, number + 1, b"x") for number in self.read_span(start, stop)]


class SkippingFormat:
    """A format of bytes that are records, but for spaces, which it leaves out."""

    def split(self, data: bytes, url: str, span: StreamSpan | None = None) -> list[str]:
        return [character for character in data.decode() if character != " "]

    def split_raw(self, data: bytes, url: str, span: StreamSpan | None = None) -> list[RawRecord]:
        first = 0 if span is None else span.record
        raws = [RawRecord(url, first + at, at, at + 1, data[at : at + 1]) for at in range(len(data))]
        return [raw for raw in raws if raw.data != b" "]


def test_where_a_format_leaves_records_out_the_others_keep_their_numbers() -> None:
    kind, reader = object(), Skipping()
    found = PlacedForm().span(kind, reader, 0, 3)  # type: ignore[arg-type]
    assert (found.places.tolist(), found[:]) == ([0, 2], [0, 2])
    span = StreamSpan(7, 3, 100, 103)
    found = PlacedForm().split(SkippingFormat(), b"a c", "/in/a.own", span)  # type: ignore[arg-type]
    assert (found.places.tolist(), found[:]) == ([7, 9], ["a", "c"])


def test_records_are_read_once_where_none_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second look at their bytes would only find the numbers that follow each other."""
    monkeypatch.setattr(Skipping, "read_raw", lambda *_: pytest.fail("they were read again"))
    found = PlacedForm().span(object(), Skipping(), 2, 5)  # type: ignore[arg-type]
    assert (found.places.tolist(), found[:]) == ([2, 3, 4], [2, 3, 4])
    monkeypatch.setattr(SkippingFormat, "split_raw", lambda *_: pytest.fail("they were taken apart again"))
    for span, first in ((None, 0), (StreamSpan(7, 3, 100, 103), 7)):
        found = PlacedForm().split(SkippingFormat(), b"abc", "/in/a.own", span)  # type: ignore[arg-type]
        assert (found.places.tolist(), found[:]) == ([first, first + 1, first + 2], ["a", "b", "c"])


@pytest.mark.parametrize("form", ["lines", "samples", "rows", "results"])
def test_places_are_integers_of_64_bits_without_a_sign(tmp_path: Path, form: str) -> None:
    """With signed ones NumPy makes floats of them, which are not exact in a pack of many files."""
    tar = encode_tar([Sample("s", {"txt": b"a"})])[0]
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    if form == "results":
        found = [PlacedRecords([PlacedPart.of_results("task", [1])])]
    else:
        rows = (tmp_path / "a.parquet").read_bytes()
        kinds = {"lines": ("a.jsonl", b"1\n"), "samples": ("a.tar", tar), "rows": ("a.parquet", rows)}
        source = put(tmp_path / "in" / kinds[form][0], kinds[form][1])
        sources = FileSources(form="placed")
        found = []
        for one in (source, Source.pack([source])):
            kind = sources.kind_of(one)
            opened = kind.open(kind.cut(one, TaskLimits()).source)
            found.append(opened.read_span(0, 1))
            opened.close()
    for records in found:
        assert records.places.tolist() == [0]
        assert records.places.dtype == np.uint64


def test_what_a_function_has_made_is_numbered_from_the_first_of_its_task() -> None:
    part = PlacedPart.of_results("task", [{"a": 1}, 2])
    assert (part.numbers.tolist(), list(part.records()), part.span) == ([0, 1], [{"a": 1}, 2], None)
    data = b'{"a": 1}\n{"a"}\n'
    part = PlacedPart.of_results("task", JsonLines(data, np.array([0, 9, 15], np.uint64)))
    assert (part.numbers.tolist(), list(part.payloads())) == ([0, 1], [b'{"a": 1}', b'{"a"}'])
    assert part.span == StreamSpan(0, 2, 0, len(data))
    with pytest.raises(RecordError, match=r"^task: record 1, bytes \[9, 14\): expected JSON"):
        list(part.records())


def test_records_of_several_files_are_one_sequence() -> None:
    one, other = (PlacedPart(url, np.array([3, 8], np.uint64), [url, 1]) for url in "ab")
    joined = PlacedForm().joined([PlacedRecords([one]), PlacedRecords([]), PlacedRecords([other])])
    assert joined[:] == ["a", 1, "b", 1]
    assert joined.places.tolist() == [3, 8, 2**40 + 3, 2**40 + 8]
    assert PlacedRecords([]).places.tolist() == []
    assert PlacedRecords([]).places.dtype == np.uint64
    assert (len(joined), list(PlacedPart("/a", np.zeros(0, np.uint64), []).records())) == (4, [])


def test_a_record_that_cannot_be_moved_is_named() -> None:
    part = PlacedPart("/a.parquet", np.array([3, 8], np.uint64), [1, object()])
    with pytest.raises(RecordError, match=r"^/a\.parquet: record 8: a value of type object cannot be written as JSON"):
        part.payloads()


@pytest.mark.parametrize("line", [b'\x01{"a": 1}', b"\0" * 9, b"\0"])
def test_a_line_that_is_no_json_is_not_moved_as_a_record_of_another_format(line: bytes) -> None:
    """A shuffle does not decode lines, and run files recognize JSON by its first byte."""
    placed = PlacedForm().split(JSONL, b"1\n\n" + line + b"\n2\n", "/a.jsonl")
    with pytest.raises(RecordError, match=r"^/a\.jsonl: record 2, bytes \[3, \d+\): expected JSON"):
        placed.parts[0].payloads()


def test_numbers_of_lines_are_exact_however_long_they_are() -> None:
    """A key of 20 digits is that key, and not the nearest number that a float can hold."""
    number = 123_456_789_012_345_678_901
    placed = PlacedForm().split(JSONL, b'{"a": %d}\n' % number, "/a.jsonl")
    assert list(placed.parts[0].records()) == [{"a": number}]


FILES = {"a.parquet": parquet_bytes(table(90, "int64", "string"), row_group_size=10)}
FILES["a.arrow"] = arrow_bytes(table(90, "int64", "string"), 10)


def size_of(group: RowGroup) -> int:
    return max(group.size, group.rows * LEAST_ROW, group.plain_size // MOST_EXPANSION)


GROUPS = st.lists(st.builds(RowGroup, st.integers(0, 50), st.integers(0, 5000), st.integers(0, 50_000)), max_size=12)


@given(GROUPS, st.none() | st.integers(1, 10_000), st.none() | st.integers(1, 100))
def test_spans_are_all_rows_in_order(groups: list[RowGroup], task_bytes: int | None, task_records: int | None) -> None:
    spans = plan_rows(groups, task_bytes=task_bytes, task_records=task_records)
    count = sum(group.rows for group in groups)
    edges = [start for start, _ in spans] + [stop for _, stop in spans[-1:]]
    assert edges == sorted(set(edges))
    assert spans == list(pairwise(edges))
    assert (edges[0], edges[-1]) == (0, count) if spans else count == 0
    if task_records:
        assert all(stop - start <= task_records for start, stop in spans)
    if task_bytes:
        firsts = accumulate((group.rows for group in groups), initial=0)
        sizes = [(first, first + g.rows, size_of(g)) for g, first in zip(groups, firsts, strict=False)]
        whole = {row for first, end, size in sizes if size <= task_bytes for row in range(first + 1, end)}
        assert task_records or whole.isdisjoint(edges)
        for start, stop in spans:
            held = [size for first, end, size in sizes if start <= first and end <= stop and end > first]
            assert len(held) < 2 or sum(held) <= task_bytes


def test_row_groups_stay_whole_until_one_exceeds_a_task() -> None:
    small, large = RowGroup(10, 1000), RowGroup(10, 3500)
    assert plan_rows([small] * 4, task_bytes=2000) == [(0, 20), (20, 40)]
    assert plan_rows([small] * 4, task_bytes=1900) == [(0, 10), (10, 20), (20, 30), (30, 40)]
    assert plan_rows([small, large, small], task_bytes=1000) == list(pairwise([0, 10, 12, 15, 17, 20, 30]))
    assert plan_rows([RowGroup(1000, 1)], task_bytes=LEAST_ROW * 500) == [(0, 500), (500, 1000)]
    assert plan_rows([RowGroup(2, 10**6)], task_bytes=1) == [(0, 1), (1, 2)]
    assert plan_rows([RowGroup(100, 10**4, 8 * 10**4)], task_bytes=10**4) == [(0, 100)]
    assert plan_rows([RowGroup(100, 10**3, 16 * 10**4)], task_bytes=10**4) == [(0, 50), (50, 100)]
    empty = RowGroup(0, 200)  # it takes room, too
    assert plan_rows([RowGroup(10, 900), empty, RowGroup(10, 700)], task_bytes=1000) == [(0, 10), (10, 20)]


@given(GROUPS, st.integers(1, 10_000))
def test_a_span_has_as_many_whole_row_groups_as_fit(groups: list[RowGroup], task_bytes: int) -> None:
    edges, first, held, is_open = {0}, 0, 0, False
    for rows, size in ((group.rows, size_of(group)) for group in groups):
        if is_open and held + size <= task_bytes:
            held += size
        else:
            parts = min(-(-size // task_bytes), rows) if size > task_bytes else 1
            edges |= {first + part * rows // parts for part in range(parts)}
            held, is_open = size, size <= task_bytes
        first += rows
    assert plan_rows(groups, task_bytes=task_bytes) == list(pairwise(sorted(edges | {first})))


def columns_of(path: Path, found: pa.Table) -> Source:
    pq.write_table(found, path)
    return listed(path)


def test_one_file_with_the_columns_is_enough_and_few_are_looked_at(tmp_path: Path) -> None:
    sources = FileSources(columns=("x",))
    has = columns_of(tmp_path / "has.parquet", pa.table({"x": [1]}))
    lacks = [columns_of(tmp_path / f"{number}.parquet", pa.table({f"y{number}": [1]})) for number in range(9)]
    other = Source("/data/a.jsonl", 3, "7")  # there is nothing to look at
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    bad = listed(tmp_path / "bad.parquet")
    for good in ([], [other], [bad], [has], [*lacks[:7], *[other] * 9, has], [bad, *lacks[:6], has, lacks[7]]):
        sources.check_columns(good)
    for few in ([lacks[0]], [lacks[0], other, bad, lacks[1]], [*lacks[:8], has]):
        with pytest.raises(UsageError, match=r"0\.parquet.* has no column 'x'; its columns: 'y0'"):
            sources.check_columns(few)


def test_formats_with_options_keep_them_beside_the_chosen_columns() -> None:
    sources = FileSources((TarFormat("key"), ParquetFormat(row_group_bytes=7)), columns=("x",))
    assert sources.type_of("/data/a.tar").format == TarFormat("key")
    assert sources.type_of("/data/a.parquet").format == ParquetFormat(("x",), row_group_bytes=7)
    assert sources.type_of("/data/a.arrow").format == ArrowFormat(("x",))
    plain = FileSources((TarFormat("key"), ParquetFormat(row_group_bytes=7)))
    assert plain.configured == plain.formats


@pytest.mark.parametrize("keys", [(), ("x",), ("x.y",)])
def test_columns_are_read_in_the_version_that_was_listed(tmp_path: Path, keys: tuple[str, ...]) -> None:
    folder = ObjectFolder(f"memory://{tmp_path.name}{len(keys)}")
    folder.create("a.parquet", (tmp_path / columns_of(tmp_path / "a.parquet", pa.table({"x": [4]})).url).read_bytes())
    source = listed(f"{folder.url}/a.parquet")
    sources = FileSources(keys=keys)
    reader = sources.open_file(source)
    assert list(reader.read_span(0, 1)) == [{"x": 4}]
    reader.close()
    with pytest.raises(ChangedSourceError):
        sources.open_file(dataclasses.replace(source, version="1")).read_span(0, 1)


def test_an_object_that_is_opened_for_its_schema_and_for_its_rows_is_of_one_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns_of(tmp_path / "a.parquet", pa.table({"x": [4]}))
    columns_of(tmp_path / "b.parquet", pa.table({"x": [5]}))
    folder = ObjectFolder(f"memory://{tmp_path.name}")
    folder.create("a.parquet", (tmp_path / "a.parquet").read_bytes())
    source = listed(f"{folder.url}/a.parquet")
    real = ParquetFormat.open_columns

    def replacing(kind: ParquetFormat, *asked: Any, **named: Any) -> Any:
        found = real(kind, *asked, **named)
        if not kind.columns:  # all columns are read, as in the schema
            assert found.schema.names == ["x"]
            folder.delete(["a.parquet"])
            folder.create("a.parquet", (tmp_path / "b.parquet").read_bytes())
        return found

    monkeypatch.setattr(ParquetFormat, "open_columns", replacing)
    with pytest.raises(ChangedSourceError):
        FileSources(keys=("x.y",)).open_file(source).read_span(0, 1)


def rows_of(sources: FileSources, source: Source) -> list[object]:
    kind = sources.kind_of(source)
    cut = kind.cut(source, TaskLimits())
    opened = kind.open(cut.source)
    rows = [row for start, stop in cut.spans for row in opened.read_span(start, stop)]
    opened.close()
    return rows


@pytest.mark.parametrize(
    ("keys", "columns", "expected"),
    [
        ((), (), {"a": {"b": 1, "c": 2}, "a.d": 3, "x": 4, "y": 5}),
        (("x",), (), {"x": 4}),
        (("x", "y"), (), {"x": 4, "y": 5}),
        (("a.b", "x"), (), {"a": {"b": 1, "c": 2}, "x": 4}),
        (("a.d",), (), {"a.d": 3}),
        (("x",), ("y",), {"y": 5}),
        (("a.b",), ("y",), {"y": 5}),
    ],
)
def test_of_columns_those_are_read_that_are_chosen_or_looked_up(
    tmp_path: Path, keys: tuple[str, ...], columns: tuple[str, ...], expected: dict[str, object]
) -> None:
    """A key a.b is a column, or a value in the column a."""
    table = pa.table({"a": [{"b": 1, "c": 2}], "a.d": [3], "x": [4], "y": [5]})
    sources = FileSources(keys=keys, columns=columns)
    assert rows_of(sources, columns_of(tmp_path / "a.parquet", table)) == [expected]
    configured = {kind.name: kind.columns for kind in sources.configured if isinstance(kind, ColumnFileFormat)}
    chosen = columns or (() if any("." in key for key in keys) else keys)
    assert configured == ({"parquet": chosen, "arrow": chosen} if chosen else {})


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_read_by_spans_wherever_it_lies(place: Place, name: str) -> None:  # noqa: F811
    publish_bytes(place / name, FILES[name], place.options)
    sources = FileSources(storage_options=place.options or {}, columns=("int64",))
    source = listed(place / name, place.options)
    kind = sources.kind_of(source)
    assert isinstance(kind, ColumnFile)
    cut = kind.cut(source, TaskLimits(task_records=25))
    assert [stop - start for start, stop in cut.spans] == [25, 25, 25, 15]
    opened = kind.open(cut.source)
    rows = [row for start, stop in cut.spans for row in opened.read_span(start, stop)]
    assert rows == [{"int64": number} for number in range(90)]
    assert opened.read_each(80, 90) == rows[80:]
    assert [raw.record for raw in opened.read_raw(3, 5)] == [3, 4]
    opened.close()


def test_a_file_that_was_replaced_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(FILES["a.parquet"])
    source = listed(path)
    os.utime(path, ns=(1, 1))
    with pytest.raises(ChangedSourceError, match=r"a\.parquet: changed since it was listed"):
        FileSources().kind_of(source).cut(source, TaskLimits(16))


def test_columns_are_refused_where_there_are_none(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(FILES["a.parquet"])
    with pytest.raises(UsageError, match=r"has no column 'x'; its columns: 'int64', 'string'"):
        FileSources(columns=("x",)).kind_of(listed(path)).cut(listed(path), TaskLimits(16))
    with pytest.raises(UsageError, match=r"a\.jsonl: --columns x is for files of columns"):
        FileSources(columns=("x",)).check_names(["a.parquet", "a.jsonl"])
