"""How an order is cut into buckets, as a ledger holds it: what no job has decided is no partition, whoever wrote it."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import orjson
import pytest

from ledgerbeam.errors import LedgerDamagedError
from ledgerbeam.io.exchange.run_file import BLOCK_BYTES
from ledgerbeam.io.exchange.slices import MOST_BUCKETS, Partition
from tests.cases import each


def packed(value: Any) -> str:
    return base64.b85encode(zlib.compress(orjson.dumps(value))).decode()


@each(
    "found",
    [
        *({"buckets": buckets} for buckets in (0, -1, True, 2.0, "2", None, MOST_BUCKETS + 1)),
        *({"buckets": 2, "block_bytes": size} for size in ("x", None, 0, -1, 1.5, True)),
        *({"buckets": 2, "cuts": cuts} for cuts in (5, None, ["61"])),
        *(None, [], "2", {}),
    ],
)
def test_what_no_job_has_decided_is_none(found: Any) -> None:
    assert Partition.recorded({"partition": found}) is None


def test_what_is_left_out_is_as_it_was_before() -> None:
    assert Partition.recorded({"partition": {"buckets": 3}}) == Partition(3, "", BLOCK_BYTES)
    assert Partition.recorded({"partition": {"buckets": 1, "block_bytes": 7}}) == Partition(1, "", 7)
    assert Partition.recorded({"partition": {"buckets": MOST_BUCKETS}}) is not None


@each(
    "cuts",
    [
        "no base",
        base64.b85encode(b"no zlib").decode(),
        *map(packed, ({"61": 1}, ["61"], ["61", "6"], ["61", 5], ["61", None], 7, ["62", "61"], ["61", "61"])),
        packed(["61", "62", "63"]),
    ],
)
def test_cuts_that_are_none_are_damage(cuts: str) -> None:
    with pytest.raises(LedgerDamagedError, match="the cuts between the buckets of this job cannot be decoded"):
        Partition(3, cuts).cuts()


def test_a_hash_is_cut_evenly() -> None:
    assert list(Partition(4).cuts()) == [bytes([64 * bucket]) + bytes(7) for bucket in (1, 2, 3)]
    assert list(Partition(1).cuts()) == []
    assert list(Partition.of_cuts([b"a", b"b"]).cuts()) == [b"a", b"b"]
    assert Partition.of_cuts([b"a", b"b"]).parameters() == {
        "partition": {"buckets": 3, "block_bytes": BLOCK_BYTES, "cuts": Partition.of_cuts([b"a", b"b"]).sampled}
    }
