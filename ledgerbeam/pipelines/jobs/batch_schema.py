"""The columns of Arrow batches of JSON lines: decided once, before a job begins, and a part of it from then on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from ledgerbeam.errors import LedgerError, LedgerNotFoundError, RecordError, UsageError
from ledgerbeam.io import read_bytes
from ledgerbeam.io.jsonl.reader import stream_records
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.opening import open_ledger
from ledgerbeam.pipelines.jobs.map import MapJob

__all__ = ["PARAMETER", "with_batch_schema"]

PARAMETER = "batch schema"
"""The name of the schema among the parameters of a job."""

SOURCES = 16
RECORDS = 256
"""Records are read from the beginnings of so many sources, and so many of each, at most."""

_PAGES = 10
"""Pages of the listing in which JSON lines are looked for."""


def with_batch_schema(job: MapJob, given: str | None, pages: Iterable[Page], *, anew: bool) -> MapJob:
    """Return a job that knows the columns of the batches of its JSON lines, if it has such sources.

    Args:
        job: The job, its ledger resolved.
        given: URL of a file with the schema, as `ledgerbeam schema` prints it.
        pages: Its listing.
        anew: Whether what its ledger has recorded does not count.

    Raises:
        RecordError: The lines have no columns in common, or are no objects.
        UsageError: What is given is no schema.
    """
    if given is not None:
        return _with(job, _read(given, job.storage_options))
    recorded = None if anew else _recorded(job)
    if recorded is not None:
        return _with(job, recorded)
    urls = _lines(job, pages)
    if not urls:
        return job
    from ledgerbeam.io.jsonl.tables import schema_of_lines  # noqa: PLC0415 - brings pyarrow

    chosen = urls[:: max(1, len(urls) // SOURCES)][:SOURCES]
    records = [record for url in chosen for record in _first(url, job.storage_options)]
    if not records:
        raise RecordError(
            f"{urls[0]}: expected lines to take the columns of batches from, found none; give --batch-schema"
        )
    try:
        return _with(job, schema_of_lines(records))
    except RecordError as error:
        raise RecordError(f"{chosen[0]} and {len(chosen) - 1} other sources: {error}") from error


def _with(job: MapJob, schema: str) -> MapJob:
    return replace(job, files=replace(job.files, batch_schema=schema))


def _read(url: str, options: dict[str, Any]) -> str:
    """Return the schema that a file holds, in the form in which a job has it."""
    import orjson  # noqa: PLC0415 - a job without a file needs none of it

    from ledgerbeam.io.columns.schema_text import schema_json, schema_of  # noqa: PLC0415 - brings pyarrow

    try:
        found = orjson.loads(read_bytes(url, options))
    except ValueError as error:
        raise UsageError(f"{url}: expected a schema in JSON, as `ledgerbeam schema` prints it: {error}") from error
    return orjson.dumps(schema_json(schema_of(found, url))).decode()


def _recorded(job: MapJob) -> str | None:
    try:
        store = open_ledger(job.ledger, job.storage_options, create=False, read_only=True)
    except (LedgerNotFoundError, LedgerError):
        return None  # what is wrong with it is said when it is opened for the job
    known = store.job()
    found = None if known is None else known.parameters.get(PARAMETER)
    return found if isinstance(found, str) else None


def _lines(job: MapJob, pages: Iterable[Page]) -> list[str]:
    """Return URLs of JSON lines, of the first pages that list some."""
    files = job.files.opened_files(job.storage_options)
    for page in islice(pages, _PAGES):
        found = [url for url in page.urls if files.type_of(url).format.name == "jsonl"]
        if found:
            return found
    return []


def _first(url: str, options: dict[str, Any]) -> Iterator[Any]:
    """Yield the first records of a source, up to one that cannot be decoded."""
    try:
        yield from islice(stream_records(url, options), RECORDS)
    except RecordError:
        return
