"""Layout and schemas of columnar outputs, and of Arrow batches of JSON lines. They are set before the job starts."""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from ledgerbeam.errors import RecordError, UsageError
from ledgerbeam.io import Format, Options
from ledgerbeam.io.columns.format import PAGE_BYTES, ROW_GROUP_BYTES, ArrowFormat, ParquetFormat
from ledgerbeam.io.formats.format import is_columnar
from ledgerbeam.io.formats.registry import format_named
from ledgerbeam.io.lines.jsonl import stream_records
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.io.storage.files import read_bytes
from ledgerbeam.io.storage.urls import canonical_url
from ledgerbeam.ledger import Job, Source
from ledgerbeam.ledger.answers import answers_of_sample
from ledgerbeam.ledger.model.job import Json
from ledgerbeam.ledger.worker.limits import Limit
from ledgerbeam.pipelines.console.run_progress import count
from ledgerbeam.pipelines.jobs.sources import JobSources, listed_files
from ledgerbeam.sources import FileSources
from ledgerbeam.user_code.objects import close_objects

if TYPE_CHECKING:
    import pyarrow as pa

    from ledgerbeam.io.columns.schema import JobSchema
    from ledgerbeam.transforms import MapRecords

COLUMN_FORMATS = ("parquet", "arrow")  # columnar formats of outputs
# Maximum number of records, sources and bytes that schemas are inferred from, spread over each source.
SAMPLE_RECORDS, SAMPLE_SOURCES, SAMPLE_BYTES = 1_000, 32, 64 * 2**20
ASKED_RECORDS = 16  # sampled for an async function, which is called with one after the other
LISTED_PAGES = 4  # number of pages of the listing from which these sources are chosen
_AT_ONCE = 16

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


class ColumnJob(Protocol):
    """A job that may write columnar files: a protocol that `ShardJob` implements."""

    @property
    def layout(self) -> ColumnLayout | None: ...
    @property
    def keeps_columns(self) -> bool: ...
    @property
    def storage_options(self) -> dict[str, Any]: ...
    @property
    def ledger(self) -> str: ...
    @property
    def calls_are_async(self) -> bool: ...
    @property
    def limits(self) -> Sequence[Limit]: ...
    @property
    def answers(self) -> str | None: ...
    def sources(self) -> JobSources: ...
    def pages(self) -> Iterator[Page]: ...
    def trial_work(self) -> MapRecords: ...


def decide_layout(job: ColumnJob, say: Callable[[str], None]) -> ColumnLayout | None:
    """Return the job's layout with schemas: given schemas, else the common schema of the sources, else inferred ones.

    Raises:
        RecordError: Records have no schema in common, or a sampled record cannot be read.
        UsageError: The sources have different schemas, or the sampled records have no results.
    """
    layout = job.layout
    if layout is None or layout.schema is not None:
        return layout
    return layout.decided(_taken(job, say) or _inferred(job, say))


def _taken(job: ColumnJob, say: Callable[[str], None]) -> JobSchema | None:
    """Return the schema of all sources, if they are columnar and their records are written unchanged; else None."""
    from ledgerbeam.io.columns.schema import JobSchema, common_schema  # noqa: PLC0415

    opened = job.sources().opened(job.storage_options)
    opened = getattr(opened, "inner", opened)  # of `SelectedSources`
    if not job.keeps_columns or not isinstance(opened, FileSources):
        return None
    files = opened

    def schema_of(source: Source) -> tuple[str, pa.Schema] | None:
        kind = files.type_of(source.url).columns()
        if kind is None:
            return None
        with closing(files.open_columns(source, kind)) as reader:
            return source.url, reader.schema

    found: list[tuple[str, pa.Schema]] = []
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        sources = listed_files(job.pages())
        while some := list(islice(sources, 64 * _AT_ONCE)):
            for one in pool.map(schema_of, some):
                if one is None:
                    return None
                found = [found[0] if found else one, one]
                common_schema(found)
    if not found:
        return None
    say(f"schema: as in the sources, {_shown(found[0][1])}")
    return JobSchema({"": found[0][1]}, is_exact=True)


def _inferred(job: ColumnJob, say: Callable[[str], None]) -> JobSchema:
    """Return schemas inferred from the results of sampled records."""
    from ledgerbeam.io.columns.schema import JobSchema  # noqa: PLC0415
    from ledgerbeam.pipelines.preview.sample import sampled_records, try_function  # noqa: PLC0415 - uses jobs

    opened, pages = job.sources().opened(job.storage_options), islice(job.pages(), LISTED_PAGES)
    most = ASKED_RECORDS if job.calls_are_async else SAMPLE_RECORDS
    sampled = list(sampled_records(opened, pages, most, sources=SAMPLE_SOURCES, most_bytes=SAMPLE_BYTES))
    datasets: dict[str, list[Any]] = defaultdict(list)
    errors: list[str] = []
    try:
        limited = answers_of_sample(job.ledger, job.answers, job.storage_options, job.limits)
        with limited if job.calls_are_async else nullcontext():
            for run in try_function(job.trial_work(), sampled, lambda _: None):
                for route, records in run.results.items():
                    datasets[route] += records
                if run.outcome in ("failed", "unreadable"):
                    errors.append(run.error)
    finally:
        close_objects()
    if not datasets and errors:
        tried = count(len(sampled), "sampled record")
        raise RecordError(f"no schema can be inferred from {tried}: {errors[0]}; correct this error or give --schema")
    if not datasets and sampled:
        tried = count(len(sampled), "sampled record")
        raise UsageError(f"no schema can be inferred: the function keeps none of {tried}; give --schema FILE")
    found = JobSchema.inferred(datasets)
    of_sources = count(len({one.source.url for one in sampled}), "source")
    for route, schema in found.by_route.items():
        of = f" of route {route}" if route else ""
        say(f"schema{of}: inferred from {count(len(sampled), 'record')} of {of_sources}, {_shown(schema)}")
    return found


def _shown(schema: pa.Schema) -> str:
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
