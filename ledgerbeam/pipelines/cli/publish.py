"""``ledgerbeam publish``: makes the outputs of a complete job a dataset of a format, says where it is, or sends it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from ledgerbeam.pipelines.calls.values import TARS_WITH_METADATA
from ledgerbeam.pipelines.cli.arguments import add_json, add_storage, take_defaults_of_call

SUMMARY = "make a dataset of what a job has written, or send it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    take_defaults_of_call(parser)
    formats = sorted([*TARS_WITH_METADATA, "hf", "idxpack", "megatron", "shar"])
    parser.add_argument("url", metavar="LEDGER", help="the job's ledger")
    parser.add_argument(
        "--as",
        dest="as_",
        metavar="FORMAT",
        choices=formats,
        help=f"whose index files and metadata to write: {', '.join(formats)}",
    )
    parser.add_argument(
        "--to",
        metavar="URL",
        help="hf://datasets/OWNER/NAME[@BRANCH][/FOLDER]: send shards, indexes and metadata there, in one commit",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="with --to: also replace files that this ledger has not put there"
    )
    parser.add_argument(
        "--route",
        metavar="NAME",
        help="the dataset of a route (default: the main dataset); a job that wrote to routes alone is one dataset of "
        "hf without it",
    )
    parser.add_argument("--output", metavar="URL", help="URL of the file for idxpack or shar; prefix for megatron")
    parser.add_argument("--name", metavar="NAME", help="name of the dataset (default: last part of job's output)")
    parser.add_argument(
        "--part",
        action="append",
        metavar="NAME=PATTERN",
        help="a part of energon, hf or lit and the shards in it, a shell pattern; the first that matches counts "
        "(default: train=*); of a job that wrote to routes alone, such as split, each route is a part of hf",
    )
    add_storage(parser)
    add_json(parser)


def run(args: argparse.Namespace, _: list[str]) -> int:
    """Publish the dataset of a complete job and print where it is. Returns 0."""
    from ledgerbeam.pipelines.calls.publish import publish as call
    from ledgerbeam.pipelines.cli.job import call_with
    from ledgerbeam.pipelines.console.reporter import print_json

    facts = call_with(call, args).summary
    if args.json:
        print_json(facts)
        return 0
    if "format" in facts:
        _tell_made(facts)
    if "to" in facts:
        _tell_sent(facts)
    return 0


def _tell_made(made: Mapping[str, Any]) -> None:
    from ledgerbeam.pipelines.console.run_progress import count

    print(f"{count(made['shards'], 'shard')} with {count(made['records'], 'record')} published as {made['format']}:")
    for url in made["published"]:
        print(f"  {url}")
    for role, key in made.get("keys", {}).items():
        print(f"key of {role}: {key}")


def _tell_sent(sent: Mapping[str, Any]) -> None:
    from ledgerbeam.pipelines.console.run_progress import count

    if sent["commit"] is None:
        print(f"up to date: {sent['to']}, {count(sent['same'], 'file')}")
    else:
        parts = (f"{count(len(sent[verb]), 'file')} {verb}" for verb in ("added", "replaced", "removed") if sent[verb])
        said = ", ".join(parts) or "its note renewed"
        print(f"published: {sent['to']}, {said}, {sent['same']:,} as before, commit {sent['commit']}")
    for name in sent["kept"]:
        print(f"changed on the Hub, and kept: {name}")
