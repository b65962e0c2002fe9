"""``ledgerbeam tokenize``: its options, and the job that they ask for."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from ledgerbeam.errors import UsageError
from ledgerbeam.pipelines.commands.arguments import add_dataset, add_existing, add_shards, add_sources

if TYPE_CHECKING:
    from ledgerbeam.pipelines.jobs.tokenize import TokenizeJob

__all__ = ["SUMMARY", "add_arguments", "run"]

SUMMARY = "make a Megatron dataset of the texts in records"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    sources = add_sources(parser)
    output = parser.add_argument_group("output")
    output.add_argument("--output", required=True, metavar="PREFIX", help="prefix of the dataset's two files")
    add_existing(output)
    add_dataset(output, "dtype of the tokens (default: uint16 for a vocabulary below 65,500, else int32)")
    tokens = parser.add_argument_group("texts and tokens")
    tokens.add_argument(
        "--tokenizer", required=True, metavar="FILE", help="a tokenizer.json of Hugging Face tokenizers, or: bytes"
    )
    tokens.add_argument(
        "--key",
        dest="keys",
        action="append",
        metavar="NAME",
        help="name of the text in a record, a.b for a nested one (default: text); several make a dataset each",
    )
    tokens.add_argument(
        "--append-eod",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="end each document with a token",
    )
    tokens.add_argument("--eod", metavar="TOKEN", help="name of that token (default: the first usual one there is)")
    tokens.add_argument(
        "--split-sentences",
        metavar="module:function",
        help="makes a list of texts of one; each is a sequence of the document",
    )
    add_shards(parser, sources, output)


def run(args: argparse.Namespace, beam_args: list[str]) -> int:
    """Tokenize texts. Returns the exit status."""
    from ledgerbeam.pipelines.commands.job import run_job_command

    return run_job_command(_job(args), args, beam_args)


def _job(args: argparse.Namespace) -> TokenizeJob:
    """Return the job that the options ask for.

    Raises:
        FunctionError: If the function that splits texts cannot be imported.
        StorageError: If the tokenizer cannot be read.
        UsageError: If the options cannot mean anything together.
    """
    from ledgerbeam.io import canonical_url
    from ledgerbeam.io.megatron.tokenizer import BYTES, read_tokenizer
    from ledgerbeam.ledger.model.user_modules import user_modules
    from ledgerbeam.pipelines.commands.job_values import dataset, file_sources, run_values
    from ledgerbeam.pipelines.jobs.tokenize import TokenizeJob

    if args.eod and not args.append_eod:
        raise UsageError("--eod names a token that --no-append-eod leaves out: give one of the two")
    files = file_sources(args)
    url = args.tokenizer if args.tokenizer == BYTES else canonical_url(args.tokenizer)
    tokenizer, checksum = read_tokenizer(url, args.storage_options)
    eod = tokenizer.eod(args.eod) if args.append_eod else None
    vocabulary = max(tokenizer.vocabulary, 0 if eod is None else eod + 1)
    keys, split = args.keys or ["text"], args.split_sentences
    merged, output = dataset(
        args, _token_dtype(args.dtype, vocabulary, url), _suffixes(keys, "sentence" if split else "document")
    )
    return TokenizeJob(
        files=replace(files, keys=tuple(keys)),
        tokenizer=url,
        checksum=checksum or BYTES,
        keys=tuple(keys),
        eod=eod,
        split=split,
        modules=user_modules(split) if split else {},
        dataset=merged,
        output=output,
        **run_values(args),
    )


def _suffixes(keys: list[str], level: str) -> tuple[str, ...]:
    """Return what follows the prefix in the name of each key's dataset: nothing if there is one, else Megatron's."""
    if len(keys) == 1:
        return ("",)
    for key in keys:
        if keys.count(key) > 1 or "/" in key or not key:
            raise UsageError(f"--key {key}: expected names of texts, each once and without '/', as they name datasets")
    return tuple(f"_{key}_{level}" for key in keys)


def _token_dtype(name: str | None, vocabulary: int, url: str) -> str:
    import numpy as np

    from ledgerbeam.io.megatron import optimal_dtype
    from ledgerbeam.pipelines.commands.job_values import dtype_name

    if name is None:
        return optimal_dtype(vocabulary).name
    dtype = np.dtype(dtype_name(name))
    if dtype.kind not in "iu" or np.iinfo(dtype).max < vocabulary - 1:
        raise UsageError(f"--dtype {name}: cannot hold the tokens of {url}, from 0 to {vocabulary - 1:,}")
    return dtype.name
