"""Raw bytes and places of the records of every kind of source, also of undecodable records."""

from __future__ import annotations

import gzip
import pickle
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest

from ledgerbeam.errors import RecordError, SourceError, UnsupportedShapeError
from ledgerbeam.io import Format, LineFormat, Sample, TarFormat, build_index, publish_bytes
from ledgerbeam.io.formats.streamed import decode_raw
from ledgerbeam.io.index.file import IndexLocation
from ledgerbeam.iterators.job_source import GraphSource
from ledgerbeam.ledger import FailedTask, Source, Task
from ledgerbeam.sources import FileSources, RawRecord, SharSources, Sources, TaskLimits, Unreadable
from ledgerbeam.sources.forms import OnError
from ledgerbeam.sources.kind import RawSpan
from ledgerbeam.transforms.chain.read import _Read
from ledgerbeam.transforms.chain.schedule import StreamedTasks
from tests.sources.data import put, put_index, tar

GOOD = [b'{"id":"a0"}', b'{"id":"\xc3\xa4"}', b" [3]\r", b'{"id":"a3"}', b'"\xe2\x82\xac"']
BROKEN = {1: b'{"id":', 3: b"\xff"}


def with_blanks(records: list[bytes]) -> bytes:
    """Return lines of records, with blank ones between them; the last has no newline."""
    return b"\n \n" + b"\n\r\n".join(records)


