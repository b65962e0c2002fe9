"""Counts of records: they add up, they are taken away again, and rows of them read as they were written."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerbeam.errors import UnsupportedShapeError
from ledgerbeam.ledger.lmdb.accounts import (
    decode_account,
    decode_statistics,
    encode_account,
    encode_statistics,
    sum_parts,
)
from ledgerbeam.ledger.model.accounts import (
    STATISTIC_BYTES,
    RecordCounts,
    Statistic,
    counts_row,
    read_counts,
    read_statistics,
    statistics_row,
)
from ledgerbeam.ledger.model.rows import Leaf
from ledgerbeam.ledger.model.values import decode, encode
from ledgerbeam.ledger.remote.segment import Segment, decode_segment, encode_segment
from ledgerbeam.stats import MOST_NAMES, NAME_CHARACTERS
from tests.cases import each
from tests.ledger.builders import counted_leaf, plain

ESCAPED = st.binary(max_size=3).map(lambda name: name.decode("utf-8", "surrogateescape"))
NAMES = st.one_of(st.sampled_from(["", "a", "b"]), st.text(max_size=5), ESCAPED)
NAMED = st.dictionaries(NAMES, st.integers(1, 2**40), max_size=4)
STATISTICS = st.dictionaries(NAMES, st.builds(Statistic, NAMES, st.binary(max_size=50)), max_size=4)


@st.composite
def counts(draw: st.DrawFn) -> RecordCounts:
    kept, dropped, rejected = draw(st.integers(0, 2**40)), draw(NAMED), draw(NAMED)
    read = kept + sum(dropped.values()) + sum(rejected.values())
    return RecordCounts(read, kept, dropped, rejected, draw(NAMED))


@given(counts(), counts(), counts())
def test_sums_are_those_of_numbers(one: RecordCounts, two: RecordCounts, three: RecordCounts) -> None:
    assert one.plus(two) == two.plus(one)
    assert one.plus(two).plus(three) == one.plus(two.plus(three))
    assert one.plus(RecordCounts()) == one
    assert one.plus(two).since(two) == one
    assert one.since(one) == RecordCounts()
    assert RecordCounts.from_parts(sum_parts([one, two, three])) == one.plus(two).plus(three)
    assert one.plus(two).since(one) == two
    gained = one.since(two)
    assert gained.read == gained.kept + sum(gained.dropped.values()) + sum(gained.rejected.values())


def test_what_was_taken_away_meanwhile_does_not_count_against_what_was_added() -> None:
    before = RecordCounts(9, 5, {"a": 3}, {"b": 1}, {"": 5})
    after = RecordCounts(12, 4, {"a": 4, "c": 4}, {}, {"": 7})
    assert after.since(before) == RecordCounts(5, 0, {"a": 1, "c": 4}, {}, {"": 2})


@given(counts(), STATISTICS)
def test_rows_are_read_as_they_were_written(found: RecordCounts, statistics: dict[str, Statistic]) -> None:
    assert read_counts(decode(encode(counts_row(found)))) == found
    assert read_statistics(decode(encode(statistics_row(statistics)))) == statistics
    row = encode_statistics(statistics)
    assert (row is None) is (not statistics)
    assert row is None or decode_statistics(row) == statistics
    leaf = Leaf(plain().id, ((0, 2),), records=found.records, bytes=7, seconds=1.5, counts=found, statistics=statistics)
    account = encode_account(leaf)
    assert (account is None) is found.is_plain
    if account is not None:
        assert decode_account(account) == (found, 7, 1500)
    (again,) = decode_segment(encode_segment(Segment(1, 1.0, leaves=[leaf])), "x").leaves
    assert again.special_counts() == leaf.special_counts()
    assert again.statistics == statistics


@given(st.integers(0, 2**40))
def test_plain_counts_are_known(records: int) -> None:
    assert RecordCounts.plain(records).is_plain
    assert RecordCounts.plain(records).records == records
    for other in (
        RecordCounts(records + 1, records, {"a": 1}, {}, {"": records}),
        RecordCounts(records + 1, records + 1, {}, {}, {"": records}),
        RecordCounts(records + 1, records + 1, {}, {}, {"de": records + 1}),
    ):
        assert not other.is_plain


@each(
    ("values", "problem"),
    [
        ((2**63, 2**63), "expected a number from 0"),
        ((1.0, 1), "expected a number from 0"),
        ((1, True), "expected a number from 0"),
        ((3, 4, {"a": -1}), "expected a number from 0"),
        ((4, 3, {}, {"a": 1.0}), "expected a number from 0"),
        ((3, 3, {}, {}, {"": 4, "de": -1}), "expected a number from 0"),
        ((4, 3, {"\ud800": 1}), "lone surrogates"),
        ((4, 3, {}, {"a" * (NAME_CHARACTERS + 1): 1}), "at most 200 characters"),
        ((4, 3, {"a": 1}, {"a": 1}), "as many records read as kept, dropped and rejected"),
    ],
)
def test_counts_that_no_ledger_can_hold_cannot_be_made(values: tuple[Any, ...], problem: str) -> None:
    with pytest.raises(UnsupportedShapeError, match=f"these counts cannot be recorded: .*{problem}"):
        RecordCounts(*values)


def test_counts_are_told_with_sorted_names_and_those_of_nothing_without_any() -> None:
    named = {"b": 1, "a": 2, "c": 3}
    found = RecordCounts(13, 1, named, named, named).as_dict()
    assert found == {"read": 13, "kept": 1, "dropped": named, "rejected": named, "written": named}
    assert [list(found[part]) for part in ("dropped", "rejected", "written")] == [["a", "b", "c"]] * 3
    assert RecordCounts.plain(0) == RecordCounts.from_parts({}) == RecordCounts()
    assert RecordCounts.from_parts({("written", "de"): 3, ("written", ""): 0}) == RecordCounts(written={"de": 3})


def test_rows_do_not_depend_on_the_order_of_names() -> None:
    named = {"b": 2, "a": 1}
    assert counts_row(RecordCounts(7, 1, named, named, named)) == [7, 1, *[[["a", 1], ["b", 2]]] * 3]
    statistics = {"b": Statistic("top", b"x"), "a": Statistic("count", b"12")}
    assert statistics_row(statistics) == [["a", "count", "MTI="], ["b", "top", "eA=="]]


LONG = "x" * (NAME_CHARACTERS + 1)


@each(
    ("read", "row", "problem"),
    [
        (read_counts, [1, 1, [], []], "a row of 5 values"),
        (read_counts, [2, 0, [["a", 1], ["a", 2]], [], []], "expected each name once"),
        (read_counts, [1, 0, [["a"]], [], []], "a row of 2 values"),
        (read_counts, [1, 0, {"a": 1}, [], []], "expected a list"),
        (read_statistics, [["a", "count", "MTI=!"]], "expected a sketch in base64, found 'MTI=!'"),
        (read_statistics, [["a", "count", "MTI"]], "expected a sketch in base64"),
        (read_statistics, [["a", "count", 12]], "expected a text"),
        (read_statistics, [["a", 5, "MTI="]], "expected a text"),
        (read_statistics, [["a", "count", "MTI="], ["a", "top", ""]], "expected each statistic once, found 'a' again"),
        (read_statistics, [[LONG, "count", "MTI="]], "at most 200 characters"),
    ],
)
def test_a_row_of_accounts_that_cannot_be_is_refused(read: Callable[[Any], Any], row: list[Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read(row)


def test_a_row_of_an_older_segment_is_a_plain_task() -> None:
    leaf = counted_leaf(plain(), ((0, 2),))
    bare = Leaf(leaf.source_id, leaf.lineage, "published", leaf.outputs, leaf.records, leaf.bytes, leaf.seconds)
    payload = decode(encode_segment(Segment(1, 1.0, leaves=[bare, leaf]))[32:])
    assert [len(row) for row in payload["leaves"]] == [7, 9]


MANY = {f"r{number}": 1 for number in range(MOST_NAMES + 1)}


@each(
    ("changes", "problem"),
    [
        ({"counts": RecordCounts.plain(4)}, "counts of the 5 records"),
        ({"counts": RecordCounts(5 + len(MANY), 5, MANY, {}, {"": 5})}, "at most 100 names"),
        ({"statistics": dict.fromkeys(MANY, Statistic("count", b""))}, "at most 100 statistics"),
        ({"statistics": {"x" * (NAME_CHARACTERS + 1): Statistic("count", b"")}}, "at most 200 characters"),
        ({"statistics": {"x": Statistic("\ud800", b"")}}, "lone surrogates"),
        ({"statistics": {"x": Statistic("count", b"x" * (STATISTIC_BYTES + 1))}}, "at most 1048576 bytes"),
        ({"statistics": {f"{n}": Statistic("count", b"x" * STATISTIC_BYTES) for n in range(5)}}, "bytes together"),
        ({"statistics": {"x": Statistic("count", "text")}}, "as bytes"),  # type: ignore[arg-type]
    ],
)
def test_what_no_ledger_can_hold_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(UnsupportedShapeError, match=problem):
        Leaf(plain().id, (), "published", (), 5, 1, **changes)


def test_what_a_ledger_can_just_hold_is_taken() -> None:
    names = [f"{number}" for number in range(99)] + ["x" * 200]
    counts = RecordCounts(205, 5, dict.fromkeys(names, 1), dict.fromkeys(names, 1), {"": 5})
    statistics = {name: Statistic("count", b"") for name in names}
    large = {name: Statistic("k" * 200, bytes(1_048_576)) for name in names[:4]}
    leaf = Leaf(plain().id, (), "published", (), 5, 1, counts=counts, statistics={**statistics, **large})
    assert (leaf.counts, leaf.sketch_bytes) == (counts, 4_194_304)


def test_a_filtered_task_has_written_nothing() -> None:
    with pytest.raises(UnsupportedShapeError, match="no records, found 3"):
        Leaf(plain().id, (), "filtered", (), 3)


NO_STATISTICS = [
    b"",
    b"\1\0\0\0",
    b"\2\0\0\0[]x",
    b'\x0d\0\0\0[["a","k",2]]x',
    b'\x0d\0\0\0[["a","k",1]]xy',
    b'\x19\0\0\0[["a","k",0],["a","k",0]]',
]


@each("row", NO_STATISTICS)
def test_statistics_that_do_not_read_are_refused(row: bytes) -> None:
    with pytest.raises((ValueError, struct.error)):
        decode_statistics(row)


def test_the_rows_that_do_not_read_are_nearly_right() -> None:
    assert decode_statistics(b'\x0d\0\0\0[["a","k",1]]x') == {"a": Statistic("k", b"x")}
