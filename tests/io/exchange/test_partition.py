"""Division of an order into buckets: recorded cuts, plans of merges, groups of run files, and ranges of buckets."""

from __future__ import annotations

import base64
import zlib
from itertools import pairwise, product
from typing import Any
from zlib import crc32

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerbeam.errors import LedgerDamagedError
from ledgerbeam.io.exchange import slices
from ledgerbeam.io.exchange.run_file import BLOCK_BYTES, RunBlock, encode_run, encode_sorted
from ledgerbeam.io.exchange.slices import (
    MOST_BUCKETS,
    MOST_MERGES,
    NO_MERGES,
    Merges,
    Partition,
    neighbours,
    plan_merges,
    slices_read,
)
from tests.cases import each


@pytest.mark.parametrize("cuts", [[], [b""], [b"a"], [b"a", b"a\0", b"b", b"\xff"]])
def test_cuts_are_recorded_and_read_again(cuts: list[bytes]) -> None:
    partition = Partition.of_cuts(cuts)
    assert (partition.buckets, partition.block_bytes, partition.merges) == (len(cuts) + 1, BLOCK_BYTES, NO_MERGES)
    assert partition.cuts() == cuts
    assert Partition.recorded(partition.parameters()) == partition
    assert Partition.of_cuts(cuts, 77).block_bytes == 77
    assert Partition.recorded(Partition.of_cuts(cuts, 77).parameters()) == Partition.of_cuts(cuts, 77)


def test_what_is_recorded_is_a_function_of_the_cuts_alone() -> None:
    """It is part of the identity of a job: other bytes would name other outputs."""
    assert base64.b85decode(Partition.of_cuts([b"a"] * 50).sampled) == zlib.compress(orjson.dumps(["61"] * 50), 9)
    assert Partition(3).parameters() == {"partition": {"buckets": 3, "block_bytes": BLOCK_BYTES}}
    assert Partition(3, "x", 5, Merges(2, 4)).parameters() == {
        "partition": {"buckets": 3, "block_bytes": 5, "merges": 2, "fan": 4, "cuts": "x"}
    }


