"""``ledgerbeam convert``: its options, and the job that they ask for."""

from __future__ import annotations

import argparse

from ledgerbeam.pipelines.commands.arguments import add_conversion, add_read_as, add_shards, add_sources

__all__ = ["SUMMARY", "add_arguments", "run"]

SUMMARY = "write every record in another format"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    sources = add_sources(parser)
    add_read_as(sources)
    add_shards(parser, sources, add_conversion(parser))


def run(args: argparse.Namespace, beam_args: list[str]) -> int:
    """Convert records. Returns the exit status."""
    from ledgerbeam.pipelines.commands.job import run_job_command
    from ledgerbeam.pipelines.commands.job_values import conversion, file_sources, run_values
    from ledgerbeam.pipelines.jobs.convert import ConvertJob

    job = ConvertJob(files=file_sources(args), **conversion(args), **run_values(args))
    return run_job_command(job, args, beam_args)
