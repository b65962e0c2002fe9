"""Documents as records: the same from a local dataset and by ranges, and encoded again to the same bytes."""

from __future__ import annotations

import os
import pickle
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
)
from ledgerbeam.io import Sample, TarFormat, TarReader, recognize
from ledgerbeam.io.datasets.megatron import (
    Document,
    MegatronDocuments,
    MegatronReader,
    encode_documents,
    write_megatron,
)
from ledgerbeam.io.datasets.megatron.format import DocumentOffsets, TokenShards
from ledgerbeam.io.formats.streamed import split_source
from ledgerbeam.io.index.file import IndexLocation
from ledgerbeam.io.storage.stat import stat

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
        with pytest.raises(IndexMismatchError, match=r"expected documents of the sequences \[0, 4\), found one of"):
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


def samples(keys: str) -> list[Sample]:
    return [Sample(keys.format(number), {"wav": b"x", "json": b"{}"}) for number in range(3)]


def test_the_index_of_a_tar_of_two_members_each_ends_where_the_last_sample_does(tmp_path: Path) -> None:
    data, index = TarFormat().encode(samples("a{}"))
    (tmp_path / "x.tar").write_bytes(data.data)
    (tmp_path / "x.tar.idx").write_bytes(index.data)
    assert np.frombuffer(index.data, np.uint64)[-1] == 3 * 2 * 1024
    with TarReader(str(tmp_path / "x.tar")) as reader:
        assert reader[:] == samples("a{}")


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


def test_samples_that_webdataset_and_lhotse_read_differently_are_refused() -> None:
    with pytest.raises(RecordError, match=r"output sample 0 \('a\.0': .*\) would be read back as \('a', "):
        TarFormat().encode(samples("a.{}"))
