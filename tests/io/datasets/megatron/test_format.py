"""Files of Megatron datasets: valid and invalid indexes, the bytes of megatron-core, and documents as records."""

from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from ledgerbeam.errors import (
    ChangedSourceError,
    IndexMismatchError,
    IndexNotFoundError,
    NotIndexableError,
    RecordError,
    SourceError,
    UsageError,
)
from ledgerbeam.io import recognize
from ledgerbeam.io.datasets.megatron import (
    Document,
    MegatronDocuments,
    MegatronReader,
    encode_documents,
    optimal_dtype,
    write_megatron,
)
from ledgerbeam.io.datasets.megatron.format import DocumentOffsets, TokenShards
from ledgerbeam.io.datasets.megatron.layout import dtype_code
from ledgerbeam.io.formats.streamed import split_source
from ledgerbeam.io.index.file import IndexLocation
from ledgerbeam.io.storage.stat import stat
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
    "magic": (index(magic=b"MMIDIDY\0\0"), "is not a Megatron index: expected"),
    "text": (b"0\n7\n14\n" * 9, "is not a Megatron index: expected"),
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
    "first-pointer": (index(pointers=(4, 12, 20)), r"fill bytes \[0, 36\), found them in \[4, 36\)"),
    "last-pointer": (index(pointers=(0, 12, 24)), r"found them in \[0, 40\)"),
    "negative-pointer": (index(pointers=(0, 12, -20)), r"found them in \[0, -4\)"),
    "last-length": (index(lengths=(3, 2, 5)), r"found them in \[0, 40\)"),
    "negative-length": (index(lengths=(3, 2, -4)), r"found them in \[0, 4\)"),
    "other-width": (index(code=5), r"found them in \[0, 52\)"),
}

