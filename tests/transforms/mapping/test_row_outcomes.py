"""What becomes of each row of an Arrow batch is compared with a plain model of it."""

from __future__ import annotations

import inspect
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgerbeam import Drop, Reject, Route, Rows
from ledgerbeam.errors import FunctionError
from ledgerbeam.ledger.model.accounts import NOTHING
from ledgerbeam.stats import MOST_NAMES
from ledgerbeam.transforms.mapping.arrow_batches import RowsOutcome, require_few, rows_outcome
from ledgerbeam.transforms.mapping.outcomes import CategoryError
from tests.cases import each


def table(*ids: Any, kind: Any = None) -> pa.Table:
    return pa.table({"id": pa.array(ids, kind or pa.int64())})


def outcome(result: Any, rows: int = 4) -> RowsOutcome:
    return rows_outcome(result, rows, "f")


def kept(found: RowsOutcome) -> dict[str, list[Any]]:
    return {route: rows["id"].to_pylist() for route, rows in found.kept.items()}


@each(
    ("result", "expected", "dropped"),
    [
        (None, {}, {NOTHING: 4}),
        (Drop("short"), {}, {"short": 4}),
        (table(1, 2, 3, 4), {"": [1, 2, 3, 4]}, {}),
        (table(1, 2, 3), {"": [1, 2, 3]}, {NOTHING: 1}),
        (table(), {}, {NOTHING: 4}),
        (Route("en", table(1, 2, 3)), {"en": [1, 2, 3]}, {NOTHING: 1}),
        (Route("en", table()), {}, {NOTHING: 4}),
    ],
)
def test_a_batch_goes_one_way(result: Any, expected: dict[str, list[int]], dropped: dict[str, int]) -> None:
    found = outcome(result)
    assert (found.rows, kept(found), found.dropped, found.rejected) == (4, expected, dropped, [])


def test_a_batch_is_rejected_row_by_row() -> None:
    found = outcome(Reject("bad", "all"), 3)
    assert found.rejected == [(position, Reject("bad", "all")) for position in range(3)]
    assert (kept(found), found.dropped) == ({}, {})


async def promised() -> pa.Table:
    return table(1)


class Lazy:
    """A frame that is not collected yet."""

    def collect(self) -> pa.Table:
        return table(1)


def test_what_is_no_frame_is_refused_with_the_remedy() -> None:
    promise = promised()
    for result, said in (
        ([1], r"a list: expected a record batch.*; make one with pyarrow\.RecordBatch\.from_pylist$"),
        ({"a": 1}, r"a dict: .* of ledgerbeam; make one with"),
        (5, r"a int: .* of ledgerbeam$"),
        (promise, r"a coroutine: .* of ledgerbeam$"),
        (Lazy(), r"a Lazy: .* of ledgerbeam; collect it first$"),
        (pa.table({}), "a frame without columns"),
        (table(1, 2, 3, 4, 5), "returned 5 rows for a batch of 4"),
    ):
        with pytest.raises(FunctionError, match=said):
            outcome(result)
    assert inspect.getcoroutinestate(promise) == inspect.CORO_CLOSED
    masked = ({"drop": {"": [True] * 4}}, {"reject": {"": [True] * 4}}, {"reject": {"": ["error"] * 4}})
    for end in (Drop(""), Reject(""), *(Rows(table(1, 2, 3, 4), **more) for more in masked)):
        with pytest.raises(FunctionError, match="expected a short text as the reason"):
            outcome(end)
    for wrong in (Route("a/b", table(1)), Rows(table(1, 2, 3, 4), route=["a/b"] * 4)):
        with pytest.raises(FunctionError, match="f returned a Route: "):
            outcome(wrong)


FATES = st.sampled_from(["kept", "en", "de", "short", "long", "bad", "worse", "bad and short", "short and en"])


@settings(deadline=None, max_examples=40)
@given(st.lists(FATES, min_size=1, max_size=12), st.sampled_from(["masks", "names"]), st.booleans())
def test_each_row_goes_the_way_that_is_said_of_it(fates: list[str], given_as: str, told: bool) -> None:
    """A row that is rejected is not dropped, and one that is dropped or rejected is not written."""

    def said(*names: str) -> Any:
        chosen = [next((name for name in names if name in fate.split(" and ")), None) for fate in fates]
        if given_as == "names":
            return pa.array(chosen, pa.string())
        return {name: [one == name for one in chosen] for name in names}

    reject = said("bad", "worse")
    if told and given_as == "masks":
        reject = {
            name: pa.array([f"{name}!" if is_so else None for is_so in mask], pa.string())
            for name, mask in reject.items()
        }
    rows = table(*range(len(fates)))
    found = outcome(Rows(rows, drop=said("short", "long"), reject=reject, route=said("en", "de")), len(fates))
    expected = RowsOutcome(len(fates))
    written: dict[str, list[int]] = {}
    for number, fate in enumerate(fates):
        names = fate.split(" and ")
        if names[0] in ("bad", "worse"):
            error = f"{names[0]}!" if told and given_as == "masks" else ""
            expected.rejected.append((number, Reject(names[0], error)))
        elif names[0] in ("short", "long"):
            expected.dropped[names[0]] += 1
        else:
            written.setdefault("" if fate == "kept" else fate, []).append(number)
    assert (kept(found), found.dropped, found.rejected) == (written, expected.dropped, expected.rejected)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 5), max_size=10).map(sorted), st.sets(st.integers(0, 5)), st.sets(st.integers(0, 5)))
