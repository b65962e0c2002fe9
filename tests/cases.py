"""Tables of cases that one test checks."""

from __future__ import annotations

import functools
import inspect
import reprlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

_Test = Callable[..., None]


def each(
    names: str | Sequence[str], cases: Iterable[Any], ids: Iterable[str] | Callable[[Any], object] | None = None
) -> Callable[[_Test], _Test]:
    """Check all cases in one test, and report every case that fails.

    The arguments are those of `pytest.mark.parametrize`, which makes one test of each case, with fixtures of its own.
    Here the cases share the fixtures.
    """
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = [_values(case, len(keys)) for case in cases]
    if not table:
        raise ValueError("a table without cases; add one")

    def decorate(test: _Test) -> _Test:
        @functools.wraps(test)
        def check(*args: Any, **fixtures: Any) -> None:
            failures: list[BaseException] = []
            for values in table:
                try:
                    test(*args, **fixtures, **dict(zip(keys, values, strict=True)))
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - raised together below
                    error.add_note(f"case {ids(values[0]) if callable(ids) else reprlib.repr(values)}")
                    failures.append(error)
            if failures:
                raise BaseExceptionGroup(f"{len(failures)} of {len(table)} cases fail", failures)

        signature = inspect.signature(test)
        shared = [parameter for name, parameter in signature.parameters.items() if name not in keys]
        vars(check)["__signature__"] = signature.replace(parameters=shared)
        return check

    return decorate


def _values(case: Any, count: int) -> tuple[Any, ...]:
    if not isinstance(case, type(pytest.param())):
        return (case,) if count == 1 else tuple(case)
    if case.marks:
        raise ValueError(f"{case}: a case has no marks; use pytest.mark.parametrize")
    return tuple(case.values)