HIDDEN = {
    "length": (index(lengths=(3, 4, 4)), "expected sequence 2 at byte 28"),
    "pointer": (index(pointers=(0, 8, 20)), "expected sequence 1 at byte 12"),
    "negative": (index(lengths=(3, -2, 4)), "with -2 tokens"),
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


DOCUMENTS = [Document([1, 2, 3], [3]), Document([], []), Document([4, 5, 6], [1, 2]), Document([7], [1])]
VALUES = [document.as_json() for document in DOCUMENTS]


@pytest.fixture
def url(tmp_path: Path) -> str:
    with write_megatron(str(tmp_path / "d"), np.uint16) as builder:
        for document in DOCUMENTS:
            builder.add_document(document.tokens, document.lengths)
    return str(tmp_path / "d.bin")


def test_documents_are_read_one_by_one_in_slices_and_in_spans(url: str) -> None:
    reader = MegatronDocuments(url)
    assert len(reader) == 4
    assert [reader[i].as_json() for i in range(-4, 4)] == VALUES * 2
    assert [d.as_json() for d in reader] == VALUES
    assert [d.as_json() for d in reader[1:]] == VALUES[1:]
    assert [d.as_json() for d in reader[::-2]] == VALUES[::-2]
    assert reader[3:1] == []
    assert [d.as_json() for d in reader.read_many([2, -1, 2])] == [VALUES[2], VALUES[3], VALUES[2]]
    assert [d.as_json() for d in pickle.loads(pickle.dumps(reader)).read_span(1, 3)] == VALUES[1:3]
    assert reader.raw(2) == np.array([4, 5, 6], "<u2").tobytes()
    with pytest.raises(IndexError):
        reader[4]
    with pytest.raises(IndexMismatchError, match="at least 5 documents"):
        reader.read_span(1, 5)
    reader.close()


def test_the_index_says_where_documents_begin(url: str) -> None:
    index = recognize(url).plain().index_file(url, IndexLocation())
    assert (index.url, index.count) == (url.replace(".bin", ".idx"), 4)
    assert index.load().tolist() == [0, 6, 6, 12, 14]
    assert pickle.loads(pickle.dumps(index)).slice(1, 3).tolist() == [6, 6, 12]
    index.close()


def test_raw_documents_are_the_bytes_at_their_places_and_closing_lets_go_of_both_files(url: str) -> None:
    reader = MegatronDocuments(url)
    content = Path(url).read_bytes()
    assert [(raw.record, raw.start, raw.stop) for raw in reader.read_raw(0, 4)] == [
        (0, 0, 6),
        (1, 6, 6),
        (2, 6, 12),
        (3, 12, 14),
    ]
    assert b"".join(raw.data for raw in reader.read_raw(0, 4)) == content
    assert reader.read_raw(2, 2) == []
    reader.close()
    assert not [name for name in opened() if name.startswith(str(Path(url).parent))]
    assert reader.read_raw(3, 4)[0].data == content[12:]


def opened() -> list[str]:
    """Return the targets of the descriptors of this process."""
    return [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]


def test_files_that_do_not_fit_are_told_on_open_unless_that_is_left_to_reads(url: str) -> None:
    os.truncate(url, 12)
    with pytest.raises(IndexMismatchError):
        MegatronDocuments(url)
    reader = MegatronDocuments(url, check=False)
    assert [document.as_json() for document in reader[:3]] == VALUES[:3]


@pytest.mark.parametrize("name", ["d.bin", "d.idx"])
def test_what_was_listed_is_read_or_nothing(url: str, name: str) -> None:
    index_url = url.replace(".bin", ".idx")
    reader = MegatronDocuments(url, listed=stat(url), index_listed=stat(index_url))
    offsets = DocumentOffsets(url).as_listed(stat(index_url))
    assert [document.as_json() for document in reader] == VALUES
    assert offsets.load().tolist() == [0, 6, 6, 12, 14]
    listed = stat(url), stat(index_url)
    path = Path(url).with_name(name)
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    os.utime(path, (1_000, 1_000))
    reader = MegatronDocuments(url, check=False, listed=listed[0], index_listed=listed[1])
    for read in (lambda: reader[0], lambda: reader.read_raw(0, 1), lambda: pickle.loads(pickle.dumps(reader))[0]):
        with pytest.raises(ChangedSourceError, match=rf"{path}"):
            read()
    for found in (offsets.as_listed(listed[1]), pickle.loads(pickle.dumps(offsets.as_listed(listed[1])))):
        if name == "d.bin":
            assert found.load().tolist() == [0, 6, 6, 12, 14]
        else:
            with pytest.raises(ChangedSourceError, match=rf"{path}"):
                found.load()


def test_documents_are_encoded_as_they_were(url: str) -> None:
    data, index = encode_documents(iter(MegatronDocuments(url)), np.uint16)
    assert data == Path(url).read_bytes()
    assert index == Path(url).with_suffix(".idx").read_bytes()


def test_documents_with_and_without_modes_do_not_mix() -> None:
    with pytest.raises(RecordError, match="document 1: expected modes in all"):
        encode_documents([Document([1], [1]), Document([1], [1], [0])], np.uint16)


@pytest.mark.parametrize("entry", [-1, 2**40, 1 << 50])
def test_a_document_of_sequences_that_do_not_exist_takes_no_memory(url: str, entry: int) -> None:
    path = Path(url).with_suffix(".idx")
    content = bytearray(path.read_bytes())
    at = len(content) - 8 * 4  # where the first document ends
    content[at : at + 8] = entry.to_bytes(8, "little", signed=True)
    path.write_bytes(content)
    with pytest.raises(IndexMismatchError):
        recognize(url).plain().index_file(url, IndexLocation()).load()
    documents = MegatronDocuments(url)
    assert documents.read_many([3])[0].as_json() == VALUES[3]
    for number in (0, 1):
        with pytest.raises(IndexMismatchError, match=r"expected documents in sequences \[0, 4\), found a document in"):
            documents.read_many([number])


def test_an_index_cannot_be_built_and_a_pack_not_be_read(url: str) -> None:
    kind = recognize(url).plain()
    with pytest.raises(NotIndexableError, match="cannot be built"):
        kind.build_index(url)
    with pytest.raises(SourceError, match="leave --pack out"):
        split_source(b"", url)
    Path(url).with_suffix(".idx").unlink()
    with pytest.raises(IndexNotFoundError):
        kind.open(url)


def test_tokens_of_each_key_are_a_dataset_of_its_own(tmp_path: Path) -> None:
    records = [{"text": [[1, 2], [3]], "title": [[4]]}, {"title": [[5, 6]], "text": []}]
    files = TokenShards({"text": "_text", "title": "_title"}, "uint16", eod=9).encode(records)
    assert [(file.ending, file.records) for file in files] == [
        ("_text.bin", 2),
        ("_text.idx", 0),
        ("_title.bin", 2),
        ("_title.idx", 0),
    ]
    for file in files:
        (tmp_path / f"part{file.ending}").write_bytes(file.data)
    for suffix, expected in (("_text", [[1, 2], [3, 9]]), ("_title", [[4, 9], [5, 6, 9]])):
        with MegatronReader(str(tmp_path / f"part{suffix}")) as reader:
            assert [sequence.tolist() for sequence in reader] == expected
