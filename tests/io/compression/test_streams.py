"""Compressed sources and pipes: decompressed bytes, errors of damage, and memory for decompression bombs.

Damaged files in a long run: `python -m tests.io.compression.test_streams INPUTS [SEED]`.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import lz4.frame
import pytest
import zstandard

from ledgerbeam.errors import (
    ArchiveError,
    CheckpointError,
    NotIndexableError,
    RecordError,
    SourceError,
    SourceNotFoundError,
    UsageError,
)
from ledgerbeam.io import Sample, TarFormat, recognize
from ledgerbeam.io.compression.streams import (
    ALLOW_PIPES,
    BLOCK,
    Stream,
    decompressed,
    decompressed_pieces,
    read_pipe,
    split_compression,
)
from ledgerbeam.io.formats import base
from ledgerbeam.io.formats.format import StreamSpan
from ledgerbeam.io.formats.streamed import SpanReader, scan_stream, split_source
from ledgerbeam.io.lines.jsonl import stream_records
from ledgerbeam.io.storage.client import filesystem
from ledgerbeam.io.tar.writer import encode_tar
from ledgerbeam.iterators import Filter, IndexedManifest, Jsonl, Manifest, Shuffle
from tests.cases import each
from tests.io.fuzzing import Trial, fuzz_briefly, main, mangled

WRITERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": lambda data: gzip.compress(data, mtime=0),
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
    ".lz4": lz4.frame.compress,
}
NOISE = b"".join(b'{"n":%d,"x":"%s"}\n' % (n, os.urandom(40).hex().encode()) for n in range(20_000))


@pytest.fixture(params=WRITERS)
def suffix(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def whole(path: Path) -> bytes:
    return b"".join(decompressed(str(path)))


def test_a_name_tells_compression_and_content() -> None:
    for name, compression, plain in [
        ("a.jsonl.gz", "gzip", "a.jsonl"),
        ("s3://b/x.tgz", "gzip", "s3://b/x.tar"),
        ("d.gz/a.tar.zst", "zstd", "d.gz/a.tar"),
        ("a.GZ.jsonl", "gzip", "a.jsonl"),
        ("a.gz.b.jsonl", None, "a.gz.b.jsonl"),
        ("a.jsonl", None, "a.jsonl"),
    ]:
        found = split_compression(name)
        assert (found.compression and found.compression.name, found.url) == (compression, plain)
    assert recognize("a.jsonl.lz4").readable().name == "jsonl"
    assert recognize("a.tgz").readable().name == "tar"
    for name in ("a.bin.gz", "a.docx.gz", "gz", "pipe:cat a.jsonl.gz"):
        with pytest.raises((NotIndexableError, UsageError)):
            recognize(name).readable()
    with pytest.raises(UsageError, match=r"a\.docx\.gz: the name has no known format"):
        recognize("a.docx.gz")


@pytest.mark.slow
def test_all_of_it_comes_out_in_small_blocks(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    path.write_bytes(WRITERS[suffix](NOISE))
    blocks = list(decompressed(str(path)))
    assert b"".join(blocks) == NOISE
    assert max(map(len, blocks)) <= 1 << 20
    path.write_bytes(WRITERS[suffix](NOISE) + WRITERS[suffix](b"") + WRITERS[suffix](b"more"))  # frame after frame
    assert whole(path) == NOISE + b"more"
    store = filesystem("memory://")
    store.pipe_file(f"/compression/x{suffix}", WRITERS[suffix](NOISE))
    try:
        assert b"".join(decompressed(f"memory://compression/x{suffix}")) == NOISE
    finally:
        store.rm("/compression", recursive=True)


def test_padding_is_passed_over_and_anything_else_is_not(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    data = WRITERS[suffix](NOISE)
    path.write_bytes(data + bytes(512))
    if suffix in (".gz", ".xz"):
        assert whole(path) == NOISE
    else:
        with pytest.raises(SourceError, match=r"the .* data is (damaged|cut off)"):
            whole(path)
    path.write_bytes(data + b"something else")
    with pytest.raises(SourceError, match=r"the .* data is (damaged|cut off)"):
        whole(path)


@pytest.mark.slow
def test_a_file_that_is_cut_off_or_damaged_is_an_error_with_its_byte(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    data = WRITERS[suffix](NOISE)
    for length in (1, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(SourceError, match=rf"x{suffix}: .* cut off at or after byte {length:,} of the file"):
            whole(path)
    path.write_bytes(data + data[: len(data) // 2])  # of which the first frame is whole
    with pytest.raises(SourceError, match="cut off at or after byte"):
        whole(path)
    if suffix not in (".zst", ".lz4"):  # whose frames need not have a checksum
        flipped = bytearray(data)
        flipped[len(data) // 2] ^= 0x10
        path.write_bytes(flipped)
        with pytest.raises(SourceError, match=r"data is damaged at or after byte 0 of the file, [\d,]+ bytes"):
            whole(path)
    for other, found in ((b"", "an empty file"), (b"no such thing", "text that is not compressed")):
        path.write_bytes(other)
        with pytest.raises(SourceError, match=f"x{suffix}: expected .* data, as its name says, found {found}"):
            whole(path)
    with pytest.raises(SourceNotFoundError):
        whole(tmp_path / f"none{suffix}")


BOMB = """
import resource, sys
from ledgerbeam.errors import RecordError
from ledgerbeam.io.formats.streamed import scan_stream
from ledgerbeam.io.formats import base
base.MOST_RECORD = 1 << 26
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    scan_stream(sys.argv[1])
except RecordError as error:
    print(error)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_a_bomb_gets_little_memory_and_an_error(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x.jsonl{suffix}"
    path.write_bytes(WRITERS[suffix](bytes(1 << 28)))  # 256 MiB of one line
    assert path.stat().st_size < 1 << 21
    done = subprocess.run([sys.executable, "-c", BOMB, str(path)], capture_output=True, text=True, check=True)
    message, grown = done.stdout.splitlines()
    assert "record 0, which starts at byte 0 of the decompressed data, has at least" in message
    assert int(grown) < 120 * 1024  # KiB


def test_lines_are_found_and_read_by_spans(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x.jsonl{suffix}"
    path.write_bytes(WRITERS[suffix](NOISE + b'\n{"bad"\n{"n":-1}'))
    offsets = scan_stream(str(path)).offsets.tolist()
    assert len(offsets) == 20_000 + 3 + 1
    assert offsets[-1] == len(NOISE) + 16
    with SpanReader(str(path)) as reader:
        for first, stop in ((0, 3), (7000, 7100), (19_999, 20_001)):
            found = reader.read(StreamSpan(first, stop - first, offsets[first], offsets[stop]))
            assert [record["n"] for record in found] == list(range(first, min(stop, 20_000)))
        with pytest.raises(RecordError, match=rf"record 20001, bytes \[{len(NOISE) + 1}, "):
            reader.read(StreamSpan(20_001, 1, *offsets[20_001:20_003]))
        assert reader.read(StreamSpan(20_002, 1, *offsets[20_002:])) == [{"n": -1}]
        with pytest.raises(ArchiveError, match="expected a read from byte"):
            reader.read(StreamSpan(0, 1, *offsets[:2]))
    with SpanReader(str(path)) as reader, pytest.raises(ArchiveError, match="has changed"):
        reader.read(StreamSpan(0, 2, 0, offsets[1]))
    with SpanReader(str(path)) as reader, pytest.raises(ArchiveError, match="has changed"):
        reader.read(StreamSpan(0, 1, 0, offsets[-1] + 1))


@pytest.mark.slow
@pytest.mark.parametrize("group", ["pairs", "key"])
def test_samples_are_found_and_read_by_spans(tmp_path: Path, suffix: str, group: str) -> None:
    extensions = ["bin", "json"] if group == "pairs" else ["bin", "json", "meta.json"]
    samples = [
        Sample(
            f"{'long-' * 30 * (n % 7 == 3)}s{n:04d}", {extension: os.urandom(n * 13 % 4000) for extension in extensions}
        )
        for n in range(500)
    ]
    data, offsets = encode_tar(samples)
    path = tmp_path / f"x.tar{suffix}"
    path.write_bytes(WRITERS[suffix](data))
    found = scan_stream(str(path))
    assert isinstance(found.format, TarFormat)
    assert found.format.paired == (group == "pairs")
    assert found.offsets[:-1].tolist() == offsets[:-1].tolist()
    places = found.offsets.tolist()
    with SpanReader(str(path), None, found.format) as reader:
        for first, stop in ((0, 1), (3, 90), (450, 500)):
            read = reader.read(StreamSpan(first, stop - first, places[first], places[stop]))
            assert [(sample.key, sample) for sample in read] == [(sample.key, sample) for sample in samples[first:stop]]


def test_an_archive_that_is_cut_off_inside_is_an_error(tmp_path: Path, suffix: str) -> None:
    data, _ = encode_tar([Sample(f"s{n}", {"a": bytes(3000), "b": b"x"}) for n in range(50)])
    path = tmp_path / f"x.tar{suffix}"
    for length in (69 * 512, 70 * 512 + 100, 90_000):
        path.write_bytes(WRITERS[suffix](data[:length]))
        with pytest.raises(ArchiveError, match=r"x\.tar"):
            scan_stream(str(path))
    path.write_bytes(WRITERS[suffix](b""))
    with pytest.raises(ArchiveError, match="empty"):
        scan_stream(str(path))


def test_an_archive_behind_another_is_an_error(tmp_path: Path, suffix: str) -> None:
    data, _ = encode_tar([Sample("a", {"x": b"1"})])
    path = tmp_path / f"x.tar{suffix}"
    path.write_bytes(WRITERS[suffix](data) + WRITERS[suffix](data))
    with pytest.raises(ArchiveError, match=rf"x\.tar{suffix}: the archive ends at byte 1024, and something follows"):
        scan_stream(str(path))


def test_records_beyond_the_limit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "MOST_RECORD", 5000)
    path = tmp_path / "x.tar.gz"
    path.write_bytes(gzip.compress(encode_tar([Sample("a", {"b": b""}), Sample("c", {"b": bytes(9000)})])[0]))
    with pytest.raises(RecordError, match="record 1, which starts at byte 512"):
        scan_stream(str(path))
    with pytest.raises(NotIndexableError, match="megatron is not read compressed"):
        scan_stream(str(tmp_path / "x.bin.gz"))
    with pytest.raises(SourceError, match="at most 5,000 bytes when decompressed"):
        split_source(path.read_bytes(), str(path))


def test_a_frame_that_asks_for_much_memory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.zst"
    for window, refused in ((27, False), (28, True)):
        parameters = zstandard.ZstdCompressionParameters(window_log=window)
        compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
        path.write_bytes(compressor.compress(NOISE) + compressor.flush())
        if refused:
            with pytest.raises(SourceError, match="too much memory"):
                whole(path)
        else:
            assert whole(path) == NOISE


def test_damage_ends_every_further_read(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(NOISE)[:500_000])
    stream = Stream(str(path))
    assert stream.read(10, 20) == NOISE[10:20]
    for _ in range(2):
        with pytest.raises(SourceError, match="cut off at or after byte 500,000"):
            stream.read(len(NOISE) - 1, len(NOISE))
    stream.close()


SOUND = random.Random(5).randbytes(400) * 5
MOST_BLOCK = 32 * BLOCK  # of Zstandard, in bytes


def compression_trial(_: Path) -> Trial:
    frames = {
        "gzip": gzip.compress(SOUND) + gzip.compress(b"more") + bytes(7),
        "bzip2": bz2.compress(SOUND) + bz2.compress(b"more"),
        "xz": lzma.compress(SOUND, check=lzma.CHECK_CRC32, preset=0) + bytes(4),
        "zstd": zstandard.ZstdCompressor(write_checksum=True).compress(SOUND) + zstandard.compress(b"more"),
        "lz4": lz4.frame.compress(SOUND, content_checksum=True, block_size=lz4.frame.BLOCKSIZE_MAX64KB),
    }

    def trial(chance: random.Random) -> str:
        name = chance.choice(list(frames))
        data = mangled(frames[name], chance, [0, 4, 8, -8, -4], chance.choice([1, 4, 8]))
        cut = chance.randrange(len(data) + 1)
        made = 0
        for block in decompressed_pieces(iter([data[:cut], data[cut:]]), name, "x"):
            assert len(block) <= MOST_BLOCK
            made += len(block)
        return f"read {name}, {'as it was' if made >= len(SOUND) else 'less'}"

    return trial


def test_damaged_compressed_files_give_typed_errors(tmp_path: Path) -> None:
    outcomes = fuzz_briefly(compression_trial(tmp_path), 800, most=20_000_000, name="x: ")
    assert outcomes["SourceError"] > 500
    assert sum(count for outcome, count in outcomes.items() if outcome.startswith("read ")) > 5


# pipes: only if they are allowed, as streams, and never with half of the output of a command


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOW_PIPES, "1")


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(b'{"n":%d}\n' % number for number in range(1000))))
    return path


