"""Files of Megatron datasets: valid and invalid indexes, and the bytes that megatron-core writes."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from ledgerbeam.errors import IndexMismatchError, UsageError
from ledgerbeam.io.datasets.megatron import MegatronReader, optimal_dtype, write_megatron
from ledgerbeam.io.datasets.megatron.layout import dtype_code
from tests.cases import each
from tests.io.datasets.megatron.content import documents, golden

MAGIC = b"MMIDIDX\0\0"


def index(
    *,
    magic: bytes = MAGIC,
    version: int = 1,
    code: int = 4,
    sequences: int | None = None,
    entries: int | None = None,
    lengths: tuple[int, ...] = (3, 2, 4),
    pointers: tuple[int, ...] = (0, 12, 20),
    documents: tuple[int, ...] = (0, 1, 3),
    rest: bytes = b"",
) -> bytes:
    counts = (len(lengths) if sequences is None else sequences, len(documents) if entries is None else entries)
    head = magic + struct.pack("<QBQQ", version, code, *counts)
    arrays = np.array(lengths, "<i4"), np.array(pointers, "<i8"), np.array(documents, "<i8")
    return head + b"".join(array.tobytes() for array in arrays) + rest


def fairseq(code: int, lengths: tuple[int, ...], width: int) -> bytes:
    pointers = np.concatenate(([0], np.cumsum(lengths)[:-1])) * width
    head = MAGIC + struct.pack("<QBQ", 1, code, len(lengths))
    return head + np.array(lengths, "<i4").tobytes() + pointers.astype("<i8").tobytes()


def store(folder: Path, content: bytes, data: bytes = np.arange(9, dtype="<i4").tobytes()) -> str:
    (folder / "d.idx").write_bytes(content)
    (folder / "d.bin").write_bytes(data)
    return str(folder / "d")


BAD_HEADERS = {
    "empty": (b"", "expected at least 26 bytes, found 0"),
    "short": (index()[:25], "expected at least 26 bytes, found 25"),
    "no-counts": (index()[:30], "cut off"),
    "magic": (index(magic=b"MMIDIDY\0\0"), "expected it to begin with"),
    "text": (b"0\n7\n14\n" * 9, "expected it to begin with"),
    "tntidx": (b"TNTIDX\0\0" + bytes(40), "TNTIDX index"),
    "version-0": (index(version=0), "has version 0, expected 1"),
    "version-2": (index(version=2), "has version 2, expected 1"),
    "code-0": (index(code=0), "has dtype code 0"),
    "code-9": (index(code=9), "has dtype code 9"),
    "huge-sequences": (index(sequences=2**64 - 1), "has 18446744073709551615 sequences"),
    "huge-entries": (index(entries=2**64 - 1), "18446744073709551615 document entries"),
    "one-more-sequence": (index(sequences=4), "has 4 sequences"),
    "one-less-sequence": (index(sequences=2), "has 2 sequences"),
    "no-entries": (index(documents=()), "no document array"),
    "truncated": (index()[:-1], "found 93"),
    "trailing": (index(rest=b"xx"), "found 96"),
}

BAD_ENTRIES = {
    "documents-begin-late": (index(documents=(1, 1, 3)), "expected documents from sequence 0 to 3"),
    "documents-end-early": (index(documents=(0, 1, 2)), "expected documents from sequence 0 to 3"),
    "documents-end-late": (index(documents=(0, 1, 2**62)), "expected documents from sequence 0 to 3"),
    "first-pointer": (index(pointers=(4, 12, 20)), r"fill bytes \[0, 36\), found \[4, 36\)"),
    "last-pointer": (index(pointers=(0, 12, 24)), r"found \[0, 40\)"),
    "negative-pointer": (index(pointers=(0, 12, -20)), r"found \[0, -4\)"),
    "last-length": (index(lengths=(3, 2, 5)), r"found \[0, 40\)"),
    "negative-length": (index(lengths=(3, 2, -4)), r"found \[0, 4\)"),
    "other-width": (index(code=5), r"found \[0, 52\)"),
}

HIDDEN = {
    "length": (index(lengths=(3, 4, 4)), "expected sequence 2 at byte 28"),
    "pointer": (index(pointers=(0, 8, 20)), "expected sequence 1 at byte 12"),
    "negative": (index(lengths=(3, -2, 4)), "found -2 tokens"),
    "documents": (index(documents=(0, 3, 2, 3)), "expected document 1 to end at sequence 3"),
    "documents-outside": (index(documents=(0, 9, 3)), "expected document 1 to end at sequence 9"),
}


@pytest.mark.parametrize("name", [*BAD_HEADERS, *BAD_ENTRIES])
def test_an_index_that_cannot_be_is_refused_on_open(tmp_path: Path, name: str) -> None:
    content, message = (BAD_HEADERS | BAD_ENTRIES)[name]
    prefix = store(tmp_path, content)
    with pytest.raises(IndexMismatchError, match=rf"d\.idx .*{message}.*again"):
        MegatronReader(prefix)


@pytest.mark.parametrize("name", BAD_HEADERS)
def test_a_bad_header_is_found_without_a_check_too(tmp_path: Path, name: str) -> None:
    content, message = BAD_HEADERS[name]
    reader = MegatronReader(store(tmp_path, content), check=False)
    with pytest.raises(IndexMismatchError, match=message):
        reader[0]


@pytest.mark.parametrize("name", HIDDEN)
def test_bad_entries_between_the_ends_are_found_by_verify(tmp_path: Path, name: str) -> None:
    content, message = HIDDEN[name]
    reader = MegatronReader(store(tmp_path, content))
    with pytest.raises(IndexMismatchError, match=message):
        reader.verify()


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize(
    "content",
    [
        *(index(lengths=(3, length, 4)) for length in (10, -1, 2**31 - 1)),
        *(index(pointers=(0, pointer, 20)) for pointer in (-4, 40, 2**63 - 1)),
        index(lengths=(3, 0, 4), pointers=(0, 99, 20)),
    ],
)
def test_a_sequence_outside_of_the_data_is_an_error(tmp_path: Path, content: bytes, mmap: bool) -> None:
    reader = MegatronReader(store(tmp_path, content), mmap=mmap)
    for read in (
        lambda: reader[1],
        lambda: reader[-2],
        lambda: reader[0:3],
        lambda: reader.read_many([1] * 40),
        lambda: reader.read_span(1, 2),
        lambda: list(reader),
        lambda: reader.raw(1),
    ):
        with pytest.raises(IndexMismatchError, match="expected sequence 1 within its 36 bytes"):
            read()
    assert reader[0].tolist() == [0, 1, 2]


def test_pointers_between_tokens_are_followed(tmp_path: Path) -> None:
    data = bytes(range(36))
    reader = MegatronReader(store(tmp_path, index(pointers=(0, 13, 20)), data))
    for found in (reader[1], reader[:][1], reader.read_span(0, 3)[1]):
        assert found.tobytes() == data[13:21]


@pytest.mark.parametrize(
    ("code", "dtype"), [(1, "u1"), (4, "i4"), (6, "f8"), (7, "f8"), (8, "u2"), (9, "u4"), (10, "u8")]
)
def test_fairseq_is_told_apart_by_size(tmp_path: Path, code: int, dtype: str) -> None:
    tokens = np.arange(9).astype(dtype)
    prefix = store(tmp_path, fairseq(code, (3, 2, 4), tokens.itemsize), tokens.tobytes())
    with MegatronReader(prefix) as reader:
        assert (reader.dtype, len(reader), reader.document_count) == (tokens.dtype, 3, 3)
        assert [part.tolist() for part in reader] == [[0, 1, 2], [3, 4], [5, 6, 7, 8]]
        assert reader.document(1)[0].tolist() == [3, 4]
        assert reader.document_indices.tolist() == [0, 1, 2, 3]
        reader.verify()


@pytest.mark.parametrize(("lengths", "size"), [((), 26), ((2,), 38)])
def test_small_fairseq_indexes(tmp_path: Path, lengths: tuple[int, ...], size: int) -> None:
    content = fairseq(4, lengths, 4) if lengths else MAGIC + struct.pack("<QBQ", 1, 4, 0)
    assert len(content) == size
    reader = MegatronReader(store(tmp_path, content, bytes(4 * sum(lengths))))
    assert [len(tokens) for tokens in reader] == list(lengths)


@pytest.mark.parametrize("cut", [8, 16, 24])
def test_a_cut_index_is_not_taken_for_fairseq(tmp_path: Path, cut: int) -> None:
    """24 bytes less of this index have the size of one of fairseq."""
    with pytest.raises(IndexMismatchError):
        MegatronReader(store(tmp_path, index(documents=(0, 3))[:-cut]))


def test_megatron_ignores_what_follows_the_arrays(tmp_path: Path) -> None:
    prefix = store(tmp_path, index(rest=b"xx"))
    assert len(MegatronReader(prefix, compat=True)) == 3


def test_modes_must_be_there_when_asked_for(tmp_path: Path) -> None:
    prefix = store(tmp_path, index())
    with pytest.raises(UsageError, match="has no modes"):
        MegatronReader(prefix, multimodal=True)
    with pytest.raises(UsageError, match="has no modes"):
        MegatronReader(prefix, multimodal=True, check=False)[0]


def test_the_dtype_of_a_vocabulary_is_the_one_megatron_takes() -> None:
    sizes = [0, 65_499, 65_500, 65_536, 10**6, None]
    assert [optimal_dtype(size).name for size in sizes] == ["uint16", "uint16", *["int32"] * 4]


@each("dtype", ["uint32", "float16", "bool", "complex64", "U3", "nonsense"])
def test_a_dtype_without_a_code_is_refused(dtype: str) -> None:
    with pytest.raises(UsageError, match=r"expected one of uint8, .* uint16"):
        dtype_code(dtype)


def test_big_endian_counts_as_its_dtype() -> None:
    assert dtype_code(">i4") == 4


GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "megatron"
CASES = list(golden())
NAMES = [name for name, *_ in CASES]

EXAMPLE = (
    b"MMIDIDX\0\0" + b"\1\0\0\0\0\0\0\0" + b"\4" + b"\3\0\0\0\0\0\0\0" * 2  # int32, 3 sequences, 3 entries
    + b"\3\0\0\0" + b"\2\0\0\0" + b"\4\0\0\0"  # lengths
    + bytes(8) + b"\x0c\0\0\0\0\0\0\0" + b"\x14\0\0\0\0\0\0\0"  # pointers
    + bytes(8) + b"\1\0\0\0\0\0\0\0" + b"\3\0\0\0\0\0\0\0"  # documents
)  # fmt: skip


@pytest.mark.parametrize(("name", "dtype", "shape", "multimodal"), CASES, ids=NAMES)
def test_we_write_as_megatron_does(tmp_path: Path, name: str, dtype: str, shape: str, multimodal: bool) -> None:
    with write_megatron(str(tmp_path / "ours"), dtype, multimodal=multimodal) as builder:
        for document in documents(dtype, shape):
            for tokens, mode in document:
                builder.add_item(tokens, mode if multimodal else 0)
            builder.end_document()
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"ours{suffix}").read_bytes() == (GOLDEN / f"{name}{suffix}").read_bytes()


@each(("name", "dtype", "shape", "multimodal"), CASES, ids=NAMES)
@each("mmap", [True, False])
def test_we_read_as_megatron_does(mmap: bool, name: str, dtype: str, shape: str, multimodal: bool) -> None:
    wanted = documents(dtype, shape)
    with MegatronReader(str(GOLDEN / name), mmap=mmap, multimodal=multimodal) as reader:
        assert reader.dtype == np.dtype(dtype)
        assert reader.document_count == len(wanted)
        reader.verify()
        for number, document in enumerate(wanted):
            found = reader.document(number)
            pairs = found if multimodal else [(tokens, mode) for tokens, (_, mode) in zip(found, document, strict=True)]
            assert len(pairs) == len(document)
            for (tokens, mode), (expected, expected_mode) in zip(pairs, document, strict=True):
                np.testing.assert_array_equal(tokens, expected, strict=True)
                assert mode == expected_mode


def test_the_worked_example_of_the_layout(tmp_path: Path) -> None:
    with write_megatron(str(tmp_path / "example")) as builder:
        builder.add_document([1, 2, 3])
        builder.add_document([4, 5, 6, 7, 8, 9], [2, 4])
    assert len(EXAMPLE) == 94
    assert (tmp_path / "example.idx").read_bytes() == EXAMPLE
    assert (tmp_path / "example.bin").read_bytes() == np.arange(1, 10, dtype="<i4").tobytes()
