"""Findings of fuzzing, each as one input: untyped errors, and memory that a few damaged bytes could allocate."""

from __future__ import annotations

import io
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ledgerbeam.errors import (
    ArchiveError,
    ChangedSourceError,
    IndexMismatchError,
    LedgerbeamError,
    RecordError,
    SourceError,
    SourceNotFoundError,
)
from ledgerbeam.io import JsonlReader, TarReader
from ledgerbeam.io.datasets.lit.codecs import CODECS
from ledgerbeam.io.datasets.shar.payloads import array_shape
from ledgerbeam.io.datasets.shar.reader import SharReader
from ledgerbeam.io.idxpack.reader import IndexPack
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import open_local, stat
from ledgerbeam.io.tar.format import TarFormat
from tests.cases import each
from tests.io.tar.test_fuzz import member, old_sparse, pax, sparse_pax
from tests.iterators.data import write_lines, write_pack, write_samples, write_shar, write_text

FAR = [2**33, 2**45, 2**62, 2**63 - 1, 2**63, 2**64 - 1]


@pytest.mark.parametrize("far", FAR)
@pytest.mark.parametrize(
    "read",
    [
        lambda reader: reader[len(reader) - 1],
        lambda reader: reader.raw(len(reader) - 1),
        lambda reader: reader.read_many([len(reader) - 1] * 40),
        lambda reader: reader.read_many(range(len(reader))),
        lambda reader: reader.read_span(len(reader) - 2, len(reader)),
        list,
    ],
    ids=["one", "raw", "same", "many", "span", "all"],
)
@pytest.mark.parametrize("kind", ["jsonl", "tar"])
def test_an_offset_beyond_the_source_claims_no_memory(tmp_path: Path, kind: str, read: Any, far: int) -> None:
    url = (write_lines if kind == "jsonl" else write_samples)(tmp_path / f"a.{kind}", 40)
    index = Path(f"{url}.idx")
    index.write_bytes(index.read_bytes()[:-8] + far.to_bytes(8, "little"))
    with (
        (JsonlReader if kind == "jsonl" else TarReader)(url, check=False) as reader,
        pytest.raises((IndexMismatchError, ChangedSourceError), match=url),
    ):
        read(reader)


def test_lines_of_many_megabytes_are_read(tmp_path: Path) -> None:
    wide = "x" * (9 << 20)
    reader = JsonlReader(write_text(tmp_path / "a.jsonl", f'1\n"{wide}"\n3\n'))
    assert [reader[number] for number in range(3)] == reader.read_many([0, 1, 2]) == [1, wide, 3]
    assert reader.read_many([2, 1] * 20) == [3, wide] * 20


@pytest.mark.parametrize("start", [0, 5, 2**63 - 1, 2**70])
def test_a_range_beyond_the_source_claims_no_memory(tmp_path: Path, start: int) -> None:
    (tmp_path / "a").write_bytes(b"some bytes")
    reader = RangeReader(f"{tmp_path}/a")
    assert reader.read(0, 4) == b"some"
    with pytest.raises(ChangedSourceError, match="now ends at 10"):
        reader.read(start, start + 2**62)


@pytest.mark.parametrize("name", ["a\0b.jsonl", "\ud800.jsonl"])
def test_a_name_that_no_file_can_have_names_nothing(tmp_path: Path, name: str) -> None:
    url = f"{tmp_path}/{name}"
    for read in (stat, JsonlReader, lambda url: RangeReader(url).read(0, 1), lambda url: open_local(url).__enter__()):
        with pytest.raises(SourceNotFoundError, match="no file can have this name"):
            read(url)


def damaged_pack(folder: Path, changes: dict[int, int]) -> IndexPack:
    """Open a pack of the index of one source, with other numbers at some bytes."""
    pack = Path(write_pack(folder / "a.idxpack", [write_lines(folder / "n.jsonl", 4)]))
    data = bytearray(pack.read_bytes())
    for at, number in changes.items():
        data[at : at + 8] = (number % 2**64).to_bytes(8, "little")
    pack.write_bytes(data)
    return IndexPack(str(pack))


@pytest.mark.parametrize(
    ("at", "put_in", "found"), [(0, b"\xff", "UTF-8"), (-1, b"\xff", "UTF-8"), (-2, b".x", "names no source")]
)
def test_a_pack_with_a_damaged_name(tmp_path: Path, at: int, put_in: bytes, found: str) -> None:
    name = write_lines(tmp_path / "n.jsonl", 4).encode()
    pack = Path(write_pack(tmp_path / "a.idxpack", [name.decode()]))
    data = bytearray(pack.read_bytes())
    place = data.index(name) + at % len(name)
    data[place : place + len(put_in)] = put_in
    pack.write_bytes(data)
    with pytest.raises(IndexMismatchError, match=rf"a\.idxpack: .*{found}.*write the pack again"):
        IndexPack(str(pack)).collection()[0]


