"""The columns of Arrow batches of JSON lines: decided once, before a job begins, and a part of it from then on."""

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
"""The name of the schema among the parameters of a job."""

SOURCES = 16
RECORDS = 256
"""Records are read from the beginnings of so many sources, and so many of each, at most."""

_PAGES = 10
"""Pages of the listing in which JSON lines are looked for."""


class BatchJob(Protocol):
    """A job that reads batches of records."""

    @property
    def form(self) -> RecordForm:
        """The form of the batches."""

    @property
    def files(self) -> ListedFiles:
        """The sources."""

    @property
    def storage_options(self) -> dict[str, Any]:
        """Passed to fsspec unchanged."""

    def pages(self) -> Iterator[Page]:
        """List the sources."""

    def with_files(self, files: ListedFiles) -> Self:
        """Return the job with other sources."""


_Job = TypeVar("_Job", bound=BatchJob)


def with_recorded_batch_schema(job: _Job, stored: Job) -> _Job:
    """Return a job with the columns of batches that its ledger holds, unless others were given."""
    recorded = stored.parameters.get(PARAMETER)
    is_given = job.form != "arrow" or job.files.batch_schema is not None
    return job if is_given or not isinstance(recorded, str) else _with(job, recorded)


def decide_batch_schema(job: _Job) -> _Job:
    """Return a job that knows the columns of the batches of its JSON lines, if it has such sources.

    Raises:
        RecordError: The lines have no columns in common, or are no objects.
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
        raise RecordError(f"{where}: expected lines that say the columns of batches, found none; give --batch-schema")
    try:
        return _with(job, schema_of_lines(records))
    except RecordError as error:
        raise RecordError(f"{where}: {error}") from error


def _with(job: _Job, schema: str) -> _Job:
    return job.with_files(replace(job.files, batch_schema=schema))


def read_batch_schema(url: str, options: Options) -> str:
    """Return the schema that a file holds, in the form in which a job has it.

    Raises:
        UsageError: It holds none.
    """
    import orjson  # noqa: PLC0415 - a job without a file needs none of it

    from ledgerbeam.io.columns.schema_text import schema_json  # noqa: PLC0415 - brings pyarrow

    schema = read_schema(url, options).of()
    return orjson.dumps(schema_json(schema)).decode()


def _lines(job: BatchJob) -> list[str]:
    """Return URLs of JSON lines, of the first pages that list some."""
    files = job.files.opened_files(job.storage_options)
    for page in islice(job.pages(), _PAGES):
        found = [url for url in page.urls if files.type_of(url).format.name == "jsonl"]
        if found:
            return found
    return []


def _first(url: str, options: Options) -> Iterator[Any]:
    """Yield the first records of a source, up to one that cannot be decoded."""
    try:
        yield from islice(stream_records(url, options), RECORDS)
    except RecordError:
        return
