"""Hashes of compiled code, and the names that it uses."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

from ledgerbeam.user_code.analysis import code_digest, global_names, imported_names
from tests.cases import each


def function(source: str) -> CodeType:
    """Return the code of a function, for whose body some lines stand."""
    names: dict[str, Any] = {}
    exec(f"def f(a, b=1):\n{source}", names)
    code: CodeType = names["f"].__code__
    return code


def made(**changes: Any) -> CodeType:
    """Return code of which nothing depends on the version of Python."""
    plain: dict[str, Any] = {"co_code": b"\0\0", "co_consts": (), "co_exceptiontable": b"", "co_flags": 0}
    plain |= {"co_names": (), "co_varnames": (), "co_nlocals": 0, "co_stacksize": 0}
    return compile("", "", "exec").replace(**{**plain, **changes})


DIGESTS: list[tuple[dict[str, Any], str]] = [
    ({}, "2bc3ec0f2a8fb0b2"),
    ({"co_names": ("a", "b")}, "184d33f45aedae90"),
    ({"co_consts": (1, "a", None)}, "aced187bab94e0fb"),
    ({"co_consts": ((1, ("a", b"b")), frozenset([1, 2, "c"]))}, "533045dcdb9c73bc"),
    ({"co_consts": (made(), "\ud800")}, "34f477a0ed1953e9"),
]


@each(("changes", "digest"), DIGESTS)
def test_the_digest_of_code_stays_what_it_is_for_ever(changes: dict[str, Any], digest: str) -> None:
    # A change of it makes every ledger refuse its job, as if the function had been edited.
    assert code_digest(made(**changes)) == digest


CHANGES: list[dict[str, Any]] = [
    {},
    {"co_code": b"\0\0\0\0"},
    {"co_flags": 0x20},
    {"co_exceptiontable": b"a"},
    {"co_names": ("a", "b")},
    {"co_names": ("ab",)},
    {"co_varnames": ("a", "b"), "co_nlocals": 2},
    {"co_argcount": 1, "co_varnames": ("a", "b"), "co_nlocals": 2},
    {"co_kwonlyargcount": 1, "co_varnames": ("a", "b"), "co_nlocals": 2},
    {"co_argcount": 1, "co_posonlyargcount": 1, "co_varnames": ("a", "b"), "co_nlocals": 2},
    {"co_freevars": ("a", "b")},
    {"co_cellvars": ("a", "b")},
    *({"co_consts": consts} for consts in [(1,), (1.0,), (True,), ("1",), (1, 2), ((1, 2),), ((1,), 2), ((1, (2,)),)]),
    *({"co_consts": (members,)} for members in [frozenset(), frozenset([1]), frozenset([1, 2]), frozenset([(1, 2)])]),
    {"co_consts": (((),),)},
    {"co_consts": (made(),)},
    {"co_consts": (made(co_names=("a",)),)},
]


def test_code_that_differs_anywhere_has_another_digest() -> None:
    assert len({code_digest(made(**changes)) for changes in CHANGES}) == len(CHANGES)


def test_the_order_of_a_set_of_constants_means_nothing() -> None:
    one, other = frozenset([0, 8]), frozenset([8, 0])  # these meet in a table of eight places
    assert list(one) != list(other)
    assert code_digest(made(co_consts=(one,))) == code_digest(made(co_consts=(other,)))


@each(
    ("names", "source", "found"),
    [
        (global_names, " return len(a), str(b), len(b)", ["len", "str"]),
        (global_names, " return lambda c: max(c) + (lambda: min(a))()", ["max", "min"]),
        (global_names, " return a.real", []),
        (imported_names, " import json, os.path", ["json", "os.path"]),
        (imported_names, " from json import dumps, loads as l\n return l", ["json", "json.dumps", "json.loads"]),
        (imported_names, " def g():\n  import json\n return g, len(a)", ["json"]),
        (imported_names, " return len(a.json)", []),
    ],
)
def test_names_from_elsewhere_are_those_that_code_asks_for(
    names: Callable[[CodeType], list[str]], source: str, found: list[str]
) -> None:
    assert names(function(source)) == found


def test_of_a_relative_import_the_names_of_no_module_are_told() -> None:
    assert imported_names(function(" from . import near\n from .far import x")) == ["", "far", "far.x"]
