"""``ledgerbeam tokenize``: its options, and the call that they ask for."""

from __future__ import annotations

import argparse

from ledgerbeam.pipelines.cli.arguments import (
    add_audit,
    add_dataset,
    add_existing,
    add_on_error,
    add_shards,
    add_sources,
    take_defaults_of_call,
)

SUMMARY = "make a Megatron dataset of the texts in records"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    take_defaults_of_call(parser)
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
        action="append",
        metavar="NAME",
        help="name of the text in a record, a.b for a nested one (default: text); several make a dataset each",
    )
    tokens.add_argument(
        "--append-eod",
        action=argparse.BooleanOptionalAction,
        help="end each document with a token",
    )
    tokens.add_argument("--eod", metavar="TOKEN", help="name of that token (default: the first usual one there is)")
    tokens.add_argument(
        "--special-tokens",
        choices=["text", "token"],
        help="what the name of a special token inside a text, such as <|endoftext|>, becomes: tokens of ordinary text, "
        "or the special token (default: text)",
    )
    tokens.add_argument(
        "--split-sentences",
        metavar="module:function",
        help="makes a list of texts of one; each is a sequence of the document",
    )
    add_audit(parser)
    add_on_error(parser, "that cannot be decoded or tokenized, or has no text", "PREFIX.parts/_rejects")
    add_shards(parser, sources, output)


def run(args: argparse.Namespace, beam_args: list[str]) -> int:
    """Tokenize texts. Returns the exit status."""
    from ledgerbeam.pipelines.calls.tokenize import tokenize as call
    from ledgerbeam.pipelines.cli.job import run_job_command

    return run_job_command(call, args, beam_args)
