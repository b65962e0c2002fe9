"""The functions of a job: labels, values and sizes of batches."""

from __future__ import annotations

from typing import Any

import pytest

from ledgerbeam.errors import FunctionError, UsageError
from ledgerbeam.user_code.functions_of_job import function_labels, job_functions
from ledgerbeam.user_code.loading import GivenObject
from tests.cases import each

HERE = __name__


def clean(record: Any, width: int = 1) -> Any: ...


def score(record: Any, model: str = "", *, width: int = 2) -> Any: ...


def tag(record: Any, **values: Any) -> Any: ...


def plain(record: Any) -> Any: ...


class Model:
    def __init__(self, model: str) -> None: ...

    def __call__(self, record: Any) -> Any: ...


NAMES = [f"{HERE}:{name}" for name in ("clean", "score", "plain", "Model")]


@each(
    ("references", "labels"),
    [
        (["texts:clean"], ["clean"]),
        (["texts:clean", "a.b:score"], ["clean", "score"]),
        (["a:clean", "b:clean"], ["a.clean", "b.clean"]),
        (["x.a:clean", "y.a:clean"], ["x.a.clean", "y.a.clean"]),
        (["a:clean", "x.a:clean"], ["a.clean", "x.a.clean"]),
        (["a:clean", "a:clean", "b:other"], ["clean", "clean 2", "other"]),
        (["a:clean", "b:clean", "a:clean"], ["a.clean", "b.clean", "a.clean 2"]),
        (["a:Filter.keep", "a:Filter.mend"], ["Filter.keep", "Filter.mend"]),
        (["a:" + 101 * "f", "a:" + 102 * "f"], [100 * "f", 100 * "f" + " 2"]),
        (["tokenize"], ["tokenize"]),
    ],
)
def test_labels_are_the_shortest_names_that_are_unique(references: list[str], labels: list[str]) -> None:
    assert function_labels(references) == labels


def test_lambdas_have_labels() -> None:
    given = GivenObject("__main__:<lambda>", lambda record: record)
    assert function_labels([given, given]) == ["<lambda>", "<lambda> 2"]


def test_a_value_is_for_each_function_that_takes_it() -> None:
    found = job_functions(NAMES, {"width": 5, "Model.model": "a", "score.width": 6})
    assert [dict(one.object.values) for one in found] == [{"width": 5}, {"width": 6}, {}, {"model": "a"}]
    found = job_functions([f"{HERE}:tag", f"{HERE}:plain"], {"anything": 1})
    assert [dict(one.object.values) for one in found] == [{"anything": 1}, {}]


def test_objects_can_be_given_in_the_place_of_names() -> None:
    found = job_functions([lambda record, depth=1: record, clean], {"depth": 3})
    assert [dict(one.object.values) for one in found] == [{"depth": 3}, {}]
    assert found[1].object.reference == f"{HERE}:clean"


def test_the_only_function_gets_all_values_and_is_not_imported() -> None:
    (found,) = job_functions(["no_such_module:f"], {"anything": 1, "f.other": 2})
    assert dict(found.object.values) == {"anything": 1, "other": 2}


def test_the_size_of_batches_is_for_all_functions_or_by_label() -> None:
    assert [one.batch for one in job_functions(NAMES, batch=8)] == [8, 8, 8, 8]
    assert [one.batch for one in job_functions(NAMES, batch={"score": 2, "Model": 3})] == [None, 2, None, 3]
    assert [one.batch for one in job_functions(NAMES)] == [None] * 4


def test_watched_files_belong_to_all_functions_and_are_checked_once() -> None:
    found = job_functions(NAMES, watched={"/words": "sum"})
    assert all(one.object.watched == {"/words": "sum"} for one in found)
    assert [one.object.checks for one in found] == [False, False, False, True]


@each(
    ("given", "error", "said"),
    [
        (([],), UsageError, "at least one function"),
        ((NAMES, {"wdth": 1}), UsageError, "--set wdth: none of the functions clean, score, plain, Model has such"),
        ((NAMES, {"record": 1}), UsageError, "--set record: none of"),
        (
            (NAMES, {"cleen.width": 1}),
            UsageError,
            "--set cleen.width: no function has the label 'cleen'; .* clean, sco",
        ),
        ((NAMES, {}, {"cleen": 1}), UsageError, "batch cleen: no function has the label 'cleen'"),
        ((NAMES, {}, 0), UsageError, "batch: expected at least 1 record, found 0"),
        ((NAMES, {}, {"score": -1}), UsageError, "batch: expected at least 1 record, found -1 for score"),
        (([*NAMES, "no_such_module:f"], {"width": 1}), FunctionError, "no_such_module"),
    ],
)
def test_mistakes_are_named(given: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        job_functions(*given)
