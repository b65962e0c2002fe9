"""Compressed sources read by position: gzip through seek points, Zstandard through its seek table."""

from __future__ import annotations

import gzip
import io
import os
import random
import sys
import tracemalloc
from pathlib import Path
from typing import Any, ClassVar

import indexed_gzip
import numpy as np
import pytest
import pyzstd

from ledgerbeam.errors import (
    ChangedSourceError,
    IndexMismatchError,
    IndexNotFoundError,
    LedgerbeamError,
    NotIndexableError,
    SourceError,
    SourceNotFoundError,
    StorageError,
    UsageError,
)
from ledgerbeam.io import (
    Format,
    JsonlFormat,
    JsonlReader,
    Reader,
    Sample,
    SeekableZstd,
    TarFormat,
    build_index,
    encode_jsonl,
    publish_bytes,
    recognize,
    write_index,
)
from ledgerbeam.io.any_source import seek_points_of
from ledgerbeam.io.compression import content as content_module
from ledgerbeam.io.compression.content import ContentReader
from ledgerbeam.io.compression.gzip_points import gzip_points, gzip_spacing
from ledgerbeam.io.formats.streamed import split_source
from ledgerbeam.io.index.file import index_bytes
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import stat
from ledgerbeam.io.tar.writer import encode_tar
from tests.conftest import S3Requests
from tests.io.conformance import SequenceConformance
from tests.io.conftest import Place

SPACING = 40_000


def text(number: int) -> str:
    return bytes(random.Random(number).choices(b"abcdefghijklmnop", k=500 + 20 * (number % 100))).decode()


def lines(count: int) -> list[Any]:
    return [{"id": i, "text": text(i)} for i in range(count)]


def seekable_zstd(data: bytes) -> bytes:
    """The file as a peer writes it."""
    packed = io.BytesIO()
    with pyzstd.SeekableZstdFile(packed, "w", max_frame_content_size=SPACING) as file:
        file.write(data)
    return packed.getvalue()


def put(path: Path, packed: bytes) -> str:
    """Write a gzip file with its index."""
    path.write_bytes(packed)
    publish_bytes(f"{path}.gzidx", gzip_points(str(path), spacing=SPACING))
    write_index(f"{path}.idx", build_index(str(path)))
    return str(path)


class _Seekable(SequenceConformance):
    def open(self, url: str, options: dict[str, Any] | None = None) -> Reader:
        return recognize(url).by_position().open(url, None, options)

    def records(self, count: int) -> list[Any]:
        return lines(count)


class _Compressed(_Seekable):
    suffix: str

    def encode(self, count: int) -> bytes:
        return encode_jsonl(self.records(count))[0]

    def store(self, folder: str, count: int, options: dict[str, Any] | None = None) -> tuple[str, list[Any]]:
        url, data = f"{folder}/source-{count}{self.suffix}", self.encode(count)
        publish_bytes(url, seekable_zstd(data) if url.endswith(".zst") else gzip.compress(data), options)
        offsets = build_index(url, options)
        if not url.endswith(".zst"):
            publish_bytes(f"{url}.gzidx", gzip_points(url, options, spacing=SPACING), options)
        write_index(f"{url}.idx", offsets, options)
        return url, self.records(count)

    def test_raw_records_joined_are_the_source(self, source: tuple[str, list[Any]]) -> None:
        reader = self.open(source[0])
        assert self.encode(len(reader)).startswith(b"".join(reader.raw(i) for i in range(len(reader))))

    def test_there_are_several_segments(self, source: tuple[str, list[Any]]) -> None:
        reader: Any = self.open(source[0])
        assert len(reader._reader._loaded().starts) > 4


class TestGzip(_Compressed):
    suffix = ".jsonl.gz"


class TestZstd(_Compressed):
    suffix = ".jsonl.zst"


class TestTarInGzip(_Compressed):
    suffix = ".tgz"

    def records(self, count: int) -> list[Any]:
        return [Sample(f"d/{i}.x", {"txt": text(i).encode(), "json": b"{}"}) for i in range(count)]

    def encode(self, count: int) -> bytes:
        return encode_tar(self.records(count))[0]


