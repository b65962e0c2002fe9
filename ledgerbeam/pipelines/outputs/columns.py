"""Layout and schemas of columnar outputs, and of Arrow batches of JSON lines. They are set before the job starts."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import orjson

from ledgerbeam.errors import RecordError
from ledgerbeam.io import Format, Options
from ledgerbeam.io.columns.format import PAGE_BYTES, ROW_GROUP_BYTES, ArrowFormat, ParquetFormat
from ledgerbeam.io.formats.format import is_columnar
from ledgerbeam.io.formats.registry import format_named
from ledgerbeam.io.lines.jsonl import stream_records
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.io.storage.files import read_bytes
from ledgerbeam.io.storage.urls import canonical_url
from ledgerbeam.ledger import Job
from ledgerbeam.ledger.model.job import Json
from ledgerbeam.pipelines.console.run_progress import count
from ledgerbeam.sources import FileSources

if TYPE_CHECKING:
    import pyarrow as pa

    from ledgerbeam.io.columns.schema import JobSchema

COLUMN_FORMATS = ("parquet", "arrow")  # columnar formats of outputs
PARAMETER = "batch schema"  # name of the schema among the parameters of a job
SOURCES, RECORDS = 16, 256  # maximum number of sampled sources, and of records read from the start of each
_PAGES = 10  # number of pages of the listing that are searched for JSON lines


@dataclass(frozen=True)
class ColumnLayout:
    """Layout of columnar files."""

    row_group_bytes: int = ROW_GROUP_BYTES  # approximate size of a row group in memory, in bytes
    page_bytes: int = PAGE_BYTES  # approximate size of a page before compression, in bytes
    schema: str | None = None  # the schemas, as JSON of `JobSchema.parameters`; None until they are set

    def format(self, name: str) -> Format:
        """Return the columnar format of this name, with this layout."""
        if name == ArrowFormat.name:
            return ArrowFormat(schema=self.schemas(), row_group_bytes=self.row_group_bytes)
        return ParquetFormat(schema=self.schemas(), row_group_bytes=self.row_group_bytes, page_bytes=self.page_bytes)

    def schemas(self) -> JobSchema | None:
        """Return the schemas; None until they are set."""
        from ledgerbeam.io.columns.schema import JobSchema  # noqa: PLC0415

        if self.schema is None:
            return None
        return JobSchema.recorded(json.loads(self.schema)) or JobSchema({})

    def decided(self, schemas: JobSchema) -> ColumnLayout:
        """Return the layout with these schemas."""
        return dataclasses.replace(self, schema=json.dumps(schemas.parameters()))

    def parameters(self, name: str) -> dict[str, Json]:
        """Return the parameters that determine the bytes of outputs."""
        sizes: dict[str, Json] = {"row_group_bytes": self.row_group_bytes}
        if name == "parquet":
            sizes["page_bytes"] = self.page_bytes
        return {**sizes, **(json.loads(self.schema) if self.schema is not None else {})}


def is_schema_file(url: str) -> bool:
    """Return whether the name, by its suffix, is a columnar file or a JSON file with a schema."""
    return url.endswith((".json", *(suffix for name in COLUMN_FORMATS for suffix in format_named(name).suffixes)))


def recorded_schema(job: Job) -> JobSchema | None:
    """Return the schemas that a ledger stores for its job; None if the job has none."""
    from ledgerbeam.io.columns.schema import JobSchema  # noqa: PLC0415

    return JobSchema.recorded(job.parameters)


def read_schema(url: str, options: Options) -> JobSchema:
    """Return the schemas in the footer of a columnar file, or in a JSON file of schemas."""
    from ledgerbeam.io.columns.schema import JobSchema  # noqa: PLC0415

    url = canonical_url(url)
    for kind in map(format_named, COLUMN_FORMATS):
        if url.endswith(kind.suffixes) and is_columnar(kind):  # the footer is enough
            with closing(kind.open_columns(url, options)) as reader:
                return JobSchema({"": reader.schema}, is_of_all=True)
    return JobSchema.given(read_bytes(url, options), url)


def schema_text(schema: pa.Schema) -> str:
    """Return the columns of a schema, at most twelve, for messages."""
    from ledgerbeam.io.columns.schema import type_text  # noqa: PLC0415 - brings pyarrow

    columns = [f"{field.name} {type_text(field.type)}" for field in schema]
    return ", ".join(columns[:12]) + (f" and {len(columns) - 12} more" if len(columns) > 12 else "")


def inferred_batch_schema(files: FileSources, pages: Iterator[Page]) -> str | None:
    """Return a schema for batches of JSON lines, inferred from the first records; None if no source has such lines."""
    urls = _lines(files, pages)
    if not urls:
        return None
    from ledgerbeam.io.lines.jsonl_tables import schema_of_lines  # noqa: PLC0415 - brings pyarrow

    chosen = urls[:: max(1, len(urls) // SOURCES)][:SOURCES]
    records = [record for url in chosen for record in _first(url, files.storage_options)]
    where = chosen[0] if len(chosen) == 1 else f"{chosen[0]} and {count(len(chosen) - 1, 'other')}"
    if not records:
        raise RecordError(f"{where}: expected JSON lines to infer the batch schema, found none; give --batch-schema")
    try:
        return schema_of_lines(records)
    except RecordError as error:
        raise RecordError(f"{where}: {error}") from error


def read_batch_schema(url: str, options: Options) -> str:
    """Return the schema of a file, as the text that a job stores."""
    from ledgerbeam.io.columns.schema import schema_json  # noqa: PLC0415 - brings pyarrow

    return orjson.dumps(schema_json(read_schema(url, options).of())).decode()


def _lines(files: FileSources, pages: Iterator[Page]) -> list[str]:
    """Return the JSON lines files on the first page of the listing that has any, among its first `_PAGES` pages."""
    for page in islice(pages, _PAGES):
        found = [url for url in page.urls if files.type_of(url).format.name == "jsonl"]
        if found:
            return found
    return []


def _first(url: str, options: Options) -> Iterator[Any]:
    """Yield the first records of a source, up to a record that cannot be decoded."""
    try:
        yield from islice(stream_records(url, options), RECORDS)
    except RecordError:
        return
