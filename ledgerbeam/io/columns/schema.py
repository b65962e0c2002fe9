"""The schemas of the outputs of a job: one for each route, decided before the job starts, and part of its identity."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ledgerbeam.errors import RecordError, UsageError
from ledgerbeam.io.columns.infer import infer_schema
from ledgerbeam.io.columns.schema_text import schema_json, schema_of
from ledgerbeam.io.columns.tables import TableMaker, table_of
from ledgerbeam.io.json_values import loads

_ROUTES = "routes"
_OF_ROUTE = "schema of route "
_OF_OTHER_ROUTES = "schema of other routes"
_OTHER_ROUTES = "other_routes"
_MAIN = "schema"
_OTHERS, _SAME = "of other routes", "as without a route"
_ROWS, _COMPLETE = "rows", "complete"


@dataclass(frozen=True)
class JobSchema:
    """The schemas of the outputs of a job.

    Attributes:
        by_route: The schema of each route; the empty name is for records without a route.
        is_of_all: Whether other routes have the schema of records without a route.
        is_exact: Whether records must have every key, since the schema comes from the sources.
        others: The schema of all unknown routes; None if it equals the schema of all known ones.
    """

    by_route: Mapping[str, pa.Schema]
    is_of_all: bool = False
    is_exact: bool = False
    others: pa.Schema | None = None

    def of(self, route: str = "") -> pa.Schema:
        """Return the schema of a route; of one that is not known the schema of the others.

        Raises:
            RecordError: The others have none in common.
        """
        schema = self.by_route.get(route)
        if schema is None and self.is_of_all:
            schema = self.by_route.get("")
        if schema is None:
            schema = _same(self.by_route.values()) if self.others is None else self.others
        if schema is None:
            known = ", ".join(map(repr, sorted(filter(None, self.by_route)))) or "none"
            what = f"the route {route!r}" if route else "records without a route"
            raise RecordError(
                f"no schema is known for {what}: it had none of the records that schemas were inferred from, and the "
                f"others have none in common (known routes: {known}); give --schema FILE"
            )
        return schema

    def as_json(self) -> dict[str, Any]:
        """Return the schemas as one JSON object: the main schema, and the others under `routes`."""
        main = schema_json(self.by_route[""]) if "" in self.by_route else {}
        routes = {route: schema_json(schema) for route, schema in sorted(self.by_route.items()) if route}
        others = {} if self.others is None else {_OTHER_ROUTES: schema_json(self.others)}
        return {**main, **({} if self.is_of_all and not routes else {_ROUTES: routes} if routes else {}), **others}

    @classmethod
    def from_json(cls, found: Any, where: str = "the schema") -> JobSchema:
        """Return the schemas of a JSON object of `as_json`.

        Args:
            found: The object.
            where: Description of the object, for messages.

        Raises:
            UsageError: The object is not valid; the message names the place.
        """
        if not isinstance(found, Mapping):
            raise UsageError(f"{where}: expected a JSON object, found {found!r:.80}")
        routes = found.get(_ROUTES, {})
        if not isinstance(routes, Mapping) or "" in routes:
            raise UsageError(f"{where}: expected an object of schemas under {_ROUTES!r}, found {routes!r:.80}")
        main = {name: part for name, part in found.items() if name not in (_ROUTES, _OTHER_ROUTES)}
        by_route = {route: schema_of(part, f"{where}: route {route!r}") for route, part in routes.items()}
        if main or not routes:
            by_route[""] = schema_of(main, where)
        others = found.get(_OTHER_ROUTES)
        known = None if others is None else schema_of(others, f"{where}: other routes")
        return cls(by_route, is_of_all="" in by_route and known is None, others=known)

    @classmethod
    def given(cls, data: bytes, where: str) -> JobSchema:
        """Return the schemas in a file: JSON, or the schema of a Parquet or Arrow file.

        Args:
            data: Its content.
            where: Its name, for messages.

        Raises:
            UsageError: It is not one of these.
        """
        try:
            if data[:4] == b"PAR1":
                import pyarrow.parquet as pq  # noqa: PLC0415 - slow to import

                return cls({"": pq.read_schema(pa.BufferReader(data))}, is_of_all=True)
            if data[:6] == b"ARROW1":
                return cls({"": pa.ipc.open_file(pa.BufferReader(data)).schema}, is_of_all=True)
        except (pa.ArrowException, OSError) as error:
            raise UsageError(f"{where}: it is damaged: {error}") from error
        try:
            return cls.from_json(loads(data), where)
        except ValueError as error:
            raise UsageError(
                f"{where}: expected a schema as `ledgerbeam schema` prints it, a Parquet or an Arrow file, found "
                f"none of these: {error}"
            ) from error

    def parameters(self) -> dict[str, Any]:
        """Return the schemas as parameters of a job, with one for each column, so that a message can name a change."""
        found = {_OF_ROUTE + route if route else _MAIN: _parameters(one) for route, one in self.by_route.items()}
        if self.others is not None:
            found[_OF_OTHER_ROUTES] = _parameters(self.others)
        if self.is_of_all:
            found[_MAIN] |= {_OTHERS: _SAME}
        if self.is_exact:
            found[_MAIN] |= {_ROWS: _COMPLETE}
        return found

    @classmethod
    def recorded(cls, parameters: Mapping[str, Any]) -> JobSchema | None:
        """Return the schemas among the parameters of a job; None if they have no schemas."""
        by_route = {}
        for name, found in parameters.items():
            if name == _MAIN or name.startswith(_OF_ROUTE):
                by_route[name.removeprefix(_MAIN).removeprefix(" of route ")] = _of_parameters(found)
        if not by_route:
            return None
        main = parameters.get(_MAIN, {})
        others = parameters.get(_OF_OTHER_ROUTES)
        known = None if others is None else _of_parameters(others)
        return cls(by_route, main.get(_OTHERS) == _SAME, main.get(_ROWS) == _COMPLETE, known)

    @classmethod
    def inferred(cls, datasets: Mapping[str, Iterable[Any]]) -> JobSchema:
        """Infer the schemas of records by route.

        Raises:
            RecordError: The records of a route have no common schema; the message names the route.
        """
        by_route = {}
        held = {route: list(records) for route, records in datasets.items()}
        for route, records in held.items():
            try:
                by_route[route] = infer_schema(records)
            except RecordError as error:
                raise RecordError(f"{f'route {route!r}: ' if route else ''}{error}") from error
        others = None
        if by_route and _same(by_route.values()) is None:
            with suppress(RecordError):  # then nothing is in common
                others = infer_schema(record for route in sorted(held) for record in held[route])
        return cls(by_route, others=others)


def _same(schemas: Iterable[pa.Schema]) -> pa.Schema | None:
    """Return the common schema; None if schemas differ or none exists."""
    found = [*schemas]
    is_same = bool(found) and all(one.equals(found[0], check_metadata=True) for one in found)
    return found[0] if is_same else None


def maker_for(schemas: JobSchema | pa.Schema | None, route: str) -> TableMaker | None:
    """Return the maker of tables for a route; None if there are no schemas."""
    if schemas is None:
        return None
    is_exact = isinstance(schemas, JobSchema) and schemas.is_exact
    return TableMaker(schemas.of(route) if isinstance(schemas, JobSchema) else schemas, exact=is_exact)


def written_table(records: Any, schemas: JobSchema | pa.Schema | None) -> pa.Table:
    """Return records as the table to write: a table with one of the schemas is not changed, others get the main one."""
    if (
        isinstance(records, pa.Table)
        and isinstance(schemas, JobSchema)
        and any(records.schema.equals(schema, check_metadata=True) for schema in schemas.by_route.values())
    ):
        return records
    return table_of(records, maker_for(schemas, ""))


def common_schema(schemas: Iterable[tuple[str, pa.Schema]]) -> pa.Schema | None:
    """Return the common schema of all sources.

    Args:
        schemas: The URL and the schema of each source.

    Returns:
        The schema; None if there are no sources.

    Raises:
        UsageError: Two sources differ; the message names them and the first different column.
    """
    first: tuple[str, pa.Schema] | None = None
    for url, schema in schemas:
        if first is None:
            first = url, schema
        elif not schema.equals(first[1], check_metadata=True):
            raise UsageError(
                f"{first[0]} and {url} have different schemas: {_difference(first[1], schema)}; give one for both with "
                "--schema FILE, or use separate jobs"
            )
    return None if first is None else first[1]


def _difference(one: pa.Schema, other: pa.Schema) -> str:
    """Return the first difference of two schemas."""
    if one.names != other.names:
        only = [name for name in one.names if name not in other.names]
        added = [name for name in other.names if name not in one.names]
        if not only and not added:
            return "the order of their columns"
        return f"column {(only or added)[0]!r} is only in the {'first' if only else 'second'}"
    for field, found in zip(one, other, strict=True):
        if not field.equals(found, check_metadata=True):
            shown = [f"{part.type}{'' if part.nullable else ' not null'}" for part in (field, found)]
            return f"column {field.name!r} is {shown[0]} and {shown[1]}" + (
                "" if shown[0] != shown[1] else " with other metadata"
            )
    return "their metadata"


def _parameters(schema: pa.Schema) -> dict[str, Any]:
    """Return a schema as nested parameters; a column with more than a type is JSON text, which keeps the order."""
    found = schema_json(schema)
    columns: dict[str, Any] = found.pop("columns")
    texts = {name: part if isinstance(part, str) else json.dumps(part) for name, part in columns.items()}
    return {"columns": list(columns), "column": texts, **found}


def _of_parameters(found: Mapping[str, Any]) -> pa.Schema:
    texts = found["column"]
    columns = {name: json.loads(texts[name]) if texts[name][:1] == "{" else texts[name] for name in found["columns"]}
    rest = {name: part for name, part in found.items() if name not in ("columns", "column", _OTHERS, _ROWS)}
    return schema_of({"columns": columns, **rest})