@pytest.mark.parametrize("end", [-1, 0, 5, 2**62, 2**63 - 1])
def test_a_pack_that_counts_other_records_than_its_indexes(tmp_path: Path, end: int) -> None:
    pack = damaged_pack(tmp_path, {256 + 72 + 8: end})
    with pytest.raises(IndexMismatchError, match=r"a\.idxpack: .*the record counts of"):
        pack.collection()


@pytest.mark.parametrize(("items", "size"), [(2**61 + 5, 40), (2**61 - 1, 2**64 - 8)])
def test_a_pack_whose_sizes_wrap_around(tmp_path: Path, items: int, size: int) -> None:
    segment = 256 + 72 + 16
    with pytest.raises(IndexMismatchError, match=r"a\.idxpack: .*write the pack again"):
        damaged_pack(tmp_path, {segment + 24: items, segment + 40: size})


@pytest.mark.parametrize(
    ("name", "line", "found"),
    [
        *(("cuts", line, "expected the cut of this number to be an object") for line in ("[]", "3", '"id"', "{}")),
        *(("label", line, r"label\.000000\.jsonl: record 0: expected an object") for line in ("[]", "3", "null")),
    ],
)
def test_a_cut_or_a_field_that_is_none(tmp_path: Path, name: str, line: str, found: str) -> None:
    path = Path(write_shar(tmp_path / "shar", 23), f"{name}.000000.jsonl")
    write_text(path, "\n".join([line, *path.read_text(encoding="utf-8").splitlines()[1:]]) + "\n")
    with pytest.raises(RecordError, match=found):
        SharReader(str(path.parent))[0]


@pytest.mark.parametrize("name", ["cuts.000000.json_l", "xx://a"])
def test_a_list_of_shards_of_no_format(tmp_path: Path, name: str) -> None:
    (tmp_path / "fields.json").write_text(f'{{"cuts": ["{name}"]}}')
    with pytest.raises(SourceError, match=r"fields\.json: expected shards in JSONL and tar"):
        SharReader(f"{tmp_path}/fields.json")


@each(
    ("version", "header"),
    [
        (1, "{'descr': '<f4', 'fortran_order': False, 'shape': ((((2,), }"),
        (1, "{'descr': '<f4', 'fortran_order': False, 'shape': (1L,"),
        (1, "{'descr': '<f4', 'fortran_order': False, 'shape': " + "(" * 3000),
        (1, "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -2)}"),
        (1, "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}"),
        (9, "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}"),
    ],
)
def test_an_array_header_that_python_does_not_parse(version: int, header: str) -> None:
    text = header.encode() + b"\n"
    with pytest.raises(RecordError, match="'npy': expected"):
        array_shape(b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(2, "little") + text + bytes(8), "npy")


def test_a_png_that_claims_more_labels_than_its_bytes_can_hold() -> None:
    data = bytearray(CODECS["SEG8"].encode(np.zeros((4, 4), np.uint8), "seg8"))
    data[16:24] = (9000).to_bytes(4) * 2
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4)
    with pytest.raises(ValueError, match="found a PNG of 9000 by 9000"):
        CODECS["SEG8"].decode(bytes(data))


def test_the_densest_label_maps_are_read() -> None:
    zeros = np.zeros((3000, 3000), np.uint8)
    assert (CODECS["SEG8"].decode(CODECS["SEG8"].encode(zeros, "seg8")) == zeros).all()


@pytest.mark.parametrize("digits", [20, 4300, 5000])
def test_a_size_of_thousands_of_digits(digits: int) -> None:
    data = pax(("size", "9" * digits)) + member("a.bin", b"0", b"d") + bytes(1024)
    with pytest.raises(ArchiveError, match=r"x\.tar: the pax header before byte .* has the invalid size"):
        TarFormat().split(data, "x.tar")


@pytest.mark.parametrize("real", [2**20 * 8, 8**11 - 1])
def test_a_sparse_member_that_claims_more_than_its_archive_can_mean(real: int) -> None:
    data = old_sparse(real) + member("s.json", b"0", b"{}") + bytes(1024)
    with pytest.raises(ArchiveError, match=r"x\.tar: the sparse member 's\.bin' at byte 0 is damaged .*at most"):
        TarFormat().split(data, "x.tar")


@pytest.mark.parametrize("given", ["x,512", "1024,99999", "1024", ""])
def test_a_damaged_map_of_a_sparse_member(given: str) -> None:
    data = sparse_pax(size="3000", numblocks="1", map=given)
    data += member("s.x", b"0", b"d" * 512) + bytes(1024)
    try:
        TarFormat().split(data, "x.tar")
    except LedgerbeamError as error:
        assert "sparse member 's.x' at byte 0 is damaged" in str(error)  # noqa: PT017
    else:
        assert given == "1024"  # a map with one number has no data


def test_numpy_versions_of_arrays_are_read() -> None:
    for version in ((1, 0), (2, 0), (3, 0)):
        content = io.BytesIO()
        np.lib.format.write_array(content, np.zeros((2, 3)), version=version)
        assert array_shape(content.getvalue(), "npy") == [2, 3]
