"""``dedup``: write all records without those that are there before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, Literal

from ledgerbeam.errors import UsageError
from ledgerbeam.io.exchange.order import By
from ledgerbeam.pipelines.calls.beginning import begin_call, call
from ledgerbeam.pipelines.calls.result import Result
from ledgerbeam.pipelines.calls.values import given, named_sources, parse_count, parse_options, parse_size, path, paths
from ledgerbeam.pipelines.console.run_console import RunConsole


@call
def dedup(
    *patterns: str | PathLike[str] | Iterable[str | PathLike[str]],
    output: str | PathLike[str],
    to: str,
    by: By | None = None,
    content: bool = False,
    near: By | None = None,
    minhash: str | None = None,
    ngram: int | str | None = None,
    threshold: float | str | None = None,
    verify: bool = False,
    against: str | PathLike[str] | Iterable[str | PathLike[str]] = (),
    prefer: By | None = None,
    mark: bool = False,
    cluster_bytes: int | str | None = None,
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
    bucket_bytes: int | str = "1G",
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
    """Write all records but duplicates: of those with one key, or near each other, the first or the preferred stays.

    The same call again does only what is left, and so does the command line with the same values: it is the same job.

    Args:
        patterns: Source URLs, with ``*``, ``?``, ``[...]``, ``**`` and ``{a,b}`` or ``{000..127}`` braces.
        output: Folder to write below.
        to: Format, indexed in the same pass: jsonl, tar, parquet, arrow, text or that of another package.
        by: The key of which each value stays once: the name of a field, a.b for a value inside of another, several with
            commas or as a list; or a function of a record, or ``module:function``. A record whose key is null stays.
        content: All of a record is its key, in place of `by`: two are equal if they are the same JSON, whatever the
            order of names.
        near: The text by which records are near, in place of `by`: the name of a field, or a function. Of each cluster
            one stays: of records that are near each other, or near by way of others. Signatures stay below the output.
            It needs the extra ``near``.
        minhash: ``BANDSxROWS`` of the signatures of texts; None for ``14x8``. Two records are near if they share a
            band: if their sets of n-grams have the share s in common, with the probability 1 - (1 - s^ROWS)^BANDS.
        ngram: Words of an n-gram; None for 5.
        threshold: In place of `minhash`: the share of n-grams from which on records are to be near, such as 0.8, for
            which the best bands and rows of at most 128 hashes are chosen. With `verify` both may be given.
        verify: Compare the n-grams of records that share a band: two are near only if they have at least the share
            `threshold` in common, of all that is in one of both. Such records are read again.
        against: Ledgers of earlier deduplications by `near` with the same `minhash` and `ngram`: a record that is near
            one of theirs goes, too. Their signatures are read, not their sources, and nothing of theirs goes. With
            `verify` those of their records are read again that share a band with one of the sources.
        prefer: Which record of a key or cluster stays: that with the greatest value of this field, or of this function
            of a record; of equal ones the first. None for the first.
        mark: Write which records are duplicates in place of all others: source and number of each; with `near`
            also those of the record that stays, as ``of``.
        cluster_bytes: With `near`: pairs that one process clusters; None for 1G. More are clustered in rounds, with the
            same result.
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
        pack: Pack small sources into output shards of about this size.
        bucket_bytes: Size of the sources of which hashes make a bucket.
        max_slices: The most slices of run files that a stage reads; beyond it the exchange takes more rounds. It counts
            when the job begins.
        keep_runs: Leave the run files when all is done: of sources that are added later only those are scattered then.
        task_bytes: Size of a task: of the last stage it makes one shard.
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
        FunctionError: A function cannot be imported, or cannot travel to the workers.
        JobMismatchError: The ledger is of a job that did something else; the message names what differs.
        KeyboardInterrupt: Ctrl-C ended the run; its state is saved, and the same call goes on.
        LedgerbeamError: What ended the run early. All that was recorded stays recorded.
        UsageError: The options cannot mean anything together.
    """
    sources, options_of_stores = named_sources(patterns), given("storage_options", storage_options, parse_options)
    compared = paths([against])
    console = begin_call(
        progress,
        options_of_stores,
        against=compared,
        patterns=sources,
        sources_from=sources_from,
        output=output,
        ledger=ledger,
        index_root=index_root,
    )
    from ledgerbeam.pipelines.calls.exchange_values import dedup_key, key_choice, output_values, require_marks
    from ledgerbeam.pipelines.calls.job_values import file_sources, folder, run_values
    from ledgerbeam.pipelines.calls.near_values import near_choice
    from ledgerbeam.pipelines.dedup.exact import DecideJob, DedupJob
    from ledgerbeam.pipelines.dedup.near import NearJob, marking_job
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
    size, most = given("bucket_bytes", bucket_bytes, parse_size), given("max_slices", max_slices, parse_count)
    key = dedup_key(by, content=content, near=near)
    ledgers = [folder(one) for one in compared]
    clustered = None if cluster_bytes is None else given("cluster_bytes", cluster_bytes, parse_size)
    if near is None and (minhash, ngram, threshold, verify, ledgers, clustered) != (None, None, None, False, [], None):
        raise UsageError(
            "--minhash, --ngram, --threshold, --verify, --against and --cluster-bytes are about texts that are near: "
            "give --near FIELD"
        )
    nearness = (
        None
        if near is None
        else near_choice(minhash, ngram, threshold, verify=verify, against=ledgers, cluster_bytes=clustered)
    )
    score = None if prefer is None else key_choice(prefer, "key", descending=True, option="prefer")
    how_run = run_values(options_of_stores, workers, flush_interval, log_level)
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
    shared: dict[str, Any] = {
        "files": files,
        "key": key,
        "prefer": score,
        "bucket_bytes": size,
        "max_slices": most,
        **how_run,
    }
    if mark:
        marks: dict[str, Any] = {**shared, "output": written["output"], "to": require_marks(to, written)}
        decide = DecideJob(**marks) if nearness is None else marking_job(nearness, **marks)
        return job_result(decide, how, console)
    job = DedupJob(**shared, **written) if nearness is None else NearJob(near=nearness, **shared, **written)
    return job_result(job, how, console)
