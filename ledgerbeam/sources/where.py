"""Conditions over the columns of records: SQL, evaluated by DuckDB, or a function of Arrow batches."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import orjson

from ledgerbeam._base.extensions import import_extra
from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.errors import ColumnsNotFoundError, FunctionError, UsageError
from ledgerbeam.user_code.guards import describe_error, is_interrupt
from ledgerbeam.user_code.loading import Reference
from ledgerbeam.user_code.objects import UserObject

if TYPE_CHECKING:
    import pyarrow as pa

_IS_FUNCTION = re.compile(r"[\w.]+:[\w.]+")  # a condition that names a function
_QUERY = "SELECT 1 FROM records WHERE (%s\n)"
# Parts of SQL whose result for a record depends on other records, or on more than the record.
_REFUSED = {"SUBQUERY": "a subquery", "WINDOW": "a window function", "PARAMETER": "a parameter", "STAR": "*"}


@dataclass(frozen=True)
class NeededColumns:
    """The columns of a folder that a job reads."""

    folder: str  # URL
    names: tuple[str, ...]


@dataclass(frozen=True)
class Where:
    """A condition that selects records by their columns. A record whose condition is null is not selected.

    Without SQL and without a function, it selects all records.
    """

    sql: str = ""  # a condition in SQL
    columns: tuple[str, ...] = ()  # columns that it needs; empty for all
    # A function that takes a `pyarrow.RecordBatch` of the columns, and returns a mask of its rows.
    function: Reference | None = None
    made_of: dict[str, dict[str, str]] = field(default_factory=dict)  # hashes of the code of the function

    @classmethod
    def of_sql(cls, text: str, names: Sequence[str]) -> Where:
        """Return a condition in SQL.

        Args:
            text: The condition, such as ``score > 0.5 AND lang = 'en'``.
            names: Names of all columns.

        Raises:
            UsageError: DuckDB is not installed; or the text is not one condition, names no column or an unknown one, or
                its value for a record depends on more than the columns of the record.
        """
        by_lower: dict[str, str] = {}
        for name in names:
            if (other := by_lower.setdefault(name.lower(), name)) != name:
                raise UsageError(
                    f"--where {text}: SQL cannot tell the columns {other!r} and {name!r} apart; give a function instead"
                )
        found: dict[str, None] = {}
        for node in _nodes(_parsed(text, text)):
            if what := _REFUSED.get(node["class"]):
                raise UsageError(f"--where {text}: {what} depends on more than one record; leave it out")
            if node["class"] == "FUNCTION":
                _require_pure(node["function_name"], text)
            if node["class"] == "COLUMN_REF":
                column = by_lower.get(node["column_names"][0].lower())
                if column is None:
                    known = ", ".join(sorted(names))
                    raise ColumnsNotFoundError(
                        f"--where {text}: no column {node['column_names'][0]!r}; the columns are {known}"
                    )
                found[column] = None
        if not found:
            raise UsageError(f"--where {text}: names no column; the columns are {', '.join(sorted(names))}")
        return cls(text, tuple(found))

    @property
    def name(self) -> str:
        """The condition, for messages."""
        return self.sql or str(self.function)

    def parameters(self) -> dict[str, Any]:
        """Return the parameters that affect the results of a job."""
        if self.selects_all:
            return {}
        return {"where": self.name, **({"where is made of": self.made_of} if self.made_of else {})}

    @property
    def selects_all(self) -> bool:
        """Whether it selects all records."""
        return not self.sql and self.function is None

    def selected(self, rows: pa.Table) -> NDArray[np.int64]:
        """Return the numbers of the selected rows. Raises FunctionError if the condition fails for the rows."""
        if self.selects_all:
            return np.arange(len(rows))
        if self.function is not None:
            return self._called(rows)
        database = _database()
        database.register("records", rows)
        try:
            query = f"SELECT ({self.sql}\n) AS selected FROM records"  # noqa: S608 - the user's own condition
            found = database.sql(query).to_arrow_table()["selected"]
        except Exception as error:
            raise FunctionError(f"--where {self.sql}: {error}; change the condition") from error
        if str(found.type) != "bool":
            raise UsageError(f"--where {self.sql}: expected a condition, found a value of type {found.type}")
        if len(found) != len(rows):
            raise UsageError(f"--where {self.sql}: expected a value for each record; change the condition")
        return _true(found)

    def _called(self, rows: pa.Table) -> NDArray[np.int64]:
        import pyarrow as pa  # noqa: PLC0415 - only jobs of columns import it

        call, masks = UserObject(self.function).ready().call, list[pa.Array]()  # type: ignore[arg-type]
        for batch in rows.to_batches():
            try:
                found = pa.array(call(batch), pa.bool_())
            except BaseException as error:
                if is_interrupt(error):
                    raise
                raise FunctionError(f"--where {self.name}: {describe_error(error)}") from error
            if len(found) != len(batch):
                raise FunctionError(
                    f"--where {self.name}: returned {len(found)} values for a batch of {len(batch)} rows; return a "
                    "mask with one value for each row"
                )
            masks.append(found)
        return _true(pa.chunked_array(masks, pa.bool_()))


def read_where(
    where: str | Callable[..., Any] | None, made: Callable[[str | Callable[..., Any]], Where]
) -> str | Where:
    """Return a condition as SQL, or as a `Where`: `made` makes the `Where` of a function. None selects all records.

    UsageError: it is neither text nor a function.
    """
    if where is None:
        return Where()
    if not (callable(where) or isinstance(where, str)):
        raise UsageError(f"where={where!r}: expected SQL or a function, found {type(where).__name__}; write it as text")
    return made(where) if callable(where) or _IS_FUNCTION.fullmatch(where) else where


def _true(mask: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return the numbers of the rows that are true."""
    import pyarrow.compute as pc  # noqa: PLC0415 - only jobs of columns import it

    found = pc.indices_nonzero(mask)  # `to_numpy` would import pandas
    return np.frombuffer(found.buffers()[1] or b"", np.uint64, len(found), 8 * found.offset).astype(np.int64)


