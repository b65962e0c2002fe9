"""Megatron datasets: ours and megatron-core's are the same bytes, and each reads the other's as its own."""

from __future__ import annotations

import gzip
import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.peer import Peer
from ledgerbeam.io.datasets.megatron import MegatronReader, encode_part, merge_megatron, write_megatron
from tests.conformance.conftest import run_ledgerbeam
from tests.io.datasets.megatron.content import DTYPES, SHAPES, documents

CASES = [(dtype, shape, multimodal) for dtype in DTYPES for shape in SHAPES for multimodal in (False, True)]
ENDS = [None, 0, 1, 2, 5, 7, 8, -1, -3, 99]
REQUESTS: list[list[Any]] = [
    *(["item", number] for number in (0, 3, 8, -1, -9, 9, -10, 10**12)),
    *(["slice", start, stop] for start, stop in itertools.product(ENDS, ENDS)),
    *(["slice", 0, 5, step] for step in (1, 2, -1)),
    *(["get", number] for number in (0, 2, 8, -1, 9)),
    *(["get", 1, offset, length] for offset in (0, 1, 2) for length in (None, 0, 1)),
    *(["get", 4, offset, length] for offset in (-3, -1, 0, 3, 5) for length in (None, 0, 2, 7)),
]


def build_ours(prefix: Path, dtype: str, shape: str, *, multimodal: bool) -> None:
    with write_megatron(str(prefix), dtype, multimodal=multimodal) as builder:
        for document in documents(dtype, shape):
            for tokens, mode in document:
                builder.add_item(tokens, mode if multimodal else 0)
            builder.end_document()


def contents(prefix: Path) -> tuple[bytes, bytes]:
    return Path(f"{prefix}.bin").read_bytes(), Path(f"{prefix}.idx").read_bytes()


def described(answer: Any) -> Any:
    if isinstance(answer, (list, tuple)):
        return [described(part) for part in answer]
    return answer.tobytes().hex() if isinstance(answer, np.ndarray) else int(answer)


def answers(reader: MegatronReader, asked: list[list[Any]]) -> list[Any]:
    """Return what our reader answers; an error is the name of the standard one that it is."""
    found: list[Any] = []
    for name, *arguments in asked:
        try:
            if name == "get":
                found.append(described(reader.get(*arguments)))
            else:
                found.append(described(reader[arguments[0] if name == "item" else slice(*arguments)]))
        except (IndexError, ValueError) as error:
            found.append("IndexError" if isinstance(error, IndexError) else "ValueError")
    return [reader.dtype.name, len(reader), reader.document_indices.tolist(), found]


@pytest.mark.parametrize(("dtype", "shape", "multimodal"), CASES)
def test_both_write_the_same_bytes(megatron: Peer, tmp_path: Path, dtype: str, shape: str, multimodal: bool) -> None:
    build_ours(tmp_path / "ours", dtype, shape, multimodal=multimodal)
    for way in ("items", "documents"):
        case = {"dtype": dtype, "shape": shape, "multimodal": multimodal, "way": way}
        megatron.ask("build", prefix=str(tmp_path / way), **case)
        assert contents(tmp_path / "ours") == contents(tmp_path / way)


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("multimodal", [False, True])
@pytest.mark.parametrize("dtype", ["uint16", "int8", "float64"])
def test_both_read_ours_alike_with_compat(
    megatron: Peer, tmp_path: Path, dtype: str, multimodal: bool, mmap: bool
) -> None:
    prefix = tmp_path / "ours"
    build_ours(prefix, dtype, "mixed", multimodal=multimodal)
    theirs = megatron.ask("read", prefix=str(prefix), mmap=True, multimodal=multimodal, asked=REQUESTS)
    ours = answers(MegatronReader(str(prefix), mmap=mmap, multimodal=multimodal, compat=True), REQUESTS)
    assert list(zip(REQUESTS, ours[3], strict=True)) == list(zip(REQUESTS, theirs[3], strict=True))
    assert ours == theirs


