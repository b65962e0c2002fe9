"""``index``: write the index of every source."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, Literal

from ledgerbeam.errors import UsageError
from ledgerbeam.pipelines.calls.beginning import begin_call, call
from ledgerbeam.pipelines.calls.result import Result
from ledgerbeam.pipelines.calls.values import (
    given,
    parse_options,
    path,
    paths,
)
from ledgerbeam.pipelines.console.run_console import RunConsole


@call
def index(
    *patterns: str | PathLike[str] | Iterable[str | PathLike[str]],
    sources_from: str | PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | str | None = None,
    from_: Literal["shar"] | None = None,
    index_root: str | PathLike[str] | None = None,
    index_rule: Literal["scheme", "lhotse"] = "scheme",
    group: Literal["auto", "pairs", "key"] = "auto",
    force: bool = False,
    task_bytes: int | str = "256M",
    workers: int | None = None,
    dry_run: bool = False,
    ledger: str | PathLike[str] | None = None,
    on_job_change: Literal["refuse", "restart", "accept"] = "refuse",
    flush_interval: float = 1.0,
    only_failed: str | None = None,
    profile: str | PathLike[str] | None = None,
    log_level: Literal["debug", "info", "warning", "error"] = "warning",
    options: Sequence[str] = (),
    progress: bool | RunConsole | None = None,
    debug: bool = False,
) -> Result:
    """Write the index of every source.

    The same call again does only what is left, and so does the command line with the same values: it is the same job.
    Of one source, `index_source` writes the index in this process.

    Args:
        patterns: Source URLs, with ``*``, ``?``, ``[...]``, ``**`` and ``{a,b}`` or ``{000..127}`` braces.
        sources_from: A list of source URLs, one a line, in place of patterns.
        storage_options: Passed to fsspec unchanged.
        from_: ``shar``: patterns are folders of Shar datasets; a record is a sample: the cut as json, its fields as
            members.
        index_root: Mirrored tree that holds the indexes; None puts them beside the sources.
        index_rule: How the mirrored tree names sources: by scheme and path, or as lhotse does.
        group: How tar members make samples.
        force: Index again what the ledger holds as indexed, and replace any file that has the name of an index.
        task_bytes: Size of the byte ranges that a large JSONL file is scanned in.
        workers: Local worker processes; None for all cores.
        dry_run: Find out what would be done and why, and write nothing, not even a ledger: `Result.summary` has it.
        ledger: Where progress is kept; None for a folder below ``.ledgerbeam/``, by command, sources and output.
        on_job_change: What to do with the ledger of a job that did something else: ``refuse`` raises
            `JobMismatchError`, ``restart`` does all of it again, ``accept`` keeps what is done.
        flush_interval: Longest time that a completion waits for its commit, in seconds.
        only_failed: Do only the sources with a failure of this reason, a shell pattern.
        profile: Write a file for speedscope that shows where the time of the workers went, by function: a path or URL.
        log_level: Show log messages of functions from this level on.
        options: Beam options, such as ``["--runner=PrismRunner"]``; none for the local runner.
        progress: Whether progress is shown on standard error; None shows it on a terminal and in a notebook.
        debug: Whether the error of a worker carries its whole traceback.

    Returns:
        How the run ended. `Result.raise_for_failures` raises if tasks failed.

    Raises:
        JobMismatchError: The ledger is of a job that did something else; the message names what differs.
        KeyboardInterrupt: Ctrl-C ended the run; its state is saved, and the same call goes on.
        LedgerbeamError: What ended the run early. All that was recorded stays recorded.
        UsageError: The options cannot mean anything together.
    """
    sources, options_of_stores = paths(patterns), given("storage_options", storage_options, parse_options)
    _refuse_kind(sources)
    console = begin_call(
        progress,
        options_of_stores,
        patterns=sources,
        sources_from=sources_from,
        ledger=ledger,
        index_root=index_root,
        profile=profile,
    )
    from ledgerbeam.pipelines.calls.job_values import file_sources, run_values
    from ledgerbeam.pipelines.jobs.index import IndexJob
    from ledgerbeam.pipelines.jobs.sources import read_as_shar
    from ledgerbeam.pipelines.runners.prepared_call import job_result
    from ledgerbeam.pipelines.runners.run_options import RunOptions

    files = file_sources(
        sources,
        sources_from,
        group=group,
        index_root=index_root,
        index_rule=index_rule,
        task_bytes=task_bytes,
        read_as=from_ or read_as_shar(sources, options_of_stores),
    )
    values = run_values(options_of_stores, workers, flush_interval, log_level, profile=profile)
    job = IndexJob(files=files, force=force, **values)
    how = RunOptions(
        ledger=None if ledger is None else path(ledger),
        on_job_change=on_job_change,
        only_failed=only_failed,
        force=force,
        dry_run=dry_run,
        options=options,
        debug=debug,
    )
    return job_result(job, how, console)


def _refuse_kind(sources: Sequence[str]) -> None:
    """Refuse `jsonl FILE`, as lhotse's command of this name takes it."""
    if len(sources) > 1 and sources[0] in ("jsonl", "tar", "shar") and not os.path.exists(sources[0]):
        raise UsageError(
            f"{sources[0]}: expected sources, found the name of a format; the names of the sources show theirs, so "
            f"leave it out: ledgerbeam index {shlex.join(sources[1:])}"
        )
