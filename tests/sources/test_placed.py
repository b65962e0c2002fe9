"""Records with their places: their numbers in the files are the same with every way of reading."""

from __future__ import annotations

import gzip
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ledgerbeam.errors import ArchiveError, RecordError
from ledgerbeam.io.formats.format import StreamSpan
from ledgerbeam.io.formats.registry import format_named
from ledgerbeam.io.index.location import IndexLocation
from ledgerbeam.io.index.reader import RawRecord
from ledgerbeam.io.lines.json_lines import JsonLines
from ledgerbeam.io.tar.sample import Sample
from ledgerbeam.io.tar.writer import encode_tar
from ledgerbeam.ledger import Source
from ledgerbeam.ledger.model.task import pack_sources
from ledgerbeam.sources import FileSources
from ledgerbeam.sources.forms import PlacedForm, PlacedPart, PlacedRecords
from ledgerbeam.sources.kind import TaskLimits
from tests.sources.data import put, put_index

JSONL: Any = format_named("jsonl")
LINES = b'{"a": 1}\n\n \t\r\n{"a":3}\r\n[]\n\n{"a": 36893488147419103232}'
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
    source = put(tmp_path / "in" / "a.jsonl", LINES)
    found = read(source, TaskLimits(task_records=records), tmp_path / "index")
    assert {number: record for _, number, record, _ in found} == VALUES
    assert [number for _, number, _, _ in found] == list(VALUES)
    assert [data for _, _, _, data in found] == [line for line in LINES.split(b"\n") if line.strip()]
    assert {url for url, _, _, _ in found} == {source.url}


def test_each_file_of_a_pack_has_numbers_of_its_own(tmp_path: Path) -> None:
    files = [put(tmp_path / "in" / f"{name}.jsonl", LINES) for name in "ab"]
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
    whole = form.split(JSONL, LINES, "/a.jsonl")
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
        name, data = {
            "lines": ("a.jsonl", b"1\n"),
            "samples": ("a.tar", tar),
            "rows": ("a.parquet", (tmp_path / "a.parquet").read_bytes()),
        }[form]
        source = put(tmp_path / "in" / name, data)
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
    with pytest.raises(RecordError, match=r"^/a\.parquet: record 8: a object cannot be written as JSON"):
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
