"""The schemas of the outputs of a job, one for each route, and their JSON, which people can read and write.

The schemas are decided before the job starts, and are part of its identity.

    {"columns": {
        "text": "string",
        "score": {"type": "double", "nullable": false},
        "at": "timestamp[us, tz=UTC]",
        "tags": {"type": "list", "items": "string"},
        "meta": {"type": "struct", "fields": {"lang": {"type": "string", "null": "absent"}, "any": "json"}}},
     "keys": "exact",
     "metadata": {"author": "..."}}

Types have the names that pyarrow prints, or its aliases. `json` is JSON text. The module `values` describes
`"null": "absent"` and `"keys": "exact"`.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ledgerbeam.errors import RecordError, UsageError
from ledgerbeam.io.columns import values
from ledgerbeam.io.columns.infer import infer_schema
from ledgerbeam.io.columns.tables import TableMaker, table_of
from ledgerbeam.io.json_values import BASE64, loads

_ROUTES = "routes"
_OF_ROUTE = "schema of route "
_OF_OTHER_ROUTES = "schema of other routes"
_OTHER_ROUTES = "other_routes"
_MAIN = "schema"
_OTHERS, _SAME = "of other routes", "as without a route"
_ROWS, _COMPLETE = "rows", "complete"


@dataclass(frozen=True)
class JobSchema:
    """The schemas of the outputs of a job: the main schema, for records without a route, and one for each route."""

    by_route: Mapping[str, pa.Schema]  # the schema of each route; the empty name is for records without a route
    is_of_all: bool = False  # whether other routes have the schema of records without a route
    is_exact: bool = False  # whether records must have every key, since the schema comes from the sources
    others: pa.Schema | None = None  # the schema of all unknown routes; None if it equals the schema of all known ones

    def of(self, route: str = "") -> pa.Schema:
        """Return the schema of a route. An unknown route has `others`, or the common schema of the known routes.

        RecordError: the route is unknown, and the known routes have no common schema.
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
                f"no schema is known for {what}, and the known routes ({known}) have no common schema; give --schema "
                "FILE with a schema for all routes"
            )
        return schema

    def as_json(self) -> dict[str, Any]:
        """Return the schemas as one JSON object: the main schema, and the others under `routes`."""
        main = schema_json(self.by_route[""]) if "" in self.by_route else {}
        routes = {route: schema_json(schema) for route, schema in sorted(self.by_route.items()) if route}
        others = {} if self.others is None else {_OTHER_ROUTES: schema_json(self.others)}
        return {**main, **({_ROUTES: routes} if routes else {}), **others}

    @classmethod
    def from_json(cls, found: Any, where: str = "the schema") -> JobSchema:
        """Return the schemas of a JSON object of `as_json`.

        UsageError: the object is not valid; the message names the place.
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
        """Return the schemas in a file: JSON, or the schema of a Parquet or Arrow file. Raises UsageError."""
        try:
            if data[:4] == b"PAR1":
                import pyarrow.parquet as pq  # noqa: PLC0415 - slow to import

                return cls({"": pq.read_schema(pa.BufferReader(data))}, is_of_all=True)
            if data[:6] == b"ARROW1":
                return cls({"": pa.ipc.open_file(pa.BufferReader(data)).schema}, is_of_all=True)
        except (pa.ArrowException, OSError) as error:
            raise UsageError(f"{where}: the file is damaged ({error}); write it again") from error
        try:
            return cls.from_json(loads(data), where)
        except ValueError as error:
            raise UsageError(
                f"{where}: expected a schema as `ledgerbeam schema` prints it, a Parquet or an Arrow file, found "
                f"none of these: {error}"
            ) from error

    def parameters(self) -> dict[str, Any]:
        """Return the schemas as parameters of a job, one for each column, so that a message can name a column."""
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

        RecordError: the records of a route have no common schema; the message names the route.
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
            with suppress(RecordError):  # they have no common schema
                others = infer_schema(record for route in sorted(held) for record in held[route])
        return cls(by_route, others=others)


def _same(schemas: Iterable[pa.Schema]) -> pa.Schema | None:
    found = [*schemas]
    is_same = bool(found) and all(one.equals(found[0], check_metadata=True) for one in found)
    return found[0] if is_same else None


def maker_for(schemas: JobSchema | pa.Schema | None, route: str) -> TableMaker | None:
    """Return the object that makes tables for a route; None if there are no schemas."""
    if schemas is None:
        return None
    is_exact = isinstance(schemas, JobSchema) and schemas.is_exact
    return TableMaker(schemas.of(route) if isinstance(schemas, JobSchema) else schemas, exact=is_exact)


def written_table(records: Any, schemas: JobSchema | pa.Schema | None) -> pa.Table:
    """Return records as a table of the main schema; a table that already has one of the schemas is unchanged."""
    if (
        isinstance(records, pa.Table)
        and isinstance(schemas, JobSchema)
        and any(records.schema.equals(schema, check_metadata=True) for schema in schemas.by_route.values())
    ):
        return records
    return table_of(records, maker_for(schemas, ""))


def common_schema(schemas: Iterable[tuple[str, pa.Schema]]) -> pa.Schema | None:
    """Return the common schema of all sources, given the URL and the schema of each; None if there are no sources.

    UsageError: two sources differ; the message names them and the first different column.
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
    """Return a schema as nested parameters. JSON objects of columns are text, which keeps the order of their keys."""
    found = schema_json(schema)
    columns: dict[str, Any] = found.pop("columns")
    texts = {name: part if isinstance(part, str) else json.dumps(part) for name, part in columns.items()}
    return {"columns": list(columns), "column": texts, **found}


