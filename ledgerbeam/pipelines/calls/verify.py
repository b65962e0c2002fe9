"""``verify``: do indexes fit their sources? Of outputs: ``ledger verify``."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any, Literal

from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.pipelines.calls.beginning import begin_call, call
from ledgerbeam.pipelines.calls.result import ListedRows, Result
from ledgerbeam.pipelines.calls.values import given, parse_columns, parse_options, path, paths
from ledgerbeam.pipelines.console.run_console import RunConsole


@call
def verify(
    *patterns: str | PathLike[str] | Iterable[str | PathLike[str]],
    sources_from: str | PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | str | None = None,
    columns: str | Iterable[str] = (),
    index_root: str | PathLike[str] | None = None,
    index_rule: Literal["scheme", "lhotse"] = "scheme",
    group: Literal["auto", "pairs", "key"] = "auto",
    deep: bool = False,
    progress: bool | RunConsole | None = None,
    debug: bool = False,  # noqa: ARG001 - every call has it
) -> Result:
    """Check that indexes fit their sources.

    Args:
        patterns: Source URLs, with ``*``, ``?``, ``[...]``, ``**`` and ``{a,b}`` or ``{000..127}`` braces.
        sources_from: A list of source URLs, one a line, in place of patterns.
        storage_options: Passed to fsspec unchanged.
        columns: Read only these columns of Parquet and Arrow files; none for all.
        index_root: Mirrored tree that holds the indexes; None puts them beside the sources.
        index_rule: How the mirrored tree names sources: by scheme and path, or as lhotse does.
        group: How tar members make samples.
        deep: Scan the sources again and decode every record.
        progress: Whether progress is shown on standard error; None shows it on a terminal and in a notebook.
        debug: Whether the error of a worker carries its whole traceback.

    Returns:
        What was checked: `Result.sources`, and `Result.records` in those that passed. `Result.failures` has a row for
        each other one, ``source`` and ``problem``, and `Result.raise_for_failures` raises for them.

    Raises:
        SourceNotFoundError: A pattern matches nothing.
        UsageError: The options cannot mean anything together.
    """
    sources, options = paths(patterns), given("storage_options", storage_options, parse_options)
    console = begin_call(progress, options, patterns=sources, sources_from=sources_from, index_root=index_root)
    from ledgerbeam.io.index.location import IndexLocation
    from ledgerbeam.io.listing.left_out import LeftOut
    from ledgerbeam.io.listing.patterns import canonical_pattern
    from ledgerbeam.io.storage.urls import canonical_url
    from ledgerbeam.pipelines.report.index_check import IndexCheck
    from ledgerbeam.sources.source_listing import SourceListing

    started = time.monotonic()
    root = canonical_url(path(index_root)) if index_root else None
    chosen = given("columns", columns, parse_columns) if columns else ()
    check = IndexCheck(IndexLocation(root=root, rule=index_rule), group, options, deep, chosen)
    listed = SourceListing(
        tuple(map(canonical_pattern, sources)), canonical_url(path(sources_from)) if sources_from else None, options
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
