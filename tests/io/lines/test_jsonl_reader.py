"""Decoding and encoding of JSONL, and what bad lines say."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerbeam.errors import IndexMismatchError, RecordError
from ledgerbeam.io.index.file import write_index
from ledgerbeam.io.index.newlines import build_jsonl_index
from ledgerbeam.io.lines import rows
from ledgerbeam.io.lines.formats import JsonlFormat
from ledgerbeam.io.lines.jsonl import JsonlReader, encode_jsonl
from ledgerbeam.io.lines.rows import ByteRows
from tests.cases import each
from tests.memory import peak_of

pytestmark = pytest.mark.usefixtures("implementation")

_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


def reader_of(tmp_path: Path, content: bytes) -> JsonlReader:
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    write_index(f"{path}.idx", build_jsonl_index(str(path)))
    return JsonlReader(str(path))


def replaced(tmp_path: Path, before: bytes, after: bytes) -> JsonlReader:
    """Open a file that another one of its size and time has replaced since it was indexed."""
    with reader_of(tmp_path, before) as reader:
        stat = os.stat(reader.url)
    Path(reader.url).write_bytes(after)
    os.utime(reader.url, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    return JsonlReader(reader.url)


@given(st.lists(_values))
def test_what_is_encoded_is_split_again(values: list[Any]) -> None:
    data, offsets = encode_jsonl(values)
    assert JsonlFormat().split(data, "x") == values
    assert offsets.tolist() == [0, *(i + 1 for i, byte in enumerate(data) if byte == 10)]


@pytest.mark.parametrize("content", [b'{"a":1}\r\n{"b":2}\r\n', b'{"a":1}\n{"b":2}', b' {"a":1} \n\t{"b":2}\n'])
def test_crlf_a_missing_last_newline_and_white_space_are_fine(tmp_path: Path, content: bytes) -> None:
    reader = reader_of(tmp_path, content)
    split = JsonlFormat().split(content, "x")
    for found in (list(reader), [reader[0], reader[1]], reader[:], reader.read_span(0, 2), split):
        assert found == [{"a": 1}, {"b": 2}]
    assert reader.read_span(1, 2) == [{"b": 2}]


def test_blank_lines_are_records_that_spans_skip_and_ints_refuse(tmp_path: Path) -> None:
    content = b'\n{"a":1}\n \t\r\n{"b":2}\n\n'
    reader = reader_of(tmp_path, content)
    assert len(reader) == 5
    assert reader.read_span(0, 5) == list(reader) == JsonlFormat().split(content, "x") == [{"a": 1}, {"b": 2}]
    assert reader.read_span(2, 3) == reader.read_span(0, 1) == reader.read_span(4, 5) == []
    assert [reader[1], reader[3]] == [{"a": 1}, {"b": 2}]
    for read in (lambda: reader[2], lambda: reader[2:4], lambda: reader.read_many([2])):
        with pytest.raises(RecordError, match=r"x\.jsonl: record 2, bytes \[9, 12\).*blank line"):
            read()


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b'{"id": tru}', "expected JSON, found '{\"id\": tru}'"),
        (b'{"id": 1', "expected JSON"),
        (b'{"id": 1} {"id": 2}', "expected JSON"),
        (b'{"id": "\xff\xfe"}', r"\\xff.*UTF-8"),
        (b'{"id": NaN}', "NaN"),
        (b"\0", "expected JSON"),
    ],
)
def test_a_bad_line_is_named_with_record_bytes_and_preview(tmp_path: Path, line: bytes, found: str) -> None:
    content = b'{"a":1}\n\n' + line + b'\n{"b":2}\n'
    reader = reader_of(tmp_path, content)
    where = rf"record 2, bytes \[9, {9 + len(line)}\)"
    for read in (
        lambda: reader[2],
        lambda: reader.read_span(1, 4),
        lambda: JsonlFormat().split(content, "x"),
        lambda: list(reader),
    ):
        with pytest.raises(RecordError, match=f"(?s){where}.*{found}"):
            read()
    assert reader[3] == {"b": 2}


def test_scattered_records_are_read_in_their_order_whatever_lies_between(tmp_path: Path) -> None:
    """More than are read one by one: neighbours, repeats, the first, and a last line without newline among them."""
    lines = [b'{"id": %d, "text": "%s"}' % (i, b"x" * (i * 37 % 500)) for i in range(2000)]
    reader = reader_of(tmp_path, b"\n".join(lines))
    chance = random.Random(2)
    for wanted in (
        chance.choices(range(2000), k=500),
        [*chance.sample(range(2000), 100), 0, 1, 2, 3, 1999, *chance.sample(range(2000), 100)],
        list(range(2000)),
        list(range(1999, -1, -1)),
        [7] * 100,
    ):
        assert [record["id"] for record in reader.read_many(wanted)] == wanted
    reader.close()
    assert [record["id"] for record in reader.read_many(range(0, 2000, 20))] == list(range(0, 2000, 20))


def test_bad_lines_among_scattered_ones_are_named(tmp_path: Path) -> None:
    lines = [b'{"id": %d}' % i + b" " * 5000 for i in range(200)]
    lines[150], lines[160] = b"{tru}", b""
    reader = reader_of(tmp_path, b"\n".join([*lines, b""]))
    wanted = list(range(0, 200, 2))
    with pytest.raises(RecordError, match=r"record 150, bytes .*expected JSON"):
        reader.read_many(wanted)
    with pytest.raises(RecordError, match=r"record 160, .*blank line"):
        reader.read_many(wanted[::-1])
    wanted.remove(150)
    wanted.remove(160)
    assert [record["id"] for record in reader.read_many(wanted)] == wanted


def test_an_index_of_other_lines_gives_no_record(tmp_path: Path) -> None:
    content = b"".join(b'{"id": %d}\n' % i for i in range(100, 200))
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    for shift in (1, -1, 5):
        offsets = build_jsonl_index(str(path))
        offsets[50] = int(offsets[50]) + shift
        write_index(f"{path}.idx", offsets)
        reader = JsonlReader(str(path))
        for read in (lambda: reader[50], lambda: reader[49], lambda: reader.read_many([*range(99, -1, -1)])):  # noqa: B023
            with pytest.raises(IndexMismatchError, match=r"record (49|50) to"):
                read()


def test_an_index_that_ends_within_a_line_gives_no_bytes_of_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"1234\n5678\n")
    write_index(f"{path}.idx", np.array([0, 3, 10], np.uint64))
    with pytest.raises(IndexMismatchError, match="found other line ends there"):
        JsonlReader(str(path)).read_data(0, 1)


def test_a_preview_is_short(tmp_path: Path) -> None:
    with pytest.raises(RecordError) as caught:
        reader_of(tmp_path, b"[" + b"7" * 10_000 + b"\n")[0]
    assert "7" * 119 + "'" in str(caught.value)
    assert len(str(caught.value).removeprefix(str(tmp_path))) < 500


def test_a_byte_order_mark_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"record 0.*remove the byte order mark"):
        reader_of(tmp_path, b'\xef\xbb\xbf{"a":1}\n')[0]


@each(
    ("value", "found"),
    [(object(), "object"), ({1: 2}, "dict"), ({"a": {1}}, "dict"), (10**400, "int"), ("\ud800", "str"), ({1}, "set")],
)
def test_a_value_that_is_no_json_is_named_by_position_and_type(value: Any, found: str) -> None:
    with pytest.raises(RecordError, match=rf"output record 2 \({found}\) cannot be written"):
        encode_jsonl([1, 2, value, 4])


def test_a_ready_made_fragment_with_a_line_break_is_refused() -> None:
    assert encode_jsonl([orjson.Fragment(b'{"a": 1}')])[0] == b'{"a": 1}\n'
    with pytest.raises(RecordError, match="output record 1 holds a line break"):
        encode_jsonl([1, orjson.Fragment(b'{"a":\n1}')])


def test_nothing_encodes_to_an_empty_file() -> None:
    data, offsets = encode_jsonl([])
    assert (data, offsets.tolist()) == (b"", [0])


def test_a_replaced_file_of_equal_size_and_age_never_gives_a_wrong_record(tmp_path: Path) -> None:
    reader = replaced(tmp_path, b"100\n200\n300\n400\n", b"1\n200000\n3\n4000\n")
    for read in (lambda: reader[0], lambda: reader[1], lambda: reader[2], lambda: reader.read_span(1, 3)):
        with pytest.raises(IndexMismatchError, match="expected record"):
            read()


@pytest.mark.parametrize("span", [(0, 1), (1, 2), (1, 3), (2, 3)])
def test_spans_of_a_replaced_file_without_line_ends(tmp_path: Path, span: tuple[int, int]) -> None:
    reader = replaced(tmp_path, b"100\n200\n300\n", b"7" * 12)
    with pytest.raises(IndexMismatchError, match="other line ends"):
        reader.read_span(*span)


def test_writing_takes_little_more_memory_than_what_is_written() -> None:
    script = (
        "from ledgerbeam.io import encode_jsonl\n"
        "def peak():\n    return int(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0]) * 1024\n"
        "records = [{'text': 'x' * 87}] * 100_000\nbefore = peak()\n"
        "data, offsets = encode_jsonl(records)\nassert len(offsets) == 100_001\n"
        "print((peak() - before) / len(data))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 5


def test_a_record_that_cannot_be_written_is_named_by_its_number() -> None:
    with pytest.raises(RecordError, match="output record 2345 \\(object\\)"):
        encode_jsonl([*range(2345), object()])
    with pytest.raises(RecordError, match="output record 1001 holds a line break"):
        encode_jsonl([*range(1001), orjson.Fragment(b"[1,\n2]"), 3])
    data, offsets = encode_jsonl([{"n": n} for n in range(2500)])
    lines = data.splitlines(keepends=True)
    assert [orjson.loads(line)["n"] for line in lines] == list(range(2500))
    assert offsets.tolist() == [0, *accumulate(map(len, lines))]


def test_numbers_that_count_from_the_end_stay_what_they_are(tmp_path: Path) -> None:
    """An array of them is its owner's, who may read by it again, also of a source that has grown."""
    reader = reader_of(tmp_path, b"1\n2\n3\n")
    numbers = np.array([-1, 0, -3], np.int64)
    for _ in range(2):
        assert [record for piece in reader.read_pieces(numbers) for record in piece] == [3, 1, 1]
    assert numbers.tolist() == [-1, 0, -3]


