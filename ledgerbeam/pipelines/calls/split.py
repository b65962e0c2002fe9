"""``split``: write records in parts, all those of a key in one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, Literal

from ledgerbeam.io.exchange.order import By
from ledgerbeam.pipelines.calls.beginning import begin_call, call
from ledgerbeam.pipelines.calls.result import Result
from ledgerbeam.pipelines.calls.values import (
    given,
    named_sources,
    parse_options,
    parse_shares,
    path,
)
from ledgerbeam.pipelines.console.run_console import RunConsole


@call
def split(
    *patterns: str | PathLike[str] | Iterable[str | PathLike[str]],
    output: str | PathLike[str],
    to: str,
    by: By,
    parts: str | int | Mapping[str, int],
    sources_from: str | PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | str | None = None,
    no_index: bool = False,
    columns: str | Iterable[str] = (),
    index_root: str | PathLike[str] | None = None,
    index_rule: Literal["scheme", "lhotse"] = "scheme",
    group: Literal["auto", "pairs", "key"] = "auto",
    schema: str | PathLike[str] | None = None,
    row_group_bytes: int | str | None = None,
    page_bytes: int | str | None = None,
    compress: str | None = None,
    frame: int | str | None = None,
    existing: Literal["replace", "keep"] | None = None,
    base: str | PathLike[str] | None = None,
    pack: int | str | None = None,
    task_bytes: int | str = "16M",
    workers: int | None = None,
    limit_tasks: int | None = None,
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
    """Write records in parts, all those of a key in one: for training and evaluation, for example.

    The same call again does only what is left, and so does the command line with the same values: it is the same job.

    Args:
        patterns: Source URLs, with ``*``, ``?``, ``[...]``, ``**`` and ``{a,b}`` or ``{000..127}`` braces.
        output: Folder to write below, a folder for each part.
        to: Format, indexed in the same pass: jsonl, tar, parquet, arrow, text or that of another package.
        by: The key: the name of a field, a.b for a value inside of another, several with commas or as a list; or a
            function of a record, as of `map`, or ``module:function``. A missing field is null.
        parts: Names and shares, ``{"train": 98, "val": 2}`` or ``train=98,val=2``; or a number of equal parts.
        sources_from: A list of source URLs, one a line, in place of patterns.
        storage_options: Passed to fsspec unchanged.
        no_index: Refuse sources without an index instead of indexing them.
        columns: Read only these columns of Parquet and Arrow files; none for all.
        index_root: Mirrored tree that holds the indexes; None puts them beside the sources.
        index_rule: How the mirrored tree names sources: by scheme and path, or as lhotse does.
        group: How tar members make samples.
        schema: For Parquet and Arrow: a Parquet or Arrow file with this schema, or JSON as ``ledgerbeam schema`` prints
            it. None takes that of the sources if they are of columns and their rows stay as they are, else infers it
            from some records.
        row_group_bytes: For Parquet and Arrow: size of a row group in memory; None for 128M.
        page_bytes: For Parquet: size of a page in memory; None for 1M.
        compress: ``zstd`` or ``zstd:LEVEL``, from 1 to 22: compress the shards of jsonl, tar or text, so that any
            record can still be read alone.
        frame: What is compressed as one piece and read for one record: larger is smaller files and slower random reads;
            None for 16K.
        existing: What to do with shards of another ledger, or of none, below the output: remove them first, or leave
            them. None refuses to write there.
        base: Folder that output names are relative to; None for the fixed part of the patterns, and for whole paths
            with `sources_from`.
        pack: Pack small sources into output shards of about this size.
        task_bytes: Size of a task, the unit of restart inside a source.
        workers: Local worker processes; None for all cores.
        limit_tasks: Stop once so many tasks have been done or have failed; the same call continues with the others.
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
        FunctionError: The function of the key cannot be imported, or cannot travel to the workers.
        JobMismatchError: The ledger is of a job that did something else; the message names what differs.
        KeyboardInterrupt: Ctrl-C ended the run; its state is saved, and the same call goes on.
        LedgerbeamError: What ended the run early. All that was recorded stays recorded.
        UsageError: The options cannot mean anything together.
    """
    sources, options_of_stores = named_sources(patterns), given("storage_options", storage_options, parse_options)
    console = begin_call(
        progress,
        options_of_stores,
        patterns=sources,
        sources_from=sources_from,
        output=output,
        ledger=ledger,
        index_root=index_root,
        base=base,
        profile=profile,
    )
    from ledgerbeam.pipelines.calls.exchange_values import key_choice, output_values
    from ledgerbeam.pipelines.calls.job_values import file_sources, run_values
    from ledgerbeam.pipelines.exchange.split import SplitJob
    from ledgerbeam.pipelines.runners.prepared_call import job_result
    from ledgerbeam.pipelines.runners.run_options import RunOptions

    files = file_sources(
        sources,
        sources_from,
        group=group,
        index_root=index_root,
        index_rule=index_rule,
        task_bytes=task_bytes,
        columns=columns,
        no_index=no_index,
        base=base,
        pack=pack,
    )
    written = output_values(
        to,
        output,
        options_of_stores,
        schema=schema,
        row_group_bytes=row_group_bytes,
        page_bytes=page_bytes,
        compress=compress,
        frame=frame,
    )
    job = SplitJob(
        files=files,
        key=key_choice(by, "hash"),
        parts=given("parts", parts, parse_shares),
        **written,
        **run_values(options_of_stores, workers, flush_interval, log_level, limit_tasks=limit_tasks, profile=profile),
    )
    how = RunOptions(
        ledger=None if ledger is None else path(ledger),
        on_job_change=on_job_change,
        existing=existing,
        only_failed=only_failed,
        dry_run=dry_run,
        options=options,
        debug=debug,
    )
    return job_result(job, how, console)
