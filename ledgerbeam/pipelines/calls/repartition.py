"""``repartition``: write all records in their order, in shards of another size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, Literal

from ledgerbeam.pipelines.calls.beginning import begin_call, call
from ledgerbeam.pipelines.calls.result import Result
from ledgerbeam.pipelines.calls.values import given, named_sources, parse_options, path
from ledgerbeam.pipelines.console.run_console import RunConsole


@call
def repartition(
    *patterns: str | PathLike[str] | Iterable[str | PathLike[str]],
    output: str | PathLike[str],
    to: str,
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
    pack: int | str | None = None,
    shard_bytes: int | str = "64M",
    bucket_bytes: int | str | None = None,
    max_slices: int = 10_000_000,
    keep_runs: bool = False,
    task_bytes: int | str = "64M",
    workers: int | None = None,
    dry_run: bool = False,
    ledger: str | PathLike[str] | None = None,
    on_job_change: Literal["refuse", "restart", "accept"] = "refuse",
    flush_interval: float = 1.0,
    only_failed: str | None = None,
    log_level: Literal["debug", "info", "warning", "error"] = "warning",
    options: Sequence[str] = (),
    progress: bool | RunConsole | None = None,
    debug: bool = False,
) -> Result:
    """Write all records in their order, in shards of about one size.

    The same call again does only what is left, and so does the command line with the same values: it is the same job.

    Args:
        patterns: Source URLs, with ``*``, ``?``, ``[...]``, ``**`` and ``{a,b}`` or ``{000..127}`` braces.
        output: Folder to write below.
        to: Format, indexed in the same pass: jsonl, tar, parquet, arrow, text or that of another package.
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
        pack: Pack small sources, so that a run file has about this size.
        shard_bytes: Size of a shard before it is compressed, about.
        bucket_bytes: Size of a bucket, which is done again if a record in it changes; None for that of a shard.
        max_slices: The most slices of run files that a stage reads; beyond it the exchange takes more rounds. It counts
            when the job begins.
        keep_runs: Leave the run files when all is done: of sources that are added later only those are scattered then.
        task_bytes: Size of a task of the first stage, which makes one run file.
        workers: Local worker processes; None for all cores.
        dry_run: Find out what would be done and why, and write nothing, not even a ledger: `Result.summary` has it.
        ledger: Where progress is kept; None for a folder below ``.ledgerbeam/``, by command, sources and output.
        on_job_change: What to do with the ledger of a job that did something else: ``refuse`` raises
            `JobMismatchError`, ``restart`` does all of it again, ``accept`` keeps what is done.
        flush_interval: Longest time that a completion waits for its commit, in seconds.
        only_failed: Do only the sources with a failure of this reason, a shell pattern.
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
    sources, options_of_stores = named_sources(patterns), given("storage_options", storage_options, parse_options)
    console = begin_call(
        progress,
        options_of_stores,
        patterns=sources,
        sources_from=sources_from,
        output=output,
        ledger=ledger,
        index_root=index_root,
    )
    from ledgerbeam.pipelines.calls.exchange_values import gather_values
    from ledgerbeam.pipelines.calls.job_values import file_sources, run_values
    from ledgerbeam.pipelines.exchange.orders import RepartitionJob
    from ledgerbeam.pipelines.exchange.partition import KeyChoice
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
        pack=pack,
    )
    written = gather_values(
        to=to,
        output=output,
        storage_options=options_of_stores,
        schema=schema,
        row_group_bytes=row_group_bytes,
        page_bytes=page_bytes,
        compress=compress,
        frame=frame,
        shard_bytes=shard_bytes,
        bucket_bytes=bucket_bytes,
        max_slices=max_slices,
    )
    job = RepartitionJob(
        files=files,
        key=KeyChoice("place"),
        **written,
        **run_values(options_of_stores, workers, flush_interval, log_level),
    )
    how = RunOptions(
        ledger=None if ledger is None else path(ledger),
        on_job_change=on_job_change,
        existing=existing,
        only_failed=only_failed,
        keep_runs=keep_runs,
        dry_run=dry_run,
        options=options,
        debug=debug,
    )
    return job_result(job, how, console)
