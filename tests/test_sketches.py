"""Sketches: merged results equal a single computation, and invalid bytes are refused with their kind."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgerbeam.sketches import KINDS, LARGEST, MOST_BYTES, FunctionCounts, begin, combined, merging, packed, unpacked
from ledgerbeam.sketches.approximate import MergedDistinct
from tests.cases import each

NUMBERS = st.floats(-LARGEST, LARGEST, allow_nan=False)


def filled(kind: str, *calls: Any) -> bytes:
    sketch = begin(kind)
    for call in calls:
        sketch.add(*call) if isinstance(call, tuple) else sketch.add(call)
    return sketch.data()


def merged(kind: str, datas: Sequence[bytes]) -> Any:
    found = merging(kind)
    for data in datas:
        found.take(data)
    return found


def a_sketch(kind: str, number: int, seed: int = 0) -> bytes:
    chance = random.Random(seed)
    calls: dict[str, Callable[[int], Any]] = {
        "count": lambda n: n,
        "observe": lambda _: chance.gauss(0, 1000),
        "distinct": lambda n: f'"{seed} {n}"',
        "top": lambda _: (str(int(chance.paretovariate(0.7))), 1),
        "functions": lambda n: (n % 5, FunctionCounts("f", n, 1, {f"reason {n % 9}": 1}, {"bad": n})),
    }
    return filled(kind, *map(calls[kind], range(number)))


def test_counts_of_functions_are_summed_by_function_in_order() -> None:
    one = filled("functions", (1, FunctionCounts("b", 3, 2, {"short": 1})), (0, FunctionCounts("a", 3, 3)))
    two = filled("functions", (0, FunctionCounts("a", 1, 0, {}, {"bad": 1})), (1, FunctionCounts("b")))
    assert merged("functions", [one, two]).value() == [
        {"function": "a", "received": 4, "returned": 3, "dropped": {}, "rejected": {"bad": 1}},
        {"function": "b", "received": 3, "returned": 2, "dropped": {"short": 1}, "rejected": {}},
    ]


@given(st.lists(st.lists(st.integers(0, 2**63 - 1), min_size=1)))
def test_counts_are_exact(tasks: list[list[int]]) -> None:
    found = merged("count", [filled("count", *task) for task in tasks])
    assert found.value() == sum(sum(task) for task in tasks)
    assert found.bounds() == ""


@given(st.lists(st.lists(NUMBERS, min_size=1), min_size=1), st.randoms())
def test_what_is_exact_of_numbers_does_not_depend_on_the_cut_or_the_order(
    tasks: list[list[float]], chance: random.Random
) -> None:
    datas = [filled("observe", *task) for task in tasks]
    chance.shuffle(datas)
    found, numbers = merged("observe", datas), [number for task in tasks for number in task]
    assert found.sum() == math.fsum(numbers)
    value = found.value()
    assert (value["count"], value["min"], value["max"]) == (len(numbers), min(numbers), max(numbers))
    assert value["p50"] == float(np.quantile(numbers, 0.5, method="inverted_cdf"))  # while all are held
    assert value["min"] <= value["mean"] <= value["max"]


def test_quantiles_of_many_numbers_are_within_their_bound() -> None:
    chance = random.Random(3)
    numbers = [chance.lognormvariate(0, 3) for _ in range(200_000)]
    found = merged("observe", [filled("observe", *numbers[at : at + 20_000]) for at in range(0, 200_000, 20_000)])
    assert 0.005 < found.rank_error() < 0.02
    for rank in (0.01, 0.5, 0.9, 0.99):
        real = np.searchsorted(np.sort(numbers), found.quantile(rank)) / len(numbers)
        assert abs(real - rank) <= found.rank_error()
    assert "rank within" in found.bounds()


def test_samples_that_are_thinned_out_stay_within_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledgerbeam.sketches.approximate._MOST_SAMPLES", 4096)
    numbers = random.Random(4).sample(range(10**6), 30_000)
    datas = [filled("observe", *numbers[at : at + 100]) for at in range(0, 30_000, 100)]
    found = merged("observe", datas)
    assert len(found._values) <= 4096
    assert 0 < found.rank_error() < 0.02
    for rank in (0.01, 0.5, 0.99):
        real = np.searchsorted(np.sort(numbers), found.quantile(rank)) / len(numbers)
        assert abs(real - rank) <= found.rank_error() + 1 / 30_000
    assert found.value() == merged("observe", datas).value()


def test_few_different_values_are_counted_exactly_and_many_within_the_bound() -> None:
    few = [filled("distinct", *(f'"{n % 300}"' for n in range(at, at + 200))) for at in range(0, 900, 100)]
    assert merged("distinct", few).value() == 300
    assert merged("distinct", few).bounds() == ""
    many = [filled("distinct", *map(str, range(at, at + 20_000))) for at in range(0, 100_000, 10_000)]
    found = merged("distinct", [*few, *many])
    low, high = found.interval(3)
    assert low <= 110_300 <= high
    assert low < found.value() < high < 1.12 * low


@given(st.permutations([a_sketch("distinct", number, seed) for seed, number in enumerate((1, 5, 150, 900, 9000))]))
@settings(max_examples=20)
def test_different_values_do_not_depend_on_the_order_or_on_repetitions(datas: list[bytes]) -> None:
    found = merged("distinct", datas)
    assert found.value() == merged("distinct", sorted(datas) * 2).value()
    assert combined("distinct", datas) == combined("distinct", sorted(datas))


def test_registers_are_estimated_as_by_the_library() -> None:
    from datasketches import hll_sketch, hll_union, tgt_hll_type

    union = hll_union(12)
    ours = MergedDistinct()
    for at in range(3):
        theirs = hll_sketch(12, tgt_hll_type.HLL_8)
        texts = [f"{n}" for n in range(at * 7_000, at * 7_000 + 10_000)]
        for text in texts:
            theirs.update(text)
        union.update(theirs)
        ours.take(filled("distinct", *texts))
    assert ours.value() == round(union.get_estimate())
    assert ours.interval() == pytest.approx((union.get_lower_bound(2), union.get_upper_bound(2)))


def test_the_most_frequent_values_are_exact_while_a_task_has_few() -> None:
    tasks = [Counter({str(n): n + seed for n in range(1, 200)}) for seed in range(5)]
    found = merged("top", [filled("top", *task.items()) for task in tasks])
    total = sum(tasks, Counter())
    assert [(row["value"], row["estimate"]) for row in found.value()] == [
        (int(text), weight) for text, weight in total.most_common(20)
    ]
    assert found.bounds() == ""


def test_the_most_frequent_values_of_many_are_within_their_bounds() -> None:
    chance = random.Random(9)
    tasks = [[str(int(chance.paretovariate(0.6))) for _ in range(5_000)] for _ in range(20)]
    total = Counter(text for task in tasks for text in task)
    found = merged("top", [filled("top", *((text, 1) for text in task)) for task in tasks])
    assert found.bounds()
    for row in found.value():
        assert row["lower"] <= total[str(row["value"])] <= row["upper"]
    assert found.value()[0]["value"] == int(total.most_common(1)[0][0])


@each("kind", KINDS)
@each("number", [1, 2, 50, 700, 30_000])
def test_one_sketch_of_several_steps_is_a_sketch(kind: str, number: int) -> None:
    one, two = a_sketch(kind, number, 1), a_sketch(kind, 3, 2)
    assert combined(kind, [one]) == one
    assert merged(kind, [combined(kind, [one, two])]).value() == merged(kind, [one, two]).value()
    assert len(one) < 8_000
    assert len(two) < 60 or kind == "functions"


@pytest.mark.parametrize("kind", KINDS)
@given(
    st.integers(0, 3),
    st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=4),
    st.integers(0, 40),
    st.booleans(),
)
@settings(max_examples=100)
def test_bytes_that_are_no_sketch_are_refused_or_mean_something(
    kind: str, which: int, changes: list[tuple[int, int]], cut: int, inside: bool
) -> None:
    data = a_sketch(kind, (1, 40, 900, 9_000)[which])
    if inside and kind != "count":
        data = unpacked(data)
    broken = bytearray(data[: len(data) - cut if cut < len(data) else 0])
    for place, value in changes:
        if broken:
            broken[place % len(broken)] = value
    found = merging(kind)
    try:
        found.take(packed(bytes(broken)) if inside and kind != "count" else bytes(broken))
    except ValueError:
        return
    merged(kind, [found.data()])
    assert found.value() is not None
    assert isinstance(found.bounds(), str)


@pytest.mark.parametrize("kind", KINDS)
@given(st.binary(max_size=80))
def test_any_bytes_are_refused_or_mean_something(kind: str, data: bytes) -> None:
    found = merging(kind)
    for given_bytes in (data, packed(data)):
        try:
            found.take(given_bytes)
        except ValueError:
            continue
        assert found.value() is not None


HOSTILE = {
    "another kind": ("minimum", b"1"),
    "a count below 0": ("count", b"-1"),
    "a count in other digits": ("count", "\u0661".encode()),
    "a count that is too long": ("count", b"9" * 31),
    "no version": ("top", b""),
    "a later version": ("top", b"\x03abc"),
    "no numbers": ("observe", packed(b"\0" * 30)),
    "NaN as a sample": ("observe", packed(unpacked(filled("observe", 0.0))[:-8] + b"\xff" * 8)),
    "text that is no JSON": ("top", packed(b"[0,1,[nothing]]")),
    "NaN as a value": ("top", packed(b'[0,1,[["NaN",1]]]')),
    "an object as a value": ("top", packed(b'[0,1,[["{}",1]]]')),
    "weights that do not add up": ("top", packed(b'[0,1,[["1",2]]]')),
    "values that are not in order": ("distinct", packed(b"c" + b"\1\0\0\4" * 2)),
    "registers that cannot be": ("distinct", packed(b"r" + b"\x40" * 4096)),
}


@each(("kind", "data"), HOSTILE.values(), ids=list(HOSTILE))
def test_hostile_bytes_are_refused(kind: str, data: bytes) -> None:
    with pytest.raises(ValueError, match="expected"):
        merging(kind).take(data)


def test_what_unpacks_to_more_than_may_be_is_refused_before_it_is_there() -> None:
    import zlib

    with pytest.raises(ValueError, match="at most"):
        unpacked(b"\x02" + zlib.compress(bytes(100 * MOST_BYTES)))
    with pytest.raises(ValueError, match="at most"):
        packed(bytes(MOST_BYTES + 1))


def test_weights_beyond_all_bounds_are_refused() -> None:
    found = merging("top")
    most = filled("top", ("1", 2**63 - 1))
    found.take(most)
    with pytest.raises(ValueError, match="in all"):
        found.take(most)
