"""Written data equals read data, for all ways to read and to divide it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ledgerbeam.io.datasets.megatron import MegatronReader, encode_part, merge_megatron, write_megatron
from tests.io.datasets.megatron.content import DTYPES

numbers = itertools.count()


@pytest.fixture(scope="module")
def folder() -> Iterator[str]:
    with TemporaryDirectory() as name:
        yield name


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
    prefix = f"{folder}/{next(numbers)}"
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
        parts.append(f"{folder}/part-{next(numbers)}")
        for suffix, content in zip((".bin", ".idx"), encode_part(texts[start:stop], dtype, eod=1), strict=True):
            Path(parts[-1] + suffix).write_bytes(content)
    output = f"{folder}/all-{next(numbers)}"
    merge_megatron(parts, output)
    assert (Path(output + ".bin").read_bytes(), Path(output + ".idx").read_bytes()) == encode_part(texts, dtype, eod=1)
