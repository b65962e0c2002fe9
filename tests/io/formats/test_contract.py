"""The published tests for formats, on the built-in formats, the example, and formats that break them."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa
import pytest

from examples.own_format import TextLines
from ledgerbeam.errors import ArchiveError, RecordError
from ledgerbeam.io import JsonlFormat, OffsetFormat, RecordFormat, Sample, TarFormat, TextFormat
from ledgerbeam.io.formats import base
from ledgerbeam.io.formats.base import record_ends
from ledgerbeam.io.formats.format import GroupKey, HeldGroups
from ledgerbeam.io.formats.testing import FormatContract
from tests.cases import each


@dataclass(frozen=True)
class Prefixed(RecordFormat):
    """Records after their lengths: only a walk from the start finds the boundaries."""

    name = "prefixed"
    suffixes = (".lpr", ".prefixed")

    width: int = 4

    def find_ends(self, blocks: Iterable[bytes]) -> Iterator[Sequence[int]]:
        kept, start = b"", 0
        for block in blocks:
            kept += block
            ends, at = [], 0
            while len(kept) - at >= self.width:
                length = int.from_bytes(kept[at : at + self.width], "big")
                if length > 1 << 20:
                    raise ValueError(f"expected at most 1 MiB, found {length} bytes")
                if len(kept) - at < self.width + length:
                    break
                at += self.width + length
                ends.append(start + at)
            kept, start = kept[at:], start + at
            yield ends

    def decode(self, data: bytes) -> str:
        return data[self.width :].hex()

    def encode_record(self, record: Any) -> bytes:
        data = bytes.fromhex(record)
        return len(data).to_bytes(self.width, "big") + data


class TestPrefixed(FormatContract):
    def format(self) -> OffsetFormat:
        return Prefixed()

    def records(self, count: int) -> list[Any]:
        return [(bytes([number]) * (number * 7 % 50)).hex() for number in range(count)]


class TestText(FormatContract):
    def format(self) -> OffsetFormat:
        return TextLines()

    def records(self, count: int) -> list[Any]:
        return [f"line {number} " + "ö" * (number * 7 % 30) for number in range(count)]


class TestLines(TestText):
    def format(self) -> OffsetFormat:
        return TextFormat()


class TestJsonl(FormatContract):
    def format(self) -> OffsetFormat:
        return JsonlFormat()

    def records(self, count: int) -> list[Any]:
        return [{"number": number, "text": "ö" * (number * 7 % 30)} for number in range(count)]


class TestTar(FormatContract):
    takes_json = False

    def format(self) -> OffsetFormat:
        return TarFormat("key")

    def records(self, count: int) -> list[Any]:
        return [
            Sample(f"s{number:03}", {f"m{n}.x": b"x" * (number * 97) for n in range(1 + number % 3)})
            for number in range(count)
        ]

    def key(self, record: Any) -> Any:
        return record.key, list(record.items())


class _Broken(FormatContract):
    def __init__(self, kind: OffsetFormat) -> None:
        self._format = kind

    def format(self) -> OffsetFormat:
        return self._format

    def records(self, count: int) -> list[Any]:
        return [f"line {number}" for number in range(count)]


class _Sloppy(TextLines):
    """Breaks the contract in each of its methods."""

    def decode(self, data: bytes) -> str:
        return super().decode(data).strip("1\n")


class _Random(TextLines):
    def encode_record(self, record: Any) -> bytes:
        return f"{record} {id(object()) if record == 'line 1' else ''}{next(_COUNTER)}\n".encode()


class _EachBlock(TextLines):
    def find_ends(self, blocks: Iterable[bytes]) -> Iterator[Sequence[int]]:
        for block in blocks:
            yield [at + 1 for at, byte in enumerate(block) if byte == 10]


class _Crashing(TextLines):
    def decode(self, data: bytes) -> str:
        if b"\xff" in data or not data.startswith(b"line"):
            raise KeyError("not a ValueError")
        return super().decode(data)


class _Taken(TextLines):
    suffixes = (".tar",)


_COUNTER = iter(range(10**6))

BROKEN = {
    "test_records_come_back_as_they_were_written": _Sloppy(),
    "test_encoding_is_a_pure_function_of_the_records": _Random(),
    "test_records_may_reach_over_the_blocks_of_a_stream": _EachBlock(),
    "test_damage_gives_no_other_errors_than_those_of_the_library": _Crashing(),
    "test_its_name_and_suffixes_can_be_registered": _Taken(),
}


@each("case", BROKEN)
def test_a_format_that_breaks_the_contract_fails(case: str) -> None:
    with pytest.raises((AssertionError, ValueError)):
        getattr(_Broken(BROKEN[case]), case)()


def test_errors_name_the_record_and_its_bytes() -> None:
    with pytest.raises(RecordError, match=r"a\.txt: record 1, bytes \[3, 5\): 'utf-8' codec"):
        TextLines().split(b"ab\n\xff\n", "a.txt")
    with pytest.raises(RecordError, match=r"record 1: expected a string without line ends, found \{"):
        TextLines().encode(["a", {"text": "b"}])
    with pytest.raises(ArchiveError, match=r"a\.lpr: record 1, which starts at byte 5, is cut off"):
        Prefixed().split(b"\0\0\0\1a\0\0\0\2b", "a.lpr")
    with pytest.raises(RecordError, match=r"a\.lpr: record 0, .* expected at most 1 MiB"):
        Prefixed().split(b"\1\0\0\1a", "a.lpr")


_DAMAGE = b"\xff" * 4  # a length that no record can have


def _ends(data: bytes, size: int = 4096) -> Iterator[int]:
    """Find the ends of records in blocks of a size."""
    blocks = (data[start : start + size] for start in range(0, len(data), size))
    return chain.from_iterable(record_ends(Prefixed().find_ends, blocks, "a.lpr", ends_with_source=False))


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
    with pytest.raises(RecordError, match=f"a.lpr: record {damaged}, which starts at byte {place}: expected at most"):
        found.extend(map(int, _ends(data, size)))
    assert found == places


def test_the_records_before_damage_are_found_after_one_that_fills_many_blocks() -> None:
    long = Prefixed().encode_record("ab" * 50_000)
    parts = [*_records(5), long, *_records(7)]
    data = b"".join(parts) + _DAMAGE
    with pytest.raises(RecordError, match=f"record 13, which starts at byte {len(data) - 4}:"):
        list(_ends(data))


def test_damage_after_a_long_record_is_placed_after_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_MOST_KEPT", 10_000)
    parts = [*_records(5), Prefixed().encode_record("ab" * 50_000), *_records(7)]
    place = sum(map(len, parts[:5]))
    data = b"".join(parts) + _DAMAGE
    with pytest.raises(RecordError, match=f"record 5, which starts at byte {place}, or one after it:"):
        list(_ends(data))


def test_a_record_that_is_cut_off_is_named() -> None:
    parts = _records(300)
    place = sum(map(len, parts[:-1]))
    data = b"".join(parts)[:-1]
    with pytest.raises(ArchiveError, match=f"record 299, which starts at byte {place}, is cut off"):
        list(_ends(data))


def key(number: int) -> GroupKey:
    return "a.parquet", number


def test_those_that_were_used_last_are_held_up_to_the_limit() -> None:
    tables = [pa.table({"n": range(100 * (number + 1))}) for number in range(4)]  # 800, 1600, 2400, 3200 bytes
    held = HeldGroups(4800)
    for number in range(3):
        held.put(key(number), tables[number])
    assert [held.get(key(number)) for number in range(4)] == [*tables[:3], None]
    assert (len(held), held.size) == (3, 4800)
    held.use([key(0)])
    held.put(key(1), tables[1])
    held.put(key(3), tables[3])  # group 2 is removed, then group 0
    assert [held.get(key(number)) for number in range(4)] == [None, tables[1], None, tables[3]]
    assert held.size == 4800
    held.put(key(1), tables[0])  # another table of the same name: the file was opened again
    assert (held.get(key(1)), held.size) == (tables[0], 4000)
    assert len(pickle.loads(pickle.dumps(held))) == 0


def test_some_are_held_whatever_their_size() -> None:
    held = HeldGroups(1, least=2)
    tables = [pa.table({"n": [number]}) for number in range(3)]
    for number, table in enumerate(tables):
        held.put(key(number), table)
    assert [held.get(key(number)) for number in range(3)] == [None, *tables[1:]]
