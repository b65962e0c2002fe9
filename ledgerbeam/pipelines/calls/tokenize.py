"""``tokenize``: make a Megatron dataset of the texts in records."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal, Required, Unpack

from ledgerbeam.errors import UsageError
from ledgerbeam.pipelines.calls.call import Values, public, run_call
from ledgerbeam.pipelines.calls.call_spec import CallSpec, Option
from ledgerbeam.pipelines.calls.options import (
    FUNCTION_ERROR,
    PATTERNS,
    AnyJobOptions,
    BaseOptions,
    FolderOptions,
    LimitOptions,
    PartsOptions,
    Place,
    Places,
    RecordOptions,
    RejectOptions,
)
from ledgerbeam.pipelines.calls.values import texts

if TYPE_CHECKING:
    from ledgerbeam.pipelines.calls.result import Result
    from ledgerbeam.pipelines.runners.stage_loop import PreparedCall

TOKENS = "texts and tokens"
"""Heading in the help of the command."""


class TokenizeOptions(
    RecordOptions, FolderOptions, PartsOptions, BaseOptions, RejectOptions, LimitOptions, AnyJobOptions, total=False
):
    """Options of `tokenize`."""

    tokenizer: Required[
        Annotated[Place, Option(TOKENS, "tokenizer.json of Hugging Face tokenizers; or `bytes`", "FILE")]
    ]
    key: Annotated[
        str | Iterable[str],
        Option(
            TOKENS,
            "name of the text in a record, a.b for a nested text; several names make one dataset each",
            "NAME",
            default="text",
            repeats=True,
            parse=texts,
        ),
    ]
    append_eod: Annotated[bool, Option(TOKENS, "end each document with a token", default=True)]
    eod: Annotated[
        str | None, Option(TOKENS, "name of that token", "TOKEN", unset="the first usual name in the vocabulary")
    ]
    special_tokens: Annotated[
        Literal["text", "token"],
        Option(
            TOKENS,
            "encoding of the name of a special token inside a text, such as <|endoftext|>: as ordinary text, or as the "
            "special token",
            default="text",
            more="A text that still becomes a special token is an error of its record.",
        ),
    ]
    split_sentences: Annotated[
        str | Callable[[str], list[str]] | None,
        Option(
            TOKENS,
            "function that makes a list of texts of one; each is a sequence of the document",
            "module:function",
            more="The name of a function, or the function itself.",
        ),
    ]


TOKENIZE = CallSpec(
    "tokenize",
    "make a Megatron dataset of the texts in records",
    TokenizeOptions,
    (PATTERNS,),
    changes={
        "output": {"text": "prefix of the dataset's two files", "metavar": "PREFIX"},
        "dtype": {
            "text": "dtype of the tokens",
            "unset": "uint16 for a vocabulary below 65,500, else int32",
        },
        "on_error": {
            "text": "treatment of a record that cannot be decoded or tokenized, or has no text: `fail` its task, or "
            "`reject` the record into PREFIX.parts/_rejects, up to a number of records or a share such as 0.1%",
        },
        "audit": {"group": TOKENS},
    },
    raises=(FUNCTION_ERROR,),
)


def _build(values: Values) -> "PreparedCall":
    from ledgerbeam.io.datasets.megatron.tokenizer import BYTES, read_tokenizer
    from ledgerbeam.io.storage.urls import canonical_url
    from ledgerbeam.pipelines.calls.job_values import dataset, file_sources_of, job_call, run_values_of
    from ledgerbeam.pipelines.datasets.megatron import TokenizeJob
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
    merged, place = dataset(values.output, dtype, suffixes, drop=values.drop_parts)
    job = TokenizeJob(
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
        output=place,
        **run_values_of(values),
    )
    return job_call(job, values)


@public(TOKENIZE, _build)
def tokenize(*patterns: Places, **options: Unpack[TokenizeOptions]) -> "Result":
    """Make a Megatron dataset of the texts in records."""
    return run_call(TOKENIZE, (patterns,), options)


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
