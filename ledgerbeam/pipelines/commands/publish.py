"""``ledgerbeam publish``: makes the outputs of a complete job a dataset of a format, says where it is, or sends it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ledgerbeam.errors import UsageError
from ledgerbeam.pipelines.commands.arguments import TARS_WITH_METADATA, add_json, add_storage, parse_part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ledgerbeam.ledger import OutputShard
    from ledgerbeam.pipelines.jobs.hub import HubPublication
    from ledgerbeam.pipelines.jobs.metadata import Publication

__all__ = ["SUMMARY", "add_arguments", "run"]

_WITH_PLACES = ("idxpack", "megatron", "shar")
"""Formats whose metadata names shards by where they lie, or that write them anew elsewhere."""

SUMMARY = "make a dataset of what a job has written, or send it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    formats = sorted([*TARS_WITH_METADATA, "hf", "idxpack", "megatron", "shar"])
    parser.add_argument("url", metavar="LEDGER", help="the job's ledger")
    parser.add_argument(
        "--as",
        dest="format",
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
        PublicationError: If others commit to the dataset of the Hub all the time.
        StorageError: If a shard is gone or has another size than when it was written; or a store refuses.
        UsageError: If the job wrote no shards, or not of this format; if neither ``--as`` nor ``--to`` is given, or
            files of others would be replaced.
    """
    from ledgerbeam.ledger import dataset_manifest
    from ledgerbeam.opening import open_ledger
    from ledgerbeam.pipelines.console import print_json
    from ledgerbeam.pipelines.jobs.metadata import require_shards, routes_of

    _check(args)
    store = open_ledger(args.url, args.storage_options, create=False, read_only=True)
    manifest = dataset_manifest(store, route=args.route)
    if manifest.root is None:
        raise UsageError(f"ledger {args.url}: its job has written no shards; there is nothing to publish")
    shards = list(manifest)
    if not shards and (args.route or routes_of(store)):
        what = f"to route {args.route!r}" if args.route else "without a route"
        known = ", ".join(map(repr, routes_of(store))) or "none"
        raise UsageError(f"ledger {args.url}: its job has written no shards {what}; --route NAME takes: {known}")
    require_shards(shards, manifest.root, args.storage_options, ledger=args.url)
    made = None if args.format is None else _make(args, shards, manifest.root)
    ledger_id = "-".join(filter(None, [store.ledger_id(), args.route]))
    sent = None if args.to is None else _send(args, shards, manifest.root, [] if made is None else made.urls, ledger_id)
    if args.json:
        facts = {"shards": len(shards)} | ({} if made is None else _facts(made)) | ({} if sent is None else _sent(sent))
        print_json(facts)
        return 0
    if made is not None:
        _tell_made(made)
    if sent is not None:
        _tell_sent(sent)
    return 0


def _check(args: argparse.Namespace) -> None:
    """Refuse options that say nothing together."""
    if args.format is None and args.to is None:
        raise UsageError("publish: say what to make, --as FORMAT, or where to send it, --to hf://datasets/..., or both")
    if args.format is None and (args.output or args.name or args.parts):
        raise UsageError("publish: --output, --name and --part belong to --as FORMAT")
    if args.to is not None and args.format in _WITH_PLACES:
        raise UsageError(
            f"publish: --as {args.format} names shards by where they lie here; send them without it: --to {args.to}"
        )
    if args.to is not None and args.output is not None:
        raise UsageError(f"publish: --to {args.to} sends what lies with the shards; leave --output out")
    if args.overwrite and args.to is None:
        raise UsageError("publish: --overwrite belongs to --to hf://datasets/...")


def _make(args: argparse.Namespace, shards: Sequence[OutputShard], root: str) -> Publication:
    from ledgerbeam.io import canonical_url
    from ledgerbeam.pipelines.jobs.metadata import publish_shards

    return publish_shards(
        shards,
        root,
        args.format,
        args.storage_options,
        ledger=args.url,
        parts=args.parts,
        output=None if args.output is None else canonical_url(args.output).rstrip("/"),
        name=args.name,
    )


def _send(
    args: argparse.Namespace, shards: Sequence[OutputShard], root: str, made: Sequence[str], ledger_id: str
) -> HubPublication:
    from ledgerbeam.pipelines.console import counting
    from ledgerbeam.pipelines.jobs.hub import files_of, publish_to_hub

    files = files_of(shards, root, made, args.storage_options)
    with counting("file") as advance:
        return publish_to_hub(
            args.to,
            files,
            ledger_id=ledger_id,
            options=args.storage_options,
            overwrite=args.overwrite,
            on_file=advance,
        )


def _facts(made: Publication) -> dict[str, object]:
    keys = {"keys": made.keys} if made.keys else {}
    return {"format": made.format, "records": made.records, "published": made.urls, **keys}


def _sent(sent: HubPublication) -> dict[str, object]:
    return {
        "to": sent.url,
        "commit": sent.commit,
        "added": sent.added,
        "replaced": sent.replaced,
        "removed": sent.removed,
        "same": sent.same,
        "kept": sent.kept,
    }


def _tell_made(made: Publication) -> None:
    from ledgerbeam.pipelines.console import count

    print(f"{count(made.shards, 'shard')} with {count(made.records, 'record')} published as {made.format}:")
    for url in made.urls:
        print(f"  {url}")
    for role, key in made.keys.items():
        print(f"key of {role}: {key}")


def _tell_sent(sent: HubPublication) -> None:
    from ledgerbeam.pipelines.console import count

    if sent.commit is None:
        print(f"up to date: {sent.url}, {count(sent.same, 'file')}")
    else:
        done = (("added", sent.added), ("replaced", sent.replaced), ("removed", sent.removed))
        said = ", ".join(f"{count(len(names), 'file')} {verb}" for verb, names in done if names) or "its note renewed"
        print(f"published: {sent.url}, {said}, {sent.same:,} as before, commit {sent.commit}")
    for name in sent.kept:
        print(f"changed on the Hub, and kept: {name}")