def _of_parameters(found: Mapping[str, Any]) -> pa.Schema:
    texts = found["column"]
    columns = {name: json.loads(texts[name]) if texts[name][:1] == "{" else texts[name] for name in found["columns"]}
    rest = {name: part for name, part in found.items() if name not in ("columns", "column", _OTHERS, _ROWS)}
    return schema_of({"columns": columns, **rest})


def schema_json(schema: pa.Schema) -> dict[str, Any]:
    """Return a schema as JSON. Raises UsageError if two columns have the same name, or a type has no JSON form."""
    _require_names([field.name for field in schema], "")
    found: dict[str, Any] = {"columns": {field.name: _field_json(field) for field in schema}}
    metadata = dict(schema.metadata or {})
    for word, (key, value) in values.SCHEMA_WORDS.items():
        if metadata.get(key) == value:
            found[word] = metadata.pop(key).decode()
    return found | ({"metadata": _metadata_json(metadata)} if metadata else {})


def type_text(kind: pa.DataType) -> str:
    """Return a type as short text, with the JSON names of types where they are shorter."""
    return str(kind).replace(str(pa.json_()), "json")


def schema_of(found: Any, where: str = "the schema") -> pa.Schema:
    """Return the schema of a JSON object of `schema_json`.

    UsageError: the object is not valid; the message names the place.
    """
    if not isinstance(found, Mapping) or not isinstance(found.get("columns"), Mapping) or not found["columns"]:
        raise UsageError(f'{where}: expected {{"columns": {{"name": "type", ...}}}}, found {found!r:.80}')
    _require_known(found, {"columns", "metadata", *values.SCHEMA_WORDS}, where)
    fields = [field_of(name, part, f"{where}: column {name!r}") for name, part in found["columns"].items()]
    metadata = _metadata_of(found.get("metadata", {}), where)
    metadata |= _words_of(found, values.SCHEMA_WORDS, where)
    return pa.schema(fields, metadata or None)


def _field_json(field: pa.Field) -> Any:
    """Return a field without its name as JSON: the name of its type, or an object if it has more properties."""
    metadata = dict(field.metadata or {})
    found = _type_json(field.type)
    if found == _JSON_TEXT:
        found = {"type": _JSON}
    if not field.nullable:
        found["nullable"] = False
    for word, (key, value) in values.FIELD_WORDS.items():
        if metadata.get(key) == value:
            found[word] = metadata.pop(key).decode()
    if metadata:
        found["metadata"] = _metadata_json(metadata)
    return found["type"] if len(found) == 1 else found


def field_of(name: str, found: Any, where: str) -> pa.Field:
    """Return the field of a JSON form; see `schema_of`."""
    found = {"type": found} if isinstance(found, str) else found
    if not isinstance(found, Mapping) or not isinstance(found.get("type"), str):
        raise UsageError(f'{where}: expected the name of a type, or {{"type": ..., ...}}, found {found!r:.80}')
    if not isinstance(nullable := found.get("nullable", True), bool):
        raise UsageError(f"{where}: expected true or false under 'nullable', found {nullable!r:.80}")
    metadata = _metadata_of(found.get("metadata", {}), where) | _words_of(found, values.FIELD_WORDS, where)
    rest = {key: part for key, part in found.items() if key not in {"nullable", "metadata", *values.FIELD_WORDS}}
    kind = pa.json_() if rest == {"type": _JSON} else _type_of(rest, where)
    if pa.types.is_null(kind) and not nullable:
        raise UsageError(f"{where}: expected a column of nulls to be nullable")
    return pa.field(name, kind, nullable, metadata or None)