def test_records_that_are_looked_up_in_a_damaged_index_are_refused(tmp_path: Path) -> None:
    """The first records are looked up without the rest of the index, which is read for the error."""
    reader_of(tmp_path, b"".join(b"%d\n" % (1000 + number) for number in range(1000))).close()
    offsets = build_jsonl_index(str(tmp_path / "x.jsonl")).copy()
    offsets[501] = offsets[500]
    write_index(str(tmp_path / "x.jsonl.idx"), offsets)
    reader = JsonlReader(str(tmp_path / "x.jsonl"))
    assert reader.read_many([7]) == [1007]
    with pytest.raises(IndexMismatchError, match="expected increasing offsets, found record 500 at byte 2500"):
        reader.read_many([500])


@pytest.mark.parametrize("data", [b"", b"\n", b"a", b"a\n", b"\na\r\n\nbc", b"\n\n", b" \n\t\n {}\n"])
@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_lines_are_those_that_newlines_end(data: bytes, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_AT_ONCE", at_once)
    lines = ByteRows.lines(data)
    expected = data.splitlines() if b"\r" not in data else data.removesuffix(b"\n").split(b"\n")
    assert list(lines) == expected == [lines[place] for place in range(len(lines))]
    assert list(pickle.loads(pickle.dumps(lines))) == expected
    assert lines.blank().tolist() == [not line.strip() for line in expected]
    assert lines.first_bytes().tolist() == [(line + b"\n")[0] for line in expected]
    assert [data[start:][: len(line)] for start, line in zip(lines.starts.tolist(), expected, strict=True)] == expected


def test_some_lines_are_named_by_places_or_by_a_mask() -> None:
    lines = ByteRows.lines(b"a\nbb\n\nccc")
    assert list(lines.at([3, 0])) == [b"ccc", b"a"]
    assert list(lines.at(~lines.blank())) == [b"a", b"bb", b"ccc"]
    assert list(lines.at(np.zeros(0, np.int64))) == []


def test_a_form_feed_is_not_blank_as_json_has_it() -> None:
    assert ByteRows.lines(b"\x0c\n\n \x0c\n").blank().tolist() == [False, True, False]


def test_lines_take_sixteen_bytes_each_and_are_not_copied() -> None:
    data = (b"x" * 99 + b"\n") * 100_000
    lines, peak = peak_of(lambda: ByteRows.lines(data))
    assert len(lines) == 100_000
    assert peak < 0.6 * len(data)
