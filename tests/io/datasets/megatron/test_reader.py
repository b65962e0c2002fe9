"""Parts of sequences, documents, what arrays are, and what `compat` changes."""

from __future__ import annotations

import gc
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ledgerbeam.errors import IndexMismatchError, UsageError
from ledgerbeam.io.datasets.megatron import MegatronReader, write_megatron

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
    with pytest.raises(UsageError, match=f"sequence {arguments[0]} has .* leave it"):
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
def test_compat_get_leaves_the_sequence_as_megatron_does(
    prefix: str, mmap: bool, arguments: Any, found: list[int]
) -> None:
    assert MegatronReader(prefix, mmap=mmap, compat=True).get(*arguments).tolist() == found


@pytest.mark.parametrize("arguments", [(0, 0, 11), (0, -1), (4, 3, 1), (4, 2, -1)])
def test_compat_get_never_leaves_the_data(prefix: str, mmap: bool, arguments: Any) -> None:
    with pytest.raises(IndexMismatchError, match="within its 40 bytes"):
        MegatronReader(prefix, mmap=mmap, compat=True).get(*arguments)


def test_get_takes_no_slices(prefix: str) -> None:
    with pytest.raises(TypeError):
        MegatronReader(prefix).get(slice(0, 2))  # type: ignore[arg-type]


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
    with pytest.raises(IndexMismatchError, match=r"document 0 to lie among 5 sequences, found it at \[0, 99\)"):
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


def test_slices_of_strict_readers_are_those_of_a_list(prefix: str, mmap: bool) -> None:
    reader = MegatronReader(prefix, mmap=mmap)
    for part in (slice(1, 1), slice(5, None), slice(None, None, -1), slice(None, None, 2), slice(4, 1)):
        assert lists(reader[part]) == SEQUENCES[part]


def test_compat_slices_are_megatrons(prefix: str, mmap: bool) -> None:
    reader = MegatronReader(prefix, mmap=mmap, compat=True)
    assert lists(reader[1:1]) == [[]]
    assert lists(reader[4:1]) == [[]]
    assert lists(reader[-2:]) == SEQUENCES[-2:]
    with pytest.raises(IndexError, match="begins at the end of 5"):
        reader[5:]
    for part in (slice(0, 1, 2), slice(None, None, -1)):
        with pytest.raises(UsageError, match="Megatron's slices are contiguous"):
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
    with pytest.raises(IndexMismatchError, match=r"expected its sequences to fill bytes \[0, "):
        MegatronReader(prefix, mmap=mmap)
    reader = MegatronReader(prefix, mmap=mmap, compat=True)
    assert reader[0].tolist() == [0, 1, 2]
    if change < 0:
        with pytest.raises(IndexMismatchError, match=f"sequence 4 within its {40 + change} bytes"):
            reader[4]


def test_the_index_of_another_dataset_is_refused(prefix: str, tmp_path: Path) -> None:
    with write_megatron(str(tmp_path / "other")) as builder:
        builder.add_document(range(9))
    shutil.copy(tmp_path / "other.idx", prefix + ".idx")
    with pytest.raises(IndexMismatchError, match=r"fill bytes \[0, 40\), found \[0, 36\)"):
        MegatronReader(prefix)


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
