"""``index`` and ``verify``: write the indexes of sources, and check them."""

import os
import shlex
import time
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from ledgerbeam.errors import UsageError
from ledgerbeam.pipelines.calls.call import Runnable, Values, begin, public, run_call
from ledgerbeam.pipelines.calls.call_spec import CallSpec, Option
from ledgerbeam.pipelines.calls.options import (
    FILE_PATTERNS,
    SOURCES,
    AnyJobOptions,
    ColumnOptions,
    ConsoleOptions,
    FileOptions,
    Places,
    ProfileOptions,
    SharOptions,
)
from ledgerbeam.pipelines.calls.values import paths

if TYPE_CHECKING:
    from ledgerbeam.pipelines.calls.result import Result


def _sources(patterns: Any) -> list[str]:
    """Return patterns as texts. UsageError: the first is a format, as in `lhotse index jsonl FILE`."""
    sources = paths(patterns)
    if len(sources) > 1 and sources[0] in ("jsonl", "tar", "shar") and not os.path.exists(sources[0]):
        raise UsageError(
            f"{sources[0]}: expected sources, found a format. The name of a source already shows its format; "
            f"run: ledgerbeam index {shlex.join(sources[1:])}"
        )
    return sources


class SourceIndexOptions(FileOptions, SharOptions, ProfileOptions, AnyJobOptions, total=False):
    """Options of `index`."""

    force: Annotated[
        bool,
        "index all sources, also those that the ledger records as indexed; replace any file with the name of an index",
        Option(SOURCES, default=False),
    ]


class VerifyOptions(FileOptions, ColumnOptions, ConsoleOptions, total=False):
    """Options of `verify`."""

    deep: Annotated[bool, "scan the sources again and decode every record", Option(SOURCES, default=False)]


INDEX = CallSpec(
    "index",
    "write the index of every source",
    SourceIndexOptions,
    (FILE_PATTERNS._replace(parse=_sources),),
    changes={
        "task_bytes": {"text": "size of the byte ranges in which a large JSONL file is scanned", "default": "256M"}
    },
    epilog="'ledgerbeam index verify' checks existing indexes.",
)
VERIFY = CallSpec(
    "verify",
    "check that indexes fit their sources; in short: verify",
    VerifyOptions,
    (FILE_PATTERNS,),
    is_job=False,
    epilog="'ledgerbeam ledger verify' checks the outputs of a job.",
)


def _build_index(values: Values) -> Runnable:
    from ledgerbeam.pipelines.calls.job_values import file_sources_of, job_call
    from ledgerbeam.pipelines.jobs.one_stage import IndexJob
    from ledgerbeam.pipelines.jobs.sources import read_as_shar

    values.from_ = values.from_ or read_as_shar(values.patterns, values.storage_options)
    return job_call(IndexJob, values, files=file_sources_of(values), force=values.force)


@public(INDEX, _build_index)
def index(*patterns: Places, **options: Unpack[SourceIndexOptions]) -> "Result":
    """Write the index of every source. For one source, `index_source` does the work in this process."""
    return run_call(INDEX, (patterns,), options)


@public(VERIFY)
def verify(*patterns: Places, **options: Unpack[VerifyOptions]) -> "Result":
    """Check that indexes fit their sources.

    Returns:
        The result. `Result.sources` is the number of checked sources, `Result.records` the number of records in valid
        sources. `Result.failures` has the ``source`` and the ``problem`` of each other source. If there are any,
        `Result.raise_for_failures` raises an error.

    Raises:
        SourceNotFoundError: A pattern matches nothing.
        UsageError: The options exclude each other, or a value is invalid.
    """
    values, console = begin(VERIFY, (patterns,), options)
    from ledgerbeam.io.index.file import IndexLocation
    from ledgerbeam.io.listing.left_out import LeftOut
    from ledgerbeam.io.listing.patterns import canonical_pattern
    from ledgerbeam.io.storage.urls import canonical_url
    from ledgerbeam.ledger.model.accounts import RecordCounts
    from ledgerbeam.pipelines.calls.result import ListedRows, Result
    from ledgerbeam.pipelines.report.sources import IndexCheck
    from ledgerbeam.sources.listing import SourceListing

    started = time.monotonic()
    root = canonical_url(values.index_root) if values.index_root else None
    location = IndexLocation(root=root, rule=values.index_rule)
    check = IndexCheck(location, values.group, values.storage_options, values.deep, values.columns)
    listed = SourceListing(
        tuple(canonical_pattern(one) for one in values.patterns),
        canonical_url(values.sources_from) if values.sources_from else None,
        values.storage_options,
    )
    left_out = LeftOut()
    checked = records = 0
    problems: list[dict[str, str]] = []
    for url, outcome in check.run(listed.pages(left_out)):
        checked += 1
        if isinstance(outcome, int):
            records += outcome
        else:
            problems.append({"source": url, "problem": outcome})
            console.say(outcome)
    for line in left_out.lines():
        console.say(line)
    counted = {"sources": checked, "records": records, "passed_over": left_out.passed_over}
    return Result(
        "verify",
        sources=checked,
        records=RecordCounts.plain(records),
        seconds=time.monotonic() - started,
        complete=not problems,
        failures=ListedRows(problems),
        summary={**counted, "problems": problems, "ok": not problems},
    )
