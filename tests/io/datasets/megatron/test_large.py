"""Data of several blocks: sequences in an index, tokens in a read, bytes in a request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ledgerbeam.errors import IndexMismatchError
from ledgerbeam.io.datasets.megatron import MegatronReader, merge_megatron, write_megatron
from ledgerbeam.io.datasets.megatron.index import BLOCK
from ledgerbeam.io.datasets.megatron.layout import Layout
from ledgerbeam.io.datasets.megatron.writer import IndexWriter
from ledgerbeam.io.storage.client import filesystem
from ledgerbeam.io.storage.files import read_bytes
from ledgerbeam.io.storage.publish import publish_bytes

COUNT = BLOCK + 12_345


@pytest.fixture(scope="module")
def dataset() -> Iterator[tuple[str, NDArray[np.int32], NDArray[np.uint8]]]:
    """A prefix, its lengths and tokens: more than a block of sequences, documents and tokens."""
    chance = np.random.default_rng(4)
    lengths = chance.integers(0, 24, COUNT, dtype=np.int32)
    tokens = chance.integers(0, 256, int(lengths.sum()), dtype=np.uint8)
    with TemporaryDirectory() as folder:
        with write_megatron(f"{folder}/whole", "uint8") as builder:
            builder.add_documents(tokens, lengths, np.arange(1, COUNT + 1))
        yield f"{folder}/whole", lengths, tokens


def test_an_index_of_several_blocks_is_what_arithmetic_says(dataset: Any) -> None:
    prefix, lengths, _ = dataset
    reader = MegatronReader(prefix)
    np.testing.assert_array_equal(reader.sequence_lengths, lengths)
    np.testing.assert_array_equal(reader.index.pointers, np.cumsum(lengths, dtype=np.int64) - lengths)
    np.testing.assert_array_equal(reader.document_indices, np.arange(COUNT + 1))
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
        for number in (0, COUNT, 2 * COUNT - 1):
            assert remote[number].tobytes() == local[number].tobytes() == local[number - 2 * COUNT].tobytes()
    finally:
        filesystem("memory://").rm("/large", recursive=True)


@pytest.mark.parametrize("at", [BLOCK - 1, BLOCK, COUNT - 2])
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