def places(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """Return number, first byte, end and bytes of the lines of some data that are not blank."""
    found, start = [], 0
    for number, line in enumerate(data.split(b"\n")):
        if line.strip():
            found.append((number, start, start + len(line), line))
        start += len(line) + 1
    return found


def tasks_of(sources: Sources, source: Source, limits: TaskLimits) -> list[Task | StreamedTasks]:
    """Return the elements that a source is read as."""
    cut = sources.kind_of(source).cut(source, limits)
    tasks = [Task(cut.source, *span, ((number, len(cut.spans)),)) for number, span in enumerate(cut.spans)]
    if cut.stream is None:
        return list(tasks)
    return [StreamedTasks(tuple(tasks), cut.stream.places, cut.stream.format)]


def read(sources: Sources, source: Source, on_error: OnError = "reject", *, task_records: int) -> list[Any]:
    """Read a source as a worker does, and ask for the raw records while each task is in work."""
    reader = _Read(sources, None, on_error)
    found: list[Any] = []
    for element in tasks_of(sources, source, TaskLimits(None, task_records)):
        for task in reader.process(element):
            if isinstance(task, Task):
                assert isinstance(task.raw, RawSpan)
                raws = task.raw()
                again = pickle.loads(pickle.dumps(task)).raw
                assert again() == raws
                found.append((task.records, raws))
            else:
                found.append(task)
    return found


class RawContract(ABC):
    """Checks for every kind of source."""

    is_one_task = False
    """Whether a source is one task, however small tasks are to be."""

    sources: Sources = FileSources()

    @abstractmethod
    def make(self, folder: Path, *, broken: bool) -> tuple[Source, list[RawRecord]]:
        """Write a source of five records, two of which may be undecodable; return its records."""

    def decoded(self, raw: RawRecord) -> Any:
        kind = FileSources().type_of(raw.url).in_one_pass()
        return decode_raw(kind, raw)

    def test_raw_records_are_what_was_decoded(self, tmp_path: Path) -> None:
        source, raws = self.make(tmp_path, broken=False)
        for limit in (100, 2, 1):
            found = read(self.sources, source, "fail", task_records=limit)
            assert [raw for _, part in found for raw in part] == raws
            assert all(len(records) == len(part) for records, part in found)
            self.check([record for records, _ in found for record in records], raws)
            assert len(found) > 1 or self.is_one_task or limit == 100

    def check(self, records: list[Any], raws: list[RawRecord]) -> None:
        assert records == [self.decoded(raw) for raw in raws]

    def test_a_record_that_cannot_be_decoded_leaves_the_others_alone(self, tmp_path: Path) -> None:
        source, raws = self.make(tmp_path, broken=True)
        clean, _ = self.make(tmp_path / "clean", broken=False)
        expected = [record for records, _ in read(self.sources, clean, "fail", task_records=9) for record in records]
        for limit in (100, 2):
            found = read(self.sources, source, task_records=limit)
            records = [record for part, _ in found for record in part]
            assert [raw for _, part in found for raw in part] == raws
            for number, record in enumerate(records):
                if number in BROKEN:
                    assert isinstance(record, Unreadable)
                    assert f"record {raws[number].record}" in record.error
                    assert raws[number].data == BROKEN[number]
                else:
                    assert record == expected[number]

    def test_without_rejects_its_task_fails(self, tmp_path: Path) -> None:
        source, _ = self.make(tmp_path, broken=True)
        found = read(self.sources, source, "fail", task_records=100)
        assert all(isinstance(task, FailedTask) and task.reason == RecordError.__name__ for task in found)


def raw_lines(url: str, data: bytes) -> list[RawRecord]:
    return [RawRecord(url, *place) for place in places(data)]


def samples_of(path: Path, *configured: Format) -> list[RawRecord]:
    data, bounds = path.read_bytes(), map(int, build_index(str(path), configured=configured))
    places = enumerate(pairwise(bounds))
    return [RawRecord(str(path), number, start, stop, data[start:stop]) for number, (start, stop) in places]


def jsonl(*, broken: bool) -> bytes:
    return with_blanks([BROKEN.get(number, line) if broken else line for number, line in enumerate(GOOD)])


class TestLines(RawContract):
    compressed = False

    def make(self, folder: Path, *, broken: bool) -> tuple[Source, list[RawRecord]]:
        data = jsonl(broken=broken)
        path = folder / ("a.jsonl.gz" if self.compressed else "a.jsonl")
        source = put(path, gzip.compress(data) if self.compressed else data)
        return source, raw_lines(source.url, data)


class TestCompressedLinesInOnePass(TestLines):
    compressed = True


class TestCompressedLinesByPosition(TestCompressedLinesInOnePass):
    def make(self, folder: Path, *, broken: bool) -> tuple[Source, list[RawRecord]]:
        source, raws = super().make(folder, broken=broken)
        put_index(source)
        return source, raws


class TestPack(RawContract):
    is_one_task = True

    def make(self, folder: Path, *, broken: bool) -> tuple[Source, list[RawRecord]]:
        """Write lines, a compressed file of lines, and an archive, which does not depend on the others."""
        lines = [BROKEN.get(number, line) if broken else line for number, line in enumerate(GOOD)]
        parts = with_blanks(lines[:2]), with_blanks(lines[2:])
        first = put(folder / "a.jsonl", parts[0])
        second = put(folder / "b.jsonl.gz", gzip.compress(parts[1]))
        third = put(folder / "c.tar", tar("x.a.json", "x.a.txt", "y.a.json", "y.a.txt"))
        samples = samples_of(folder / "c.tar")
        raws = raw_lines(first.url, parts[0]) + raw_lines(second.url, parts[1]) + samples
        return Source.pack([first, second, third]), raws

    def check(self, records: list[Any], raws: list[RawRecord]) -> None:
        super().check(records[:5], raws[:5])
        assert records[5:] == [Sample(key, {"json": b"{} ", "txt": b"{} "}) for key in ("x.a", "y.a")]


@dataclass(frozen=True)
class Rows(LineFormat):
    """JSON values between bars, of another package."""

    name = "rows"
    suffixes = (".rows",)

    def decode(self, data: bytes) -> Any:
        if data.count(b"|") != 2:
            raise ValueError("expected two bars")
        return orjson.loads(data.strip(b"|\r\n"))

    def encode_record(self, record: Any) -> bytes:
        return b"|" + orjson.dumps(record) + b"|\n"


class TestOwnFormat(RawContract):
    sources = FileSources((Rows(),))

    def make(self, folder: Path, *, broken: bool) -> tuple[Source, list[RawRecord]]:
        lines = [BROKEN[number] if broken and number in BROKEN else b"|" + GOOD[number] + b"|\n" for number in range(5)]
        data, stop, raws = b"", 0, []
        url = str(folder / "a.rows")
        for number, line in enumerate(lines):
            line = line if line.endswith(b"\n") else line + b"\n"  # noqa: PLW2901
            data += line
            raws.append(RawRecord(url, number, stop, stop + len(line), line))
            stop += len(line)
        return put(folder / "a.rows", data), raws

    def decoded(self, raw: RawRecord) -> Any:
        return decode_raw(Rows(), raw)

    def test_a_record_that_cannot_be_decoded_leaves_the_others_alone(self, tmp_path: Path) -> None:
        """The newline is a part of a record of such a format."""
        source, raws = self.make(tmp_path, broken=True)
        for records, found in read(self.sources, source, task_records=5):
            assert found == raws
            assert [type(record) is Unreadable for record in records] == [number in BROKEN for number in range(5)]


class TestShar(RawContract):
    sources = SharSources()
    compressed = False

    def make(self, folder: Path, *, broken: bool) -> tuple[Source, list[RawRecord]]:
        cuts = [BROKEN[number] if broken and number in BROKEN else b'{"id":"a%d"}' % number for number in range(5)]
        data = b"\n".join(cuts) + b"\n"
        name = "cuts.000000.jsonl.gz" if self.compressed else "cuts.000000.jsonl"
        file = put(folder / name, gzip.compress(data) if self.compressed else data)
        names = [f"a{number}.{suffix}" for number in range(5) for suffix in ("wav", "json")]
        payload = put(folder / "recording.000000.tar", tar(*names))
        return Source.pack([file, payload]), raw_lines(file.url, data)

    def check(self, records: list[Any], raws: list[RawRecord]) -> None:
        assert [orjson.loads(record["json"]) for record in records] == [self.decoded(raw) for raw in raws]
        assert all("recording.wav" in record for record in records)

    def test_a_blank_line_among_cuts_fails_the_task(self, tmp_path: Path) -> None:
        """It is no cut, but counts as one: the payloads lie by position."""
        source, _ = self.make(tmp_path, broken=False)
        cuts = source.members[0]
        data = b'{"id":"a0"}\n\n{"id":"a2"}\n{"id":"a3"}\n{"id":"a4"}\n'
        source = Source.pack([put(Path(cuts.url), gzip.compress(data) if self.compressed else data), source.members[1]])
        SharSources().kind_of(source).cut(source, TaskLimits(None, 9))
        if self.compressed:
            with pytest.raises(SourceError, match="as many as cuts"):
                SharSources().kind_of(source).open(source)
            return
        opened = SharSources().kind_of(source).open(source)
        assert isinstance(opened.read_each(0, 5)[1], Unreadable)
        with pytest.raises(SourceError, match="blank"):
            opened.read_raw(0, 5)


class TestSharOfCompressedCuts(TestShar):
    compressed = True


@pytest.mark.parametrize("group", ["auto", "key", "pairs"])
def test_the_raw_bytes_of_samples_are_those_of_the_archive(tmp_path: Path, group: Any) -> None:
    source = put(tmp_path / "a.tar", tar("x.json", "x.txt", "y.json", "y.txt", "z.json", "z.txt"))
    expected = samples_of(tmp_path / "a.tar", TarFormat(group))
    assert len(expected) == 3
    sources = FileSources((TarFormat(group),), IndexLocation(root=str(tmp_path / "index")))
    for records, raws in read(sources, source, task_records=2):
        assert raws == expected[: len(records)] or raws == expected[-len(records) :]
    packed = put(tmp_path / "a.tar.gz", gzip.compress((tmp_path / "a.tar").read_bytes()))
    found = [raw for _, raws in read(sources, packed, task_records=2) for raw in raws]
    assert [(raw.record, raw.start) for raw in found] == [(raw.record, raw.start) for raw in expected]
    assert [raw.data for raw in found[:2]] == [raw.data for raw in expected[:2]]


def test_an_archive_that_is_cut_off_fails_the_task(tmp_path: Path) -> None:
    """Nothing that is not about one record is a reject."""
    whole = tar("x.json", "x.txt", "y.json", "y.txt")
    offsets = build_index(put(tmp_path / "a.tar", whole).url)
    source = put(tmp_path / "a.tar", whole[:1024] + bytes(1024) + whole[2048:])
    put_index(source, offsets)
    (failed,) = read(FileSources(build_index=False), source, task_records=9)
    assert isinstance(failed, FailedTask)
    assert failed.reason == "IndexMismatchError"


def test_a_cut_off_stream_fails_the_tasks_behind_it(tmp_path: Path) -> None:
    source = put(tmp_path / "a.jsonl.gz", gzip.compress(jsonl(broken=True)))
    (streamed,) = tasks_of(FileSources(), source, TaskLimits(None, 2))
    publish_bytes(source.url, gzip.compress(jsonl(broken=True)[:20]))
    reader = _Read(FileSources(), None, "reject")
    assert {type(task) for task in reader.process(streamed)} == {FailedTask}


def test_the_items_of_a_graph_lie_nowhere() -> None:
    source = Source("graph://m/f/epoch-00000", 3, "1")
    opened = GraphSource("m:f").kind_of(source).open(source)
    with pytest.raises(UnsupportedShapeError, match="have no raw bytes"):
        opened.read_raw(0, 1)
