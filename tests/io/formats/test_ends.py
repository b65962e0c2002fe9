"""Ends of records found block by block: errors name the damaged record for any division into blocks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import chain

import pytest

from ledgerbeam.errors import ArchiveError, RecordError
from ledgerbeam.io.formats import base
from ledgerbeam.io.formats.base import offsets_of_ends, record_ends
from tests.cases import each
from tests.io.formats.test_contract import Prefixed

_DAMAGE = b"\xff" * 4
"""A length that no record can have."""


def _blocks(data: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def _records(count: int) -> list[bytes]:
    chance = random.Random(count)
    return [Prefixed().encode_record(chance.randbytes(chance.randrange(40)).hex()) for _ in range(count)]


@each("size", [1, 3, 100, 4096, 1 << 20])
@each("damaged", [0, 1, 17, 299])
def test_the_damaged_record_is_named_and_those_before_it_are_found(size: int, damaged: int) -> None:
    parts = _records(300)
    data = b"".join(parts[:damaged]) + _DAMAGE + b"".join(parts[damaged:])
    places = [sum(map(len, parts[: number + 1])) for number in range(damaged)]
    place = places[-1] if places else 0
    found: list[int] = []
    base = chain.from_iterable(record_ends(Prefixed().find_ends, _blocks(data, size), "a.lpr", ends_with_source=False))
    with pytest.raises(RecordError, match=f"a.lpr: record {damaged}, which starts at byte {place}: expected at most"):
        found.extend(map(int, base))
    assert found == places


def test_the_records_before_damage_are_found_after_one_that_fills_many_blocks() -> None:
    long = Prefixed().encode_record("ab" * 50_000)
    parts = [*_records(5), long, *_records(7)]
    data = b"".join(parts) + _DAMAGE
    with pytest.raises(RecordError, match=f"record 13, which starts at byte {len(data) - 4}:"):
        offsets_of_ends(Prefixed().find_ends, _blocks(data, 4096), "a.lpr", ends_with_source=False)


def test_damage_after_a_record_of_more_bytes_than_are_kept_is_placed_after_its_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(base, "_MOST_KEPT", 10_000)
    parts = [*_records(5), Prefixed().encode_record("ab" * 50_000), *_records(7)]
    place = sum(map(len, parts[:5]))
    data = b"".join(parts) + _DAMAGE
    with pytest.raises(RecordError, match=f"record 5, which starts at byte {place}, or one after it:"):
        offsets_of_ends(Prefixed().find_ends, _blocks(data, 4096), "a.lpr", ends_with_source=False)


def test_a_record_that_is_cut_off_is_named() -> None:
    parts = _records(300)
    place = sum(map(len, parts[:-1]))
    data = b"".join(parts)[:-1]
    with pytest.raises(ArchiveError, match=f"record 299, which starts at byte {place}, is cut off"):
        offsets_of_ends(Prefixed().find_ends, _blocks(data, 4096), "a.lpr", ends_with_source=False)
