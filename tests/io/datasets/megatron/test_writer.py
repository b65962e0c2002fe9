"""Input that the builder accepts and refuses; datasets appear whole or not at all."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ledgerbeam.errors import IndexNotFoundError, RecordError, StorageError, UsageError
from ledgerbeam.io.datasets.megatron import MegatronBuilder, MegatronReader, encode_part, write_megatron
from ledgerbeam.io.storage.client import filesystem
from tests.cases import each

LIMITS = [("uint8", 0, 255), ("int8", -128, 127), ("int16", -(2**15), 2**15 - 1), ("uint16", 0, 65_535)]
LIMITS += [("int32", -(2**31), 2**31 - 1), ("int64", -(2**63), 2**63 - 1)]


def part(build: Callable[[MegatronBuilder], object], dtype: str = "uint16", **options: Any) -> tuple[bytes, bytes]:
    data, index = io.BytesIO(), io.BytesIO()
    builder = MegatronBuilder(data, dtype, **options)
    build(builder)
    builder.write_index(index)
    return data.getvalue(), index.getvalue()


@each(
    "tokens",
    [
        *([1, 2, 3], (1, 2, 3), range(1, 4), array("q", [1, 2, 3]), [np.int64(1), np.uint8(2), 3]),
        *(np.array([1, 2, 3], dtype) for dtype in ("u2", ">u2", "i8", "u8")),
        np.array([1, 0, 2, 0, 3, 0], "u2")[::2],
    ],
)
def test_tokens_come_in_any_form(tokens: Any) -> None:
    assert part(lambda builder: builder.add_document(tokens))[0] == b"\1\0\2\0\3\0"


@each(("dtype", "least", "most"), LIMITS)
def test_the_ends_of_a_range_fit(dtype: str, least: int, most: int) -> None:
    expected = np.array([least, most], dtype).tobytes()
    assert part(lambda b: b.add_document([least, most]), dtype)[0] == expected
    assert part(lambda b: b.add_document(np.array([least, most])), dtype)[0] == expected


@each(("dtype", "least", "most"), LIMITS)
def test_what_megatron_would_wrap_is_refused(dtype: str, least: int, most: int) -> None:
    wrong: list[Any] = [[0, most + 1], [0, least - 1]]
    if dtype == "int64":
        wrong.append(np.array([2**63], "u8"))
    else:
        wrong += [np.array([0, most + 1]), np.array([0, least - 1])]
    for tokens in wrong:
        builder = MegatronBuilder(io.BytesIO(), dtype)
        with pytest.raises(RecordError, match=f"document 0, sequence 0: expected .* that fit {dtype}, from {least}"):
            builder.add_document(tokens)


@each("tokens", [[1.5], ["12"], np.array([1.0]), [[1, 2]], np.zeros((2, 2), "u2"), 7, [None]])
def test_what_are_no_tokens_is_refused(tokens: Any) -> None:
    with pytest.raises(RecordError, match="document 0, sequence 0: expected tokens"):
        part(lambda builder: builder.add_document(tokens))


def test_floats_are_rounded_and_kept_finite() -> None:
    assert part(lambda b: b.add_document([1, 0.1]), "float32")[0] == np.array([1, 0.1], "<f4").tobytes()
    assert part(lambda b: b.add_document([np.inf]), "float32")[0] == np.array([np.inf], "<f4").tobytes()
    with pytest.raises(RecordError, match=r"expected tokens that fit float32, found values up to 1e\+300"):
        part(lambda b: b.add_document([1e300]), "float32")


def test_all_ways_to_add_make_the_same_bytes() -> None:
    def items(builder: MegatronBuilder) -> None:
        builder.add_item([1, 2, 3])
        builder.end_document()
        builder.end_document()
        builder.add_item([4])
        builder.add_item([])
        builder.end_document()

    def documents(builder: MegatronBuilder) -> None:
        builder.add_document([1, 2, 3])
        builder.add_document([], [])
        builder.add_document([4], [1, 0])

    def at_once(builder: MegatronBuilder) -> None:
        builder.add_documents(np.arange(1, 5), np.array([3, 1, 0]), [1, 1, 3])

    def in_batches(builder: MegatronBuilder) -> None:
        builder.add_documents([1, 2, 3], [3], [1, 1])
        builder.add_documents([], [], [])
        builder.add_documents([4], [1, 0], [2])

    assert part(items) == part(documents) == part(at_once) == part(in_batches)


@each(
    ("add", "message"),
    [
        (lambda b: b.add_document([1, 2, 3], [2]), "lengths that make up 3 tokens, found"),
        (lambda b: b.add_document([1, 2, 3], [4, -1]), "lengths that make up 3 tokens, found"),
        (lambda b: b.add_document([1], [2**31]), "expected a sequence of at most 2147483647 tokens"),
        (lambda b: b.add_document([1], np.array([2**31])), "expected a sequence of at most 2147483647 tokens"),
        (lambda b: b.add_document([1], [1.0]), "expected a sequence of at most 2147483647 tokens"),
        (lambda b: b.add_documents([1, 2], [1, 1], [1]), "expected documents to end in order, the last at 2"),
        (lambda b: b.add_documents([1, 2], [1, 1], [2, 1, 2]), "expected documents to end in order"),
        (lambda b: b.add_documents([1, 2], [1, 1], [-1, 2]), "expected documents to end in order"),
        (lambda b: b.add_documents([1], [1], []), "expected documents to end in order, the last at 1"),
        (lambda b: b.add_document([1], [1], [128]), "expected a mode from -128 to 127"),
        (lambda b: b.add_item([1], -129), "expected a mode from -128 to 127"),
        (lambda b: b.add_document([1], [1], [1, 2]), "expected 1 modes, found 2"),
    ],
)
def test_refused_input_changes_nothing(add: Callable[[MegatronBuilder], object], message: str) -> None:
    def both(builder: MegatronBuilder) -> None:
        builder.add_document([5, 6])
        with pytest.raises(RecordError, match=f"document 1, sequence 1: .*{message}"):
            add(builder)
        builder.add_document([7])

    def without(builder: MegatronBuilder) -> None:
        builder.add_document([5, 6])
        builder.add_document([7])

    assert part(both, multimodal=True) == part(without, multimodal=True)


def test_modes_need_a_multimodal_dataset() -> None:
    for add in (lambda b: b.add_item([1], 3), lambda b: b.add_document([1], [1], [3])):
        with pytest.raises(UsageError, match="cannot hold a mode; pass multimodal=True"):
            part(add)


def test_sequences_without_a_document_are_refused(tmp_path: Path) -> None:
    """Megatron writes an index that it cannot open."""

    def write() -> None:
        with write_megatron(str(tmp_path / "d")) as builder:
            builder.add_document([1])
            builder.add_item([2])
            builder.add_item([3])

    with pytest.raises(RecordError, match="sequences that belong to no document: 2; call end_document"):
        write()
    assert not os.listdir(tmp_path)


def test_a_dtype_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot hold uint32"), write_megatron(str(tmp_path / "d"), "uint32"):
        pytest.fail("the body ran")
    assert not os.listdir(tmp_path)


def test_a_body_that_raises_leaves_a_former_dataset(tmp_path: Path) -> None:
    prefix = str(tmp_path / "d")
    with write_megatron(prefix) as builder:
        builder.add_document([1, 2])

    def write() -> None:
        with write_megatron(prefix) as builder:
            builder.add_document([3])
            builder.add_document([2**40])

    with pytest.raises(RecordError):
        write()
    assert sorted(os.listdir(tmp_path)) == ["d.bin", "d.idx"]
    assert MegatronReader(prefix)[0].tolist() == [1, 2]


KILLED = """
import os, signal, sys
from ledgerbeam.io.datasets.megatron import merge_megatron, write_megatron
prefix, work = sys.argv[1:]
with write_megatron(prefix + "-part") as builder:
    builder.add_document(list(range(1000)))
