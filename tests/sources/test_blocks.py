"""Records in blocks: every pass yields the records of a list, and finds undecodable records in their blocks."""

from __future__ import annotations

import pickle
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.errors import ArchiveError, IndexMismatchError, RecordError, SourceError
from ledgerbeam.io import Sample, write_index
from ledgerbeam.io.formats import blocks as blocks_module
from ledgerbeam.io.formats.blocks import HeldBlock, LineBlocks
from ledgerbeam.io.formats.format import StreamSpan
from ledgerbeam.io.lines.jsonl_format import JsonlFormat
from ledgerbeam.io.lines.jsonl_reader import split_jsonl
from ledgerbeam.io.tar.reader import TarReader
from ledgerbeam.io.tar.writer import encode_tar
from ledgerbeam.sources import Unreadable
from ledgerbeam.sources.forms import RecordBlocks, blocks_of

LINES = b"".join(b'{"id": %d}\n\n' % number for number in range(50)) + b'{"id": "last"}'


@pytest.mark.parametrize("size", [0, 1, 7, 40, 10_000])
@pytest.mark.parametrize("data", [LINES, LINES + b"\n", b"", b"\n", b"1"])
def test_a_pass_over_lines_gives_what_a_list_holds(monkeypatch: pytest.MonkeyPatch, size: int, data: bytes) -> None:
    monkeypatch.setattr(blocks_module, "BLOCK_BYTES", size)
    lines = data.count(b"\n") + (data[-1:] not in (b"", b"\n"))
    for span in (None, StreamSpan(7, lines, 100, 100 + len(data))):
        records = RecordBlocks([LineBlocks(JsonlFormat(), data, "a.jsonl", span)])
        for _ in range(2):
            assert records.listed() == split_jsonl(data, "a.jsonl")
        assert records.passed == len(split_jsonl(data, "a.jsonl"))
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
