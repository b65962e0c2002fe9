"""Packs hold all members in order, within their limits, and a change moves no boundary far away."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerbeam.errors import UsageError
from ledgerbeam.ledger.model import task
from ledgerbeam.ledger.model.task import Source, pack_sources

sizes = st.lists(st.integers(0, 60), max_size=80)


def members(lengths: list[int]) -> list[Source]:
    return [Source(f"/data/{n:04d}.jsonl", size, "1") for n, size in enumerate(lengths)]


@given(sizes, st.integers(1, 100))
def test_packs_hold_all_members_in_order_within_their_limits(lengths: list[int], target: int) -> None:
    found = members(lengths)
    packs = list(pack_sources(found, target))
    assert [member for pack in packs for member in pack.members] == found
    for pack in packs:
        assert pack.size <= 2 * target or len(pack.members) == 1
    for pack, following in itertools.pairwise(packs):
        assert pack.size >= target // 4 or pack.size + following.members[0].size > 2 * target


@given(sizes, st.integers(1, 100))
def test_packs_by_folder_have_members_of_one_folder_each(lengths: list[int], target: int) -> None:
    found = [Source(f"/data/{n // 7}/{n:04d}.jsonl", size, "1") for n, size in enumerate(lengths)]
    packs = list(pack_sources(found, target, by_folder=True))
    assert [member for pack in packs for member in pack.members] == found
    folders = [{member.url.rpartition("/")[0] for member in pack.members} for pack in packs]
    assert all(len(one) == 1 for one in folders)
    apart = [list(pack_sources(part, target)) for _, part in itertools.groupby(found, lambda one: one.url[:-10])]
    assert packs == [pack for part in apart for pack in part], "as if each folder were packed alone"


def test_packs_have_the_target_size_on_average_and_a_new_member_moves_few() -> None:
    found = members([10] * 4000)
    packs = list(pack_sources(found, 200))
    assert 120 < 40_000 / len(packs) < 280
    other = list(pack_sources([*found[:2000], Source("/data/2000a.jsonl", 10, "1"), *found[2000:]], 200))
    assert len({pack.id for pack in packs} ^ {pack.id for pack in other}) <= 12


def test_a_pack_has_so_many_members_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "MAX_MEMBERS", 3)
    assert [len(pack.members) for pack in pack_sources(members([0] * 7), 10)] == [3, 3, 1]
    with pytest.raises(UsageError, match="found 0"):
        list(pack_sources([], 0))
    assert [len(pack.members) for pack in pack_sources(members([1]), 1)] == [1]


@pytest.mark.parametrize(
    ("lengths", "target", "cut"),
    [
        ([5] * 160, 100, [40, 40, 11, 38, 31]),
        ([5] * 80, 40, [2, 2, 11, 2, 10, 4, 16, 7, 16, 9, 1]),
        ([n * 37 % 61 for n in range(40)], 100, [2, 2, 1, 4, 6, 2, 2, 5, 3, 4, 1, 8]),
        ([0] * 50_001, 100, [50_000, 1]),
    ],
)
def test_packs_are_cut_for_ever_where_they_are_cut_now(lengths: list[int], target: int, cut: list[int]) -> None:
    # A pack that is cut elsewhere is another source: every ledger of packs would forget its work.
    assert [len(pack.members) for pack in pack_sources(members(lengths), target)] == cut
