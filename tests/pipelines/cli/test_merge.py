"""`ledgerbeam merge`: datasets joined in the order given."""

from __future__ import annotations

import numpy as np
import pytest

from ledgerbeam.io.datasets.megatron import MegatronReader, encode_part, write_megatron
from tests.pipelines.conftest import Workspace


@pytest.fixture
def parts(workspace: Workspace) -> Workspace:
    """Three datasets of one document with one token, the number of the dataset."""
    for number, name in enumerate(("b", "a", "c")):
        with write_megatron(str(workspace.root / f"parts/{name}"), np.uint16) as builder:
            builder.add_document([number])
    return workspace


def tokens(workspace: Workspace, prefix: str) -> list[int]:
    with MegatronReader(str(workspace.root / prefix)) as reader:
        reader.verify()
        return [int(document[0]) for document in reader]


@pytest.mark.parametrize(
    ("prefixes", "expected"),
    [
        (("parts/c", "parts/b.bin", "parts/a.idx"), [2, 0, 1]),
        (("parts/*",), [1, 0, 2]),
        (("parts/{c,a}", "parts/[bc]"), [2, 1, 0, 2]),
    ],
)
def test_prefixes_keep_their_order_and_what_a_pattern_matches_is_sorted(
    parts: Workspace, prefixes: tuple[str, ...], expected: list[int]
) -> None:
    ran = parts.run("merge", *prefixes, "--output", "out/all", "--json", status=0)
    assert tokens(parts, "out/all") == expected
    assert ran.json == {
        "output": str(parts.root / "out/all"),
        "merged": len(expected),
        "dtype": "uint16",
        "sequences": len(expected),
        "documents": len(expected),
    }


def test_a_line_says_what_was_made(parts: Workspace) -> None:
    ran = parts.run("merge", "parts/a", "--output", "out/all", "parts/b")
    assert ran.out == f"2 datasets merged -> {parts.root}/out/all: 2 documents, 2 sequences, uint16\n"


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ((), 2, "nothing to merge"),
        (("parts/a", "parts/wide"), 2, "one dtype"),
        (("parts/none",), 1, "parts/none.bin"),
        (("parts/none*",), 1, "nothing matches"),
        (("parts/alone",), 1, "no index"),
        (("parts/cut",), 1, "does not fit"),
    ],
)
def test_bad_input_is_an_error_and_leaves_nothing(
    parts: Workspace, arguments: tuple[str, ...], status: int, said: str
) -> None:
    with write_megatron(str(parts.root / "parts/wide"), np.int32) as builder:
        builder.add_document([1])
    (parts.root / "parts/alone.bin").write_bytes(b"ab")
    (parts.root / "parts/cut.bin").write_bytes(b"a")
    (parts.root / "parts/cut.idx").write_bytes((parts.root / "parts/a.idx").read_bytes())
    ran = parts.run("merge", *arguments, "--output", "out/all", status=status, err=said)
    assert "Traceback" not in ran.err
    assert not parts.files("out")


def test_a_result_among_the_parts_is_refused(parts: Workspace) -> None:
    parts.run("merge", "parts/*", "--output", "parts/a", status=2, err="both a part and the result")
    assert tokens(parts, "parts/a") == [1]


def test_a_pattern_names_the_files_that_it_matches_whatever_their_prefixes_end_with(parts: Workspace) -> None:
    for number, name in enumerate(("a.bin", "a.idx"), 7):
        data, index = encode_part([[[number]]], np.uint16)
        (parts.root / f"parts/{name}.bin").write_bytes(data)
        (parts.root / f"parts/{name}.idx").write_bytes(index)
    parts.run("merge", "parts/a*", "parts/a.idx.bin", "--output", "out/all", status=0)
    assert tokens(parts, "out/all") == [1, 7, 8, 8]