class _Written(_Seekable):
    """Compressed outputs of jobs."""

    format: ClassVar[Format]
    level = 3

    def files(self, url: str) -> list[str]:
        return [url, f"{url}.idx"]

    def store(self, folder: str, count: int, options: dict[str, Any] | None = None) -> tuple[str, list[Any]]:
        records = self.records(count)
        for file in SeekableZstd(self.format, frame=SPACING).encode(records):
            publish_bytes(f"{folder}/source-{count}{file.ending}", file.data, options)
        return f"{folder}/source-{count}{self.format.suffixes[0]}.zst", records

    def test_raw_records_joined_are_the_source(self, source: tuple[str, list[Any]]) -> None:
        reader = self.open(source[0])
        plain = pyzstd.decompress(Path(source[0]).read_bytes())
        assert plain.startswith(b"".join(reader.raw(i) for i in range(len(reader))))

    def test_the_index_is_the_one_that_a_scan_finds(self, source: tuple[str, list[Any]]) -> None:
        assert index_bytes(build_index(source[0])) == Path(f"{source[0]}.idx").read_bytes()

    @pytest.mark.s3
    def test_a_record_of_an_object_is_one_request(self, s3_place: Place, s3_requests: S3Requests) -> None:
        url, records = self.store(s3_place.url, 400, s3_place.options)
        reader: Any = self.open(url, s3_place.options)
        reader._load()
        s3_requests.take()
        for number in random.Random(4).sample(range(400), k=30):
            reader._reader._kept.clear()
            assert self.same([reader[number]], [records[number]])
            assert s3_requests.take() == ["get_object"]
        start = len(records) // 4
        assert self.same(reader.read_span(start, 2 * start), records[start : 2 * start])
        assert s3_requests.take() == ["get_object"]
        reader[start]
        reader[start + 1]
        assert s3_requests.take() == []  # the last segments are kept
        reader._reader._kept.clear()
        wanted = [390, 3, 200]  # far apart, and requested at once
        assert self.same(reader.read_many(wanted), [records[number] for number in wanted])
        made = s3_requests.take()
        assert 1 <= len(made) <= 3
        assert set(made) == {"get_object"}


class TestWrittenJsonl(_Written):
    format = JsonlFormat()


class TestWrittenTar(_Written):
    format = TarFormat()

    def records(self, count: int) -> list[Any]:
        return [Sample(f"d/{i}", {"txt": text(i).encode(), "json": b"{}"}) for i in range(count)]


RECORDS = lines(1000)
DATA = encode_jsonl(RECORDS)[0]


@pytest.fixture
def packed(tmp_path: Path) -> str:
    return put(tmp_path / "a.jsonl.gz", gzip.compress(DATA))


def test_a_segment_may_begin_at_any_bit(packed: str) -> None:
    reader: Any = JsonlReader(packed)
    assert reader[:] == RECORDS
    assert set(reader._reader._loaded().bits.tolist()) == set(range(8))


@pytest.mark.parametrize("kept", [1000, 8 << 20])
@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(DATA, 0),
        gzip.compress(DATA[:700_001]) + gzip.compress(b"") + gzip.compress(DATA[700_001:]) + b"\0" * 512,
        b"".join(gzip.compress(DATA[at : at + 20_000]) for at in range(0, len(DATA), 20_000)),
    ],
    ids=["stored", "members and padding", "many members"],
)
def test_every_kind_of_gzip_is_read(tmp_path: Path, content: bytes, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content_module, "_KEPT", kept)
    reader = JsonlReader(put(tmp_path / "a.jsonl.gz", content))
    assert reader[:] == RECORDS
    wanted = random.Random(3).choices(range(1000), k=60)
    assert [reader[i] for i in wanted] == reader.read_many(wanted) == [RECORDS[i] for i in wanted]


def test_points_that_pass_over_the_end_of_a_member_are_followed(tmp_path: Path) -> None:
    """Not every program writes a point at each member."""
    url = put(tmp_path / "a.jsonl.gz", gzip.compress(DATA[:700_001]) + gzip.compress(DATA[700_001:]))
    points = Path(f"{url}.gzidx")
    data = bytearray(points.read_bytes())
    count = int.from_bytes(data[31:35], "little")
    entries = [bytes(data[35 + 18 * i : 53 + 18 * i]) for i in range(count)]
    kept = [entry for i, entry in enumerate(entries) if i == 0 or entry[17]]
    assert 0 < len(entries) - len(kept) < 4
    points.write_bytes(data[:31] + len(kept).to_bytes(4, "little") + b"".join(kept) + bytes(data[35 + 18 * count :]))
    assert JsonlReader(url)[:] == RECORDS


def test_the_points_are_those_of_the_library(packed: str) -> None:
    with indexed_gzip.IndexedGzipFile(packed, index_file=f"{packed}.gzidx") as file:
        file.seek(1_000_000)
        assert file.read(1000) == DATA[1_000_000:1_001_000]


