from __future__ import annotations

import pytest

from ledgerbeam.errors import UsageError
from ledgerbeam.ledger.model.job import Job


def test_the_fingerprint_stays_what_it_is_for_ever() -> None:
    job = Job("map", {"b": [1, 2.5, None], "function": {"name": "m:f", "source": "00ff"}})
    assert job.fingerprint == "54e219898f345e2f2c7fe8d3ac7db476"


def test_the_order_of_parameters_does_not_matter() -> None:
    assert (
        Job("map", {"a": 1, "b": {"c": 1, "d": 2}}).fingerprint
        == Job("map", {"b": {"d": 2, "c": 1}, "a": 1}).fingerprint
    )


def test_any_parameter_changes_the_fingerprint() -> None:
    jobs = [Job("map", {}), Job("index", {}), Job("map", {"a": 1}), Job("map", {"a": None}), Job("map", {"a": "1"})]
    assert len({job.fingerprint for job in jobs}) == len(jobs)


def test_differences_are_spelled_out_line_by_line() -> None:
    stored = Job("map", {"function": {"name": "m:f", "source": "aa"}, "to": "jsonl", "old": 1})
    now = Job("index", {"function": {"name": "m:f", "source": "bb"}, "to": "jsonl", "new": [1]})
    assert now.differences(stored) == [
        "pipeline: was 'map', is 'index'",
        "function source: was 'aa', is 'bb'",
        "new: was not set, is [1]",
        "old: was 1, is not set",
    ]
    assert now.differences(now) == []


def test_a_value_is_named_by_all_that_it_is_in() -> None:
    stored = Job("map", {"one": {"of": {"k": 1}}, "two": {"of": {"k": 2}}})
    now = Job("map", {"one": {"of": {"k": 3}}, "two": {"of": {"k": 2}}})
    assert now.differences(stored) == ["one of k: was 1, is 3"]


def test_a_value_that_is_empty_or_of_another_type_is_a_difference() -> None:
    job = Job("map", {"a": {}, "b": True, "c": {"d": None}, "e": [1, 2]})
    assert job.differences(Job("map", {"b": 1, "c": {}, "e": [2, 1]})) == [
        "a: was not set, is {}",
        "b: was 1, is True",
        "c: was {}, is not set",
        "c d: was not set, is None",
        "e: was [2, 1], is [1, 2]",
    ]


def test_a_path_that_is_not_utf8_has_a_fingerprint_that_stays_for_ever() -> None:
    path = b"/in/\xff".decode("utf-8", "surrogateescape")
    jobs = [Job("map", {"input": path, "a": 1}), Job("map", {"a": 1, "input": path})]
    assert {job.fingerprint for job in jobs} == {"0df703309a3ff4416cd3b487102fdf70"}
    assert jobs[0].differences(Job("map", {"a": 1})) == [f"input: was not set, is {path!r}"]


def test_a_job_survives_its_json_form() -> None:
    job = Job("map", {"a": [1, {"b": None}]})
    assert Job.from_row(job.as_row()) == job


def test_a_parameter_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(UsageError, match="not a JSON value"):
        _ = Job("map", {"a": {1, 2}}).fingerprint  # type: ignore[dict-item]