_JSON = "json"
_JSON_TEXT = {"type": "extension", "name": "arrow.json", "storage": "string"}
_ARROW = "arrow"

_LISTS: dict[str, Callable[[pa.Field], pa.DataType]] = {
    "list": pa.list_,
    "large_list": pa.large_list,
    "list_view": pa.list_view,
    "large_list_view": pa.large_list_view,
}
_LIST_NAMES = {type(make(pa.field("", pa.null()))): name for name, make in _LISTS.items()}
_LIST_NAMES[pa.FixedSizeListType] = "fixed_size_list"


def _type_json(kind: pa.DataType) -> dict[str, Any]:
    if isinstance(kind, pa.BaseExtensionType):
        make = _EXTENSIONS.get(kind.extension_name)
        if make is None or make(kind.storage_type) != kind:
            return _other_json(kind)
        return {"type": "extension", "name": kind.extension_name, "storage": _short(_type_json(kind.storage_type))}
    if isinstance(kind, pa.DictionaryType):
        found = {"type": "dictionary", "index": str(kind.index_type), "values": _short(_type_json(kind.value_type))}
        return found | ({"ordered": True} if kind.ordered else {})
    if isinstance(kind, pa.StructType):
        fields = [kind.field(place) for place in range(kind.num_fields)]
        _require_names([field.name for field in fields], f"{kind}: ")
        return {"type": "struct", "fields": {field.name: _field_json(field) for field in fields}}
    if isinstance(kind, pa.MapType):
        found = {"type": "map", "keys": _named_json(kind.key_field, "key")}
        found |= {"items": _named_json(kind.item_field, "value")}
        return found | ({"sorted": True} if kind.keys_sorted else {})
    name = _LIST_NAMES.get(type(kind))
    if name is not None:
        found = {"type": name, "items": _named_json(kind.value_field, values.ELEMENT)}
        return found | ({"size": kind.list_size} if isinstance(kind, pa.FixedSizeListType) else {})
    return {"type": str(kind)} if _leaf_of(str(kind)) == kind else _other_json(kind)


def _short(found: dict[str, Any]) -> Any:
    return found["type"] if len(found) == 1 else found


_EXTENSIONS: dict[str, Callable[[pa.DataType], pa.DataType]] = {
    "arrow.json": pa.json_,
    "arrow.uuid": lambda _: pa.uuid(),
    "arrow.bool8": lambda _: pa.bool8(),
}
"""Constructors of the extension types without parameters, by name; they get the storage type."""


def _other_json(kind: pa.DataType) -> dict[str, Any]:
    """Return a type without a JSON form as Arrow IPC bytes, with a readable text."""
    written = base64.b64encode(pa.schema([pa.field("", kind)]).serialize().to_pybytes()).decode()
    return {"type": _ARROW, "is": str(kind), "ipc": written}


def _named_json(field: pa.Field, usual: str) -> Any:
    """Return a field of a list or map as JSON, with its name if it is not `usual`, such as `element`."""
    found = _field_json(field)
    if field.name == usual:
        return found
    return {"field": field.name, **({"type": found} if isinstance(found, str) else found)}


def _named_of(found: Any, usual: str, where: str) -> pa.Field:
    name = found.get("field", usual) if isinstance(found, Mapping) else usual
    if not isinstance(name, str):
        raise UsageError(f"{where}: expected a name under 'field', found {name!r:.80}")
    rest = {key: part for key, part in found.items() if key != "field"} if isinstance(found, Mapping) else found
    return field_of(name, rest, where)


def _type_of(found: Mapping[str, Any], where: str) -> pa.DataType:
    name = found["type"]
    if (read := _READ.get(name)) is None:
        _require_known(found, {"type"}, where)
        if (kind := _leaf_of(name)) is None:
            raise UsageError(
                f"{where}: expected the name of a type such as string, int64 or timestamp[us], found {name!r}"
            )
        return kind
    required, optional, make = read
    if lacking := required - found.keys():
        raise UsageError(f"{where}: expected {sorted(lacking)[0]!r} for the type {name}, found only {sorted(found)}")
    _require_known(found, {"type", *required, *optional}, where)
    try:
        return make(found, where)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise UsageError(f"{where}: the type {name} is not valid: {error}") from error


def _struct_of(found: Mapping[str, Any], where: str) -> pa.DataType:
    if not isinstance(fields := found["fields"], Mapping):
        raise UsageError(f"{where}: expected an object of fields under 'fields', found {fields!r:.80}")
    return pa.struct([field_of(name, part, f"{where}.{name}") for name, part in fields.items()])


def _list_of(found: Mapping[str, Any], where: str) -> pa.DataType:
    item = _named_of(found["items"], values.ELEMENT, f"{where}[]")
    return pa.list_(item, found["size"]) if "size" in found else _LISTS[found["type"]](item)


