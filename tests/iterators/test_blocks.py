"""The orders of a global shuffle and of a shuffle by blocks: permutations, how random, and how often a block is read"""

from __future__ import annotations

import math
from itertools import chain, islice, zip_longest
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgerbeam.errors import UnsupportedShapeError, UsageError
from ledgerbeam.iterators import BlockPermutation, Permutation, Records
from tests.cases import each
from tests.iterators.data import CountingBlocks, CountingReader, in_blocks, numbers

BLOCKS = st.lists(st.integers(0, 40), max_size=25) | st.builds(lambda n: [10] * n, st.integers(0, 25))
WINDOWS = st.integers(1, 12)
SEEDS = st.integers(-3, 2**33)


def blocks_of(blocks: list[int], window: int, seed: int) -> np.ndarray[Any, Any]:
    """Return the block of each place of a pass."""
    order = BlockPermutation(blocks, window, seed)
    return np.cumsum(blocks).searchsorted(order.take(np.arange(order.size)), "right")


@given(BLOCKS, WINDOWS, SEEDS)
def test_it_has_each_number_once(blocks: list[int], window: int, seed: int) -> None:
    order = BlockPermutation(blocks, window, seed)
    assert len(order) == sum(blocks)
    assert sorted(order.take(np.arange(order.size)).tolist()) == list(range(sum(blocks)))


@given(BLOCKS.filter(any), WINDOWS, SEEDS, st.data())
def test_a_position_alone_gives_what_it_gives_among_others(
    blocks: list[int], window: int, seed: int, data: st.DataObject
) -> None:
    order = BlockPermutation(blocks, window, seed)
    places = data.draw(st.lists(st.integers(0, order.size - 1), min_size=1, max_size=40))
    assert order.take(np.array(places)).tolist() == [order[place] for place in places]


@pytest.mark.slow
@settings(max_examples=300)
@given(BLOCKS, WINDOWS, SEEDS, st.integers(1, 300), st.integers(0, 1000))
def test_each_block_is_read_once_in_a_pass(
    blocks: list[int], window: int, seed: int, largest: int, restored: int
) -> None:
    class Small(Records):
        record_bytes = 4 * 2**20 / largest

    def leaf() -> tuple[Small, CountingBlocks]:
        reader = CountingBlocks(blocks)
        return Small(reader, "some", shuffle="blocks", window=window, seed=seed), reader

    whole, reader = leaf()
    items = list(whole)
    filled = [number for number, size in enumerate(blocks) if size]
    assert sorted(reader.read) == filled
    assert reader.room <= window

    first, _ = leaf()
    step = min(restored, len(items))
    list(islice(first, step))
    second, reader = leaf()
    second.load_state_dict(first.state_dict())
    assert list(second) == items[step:]
    assert len(reader.read) == len(set(reader.read)), "also by a pass that was continued"


@pytest.mark.slow
@settings(max_examples=300)
@given(BLOCKS, st.integers(1, 6), st.integers(1, 4), SEEDS)
def test_shards_read_each_block_once_but_for_the_end_of_the_pass(
    blocks: list[int], shards: int, lanes_each: int, seed: int
) -> None:
    window = shards * lanes_each
    filled = sum(size > 0 for size in blocks)
    if filled < window:
        return
    total, parts = 0, []
    for shard in range(shards):
        reader = CountingBlocks(blocks)
        leaf = Records(reader, "some", shuffle="blocks", window=window, seed=seed)
        leaf.partition(shard, shards)
        parts.append(list(leaf))
        assert reader.room == lanes_each
        total += len(reader.read)
    assert total <= filled + 2 * window
    taken = chain.from_iterable(zip_longest(*parts))
    alone = list(Records(CountingBlocks(blocks), "some", shuffle="blocks", window=window, seed=seed))
    assert [item for item in taken if item is not None] == alone, "as a loader takes from its workers in turn"


