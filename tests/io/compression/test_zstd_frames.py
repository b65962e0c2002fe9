"""Files of the writer of seekable Zstandard, read by other programs and by position."""

from __future__ import annotations

import io
import random
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pyzstd
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgerbeam.errors import UsageError
from ledgerbeam.io import JsonlFormat, SeekableZstd, ShardEncoder, ShardFile, TarFormat
from ledgerbeam.io.compression.content import ContentReader
from ledgerbeam.io.compression.streams import decompressed
from ledgerbeam.io.formats import compressed as zstd
from ledgerbeam.io.formats.compressed import parse_level, seekable_zstd
from ledgerbeam.io.tar.sample import Sample


def ends_of(lengths: list[int]) -> np.ndarray:
    return np.cumsum([0, *lengths]).astype(np.uint64)


def frames(packed: bytes) -> list[tuple[int, int]]:
    """Compressed and decompressed size of each frame according to the table."""
    count = int.from_bytes(packed[-9:-5], "little")
    table = np.frombuffer(packed[-9 - 8 * count : -9], "<u4").reshape(count, 2)
    return [(int(row[0]), int(row[1])) for row in table]


@settings(deadline=None, max_examples=150)
@given(
    lengths=st.lists(st.integers(0, 3000), max_size=40),
    rest=st.integers(0, 2000),
    how=st.tuples(st.integers(1, 5000), st.sampled_from([1, 3, 19])),
    seed=st.integers(0, 2**32),
)
def test_any_data_comes_back(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], rest: int, how: tuple[int, int], seed: int
) -> None:
    frame, level = how
    chance = random.Random(seed)
    data = bytes(chance.choices(b"abcd\n", k=sum(lengths) + rest))
    packed = seekable_zstd(data, ends_of(lengths), level=level, frame=frame)
    assert packed == seekable_zstd(data, ends_of(lengths), level=level, frame=frame)
    with pyzstd.SeekableZstdFile(io.BytesIO(packed)) as peer:
        assert peer.read() == data
    path = tmp_path_factory.getbasetemp() / "a.jsonl.zst"
    path.write_bytes(packed)
    assert b"".join(decompressed(str(path))) == data
    with ContentReader(str(path), f"{path}.idx") as reader:
        assert reader.size == len(data)
        places = [sorted(chance.choices(range(len(data) + 1), k=2)) for _ in range(10)]
        assert [reader.read(*place) for place in places] == [data[start:stop] for start, stop in places]
        starts, stops = zip(*places, strict=True)
        assert reader.read_many(starts, stops) == [data[start:stop] for start, stop in places]


def test_frames_are_whole_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zstd, "MOST_FRAME", 25_000)
    lengths = [600, 300, 200, 5000, 10, 60_000, 40]
    packed = seekable_zstd(b"x" * sum(lengths), ends_of(lengths), frame=1000)
    assert [size for _, size in frames(packed)] == [900, 200, 5000, 10, 25_000, 25_000, 10_000, 40]
    assert sum(size for size, _ in frames(packed)) == len(packed) - 17 - 8 * 8


def test_each_frame_has_its_size_and_a_checksum() -> None:
    packed = seekable_zstd(b"abc\n" * 1000, ends_of([4] * 1000), frame=1000)
    start = 0
    for size, plain in frames(packed):
        found = zstandard.get_frame_parameters(packed[start : start + size])
        assert (found.content_size, found.has_checksum) == (plain, True)
        start += size


def test_the_program_zstd_gives_the_plain_bytes(tmp_path: Path) -> None:
    data = b"".join(b'{"id": %d}\n' % number for number in range(10_000))
    for plain in (data, b""):
        path = tmp_path / f"{len(plain)}.jsonl.zst"
        path.write_bytes(seekable_zstd(plain, ends_of([len(plain)])))
        assert subprocess.run(["zstd", "-dc", path], capture_output=True, check=True).stdout == plain
        assert subprocess.run(["zstd", "-t", path], capture_output=True, check=False).returncode == 0


def test_nothing_can_be_written_otherwise() -> None:
    for level, frame in ((0, 100), (23, 100), (3, 0), (3, (8 << 20) + 1)):
        with pytest.raises(UsageError, match=r"zstd: expected .* found"):
            seekable_zstd(b"", ends_of([]), level=level, frame=frame)
        with pytest.raises(UsageError, match=r"zstd: expected .* found"):
            SeekableZstd(JsonlFormat(), level, frame)
    assert (parse_level("zstd"), parse_level("zstd:12")) == (3, 12)
    for text in ("gzip", "zstd:", "zstd:-1", "zstd:x", "ZSTD"):
        with pytest.raises(UsageError, match=f"zstd:LEVEL, found '{text}'"):
            parse_level(text)


def test_shards_keep_the_index_of_their_plain_bytes() -> None:
    samples = [Sample(f"a{number}", {"txt": b"x" * number, "json": b"{}"}) for number in range(200)]
    pairs: list[tuple[ShardEncoder, list[Any]]] = [(JsonlFormat(), [{"id": number} for number in range(5000)])]
    for plain, records in [*pairs, (TarFormat(), samples)]:
        data, index = plain.encode(records)
        packed, packed_index = SeekableZstd(plain, 3, 4096).encode(records)
        assert (packed.ending, packed_index.ending) == (f"{data.ending}.zst", f"{data.ending}.zst.idx")
        assert packed_index.data == index.data
        assert pyzstd.decompress(packed.data) == data.data
        assert packed.records == data.records
        ends = set(np.cumsum([size for _, size in frames(packed.data)]).tolist())
        assert ends <= {*np.frombuffer(index.data, "<u8").tolist(), len(data.data)}


def test_a_shard_without_an_index_is_cut_anywhere() -> None:
    class Bare:
        def encode(self, records: list[bytes]) -> list[ShardFile]:
            return [ShardFile(".bin", b"".join(records), len(records))]

    (packed,) = SeekableZstd(Bare(), frame=1000).encode([b"ab"] * 2100)
    assert packed.ending == ".bin.zst"
    assert pyzstd.decompress(packed.data) == b"ab" * 2100


def test_a_worker_with_another_library_does_not_write() -> None:
    with pytest.raises(
        UsageError, match=r"expected version 1\.4\.0 of the library, .* found .*install the same version"
    ):
        SeekableZstd(JsonlFormat(), library="1.4.0").encode([1])
