"""Readers of Megatron datasets: parts, documents, arrays, `compat`, modes, stores, and data of several blocks."""

from __future__ import annotations

import gc
import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from ledgerbeam.errors import (
    ChangedSourceError,
    IndexMismatchError,
    IndexNotFoundError,
    SourceNotFoundError,
    UsageError,
)
from ledgerbeam.io.datasets.megatron import MegatronReader, encode_part, merge_megatron, write_megatron
from ledgerbeam.io.datasets.megatron.index import BLOCK
from ledgerbeam.io.datasets.megatron.layout import Layout
from ledgerbeam.io.datasets.megatron.writer import IndexWriter
from ledgerbeam.io.storage.client import filesystem
from ledgerbeam.io.storage.files import read_bytes
from ledgerbeam.io.storage.publish import publish_bytes
from tests.conftest import S3Requests, S3Server
from tests.io.conformance import COUNT, SequenceConformance, fresh
from tests.io.datasets.megatron.content import DTYPES

SEQUENCES = [[0, 1, 2], [3, 4], [], [5, 6, 7, 8], [9]]
ENDS = [1, 1, 4, 5]


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    with write_megatron(str(tmp_path / "d"), multimodal=True) as builder:
        lengths = [len(sequence) for sequence in SEQUENCES]
        builder.add_documents(range(10), lengths, ENDS, modes=[1, 0, 0, -2, 5])
    return str(tmp_path / "d")


@pytest.fixture(params=[True, False], ids=["mapped", "file"])
def mmap(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def lists(sequences: Any) -> list[list[int]]:
    return [tokens.tolist() for tokens in sequences]


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ((3,), [5, 6, 7, 8]),
        ((3, 1), [6, 7, 8]),
        ((3, 1, 2), [6, 7]),
        ((-2, 4), []),
        ((3, 2, 0), []),
        ((2,), []),
        ((np.int64(0), np.int64(1), np.int64(2)), [1, 2]),
    ],
)
def test_get_gives_a_part_of_a_sequence(prefix: str, mmap: bool, arguments: Any, found: list[int]) -> None:
    for compat in (True, False):
        assert MegatronReader(prefix, mmap=mmap, compat=compat).get(*arguments).tolist() == found


@pytest.mark.parametrize("arguments", [(3, 5), (3, -1), (3, 0, 5), (3, 4, 1), (3, 1, -1), (2, 1)])
def test_a_part_that_leaves_its_sequence_is_refused(prefix: str, mmap: bool, arguments: Any) -> None:
    with pytest.raises(UsageError, match=f"sequence {arguments[0]} has .* exceed it"):
        MegatronReader(prefix, mmap=mmap).get(*arguments)


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ((0, 0, 5), [0, 1, 2, 3, 4]),
        ((3, -2, 3), [3, 4, 5]),
        ((1, 1, -1), [4, 5, 6, 7, 8, 9]),
        ((1, 4), [7, 8, 9]),
        ((4, 1), []),
    ],
)
def test_compat_get_leaves_the_sequence(prefix: str, mmap: bool, arguments: Any, found: list[int]) -> None:
    assert MegatronReader(prefix, mmap=mmap, compat=True).get(*arguments).tolist() == found


@pytest.mark.parametrize("arguments", [(0, 0, 11), (0, -1), (4, 3, 1), (4, 2, -1)])
def test_compat_get_never_leaves_the_data(prefix: str, mmap: bool, arguments: Any) -> None:
    with pytest.raises(IndexMismatchError, match="within its 40 bytes"):
        MegatronReader(prefix, mmap=mmap, compat=True).get(*arguments)


def test_documents(prefix: str, mmap: bool) -> None:
    reader = MegatronReader(prefix, mmap=mmap)
    assert reader.document_count == 4
    assert reader.document_indices.tolist() == [0, 1, 1, 4, 5]
    assert [lists(reader.document(number)) for number in range(4)] == [[[0, 1, 2]], [], SEQUENCES[1:4], [[9]]]
    assert lists(reader.document(-2)) == SEQUENCES[1:4]
    for number in (4, -5):
        with pytest.raises(IndexError, match=f"no document {number}; it has 4"):
            reader.document(number)


def test_a_document_that_is_not_there_is_an_error(prefix: str) -> None:
    content = bytearray(Path(prefix + ".idx").read_bytes())
    at = MegatronReader(prefix).index.layout.documents_at + 8
    content[at : at + 8] = (99).to_bytes(8, "little")
    Path(prefix + ".idx").write_bytes(content)
    with pytest.raises(IndexMismatchError, match=r"document 0 in sequences \[0, 5\), found it in \[0, 99\)"):
        MegatronReader(prefix).document(0)


