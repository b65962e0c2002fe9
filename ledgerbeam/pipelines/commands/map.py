"""``ledgerbeam map``: its options, and the job that they ask for."""

from __future__ import annotations

import argparse

from ledgerbeam.errors import UsageError
from ledgerbeam.pipelines.commands.arguments import (
    add_existing,
    add_on_error,
    add_read_as,
    add_shards,
    add_sources,
    add_to,
    parse_count,
)

__all__ = ["SUMMARY", "add_arguments", "run"]

SUMMARY = "apply a function to every record"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("function", metavar="module:function", help="takes one record; returns one, None or a list")
    sources = add_sources(parser)
    add_read_as(sources)
    output = parser.add_argument_group("output")
    output.add_argument("--output", required=True, metavar="URL", help="folder to write below")
    add_to(output, ["jsonl", "tar"])
    add_existing(output)
    output.add_argument(
        "--nan",
        choices=["refuse", "null"],
        default="refuse",
        help="NaN and infinities in JSONL: fail the task, or write null and count them (default: refuse)",
    )
    parser.add_argument(
        "--no-purity-check",
        action="store_true",
        help="do not map the first records twice to see that the function is deterministic",
    )
    add_on_error(parser)
    parser.add_argument(
        "--sample",
        type=parse_count,
        metavar="N",
        help="try the function on N records from all over the sources, in this process, and print what becomes of "
        "them; write nothing",
    )
    add_shards(parser, sources, output)


def run(args: argparse.Namespace, beam_args: list[str]) -> int:
    """Map records. Returns the exit status.

    Raises:
        FunctionError: If the function cannot be imported.
    """
    from ledgerbeam.ledger.model.user_code import function_identity
    from ledgerbeam.pipelines.commands.job import run_job_command
    from ledgerbeam.pipelines.commands.job_values import file_sources, folder, run_values, target
    from ledgerbeam.pipelines.commands.sample import sample
    from ledgerbeam.pipelines.jobs.map import MapJob
    from ledgerbeam.pipelines.jobs.reject_limit import parse_on_error

    if args.nan != "refuse" and args.to != "jsonl":
        raise UsageError(f"--nan {args.nan} is for --to jsonl, found --to {args.to}")
    parse_on_error(args.on_error)
    to, published = target(args.to)
    job = MapJob(
        files=file_sources(args),
        function=args.function,
        function_source=function_identity(args.function)["function_source"],
        nan=args.nan,
        check_purity=not args.no_purity_check,
        output=folder(args.output),
        to=to,
        on_error=args.on_error,
        published=published,
        **run_values(args),
    )
    if args.sample is not None:
        return sample(job, args)
    return run_job_command(job, args, beam_args)
