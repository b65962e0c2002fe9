"""``merge``: Megatron datasets joined in the given order."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any

from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.pipelines.calls.beginning import begin_call, call
from ledgerbeam.pipelines.calls.result import ListedRows, Result
from ledgerbeam.pipelines.calls.values import given, parse_options, path, paths
from ledgerbeam.pipelines.console.run_console import RunConsole


@call
def merge(
    *patterns: str | PathLike[str] | Iterable[str | PathLike[str]],
    output: str | PathLike[str],
    storage_options: Mapping[str, Any] | str | None = None,
    progress: bool | RunConsole | None = None,
    debug: bool = False,  # noqa: ARG001 - every call has it
) -> Result:
    """Join Megatron datasets in the order given.

    Args:
        patterns: Prefixes of datasets, with ``*``, ``?`` and ``{a,b}``; what one matches is sorted.
        output: Prefix of the result.
        storage_options: Passed to fsspec unchanged.
        progress: Whether progress is shown on standard error; None shows it on a terminal and in a notebook.
        debug: Whether the error of a worker carries its whole traceback.

    Returns:
        What was joined: `Result.sources` datasets, of `Result.records` documents, at `Result.output`.

    Raises:
        LedgerbeamError: A dataset cannot be read, or the result not be written.
        UsageError: No dataset is given, one has another dtype, or another file lies where the result is to be.
    """
    prefixes, options = paths(patterns), given("storage_options", storage_options, parse_options)
    begin_call(progress, options, patterns=prefixes, output=output)
    from ledgerbeam.io.datasets.megatron import merge_megatron
    from ledgerbeam.io.datasets.megatron.layout import dataset_prefix

    started = time.monotonic()
    found = [prefix for pattern in prefixes for prefix in _matches(pattern, options)]
    layout = merge_megatron(found, path(output), options)
    place = dataset_prefix(path(output))
    facts = {"dtype": layout.dtype.name, "sequences": layout.sequences, "documents": layout.documents}
    return Result(
        "merge",
        sources=len(found),
        records=RecordCounts.plain(layout.documents),
        seconds=time.monotonic() - started,
        output=place,
        outputs=ListedRows({"name": f"{place}{suffix}"} for suffix in (".bin", ".idx")),
        summary={"output": place, "merged": len(found), **facts},
    )


def _matches(pattern: str, options: dict[str, Any]) -> list[str]:
    """Return the `.bin` that one argument names: those of each alternative of its braces, sorted."""
    from ledgerbeam.io.datasets.megatron.layout import dataset_prefix
    from ledgerbeam.io.listing.pages import list_pages
    from ledgerbeam.io.listing.patterns import expand_braces

    return [
        url
        for alternative in expand_braces(dataset_prefix(pattern))
        for url in sorted(url for page in list_pages([f"{alternative}.bin"], options) for url in page.urls)
    ]
