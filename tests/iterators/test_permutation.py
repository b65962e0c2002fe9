"""The order of a global shuffle: lhotse's, for any size and seed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerbeam.errors import UsageError
from ledgerbeam.iterators import Permutation
from tests.cases import each

VECTORS = [
    (10, 42, [2, 1, 3, 0, 6, 4, 8, 5]),
    (10, -1, [5, 8, 4, 2, 9, 7, 3, 6]),
    (100, 42, [6, 32, 1, 43, 0, 24, 78, 61]),
    (1_000_003, 123456789, [122790, 926211, 234783, 126511, 722927, 62889, 390622, 454463]),
    (2**40, 7, [229261376824, 879045109702, 753372658439, 547144250578]),
]
"""First numbers of `lhotse.indexing.LazyShuffledRange` 2.0.0a7."""


@each(("size", "seed", "first"), VECTORS)
def test_it_begins_as_lhotses_does(size: int, seed: int, first: list[int]) -> None:
    permutation = Permutation(size, seed)
    assert permutation.take(np.arange(len(first))).tolist() == first
    assert permutation.take(np.tile(np.arange(len(first)), 10)).tolist() == first * 10


@given(st.integers(0, 3000), st.integers(-(2**40), 2**40))
def test_it_has_each_number_once(size: int, seed: int) -> None:
    assert sorted(Permutation(size, seed).take(np.arange(size)).tolist()) == list(range(size))


@given(st.integers(1, 2**62), st.integers(0, 2**32), st.data())
def test_a_position_alone_gives_what_it_gives_in_a_block(size: int, seed: int, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20))
    permutation = Permutation(size, seed)
    found = permutation.take(np.array(places))
    assert found.tolist() == [permutation[place] for place in places]
    assert permutation.take(np.array(places * 20)).tolist() == found.tolist() * 20
    assert 0 <= found.min() <= found.max() < size


def test_a_size_or_position_out_of_range_is_refused() -> None:
    with pytest.raises(UsageError, match="found -1"):
        Permutation(-1, 0)
    with pytest.raises(IndexError, match="position 10"):
        Permutation(10, 0)[10]