def _nodes(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the parts of a parsed condition, except the parameters of lambda functions."""
    if isinstance(value, list):
        for one in value:
            yield from _nodes(one)
    elif isinstance(value, dict):
        own = set()
        if value.get("class") == "LAMBDA":
            own = {name for node in _nodes(value.get("lhs")) for name in node.get("column_names", ())}
        elif "class" in value:
            yield value
        for name, one in value.items():
            if name != "lhs" or value.get("class") != "LAMBDA":
                yield from (node for node in _nodes(one) if not own.intersection(node.get("column_names", ())[:1]))


def _require_pure(name: str, text: str, macros: tuple[str, ...] = ()) -> None:
    """Raise UsageError unless the value of a function, or of each part of a macro, depends on its arguments alone."""
    query = "SELECT function_type, stability, macro_definition FROM duckdb_functions() WHERE function_name = ?"
    found = _database().execute(query, [name.lower()]).fetchall()
    if not found:
        raise UsageError(f"--where {text}: no function {name!r} in DuckDB")
    # A function with one consistent form has others that depend on the time zone, which is UTC here. Only `age` reads
    # the clock.
    pure = name.lower() != "age" and all(kind in ("scalar", "macro") for kind, _, _ in found)
    pure = pure and name not in macros and any(kind == "macro" or how == "CONSISTENT" for kind, how, _ in found)
    if not pure:
        raise UsageError(
            f"--where {text}: the value of {name} depends on more than the columns of a record; leave it out, or "
            "compute the value with ledgerbeam annotate"
        )
    for kind, _, definition in found:
        if kind == "macro":
            for node in _nodes(_parsed(definition, text)):
                if what := _REFUSED.get(node["class"]):
                    raise UsageError(f"--where {text}: {name} has {what}; leave it out")
                if node["class"] == "FUNCTION":
                    _require_pure(node["function_name"], text, (*macros, name))


def _parsed(condition: str, text: str) -> Any:
    """Return the parts of a condition. UsageError: `text`, of which it is a part, is not one condition."""
    parsed = orjson.loads(_database().execute("SELECT json_serialize_sql(?)", [_QUERY % condition]).fetchone()[0])
    if parsed["error"] or len(parsed["statements"]) != 1:
        problem = parsed.get("error_message", "more than one statement")
        raise UsageError(f"--where {text}: expected a condition in SQL, found {problem}")
    return parsed["statements"][0]["node"]["where_clause"]


def _database() -> Any:
    """Return a cursor of this process's database, which holds no data and reads no files."""
    return _connected(os.getpid()).cursor()  # a forked process must not use the database of its parent


@cache
def _connected(process: int) -> Any:
    del process
    database = import_extra("duckdb", "sql", "--where with SQL needs DuckDB").connect(config={"threads": 1})
    database.execute("SET preserve_insertion_order = true; SET TimeZone = 'UTC'; SET enable_external_access = false")
    return database
