"""``ledgerbeam index``: its options, and the job that they ask for."""

from __future__ import annotations

import argparse

from ledgerbeam.pipelines.commands.arguments import add_index_place, add_job, add_sources

__all__ = ["SUMMARY", "add_arguments", "run"]

SUMMARY = "write the index of every source"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    sources = add_sources(parser)
    sources.add_argument(
        "--from",
        dest="read_as",
        choices=["shar"],
        help="PATTERNs are folders of Shar datasets: index their shards (default: if they all are such folders)",
    )
    add_index_place(sources)
    sources.add_argument("--force", action="store_true", help="index again what the ledger holds as indexed")
    add_job(parser, task_bytes="256M", task_help="size of the byte ranges that a large JSONL file is scanned in")
    parser.epilog = f"'ledgerbeam index verify' checks existing indexes. {parser.epilog}"


def run(args: argparse.Namespace, beam_args: list[str]) -> int:
    """Index sources. Returns the exit status."""
    from ledgerbeam.pipelines.commands.job import run_job_command
    from ledgerbeam.pipelines.commands.job_values import file_sources, run_values
    from ledgerbeam.pipelines.jobs.index import IndexJob
    from ledgerbeam.pipelines.jobs.sources import read_as_shar

    args.read_as = args.read_as or read_as_shar(args.patterns, args.storage_options)
    job = IndexJob(files=file_sources(args), **run_values(args))
    return run_job_command(job, args, beam_args, force=args.force)
