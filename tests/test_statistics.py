"""`ledgerbeam.stats`: arguments, recorded statistics, and calls outside a job."""

from __future__ import annotations

import contextvars
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import ledgerbeam
from ledgerbeam import stats
from ledgerbeam.errors import FunctionError
from ledgerbeam.sketches import merging
from ledgerbeam.stats import collecting
from tests.cases import each


def value_of(collected: stats.Collected, name: str) -> Any:
    kind, data = collected.statistics()[name]
    found = merging(kind)
    found.take(data)
    return found.value()


def test_what_is_called_while_collecting_is_collected_by_name() -> None:
    with collecting() as collected:
        stats.count("words", 3)
        stats.count("words")
        stats.count("none", 0)
        for number in (1, 2.5, np.float32(0.5), np.int64(4), True):
            stats.observe("length", number)
        for host in ("a", "b", "a"):
            stats.distinct("hosts", host)
            stats.top("languages", host, 2)
    assert list(collected.statistics()) == ["hosts", "languages", "length", "none", "words"]
    assert value_of(collected, "words") == 4
    assert value_of(collected, "none") == 0
    assert value_of(collected, "length") == {"count": 5, "min": 0.5, "max": 4, "mean": 1.8, "p50": 1, "p99": 4}
    assert value_of(collected, "hosts") == 2
    assert value_of(collected, "languages")[0] == {"value": "a", "estimate": 4, "lower": 4, "upper": 4}


@each(
    ("values", "different"),
    [
        ((1, 1.0, np.int32(1), np.float64(1)), 1),
        ((0, -0.0, 0.0), 1),
        ((1, "1", b"1", True, None), 5),
        ((b"1", bytearray(b"1"), memoryview(b"1")), 1),
        ((2**70, 2.0**70, 2**70 + 1), 2),
        (("a", "\udce4", "\ud800", "\0"), 4),
        ((0.1, np.float32(0.1)), 2),
        (("x" * 300, "x" * 301, "x" * 299 + "y"), 3),
    ],
)
def test_values_are_the_same_where_python_says_so(values: tuple[Any, ...], different: int) -> None:
    with collecting() as collected:
        for value in values:
            stats.distinct("values", value)
            stats.top("most", value)
    assert value_of(collected, "values") == different
    assert len(value_of(collected, "most")) == different


def test_long_values_are_shown_by_their_beginning() -> None:
    with collecting() as collected:
        stats.top("texts", "\U0001f600" * 1000)
        stats.top("bytes", b"\xff" * 1000)
    assert str(value_of(collected, "texts")[0]["value"]).startswith("\U0001f600" * 128 + "... (1,000 long, ")
    assert str(value_of(collected, "bytes")[0]["value"]).startswith("b'\\xff")


WRONG: dict[Any, list[tuple[Any, ...]]] = {
    stats.count: [("a", -1), ("a", 1.5), ("a", "1"), ("a", 2**63), ("",), (3,), (["a"],), ("x" * 201,), ("x\ny",)],
    stats.observe: [("a", value) for value in (np.nan, float("nan"), np.inf, "3", None, np.array([1, 2]), 10**400)],
    stats.distinct: [("a", value) for value in ({"b": 1}, [1], float("nan"), np.array([1, 2]), 10**5000)],
    stats.top: [("a", "b", 0), ("a", object())],
}


@each(("function", "args"), [(function, args) for function, table in WRONG.items() for args in table])
def test_arguments_are_checked_outside_of_a_job_as_inside(function: Any, args: tuple[Any, ...]) -> None:
    with pytest.raises(FunctionError, match="expected") as outside:
        function(*args)
    with collecting() as collected, pytest.raises(FunctionError, match="expected") as inside:
        function(*args)
    assert str(inside.value) == str(outside.value)
    assert collected.statistics() == {}


def test_outside_of_a_job_nothing_is_kept() -> None:
    stats.count("a")
    stats.observe("a", 1)  # no statistic has the name
    with collecting() as collected:
        pass
    assert collected.statistics() == {}


def test_a_name_is_of_one_kind() -> None:
    with collecting():
        stats.count("length")
        with pytest.raises(FunctionError, match=r"'length'.*stats\.count.*another name"):
            stats.observe("length", 1)


def test_a_task_has_so_many_names_at_most() -> None:
    with collecting() as collected:
        for number in range(stats.MOST_NAMES):
            stats.count(f"name {number}")
        stats.count("name 0")
        with pytest.raises(FunctionError, match="at most 100 statistics"):
            stats.count("one more")
    assert len(collected.statistics()) == stats.MOST_NAMES


def test_what_is_discarded_is_checked_and_not_counted() -> None:
    with collecting() as collected:
        stats.count("a")
        with collecting():
            stats.count("a")
            stats.count("b")
            with pytest.raises(FunctionError, match="expected"):
                stats.observe("c", float("nan"))
        stats.count("a")
    assert value_of(collected, "a") == 2
    assert list(collected.statistics()) == ["a"]


def test_an_error_of_the_body_passes() -> None:
    with pytest.raises(KeyError), collecting():
        raise KeyError("a")
    stats.count("a")  # outside a task again: no error about threads


def test_threads_in_a_copy_of_the_context_count_for_the_task() -> None:
    def work() -> None:
        for _ in range(2_000):
            stats.count("a")

    with collecting() as collected, ThreadPoolExecutor(8) as threads:
        calls = [threads.submit(contextvars.copy_context().run, work) for _ in range(20)]
        for call in calls:
            call.result()
    assert value_of(collected, "a") == 40_000


def test_a_thread_without_context_is_an_error_and_loses_nothing_silently() -> None:
    with (
        collecting(),
        ThreadPoolExecutor(1) as threads,
        pytest.raises(FunctionError, match="with a copy of the context"),
    ):
        threads.submit(stats.count, "a").result()
    with ThreadPoolExecutor(1) as threads:
        threads.submit(stats.count, "a").result()


def test_a_thread_that_outlives_its_task_is_an_error() -> None:
    with collecting():
        context = contextvars.copy_context()
    with pytest.raises(FunctionError, match="wait for threads"):
        context.run(stats.count, "a")


def test_a_call_outside_of_a_job_imports_nothing() -> None:
    program = (
        "import ledgerbeam, sys; ledgerbeam.stats.count('a'); ledgerbeam.stats.observe('b', 1); "
        "ledgerbeam.stats.top('c', 1); print([name for name in ('numpy', 'datasketches') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
    assert ledgerbeam.stats is stats
