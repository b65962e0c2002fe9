"""Which ids of a ledger a listing did not have: few ids are looked up in a set, many in a column."""

from __future__ import annotations

from hashlib import blake2b

import pytest

from ledgerbeam.pipelines.jobs import listing

IDS = [blake2b(bytes([number]), digest_size=16).digest() for number in range(200)]


@pytest.mark.parametrize("few", [0, 1000])
def test_ids_that_were_not_listed_are_found_in_a_set_and_in_a_column(monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    monkeypatch.setattr(listing, "_FEW", few)
    known = listing._Known(listing._prefixes([*IDS[::2], *IDS[::4]]))  # some were listed twice
    assert known.count() == 100
    assert list(known.missing(IDS)) == IDS[1::2]
    assert list(known.missing(IDS[::2])) == []