def test_the_points_of_a_large_source_lie_further_apart(packed: str) -> None:
    assert gzip_spacing(2 << 30, SPACING) == 1 << 20
    assert gzip_spacing(1 << 30, SPACING) == 1 << 19
    assert gzip_spacing(len(DATA), SPACING) == SPACING
    assert gzip_spacing(1 << 60, SPACING) == 128 << 20
    found = seek_points_of(packed, f"{packed}.idx", np.array([0, len(DATA)], np.uint64))
    assert found is not None
    assert found[0] == f"{packed}.gzidx"
    assert seek_points_of("a.jsonl.zst", "a.jsonl.zst.idx", np.zeros(1, np.uint64)) is None


def test_a_large_segment_is_not_held(tmp_path: Path) -> None:
    data = b'{"a":"' + b"x" * 90 + b'"}\n'
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(data * 300_000, 1))
    publish_bytes(f"{path}.gzidx", gzip_points(str(path), spacing=1 << 40))
    with ContentReader(str(path), f"{path}.idx") as reader:
        tracemalloc.start()
        try:
            start = len(data) * 290_000
            assert reader.read(start, start + len(data)) == data
            assert tracemalloc.get_traced_memory()[1] < 16 << 20
        finally:
            tracemalloc.stop()


def test_no_points(packed: str) -> None:
    os.unlink(f"{packed}.gzidx")
    with pytest.raises(IndexNotFoundError, match=rf"no seek points: .*gzidx.*ledgerbeam index --force {packed}"):
        JsonlReader(packed)


def test_points_older_than_the_source(packed: str) -> None:
    info = stat(f"{packed}.gzidx")
    os.utime(f"{packed}.gzidx", ns=(0, info.modified_ns - 10_000_000_000))
    with pytest.raises(IndexMismatchError, match=rf"a\.jsonl\.gz\.gzidx do not fit .* s older.*index --force {packed}"):
        JsonlReader(packed)


def test_a_source_of_another_size(packed: str) -> None:
    with open(packed, "ab") as file:
        file.write(b"\0")
    os.utime(packed, (0, 0))
    for read in (lambda: JsonlReader(packed), lambda: JsonlReader(packed, check=False).read_span(0, 3)):
        with pytest.raises(IndexMismatchError, match=rf"a gzip file of .* bytes, found.*index --force {packed}"):
            read()


def test_an_index_of_other_content(packed: str) -> None:
    Path(f"{packed}.idx").write_bytes(index_bytes(np.array([0, 10, 20], np.uint64)))
    with pytest.raises(IndexMismatchError, match="the size of the source"):
        JsonlReader(packed)


@pytest.mark.parametrize(
    ("at", "put_in", "found"),
    [
        (0, b"ZIDXG", "expected GZIDX"),
        (5, b"\x02", "version 1"),
        (7, b"\1", "expected a gzip file of"),
        (27, b"\0\0\1\0", "bytes by its table of points, found"),
        (31, b"\xff\xff\xff\xff", "bytes or more for its points"),
        (35, b"\xff" * 8, "outside"),
        (35 + 18, b"\0" * 8, "not in order"),
        (35 + 18 + 16, b"\x09", "outside"),
    ],
)
def test_damaged_points(packed: str, at: int, put_in: bytes, found: str) -> None:
    path = Path(f"{packed}.gzidx")
    data = bytearray(path.read_bytes())
    data[at : at + len(put_in)] = put_in
    path.write_bytes(data)
    with pytest.raises(IndexMismatchError, match=rf"gzidx do not fit .*{found}.*ledgerbeam index --force"):
        JsonlReader(packed)
    path.write_bytes(data[:20])
    with pytest.raises(IndexMismatchError, match="GZIDX"):
        JsonlReader(packed)