@given(st.integers(2, 16), st.integers(1, 60), SEEDS)
def test_neighbours_are_of_different_blocks(window: int, size: int, seed: int) -> None:
    found = blocks_of([size] * (3 * window), window, seed)
    for start in range(0, len(found) - window, window):
        assert len(set(found[start : start + window].tolist())) == window


@pytest.mark.slow
def test_the_order_is_random() -> None:
    count, size, window = 40, 250, 8
    firsts, inside, near = np.zeros(count), np.zeros(size), 0
    for seed in range(400):
        found = BlockPermutation([size] * count, window, seed).take(np.arange(window * size))
        firsts[np.unique(found // size)] += 1
        inside[found[0] % size] += 1
        near += int((np.abs(np.diff(found)) == 1).sum())
    expected = 400 * window / count
    assert ((firsts - expected) ** 2 / expected).sum() < 90, "any blocks come first: 39 degrees of freedom"
    assert inside.max() < 12, "and any of their records"
    assert near < 10, "neighbours of the source are hardly ever neighbours in the order"


def test_the_records_of_a_block_are_in_any_order() -> None:
    found = BlockPermutation([1000] * 32, 8, 5).take(np.arange(32_000))
    for block in range(32):
        inside = found[found // 1000 == block] % 1000
        assert abs(np.corrcoef(inside, np.arange(1000))[0, 1]) < 0.15
        assert (inside[:100] < 500).sum() in range(25, 76)


def test_lanes_end_within_a_block_of_one_another() -> None:
    sizes = [1000, 1, 1, 1, 500, 700, 3] * 20
    found = blocks_of(sizes, 6, 1)
    assert len(set(found[: sum(sizes) - 6 * 1000].tolist())) > 100
    starts = [int(np.flatnonzero(found == block)[0]) for block in range(len(sizes))]
    spans = [int(np.flatnonzero(found == block)[-1]) - start for block, start in enumerate(starts)]
    assert max(spans) <= 6 * 1000 + 6 * 1000, "a block is in use for no longer than its lane needs for it, and the end"


def test_each_epoch_has_blocks_and_records_in_another_order() -> None:
    leaf = in_blocks([50] * 10, window=2)
    passes = [list(leaf) for _ in range(3)]
    assert len({str([item // 50 for item in items]) for items in passes}) == 3
    ranks = [str([item for item in items if item < 50]) for items in passes]
    assert len(set(ranks)) == 3


def test_the_window_that_is_held_is_that_of_the_shard() -> None:
    for shards, expected in ((1, 12), (2, 6), (3, 4), (8, 3), (12, 1), (24, 1), (5, 12)):
        leaf = in_blocks([5] * 40, window=12)
        leaf.partition(0, shards)
        assert leaf.records.room == expected == 12 // math.gcd(12, shards)


def test_a_shuffle_by_blocks_is_refused_where_there_are_none() -> None:
    with pytest.raises(UnsupportedShapeError, match="its data has no blocks; use shuffle=True"):
        Records(CountingReader(5), "some", shuffle="blocks")
    with pytest.raises(UsageError, match="True, False or \"blocks\", found 'block'"):
        Records(CountingBlocks([5]), "some", shuffle="block")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="at least 1 block, found 0"):
        in_blocks([5], window=0)
    with pytest.raises(UsageError, match="window of at least 1 block, found 0"):
        BlockPermutation([5], 0, 1)
    with pytest.raises(IndexError, match="position 5"):
        BlockPermutation([5], 1, 1)[5]


def test_another_window_is_another_graph() -> None:
    state = in_blocks([5] * 9, window=3).state_dict()
    assert state["graph"]["window"] == 3
    assert "window" not in numbers(9, shuffle=True).state_dict()["graph"], "states of before stay valid"


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
def test_a_permutation_has_each_number_once(size: int, seed: int) -> None:
    assert sorted(Permutation(size, seed).take(np.arange(size)).tolist()) == list(range(size))


@given(st.integers(1, 2**62), st.integers(0, 2**32), st.data())
def test_a_position_of_a_permutation_alone_gives_what_it_gives_in_a_block(
    size: int, seed: int, data: st.DataObject
) -> None:
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
