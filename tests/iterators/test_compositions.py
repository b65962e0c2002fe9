"""Graphs drawn at random keep the contract of a node."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledgerbeam.errors import UnsupportedShapeError
from ledgerbeam.iterators import (
    Batches,
    Buckets,
    Chain,
    Filter,
    Flatten,
    GlobalShuffle,
    IndexedManifest,
    IteratorNode,
    Map,
    Mix,
    Mux,
    Repeat,
    Shuffle,
    Slice,
    merge_states,
)
from tests.cases import each
from tests.iterators import data
from tests.iterators.data import numbers

Make: TypeAlias = Callable[[], IteratorNode]  # makes a graph, each time anew over the same data
MOST = 120
SEEDS = st.integers(-3, 2**33)
KEYS = (repr, str)


def cost(item: Any) -> float:
    return 1 + len(repr(item)) * 5 % 7


def seldom(item: Any) -> bool:
    return len(repr(item)) % 5 != 0


def pieces(item: Any) -> list[Any]:
    return [(item, piece) for piece in range(len(repr(item)) % 3)]


@st.composite
def leaves(draw: st.DrawFn) -> Make:
    count, first = draw(st.integers(0, 25)), draw(st.sampled_from([0, 100, 1000]))
    shuffle, seed = draw(st.booleans()), draw(SEEDS)
    if draw(st.integers(0, 2)) == 0:
        blocks, window = draw(st.lists(st.integers(0, 7), max_size=6)), draw(st.integers(1, 5))
        return lambda: data.in_blocks(blocks, window=window, seed=seed)
    return lambda: numbers(count, first, shuffle=shuffle, seed=seed)


@st.composite
def grown(draw: st.DrawFn, makes: st.SearchStrategy[Make]) -> Make:
    """Return a node over one or more graphs."""
    make, seed, size = draw(makes), draw(SEEDS), draw(st.integers(1, 9))
    others = draw(st.lists(makes, max_size=2))
    probability = draw(st.sampled_from([0.0, 0.5, 1.0]))
    nodes: dict[str, Make] = {
        "map": lambda: Map(make(), data.wrap),
        "map with chance": lambda: Map(make(), data.add_noise, seed=seed),
        "filter": lambda: Filter(make(), seldom),
        "flatten": lambda: Flatten(Map(make(), pieces)),
        "slice": lambda: Slice(make(), size // 3, 1 + size // 2),
        "shuffle": lambda: Shuffle(make(), size, seed=seed),
        "repeat": lambda: Repeat(make(), 1 + size % 3),
        "chain": lambda: Chain(make(), *(other() for other in others)),
        "chain in any order": lambda: Chain(make(), *(other() for other in others), shuffle=True, seed=seed),
        "mux": lambda: Mux(make(), *(other() for other in others), seed=seed, temperature=size),
        "batches": lambda: Batches(make(), size, max_cost=12, cost=cost),
        "buckets": lambda: Buckets(make(), cost, [2, 5], max_cost=12, buffer_size=2 * size, seed=seed),
        "mix": lambda: Mix(make(), numbers(5, 9000), data.mix, probability=probability, seed=seed),
    }
    made = make()
    if made.positions is not None and made.is_single:
        nodes["global shuffle"] = lambda: GlobalShuffle(make(), numbers(size, 5000), seed=seed)
    return nodes[draw(st.sampled_from(sorted(nodes)))]


GRAPHS = st.recursive(leaves(), grown, max_leaves=6)
EXAMPLES = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))


@EXAMPLES
@given(GRAPHS, st.integers(0, 3), st.sampled_from([(0, 1), (1, 2), (2, 3)]))
def test_any_graph_goes_on_at_every_step(make: Make, epoch: int, shard: tuple[int, int]) -> None:
    graph = make()
    graph.partition(*shard)
    graph.set_epoch(epoch)
    items, states = [], [json.dumps(graph.state_dict())]
    for item in islice(graph, MOST):
        items.append(item)
        states.append(json.dumps(graph.state_dict()))
    for step, state in enumerate(states):
        other = make()
        other.partition(*shard)
        other.load_state_dict(json.loads(state))
        assert list(islice(other, MOST - step)) == items[step:]


@EXAMPLES
@given(GRAPHS, st.integers(0, 3))
def test_any_item_of_any_graph_is_rebuilt_from_its_token(make: Make, epoch: int) -> None:
    graph = make()
    graph.begin(epoch)
    pairs = list(islice(graph.pairs(), MOST))
    tokens = json.loads(json.dumps([token for token, _ in pairs]))
    assert make().read_many(tokens, epoch) == [item for _, item in pairs]


@EXAMPLES
@given(GRAPHS)
def test_the_spans_of_a_graph_are_its_pass(make: Make) -> None:
    graph = make()
    if graph.positions is not None:
        half = graph.positions // 2
        assert graph.read_span(0, half) + graph.read_span(half, graph.positions) == list(graph)


@st.composite
def divisible(draw: st.DrawFn) -> Make:
    """Return a graph of numbers whose rest can be divided anew, and whose pass does not depend on the number of
    shards."""
    make = draw(leaves())
    for _ in range(draw(st.integers(0, 4))):
        make = draw(divided(make))
    return make


@st.composite
def divided(draw: st.DrawFn, make: Make) -> Make:
    other, seed, size = draw(leaves()), draw(SEEDS), draw(st.integers(1, 9))
    nodes: dict[str, Make] = {
        "map": lambda: Map(make(), data.wrap),
        "filter": lambda: Filter(make(), seldom),
        "flatten": lambda: Flatten(Map(make(), pieces)),
        "shuffle": lambda: Shuffle(make(), size, seed=seed),
        "repeat": lambda: Repeat(make(), 1 + size % 3),
        "chain": lambda: Chain(other(), make(), numbers(size, 7000)),
        "chain in any order": lambda: Chain(other(), make(), shuffle=True, seed=seed),
        "mux": lambda: Mux(make(), other(), seed=seed, weights=[1, size]),
    }
    if make().is_positional:
        nodes["slice"] = lambda: Slice(make(), size // 3, 1 + size // 2)
        nodes["global shuffle"] = lambda: GlobalShuffle(other(), make(), seed=seed)
    return nodes[draw(st.sampled_from(sorted(nodes)))]


@each("sizes", [(1, 1, 1), (2, 1, 3), (1, 0, 2, 5)])
@each("rounds", [[[0, 1], [0], [0, 1], [0]], [[1], [0, 1], [0, 2, 1], [1, 0]]])
def test_short_sources_of_a_chain_are_dealt_out_anew_again_and_again(
    sizes: tuple[int, ...], rounds: list[list[int]]
) -> None:
    check_rounds(lambda: Chain(*(numbers(size, 100 * n) for n, size in enumerate(sizes))), rounds)


@EXAMPLES
@given(divisible(), st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=4), min_size=2, max_size=4))
def test_any_numbers_of_shards_one_after_another_give_each_item_once(make: Make, rounds: list[list[int]]) -> None:
    check_rounds(make, rounds)


def check_rounds(make: Make, rounds: list[list[int]]) -> None:
    """Run rounds with a shard for each number, merged in between. Each takes that many items, in the last round all."""
    graph = make()
    given_out: list[Any] = []
    merged: dict[str, Any] | None = None
    for number, taken in enumerate(rounds):
        states = []
        for shard, count in enumerate(taken):
            part = make()
            part.partition(shard, len(taken))
            if merged is not None:
                part.load_state_dict(merged)
            last = number == len(rounds) - 1
            given_out += list(part) if last else list(islice(part, count))
            states.append(json.loads(json.dumps(part.state_dict())))
        merged = json.loads(json.dumps(merge_states(graph, states)))
    assert Counter(map(repr, given_out)) == Counter(map(repr, graph))


def test_a_mux_does_not_give_spans_of_a_pass_that_a_blank_line_shifts(tmp_path: Path) -> None:
    blank = IndexedManifest(data.write_text(tmp_path / "blank.jsonl", "1\n\n2\n3\n"))
    graph = Mux(blank, numbers(4), seed=1)
    assert len(list(graph)) == 7
    with pytest.raises(UnsupportedShapeError, match=r"place 1 of .*blank\.jsonl.* has no item"):
        graph.read_span(0, 8)