@pytest.mark.parametrize("value", [None, "", "0", "true"])
def test_nothing_runs_unless_it_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    monkeypatch.delenv(ALLOW_PIPES, raising=False)
    if value is not None:
        monkeypatch.setenv(ALLOW_PIPES, value)
    trap = tmp_path / "trap"
    for read in (read_pipe, stream_records, lambda url: iter(Jsonl(url))):
        with pytest.raises(UsageError, match=f"runs a command, which is not allowed.*{ALLOW_PIPES}=1"):
            list(read(f"pipe:touch {trap}"))
    assert not trap.exists()


@pytest.mark.usefixtures("allowed")
def test_what_a_command_prints_is_streamed(lines: Path) -> None:
    url = f"pipe:zcat {lines} | grep -v 7"
    assert [record["n"] for record in stream_records(url)] == [n for n in range(1000) if "7" not in str(n)]
    graph = Filter(Jsonl(url), lambda record: record["n"] % 2 == 0)
    first = list(graph)
    assert len(first) > 100
    assert list(graph) == first  # the command runs again


@pytest.mark.usefixtures("allowed")
@each(
    ("command", "message"),
    [
        (
            "echo '{\"n\": 1}'; echo no such object >&2; exit 3",
            "expected the command to end with status 0, found 3.*no such obj",
        ),
        ("false | echo '{}'", "found 1"),
        ("zcat no-such-file.gz | head -n 5", "found 1"),
        ("kill -9 $$", "found -9"),
        ("no-such-command", "found 127"),
    ],
)
def test_a_command_that_fails_is_an_error(command: str, message: str) -> None:
    with pytest.raises(SourceError, match=f"(?s){message}"):
        list(stream_records(f"pipe:{command}"))


