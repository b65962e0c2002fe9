"""Formats by name, also of other packages; streams of sources without an index; golden files of lhotse."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.own_format import TextLines
from ledgerbeam.errors import NotIndexableError, RecordError, SourceError, SourceNotFoundError, UsageError
from ledgerbeam.io import JsonlFormat, recognize, register
from ledgerbeam.io.formats import registry
from ledgerbeam.io.formats.registry import format_named
from ledgerbeam.io.formats.streamed import split_source
from ledgerbeam.io.index.file import IndexFile, write_index
from ledgerbeam.io.lines.jsonl import stream_records
from ledgerbeam.io.storage.client import filesystem
from ledgerbeam.io.storage.stat import stat
from ledgerbeam.io.tar.format import TarFormat
from ledgerbeam.io.tar.reader import TarReader, build_tar_index
from tests.cases import each

GOLDEN = Path(__file__).resolve().parents[2] / "golden"


LINES = ["a.jsonl", "s3://b/A.JSONL", "cuts.jsonl.000001", "x.json", "x.ndjson", "gz.d/x.jsonl"]
ARCHIVES = ["x.tar", "x.tar.0", "recording.000001.tar"]


@each(("name", "found"), [*((name, "jsonl") for name in LINES), *((name, "tar") for name in ARCHIVES)])
def test_a_name_tells_the_format(name: str, found: str) -> None:
    assert recognize(name).plain() is format_named(found)
    assert format_named(found).name == found
    assert format_named(found).suffixes[0] == f".{found}"
    assert recognize(name).compression is None


@each(
    ("name", "remedy"),
    [
        ("a.jsonl.gz", r"gunzip a\.jsonl\.gz"),
        ("s3://b/x.tar.xz", r"unxz x\.tar\.xz"),
        ("x.tgz", "gunzip"),
        ("x.jsonl.zst", "unzstd"),
        ("x.gz.jsonl", "gunzip"),
        ("x.jsonl.bz2", "bunzip2"),
        ("x.jsonl.lz4", "unlz4"),
        ("pipe:cat x.jsonl", "pipe has no byte offsets"),
    ],
)
def test_what_has_no_offsets_is_refused_with_a_remedy(name: str, remedy: str) -> None:
    with pytest.raises(NotIndexableError, match=remedy):
        recognize(name).plain()


@each("name", ["x", "x.doc", "tar", "a.jsonl/x", ".idx"])
def test_other_names_are_usage_errors(name: str) -> None:
    with pytest.raises(UsageError, match="has no known format"):
        recognize(name)


TEXT = b'{"a":1}\n\n{"b":2}\r\n{"c":3}'
WRITERS: dict[str, Any] = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


@pytest.mark.parametrize("suffix", WRITERS)
def test_plain_and_compressed_sources_stream(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x.jsonl{suffix}"
    path.write_bytes(WRITERS[suffix](TEXT))
    assert list(stream_records(str(path))) == [{"a": 1}, {"b": 2}, {"c": 3}]
    store = filesystem("memory://")
    store.pipe_file(f"/stream/x.jsonl{suffix}", path.read_bytes())
    try:
        assert list(stream_records(f"memory://stream/x.jsonl{suffix}")) == [{"a": 1}, {"b": 2}, {"c": 3}]
    finally:
        store.rm("/stream", recursive=True)


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz"])
def test_damaged_compression_is_an_error_after_the_records_before_it(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x.jsonl{suffix}"
    whole = WRITERS[suffix](b"".join(b'{"n":%d,"x":"%s"}\n' % (i, os.urandom(30).hex().encode()) for i in range(5000)))
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SourceError, match=r"cut off at or after byte [\d,]+ of the file, [\d,]+ bytes decompressed"):
        list(stream_records(str(path)))
    path.write_bytes(b"no such thing")
    with pytest.raises(SourceError, match="found text that is not compressed; give it a name without"):
        list(stream_records(str(path)))


def test_stream_errors_name_the_record(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a":1}\n{"b":\n'))
    with pytest.raises(RecordError, match=r"record 1, bytes \[8, 13\)"):
        list(stream_records(str(path)))
    with pytest.raises(SourceNotFoundError):
        list(stream_records(str(tmp_path / "none.jsonl")))


def golden(name: str, folder: Path) -> str:
    """Unpack a golden source beside a copy of its index, with times in the order of a build."""
    path = folder / name
    if name.endswith(".tar"):
        path.write_bytes(gzip.decompress((GOLDEN / f"{name}.gz").read_bytes()))
    else:
        shutil.copyfile(GOLDEN / name, path)
    shutil.copyfile(GOLDEN / f"{name}.idx", f"{path}.idx")
    return str(path)


NAMES = sorted(path.name.removesuffix(".idx") for path in GOLDEN.glob("*.idx"))


def test_the_golden_files_are_there() -> None:
    assert len(NAMES) == 11


@pytest.mark.parametrize("name", NAMES)
def test_our_index_is_byte_equal_with_that_of_lhotse(tmp_path: Path, name: str) -> None:
    url = golden(name, tmp_path)
    kind, pairs = recognize(url).plain(), recognize(url, [TarFormat("pairs")]).plain()
    ours = tmp_path / "ours.idx"
    write_index(str(ours), pairs.build_index(url))
    assert ours.read_bytes() == Path(f"{url}.idx").read_bytes()
    np.testing.assert_array_equal(kind.build_index(url), IndexFile(f"{url}.idx").load())


@pytest.mark.parametrize("name", NAMES)
def test_the_index_of_lhotse_is_read(tmp_path: Path, name: str) -> None:
    url = golden(name, tmp_path)
    kind = recognize(url).plain()
    kind.check_index(IndexFile(f"{url}.idx"), stat(url), deep=True)
    reader = kind.open(url)
    whole = split_source(Path(url).read_bytes(), url)
    assert reader.read_span(0, len(reader)) == whole == list(reader)
    if name.endswith(".tar"):
        assert [sample.key for sample in reader] == [
            *("a", "b.c", "dir/d", "speaker/" + "utterance-" * 11 + "7", "sprecher-grün")
        ][: len(reader)]
        assert all(set(sample) == {"flac", "json"} for sample in reader)
        assert len(reader[2]["flac"]) == 300


def test_an_index_of_energon_ends_at_the_last_member(tmp_path: Path) -> None:
    url = golden("shar-ustar.tar", tmp_path)
    offsets = build_tar_index(url, group="key")
    assert offsets.tolist()[:-1] == build_tar_index(url, group="pairs").tolist()[:-1]
    assert int(offsets[-1]) < int(build_tar_index(url, group="pairs")[-1])
    write_index(f"{url}.idx", offsets)
    assert [sample.key for sample in TarReader(url)] == ["a", "b.c", "dir/d"]


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test loads the formats again. Afterwards the earlier formats are restored."""
    monkeypatch.setattr(registry, "_known", None)


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, points: str, code: str = "") -> None:
    """Write a package with entry points into the import path."""
    info = folder / "its_format-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: its-format\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[ledgerbeam.formats]\n{points}\n")
    (folder / "its_format.py").write_text(code)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "its_format", raising=False)


