"""Forests connect what their pairs connect, however these are divided."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgerbeam.errors import RecordError, UsageError
from ledgerbeam.io.exchange import forest as forests
from ledgerbeam.io.exchange.forest import NUMBER_BITS, Forest, file_nodes, join_forests, require_scipy, span
from tests.cases import each

Place = tuple[bytes, int]
Pairs = list[tuple[Place, Place]]

EARLIER_FILE = b"\1s3://earlier"
PLACES = st.tuples(
    st.sampled_from([b"a", b"b", b"b\xff", b"s3://c d", EARLIER_FILE]), st.integers(0, 6) | st.just(2**40 - 1)
)
PAIRS = st.lists(st.tuples(PLACES, PLACES), min_size=1, max_size=12)


def score_of(place: Place) -> bytes:
    return b"%d" % (place[1] % 3 or 10)


def rank_of(place: Place, *, scored: bool) -> tuple[bool, bytes, Place]:
    """Return the sort key of the best record: an earlier job first, then the score, then the place."""
    is_earlier = place[0] == EARLIER_FILE
    return not is_earlier, score_of(place) if scored and not is_earlier else b"", place


def forest_of(pairs: Pairs, *, scored: bool = False) -> Forest:
    places = [place for pair in pairs for place in pair]
    urls = [url for url, _ in places]
    numbers = np.array([number for _, number in places], np.uint64)
    names, nodes = file_nodes(urls, np.arange(len(urls)), numbers)
    scores = np.array([score_of(place) for place in places], object) if scored else None
    return span(names, nodes, np.arange(0, len(places), 2), np.arange(1, len(places), 2), scores)


def clusters(pairs: Pairs) -> set[frozenset[Place]]:
    """Return the connected records, found by walking."""
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


@settings(deadline=None, max_examples=250)
@given(st.lists(st.tuples(PAIRS, st.booleans()), min_size=1, max_size=6), st.sampled_from([1, 5, 7, 10**6]))
def test_joined_forests_connect_what_all_pairs_do(parts: list[tuple[Pairs, bool]], held: int) -> None:
    """Records without scores have the best ones, empty."""
    some = [forest_of(pairs, scored=scored) for pairs, scored in parts]
    whole = join_forests((Forest.decode(one.encode()) for one in some), held)
    assert whole is not None
    expected = clusters([pair for pairs, _ in parts for pair in pairs])
    assert {frozenset(tree) for tree in trees(whole, whole.roots).values()} == expected
    assert all(root == min(tree) for root, tree in trees(whole, whole.roots).items())
    are_scored = {place: scored for pairs, scored in reversed(parts) for pair in pairs for place in pair}
    for best, tree in trees(whole, whole.best()).items():
        assert best == min(tree, key=lambda place: rank_of(place, scored=are_scored[place]))
    are_earlier = [whole.place(node)[0] == EARLIER_FILE for node in whole.nodes.tolist()]
    assert whole.are_earlier().tolist() == are_earlier
    assert (whole.scores is None) == (not any(scored for _, scored in parts))


def test_one_forest_is_the_whole_as_it_is() -> None:
    one = forest_of([((b"a", 1), (b"b", 2))])
    assert join_forests([one]) is one
    assert join_forests([]) is None


@pytest.mark.parametrize(
    ("held", "sizes", "expected"),
    [
        pytest.param(1, [3, 4, 3, 4, 3, 4, 3, 4, 3], [1, 1, 1, 1, 1, 2, 3, 1, 1], id="as many as before"),
        pytest.param(10, [3, 4, 3, 4, 3, 4, 3], [1, 2, 1, 1, 2, 1, 1], id="as many as are held"),
        pytest.param(4, [4, 3, 1, 2], [1, 2, 1, 1], id="one less than are held"),
        pytest.param(4, [3, 2], [1, 1], id="one less than are held at first"),
        pytest.param(10**6, [1, 2, 3, 4], [1, 2, 3, 4], id="all at the end"),
    ],
)
def test_forests_are_joined_and_let_go_once_they_have_enough_records(
    held: int, sizes: list[int], expected: list[int]
) -> None:
    alive: list[weakref.ref[Forest]] = []
    seen: list[int] = []

    def some() -> Iterator[Forest]:
        for place, size in enumerate(sizes):
            url = b"%d" % place
            one = forest_of([((url, 0), (url, number)) for number in range(size)])
            alive.append(weakref.ref(one))
            yield one
            del one
            seen.append(sum(ref() is not None for ref in alive))

    whole = join_forests(some(), held)
    assert whole is not None
    assert len(whole) == sum(sizes)
    assert seen == expected


def test_a_forest_is_the_same_after_it_was_bytes() -> None:
    pairs = [((b"b", 2), (b"a", 1)), ((b"b", 2), (b"c", 0)), ((b"c", 5), (b"c", 4))]
    one = forest_of(pairs)
    scored = span(one.urls, one.nodes, [0], [1], np.array([b"", b"two", b"3", b"", b"fifth"], object))
    for forest in (one, scored):
        found = Forest.decode(forest.encode())
        assert found.urls == [b"a", b"b", b"c"]
        assert found.nodes.tolist() == forest.nodes.tolist() == [1, 1 << 40 | 2, 2 << 40, 2 << 40 | 4, 2 << 40 | 5]
        assert found.nodes.dtype == np.uint64
        assert found.roots.tolist() == forest.roots.tolist()
        assert found.roots.dtype == np.int64
    assert Forest.decode(one.encode()).scores is None
    found = Forest.decode(scored.encode())
    assert found.scores is not None
    assert found.scores.tolist() == [b"", b"two", b"3", b"", b"fifth"]


def test_a_forest_of_nothing_is_the_same_after_it_was_bytes() -> None:
    found = Forest.decode(Forest([], np.zeros(0, np.uint64), np.zeros(0, np.int64)).encode())
    assert (found.urls, len(found), len(found.roots), found.scores) == ([], 0, 0, None)


def test_a_forest_can_be_cut_nowhere() -> None:
    data = forest_of([((b"a", 1), (b"b", 2)), ((b"a", 1), (b"a", 5))], scored=True).encode()
    for size in range(len(data)):
        with pytest.raises(RecordError, match="the forest of near duplicates is damaged"):
            Forest.decode(data[:size])
    with pytest.raises(RecordError, match=r"damaged: its parts do not fit its \d+ bytes"):
        Forest.decode(data + b"\0")


@each(
    ("place", "byte"),
    [
        pytest.param(0, 1, id="fewer files than names"),
        pytest.param(0, 3, id="more files than names"),
        pytest.param(32 + 4 + 2 * 8 + 5, 2, id="a record of a file behind the last one"),
        pytest.param(32 + 4 + 3 * 8, 3, id="a root behind the last record"),
        pytest.param(32 + 4 + 3 * 8 + 4, 200, id="a root far behind"),
        pytest.param(32 + 4 + 3 * 12 + 4, 0, id="fewer scores than there are bytes"),
        pytest.param(32 + 4 + 3 * 12 + 4, 9, id="more scores than there are bytes"),
    ],
)
def test_a_forest_whose_parts_do_not_fit_is_refused(place: int, byte: int) -> None:
    data = forest_of([((b"a", 1), (b"b", 2)), ((b"a", 1), (b"a", 5))], scored=True).encode()
    assert len(data) == 32 + 4 + 3 * 16 + 3
    Forest.decode(data)
    with pytest.raises(RecordError, match="parts contradict each other"):
        Forest.decode(data[:place] + bytes([byte]) + data[place + 1 :])


def test_more_files_than_can_be_told_apart_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forests, "FILE_BITS", 1)
    with pytest.raises(UsageError, match="near duplicates: expected at most 2 files, found 3"):
        file_nodes([b"a", b"b", b"c"], np.arange(3), np.zeros(3, np.uint64))
    assert file_nodes([b"b", b"a", b"b"], np.array([2, 1]), np.array([5, 6], np.uint64))[0] == [b"a", b"b"]
    assert int(NUMBER_BITS) == 40


def test_scipy_is_asked_for_by_name_where_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    require_scipy()
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(UsageError, match=r"pip install .*\[near\]'"):
        require_scipy()