def test_keys_that_begin_with_a_hash_are_cut_evenly() -> None:
    assert Partition(1).cuts() == []
    assert Partition(2).cuts() == [bytes([128, *bytes(7)])]
    third = 2**64 // 3
    assert Partition(3).cuts() == [third.to_bytes(8, "big"), (2 * 2**64 // 3).to_bytes(8, "big")]


def test_what_is_not_said_has_its_default() -> None:
    assert Partition.recorded({"partition": {"buckets": 1}}) == Partition(1, "", BLOCK_BYTES, NO_MERGES)
    whole = {"buckets": MOST_BUCKETS, "block_bytes": 1, "merges": MOST_MERGES, "fan": 2, "cuts": "c"}
    assert Partition.recorded({"partition": whole}) == Partition(MOST_BUCKETS, "c", 1, Merges(MOST_MERGES, 2))
    assert MOST_BUCKETS == 10_000_000
    assert MOST_MERGES == 16


WRONG: tuple[dict[str, Any], ...] = (
    *({"buckets": value} for value in (0, -1, True, 1.0, "3", None, MOST_BUCKETS + 1)),
    *({"block_bytes": value} for value in (0, "1", None)),
    *({"cuts": value} for value in (None, ["61"])),
    *({"merges": value, "fan": 2} for value in (MOST_MERGES + 1, -1, True, 1.0, "1")),
    *({"fan": value} for value in (0, "2")),
    *({"merges": 1, "fan": value} for value in (0, 1, "3")),
    {"merges": 1},
)


@each(
    "parameters",
    [{}, {"partition": None}, {"partition": [1]}, *({"partition": {"buckets": 3} | some} for some in WRONG)],
)
def test_a_partition_that_no_job_has_decided_is_none(parameters: dict[str, Any]) -> None:
    assert Partition.recorded(parameters) is None


def packed(value: Any) -> str:
    return base64.b85encode(zlib.compress(orjson.dumps(value))).decode()


@each(
    ("buckets", "sampled"),
    [
        (3, "\0"),
        (3, "abc"),
        (3, packed(["61", "62"])[:-5]),
        (3, base64.b85encode(zlib.compress(b"{")).decode()),
        (3, packed(["61", "6"])),
        (3, packed(["61", None])),
        (3, packed(7)),
        (2, packed(["61", "62"])),
        (4, packed(["61", "62"])),
        (3, packed(["62", "61"])),
        (3, packed(["61", "61"])),
        (4, packed(["61", "63", "62"])),
    ],
)
def test_cuts_that_do_not_read_are_damage_of_the_ledger(buckets: int, sampled: str) -> None:
    with pytest.raises(LedgerDamagedError, match="the cuts between the buckets of this job cannot be decoded: "):
        Partition(buckets, sampled).cuts()


def test_ranges_of_buckets_become_narrower_level_by_level() -> None:
    partition = Partition(10, merges=Merges(2, 3))
    assert [partition.ranges(level) for level in range(5)] == [
        [0, 10],
        [0, 3, 6, 10],
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 10],
        list(range(11)),
        list(range(11)),
    ]
    assert partition.inner(0) == [range(3)]
    assert partition.inner(1) == [range(3), range(3, 6), range(6, 9)]
    assert partition.inner(2) == [*(range(place, place + 1) for place in range(8)), range(8, 10)]
    cuts = partition.cuts()
    assert [partition.cuts_of(level) for level in range(4)] == [[], [cuts[2], cuts[5]], [*cuts[:8]], cuts]
    assert Partition(5).ranges(0) == [0, 5]
    assert Partition(5).ranges(1) == [0, 1, 2, 3, 4, 5]


def test_hundred_terabytes_in_tasks_of_a_gigabyte_take_three_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = (100_000, 100_000, 100_000, 10_000_000)
    found = plan_merges(*limits)
    assert found is not None
    assert found.number == 2
    read = list(slices_read(found, 100_000, 100_000, 100_000))
    assert len(read) == 3
    assert max(read) <= 10_000_000
    for most, is_planned in ((1, False), (2, True), (3, True)):
        monkeypatch.setattr(slices, "MOST_MERGES", most)
        assert plan_merges(*limits) == (found if is_planned else None)


def test_a_run_file_that_comes_or_goes_changes_the_groups_around_it() -> None:
    names = [f"{number}.run" for number in range(10_000)]
    groups = {tuple(group) for group in neighbours(zip(names, names, strict=True), 30)}
    for place in (0, 17, 5_000, 9_999):
        others = names[:place] + names[place + 1 :]
        found = {tuple(group) for group in neighbours(zip(others, others, strict=True), 30)}
        assert len(groups ^ found) < 40, place


@given(buckets=st.integers(1, 300), number=st.integers(0, 5), fan=st.integers(2, 9))
def test_each_range_is_cut_into_those_of_the_next_level(buckets: int, number: int, fan: int) -> None:
    slices = Partition(buckets, merges=Merges(number, fan) if number else NO_MERGES)
    assert slices.ranges(0) == [0, buckets]
    assert slices.ranges(number + 1) == list(range(buckets + 1))
    for level in range(number + 1):
        inner = slices.inner(level)
        assert [place for some in inner for place in some] == list(range(len(slices.ranges(level + 1)) - 1))
        assert all(len(some) >= 1 for some in inner)
        assert level == number or all(len(some) <= fan for some in inner)
        cuts = slices.cuts_of(level + 1)
        assert cuts == sorted(set(cuts))
        assert set(slices.cuts_of(level)) <= set(cuts)
    assert slices.cuts_of(number + 1) == list(slices.cuts())


KEYS = st.lists(st.binary(max_size=3), max_size=60).map(sorted)


@given(keys=KEYS, cuts=st.sets(st.binary(min_size=1, max_size=3), max_size=5).map(sorted), data=st.data())
def test_what_comes_in_its_order_is_written_as_what_is_there_at_once(
    keys: list[bytes], cuts: list[bytes], data: st.DataObject
) -> None:
    numbers = np.arange(len(keys), dtype=np.uint64) * np.uint64(7)
    payloads = [key * 5 for key in keys]
    places = data.draw(st.lists(st.integers(0, len(keys)), max_size=6).map(sorted))
    parts = [
        RunBlock(keys[first:last], numbers[first:last].tolist(), payloads[first:last])
        for first, last in pairwise([0, *places, len(keys)])
    ]
    assert encode_sorted(parts, cuts, 40) == (encode_run(keys, numbers, payloads, cuts, 40), len(keys))


def test_each_group_ends_where_the_name_of_a_run_file_says_or_at_most_four_thirds_of_the_fan() -> None:
    names = [f"{number}.run" for number in range(300)]
    for fan, least, most in ((2, 2, 2), (3, 2, 4), (4, 3, 5), (9, 6, 12), (30, 20, 40)):
        expected: list[list[str]] = [[]]
        for name in names:
            group = expected[-1]
            group.append(name)
            if len(group) == most or (
                len(group) >= least and crc32(name.encode()) % max(1, (most - least + 1) // 2) == 0
            ):
                expected.append([])
        assert list(neighbours(zip(names, names, strict=True), fan)) == [group for group in expected if group]
    assert list(neighbours([], 2)) == []
    assert list(neighbours([(1, "a\udcff")], 2)) == [[1]]


@each(
    ("merges", "sides", "read"),
    [
        (NO_MERGES, 1, [2000]),
        (Merges(1, 3), 1, [300, 20 * 50]),
        (Merges(1, 3), 2, [300, 20 * 51]),
        (Merges(2, 3), 1, [300, 3 * 50 * 3, 20 * 25]),
        (Merges(2, 4), 1, [400, 4 * 34 * 4, 20 * 12]),
        (Merges(1, 50), 1, [5000, 20 * 10]),
        (Merges(2, 50), 1, [5000, 5000, 20 * 10]),
        (Merges(2, 4), 3, [400, 4 * 36 * 4, 20 * 14]),
    ],
)
def test_how_many_slices_are_read_is_what_the_groups_leave(merges: Merges, sides: int, read: list[int]) -> None:
    """Hundred run files of ten buckets, which have twenty parts."""
    assert list(slices_read(merges, 100, 10, 20, sides)) == read
    if sides == 1:
        assert list(slices_read(merges, 100, 10, 20)) == read


def test_a_plan_has_the_fewest_merges_and_reads_least() -> None:
    """Against all plans that there are, looked at one by one."""
    for runs, buckets, parts, most, sides in product(
        (1, 3, 8, 20), (1, 4, 9), (9, 30), (8, 20, 39, 60, 160, 200), (1, 2)
    ):
        found = plan_merges(runs, buckets, parts, most, sides)
        if runs * parts <= most:
            assert found == NO_MERGES
            continue
        expected = None
        for number in range(1, 5):
            plans = [Merges(number, fan) for fan in range(2, runs + 1)]
            read = {plan: list(slices_read(plan, runs, buckets, parts, sides)) for plan in plans}
            fits = [plan for plan in plans if max(read[plan]) <= most]
            if fits:
                expected = min(fits, key=lambda plan: (sum(read[plan]), plan.fan))
                break
        assert found == expected, (runs, buckets, parts, most, sides)