def test_an_entry_point_is_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "lines = examples.own_format:TextLines")
    assert recognize("s3://b/a.LINES").format == format_named("lines") == TextLines()
    assert recognize("a.lines.gz").by_position() == TextLines()
    assert recognize("a.jsonl-0000000000.lines").format == TextLines()


def test_a_format_is_registered_and_configured() -> None:
    with pytest.raises(UsageError, match="no known format"):
        recognize("a.lines")
    latin = TextLines(encoding="latin-1")
    assert recognize("a.lines", [latin]).format is latin
    register(TextLines())
    register(TextLines())  # as when a module is loaded twice
    assert recognize("a.lines").format == TextLines()
    assert recognize("a.lines", [latin]).format is latin
    assert recognize("a.jsonl", [JsonlFormat(threads=3)]).format == JsonlFormat(threads=3)


def named(name: str, *suffixes: str) -> TextLines:
    """Return a format of another name."""
    kind: type[TextLines] = type(name.title(), (TextLines,), {"name": name, "suffixes": suffixes})
    return kind()


@each(
    ("kind", "found"),
    [
        (named("tarred", ".tar"), r"the suffix \.tar belongs to 'tar'"),
        (named("zipped", ".gz"), r"the suffix \.gz belongs to a compression"),
        (named("dotless", "txt"), r"found 'txt'"),
        (named("jsonl", ".lines"), r"the name 'jsonl' is taken"),
    ],
)
def test_what_would_be_mistaken_is_refused(kind: TextLines, found: str) -> None:
    with pytest.raises(UsageError, match=found):
        register(kind)


def test_two_formats_of_one_suffix_are_refused() -> None:
    register(TextLines())
    with pytest.raises(UsageError, match=r"Other: the suffix \.lines belongs to 'lines'"):
        register(named("other", ".lines"))


@pytest.mark.parametrize(
    ("point", "code", "found"),
    [
        ("lines = its_format:Missing", "", r"lines = its_format:Missing of ledgerbeam\.formats in its-format cannot"),
        ("lines = its_format:make", "def make():\n    1 / 0\n", "ZeroDivisionError"),
        ("word = examples.own_format:TextLines", "", "the entry point's name, 'word', found 'lines'"),
    ],
)
def test_an_entry_point_that_cannot_be_loaded_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, code: str, found: str
) -> None:
    install(tmp_path, monkeypatch, point, code)
    for _ in range(2):
        assert recognize("a.jsonl").format == format_named("jsonl")  # a broken entry point does not affect other names
        with pytest.raises(UsageError, match=found):
            recognize("a.lines")
        with pytest.raises(UsageError, match=found):
            format_named("lines")


def test_the_suffixes_of_built_in_formats_are_known_without_loading_them() -> None:
    """A format is looked up for each task, and entry points are loaded only for unknown names."""
    built_in = {name: kind for name, kind in registry.formats().items() if name in registry._BUILT_IN}
    found = {suffix: name for name, kind in built_in.items() for suffix in kind.suffixes}
    assert found == registry._SUFFIXES
    assert len(built_in) == len(registry._BUILT_IN)


def test_built_in_formats_need_no_other_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "lines = its_format:make", "raise RuntimeError('it was loaded')\n")
    for name in ("a.jsonl", "S3://b/A.JSONL.GZ", "a.tar.zst", "a.parquet"):
        assert recognize(name).format.name in registry._BUILT_IN
    assert registry._known is None
    assert recognize("a.tar", [JsonlFormat(threads=3)]).format == format_named("tar")


def test_a_format_is_registered_and_an_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from examples.own_format import TextLines as make\nfrom ledgerbeam.io import register\nregister(make())\n"
    install(tmp_path, monkeypatch, "lines = its_format:make", code)
    assert recognize("a.lines").format == TextLines()
