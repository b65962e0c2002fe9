"""Rounds of large and small stars connect what plain union-find connects."""

from __future__ import annotations

import random
from hashlib import blake2b

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgerbeam.io.exchange.hash_run import Edges, Hashes, Pieces, large_star, ranked, small_star
from tests.cases import each

Pairs = list[tuple[int, int]]


def components(pairs: Pairs) -> dict[int, int]:
    """Return for each node but the least ones the least that it is connected to, by union-find."""
    parent: dict[int, int] = {}

    def find(node: int) -> int:
        while parent.setdefault(node, node) != node:
            node = parent[node]
        return node

    for one, other in pairs:
        roots = find(one), find(other)
        parent[max(roots)] = min(roots)
    return {node: find(node) for node in parent if find(node) != node}


def edges_of(pairs: Pairs) -> Edges:
    both = np.array(pairs, np.int64).reshape(-1, 2)
    return Edges(both[:, 0], both[:, 1])


def both_ways(edges: Edges) -> Edges:
    return Edges(np.concatenate(edges), np.concatenate(edges[::-1]))


def turned(pairs: Pairs, count: int, *, divided: bool = False) -> tuple[Edges, int]:
    """Return the edges after the last round, and the number of rounds."""
    edges = edges_of([(one, other) for one, other in pairs if one != other])
    rounds = 0
    while True:
        whole = both_ways(edges)
        rounds += 1
        before = whole.to < whole.of
        parts = [np.ones(len(whole.of), np.bool_)]
        if divided:  # each part has its own edges, and of each node all that come before it
            first = np.arange(len(whole.of)) % 2 == 0
            parts = [first, ~first]
        found, changes = [], 0
        for part in parts:
            seen = part | before
            star, more = large_star(Edges(whole.of[seen], whole.to[seen]), count, part[seen])
            found.append(star)
            changes += more
        edges = Edges(*map(np.concatenate, zip(*found, strict=True)))
        assert (edges.to < edges.of).all()
        if not changes:
            return edges, rounds
        edges = small_star(edges, count)
        assert (edges.to < edges.of).all()
        rounds += 1


def check_turned(pairs: Pairs, count: int, *, divided: bool) -> None:
    edges, _ = turned(pairs, count, divided=divided)
    assert dict(zip(*(lane.tolist() for lane in edges), strict=True)) == components(pairs)
    if not divided:
        assert len(edges.of) == len(components(pairs)), "each edge comes once"


@settings(deadline=None, max_examples=300)
@given(st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15)), max_size=40), st.booleans())
def test_rounds_connect_what_union_find_connects(pairs: Pairs, divided: bool) -> None:
    check_turned(pairs, 16, divided=divided)


@each("divided", [False, True])
@each("many", [0, 1, 5, 12, 30])
def test_rounds_connect_random_pairs(many: int, divided: bool) -> None:
    draw = random.Random(many)
    for _ in range(5):
        check_turned([(draw.randrange(16), draw.randrange(16)) for _ in range(many)], 16, divided=divided)


def shuffled(pairs: Pairs, count: int) -> Pairs:
    names = list(range(count))
    random.Random(count).shuffle(names)
    return [(names[one], names[other]) for one, other in pairs]


@each(
    ("pairs", "most"),
    [
        ([(n, n + 1) for n in range(999)], 25),
        (shuffled([(n, n + 1) for n in range(999)], 1000), 17),
        (shuffled([(0, n) for n in range(1, 1000)], 1000), 5),
        (shuffled([(n - n % 4, n) for n in range(1000)], 1000), 5),
        ([(0, n) for n in range(1, 1000)], 1),
    ],
    ids=["a chain in order", "a chain", "a star", "many small ones", "a star around the least"],
)
def test_a_few_rounds_are_enough(pairs: Pairs, most: int) -> None:
    edges, rounds = turned(pairs, 1000)
    assert dict(zip(*(lane.tolist() for lane in edges), strict=True)) == components(pairs)
    assert rounds <= most


def test_a_round_counts_what_keeps_edges_from_being_stars() -> None:
    own = np.ones(4, np.bool_)
    _, changes = large_star(both_ways(edges_of([(0, 1), (0, 2)])), 3, own)
    assert changes == 0
    _, changes = large_star(both_ways(edges_of([(0, 1), (1, 2)])), 3, own)
    assert changes == 1, "2 comes to 0 by way of 1"
    _, changes = large_star(both_ways(edges_of([(0, 2), (1, 2)])), 3, own)
    assert changes == 1, "2 has two that come before it"


def test_nodes_come_in_the_order_of_both_halves() -> None:
    ones = Hashes(np.array([1, 0, 1, 1], np.uint64), np.array([5, 9, 2, 5], np.uint64))
    others = Hashes(np.array([1, 2], np.uint64), np.array([2, 5], np.uint64))
    nodes, places = ranked(ones, others)
    assert list(zip(*(lane.tolist() for lane in nodes), strict=True)) == [(0, 9), (1, 2), (1, 5), (2, 5)]
    assert [some.tolist() for some in places] == [[2, 0, 1, 2], [1, 3]]


def test_hashes_are_bytes_and_back() -> None:
    data = b"".join(blake2b(bytes([n]), digest_size=16).digest() for n in range(5))
    pieces = Pieces.of(Pieces(data).hashes())
    assert list(pieces) == [pieces[n] for n in range(5)] == [data[16 * n : 16 * n + 16] for n in range(5)]
    assert len(Pieces(b"")) == len(Pieces(b"").hashes().high) == 0
