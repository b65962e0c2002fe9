"""Seek points at the members of gzip files, and files with other seek points.

Damaged points, tables and data in a long run: `python -m tests.io.compression.test_gzip_members INPUTS [SEED]`.
"""

from __future__ import annotations

import gzip
import io
import os
import random
import struct
import sys
import zlib
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import indexed_gzip
import pytest
import pyzstd
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgerbeam.errors import SourceError
from ledgerbeam.io import build_index, open_source, publish_bytes
from ledgerbeam.io.any_source import seek_points_of
from ledgerbeam.io.compression.content import ContentReader
from ledgerbeam.io.compression.gzip_points import _WholeMember, gzip_points, load_gzip_table, member_points
from ledgerbeam.io.index.file import index_bytes
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.warc import record_bytes
from tests.cases import each
from tests.conftest import S3Requests
from tests.io.conftest import Place
from tests.io.fuzzing import Files, Trial, fuzz_briefly, main
from tests.io.warc.content import by_record, records


def member(data: bytes, flags: int) -> bytes:
    """Compress data with the optional parts of a header, by flags."""
    head = b"\x1f\x8b\x08" + bytes([flags]) + b"\0\0\0\0\0\xff"
    head += struct.pack("<H", 5) + b"extra" if flags & 4 else b""
    head += b"a name\0" if flags & 8 else b""
    head += b"a comment\0" if flags & 16 else b""
    head += struct.pack("<H", zlib.crc32(head) & 0xFFFF) if flags & 2 else b""
    packer = zlib.compressobj(wbits=-15)
    return head + packer.compress(data) + packer.flush() + struct.pack("<II", zlib.crc32(data), len(data))


@settings(deadline=None, max_examples=100)
@given(
    parts=st.lists(st.tuples(st.binary(max_size=3000), st.sampled_from([0, 2, 4, 8, 16, 30])), min_size=2, max_size=12),
    padding=st.integers(0, 600),
    seed=st.integers(0, 2**32),
)
def test_any_members_are_read_by_position(
    tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[bytes, int]], padding: int, seed: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "a.jsonl.gz"
    path.write_bytes(b"".join(member(*part) for part in parts) + bytes(padding))
    data = b"".join(part for part, _ in parts)
    assert gzip.decompress(path.read_bytes()) == data
    points = member_points(str(path))
    assert points is not None
    publish_bytes(f"{path}.gzidx", points)
    chance = random.Random(seed)
    with ContentReader(str(path), f"{path}.idx") as reader:
        assert reader.size == len(data)
        for _ in range(10):
            start, stop = sorted(chance.choices(range(len(data) + 1), k=2))
            assert reader.read(start, stop) == data[start:stop]


def put(folder: str, parts: list[bytes], options: Any = None, level: int = 9) -> str:
    """Write a WARC by record with its index."""
    url = f"{folder}/a.warc.gz"
    publish_bytes(url, b"".join(gzip.compress(part, level, mtime=0) for part in parts), options)
    offsets = build_index(url, options)
    found = seek_points_of(url, f"{url}.idx", offsets, options)
    assert found is not None
    publish_bytes(*found, options)
    publish_bytes(f"{url}.idx", index_bytes(offsets), options)
    return url


RECORDS = records(400)
PARTS = [record_bytes(record) for record in RECORDS]


def test_a_warc_by_record_needs_no_package_for_its_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "indexed_gzip", None)
    url = put(str(tmp_path), PARTS)
    reader = open_source(url)
    assert reader[:] == RECORDS
    assert [reader[number] for number in (399, 0, 17)] == [RECORDS[399], RECORDS[0], RECORDS[17]]
    assert Path(f"{url}.gzidx").stat().st_size == 35 + 18 * 400


