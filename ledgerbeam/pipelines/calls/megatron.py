"""``tokenize`` and ``merge``: make Megatron datasets of texts, or of other datasets."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Required, Unpack

from ledgerbeam.errors import UsageError
from ledgerbeam.pipelines.calls.call import Runnable, Values, begin, public, run_call
from ledgerbeam.pipelines.calls.call_spec import Argument, CallSpec, Option
from ledgerbeam.pipelines.calls.options import (
    FUNCTION_ERROR,
    OUTPUT,
    PATTERNS,
    AnyJobOptions,
    BaseOptions,
    ConsoleOptions,
    FolderOptions,
    LimitOptions,
    PartsOptions,
    Place,
    Places,
    RecordOptions,
    RejectOptions,
    SelectionOptions,
    StoreOptions,
)
from ledgerbeam.pipelines.calls.values import path, paths, texts

if TYPE_CHECKING:
    from ledgerbeam.pipelines.calls.result import Result

TOKENS = "texts and tokens"  # heading in the help of the command


class TokenizeOptions(
    RecordOptions,
    SelectionOptions,
    FolderOptions,
    PartsOptions,
    BaseOptions,
    RejectOptions,
    LimitOptions,
    AnyJobOptions,
    total=False,
):
    """Options of `tokenize`."""

    tokenizer: Annotated[
        Required[Place], "tokenizer.json of Hugging Face tokenizers; or `bytes`", Option(TOKENS, "FILE")
    ]
    key: Annotated[
        str | Iterable[str],
        "name of the text in a record, a.b for a nested text; several names make one dataset each",
        Option(TOKENS, "NAME", default="text", repeats=True, parse=texts),
    ]
    append_eod: Annotated[bool, "put a token at the end of each document", Option(TOKENS, default=True)]
    eod: Annotated[
        str | None,
        "name of the token at the end of a document",
        Option(TOKENS, "TOKEN", unset="the first usual name in the vocabulary"),
    ]
    special_tokens: Annotated[
        Literal["text", "token"],
        "encoding of the name of a special token inside a text, such as <|endoftext|>: as ordinary text, or as the "
        "special token",
        Option(TOKENS, default="text", more="A text that still becomes a special token is an error of its record."),
    ]
    split_sentences: Annotated[
        str | Callable[[str], list[str]] | None,
        "function that splits a text into a list of texts; each is a sequence of the document",
        Option(TOKENS, "module:function", more="The name of a function, or the function itself."),
    ]


TOKENIZE = CallSpec(
    "tokenize",
    "make a Megatron dataset of the texts in records",
    TokenizeOptions,
    (PATTERNS,),
    changes={
        "output": {"text": "prefix of the dataset's two files", "metavar": "PREFIX"},
        "dtype": {"text": "dtype of the tokens", "unset": "uint16 for a vocabulary below 65,500, else int32"},
        "on_error": {
            "text": "treatment of a record that cannot be decoded or tokenized, or has no text: `fail` its task, or "
            "`reject` the record into PREFIX.parts/_rejects, up to a number of records or a share such as 0.1%"
        },
        "audit": {"group": TOKENS},
    },
    raises=(FUNCTION_ERROR,),
)


def _build_tokenize(values: Values) -> Runnable:
    from ledgerbeam.io.datasets.megatron.tokenizer import BYTES, read_tokenizer
    from ledgerbeam.io.storage.urls import canonical_url
    from ledgerbeam.pipelines.calls.job_values import file_sources_of, job_call
    from ledgerbeam.pipelines.datasets.megatron import MergedParts, TokenizeJob
    from ledgerbeam.pipelines.jobs.checks import audit_text, parse_on_error
    from ledgerbeam.pipelines.jobs.user_function import user_function

    if values.eod and not values.append_eod:
        raise UsageError("--eod names a token that --no-append-eod leaves out: give one of the two")
    parse_on_error(values.on_error)
    files = file_sources_of(values)
    url = values.tokenizer if values.tokenizer == BYTES else canonical_url(values.tokenizer)
    read, checksum = read_tokenizer(url, values.storage_options, special_tokens=values.special_tokens)
    token = read.eod(values.eod) if values.append_eod else None
    vocabulary = max(read.vocabulary, 0 if token is None else token + 1)
    keys = tuple(values.key)
    split = None if values.split_sentences is None else user_function(values.split_sentences)
    suffixes = _suffixes(keys, "sentence" if split else "document")
    dtype = _token_dtype(values.dtype, vocabulary, url)
    merged = MergedParts.of_options(path(values.output), dtype, suffixes, drop=values.drop_parts)
    return job_call(
        TokenizeJob,
        values,
        files=replace(files, keys=keys),
        tokenizer=url,
        checksum=checksum or BYTES,
        keys=keys,
        eod=token,
        special_tokens=values.special_tokens,
        split=None if split is None else split.reference,
        made_of={"module": {}} if split is None else split.made_of,
        on_error=values.on_error,
        audit=audit_text(values.audit),
        dataset=merged,
        output=merged.folder,
    )


@public(TOKENIZE, _build_tokenize)
def tokenize(*patterns: Places, **options: Unpack[TokenizeOptions]) -> "Result":
    """Make a Megatron dataset of the texts in records."""
    return run_call(TOKENIZE, (patterns,), options)


def _suffixes(keys: Sequence[str], level: str) -> tuple[str, ...]:
    """Return the suffix of each key's dataset, as Megatron names it; an empty suffix for a single key."""
    if len(keys) == 1:
        return ("",)
    for key in keys:
        if keys.count(key) > 1 or "/" in key or not key:
            raise UsageError(f"--key {key}: expected different names without '/', as each names a dataset")
    return tuple(f"_{key}_{level}" for key in keys)


