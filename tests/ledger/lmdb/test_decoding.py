"""Rows of a local ledger are read as they were written, and refused where a value of them cannot be."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from ledgerbeam.ledger.lmdb.commit import decode_output, decode_outputs, encode_output
from ledgerbeam.ledger.lmdb.failures import read_deaths, read_failure
from ledgerbeam.ledger.lmdb.jobs import decode_job, read_run, shallow
from ledgerbeam.ledger.lmdb.sources import read_source_fields
from ledgerbeam.ledger.lmdb.tables import read_run_key, run_key
from ledgerbeam.ledger.lmdb.withdrawal import read_retired
from ledgerbeam.ledger.model.identity import run_id
from ledgerbeam.ledger.model.job import Job
from ledgerbeam.ledger.model.rows import Output
from ledgerbeam.ledger.model.values import encode
from tests.cases import each

SOURCE: dict[str, Any] = {"url": "/a", "size": 1, "version": "v", "number": 2, "back": 3, "changed": [4]}
SOURCE |= {"members": [["/a", 1, "v"], ["/b", 0, "w"]]}
RETIRED: list[Any] = [7, "/a", "/b"]
FAILURE: dict[str, Any] = {"task": "t", "reason": "r", "error": "e", "attempts": 2, "number": 3, "last": 4.5}
DEATHS: dict[str, Any] = {"task": "t", "deaths": [[1, 2.5, 0, True], [1, 2.5, 1, False]]}
JOB: dict[str, Any] = {"pipeline": "map", "parameters": {"a": [1]}}
INFO: dict[str, Any] = {"host": "h", "runner": "r", "folder": "f", "place": "p", "pid": 1, "workers": 2, "free": None}
INFO |= {"command": ["a", "b"]}
RUN: dict[str, Any] = {"began": 1.5, "ended": 2.5, "outcome": "done", "tidied": True, "listed": 3, "info": INFO}
RUN |= {"listing_finished": True, "set_ups": {"times": 2, "seconds": 1.5, "longest": 1.0}}
RUN |= {"time": {"workers": 2, "seconds": {"read": 1.5, "wait": 0.5}, "cpu": {"read": 1.0}}}
RUN |= {"audit": {"tasks": 2, "differ": 1, "found": "a record", "job": "f"}}

READ: dict[Callable[[bytes], Any], tuple[Any, Any]] = {
    read_source_fields: (SOURCE, SOURCE),
    read_retired: (RETIRED, (7, ["/a", "/b"])),
    read_failure: (FAILURE, FAILURE),
    read_deaths: (DEATHS, ("t", [(1, 2.5, 0, True), (1, 2.5, 1, False)])),
    decode_job: (JOB, Job("map", {"a": [1]})),
    read_run: (RUN, RUN),
}
MAY_LACK: dict[Callable[[bytes], Any], set[str]] = {
    read_source_fields: {"number", "back", "changed", "members"},
    read_run: {"tidied", "ended", "outcome", "listed", "set_ups", "time", "read", "wait", "audit", *INFO},
}
MAY_BE_NONE = {"ended", "outcome", "tidied", "listed", "set_ups", "time", "audit", "free", "a"}
FREE = ("free", "a")


@each("read", READ)
def test_a_row_is_read_as_it_was_written(read: Callable[[bytes], Any]) -> None:
    row, expected = READ[read]
    assert read(encode(row)) == expected


def places(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values inside a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, item in inner for found in [(*above, key), *places(item, (*above, key))]]


def changed(row: Any, place: tuple[Any, ...], value: Any) -> bytes:
    made = copy.deepcopy(row)
    inner = made
    for key in place[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return encode(made)


def wrong(value: Any) -> list[Any]:
    """Values of other types than a value, and such as no ledger writes."""
    others: list[Any] = ["x", -1, -0.5, True, None, [[]], {"x": {}}]
    kind = float if isinstance(value, float) else type(value)
    return [other for other in others if type(other) is not kind or other in (-1, -0.5)]


@each(
    ("read", "place"),
    [(read, place) for read, (row, _) in READ.items() for place in places(row) if not {*FREE} & {*place}],
)
def test_a_row_with_a_value_that_cannot_be_is_refused(read: Callable[[bytes], Any], place: tuple[Any, ...]) -> None:
    row: Any = READ[read][0]
    value = row
    for key in place:
        value = value[key]
    for other in wrong(value):
        if other is None and place[-1] in MAY_BE_NONE:
            continue
        with pytest.raises(ValueError, match=r"expected|values to unpack"):
            read(changed(row, place, other))
    if isinstance(place[-1], str):
        lacking = changed(row, place, ...)
        if place[-1] in MAY_LACK.get(read, set()):
            read(lacking)
        else:
            with pytest.raises(ValueError, match="expected"):
                read(lacking)


@each(
    ("read", "row"),
    [
        (read_source_fields, {**SOURCE, "members": [["/a", 1]]}),
        (read_source_fields, [SOURCE]),
        (read_retired, []),
        (read_deaths, {**DEATHS, "deaths": [[1, 2.5, 0]]}),
        (read_deaths, {**DEATHS, "deaths": [[1, 2.5, 0, True, 5]]}),
        (decode_output, ["a", 1, "x", 1, 0]),
        (decode_output, []),
    ],
)
def test_a_row_of_another_shape_is_refused(read: Callable[[bytes], Any], row: Any) -> None:
    with pytest.raises(ValueError, match=r"expected|values to unpack"):
        read(encode(row))


def test_a_run_does_not_name_itself() -> None:
    assert read_run(encode({**RUN, "id": "000077"})) == RUN


def test_the_id_of_a_run_is_a_number() -> None:
    for key in (b"", b"x", b"12x", b"1" * 13, b"-1", b"1000000", b"b1000000", b"a000012", b"aa100000", b"a\xff"):
        with pytest.raises(ValueError, match="expected the id of a run"):
            read_run_key(key)


def test_runs_are_in_the_order_of_their_numbers() -> None:
    numbers = [0, 1, 12, 999_999, 1_000_000, 1_000_001, 9_999_999, 10_000_000, 99_999_999_999, 999_999_999_999]
    keys = [run_key(run_id(number)) for number in numbers]
    assert keys == sorted(keys)
    assert keys[:4] == [b"000000", b"000001", b"000012", b"999999"], "as in every ledger that exists"
    assert [int(read_run_key(key)) for key in keys] == numbers


def test_what_a_run_says_is_no_deeper_than_can_be_followed() -> None:
    value: Any = 1
    for _ in range(63):
        value = [value]
    shallow(value)
    for deeper in ([value], {"a": value}, [1, [value]], {"b": 1, "a": {"c": value}}):
        with pytest.raises(ValueError, match="at most 64 levels"):
            shallow(deeper)


def test_many_outputs_are_read_at_once_as_one_by_one() -> None:
    outputs = [Output("a", 1, "x", 2, 3), Output("b\udcff", 0, "y", 0, 0, nulled=5)]
    rows = [encode_output(output, "00" * 16) for output in outputs]
    assert [decode_output(row) for row in rows] == [(output, "00" * 16) for output in outputs]
    assert [tuple(row[:2]) for row in decode_outputs(rows)] == [(output.name, output.size) for output in outputs]
    assert decode_outputs([]) == []
    for bad in (b"[]", b"1", b"{}", b'["a", "1", "x", 1, 0, ""]', b'[1, 1, "x", 1, 0, ""]', b'["a", 1, "x", 1, ""]'):
        with pytest.raises(ValueError, match="expected a name, a size"):
            decode_outputs([rows[0], bad])
    for bad in (b"", b"1, 2", rows[0] + b"," + rows[0]):
        with pytest.raises(ValueError, match="xpect"):
            decode_outputs([rows[0], bad])
