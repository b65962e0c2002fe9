"""The conformance class on each format with an index; damaged `.idx` files, and sources they no longer fit.

A long run: `python -m tests.io.index.test_reader INPUTS [SEED]`. A record that is read without an error must be the
bytes of the source at the offsets in the index.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerbeam.io import JsonlReader, Sample, TarReader, encode_jsonl
from ledgerbeam.io.index.file import check_index, index_bytes
from ledgerbeam.io.index.reader import small_gap
from ledgerbeam.io.lines.formats import JsonlFormat
from ledgerbeam.io.storage.stat import stat
from ledgerbeam.io.tar.format import TarFormat
from ledgerbeam.io.tar.writer import encode_tar
from tests.io.conformance import ReaderConformance
from tests.io.fuzzing import Files, Trial, fuzz_briefly, main


@pytest.mark.usefixtures("implementation")
class TestJsonl(ReaderConformance):
    format = JsonlFormat(threads=2)
    shift = 7

    def records(self, count: int) -> list[Any]:
        return [{"id": i, "text": "wörter " * (i % 40)} for i in range(count)]


@pytest.mark.usefixtures("implementation")
class TestTarPairs(ReaderConformance):
    format = TarFormat()

    def records(self, count: int) -> list[Any]:
        return [Sample(f"d/{i}.x", {"wav": bytes([i % 256]) * (i * 13), "json": b"{}"}) for i in range(count)]

    def key(self, record: Any) -> Any:
        return record.key, list(record.items())


class TestTarKeys(TestTarPairs):
    def records(self, count: int) -> list[Any]:
        return [
            Sample(f"d/{i}" + "ü" * 50 * (i % 3 == 0), {f"seg{j}.png": b"x" * (i * j) for j in range(1 + i % 4)})
            for i in range(count)
        ]


LINES = [{"n": number, "text": "x" * (7 * number % 30)} for number in range(40)]
SAMPLES = [Sample(f"s{number}", {"bin": bytes([65 + number]) * 300 * number, "json": b"{}"}) for number in range(4)]


def index_trial(folder: Path) -> Trial:
    lines, line_offsets = encode_jsonl(LINES)
    archive, sample_offsets = encode_tar(SAMPLES)
    contents = {
        "a.jsonl": lines,
        "a.jsonl.idx": index_bytes(line_offsets),
        "b.tar": archive,
        "b.tar.idx": index_bytes(sample_offsets),
    }
    places = sample_offsets.tolist()
    tar_fields = [at + field for at in places[:-1] for field in (124, 128, 148, 156)]
    fields = {
        "a.jsonl.idx": range(0, 8 * len(line_offsets), 8),
        "b.tar.idx": range(0, 8 * len(sample_offsets), 8),
        "b.tar": tar_fields,
    }
    files = Files(folder, contents, fields)

    def trial(chance: random.Random) -> str:
        name, content = files.damage(chance)
        here = files.contents | {name: content}
        source = name.removesuffix(".idx")
        ending = source.rpartition(".")[2]
        kind = JsonlReader if source == "a.jsonl" else TarReader
        url = f"{folder}/{source}"
        with kind(url, check=chance.random() < 0.5) as reader:
            if chance.random() < 0.1:
                check_index(reader.index, stat(url), kind.layout, deep=True)
            count = len(reader)
            numbers = [chance.randrange(-count, count) for _ in range(chance.choice([1, 3, 40]))] if count else []
            offsets = np.frombuffer(here[f"{source}.idx"], "<u8", count + 1).tolist()
            match chance.randrange(5):
                case 0:
                    found = [reader[number] for number in numbers]
                case 1:
                    found = reader.read_many(numbers)
                case 2:
                    start, stop = sorted((chance.randrange(count + 1), chance.randrange(count + 1)))
                    _judge_span(reader.read_span(start, stop), here[source], offsets[start : stop + 1])
                    return f"read span of {ending}"
                case 3:
                    _judge_span(list(reader), here[source], offsets)
                    return f"read all of {ending}"
                case _:
                    for number in numbers:
                        assert reader.raw(number) == here[source][offsets[number % count] : offsets[number % count + 1]]
                    return f"read bytes of {ending}"
        for number, record in zip(numbers, found, strict=True):
            _judge(record, here[source], offsets[number % count], offsets[number % count + 1])
        return f"read {ending}"

    return trial


def _judge(record: Any, source: bytes, start: int, stop: int) -> None:
    """Assert that a record has the bytes at its offsets."""
    data = source[start:stop]
    if isinstance(record, Sample):
        assert all(content in data for content in record.values())
        return
    assert start == 0 or source[start - 1] == 10
    assert data.find(b"\n") in (-1, len(data) - 1)
    assert record == orjson.loads(data)


def _judge_span(records: list[Any], source: bytes, offsets: list[int]) -> None:
    """Assert that records have the bytes between the first and the last offset."""
    data = source[offsets[0] : offsets[-1]]
    if records and isinstance(records[0], Sample):
        assert all(content in data for record in records for content in record.values())
    else:
        assert records == [orjson.loads(line) for line in data.split(b"\n") if line.strip(b" \t\r")]


@pytest.mark.slow
def test_damaged_indexes_give_typed_errors_or_what_they_name(tmp_path: Path) -> None:
    outcomes = fuzz_briefly(index_trial(tmp_path), 800, name=str(tmp_path))
    assert outcomes["IndexMismatchError"] > 200
    assert min(outcomes["read jsonl"], outcomes["read tar"]) > 10


if __name__ == "__main__":
    main(index_trial)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 50)), min_size=1, max_size=60))
def test_ranges_are_joined_while_a_tenth_of_their_bytes_lies_between(parts: list[tuple[int, int]]) -> None:
    gaps, sizes = np.array(parts).T
    stops = np.cumsum(gaps + sizes)
    starts = stops - sizes
    gap = small_gap(starts, stops)
    between = gaps[1:]
    assert between[between <= gap].sum() * 10 <= sizes.sum()
    larger = between[between > gap].min(initial=10**6)
    assert between[between <= larger].sum() * 10 > sizes.sum() or larger == 10**6


@given(st.sets(st.integers(0, 99)), st.sampled_from([True, False]))
def test_scattered_lines_are_read_as_a_span_reads_them(wanted: set[int], ends: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.jsonl")
        lines = ["" if number % 7 == 3 else f'{{"n": {number}}}' for number in range(100)]
        path.write_bytes(("\n".join(lines) + "\n" * ends).encode())
        path.with_name("a.jsonl.idx").write_bytes(index_bytes(JsonlFormat().build_index(str(path))))
        reader = JsonlReader(str(path))
        expected = [raw for raw in reader.read_raw(0, 100) if raw.record in wanted]
        assert list(reader.read_raw_some(np.array(sorted(wanted), np.int64))) == expected