replace = os.replace
def replace_and_die(*names):
    replace(*names)
    os.kill(os.getpid(), signal.SIGKILL)
os.replace = replace_and_die
if work == "merge":
    merge_megatron([prefix + "-part"], prefix)
else:
    with write_megatron(prefix) as builder:
        builder.add_document(list(range(1000)))
"""


@pytest.mark.parametrize("work", ["write", "merge"])
def test_a_kill_between_the_two_files_leaves_no_pair_that_does_not_fit(tmp_path: Path, work: str) -> None:
    prefix = str(tmp_path / "d")
    with write_megatron(prefix) as builder:
        builder.add_document([1, 2])
    done = subprocess.run([sys.executable, "-c", KILLED, prefix, work], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert os.path.getsize(prefix + ".bin") == 4000
    with pytest.raises(IndexNotFoundError, match=r"d\.bin has no index"):
        MegatronReader(prefix)


def test_a_folder_in_the_way_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    os.mkdir(tmp_path / "d.bin")
    with pytest.raises(StorageError, match=r"d\.bin"), write_megatron(str(tmp_path / "d")) as builder:
        builder.add_document([1])
    assert os.listdir(tmp_path) == ["d.bin"]


def test_a_remote_dataset_is_written_and_written_again() -> None:
    try:
        for tokens in ([1, 2, 3], [4]):
            with write_megatron("memory://writer/d", "uint8") as builder:
                builder.add_document(tokens)
            assert MegatronReader("memory://writer/d")[0].tolist() == tokens
    finally:
        filesystem("memory://").rm("/writer", recursive=True)


def test_a_part_holds_documents_as_megatron_preprocesses_them() -> None:
    documents: list[list[Any]] = [[[1, 2], [3]], [], [[]], [[], np.array([4]), []], [[5]]]
    assert encode_part(documents, "uint16", eod=9) == part(
        lambda b: b.add_documents([1, 2, 3, 9, 4, 9, 5, 9], [2, 2, 2, 2], [2, 2, 2, 3, 4])
    )
    assert encode_part(documents, "uint16") == part(
        lambda b: b.add_documents([1, 2, 3, 4, 5], [2, 1, 1, 1], [2, 2, 2, 3, 4])
    )


def test_a_part_names_what_does_not_fit() -> None:
    with pytest.raises(RecordError, match=r"a\.jsonl-0: document 1, sequence 1: expected tokens that fit uint16"):
        encode_part([[[1]], [[70_000]]], "uint16", name="a.jsonl-0")
