"""``map``: apply a function to every record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, Literal

from ledgerbeam.errors import UsageError
from ledgerbeam.pipelines.calls.beginning import begin_call, call
from ledgerbeam.pipelines.calls.result import Result
from ledgerbeam.pipelines.calls.values import (
    MAPPED,
    given,
    named_sources,
    parse_count,
    parse_devices,
    parse_options,
    path,
    paths,
)
from ledgerbeam.pipelines.console.run_console import RunConsole


@call
def map(  # noqa: A001 - as the command is called
    function: str | Callable[..., Any],
    *patterns: str | PathLike[str] | Iterable[str | PathLike[str]],
    output: str | PathLike[str],
    to: str,
    sources_from: str | PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | str | None = None,
    from_: Literal["shar"] | None = None,
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
    nan: Literal["refuse", "null"] = "refuse",
    base: str | PathLike[str] | None = None,
    pack: int | str | None = None,
    set: Mapping[str, Any] | Sequence[str] | None = None,  # noqa: A002 - the option of the command line
    watch_file: str | PathLike[str] | Iterable[str | PathLike[str]] = (),
    batch: int | None = None,
    as_: Literal["records", "arrow"] = "records",
    batch_schema: str | PathLike[str] | None = None,
    devices: str | Iterable[str | int] = (),
    audit: str | float | None = None,
    on_error: str = "fail",
    only_rejected: str | bool | None = None,
    sample: int | None = None,
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
    """Apply a function to every record, and write what it returns.

    The same call again does only what is left, and so does the command line with the same values: it is the same job.

        def clean(record, shortest=20):
            text = " ".join(record["text"].split())
            return {**record, "text": text} if len(text) >= shortest else None        # None: the record is dropped

        result = ledgerbeam.map(clean, "texts/*.jsonl", output="clean", to="jsonl", set={"shortest": 50})
        print(result)                            # <Result of map: complete, 3 sources, 12 tasks, ...>
        result.raise_for_failures()              # the first errors, if tasks failed; the same call tries them again
        names = [row["name"] for row in result.outputs]

    A function that raises, or returns what `to` cannot hold, fails its task, and no other; with ``on_error="reject"``
    only the record is set aside. Results must depend on nothing but their records. Sizes are bytes, or texts such as
    ``"20K"``.

    Args:
        function: Takes one record; returns one, None, a list, `Drop`, `Reject` or `Route`. Or a class, of which each
            worker process builds one object. ``module:object``, or the function or class itself: one that a module
            holds is known by its name there; any other (of a script or a notebook, a lambda, a closure, a partial, an
            object that can be called) travels to the workers with all that it captures, which belongs to the job.
        patterns: Source URLs, with ``*``, ``?``, ``[...]``, ``**`` and ``{a,b}`` or ``{000..127}`` braces.
        output: Folder to write below.
        to: Format, indexed in the same pass: jsonl, tar, parquet, arrow, text or that of another package; webdataset,
            energon, lit: tar, and the metadata beside it.
        sources_from: A list of source URLs, one a line, in place of patterns.
        storage_options: Passed to fsspec unchanged.
        from_: ``shar``: patterns are folders of Shar datasets; a record is a sample: the cut as json, its fields as
            members.
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
        nan: NaN and infinities in JSONL: fail the task, or write null and count them.
        base: Folder that output names are relative to; None for the fixed part of the patterns, and for whole paths
            with `sources_from`.
        pack: Pack small sources into output shards of about this size.
        set: Keyword arguments of the function or the class, values that JSON can hold, as a mapping or
            ``NAME=VALUE`` each. They are part of the job.
        watch_file: A file or URL that the function reads, or several; their content is part of the job.
        batch: Call the function with lists of up to so many records; it returns a list of as many results. With
            ``as_="arrow"``: rows of a batch, at most; None for 65,536.
        as_: Call the function with records, or with `pyarrow.RecordBatch`; it then returns a batch, a frame, or `Rows`.
        batch_schema: With ``as_="arrow"``: a file with the columns of JSONL, in JSON; None for what the first lines
            hold.
        devices: Ids of CUDA devices, of which each worker process sees one; workers take turns if they are more.
        audit: Share of the finished tasks that are computed again in a fresh process, to see that results depend on
            their records only: ``"5%"``, 0.05, or ``"off"``. None for 1 %, at least two tasks, as far as it takes at
            most 2 % of the time of the workers.
        on_error: A record that cannot be decoded, or that the function raises for or rejects: ``fail`` fails its task,
            ``reject`` puts it into ``OUTPUT/_rejects`` and goes on, ``reject:LIMIT`` up to a number of records or a
            share such as ``0.1%``.
        only_rejected: Do again only the tasks that rejected records for this reason, a shell pattern; True for any.
        sample: Try the function on so many records from all over the sources, in this process, and write nothing:
            `Result.summary` has what becomes of them.
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
        FunctionError: The function cannot be imported, is none, or cannot travel to the workers.
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
        watch_file=watch_file,
        profile=profile,
    )
    from ledgerbeam.pipelines.calls.job_values import file_sources, folder, run_values, shards
    from ledgerbeam.pipelines.jobs.audit_share import audit_text
    from ledgerbeam.pipelines.jobs.map import MapJob
    from ledgerbeam.pipelines.jobs.reject_limit import parse_on_error
    from ledgerbeam.pipelines.jobs.user_function import user_function
    from ledgerbeam.pipelines.outputs.batch_schema import decide_batch_schema, read_batch_schema
    from ledgerbeam.pipelines.runners.prepared_call import job_result
    from ledgerbeam.pipelines.runners.run_options import RunOptions
    from ledgerbeam.user_code.objects import check_object, depends_on_batches, read_values
    from ledgerbeam.user_code.watched_files import watched_checksums

    if nan != "refuse" and to != "jsonl":
        raise UsageError(f"--nan {nan} is for --to jsonl, found --to {to}")
    parse_on_error(on_error)
    written = shards(
        to,
        MAPPED,
        options_of_stores,
        schema=schema,
        row_group_bytes=row_group_bytes,
        page_bytes=page_bytes,
        compress=compress,
        frame=frame,
    )
    if as_ == "arrow":
        _check_arrow(to, written["to"], from_)
    elif batch_schema is not None:
        raise UsageError("--batch-schema is for --as arrow; leave it out")
    values = read_values(set or {})
    called = user_function(function)
    target = check_object(called.reference, values)
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
        read_as=from_,
    )
    if batch_schema is not None:
        files = replace(files, batch_schema=read_batch_schema(path(batch_schema), options_of_stores))
    job = MapJob(
        files=files,
        function=called.reference,
        made_of=called.made_of,
        values=values,
        watched=watched_checksums(paths([watch_file]), options_of_stores),
        form=as_,
        batch=None if batch is None else given("batch", batch, parse_count),
        batch_matters=depends_on_batches(target),
        nan=nan,
        audit=audit_text(audit),
        output=folder(output),
        on_error=on_error,
        devices=given("devices", devices, parse_devices) if devices else (),
        **written,
        **run_values(options_of_stores, workers, flush_interval, log_level, limit_tasks=limit_tasks, profile=profile),
    )
    if sample is not None:
        if profile is not None:
            raise UsageError("--sample is no run that could be profiled: leave --profile out")
        for option, chosen in (("--only-failed", only_failed), ("--only-rejected", only_rejected)):
            if chosen:
                raise UsageError(f"--sample takes records of all sources, and looks at no ledger: leave {option} out")
        from ledgerbeam.pipelines.calls.sampling import sample_result

        return sample_result(decide_batch_schema(job), given("sample", sample, parse_count), console)
    again = "*" if only_rejected is True else only_rejected or None
    how = RunOptions(
        ledger=None if ledger is None else path(ledger),
        on_job_change=on_job_change,
        existing=existing,
        only_failed=only_failed,
        only_rejected=again,
        dry_run=dry_run,
        options=options,
        debug=debug,
    )

    return job_result(job, how, console)


def _check_arrow(to: str, written: str, read_as: str | None) -> None:
    """Refuse what Arrow batches cannot be read of or written to."""
    from ledgerbeam.sources.forms import ARROW_OUTPUTS

    if written not in ARROW_OUTPUTS:
        raise UsageError(f"--as arrow writes one of {', '.join(ARROW_OUTPUTS)}, found --to {to}; leave --as arrow out")
    if read_as is not None:
        raise UsageError(f"--as arrow reads Parquet, Arrow, JSONL and text, found --from {read_as}; leave one out")
