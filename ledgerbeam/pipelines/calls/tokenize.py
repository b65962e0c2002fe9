"""``tokenize``: make a Megatron dataset of the texts in records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, Literal

from ledgerbeam.errors import UsageError
from ledgerbeam.pipelines.calls.beginning import begin_call, call
from ledgerbeam.pipelines.calls.result import Result
from ledgerbeam.pipelines.calls.values import (
    given,
    named_sources,
    parse_options,
    path,
    texts,
)
from ledgerbeam.pipelines.console.run_console import RunConsole


@call
def tokenize(
    *patterns: str | PathLike[str] | Iterable[str | PathLike[str]],
    output: str | PathLike[str],
    tokenizer: str | PathLike[str],
    sources_from: str | PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | str | None = None,
    no_index: bool = False,
    columns: str | Iterable[str] = (),
    index_root: str | PathLike[str] | None = None,
    index_rule: Literal["scheme", "lhotse"] = "scheme",
    group: Literal["auto", "pairs", "key"] = "auto",
    existing: Literal["replace", "keep"] | None = None,
    dtype: str | None = None,
    drop_parts: bool = False,
    base: str | PathLike[str] | None = None,
    pack: int | str | None = None,
    key: str | Iterable[str] = "text",
    append_eod: bool = True,
    eod: str | None = None,
    special_tokens: Literal["text", "token"] = "text",
    split_sentences: str | Callable[[str], list[str]] | None = None,
    audit: str | float | None = None,
    on_error: str = "fail",
    only_rejected: str | bool | None = None,
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
    """Make a Megatron dataset of the texts in records.

    The same call again does only what is left, and so does the command line with the same values: it is the same job.

    Args:
        patterns: Source URLs, with ``*``, ``?``, ``[...]``, ``**`` and ``{a,b}`` or ``{000..127}`` braces.
        output: Prefix of the dataset's two files.
        tokenizer: A tokenizer.json of Hugging Face tokenizers, or ``bytes``.
        sources_from: A list of source URLs, one a line, in place of patterns.
        storage_options: Passed to fsspec unchanged.
        no_index: Refuse sources without an index instead of indexing them.
        columns: Read only these columns of Parquet and Arrow files; none for all.
        index_root: Mirrored tree that holds the indexes; None puts them beside the sources.
        index_rule: How the mirrored tree names sources: by scheme and path, or as lhotse does.
        group: How tar members make samples.
        existing: What to do with shards of another ledger, or of none, below the output: remove them first, or leave
            them. None refuses to write there.
        dtype: Dtype of the tokens; None for uint16 with a vocabulary below 65,500, else int32.
        drop_parts: Remove the parts of the dataset once they are merged; a change then makes them all anew.
        base: Folder that output names are relative to; None for the fixed part of the patterns, and for whole paths
            with `sources_from`.
        pack: Pack small sources into output shards of about this size.
        key: Name of the text in a record, ``a.b`` for a nested one; several make a dataset each.
        append_eod: End each document with a token.
        eod: Name of that token; None for the first usual one there is.
        special_tokens: What the name of a special token inside a text, such as ``<|endoftext|>``, becomes: ``text``,
            tokens of ordinary text; ``token``, the special token. A text that becomes a special token anyway is an
            error of its record.
        split_sentences: Makes a list of texts of one; each is a sequence of the document. ``module:function``, or a
            function, as of `map`.
        audit: Share of the finished tasks that are computed again in a fresh process, to see that results depend on
            their records only: ``"5%"``, 0.05, or ``"off"``. None for 1 %, at least two tasks, as far as it takes at
            most 2 % of the time of the workers.
        on_error: A record that cannot be decoded or tokenized, or has no text: ``fail`` fails its task, ``reject`` puts
            it into ``OUTPUT.parts/_rejects`` and goes on, ``reject:LIMIT`` up to a number of records or a share such as
            ``0.1%``.
        only_rejected: Do again only the tasks that rejected records for this reason, a shell pattern; True for any.
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
        FunctionError: The function that splits texts cannot be imported, or cannot travel to the workers.
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
        tokenizer=tokenizer,
        profile=profile,
    )
    from ledgerbeam.io.datasets.megatron.tokenizer import BYTES, read_tokenizer
    from ledgerbeam.io.storage.urls import canonical_url
    from ledgerbeam.pipelines.calls.job_values import dataset, file_sources, run_values
    from ledgerbeam.pipelines.jobs.audit_share import audit_text
    from ledgerbeam.pipelines.jobs.reject_limit import parse_on_error
    from ledgerbeam.pipelines.jobs.tokenize import TokenizeJob
    from ledgerbeam.pipelines.jobs.user_function import user_function
    from ledgerbeam.pipelines.runners.prepared_call import job_result
    from ledgerbeam.pipelines.runners.run_options import RunOptions

    if eod and not append_eod:
        raise UsageError("--eod names a token that --no-append-eod leaves out: give one of the two")
    parse_on_error(on_error)
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
    url = path(tokenizer) if tokenizer == BYTES else canonical_url(path(tokenizer))
    read, checksum = read_tokenizer(url, options_of_stores, special_tokens=special_tokens)
    token = read.eod(eod) if append_eod else None
    vocabulary = max(read.vocabulary, 0 if token is None else token + 1)
    keys = tuple(texts(key))
    split = None if split_sentences is None else user_function(split_sentences)
    suffixes = _suffixes(keys, "sentence" if split else "document")
    merged, place = dataset(output, _token_dtype(dtype, vocabulary, url), suffixes, drop=drop_parts)
    job = TokenizeJob(
        files=replace(files, keys=keys),
        tokenizer=url,
        checksum=checksum or BYTES,
        keys=keys,
        eod=token,
        special_tokens=special_tokens,
        split=None if split is None else split.reference,
        made_of={"module": {}} if split is None else split.made_of,
        on_error=on_error,
        audit=audit_text(audit),
        dataset=merged,
        output=place,
        **run_values(options_of_stores, workers, flush_interval, log_level, limit_tasks=limit_tasks, profile=profile),
    )
    how = RunOptions(
        ledger=None if ledger is None else path(ledger),
        on_job_change=on_job_change,
        existing=existing,
        only_failed=only_failed,
        only_rejected="*" if only_rejected is True else only_rejected or None,
        dry_run=dry_run,
        options=options,
        debug=debug,
    )
    return job_result(job, how, console)


def _suffixes(keys: Sequence[str], level: str) -> tuple[str, ...]:
    """Return what follows the prefix in the name of each key's dataset: nothing if there is one, else Megatron's."""
    if len(keys) == 1:
        return ("",)
    for key in keys:
        if keys.count(key) > 1 or "/" in key or not key:
            raise UsageError(f"--key {key}: expected names of texts, each once and without '/', as they name datasets")
    return tuple(f"_{key}_{level}" for key in keys)


def _token_dtype(name: str | None, vocabulary: int, url: str) -> str:
    import numpy as np

    from ledgerbeam.io.datasets.megatron import optimal_dtype
    from ledgerbeam.pipelines.calls.job_values import dtype_name

    if name is None:
        return optimal_dtype(vocabulary).name
    dtype = np.dtype(dtype_name(name))
    if dtype.kind not in "iu" or np.iinfo(dtype).max < vocabulary - 1:
        raise UsageError(f"--dtype {name}: cannot hold the tokens of {url}, from 0 to {vocabulary - 1:,}")
    return dtype.name
