"""``ledgerbeam publish``: makes the outputs of a complete job a dataset of a format, and says where it is."""

from __future__ import annotations

import argparse

from ledgerbeam.errors import UsageError
from ledgerbeam.pipelines.commands.arguments import TARS_WITH_METADATA, add_json, add_storage, parse_part

__all__ = ["SUMMARY", "add_arguments", "run"]

SUMMARY = "make a dataset of what a complete job has written"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    formats = sorted([*TARS_WITH_METADATA, "hf", "idxpack", "megatron", "shar"])
    parser.add_argument("url", metavar="LEDGER", help="the job's ledger")
    parser.add_argument(
        "--as",
        dest="format",
        required=True,
        metavar="FORMAT",
        choices=formats,
        help=f"whose index files and metadata to write: {', '.join(formats)}",
    )
    parser.add_argument(
        "--route", default="", metavar="NAME", help="the dataset of a route (default: the main dataset)"
    )
    parser.add_argument("--output", metavar="URL", help="URL of the file for idxpack or shar; prefix for megatron")
    parser.add_argument("--name", metavar="NAME", help="name of the dataset (default: last part of job's output)")
    parser.add_argument(
        "--part",
        dest="parts",
        action="append",
        type=parse_part,
        metavar="NAME=PATTERN",
        help="a part of energon, hf or lit and the shards in it, a shell pattern; the first that matches counts "
        "(default: train=*)",
    )
    add_storage(parser)
    add_json(parser)


def run(args: argparse.Namespace, _: list[str]) -> int:
    """Publish the dataset of a complete job and print where it is. Returns 0.

    Raises:
        LedgerError: If the job is not complete, or another run changes it meanwhile.
        StorageError: If a shard is gone or has another size than when it was written.
        UsageError: If the job wrote no shards, or not of this format.
    """
    from ledgerbeam.io import canonical_url
    from ledgerbeam.ledger import dataset_manifest
    from ledgerbeam.opening import open_ledger
    from ledgerbeam.pipelines.console import count, print_json
    from ledgerbeam.pipelines.jobs.metadata import publish_shards, routes_of

    store = open_ledger(args.url, args.storage_options, create=False, read_only=True)
    manifest = dataset_manifest(store, route=args.route)
    if manifest.root is None:
        raise UsageError(f"ledger {args.url}: its job has written no shards; there is nothing to publish")
    shards = list(manifest)
    if not shards and (args.route or routes_of(store)):
        what = f"to route {args.route!r}" if args.route else "without a route"
        known = ", ".join(map(repr, routes_of(store))) or "none"
        raise UsageError(f"ledger {args.url}: its job has written no shards {what}; --route NAME takes: {known}")
    done = publish_shards(
        shards,
        manifest.root,
        args.format,
        args.storage_options,
        ledger=args.url,
        parts=args.parts,
        output=None if args.output is None else canonical_url(args.output).rstrip("/"),
        name=args.name,
    )
    if args.json:
        print_json(
            {
                "format": done.format,
                "shards": done.shards,
                "records": done.records,
                "published": done.urls,
                **({"keys": done.keys} if done.keys else {}),
            }
        )
    else:
        print(f"{count(done.shards, 'shard')} with {count(done.records, 'record')} published as {done.format}:")
        for url in done.urls:
            print(f"  {url}")
        for role, key in done.keys.items():
            print(f"key of {role}: {key}")
    return 0
