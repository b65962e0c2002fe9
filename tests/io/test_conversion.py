"""Records of one format as records of another: without loss, or refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerbeam.errors import RecordError
from ledgerbeam.io import Sample
from ledgerbeam.io.conversion import to_json, to_sample
from ledgerbeam.io.datasets.megatron.format import Document, to_document
from ledgerbeam.io.tar.sample import TEXT_EXTENSIONS
from tests.cases import each

EXTENSIONS = st.sampled_from(["wav", "txt", "left.txt", "json", "meta.json", "JSON", *sorted(TEXT_EXTENSIONS)])
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False).filter(math.isfinite)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.just("__base64__"), inner, max_size=3),
    max_leaves=6,
)
CONTENTS = st.binary(max_size=20) | st.text(max_size=9).map(str.encode) | JSON.map(orjson.dumps)


@given(st.text(min_size=1), st.dictionaries(EXTENSIONS, CONTENTS, min_size=1))
def test_a_sample_is_the_same_after_json(key: str, members: dict[str, bytes]) -> None:
    (value,) = to_json(Sample(key, members))
    (sample,) = to_sample(orjson.loads(orjson.dumps(value)))
    assert sample.key == key
    assert list(sample) == list(members)
    for extension, content in members.items():
        if sample[extension] != content:  # only the spaces in JSON may differ
            assert extension.lower().endswith("json")
            assert orjson.loads(sample[extension]) == orjson.loads(content)


@given(JSON)
def test_a_value_is_the_same_after_a_sample(value: Any) -> None:
    (sample,) = to_sample(value)
    assert orjson.loads(sample["json"]) == value


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), max_size=3), st.booleans())
def test_a_document_is_the_same_after_json_and_after_a_sample(sequences: list[list[int]], with_modes: bool) -> None:
    tokens = np.array([token for sequence in sequences for token in sequence], np.int32)
    modes = list(range(len(sequences))) if with_modes else None
    document = Document(tokens, [len(sequence) for sequence in sequences], modes)
    (value,) = to_json(document)
    (sample,) = to_sample(document)
    for record in (document, value, Sample("k", sample), to_json(Sample("k", sample))[0]):
        (found,) = to_document(record)
        assert found.as_json() == document.as_json()


def test_lists_and_null_are_one_record() -> None:
    assert to_json(None) == [None]
    assert to_json([1, 2]) == [[1, 2]]


@each(
    "record",
    [
        *({"__key__": "a", "txt": 3}, {"__key__": "a", "wav": {"__base64__": "%"}}, {"__key__": 3, "txt": "a"}),
        *({"__key__": "a", "wav": {"__base64__": 3}}, {"__key__": "a", "wav": {"__base64__": "", "more": 1}}),
    ],
)
def test_what_no_member_can_hold_is_refused(record: dict[str, Any]) -> None:
    with pytest.raises(RecordError):
        to_sample(record)


@each(
    "record",
    [
        *(None, [1], {"tokens": 3}, {"text": "a"}, {"tokens": [1], "lengths": 1}, {"tokens": [1], "modes": "a"}),
        *(Sample("a", {"txt": b"a"}), Sample("a", {"json": b"[1]"})),
    ],
)
def test_what_has_no_tokens_is_refused(record: Any) -> None:
    with pytest.raises(RecordError):
        to_document(record)


def test_a_member_that_would_take_the_place_of_the_key_is_refused() -> None:
    with pytest.raises(RecordError, match="__key__"):
        to_json(Sample("a", {"__key__": b""}))