def test_properties_are_those_of_the_index(prefix: str) -> None:
    reader = MegatronReader(prefix)
    assert reader.dtype == np.int32
    assert reader.sequence_lengths.tolist() == [3, 2, 0, 4, 1]
    width = reader.dtype.itemsize
    assert reader.sequence_pointers.tolist() == [width * start for start in (0, 3, 5, 5, 9)]
    assert reader.get(idx=3, offset=1, length=2).tolist() == reader[3][1:3].tolist()
    for number in range(reader.document_count):
        document = [tokens.tolist() for tokens in reader.document(number)]
        assert [tokens.tolist() for tokens in reader.get_document_sequences(number)] == document
    assert reader.index.pointers.tolist() == [0, 12, 20, 20, 36]
    assert reader.sequence_modes is not None
    assert reader.sequence_modes.tolist() == [1, 0, 0, -2, 5]
    assert reader.raw(1) == np.array([3, 4], "<i4").tobytes()


def test_arrays_outlive_their_reader(prefix: str, mmap: bool) -> None:
    """Megatron unmaps the file below them, and the process ends with a segmentation fault."""
    array = MegatronReader(prefix, mmap=mmap)[3]
    span = MegatronReader(prefix, mmap=mmap)[:]
    with MegatronReader(prefix, mmap=mmap) as reader:
        lengths, first = reader.sequence_lengths, reader[0]
    del reader
    gc.collect()
    os.unlink(prefix + ".bin")
    assert array.tolist() == [5, 6, 7, 8]
    assert lists(span) == SEQUENCES
    assert (lengths.tolist(), first.tolist()) == ([3, 2, 0, 4, 1], [0, 1, 2])


def test_arrays_are_read_only(prefix: str, mmap: bool) -> None:
    reader = MegatronReader(prefix, mmap=mmap)
    for array in (reader[0], reader[0:2][1], reader.get(3, 1), reader.sequence_lengths):
        assert not array.flags.writeable


def test_compat_slices_are_megatrons(prefix: str, mmap: bool) -> None:
    reader = MegatronReader(prefix, mmap=mmap, compat=True)
    assert lists(reader[1:1]) == [[]]
    assert lists(reader[4:1]) == [[]]
    assert lists(reader[-2:]) == SEQUENCES[-2:]
    with pytest.raises(IndexError, match="expected a start below 5"):
        reader[5:]
    for part in (slice(0, 1, 2), slice(None, None, -1)):
        with pytest.raises(UsageError, match="as Megatron, allows only step 1"):
            reader[part]


def test_compat_slices_are_one_run_from_the_first_pointer_on(prefix: str, mmap: bool) -> None:
    content = bytearray(Path(prefix + ".idx").read_bytes())
    at = MegatronReader(prefix).index.layout.pointers_at + 8
    content[at : at + 8] = (24).to_bytes(8, "little")
    Path(prefix + ".idx").write_bytes(content)
    assert lists(MegatronReader(prefix, mmap=mmap)[0:2]) == [[0, 1, 2], [6, 7]]
    assert lists(MegatronReader(prefix, mmap=mmap, compat=True)[0:2]) == [[0, 1, 2], [3, 4]]


def test_modes_come_in_pairs_and_with_compat_beside_the_list(prefix: str, mmap: bool) -> None:
    strict = MegatronReader(prefix, mmap=mmap, multimodal=True)
    assert [(tokens.tolist(), int(mode)) for tokens, mode in strict[2:4]] == [([], 0), ([5, 6, 7, 8], -2)]
    tokens, mode = strict.get(3, 2)
    assert (tokens.tolist(), mode, mode.dtype) == ([7, 8], -2, np.int8)
    sequences, modes = MegatronReader(prefix, mmap=mmap, multimodal=True, compat=True)[2:4]
    assert (lists(sequences), modes.tolist()) == ([[], [5, 6, 7, 8]], [0, -2])


@pytest.mark.parametrize("change", [-2, -1, 1, 2])
def test_data_that_the_index_does_not_fill_is_refused(prefix: str, mmap: bool, change: int) -> None:
    os.truncate(prefix + ".bin", 40 + change)
    with pytest.raises(IndexMismatchError, match=r"expected sequences that fill bytes \[0, "):
        MegatronReader(prefix, mmap=mmap)
    reader = MegatronReader(prefix, mmap=mmap, compat=True)
    assert reader[0].tolist() == [0, 1, 2]
    if change < 0:
        with pytest.raises(IndexMismatchError, match=f"sequence 4 within its {40 + change} bytes"):
            reader[4]


