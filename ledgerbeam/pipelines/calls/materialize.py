"""``materialize``: write the items of an iterator graph in its order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, Literal

from ledgerbeam.pipelines.calls.beginning import begin_call, call
from ledgerbeam.pipelines.calls.result import Result
from ledgerbeam.pipelines.calls.values import (
    CONVERTED,
    given,
    parse_count,
    parse_options,
    parse_size,
    path,
)
from ledgerbeam.pipelines.console.run_console import RunConsole


@call
def materialize(
    graph: str | Callable[[], Any],
    *,
    output: str | PathLike[str],
    to: str,
    epochs: int = 1,
    storage_options: Mapping[str, Any] | str | None = None,
    schema: str | PathLike[str] | None = None,
    row_group_bytes: int | str | None = None,
    page_bytes: int | str | None = None,
    compress: str | None = None,
    frame: int | str | None = None,
    fields: str | Mapping[str, str] | None = None,
    existing: Literal["replace", "keep"] | None = None,
    dtype: str | None = None,
    drop_parts: bool = False,
    task_records: int | None = None,
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
    """Write the items of an iterator graph in its order.

    The same call again does only what is left, and so does the command line with the same values: it is the same job.

    Args:
        graph: Returns the graph: a function, as of `map`, or ``module:function``; or ``module:object`` that is one.
        output: Folder to write below; for megatron prefix of the dataset.
        to: Format, indexed in the same pass: jsonl, tar, parquet, arrow, text, shar, megatron or that of another
            package; webdataset, energon, lit: tar, and the metadata beside it.
        epochs: Number of passes, each in its own order.
        storage_options: Passed to fsspec unchanged.
        schema: For Parquet and Arrow: a Parquet or Arrow file with this schema, or JSON as ``ledgerbeam schema`` prints
            it. None takes that of the sources if they are of columns and their rows stay as they are, else infers it
            from some records.
        row_group_bytes: For Parquet and Arrow: size of a row group in memory; None for 128M.
        page_bytes: For Parquet: size of a page in memory; None for 1M.
        compress: ``zstd`` or ``zstd:LEVEL``, from 1 to 22: compress the shards of jsonl, tar or text, so that any
            record can still be read alone.
        frame: What is compressed as one piece and read for one record: larger is smaller files and slower random reads;
            None for 16K.
        fields: For Shar: fields of the cuts and the members they come from, ``{"recording": "wav"}`` or
            ``recording=wav,...``.
        existing: What to do with shards of another ledger, or of none, below the output: remove them first, or leave
            them. None refuses to write there.
        dtype: For Megatron: dtype of the tokens; None for int32.
        drop_parts: For Megatron: remove the parts of the dataset once they are merged; a change then makes them all
            anew.
        task_records: Places of a task, the most items of a shard; None for what `task_bytes` makes.
        task_bytes: Size of a task by the mean size of the records that the graph reads.
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
        FunctionError: The graph cannot be built, or what builds it cannot travel to the workers.
        JobMismatchError: The ledger is of a job that did something else; the message names what differs.
        KeyboardInterrupt: Ctrl-C ended the run; its state is saved, and the same call goes on.
        LedgerbeamError: What ended the run early. All that was recorded stays recorded.
        UsageError: The options cannot mean anything together.
    """
    options_of_stores = given("storage_options", storage_options, parse_options)
    console = begin_call(progress, options_of_stores, output=output, ledger=ledger, profile=profile)
    from ledgerbeam.pipelines.calls.job_values import conversion, run_values, shards
    from ledgerbeam.pipelines.jobs.convert import MaterializeJob
    from ledgerbeam.pipelines.jobs.sources import GraphPasses
    from ledgerbeam.pipelines.jobs.user_function import user_function
    from ledgerbeam.pipelines.runners.prepared_call import job_result
    from ledgerbeam.pipelines.runners.run_options import RunOptions

    written = shards(
        to,
        CONVERTED,
        options_of_stores,
        schema=schema,
        row_group_bytes=row_group_bytes,
        page_bytes=page_bytes,
        compress=compress,
        frame=frame,
    )
    converted = conversion(written, output, dtype=dtype, drop_parts=drop_parts, fields=fields)
    built = user_function(graph)
    passes = GraphPasses(
        reference=built.reference,
        made_of=built.made_of,
        epochs=given("epochs", epochs, parse_count),
        task_bytes=given("task_bytes", task_bytes, parse_size),
        task_records=None if task_records is None else given("task_records", task_records, parse_count),
    )
    job = MaterializeJob(
        passes=passes,
        **converted,
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
