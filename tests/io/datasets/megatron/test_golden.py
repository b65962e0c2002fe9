"""Our datasets are the bytes that megatron-core writes, and its datasets read as what went into them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ledgerbeam.io.datasets.megatron import MegatronReader, write_megatron
from tests.cases import each
from tests.io.datasets.megatron.content import documents, golden

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
def test_we_write_the_bytes_that_megatron_writes(
    tmp_path: Path, name: str, dtype: str, shape: str, multimodal: bool
) -> None:
    with write_megatron(str(tmp_path / "ours"), dtype, multimodal=multimodal) as builder:
        for document in documents(dtype, shape):
            for tokens, mode in document:
                builder.add_item(tokens, mode if multimodal else 0)
            builder.end_document()
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"ours{suffix}").read_bytes() == (GOLDEN / f"{name}{suffix}").read_bytes()


@each(("name", "dtype", "shape", "multimodal"), CASES, ids=NAMES)
@each("mmap", [True, False])
def test_we_read_what_megatron_writes(mmap: bool, name: str, dtype: str, shape: str, multimodal: bool) -> None:
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