def test_data_that_does_not_decompress(packed: str) -> None:
    with open(packed, "r+b") as file:
        file.seek(os.path.getsize(packed) // 2)
        file.write(b"\xff" * 4000)
    with pytest.raises(SourceError, match=r"a\.jsonl\.gz: .* seek points .*gzidx are damaged: ledgerbeam index"):
        list(JsonlReader(packed, check=False))


@pytest.mark.slow
@pytest.mark.parametrize("target", ["a.jsonl.gz", "a.jsonl.gz.gzidx", "a.jsonl.zst"])
def test_flipped_bytes_never_give_another_error(tmp_path: Path, target: str) -> None:
    if target.endswith(".zst"):
        (tmp_path / target).write_bytes(seekable_zstd(DATA))
    else:
        put(tmp_path / "a.jsonl.gz", gzip.compress(DATA))
    source = str(tmp_path / target.removesuffix(".gzidx"))
    if target.endswith(".zst"):
        write_index(f"{source}.idx", build_index(source))
    whole = (tmp_path / target).read_bytes()
    chance = random.Random(8)
    failed = 0
    for number in range(60):
        data = bytearray(whole)
        for _ in range(4):  # half of them where headers and tables are
            place = chance.randrange(len(data)) if number % 2 else chance.choice([-1, 1]) * chance.randrange(1, 300)
            data[place] ^= 1 << chance.randrange(8)
        (tmp_path / target).write_bytes(data)
        reader = JsonlReader(source, check=False)
        try:
            reader.read_span(0, 1000)
        except LedgerbeamError as error:
            assert source in str(error)  # noqa: PT017
            failed += 1
    assert failed > 20


def test_zstd_without_a_seek_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(pyzstd.compress(DATA))
    with pytest.raises(NotIndexableError, match=r"no seek table.*map.*SeekableZstdFile"):
        build_index(str(path))
    write_index(f"{path}.idx", encode_jsonl(RECORDS)[1])
    with pytest.raises(NotIndexableError, match="no seek table"):
        JsonlReader(str(path))


@pytest.mark.parametrize(("at", "put_in"), [(-9, b"\xff\xff\xff\xff"), (-5, b"\x7f"), (-9, b"\1\0\0\0")])
def test_a_damaged_seek_table(tmp_path: Path, at: int, put_in: bytes) -> None:
    path = tmp_path / "a.jsonl.zst"
    data = bytearray(seekable_zstd(DATA))
    data[at : at + len(put_in)] = put_in
    path.write_bytes(data)
    with pytest.raises(SourceError, match=r"a\.jsonl\.zst: the seek table at its end is damaged"):
        build_index(str(path))


def test_a_seek_table_of_other_sizes(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    data = bytearray(seekable_zstd(DATA))
    frames = int.from_bytes(data[-9:-5], "little")
    size = len(data) - 9 - frames * (12 if data[-5] & 0x80 else 8) + 4  # decompressed bytes of the first frame
    for change in (1, -1):
        wrong = bytearray(data)
        wrong[size : size + 4] = (SPACING + change).to_bytes(4, "little")
        path.write_bytes(wrong)
        with (
            ContentReader(str(path), f"{path}.idx") as reader,
            pytest.raises(
                SourceError, match=f"expected {SPACING + change:,} decompressed bytes between two seek points"
            ),
        ):
            reader.read(0, 10)


def test_the_package_that_is_missing_is_named(packed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert JsonlReader(packed)[5] == RECORDS[5]
    monkeypatch.setitem(sys.modules, "indexed_gzip", None)
    assert JsonlReader(packed)[5] == RECORDS[5]
    with pytest.raises(UsageError, match=r"pip install .*\[seekable\]'"):
        gzip_points(packed)


def test_a_source_that_is_cut_while_it_is_indexed(packed: str) -> None:
    offsets = build_index(packed)
    os.truncate(packed, 200_000)
    with pytest.raises(
        ChangedSourceError, match=rf"{packed}: expected {len(DATA):,} decompressed bytes.*index it again"
    ):
        seek_points_of(packed, f"{packed}.idx", offsets)
    Path(packed).write_bytes(b"no gzip" * 1000)
    with pytest.raises(SourceError, match=rf"{packed}: the gzip data is damaged"):
        seek_points_of(packed, f"{packed}.idx", offsets)


def test_a_store_that_fails_while_points_are_sought(packed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SourceNotFoundError, match="absent"):
        gzip_points(f"{packed}.absent")

    def fail(*_: Any) -> bytes:
        raise StorageError("the store is down")

    monkeypatch.setattr(RangeReader, "read", fail)
    with pytest.raises(StorageError, match="the store is down"):
        gzip_points(packed)


def test_what_may_have_an_index() -> None:
    assert recognize("a.jsonl").by_position().name == recognize("a.json.gz").by_position().name == "jsonl"
    assert recognize("a.tar.zst").by_position().name == "tar"
    for name in ("a.jsonl.bz2", "a.tar.xz", "a.jsonl.lz4"):
        with pytest.raises(NotIndexableError, match="decompress it"):
            recognize(name).by_position()
    with pytest.raises(UsageError, match="no known format"):
        recognize("a.doc.gz")


def test_a_whole_file_in_memory_is_split() -> None:
    assert split_source(gzip.compress(DATA), "a.jsonl.gz") == split_source(DATA, "a.jsonl") == RECORDS
