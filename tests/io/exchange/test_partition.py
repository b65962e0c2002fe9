"""The cuts between buckets are recorded, read again, and refused if no job can have decided them."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import orjson
import pytest

from ledgerbeam.errors import LedgerDamagedError
from ledgerbeam.io.exchange.run_file import BLOCK_BYTES
from ledgerbeam.io.exchange.slices import MOST_BUCKETS, MOST_MERGES, NO_MERGES, Merges, Partition
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


@each(
    "parameters",
    [
        {},
        {"partition": None},
        {"partition": [1]},
        *(
            {"partition": {"buckets": 3} | some}
            for some in (
                {"buckets": 0},
                {"buckets": -1},
                {"buckets": True},
                {"buckets": 1.0},
                {"buckets": "3"},
                {"buckets": None},
                {"buckets": MOST_BUCKETS + 1},
                {"block_bytes": 0},
                {"block_bytes": "1"},
                {"block_bytes": None},
                {"cuts": None},
                {"cuts": ["61"]},
                {"merges": MOST_MERGES + 1, "fan": 2},
                {"merges": True, "fan": 2},
                {"merges": 1.0, "fan": 2},
                {"fan": 0},
                {"fan": "2"},
                {"merges": 1, "fan": 0},
                {"merges": 1, "fan": "3"},
            )
        ),
    ],
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


def test_how_many_cuts_were_expected_is_said() -> None:
    with pytest.raises(LedgerDamagedError, match="expected 3 in ascending order, found 2"):
        Partition(4, packed(["61", "62"])).cuts()


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