def test_only_local_files_are_mapped() -> None:
    with pytest.raises(UsageError, match="only a local file can be mapped"):
        MegatronReader("memory://bucket/d", mmap=True)


def test_a_replaced_dataset_is_read_anew_after_close(prefix: str, mmap: bool) -> None:
    reader = MegatronReader(prefix, mmap=mmap, check=False)
    assert reader[0].tolist() == [0, 1, 2]
    reader.close()
    with write_megatron(prefix) as builder:
        builder.add_document([7, 8, 9])
        builder.add_document([1] * 7)
    assert lists(MegatronReader(prefix, mmap=mmap)[:]) == [[7, 8, 9], [1] * 7]


class TestMapped(SequenceConformance):
    arguments: dict[str, Any] = {}  # noqa: RUF012 - read only
    dtype = "uint16"
    multimodal = False

    def records(self, count: int) -> list[Any]:
        chance = np.random.default_rng(count)
        return [chance.integers(0, 60_000, i * 7 % 300 + 1).astype(self.dtype) for i in range(count)]

    def store(self, folder: str, count: int, options: dict[str, Any] | None = None) -> tuple[str, list[Any]]:
        records = self.records(count)
        prefix = fresh(folder)
        with write_megatron(prefix, self.dtype, options, multimodal=self.multimodal) as builder:
            for number, record in enumerate(records):
                builder.add_item(*record) if self.multimodal else builder.add_item(record)
                if number % 3 == 2 or number == count - 1:
                    builder.end_document()
        return prefix + ".bin", records

    def open(self, url: str, options: dict[str, Any] | None = None, *, check: bool = True) -> MegatronReader:
        return MegatronReader(url, options, check=check, **({} if "://" in url else self.arguments))

    def files(self, url: str) -> list[str]:
        return [url, url.removesuffix(".bin") + ".idx"]

    def key(self, record: Any) -> Any:
        return record.dtype, record.tolist()

    def test_repr_names_source_and_index(self, source: tuple[str, list[Any]]) -> None:
        assert source[0].removesuffix(".bin") in repr(self.open(source[0]))

    def test_a_reader_can_be_made_of_any_of_its_names(self, source: tuple[str, list[Any]]) -> None:
        prefix = source[0].removesuffix(".bin")
        assert {self.open(prefix + suffix).prefix for suffix in ("", ".bin", ".idx")} == {prefix}

    @pytest.mark.parametrize("check", [True, False])
    def test_a_missing_file_is_named(self, source: tuple[str, list[Any]], check: bool) -> None:
        data, index = self.files(source[0])
        os.rename(data, data + ".away")
        with pytest.raises(SourceNotFoundError, match=data):
            self.open(data, check=check)[0]
        os.rename(data + ".away", data)
        os.unlink(index)
        with pytest.raises(IndexNotFoundError, match=index):
            self.open(data, check=check)[0]


class TestFile(TestMapped):
    arguments = {"mmap": False}  # noqa: RUF012
    dtype = "int32"

    def test_data_that_was_cut_after_opening_is_an_error(self, source: tuple[str, list[Any]]) -> None:
        url, records = source
        reader = self.open(url)
        size = sum(len(record) * 4 for record in records[:100]) + 3
        os.truncate(url, size)
        assert self.same([reader[99]], [records[99]])
        for read in (
            lambda: reader[100],
            lambda: reader[90:110],
            lambda: reader.read_many([100]),
            lambda: reader.get(100, 1),
        ):
            with pytest.raises(ChangedSourceError, match=str(size)):
                read()

    @pytest.mark.s3
    def test_a_span_of_an_object_is_three_requests(self, s3: S3Server, s3_requests: S3Requests) -> None:
        url, records = self.store(f"s3://{s3.bucket()}/deep", 30_000, s3.options)
        reader = self.open(url, s3.options, check=False)
        assert len(reader) == 30_000  # which reads the header
        s3_requests.take()
        assert self.same(reader.read_span(20_000, 20_100), records[20_000:20_100])
        assert s3_requests.take() == ["get_object"] * 3  # lengths, pointers, tokens
        assert self.same([reader[29_999]], records[29_999:])

    @pytest.mark.s3
    def test_many_reads_of_an_object_share_requests(self, s3: S3Server, s3_requests: S3Requests) -> None:
        url, records = self.store(f"s3://{s3.bucket()}/deep", COUNT, s3.options)
        reader = self.open(url, s3.options)
        s3_requests.take()
        assert self.same(reader.read_many(range(COUNT)), records)
        assert self.same(reader[5:60], records[5:60])
        assert s3_requests.take() == ["get_object"] * 2


