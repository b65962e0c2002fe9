"""The bytes of run files match their specification, and other files are refused."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from dataclasses import replace
from itertools import accumulate, pairwise
from struct import pack, unpack, unpack_from
from typing import Any, NamedTuple

import numpy as np
import pytest
import zstandard
from blake3 import blake3

from ledgerbeam.errors import RecordError, RunFileError
from ledgerbeam.io.exchange import run_file
from ledgerbeam.io.exchange.run_file import (
    ENTRY,
    NO_TASK,
    BlockTable,
    RunBlock,
    decode_block,
    encode_run,
    encode_sorted,
    open_block,
    parse_footer,
    parse_table,
    tail_bytes,
    task_mark,
)
from ledgerbeam.io.lines.rows import ByteRows
from tests.cases import each

Row = tuple[bytes, int, bytes]

MAGIC = b"LBRUN\0\0\3"
CUTS = [b"c", b"cc", b"d", b"x"]
ROWS: list[Row] = [
    (key, 5 * number, bytes([65 + number % 26]) * (number % 7))
    for number, key in enumerate(b"d a b b cx a z c e b yy d c a b d zz c y d".split())
]


def checksum(data: bytes) -> bytes:
    return blake3(data).digest(16)


class Block(NamedTuple):
    """The entry of a block in a table, and its records."""

    plain: int
    size: int
    first: tuple[int, bytes]
    rows: list[Row]


def rows_of(plain: bytes, count: int) -> list[Row]:
    numbers = unpack_from(f"<{count}Q", plain, 0)
    sizes = unpack_from(f"<{2 * count}I", plain, 8 * count)
    assert 16 * count + sum(sizes) == len(plain)
    ends = list(accumulate(sizes, initial=16 * count))
    pieces = [plain[start:stop] for start, stop in pairwise(ends)]
    return list(zip(pieces[:count], numbers, pieces[count:], strict=True))


def buckets_of(data: bytes) -> list[list[Block]]:
    """Read a run file as the page of the format describes it."""
    assert data[:8] == data[-8:] == MAGIC
    footer, buckets, records = unpack("<QQQ16x", data[-64:-24])
    assert checksum(data[footer:-24]) == data[-24:-8]
    assert footer + 56 * buckets + 64 == len(data)
    found: list[list[Block]] = []
    place, number_of_records = 8, 0
    for bucket in range(buckets):
        entry = data[footer + 56 * bucket : footer + 56 * bucket + 56]
        start, length, table, count, size, some = unpack("<QQIIQQ", entry[:40])
        blocks: list[Block] = []
        found.append(blocks)
        if not some:
            assert entry == bytes(56)
            continue
        assert start == place
        text = data[start : start + table]
        assert checksum(text) == entry[40:]
        key_place, place = 44 * count, start + table
        for block in range(count):
            compressed, plain, of_block, block_size, first, key = unpack("<IIIIQI", text[44 * block : 44 * block + 28])
            packed = data[place : place + compressed]
            assert checksum(packed) == text[44 * block + 28 : 44 * block + 44]
            whole = zstandard.ZstdDecompressor().decompress(packed)
            assert zstandard.frame_content_size(packed) == len(whole) == plain
            rows = rows_of(whole, of_block)
            assert block_size == sum(len(row[2]) + 1 for row in rows)
            blocks.append(Block(plain, block_size, (first, text[key_place : key_place + key]), rows))
            key_place += key
            place += compressed
        assert (key_place, place) == (table, start + length)
        assert size == sum(block.size for block in blocks)
        assert some == sum(len(block.rows) for block in blocks)
        number_of_records += some
    assert (place, number_of_records) == (footer, records)
    return found


def encoded(rows: list[Row], cuts: list[bytes], block_bytes: int = 70) -> bytes:
    keys, numbers, payloads = [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]
    return encode_run(keys, np.array(numbers, np.uint64), payloads, cuts, block_bytes)


@each("count", [0, 1, 2, len(ROWS)])
@each("cuts", [[], CUTS, [b"zzz"]])
@each("block_bytes", [1, 17, 70, 72, 10**6])
def test_a_run_file_is_what_the_page_of_its_format_says(count: int, cuts: list[bytes], block_bytes: int) -> None:
    rows = ROWS[:count]
    data = encoded(rows, cuts, block_bytes)
    found = buckets_of(data)
    expected: list[list[Row]] = [[] for _ in range(len(cuts) + 1)]
    for row in sorted(rows):
        expected[bisect_right(cuts, row[0])].append(row)
    assert [[row for block in blocks for row in block.rows] for blocks in found] == expected
    for blocks in found:
        for block in blocks:
            assert block.first == (block.rows[0][1], block.rows[0][0])
            assert block.plain <= block_bytes or len(block.rows) == 1
        for block, following in pairwise(blocks):  # no more would have fitted
            key, _, payload = following.rows[0]
            assert block.plain + 16 + len(key) + len(payload) > block_bytes


@pytest.mark.parametrize("cuts", [[], CUTS, [b"zzz"], [b"A", b"B"]])
def test_what_its_reader_finds_is_what_was_written(cuts: list[bytes]) -> None:
    data = encoded(ROWS, cuts)
    tail = tail_bytes(len(cuts) + 1)
    assert tail == 56 * (len(cuts) + 1) + 64
    entries = parse_footer(data[-tail:], len(data), len(cuts) + 1, "a.run")
    for entry, blocks in zip(entries, buckets_of(data), strict=True):
        if not blocks:
            continue
        start = int(entry["start"])
        table = parse_table(data[start : start + int(entry["table"])], entry, "a.run")
        assert table.plain == [block.plain for block in blocks]
        assert table.sizes == [block.size for block in blocks]
        assert table.records == [len(block.rows) for block in blocks]
        assert list(zip(table.numbers, table.keys, strict=True)) == [block.first for block in blocks]
        for block, (first, last) in enumerate(pairwise(table.starts)):
            found = decode_block(data[first:last], table, block, "a.run")
            assert list(zip(found.keys, found.numbers, found.payloads, strict=True)) == blocks[block].rows


def test_a_record_or_a_key_longer_than_a_block_can_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_file, "MOST_RECORD", 10)
    assert buckets_of(encoded([(b"k" * 10, 0, b""), (b"", 1, b"x" * 10)], []))
    for row in ((b"k" * 11, 0, b""), (b"", 0, b"x" * 11)):
        with pytest.raises(RecordError, match="records and keys of at most 10 bytes each"):
            encoded([(b"a", 0, b"b"), row], [])


def test_of_equal_keys_the_first_comes_first() -> None:
    for keys in (
        [],
        [b""],
        [b"", b""],
        [b"b", b"a", b"b", b"a"],
        [b"a\0", b"a", b"a\0", b"a"],
        [b"\xff", b"\0", b"\xff"],
    ):
        assert ByteRows.of(keys).order().tolist() == sorted(range(len(keys)), key=keys.__getitem__)


def footer(entries: bytes, start: int, buckets: int, records: int) -> bytes:
    """Return the end of a run file with the checksum that fits it."""
    head = pack("<QQQ16s", start, buckets, records, b"")
    return entries + head + checksum(entries + head) + MAGIC


def entry(**fields: int) -> Any:
    found = np.zeros(1, ENTRY)[0]
    for name, value in fields.items():
        found[name] = value
    return found


@each(
    ("data", "size", "what"),
    [
        (b"", 0, "ends with"),
        (MAGIC, 8, "ends with"),
        (bytes(55) + MAGIC, 63, "ends with"),
        (bytes(200), 200, "ends with"),
        (
            footer(bytes(56 * 3), 8, 3, 0),
            8 + 56 * 3 + 64,
            "expected a footer of 2 buckets at byte 64, found one of 3 at byte 8",
        ),
        (footer(bytes(56), 8, 1, 0), 8 + 56 + 64, "expected a footer of 2 buckets"),
        (footer(bytes(56 * 2), 9, 2, 0), 8 + 56 * 2 + 64, "found one of 2 at byte 9"),
        (footer(bytes(8), 8, 2, 0), 8 + 56 * 2 + 64, "does not match its checksum"),
        (footer(b"", 8, 2, 0), 8 + 56 * 2 + 64, "does not match its checksum"),
        (footer(bytes(56 * 2), 8, 2, 1), 8 + 56 * 2 + 64, "expected 1 records, found 0 in its buckets"),
        (
            footer(entry(records=2).tobytes() * 2, 8, 2, 3),
            8 + 56 * 2 + 64,
            "expected 3 records, found 4 in its buckets",
        ),
    ],
)
def test_what_is_no_end_of_a_run_file_is_refused(data: bytes, size: int, what: str) -> None:
    with pytest.raises(RunFileError, match=f"^in/a.run: .*{what}.*; delete this file"):
        parse_footer(data, size, 2, "in/a.run")


def test_the_end_of_a_run_file_is_read_whatever_stands_before_it() -> None:
    end = footer(entry(records=2).tobytes() * 2, 8, 2, 4)
    for before in (b"", b"something", bytes(500)):
        assert parse_footer(before + end, 8 + len(end), 2, "a.run")["records"].tolist() == [2, 2]
    for place in range(len(end)):
        with pytest.raises(RunFileError):
            parse_footer(end[:place] + bytes([end[place] ^ 4]) + end[place + 1 :], 8 + len(end), 2, "a.run")


def test_a_run_file_is_that_of_a_task() -> None:
    """Files of different tasks with equal records have equal entries, but a reader refuses the mark of another task."""
    marks = [task_mark(source, first) for source, first in [(b"s" * 16, 0), (b"s" * 16, 1), (b"t" * 16, 0)]]
    assert len({*marks, NO_TASK}) == 4, "also of another task of the same source"
    keys, numbers = [b"b"], np.zeros(1, np.uint64)
    for mark in [*marks, NO_TASK]:
        for data in (
            encode_run(keys, numbers, [b"x"], [b"c"], mark=mark),
            encode_sorted(
                [RunBlock(ByteRows.of(keys), np.zeros(1, np.uint64), ByteRows.of([b"x"]))], [b"c"], mark=mark
            )[0],
        ):
            assert data[-40:-24] == mark
            assert parse_footer(data[-tail_bytes(2) :], len(data), 2, "a.run", mark)["records"].tolist() == [1, 0]
            for other in {*marks, NO_TASK} - {mark}:
                with pytest.raises(RunFileError, match=r"another task has written it: .* delete this file"):
                    parse_footer(data[-tail_bytes(2) :], len(data), 2, "a.run", other)


def row_of(length: int, records: int, key: int) -> bytes:
    return pack("<IIIIQI", length, 100, records, 50, 7, key) + b"c" * 16


def with_checksum(data: bytes, **fields: int) -> Any:
    found = entry(table=len(data), **fields)
    found["checksum"] = np.frombuffer(checksum(data), "V16")[0]
    return found


TABLE = row_of(30, 2, 1) + row_of(20, 1, 3) + b"kkey"
FITS = {"start": 8, "length": len(TABLE) + 50, "blocks": 2, "records": 3}


def test_a_table_that_fits_its_entry_is_read() -> None:
    first = 8 + len(TABLE)
    assert parse_table(TABLE, with_checksum(TABLE, **FITS), "a.run") == BlockTable(
        [first, first + 30, first + 50], [100] * 2, [50] * 2, [2, 1], [b"k", b"key"], [7] * 2, [b"c" * 16] * 2
    )


@each(
    ("data", "fields"),
    [
        (TABLE, {"length": len(TABLE) + 49}),
        (TABLE, {"length": len(TABLE) + 51}),
        (TABLE, {"records": 2}),
        (TABLE, {"records": 4}),
        (TABLE, {"blocks": 1}),
        (TABLE, {"blocks": 3}),
        (TABLE + b"k", {"length": len(TABLE) + 51}),
        (TABLE[:-1], {"length": len(TABLE) + 49}),
        (TABLE[:87], {"length": 137}),
        (b"", {"length": 50}),
    ],
)
def test_a_table_that_does_not_fit_its_entry_is_refused(data: bytes, fields: dict[str, int]) -> None:
    with pytest.raises(RunFileError, match=r"^a\.run: the table of blocks at byte 8 does not fit the footer; delete"):
        parse_table(data, with_checksum(data, **{**FITS, **fields}), "a.run")


def test_a_table_of_another_checksum_is_refused() -> None:
    with pytest.raises(
        RunFileError, match=r"^a\.run: the table of blocks at byte 8 does not match its checksum; delete"
    ):
        parse_table(TABLE, with_checksum(TABLE + b"x", **FITS), "a.run")


def block_of(plain: bytes, records: int, size: int | None = None) -> tuple[bytes, BlockTable]:
    data = zstandard.ZstdCompressor(level=-3, write_checksum=False).compress(plain)
    return data, table_of(data, len(plain) if size is None else size, records)


def table_of(data: bytes, size: int, records: int) -> BlockTable:
    return BlockTable([1000, 1000 + len(data)], [size], [0], [records], [b""], [0], [checksum(data)])


TWO = pack("<QQIIII", 3, 9, 1, 2, 3, 0) + b"kkkxyz"


def test_a_block_is_read_as_it_lies_there() -> None:
    data, table = block_of(TWO, 2)
    found = open_block(data, table, 0, "a.run")
    assert (found.plain, found.numbers.tolist()) == (TWO, [3, 9])
    assert (found.key_ends.tolist(), found.ends.tolist()) == ([33, 35], [38, 38])
    block = decode_block(data, table, 0, "a.run")
    assert (list(block.keys), block.numbers.tolist(), list(block.payloads)) == ([b"k", b"kk"], [3, 9], [b"xyz", b""])
    block = decode_block(*block_of(bytes(16), 1), 0, "a.run")
    assert (list(block.keys), block.numbers.tolist(), list(block.payloads)) == ([b""], [0], [b""])


@each(
    ("plain", "records", "size", "what"),
    [
        (TWO, 1, None, "expected its records to end at 38"),
        (TWO, 3, None, "expected 38 bytes of 3 records, found 38"),
        (TWO, 2, 39, "expected 39 bytes of 2 records, found 38"),
        (TWO, 2, 37, "expected 37 bytes of 2 records, found 38"),
        (TWO, 0, None, "expected 38 bytes of 0 records, found 38"),
        (TWO[:-1], 2, None, "expected its records to end at 37, found 38"),
        (TWO + b"x", 2, None, "expected its records to end at 39, found 38"),
        (TWO[:31], 2, None, "expected 31 bytes of 2 records, found 31"),
        (pack("<QII", 0, 2**32 - 1, 2**32 - 1), 1, None, "expected its records to end at 16, found 8,589,934,606"),
    ],
)
def test_a_block_that_is_not_what_its_table_says_is_refused(
    plain: bytes, records: int, size: int | None, what: str
) -> None:
    data, table = block_of(plain, records, size)
    with pytest.raises(RunFileError, match=f"^in/a.run: the block at byte 1,000.*{what}.*; delete this file"):
        open_block(data, table, 0, "in/a.run")


def test_a_block_of_another_checksum_or_of_no_zstandard_is_refused() -> None:
    data, table = block_of(TWO, 2)
    with pytest.raises(RunFileError, match="the block at byte 1,000 does not match its checksum"):
        open_block(data, replace(table, checksums=[bytes(16)]), 0, "a.run")
    broken = data[:-3] + bytes(3)
    for other in (TWO, broken):
        with pytest.raises(RunFileError, match="the block at byte 1,000 cannot be decompressed"):
            open_block(other, table_of(other, len(TWO), 2), 0, "a.run")


def test_a_block_has_128_kib_at_most_and_is_compressed_fast_unless_told_otherwise() -> None:
    count = 600
    texts = [hashlib.sha256(b"%d" % number).hexdigest().encode() * 16 for number in range(count)]
    data = encode_run([b"%05d" % number for number in range(count)], np.arange(count, dtype=np.uint64), texts, [])
    (entry,) = parse_footer(data[-tail_bytes(1) :], len(data), 1, "a.run")
    start, size = int(entry["start"]), int(entry["table"])
    table = parse_table(data[start : start + size], entry, "a.run")
    assert len(table.plain) == 5
    assert all(127 * 1024 < size <= 128 * 1024 for size in table.plain[:-1])
    first = data[table.starts[0] : table.starts[1]]
    plain = open_block(first, table, 0, "a.run").plain
    assert first == zstandard.ZstdCompressor(level=-3).compress(plain)