@pytest.mark.usefixtures("allowed")
def test_a_command_may_read_as_much_as_it_needs(lines: Path) -> None:
    assert len(list(stream_records(f"pipe:yes '{{}}' | head -n 70000; zcat {lines} | tail -n 5"))) == 70005
    assert len(list(stream_records("pipe:yes '{}' | head -n 70000"))) == 70000


@pytest.mark.usefixtures("allowed")
def test_a_reader_that_stops_ends_the_command(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    records = stream_records(f"pipe:echo $$ > {told}; echo '{{}}'; sleep 100 | cat")
    assert next(records) == {}
    records.close()  # type: ignore[attr-defined]
    process = int(told.read_text())
    for _ in range(100):
        if not os.path.exists(f"/proc/{process}"):
            break
        time.sleep(0.05)
    assert not os.path.exists(f"/proc/{process}")


@pytest.mark.usefixtures("allowed")
def test_a_pipe_is_no_source_that_can_be_indexed_saved_or_restored(lines: Path) -> None:
    url = f"pipe:zcat {lines}"
    with pytest.raises(NotIndexableError, match=r"stream it with ledgerbeam\.iterators\.Jsonl"):
        recognize(url)
    with pytest.raises((NotIndexableError, UsageError)):
        IndexedManifest(url)
    for graph in (Manifest(url), Jsonl(url), Shuffle(Manifest(url), 10)):
        with pytest.raises(CheckpointError):
            graph.state_dict()
    assert Manifest(str(lines)).is_checkpointable


@pytest.mark.usefixtures("allowed")
def test_an_empty_command_and_secrets_in_one() -> None:
    with pytest.raises(UsageError, match="expected a command"):
        list(read_pipe("pipe: "))
    with pytest.raises(SourceError) as failed:
        list(read_pipe("pipe:echo https://user:hunter2@host/x >&2; false"))
    assert "hunter2" not in str(failed.value)


if __name__ == "__main__":
    main(compression_trial)
