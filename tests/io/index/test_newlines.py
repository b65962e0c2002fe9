"""The newline scanner against splitting in Python."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgerbeam.errors import ChangedSourceError, SourceNotFoundError, StorageError
from ledgerbeam.io.index import newlines
from ledgerbeam.io.index.newlines import assemble_jsonl_index, build_jsonl_index, count_lines, scan_newlines
from ledgerbeam.io.storage.client import filesystem
from tests.memory import peak_of

pytestmark = pytest.mark.usefixtures("implementation")

# Newlines at every distance: side by side, in one word of eight bytes, far apart.
_texts = st.lists(
    st.one_of(st.binary(max_size=20), st.just(b"\n"), st.just(b"\n\n\n"), st.integers(1, 300).map(lambda n: b"x" * n)),
    max_size=60,
).map(b"".join)


def expected(data: bytes) -> list[int]:
    ends = [i + 1 for i, byte in enumerate(data) if byte == 10]
    return [0, *ends, *([len(data)] if data and not data.endswith(b"\n") else [])]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("newlines") / "data.jsonl"


@settings(max_examples=120, deadline=None)
@given(data=_texts)
def test_an_index_is_the_begin_of_every_line_and_the_size(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    assert build_jsonl_index(str(path)).tolist() == expected(data)


@pytest.mark.parametrize("counted", [1, 7, 1 << 18])
@settings(max_examples=60, deadline=None)
@given(data=_texts)
def test_lines_of_bytes_are_counted_in_pieces_of_any_size(counted: int, data: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(newlines, "_COUNTED", counted)
        assert count_lines(data) == len(expected(data)) - 1


@settings(max_examples=60, deadline=None)
@given(data=_texts, cuts=st.lists(st.integers(0, 2000), max_size=5))
def test_scans_of_any_ranges_assemble_to_the_index(path: Path, data: bytes, cuts: list[int]) -> None:
    path.write_bytes(data)
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    parts = (scan_newlines(str(path), start, stop) for start, stop in pairwise(bounds))
    found = assemble_jsonl_index(parts, len(data))
    assert found.dtype == np.uint64
    assert found.tolist() == expected(data)


@pytest.mark.parametrize("block", [8, 64, 1000])
def test_lines_across_blocks_and_segments_are_found_by_any_number_of_threads(
    path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    data = b"".join(b"y" * (i * 7 % 50) + b"\n" * (i % 4) for i in range(500))
    path.write_bytes(data)
    monkeypatch.setattr(newlines, "_BLOCK", block)
    monkeypatch.setattr(newlines, "_SEGMENT", 4 * block)
    monkeypatch.setattr(newlines, "_REQUEST", 3 * block)
    for threads in (1, 2, 5):
        assert build_jsonl_index(str(path), threads=threads).tolist() == expected(data)
    store = filesystem("memory://")
    store.pipe_file("/newlines/data", data)
    try:
        assert build_jsonl_index("memory://newlines/data").tolist() == expected(data)
    finally:
        store.rm("/newlines", recursive=True)


def test_other_line_ends_are_not_line_ends(path: Path) -> None:
    first = "a\rb\u2028c\x85d\x0be\r\n".encode()
    path.write_bytes(first + b"f")
    assert build_jsonl_index(str(path)).tolist() == [0, len(first), len(first) + 1]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_file_that_is_shorter_than_told_is_an_error(
    path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    monkeypatch.setattr(newlines, "_SEGMENT", 1024)
    path.write_bytes(b"x\n" * 1000)
    with pytest.raises(ChangedSourceError, match=r"expected .* bytes, found 2000"):
        scan_newlines(str(path), 0, 3000, threads=threads)


def test_descriptors_are_closed_and_what_cannot_be_read_is_an_error(path: Path) -> None:
    path.write_bytes(b"x\n" * 1000)
    before = len(os.listdir("/proc/self/fd"))
    build_jsonl_index(str(path), threads=2)
    with pytest.raises(SourceNotFoundError, match=r"none\.jsonl"):
        scan_newlines(str(path.with_name("none.jsonl")), 0, 10)
    with pytest.raises(StorageError, match="cannot read"):
        scan_newlines("/proc/self/mem", 0, 10)  # it opens, but has no page there
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.slow
def test_memory_is_eight_bytes_a_record_and_blocks(tmp_path: Path) -> None:
    source = tmp_path / "lines.jsonl"
    source.write_bytes(b"0123456789abcd\n" * 8_000_000)
    found, peak = peak_of(lambda: build_jsonl_index(str(source)))
    assert len(found) == 8_000_001
    assert peak < 8 * len(found) * 1.3 + 8 * 1024 * 1024