def test_the_points_are_read_by_the_library(tmp_path: Path) -> None:
    url, plain = put(str(tmp_path), PARTS), b"".join(PARTS)
    with indexed_gzip.IndexedGzipFile(url, index_file=f"{url}.gzidx") as file:
        for at in (len(plain) - 90, len(plain) // 2, 0):
            file.seek(at)
            assert file.read(80) == plain[at : at + 80]


@pytest.mark.s3
def test_a_record_of_an_object_is_one_request(s3_place: Place, s3_requests: S3Requests) -> None:
    reader: Any = open_source(put(s3_place.url, PARTS, s3_place.options), None, s3_place.options)
    reader._load()
    reader._reader._loaded()
    s3_requests.take()
    for number in (5, 300, 0, 399, 200):
        assert reader[number] == RECORDS[number]
        assert s3_requests.take() == ["get_object"]
    assert reader.read_span(100, 150) == RECORDS[100:150]
    assert s3_requests.take() == ["get_object"]


def test_long_members_are_left_to_points_inside_of_them(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    for content in (gzip.compress(b"x\n" * 20_000_000, 1), gzip.compress(b"x\n")):
        path.write_bytes(content)
        assert member_points(str(path)) is None
    small = [gzip.compress(b"small\n")] * 50
    path.write_bytes(b"".join([*small, gzip.compress(b"x\n" * 9_000_000, 1), *small]))
    assert member_points(str(path)) is not None  # one long record among many


def test_a_damaged_member_leaves_the_others(tmp_path: Path) -> None:
    url = put(str(tmp_path), PARTS)
    packed = [by_record([part]) for part in PARTS]
    place = sum(map(len, packed[:201]))
    data = bytearray(Path(url).read_bytes())
    for at in range(place + 12, place + len(packed[201]) - 12):
        data[at] ^= 0x55
    Path(url).write_bytes(data)
    os.utime(url, (0, 0))
    reader = open_source(url)
    assert reader[199] == RECORDS[199]
    assert reader[203] == RECORDS[203]
    with pytest.raises(SourceError, match=r"a\.warc\.gz"):
        reader[201]
    with pytest.raises(SourceError, match=r"a\.warc\.gz: the gzip data is damaged"):
        member_points(url)


@pytest.mark.parametrize("number", [0, 201, 399])
def test_a_member_that_decompresses_to_other_bytes_is_found_by_its_checksum(tmp_path: Path, number: int) -> None:
    url, packed = put(str(tmp_path), PARTS, level=0), [gzip.compress(part, 0, mtime=0) for part in PARTS]
    data = bytearray(Path(url).read_bytes())
    assert open_source(url)[:] == RECORDS
    data[sum(map(len, packed[: number + 1])) - 14] ^= 1  # the last byte of the payload, which is not compressed
    Path(url).write_bytes(data)
    os.utime(url, (0, 0))
    reader = open_source(url)
    others = [at for at in range(400) if at not in (number, number + 1)]  # read with the end of the previous one
    assert [reader[at] for at in others] == [RECORDS[at] for at in others]
    begin = sum(map(len, packed[:number])) + 10  # after the header, which has neither name nor comment
    told = rf"a\.warc\.gz: the gzip data is damaged at or after byte {begin:,} of .*incorrect data check"
    for read in (lambda: reader[number], lambda: reader[:], lambda: reader.read_span(number, number + 1)):
        with pytest.raises(SourceError, match=told):
            read()


def test_of_members_beside_a_long_one_with_points_inside_the_whole_ones_are_compared(tmp_path: Path) -> None:
    short = [b"%04d\n" % number for number in range(20)]
    long = random.Random(0).randbytes(9_000_000)
    contents = [*short[:10], long, *short[10:]]
    data = bytearray(b"".join(gzip.compress(content, 0, mtime=0) for content in contents))
    path = tmp_path / "a.gz"
    path.write_bytes(data)
    points = tmp_path / "a.gzidx"
    points.write_bytes(gzip_points(str(path), spacing=1 << 20))
    table = load_gzip_table(RangeReader(str(points)), RangeReader(str(path)))
    ends = list(accumulate(map(len, contents)))
    starts = table.starts.tolist()
    whole = [begin in (0, *ends) and end in ends for begin, end in pairwise(starts)]
    assert 0 < whole.count(False) < len(whole)
    assert [table._is_whole(number) for number in range(len(whole))] == whole
    lengths = [len(gzip.compress(content, 0, mtime=0)) for content in contents]
    for number in (9, 10, 11, 20):  # the checksum of the long record covers more than a segment
        damaged = bytearray(data)
        damaged[sum(lengths[: number + 1]) - 9] ^= 1  # the last byte of the payload
        damaged[sum(lengths[: number + 1]) - 8] ^= 1  # the first byte of its checksum
        path.write_bytes(damaged)
        segment = starts.index(ends[number]) - 1
        pieces = iter([path.read_bytes()[slice(*table.extent(segment))]])
        blocks = table.blocks(segment, pieces, str(path))
        if number == 10:
            left = starts[segment + 1] - starts[segment]
            while left > 0:
                left -= len(next(blocks))
            assert left == 0
        else:
            with pytest.raises(SourceError, match="incorrect data check"):
                next(blocks)


@each("size", [0, 1, 1000, 3_000_000])
@each("piece", [1 << 30, 1009])
def test_the_last_block_of_a_member_is_held_back_until_its_sums_were_compared(size: int, piece: int) -> None:
    content = random.Random(size).randbytes(size)
    member = gzip.compress(content, 1, mtime=0)[10:] + b"next"

    def feed(data: bytes, frame: _WholeMember, found: list[bytes]) -> None:
        for at in range(0, len(data), piece):
            found.extend(frame.feed(data[at : at + piece]))

    whole = _WholeMember()
    before: list[bytes] = []
    feed(member[:-5], whole, before)  # all but the last byte of the size
    assert not whole.ended
    assert len(b"".join(before)) < size or not size
    after = list(whole.feed(member[-5:]))
    assert b"".join(before + after) == content
    assert (b"" in before + after, len(after), whole.ended, bytes(whole.rest)) == (False, int(size > 0), True, b"next")
    for at in (-6, -10):  # in the size and in the checksum
        damaged = bytearray(member)
        damaged[at] ^= 1
        found: list[bytes] = []
        with pytest.raises(zlib.error, match="incorrect"):
            feed(bytes(damaged), _WholeMember(), found)
        assert len(b"".join(found)) < size or not size


def test_what_is_no_member_at_the_beginning_is_no_padding(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(b"\0" + member(b"one\n", 0) + b"\0" + member(b"two\n", 0))
    with pytest.raises(SourceError, match="expected a member at byte 0 of the file"):
        member_points(str(path))
    path.write_bytes(path.read_bytes()[1:])
    assert member_points(str(path)) is not None


def test_damaged_headers_give_typed_errors(tmp_path: Path) -> None:
    path = tmp_path / "a.warc.gz"
    whole = by_record(PARTS[:40])
    chance = random.Random(2)
    failed = 0
    for _ in range(400):
        data = bytearray(whole[: chance.randrange(30, len(whole))])
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        try:
            member_points(str(path), size=len(b"".join(PARTS[:40])))
        except (SourceError, OSError) as error:
            assert str(path) in str(error)  # noqa: PT017
            failed += 1
    assert failed > 300


SPACING = 33_000  # the minimum of the points
SOUND = random.Random(5).randbytes(3000) * 40


def seek_trial(folder: Path) -> Trial:
    plain = folder / "a.jsonl.gz"
    several = folder / "b.jsonl.gz"
    plain.write_bytes(gzip.compress(SOUND))
    several.write_bytes(gzip.compress(SOUND[:50_000]) + gzip.compress(b"") + gzip.compress(SOUND[50_000:]))
    packed = io.BytesIO()
    with pyzstd.SeekableZstdFile(packed, "w", max_frame_content_size=20_000) as file:
        file.write(SOUND)
    contents = {"c.jsonl.zst": packed.getvalue()}
    fields: dict[str, list[int]] = {"c.jsonl.zst": [-13, -9, -5, -4, *range(-65, -9, 4)]}
    for path in (plain, several):
        points = gzip_points(str(path), spacing=SPACING)
        count = int.from_bytes(points[31:35], "little")
        contents[f"{path.name}.gzidx"] = points
        fields[f"{path.name}.gzidx"] = [
            7,
            15,
            23,
            27,
            31,
            *(35 + 18 * row + at for row in range(count) for at in (0, 8, 16)),
        ]
        contents[path.name] = path.read_bytes()
        fields[path.name] = [0, -8]
    files = Files(folder, contents, fields)

    def trial(chance: random.Random) -> str:
        name, _ = files.damage(chance)
        url = f"{folder}/{name.removesuffix('.gzidx')}"
        with ContentReader(url, f"{url}.idx") as reader:
            size = reader.size
            start = chance.randrange(size + 1)
            stop = chance.choice([min(size, start + 300), size, chance.randrange(start, size + 1)])
            found = reader.read(start, stop)
        assert len(found) == stop - start
        return f"read {name}" if found == SOUND[start:stop] else f"read other bytes with a damaged {name}"

    return trial


def test_damaged_seek_points_give_typed_errors(tmp_path: Path) -> None:
    outcomes = fuzz_briefly(seek_trial(tmp_path), 400, name=str(tmp_path))
    assert outcomes["IndexMismatchError"] > 50
    assert outcomes["SourceError"] > 50
    assert sum(count for outcome, count in outcomes.items() if outcome.startswith("read ")) > 20


if __name__ == "__main__":
    main(seek_trial)
