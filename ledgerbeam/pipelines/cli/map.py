"""``ledgerbeam map``: its options, and the call that they ask for."""

from __future__ import annotations

import argparse

from ledgerbeam.pipelines.calls.values import MAPPED, parse_count, parse_devices
from ledgerbeam.pipelines.cli.arguments import (
    add_audit,
    add_compression,
    add_existing,
    add_layout,
    add_on_error,
    add_read_as,
    add_shards,
    add_sources,
    add_to,
    take_defaults_of_call,
)

SUMMARY = "apply a function to every record"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    take_defaults_of_call(parser)
    parser.add_argument(
        "function",
        metavar="module:function",
        help="takes one record; returns one, None, a list, Drop, Reject or Route; or a class, built once a process",
    )
    sources = add_sources(parser)
    add_read_as(sources)
    output = parser.add_argument_group("output")
    output.add_argument("--output", required=True, metavar="URL", help="folder to write below")
    add_to(output, MAPPED)
    add_layout(output)
    add_compression(output)
    add_existing(output)
    output.add_argument(
        "--nan",
        choices=["refuse", "null"],
        help="NaN and infinities in JSONL: fail the task, or write null and count them (default: refuse)",
    )
    function = parser.add_argument_group("function")
    function.add_argument(
        "--set",
        action="append",
        metavar="NAME=VALUE",
        help="a keyword argument of the function or the class; JSON, else a text. Part of the job; may be repeated",
    )
    function.add_argument(
        "--watch-file",
        action="append",
        metavar="FILE",
        help="a file or URL that the function reads, whose content is part of the job; may be repeated",
    )
    function.add_argument(
        "--batch",
        type=parse_count,
        metavar="N",
        help="call the function with lists of up to N records; it returns a list of as many results. With --as arrow: "
        "rows of a batch, at most (default: 65536)",
    )
    function.add_argument(
        "--as",
        dest="as_",
        choices=["records", "arrow"],
        help="call the function with records, or with pyarrow.RecordBatch; it returns a batch, a frame, or Rows",
    )
    function.add_argument(
        "--batch-schema",
        metavar="FILE",
        help="with --as arrow: the columns of JSONL, in JSON (default: what the first lines hold)",
    )
    function.add_argument(
        "--devices",
        type=parse_devices,
        metavar="ID,...",
        help="each worker process sees one of these CUDA devices; workers take turns if they are more",
    )
    add_audit(function)
    add_on_error(parser, "that cannot be decoded, or that the function raises for or rejects", "OUTPUT/_rejects")
    parser.add_argument(
        "--sample",
        type=parse_count,
        metavar="N",
        help="try the function on N records from all over the sources, in this process, and print what becomes of "
        "them; write nothing",
    )
    add_shards(parser, sources, output)


def run(args: argparse.Namespace, beam_args: list[str]) -> int:
    """Map records. Returns the exit status."""
    from ledgerbeam.pipelines.calls.map import map as call
    from ledgerbeam.pipelines.cli.job import run_job_command

    return run_job_command(call, args, beam_args)