def _map_of(found: Mapping[str, Any], where: str) -> pa.DataType:
    keys = _named_of(found["keys"], "key", f"{where} keys")
    return pa.map_(keys, _named_of(found["items"], "value", f"{where} values"), keys_sorted=bool(found.get("sorted")))


def _dictionary_of(found: Mapping[str, Any], where: str) -> pa.DataType:
    values = field_of("", found["values"], where).type
    return pa.dictionary(_leaf_of(found["index"]), values, ordered=bool(found.get("ordered")))


def _extension_of(found: Mapping[str, Any], where: str) -> pa.DataType:
    if (make := _EXTENSIONS.get(found["name"])) is None:
        raise UsageError(f"{where}: unknown extension type {found['name']!r}; known: {', '.join(_EXTENSIONS)}")
    return make(field_of("", found["storage"], where).type)


def _other_of(found: Mapping[str, Any], _: str) -> pa.DataType:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(found["ipc"]))).field(0).type


_READ: dict[str, tuple[set[str], set[str], Callable[[Mapping[str, Any], str], pa.DataType]]] = {
    "struct": ({"fields"}, set(), _struct_of),
    "fixed_size_list": ({"items", "size"}, set(), _list_of),
    "map": ({"keys", "items"}, {"sorted"}, _map_of),
    "dictionary": ({"index", "values"}, {"ordered"}, _dictionary_of),
    "extension": ({"name", "storage"}, set(), _extension_of),
    _ARROW: ({"ipc"}, {"is"}, _other_of),
    **{name: ({"items"}, set(), _list_of) for name in _LISTS},
}
"""For each nested type: required keys, optional keys, and the function that makes the type."""

_PARAMETERS = re.compile(r"(\w+)[(\[](.*)[)\]]", re.DOTALL)
_DECIMALS = {f"decimal{bits}": getattr(pa, f"decimal{bits}") for bits in (32, 64, 128, 256)}


def _leaf_of(name: str) -> pa.DataType | None:
    """Return a type without fields by its name; None if there is no such type."""
    with suppress(ValueError):
        return pa.type_for_alias(name)
    if (found := _PARAMETERS.fullmatch(name)) is None:
        return None
    word, text = found.groups()
    with suppress(pa.ArrowException, ValueError):
        if word in _DECIMALS:
            precision, scale = text.split(",")
            return _DECIMALS[word](int(precision), int(scale))
        if word == "fixed_size_binary":
            return pa.binary(int(text))
        if word == "timestamp":
            unit, _, zone = text.partition(",")
            return pa.timestamp(unit.strip(), zone.strip().removeprefix("tz=") or None)
    return None


def _words_of(found: Mapping[str, Any], words: Mapping[str, tuple[bytes, bytes]], where: str) -> dict[bytes, bytes]:
    """Return the metadata for marks in JSON, such as `"null": "absent"`; `words` has key and value of each mark."""
    metadata = {}
    for word, (key, value) in words.items():
        if word in found:
            if found[word] != value.decode():
                raise UsageError(f"{where}: expected {value.decode()!r} under {word!r}, found {found[word]!r:.80}")
            metadata[key] = value
    return metadata


def _metadata_json(metadata: Mapping[bytes, bytes]) -> dict[str, Any]:
    return {key.decode("utf-8", "surrogateescape"): _bytes_json(value) for key, value in sorted(metadata.items())}


def _metadata_of(found: Any, where: str) -> dict[bytes, bytes]:
    if not isinstance(found, Mapping):
        raise UsageError(f"{where}: expected an object under 'metadata', found {found!r:.80}")
    return {key.encode("utf-8", "surrogateescape"): _metadata_value(part, where) for key, part in found.items()}


def _bytes_json(data: bytes) -> Any:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {BASE64: base64.b64encode(data).decode()}


def _metadata_value(found: Any, where: str) -> bytes:
    if isinstance(found, str):
        return found.encode()
    if isinstance(found, Mapping) and isinstance(found.get(BASE64), str):
        return base64.b64decode(found[BASE64])
    raise UsageError(f"{where}: expected strings as metadata, found {found!r:.80}")


def _require_names(names: list[str], where: str) -> None:
    twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if twice is not None:
        raise UsageError(f"{where}expected columns of different names, found two of the name {twice!r}; rename one")


def _require_known(found: Mapping[str, Any], known: set[str], where: str) -> None:
    if unknown := sorted(found.keys() - known):
        raise UsageError(f"{where}: unknown {unknown[0]!r}; expected {', '.join(sorted(known))}")
