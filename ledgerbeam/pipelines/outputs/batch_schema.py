"""Schemas of Arrow batches of JSON lines. The schema is set before a job starts and is a parameter of the job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, Protocol, Self, TypeVar

from ledgerbeam.errors import RecordError
from ledgerbeam.io import Options
from ledgerbeam.io.lines.jsonl_reader import stream_records
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.ledger import Job
from ledgerbeam.pipelines.jobs.sources import ListedFiles
from ledgerbeam.pipelines.outputs.columns import read_schema
from ledgerbeam.sources.forms import RecordForm

PARAMETER = "batch schema"
"""Name of the schema among the parameters of a job."""

SOURCES = 16
RECORDS = 256
"""Maximum number of sampled sources, and of records read from the start of each."""

_PAGES = 10
"""Number of pages of the listing that are searched for JSON lines."""


class BatchJob(Protocol):
    """A job that reads batches of records."""

    @property
    def form(self) -> RecordForm:
        """Form of the batches."""

    @property
    def files(self) -> ListedFiles:
        """The sources."""

    @property
    def storage_options(self) -> dict[str, Any]:
        """Options that are passed to fsspec unchanged."""

    def pages(self) -> Iterator[Page]:
        """List the sources."""

    def with_files(self, files: ListedFiles) -> Self:
        """Return the job with other sources."""


_Job = TypeVar("_Job", bound=BatchJob)


def with_recorded_batch_schema(job: _Job, stored: Job) -> _Job:
    """Return a job with the batch schema stored in its ledger, unless the user gave a schema."""
    recorded = stored.parameters.get(PARAMETER)
    is_given = job.form != "arrow" or job.files.batch_schema is not None
    return job if is_given or not isinstance(recorded, str) else _with(job, recorded)


def decide_batch_schema(job: _Job) -> _Job:
    """Return a job with the batch schema of its JSON lines, inferred if it has such sources and no schema.

    Raises:
        RecordError: The lines have no schema in common, or are not objects.
    """
    if job.form != "arrow" or job.files.batch_schema is not None:
        return job
    urls = _lines(job)
    if not urls:
        return job
    from ledgerbeam.io.lines.jsonl_tables import schema_of_lines  # noqa: PLC0415 - brings pyarrow

    chosen = urls[:: max(1, len(urls) // SOURCES)][:SOURCES]
    records = [record for url in chosen for record in _first(url, job.storage_options)]
    where = chosen[0] if len(chosen) == 1 else f"{chosen[0]} and {len(chosen) - 1} others"
    if not records:
        raise RecordError(f"{where}: expected JSON lines to infer the batch schema, found none; give --batch-schema")
    try:
        return _with(job, schema_of_lines(records))
    except RecordError as error:
        raise RecordError(f"{where}: {error}") from error


def _with(job: _Job, schema: str) -> _Job:
    return job.with_files(replace(job.files, batch_schema=schema))


def read_batch_schema(url: str, options: Options) -> str:
    """Return the schema of a file, as the text that a job stores.

    Raises:
        UsageError: The file has no schema.
    """
    import orjson  # noqa: PLC0415 - not needed without a schema file

    from ledgerbeam.io.columns.schema import schema_json  # noqa: PLC0415 - brings pyarrow

    schema = read_schema(url, options).of()
    return orjson.dumps(schema_json(schema)).decode()


def _lines(job: BatchJob) -> list[str]:
    """Return the URLs of JSON lines of the first page that has some, within the first `_PAGES` pages."""
    files = job.files.opened_files(job.storage_options)
    for page in islice(job.pages(), _PAGES):
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
