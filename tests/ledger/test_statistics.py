"""Statistics of a ledger equal one computation over all counted records, after repeated, late or replaced commits."""

from __future__ import annotations

import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerbeam import stats
from ledgerbeam.errors import FunctionError, LedgerDamagedError, LedgerError
from ledgerbeam.ledger import Job, LedgerStore, Source, merged_statistics
from ledgerbeam.ledger.model.accounts import Statistic
from ledgerbeam.ledger.model.identity import Lineage
from ledgerbeam.ledger.model.rows import Leaf
from ledgerbeam.ledger.opening import open_local_store
from ledgerbeam.ledger.summaries import joined_statistics
from tests.ledger.builders import output_of, plain

TASKS = 6
RECORDS = 400


@pytest.fixture
def store(tmp_path: Path) -> LedgerStore:
    store = open_local_store(str(tmp_path / "ledger"), create=True)
    store.open_job(Job("test", {}))
    return store


def numbers(source: Source, ordinal: int) -> list[int]:
    chance = random.Random(f"{source.url} {source.version} {ordinal}")
    return [int(chance.paretovariate(0.8)) for _ in range(RECORDS)]


def observed(source: Source, ordinal: int) -> dict[str, Statistic]:
    with stats.collecting() as collected:
        for number in numbers(source, ordinal):
            stats.count("sum", number)
            stats.observe("number", number)
            stats.distinct("numbers", number)
            stats.top("numbers by weight", number, number)
    return {name: Statistic(*found) for name, found in collected.statistics().items()}


def leaf(source: Source, ordinal: int) -> Leaf:
    lineage: Lineage = ((ordinal, TASKS),)
    if ordinal == 3:
        return Leaf(source.id, lineage, "filtered", statistics=observed(source, ordinal))
    outputs = (output_of(source, lineage),)
    return Leaf(source.id, lineage, "published", outputs, 5, 50, statistics=observed(source, ordinal))


def check(store: LedgerStore, sources: list[Source]) -> None:
    """Compare the statistics of a ledger with one computation over all records."""
    found = merged_statistics(store)
    every = [number for source in sources for ordinal in range(TASKS) for number in numbers(source, ordinal)]
    tasks = TASKS * len(sources)
    assert {name: merged.tasks for name, merged in found.items()} == dict.fromkeys(
        ("number", "numbers", "numbers by weight", "sum"), tasks
    )
    assert found["sum"].value() == sum(every)
    value = found["number"].value()
    assert (value["count"], value["min"], value["max"]) == (len(every), min(every), max(every))
    assert value["mean"] == math.fsum(every) / len(every)
    error: float = found["number"].sketch.rank_error()  # type: ignore[attr-defined]
    for name, rank in (("p50", 0.5), ("p99", 0.99)):
        low, high = (sum(1 for n in every if test(n)) / len(every) for test in _around(value[name]))
        assert low - error <= rank <= high + error
    low, high = found["numbers"].sketch.interval(3)  # type: ignore[attr-defined]
    assert low <= len(set(every)) <= high
    weights = Counter[int]()
    for number in every:
        weights[number] += number
    for row in found["numbers by weight"].value():
        assert row["lower"] <= weights[row["value"]] <= row["upper"]
    again = merged_statistics(store)
    assert {name: merged.value() for name, merged in again.items()} == {
        name: merged.value() for name, merged in found.items()
    }


def _around(value: float) -> tuple[Any, Any]:
    return lambda n: n < value, lambda n: n <= value


@pytest.mark.parametrize("seed", range(3))
def test_tasks_count_once_in_any_order_and_however_often_they_are_committed(store: LedgerStore, seed: int) -> None:
    chance = random.Random(seed)
    sources = [plain("a"), plain("b")]
    store.register(sources)
    leaves = [leaf(source, ordinal) for source in sources for ordinal in range(TASKS)]
    leaves += chance.sample(leaves, 5)
    chance.shuffle(leaves)
    while leaves:
        taken, leaves = leaves[: chance.randint(1, 4)], leaves[1:]
        store.commit(taken)
    check(store, sources)


def test_a_replaced_source_takes_its_share_away(store: LedgerStore) -> None:
    first, other = plain("a"), plain("b")
    store.register([first, other])
    store.commit([leaf(source, ordinal) for source in (first, other) for ordinal in range(TASKS)])
    second = plain("a", version="2")
    store.register([second])
    check(store, [other])
    store.commit([leaf(second, ordinal) for ordinal in range(TASKS)])
    check(store, [second, other])
    store.forget("*b.jsonl")
    check(store, [second])


def test_only_the_statistic_that_is_asked_for_is_merged(store: LedgerStore) -> None:
    source = plain("a")
    store.register([source])
    store.commit([leaf(source, 0)])
    assert list(merged_statistics(store, "sum")) == ["sum"]
    assert merged_statistics(store, "nothing") == {}


def commit_statistic(store: LedgerStore, ordinal: int, kind: str, data: bytes) -> None:
    source = plain("a")
    store.register([source])
    store.commit([Leaf(source.id, ((ordinal, TASKS),), "filtered", statistics={"x": Statistic(kind, data)})])


def test_a_statistic_is_told_with_how_many_tasks_have_it_and_how_far_off_it_may_be(store: LedgerStore) -> None:
    with stats.collecting() as collected:
        for number in range(2000):
            stats.distinct("x", number)
    commit_statistic(store, 0, *collected.statistics()["x"])
    commit_statistic(store, 1, *collected.statistics()["x"])
    store.commit([Leaf(plain("a").id, ((2, TASKS),), "filtered", statistics={"a": Statistic("count", b"3")})])
    found = merged_statistics(store)
    assert list(found) == ["a", "x"], "names are not sorted"
    assert [(merged.kind, merged.tasks) for merged in found.values()] == [("count", 1), ("distinct", 2)]
    assert found["a"].value() == 3
    assert found["a"].bounds() == ""
    assert found["x"].bounds() == found["x"].sketch.bounds() != ""


@pytest.mark.parametrize(
    ("kind", "data"),
    [("count", b"three"), ("observe", b""), ("top", b"\x01[]"), ("distinct", b"\x02zip"), ("sum", b"1")],
)
def test_a_sketch_that_does_not_read_is_damage_and_named(store: LedgerStore, kind: str, data: bytes) -> None:
    commit_statistic(store, 0, kind, data)
    with pytest.raises(LedgerDamagedError, match="the statistic 'x' of a task cannot be decoded"):
        merged_statistics(store)
    assert merged_statistics(store, "y") == {}


def test_two_kinds_under_one_name_are_an_error_by_name(store: LedgerStore) -> None:
    with stats.collecting() as collected:
        stats.observe("x", 1)
    commit_statistic(store, 0, "count", b"1")
    commit_statistic(store, 1, *collected.statistics()["x"])
    with pytest.raises(LedgerError, match=r"'x' was made by stats\.(count|observe) in some tasks and by"):
        merged_statistics(store)


@given(
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 2**70)),
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 2**70)),
)
def test_two_steps_of_a_task_add_up(one: dict[str, int], other: dict[str, int]) -> None:
    first, second = ({n: Statistic("count", b"%d" % c) for n, c in step.items()} for step in (one, other))
    joined = {name: int(statistic.data) for name, statistic in joined_statistics(first, second).items()}
    assert joined == {name: one.get(name, 0) + other.get(name, 0) for name in one.keys() | other.keys()}


def test_two_steps_cannot_give_one_name_to_two_kinds() -> None:
    with pytest.raises(FunctionError, match="two steps"):
        joined_statistics({"x": Statistic("count", b"1")}, {"x": Statistic("top", b"")})