class TestCompat(TestMapped):
    arguments = {"compat": True}  # noqa: RUF012

    @pytest.mark.parametrize("part", [slice(3, 9), slice(None), slice(-5, None), slice(190, 999)])
    def test_slices_are_those_of_a_list(self, source: tuple[str, list[Any]], part: slice) -> None:
        super().test_slices_are_those_of_a_list(source, part)


class TestModes(TestMapped):
    arguments = {"multimodal": True}  # noqa: RUF012
    multimodal = True

    def open(self, url: str, options: dict[str, Any] | None = None, *, check: bool = True) -> MegatronReader:
        return MegatronReader(url, options, check=check, multimodal=True)

    def records(self, count: int) -> list[Any]:
        return [(tokens, number % 5 - 2) for number, tokens in enumerate(super().records(count))]

    def key(self, record: Any) -> Any:
        tokens, mode = record
        return super().key(tokens), int(mode)

    def test_modes_are_where_the_size_says_so(self, source: tuple[str, list[Any]]) -> None:
        reader = MegatronReader(source[0])
        assert reader.sequence_modes is not None
        assert reader.sequence_modes.tolist() == [mode for _, mode in source[1]]
        np.testing.assert_array_equal(reader[7], source[1][7][0])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("datasets"))


@st.composite
def datasets(draw: st.DrawFn) -> tuple[str, list[list[tuple[Any, int]]]]:
    dtype = draw(st.sampled_from(DTYPES))
    sequence = st.tuples(arrays.arrays(dtype, st.integers(0, 12)), st.integers(-128, 127))
    return dtype, draw(st.lists(st.lists(sequence, max_size=4), max_size=12))


def same(found: list[Any], expected: list[Any]) -> bool:
    return [part.dtype for part in found] == [part.dtype for part in expected] and [
        part.tobytes() for part in found
    ] == [part.tobytes() for part in expected]


@given(datasets(), st.booleans(), st.booleans(), st.data())
@settings(deadline=None, max_examples=80)
def test_what_is_written_is_read(folder: str, dataset: Any, mmap: bool, compat: bool, data: st.DataObject) -> None:
    dtype, documents = dataset
    prefix = fresh(folder)
    with write_megatron(prefix, dtype, multimodal=True) as builder:
        for document in documents:
            flat = np.concatenate([np.empty(0, dtype), *(tokens for tokens, _ in document)]).astype(dtype)
            builder.add_document(flat, [len(tokens) for tokens, _ in document], [mode for _, mode in document])
    sequences = [tokens for document in documents for tokens, _ in document]
    with MegatronReader(prefix, mmap=mmap, compat=compat) as reader:
        reader.verify()
        assert same(list(reader), sequences)
        assert same([reader[i - len(sequences)] for i in range(len(sequences))], sequences)
        for number, document in enumerate(documents):
            assert same(reader.document(number), [tokens for tokens, _ in document])
        asked = data.draw(st.lists(st.integers(-len(sequences), len(sequences) - 1), max_size=40)) if sequences else []
        assert same(reader.read_many(asked), [sequences[i] for i in asked])
        start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(sequences))] * 2)))
        if start < stop or not compat:
            assert same(reader[start:stop], sequences[start:stop])
        if sequences:
            number = data.draw(st.integers(0, len(sequences) - 1))
            first, last = sorted(data.draw(st.tuples(*[st.integers(0, len(sequences[number]))] * 2)))
            assert same([reader.get(number, first, last - first)], [sequences[number][first:last]])


@given(datasets(), st.data())
@settings(deadline=None, max_examples=60)
def test_any_cut_merges_to_the_whole(folder: str, dataset: Any, data: st.DataObject) -> None:
    dtype, documents = dataset
    if np.dtype(dtype).kind == "f":
        documents = [[(np.nan_to_num(tokens), mode) for tokens, mode in document] for document in documents]
    texts = [[tokens for tokens, _ in document] for document in documents]
    edges = sorted(data.draw(st.lists(st.integers(0, len(texts)), max_size=5)))
    parts = []
    for start, stop in itertools.pairwise([0, *edges, len(texts)]):
        parts.append(fresh(folder))
        for suffix, content in zip((".bin", ".idx"), encode_part(texts[start:stop], dtype, eod=1), strict=True):
            Path(parts[-1] + suffix).write_bytes(content)
    output = fresh(folder)
    merge_megatron(parts, output)
    assert (Path(output + ".bin").read_bytes(), Path(output + ".idx").read_bytes()) == encode_part(texts, dtype, eod=1)


