from __future__ import annotations

import tracemalloc
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerbeam.errors import NegativePendingCountError, NonDeterministicTaskError, UnsupportedShapeError
from ledgerbeam.ledger.model.counting import Entry, entries, fold, is_done
from ledgerbeam.ledger.model.identity import ROOT, Lineage, node_id
from tests.cases import each
from tests.ledger.builders import Tree, lineages, trees

SOURCE = b"s" * 16
TREES = st.recursive(st.none(), lambda child: st.lists(child, min_size=1, max_size=5).map(tuple), max_leaves=12)


def deliver(pending: int, applied: dict[bytes, int], group: tuple[Entry, ...]) -> tuple[int, dict[bytes, int]]:
    after, fresh = fold(pending, applied, group)
    return after, {**applied, **dict(fresh)}


def test_a_leaf_brings_the_entries_of_its_ancestors() -> None:
    lineage: Lineage = ((1, 3), (0, 1))
    assert entries(SOURCE, lineage) == (
        (ROOT, 1),
        (node_id(SOURCE, ()), 2),
        (node_id(SOURCE, ((1, 3),)), 0),
        (node_id(SOURCE, lineage), -1),
    )
    assert entries(SOURCE, lineage, terminal="filtered") == entries(SOURCE, lineage)


@each(("leaves", "batched"), [(1, True), (2, True), (3, True), (4, True), (5, False)])
def test_every_order_of_every_small_tree_completes_at_the_last_leaf(leaves: int, batched: bool) -> None:
    for tree in trees(leaves, 3):
        check_all_orders(tree, batched=batched)


@pytest.mark.slow
def test_every_order_of_every_tree_of_six_leaves_completes_at_the_last_leaf() -> None:
    for tree in trees(6, 3):
        check_all_orders(tree, batched=False)


def check_all_orders(tree: Tree, *, batched: bool) -> None:
    """Walk the lattice of delivered sets: its paths are all orders, with all splits over writers, of all leaves."""
    groups = [entries(SOURCE, lineage) for lineage in lineages(tree)]
    count = len(groups)
    everything = (1 << count) - 1
    reached: dict[int, tuple[int, dict[bytes, int]]] = {0: (0, {})}
    steps = [1 << n for n in range(count)]
    if batched:  # one writer's batch of several leaves, folded at once
        steps = list(range(1, everything + 1))
    for delivered in range(everything + 1):
        pending, applied = reached[delivered]
        for step in steps:
            group = tuple(entry for n in range(count) if step >> n & 1 for entry in groups[n])
            after = deliver(pending, applied, group)
            if step & ~delivered == 0:
                assert after == (pending, applied)  # delivered again
            assert reached.setdefault(delivered | step, after) == after
            assert (after[0] == 0) == (delivered | step == everything)
            assert after[0] >= 0


@given(TREES, st.data())
def test_shuffled_and_repeated_leaves_complete_at_the_last_distinct_one(tree: Tree, data: st.DataObject) -> None:
    leaves = lineages(tree)
    extra = data.draw(st.lists(st.sampled_from(leaves), max_size=5))
    order = data.draw(st.permutations([*leaves, *extra]))
    pending, applied, seen = 0, dict[bytes, int](), set[Lineage]()
    for lineage in order:
        pending, applied = deliver(pending, applied, entries(SOURCE, lineage))
        seen.add(lineage)
        assert (pending == 0) == (len(seen) == len(leaves))
        assert is_done((), SOURCE, applied) == (pending == 0)


@given(TREES, st.data())
def test_a_task_is_done_when_all_that_grew_from_it_is(tree: Tree, data: st.DataObject) -> None:
    leaves = lineages(tree)
    delivered = data.draw(st.sets(st.sampled_from(leaves)))
    pending, applied = 0, dict[bytes, int]()
    for lineage in delivered:
        pending, applied = deliver(pending, applied, entries(SOURCE, lineage))
    tasks = {leaf[:depth] for leaf in leaves for depth in range(len(leaf) + 1)}
    for task in tasks:
        below = {leaf for leaf in leaves if leaf[: len(task)] == task}
        assert is_done(task, SOURCE, applied) == (below <= delivered)


def test_what_is_done_is_asked_for_one_by_one_with_or_without_a_limit() -> None:
    _, applied = deliver(0, {}, entries(SOURCE, ((0, 3),)))
    for most in (None, 3, 4):
        assert is_done(((0, 3),), SOURCE, applied.get, most)
        assert not is_done((), SOURCE, applied.get, most)


def test_another_fan_out_of_the_same_task_is_an_error_that_says_both() -> None:
    pending, applied = deliver(0, {}, entries(SOURCE, ((0, 3),)))
    with pytest.raises(NonDeterministicTaskError, match="fanned out into 3 before and fanned out into 4 now"):
        fold(pending, applied, entries(SOURCE, ((0, 4),)))
    with pytest.raises(NonDeterministicTaskError, match="fanned out into 3 before and ended now"):
        fold(pending, applied, entries(SOURCE, ()))
    for count in (1, 2):
        with pytest.raises(NonDeterministicTaskError, match=f"ended before and fanned out into {count} now"):
            fold(pending, applied, entries(SOURCE, ((0, 3), (0, count))))


def test_a_huge_fan_out_of_which_little_is_done_takes_no_memory_to_judge() -> None:
    _, applied = deliver(0, {}, entries(SOURCE, ((0, 10**6),)))
    tracemalloc.start()
    try:
        assert not is_done((), SOURCE, applied)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_leaves_that_contradict_each_other_in_one_batch_are_an_error() -> None:
    with pytest.raises(NonDeterministicTaskError):
        fold(0, {}, entries(SOURCE, ((0, 3),)) + entries(SOURCE, ((0, 4),)))


def test_more_completions_than_tasks_are_an_error() -> None:
    with pytest.raises(NegativePendingCountError, match="forget"):
        fold(0, {ROOT: 1, node_id(SOURCE, ()): 1}, entries(SOURCE, ((0, 2),)))


def test_an_unknown_ending_or_source_is_refused() -> None:
    with pytest.raises(UnsupportedShapeError, match="'lost'"):
        entries(SOURCE, (), terminal="lost")  # type: ignore[arg-type]
    with pytest.raises(UnsupportedShapeError, match="16 bytes"):
        entries(b"short", ())


def test_all_pairs_of_writers_agree_on_the_final_count() -> None:
    tree: Tree = ((None, None), (None, (None,)), None)
    groups = [entries(SOURCE, lineage) for lineage in lineages(tree)]
    for size in range(len(groups) + 1):
        for mine in combinations(groups, size):
            state: tuple[int, dict[bytes, int]] = (0, {})
            for group in [*mine, *groups]:  # the second writer sends everything, the first its part again
                state = deliver(*state, group)
            assert state[0] == 0