def test_strict_reads_differ_only_where_megatron_does_not_check(megatron: Peer, tmp_path: Path) -> None:
    prefix = tmp_path / "ours"
    build_ours(prefix, "int32", "mixed", multimodal=False)
    theirs = megatron.ask("read", prefix=str(prefix), mmap=True, multimodal=False, asked=REQUESTS)[3]
    ours = answers(MegatronReader(str(prefix)), REQUESTS)[3]
    count = sum(map(len, SHAPES["mixed"]))
    for (name, *arguments), mine, other in zip(REQUESTS, ours, theirs, strict=True):
        if mine == other:
            continue
        if name == "slice":
            chosen = range(*slice(*arguments).indices(count))
            assert (len(chosen) == 0 and mine == []) or chosen.step != 1
        else:
            assert (name, mine) == ("get", "ValueError"), "a part that leaves its sequence"


def test_a_merge_is_what_add_index_makes(megatron: Peer, tmp_path: Path) -> None:
    prefixes = []
    for number, shape in enumerate(["mixed", "no-documents", "one", "no-tokens", "mixed"]):
        prefixes.append(str(tmp_path / f"part-{number}"))
        case = {"dtype": "uint16", "shape": shape, "multimodal": False, "way": "items"}
        megatron.ask("build", prefix=prefixes[-1], **case)
    megatron.ask("merge", prefixes=prefixes, output=str(tmp_path / "theirs"), dtype="uint16", multimodal=False)
    merge_megatron(prefixes, str(tmp_path / "ours"))
    assert contents(tmp_path / "ours") == contents(tmp_path / "theirs")


def test_parts_that_we_build_merge_in_megatron_to_our_whole(megatron: Peer, tmp_path: Path) -> None:
    chance = random.Random(8)
    texts = [[[chance.randrange(60_000) for _ in range(chance.randrange(30))]] for _ in range(500)]
    prefixes = [str(tmp_path / f"part-{number}") for number in range(5)]
    for number, prefix in enumerate(prefixes):
        part = encode_part(texts[number * 100 : number * 100 + 100], "uint16", eod=0)
        for suffix, content in zip((".bin", ".idx"), part, strict=True):
            Path(prefix + suffix).write_bytes(content)
    megatron.ask("merge", prefixes=prefixes, output=str(tmp_path / "theirs"), dtype="uint16", multimodal=False)
    assert contents(tmp_path / "theirs") == encode_part(texts, "uint16", eod=0)


SENTENCES = "def by_dot(text):\n    return text.split('.')\n"


@pytest.mark.parametrize("eod", [True, False])
@pytest.mark.parametrize("split", [False, True])
def test_tokenize_writes_what_megatrons_builder_does(megatron: Peer, tmp_path: Path, eod: bool, split: bool) -> None:
    """The input has several files, one compressed, is divided into many tasks, and has empty texts."""
    texts = [f"text {number}. größer. . {'x' * (number % 50)}" if number % 9 else "" for number in range(600)]
    (tmp_path / "sentences.py").write_text(SENTENCES)
    for name, some in (("a", texts[:250]), ("b", texts[250:500]), ("c", texts[500:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in some))
    packed = gzip.compress((tmp_path / "b.jsonl").read_bytes())
    (tmp_path / "b.jsonl").unlink()
    (tmp_path / "b.jsonl.gz").write_bytes(packed)
    options = [*(["--split-sentences=sentences:by_dot"] if split else []), *([] if eod else ["--no-append-eod"])]
    command = ["tokenize", "*.jsonl*", "--output=ours", "--tokenizer=bytes", "--dtype=uint16", "--task-bytes=2K"]
    run_ledgerbeam(tmp_path, *command, "--workers=2", *options)
    documents = [text.split(".") if split else [text] for text in texts]
    megatron.ask("tokenize", texts=documents, prefix=str(tmp_path / "theirs"), dtype="uint16", eod=256 if eod else None)
    assert contents(tmp_path / "ours") == contents(tmp_path / "theirs")
