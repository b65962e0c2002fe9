"""Forests connect what their pairs connect, however these are divided."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgerbeam.errors import RecordError, UsageError
from ledgerbeam.io.exchange import forest as forests
from ledgerbeam.io.exchange.forest import NUMBER_BITS, Forest, file_nodes, join_forests, require_scipy, span

Place = tuple[bytes, int]

EARLIER_FILE = b"\1s3://earlier"
PLACES = st.tuples(
    st.sampled_from([b"a", b"b", b"b\xff", b"s3://c d", EARLIER_FILE]), st.integers(0, 6) | st.just(2**40 - 1)
)
PAIRS = st.lists(st.tuples(PLACES, PLACES), min_size=1, max_size=12)


def score_of(place: Place) -> bytes:
    return b"%d" % (place[1] % 3)


def rank_of(place: Place, *, scored: bool) -> tuple[bool, bytes, Place]:
    """Return by what the best is found: a record of an earlier job is, whatever its score."""
    is_earlier = place[0] == EARLIER_FILE
    return not is_earlier, score_of(place) if scored and not is_earlier else b"", place


def forest_of(pairs: list[tuple[Place, Place]], *, scored: bool = False) -> Forest:
    places = [place for pair in pairs for place in pair]
    urls = [url for url, _ in places]
    numbers = np.array([number for _, number in places], np.uint64)
    names, nodes = file_nodes(urls, np.arange(len(urls)), numbers)
    scores = np.array([score_of(place) for place in places], object) if scored else None
    return span(names, nodes, np.arange(0, len(places), 2), np.arange(1, len(places), 2), scores)


def clusters(pairs: list[tuple[Place, Place]]) -> set[frozenset[Place]]:
    """Return what is connected, found by walking."""
    found: list[set[Place]] = []
    for left, right in pairs:
        touched = [one for one in found if left in one or right in one]
        found = [one for one in found if one not in touched]
        found.append(set().union({left, right}, *touched))
    return {frozenset(one) for one in found}


def trees(forest: Forest, best: Any) -> dict[Place, set[Place]]:
    found: dict[Place, set[Place]] = {}
    for node, root in zip(forest.nodes.tolist(), forest.nodes[best].tolist(), strict=True):
        found.setdefault(forest.place(root), set()).add(forest.place(node))
    return found


@settings(deadline=None, max_examples=150)
@given(st.lists(PAIRS, min_size=1, max_size=5), st.booleans(), st.sampled_from([1, 5, 10**6]))
def test_joined_forests_connect_what_all_pairs_do(
    parts: list[list[tuple[Place, Place]]], scored: bool, held: int
) -> None:
    some = (Forest.decode(forest_of(pairs, scored=scored).encode()) for pairs in parts)
    whole = join_forests(some, held)
    assert whole is not None
    expected = clusters([pair for pairs in parts for pair in pairs])
    assert {frozenset(tree) for tree in trees(whole, whole.roots).values()} == expected
    assert all(root == min(tree) for root, tree in trees(whole, whole.roots).items())
    for best, tree in trees(whole, whole.best()).items():
        assert best == min(tree, key=lambda place: rank_of(place, scored=scored))
    are_earlier = [whole.place(node)[0] == EARLIER_FILE for node in whole.nodes.tolist()]
    assert whole.are_earlier().tolist() == are_earlier


def test_there_may_be_nothing_to_join() -> None:
    assert join_forests([]) is None


def test_a_forest_can_be_cut_nowhere() -> None:
    data = forest_of([((b"a", 1), (b"b", 2)), ((b"a", 1), (b"a", 5))], scored=True).encode()
    for size in range(len(data)):
        with pytest.raises(RecordError, match="expected a forest of pairs"):
            Forest.decode(data[:size])
    roots = len(data) - 3 - 2 * 3 * 4
    with pytest.raises(RecordError, match="whose parts fit together"):
        Forest.decode(data[:roots] + b"\x07" + data[roots + 1 :])


def test_more_files_than_can_be_told_apart_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forests, "FILE_BITS", 1)
    with pytest.raises(UsageError, match="near duplicates in 3 files are more than can be told apart, 2"):
        file_nodes([b"a", b"b", b"c"], np.arange(3), np.zeros(3, np.uint64))
    assert int(NUMBER_BITS) == 40


def test_scipy_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(UsageError, match=r"pip install 'ledgerbeam\[near\]'"):
        require_scipy()
