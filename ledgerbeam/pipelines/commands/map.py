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
    parser.add_argument(
        "function",
        metavar="module:function",
        help="takes one record; returns one, None, a list, Drop, Reject or Route; or a class, built once a process",
    )
    sources = add_sources(parser)
    add_read_as(sources)
    output = parser.add_argument_group("output")
    output.add_argument("--output", required=True, metavar="URL", help="folder to write below")
    add_to(output, ["jsonl", "tar", "text"])
    add_existing(output)
    output.add_argument(
        "--nan",
        choices=["refuse", "null"],
        default="refuse",
        help="NaN and infinities in JSONL: fail the task, or write null and count them (default: refuse)",
    )
    function = parser.add_argument_group("function")
    function.add_argument(
        "--set",
        dest="values",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a keyword argument of the function or the class; JSON, else a text. Part of the job; may be repeated",
    )
    function.add_argument(
        "--watch-file",
        action="append",
        default=[],
        metavar="FILE",
        help="a file or URL that the function reads, whose content is part of the job; may be repeated",
    )
    function.add_argument(
        "--batch",
        type=parse_count,
        metavar="N",
        help="call the function with lists of up to N records; it returns a list of as many results",
    )
    function.add_argument(
        "--devices",
        type=_parse_devices,
        default=(),
        metavar="ID,...",
        help="each worker process sees one of these CUDA devices; workers take turns if they are more",
    )
    function.add_argument(
        "--no-purity-check",
        action="store_true",
        help="do not map the first records twice to see that results depend on nothing but their records",
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
        FunctionError: If the function cannot be imported, or is none.
        UsageError: If it does not take the values of ``--set``, or a watched file does not exist.
    """
    from ledgerbeam.ledger.model.user_modules import user_modules
    from ledgerbeam.ledger.model.user_objects import check_object, depends_on_batches, parse_set
    from ledgerbeam.pipelines.commands.job import run_job_command
    from ledgerbeam.pipelines.commands.job_values import file_sources, folder, run_values, target
    from ledgerbeam.pipelines.commands.sample import sample
    from ledgerbeam.pipelines.jobs.map import MapJob
    from ledgerbeam.pipelines.jobs.reject_limit import parse_on_error
    from ledgerbeam.sources.watched import watched_checksums

    if args.nan != "refuse" and args.to != "jsonl":
        raise UsageError(f"--nan {args.nan} is for --to jsonl, found --to {args.to}")
    parse_on_error(args.on_error)
    to, published = target(args.to)
    values = parse_set(args.values)
    target_object = check_object(args.function, values)
    job = MapJob(
        files=file_sources(args),
        function=args.function,
        modules=user_modules(args.function),
        values=values,
        watched=watched_checksums(args.watch_file, args.storage_options),
        batch=args.batch,
        batch_matters=depends_on_batches(target_object),
        nan=args.nan,
        check_purity=not args.no_purity_check,
        output=folder(args.output),
        to=to,
        on_error=args.on_error,
        published=published,
        devices=args.devices,
        **run_values(args),
    )
    if args.sample is not None:
        return sample(job, args)
    return run_job_command(job, args, beam_args)


def _parse_devices(text: str) -> tuple[str, ...]:
    devices = tuple(text.split(","))
    if not all(devices) or len(set(devices)) < len(devices):
        raise argparse.ArgumentTypeError(f"expected ids of different devices such as 0,1, found {text!r}")
    return devices
