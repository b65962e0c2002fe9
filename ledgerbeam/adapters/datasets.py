"""Functions in the style of Hugging Face `datasets`, for ``--style datasets``. The library need not be installed.

A function of one record returns a mapping, which updates the record; a bool, which keeps or drops it; or None, which
keeps it unchanged. With ``--batch N`` the function takes and returns a mapping of columns to lists, as with
``batched=True``, or returns a list of bools. `Drop`, `Reject` and `Route` have their usual meaning for one record.

The rows of a batch belong to the records of the batch by their positions. So a function may return another number of
rows only for a batch of one record, with ``--batch 1``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ledgerbeam.errors import FunctionError
from ledgerbeam.results import Drop, Reject, Route
from ledgerbeam.user_code.adapters import PACKAGES, Adapter

VERSION = "1"  # of the style: a change of its results makes other jobs

_POSITIONS = {"idx", "index", "indices", "idxs", "rank", "with_indices", "with_rank"}
_DROPPED = Drop("returned False")


class DatasetsStyle(Adapter):
    """Adapter of functions that `Dataset.map` and `Dataset.filter` take.

    ``--set`` gives the keyword arguments (`fn_kwargs`), and `remove_columns`, a list of columns that are removed from a
    record before it is updated.
    """

    def knows(self, target: Any) -> bool:  # noqa: ARG002
        """Return False: functions of this style look like functions of ledgerbeam."""
        return False

    def adapt(self, target: Any, *, batched: bool) -> Callable[..., Any]:
        """Return a class of functions of records, or of lists of records."""
        name = getattr(target, "__qualname__", None) or type(target).__qualname__
        _require_function(target, name)
        body = {
            "given": staticmethod(target),
            "name": name,
            "__call__": _Styled.many if batched else _Styled.one,
            "__signature__": _signature(target, name),
            "__module__": __name__,
        }
        return type("Styled", (_Styled,), body)

    def identity(self, target: Any, values: Mapping[str, Any]) -> dict[str, dict[str, str]]:  # noqa: ARG002
        """Return the version of the style."""
        return {PACKAGES: {"style datasets": VERSION}}


class _Styled:
    """A function of the style, with the values of its parameters. One object for each worker process."""

    given: Any  # the function or class that the job names
    name: str

    def __init__(self, remove_columns: Sequence[str] = (), **values: Any) -> None:
        if isinstance(remove_columns, str):
            remove_columns = [remove_columns]
        self._removed = frozenset(remove_columns)
        self._is_made = inspect.isclass(self.given)
        self._call = self.given(**values) if self._is_made else functools.partial(self.given, **values)

    def close(self) -> None:
        """Close the object that was built from a class."""
        if self._is_made and callable(getattr(self._call, "close", None)):
            self._call.close()  # type: ignore[union-attr]

    def one(self, record: Any) -> Any:
        """Return the result for a record."""
        self._require_mapping(record)
        found = self._call({**record})
        if isinstance(found, Drop | Reject | Route):
            return found
        if found is None:
            return self._left(record)
        kept = _as_bool(found)
        if kept is not None:
            return record if kept else _DROPPED
        if not isinstance(found, Mapping):
            raise FunctionError(
                f"{self.name} returned a {type(found).__name__}: with --style datasets expected a mapping that updates "
                "the record, a bool, or None"
            )
        return {**self._left(record), **{key: _plain(value) for key, value in found.items()}}

    def many(self, records: list[Any]) -> list[Any]:
        """Return the results for records: for each record a record, a list of records, or `Drop`."""
        for record in records:
            self._require_mapping(record)
        columns = dict.fromkeys(key for record in records for key in record)
        found = self._call({key: [record.get(key) for record in records] for key in columns})
        if found is None:
            return [self._left(record) for record in records]
        if not isinstance(found, Mapping):
            return self._filtered(records, found)
        rows = {key: self._column(key, value) for key, value in found.items()}
        lengths = {len(column) for column in rows.values()} or {len(records)}
        if len(lengths) > 1:
            sizes = ", ".join(f"{key!r} {len(column)}" for key, column in rows.items())
            raise FunctionError(f"{self.name} returned columns of different lengths: {sizes}; return equal lengths")
        (length,) = lengths
        if length != len(records):
            return [self._expanded(records, rows, length)]
        return [
            {**self._left(record), **{key: column[position] for key, column in rows.items()}}
            for position, record in enumerate(records)
        ]

    def _filtered(self, records: list[Any], found: Any) -> list[Any]:
        kept = [_as_bool(value) for value in _plain(found)] if _is_list(found) else None
        if kept is None or None in kept or len(kept) != len(records):
            raise FunctionError(
                f"{self.name} returned a {type(found).__name__}: with --style datasets and --batch expected a mapping "
                f"of columns to lists, or a list of {len(records)} bools"
            )
        return [record if keep else _DROPPED for record, keep in zip(records, kept, strict=True)]

    def _expanded(self, records: list[Any], rows: Mapping[str, list[Any]], length: int) -> list[Any]:
        """Return the rows of one record. The rows of several records cannot be attributed to them."""
        if len(records) > 1:
            raise FunctionError(
                f"{self.name} returned {length} rows for {len(records)} records, so the record of each row is unknown; "
                "call it with one record at a time: --batch 1"
            )
        left = [key for key in self._left(records[0]) if key not in rows]
        if left and length:
            raise FunctionError(
                f"{self.name} returned {length} rows for a record, and the columns {', '.join(map(repr, left))} have "
                f"one value: return these columns too, or remove them: --set 'remove_columns=[\"{left[0]}\"]'"
            )
        return [{key: column[position] for key, column in rows.items()} for position in range(length)]

    def _column(self, key: str, value: Any) -> list[Any]:
        if not _is_list(value):
            raise FunctionError(
                f"{self.name} returned a {type(value).__name__} for the column {key!r}: with --style datasets and "
                "--batch expected a list"
            )
        column: list[Any] = _plain(value)
        return column

    def _left(self, record: Any) -> Any:
        if not self._removed:
            return record
        return {key: value for key, value in record.items() if key not in self._removed}

    def _require_mapping(self, record: Any) -> None:
        if not isinstance(record, Mapping):
            raise FunctionError(f"--style datasets takes records that are objects, found a {type(record).__name__}")


def _require_function(target: Any, name: str) -> None:
    if not callable(target):
        raise FunctionError(f"{name}: expected a function, found {type(target).__name__}")
    called = target if inspect.isroutine(target) else getattr(target, "__call__", None)  # noqa: B004 - of a class too
    if inspect.iscoroutinefunction(called):
        raise FunctionError(f"{name}: --style datasets calls no `async` functions; call asyncio.run in the function")
    if inspect.isgeneratorfunction(called):
        raise FunctionError(f"{name} is a generator function; return one mapping, with a list for each column")


def _signature(target: Any, name: str) -> inspect.Signature:
    """Return the parameters that ``--set`` can give. Raises FunctionError for a function of positions or ranks."""
    try:
        parameters = list(inspect.signature(target).parameters.values())
    except (ValueError, TypeError):  # some callables that are not written in Python have no signature
        parameters = [inspect.Parameter("record", inspect.Parameter.POSITIONAL_ONLY)]
    if not inspect.isclass(target):
        parameters = parameters[1:]
    for one in parameters:
        if one.name in _POSITIONS and one.default is one.empty:
            raise FunctionError(
                f"{name}: {one.name!r} is a position in the dataset or a rank, which tasks of a job do not have; use "
                "an ID in the record"
            )
    own = inspect.Parameter("remove_columns", inspect.Parameter.KEYWORD_ONLY, default=())
    given = [
        one.replace(kind=one.KEYWORD_ONLY)
        for one in parameters
        if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    ]
    last = [one for one in parameters if one.kind is one.VAR_KEYWORD]
    return inspect.Signature([*given, own, *last])


def _as_bool(value: Any) -> bool | None:
    """Return a bool of Python or NumPy; None for another value."""
    if isinstance(value, bool):
        return value
    return bool(value) if type(value).__module__ == "numpy" and type(value).__name__ in {"bool", "bool_"} else None


def _is_list(value: Any) -> bool:
    """Return whether a value is a list, a tuple, or an array of NumPy, PyTorch or Arrow."""
    return isinstance(value, list | tuple) or hasattr(value, "tolist") or hasattr(value, "to_pylist")


def _plain(value: Any) -> Any:
    """Return arrays of NumPy, PyTorch and Arrow, and the numbers in them, as values of Python."""
    for method in ("tolist", "to_pylist"):
        if hasattr(value, method):
            return getattr(value, method)()
    return value