def _token_dtype(name: str | None, vocabulary: int, url: str) -> str:
    import numpy as np

    from ledgerbeam.io.datasets.megatron import optimal_dtype
    from ledgerbeam.pipelines.datasets.megatron import dtype_name

    if name is None:
        return optimal_dtype(vocabulary).name
    dtype = np.dtype(dtype_name(name))
    if dtype.kind not in "iu" or np.iinfo(dtype).max < vocabulary - 1:
        raise UsageError(f"--dtype {name}: cannot hold tokens from 0 to {vocabulary - 1:,} of {url}; leave --dtype out")
    return dtype.name


class MergeOptions(StoreOptions, ConsoleOptions, total=False):
    """Options of `merge`."""

    output: Annotated[Required[Place], "prefix of the new dataset", Option(OUTPUT, "PREFIX")]


MERGE = CallSpec(
    "merge",
    "join Megatron datasets in the order given",
    MergeOptions,
    (
        Argument(
            "patterns",
            Places,
            "PREFIX",
            "prefixes of datasets, with *, ? and {a,b}; the matches of each are sorted",
            paths,
            several=True,
        ),
    ),
    is_job=False,
    changes={"storage_options": {"group": OUTPUT}},
)


@public(MERGE)
def merge(*patterns: Places, **options: Unpack[MergeOptions]) -> "Result":
    """Join Megatron datasets in the order given.

    Returns:
        The result. `Result.sources` is the number of datasets, `Result.records` the number of documents, and
        `Result.output` the prefix of the new dataset.

    Raises:
        LedgerbeamError: A dataset cannot be read, or the result cannot be written.
        UsageError: No dataset is given, the dtypes differ, or a foreign file has the name of the result.
    """
    values, _ = begin(MERGE, (patterns,), options)
    from ledgerbeam.io.datasets.megatron import merge_megatron
    from ledgerbeam.io.datasets.megatron.layout import dataset_prefix
    from ledgerbeam.ledger.model.accounts import RecordCounts
    from ledgerbeam.pipelines.calls.result import ListedRows, Result

    started = time.monotonic()
    found = [prefix for pattern in values.patterns for prefix in _matches(pattern, values.storage_options)]
    layout = merge_megatron(found, values.output, values.storage_options)
    place = dataset_prefix(values.output)
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
    """Return the `.bin` files of prefixes that match a pattern, sorted; with `{a,b}`, all files of `a` are first."""
    from ledgerbeam.io.datasets.megatron.layout import dataset_prefix
    from ledgerbeam.io.listing.pages import list_pages
    from ledgerbeam.io.listing.patterns import expand_braces

    return [
        url
        for alternative in expand_braces(dataset_prefix(pattern))
        for url in sorted(url for page in list_pages([f"{alternative}.bin"], options) for url in page.urls)
    ]
