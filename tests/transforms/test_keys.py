"""The keys of records: equal for records that are equal, and for no others."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ledgerbeam.io.tar.sample import Sample
from ledgerbeam.sources.placed import PlacedPart, PlacedRecords
from ledgerbeam.transforms.keys import RecordKeys

CONTENT = RecordKeys("content")


def placed(values: list[Any], url: str = "/data/in/a.parquet", first: int = 5) -> PlacedRecords:
    numbers = np.arange(first, first + len(values), dtype=np.uint64)
    return PlacedRecords([PlacedPart(url, numbers, values)])


def lines(*data: bytes) -> PlacedRecords:
    return PlacedRecords([PlacedPart("/data/in/a.jsonl", np.arange(len(data), dtype=np.uint64), None, list(data))])


def test_records_that_differ_in_what_json_lacks_are_not_equal() -> None:
    values = [None, math.nan, math.inf, -math.inf, 0, "NaN", 2**70, [math.nan], [None], 2**64, float(2**64)]
    records = [{"a": value} for value in values] + [{"a": 2**70, "b": value} for value in (None, math.nan)]
    found = [CONTENT.key(record) for record in records]
    assert len(set(found)) == len(records)
    assert {len(key) for key in found} == {16}
    assert CONTENT.key({"a": float("nan")}) == CONTENT.key({"a": -math.nan})


def test_the_order_of_fields_is_no_content() -> None:
    for value in (1, math.nan, 2**70, {"d": 1, "c": [{"f": math.inf, "e": 2**70}]}):
        assert CONTENT.key({"a": value, "b": 2}) == CONTENT.key({"b": 2, "a": value})
    assert CONTENT.key({"a": {"d": math.nan, "c": 1}}) == CONTENT.key({"a": {"c": 1, "d": math.nan}})
    assert CONTENT.key({"a": {"d": 2**70, "c": 1}}) == CONTENT.key({"a": {"c": 1, "d": 2**70}})


def test_samples_of_the_same_members_are_equal_whatever_they_are_called() -> None:
    one, other = Sample("1", {"txt": b"a", "cls": b"0"}), Sample("2", {"cls": b"0", "txt": b"a"})
    assert CONTENT.key(one) == CONTENT.key(other)
    others = [{"txt": b"a"}, {"txt": b"a0", "cls": b""}, {"txt": b"a", "cl\udcff": b"0"}, {"cls": b"a", "txt": b"0"}]
    found = {CONTENT.key(sample) for sample in (one, *(Sample("1", members) for members in others))}
    assert len(found) == 5
    assert CONTENT.key(Sample("1", {})) != CONTENT.key([])