LARGE = BLOCK + 12_345


@pytest.fixture(scope="module")
def dataset(folder: str) -> tuple[str, NDArray[np.int32], NDArray[np.uint8]]:
    """A prefix, its lengths and tokens: more than a block of sequences, documents and tokens."""
    chance = np.random.default_rng(4)
    lengths = chance.integers(0, 24, LARGE, dtype=np.int32)
    tokens = chance.integers(0, 256, int(lengths.sum()), dtype=np.uint8)
    with write_megatron(f"{folder}/whole", "uint8") as builder:
        builder.add_documents(tokens, lengths, np.arange(1, LARGE + 1))
    return f"{folder}/whole", lengths, tokens


def test_an_index_of_several_blocks_is_what_arithmetic_says(dataset: Any) -> None:
    prefix, lengths, _ = dataset
    reader = MegatronReader(prefix)
    np.testing.assert_array_equal(reader.sequence_lengths, lengths)
    np.testing.assert_array_equal(reader.index.pointers, np.cumsum(lengths, dtype=np.int64) - lengths)
    np.testing.assert_array_equal(reader.document_indices, np.arange(LARGE + 1))
    reader.verify()


@pytest.mark.parametrize("mmap", [True, False])
def test_reads_of_several_blocks_cut_where_sequences_do(dataset: Any, mmap: bool) -> None:
    prefix, lengths, tokens = dataset
    reader = MegatronReader(prefix, mmap=mmap)
    edges = [0, *np.cumsum(lengths).tolist()]
    found = list(reader) if mmap else reader[:]
    assert list(map(len, found)) == lengths.tolist()
    assert b"".join(map(bytes, found)) == tokens.tobytes()
    if not mmap:
        assert max(part.base.nbytes for part in found) <= 8 << 20, "all tokens came as one block"
    assert reader[-1].tobytes() == tokens[edges[-2] :].tobytes()


def test_parts_of_several_blocks_merge_from_any_store(dataset: Any) -> None:
    prefix, _, _ = dataset
    try:
        for suffix in (".bin", ".idx"):
            publish_bytes(f"memory://large/part{suffix}", read_bytes(prefix + suffix))
        merge_megatron(["memory://large/part", "memory://large/part"], "memory://large/twice")
        merge_megatron([prefix, prefix], prefix + "-twice")
        for suffix in (".bin", ".idx"):
            assert read_bytes(f"memory://large/twice{suffix}") == read_bytes(f"{prefix}-twice{suffix}")
        remote, local = MegatronReader("memory://large/twice"), MegatronReader(f"{prefix}-twice")
        remote.verify()
        for number in (0, LARGE, 2 * LARGE - 1):
            assert remote[number].tobytes() == local[number].tobytes() == local[number - 2 * LARGE].tobytes()
    finally:
        filesystem("memory://").rm("/large", recursive=True)


@pytest.mark.parametrize("at", [BLOCK - 1, BLOCK, LARGE - 2])
def test_a_fault_in_any_block_is_found(dataset: Any, at: int) -> None:
    prefix, lengths, tokens = dataset
    index = bytearray(read_bytes(prefix + ".idx"))
    place = MegatronReader(prefix).index.layout.pointers_at + 8 * at
    index[place : place + 8] = (int.from_bytes(index[place : place + 8], "little") + 1).to_bytes(8, "little")
    publish_bytes(prefix + "-bad.idx", bytes(index))
    publish_bytes(prefix + "-bad.bin", tokens.tobytes())
    with pytest.raises(IndexMismatchError, match=f"expected sequence {at} at byte {lengths[:at].sum()}, found"):
        MegatronReader(prefix + "-bad").verify()


@pytest.mark.parametrize("compat", [False, True])
def test_slices_of_more_than_two_billion_tokens(tmp_path: Path, compat: bool) -> None:
    """Megatron adds lengths up in 32 bits."""
    lengths = np.array([1_100_000_000, 1_100_000_000, 3], np.int32)
    with (tmp_path / "d.idx").open("wb") as file:
        writer = IndexWriter(file, Layout(np.dtype("u1"), 3, 2))
        writer.add_documents(np.array([3]))
        writer.add_sequences(lengths)
    with (tmp_path / "d.bin").open("wb") as data:  # sparse: takes no room
        data.seek(2_200_000_000)
        data.write(b"\1\2\3")
    found = MegatronReader(str(tmp_path / "d"), compat=compat)[:]
    assert list(map(len, found)) == lengths.tolist()
    assert found[2].tolist() == [1, 2, 3]
