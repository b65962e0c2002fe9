"""``ledgerbeam publish``: makes the outputs of a complete job a dataset of a format, and says where it is."""

from __future__ import annotations

import argparse

from ledgerbeam.errors import UsageError
from ledgerbeam.io import canonical_url
from ledgerbeam.ledger import dataset_manifest
from ledgerbeam.opening import open_ledger
from ledgerbeam.pipelines.console import count, print_json
from ledgerbeam.pipelines.jobs.metadata import publish_shards

__all__ = ["main"]


def main(args: argparse.Namespace, _: list[str]) -> int:
    """Publishes the dataset of a complete job and prints where. Returns 0.

    Raises:
        LedgerError: If the job is not complete, or another run changes it meanwhile.
        StorageError: If a shard is gone or has another size than when it was written.
        UsageError: If the job wrote no shards, or not of this format.
    """
    store = open_ledger(args.url, args.storage_options, create=False, read_only=True)
    manifest = dataset_manifest(store)
    if manifest.root is None:
        raise UsageError(f"ledger {args.url}: its job has written no shards; there is nothing to publish")
    done = publish_shards(
        list(manifest),
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