def test_rows_go_the_way_of_those_that_they_were_made_of(of: list[int], dropped: set[int], rejected: set[int]) -> None:
    found = outcome(
        Rows(
            table(*range(len(of))),
            of=of if of else pa.array([], pa.int8()),
            drop={"short": [row in dropped for row in range(6)]},
            reject={"bad": [row in rejected for row in range(6)]},
        ),
        6,
    )
    written = [number for number, row in enumerate(of) if row not in dropped | rejected]
    assert kept(found) == ({"": written} if written else {})
    assert found.rejected == [(row, Reject("bad")) for row in sorted(rejected)]
    none = set(range(6)) - dropped - rejected - set(of)
    assert found.dropped == +Counter({"short": len(dropped - rejected), NOTHING: len(none)})


def test_of_several_masks_the_first_that_is_true_counts() -> None:
    every, first = [True] * 4, [True, False, False, False]
    assert outcome(Rows(table(1, 2, 3, 4), drop={"a": first, "b": every})).dropped == {"a": 1, "b": 3}
    assert outcome(Rows(table(1, 2, 3, 4), drop={"b": every, "a": first})).dropped == {"b": 4}


@each(
    "names",
    [
        ["a", None, "b", "a"],
        np.array(["a", None, "b", "a"], object),
        pa.chunked_array([["a", None], ["b", "a"]]),
        pa.array(["a", None, "b", "a"], pa.large_string()),
        pa.array(["a", None, "b", "a"], pa.string_view()),
        pa.array(["a", None, "b", "a"]).dictionary_encode(),
    ],
)
def test_names_are_texts_of_any_library(names: Any) -> None:
    found = outcome(Rows(table(1, 2, 3, 4), route=names))
    assert kept(found) == {"a": [1, 4], "": [2], "b": [3]}
    assert outcome(Rows(table(1, 2, 3, 4), drop=names)).dropped == {"a": 2, "b": 1}


def test_texts_say_what_is_wrong_of_rejected_rows_alone() -> None:
    for texts, found in ((["x", "y", "x", "y"], "string"), ([None] * 4, "4 nulls in it; use fill_null")):
        with pytest.raises(FunctionError, match=rf"f: drop 'a': expected a mask of true and false, found {found}"):
            outcome(Rows(table(1, 2, 3, 4), drop={"a": texts}))
        with pytest.raises(FunctionError, match="f: route 'a': expected a mask"):
            outcome(Rows(table(1, 2, 3, 4), route={"a": texts}))
    assert outcome(Rows(table(1, 2, 3, 4), reject={"a": ["x", None, "y", None]})).rejected == [
        (0, Reject("a", "x")),
        (2, Reject("a", "y")),
    ]


def test_no_names_say_nothing_of_any_row() -> None:
    found = outcome(Rows(table(1, 2, 3, 4), drop=[None] * 4, reject={}, route=pa.nulls(4)))
    assert (kept(found), found.dropped, found.rejected) == ({"": [1, 2, 3, 4]}, {}, [])


def test_a_batch_may_have_as_many_names_as_a_task() -> None:
    require_few(MOST_NAMES, "drop", "f")
    with pytest.raises(CategoryError, match="names of drop in f"):
        require_few(MOST_NAMES + 1, "drop", "f")
    with pytest.raises(CategoryError, match="names of route in f"):
        outcome(Rows(table(*range(200)), route=[str(number) for number in range(200)]), 200)


@each(
    ("of", "said"),
    [
        ([0, 1, 2], r"f: of: expected 4 integers, one for each row returned, found 3 of type int64$"),
        ([0, 1, 2, None], r"found 4 of type int64, some of them null"),
        ([0.0, 1.0, 2.0, 3.0], "found 4 of type double"),
        ([-1, 0, 1, 2], r"expected positions from 0 to 4, ascending, found \[-1, 0, 1, 2\]"),
        ([0, 1, 2, 5], "expected positions from 0 to 4, ascending"),
        ([0, 2, 1, 3], "expected positions from 0 to 4, ascending"),
        (object(), "f: of: expected an array, found a object"),
    ],
)
def test_positions_that_cannot_be_are_refused(of: Any, said: str) -> None:
    with pytest.raises(FunctionError, match=said):
        outcome(Rows(table(1, 2, 3, 4), of=of), 5)


def test_positions_may_be_the_first_and_the_last_row_and_repeat() -> None:
    found = outcome(Rows(table(1, 2, 3, 4), of=[0, 0, 4, 4]), 5)
    assert (kept(found), found.dropped) == ({"": [1, 2, 3, 4]}, {NOTHING: 3})
    assert outcome(Rows(table(), of=pa.array([], pa.int64())), 5).dropped == {NOTHING: 5}


def test_lists_of_nothing_say_nothing() -> None:
    """As a function makes them for a batch of which no row is left: Arrow gives an empty list no type."""
    found = outcome(Rows(table(), of=[], route={"en": []}, drop={"a": [True, False, False, False]}))
    assert (kept(found), found.dropped) == ({}, {"a": 1, NOTHING: 3})
    assert kept(outcome(Rows(table(), of=[], route=[]))) == {}
    with pytest.raises(FunctionError, match="of: expected 1 integers, one for each row returned, found 0"):
        outcome(Rows(table(1), of=[]))
    with pytest.raises(FunctionError, match="of: expected 0 integers, one for each row returned, found 1"):
        outcome(Rows(table(), of=[0]))
    with pytest.raises(FunctionError, match="route 'en': expected 0 values, one by position for each row, found 1"):
        outcome(Rows(table(), of=[], route={"en": [True]}))
