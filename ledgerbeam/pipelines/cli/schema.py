"""``ledgerbeam schema``: the schema of a column file, or of the outputs of a job, as JSON."""

from __future__ import annotations

import argparse
import os

from ledgerbeam.errors import UsageError
from ledgerbeam.pipelines.cli.arguments import add_storage

SUMMARY = "print a schema for --schema"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.set_defaults(only_prints=True)
    parser.add_argument(
        "url",
        metavar="URL",
        help="a Parquet or Arrow file, a schema in JSON, or the ledger of a job that writes Parquet or Arrow",
    )
    add_storage(parser)


def run(args: argparse.Namespace, _: list[str]) -> int:
    """Print the schema as JSON. Returns 0.

    Raises:
        UsageError: The job of the ledger writes no column files, or the file has no schema.
    """
    import json

    from ledgerbeam._base.redaction import printable
    from ledgerbeam.io.storage.urls import canonical_url, is_local
    from ledgerbeam.ledger.opening import open_store
    from ledgerbeam.pipelines.outputs.columns import is_schema_file, read_schema, recorded_schema

    url = canonical_url(args.url)
    if is_schema_file(url):
        schemas = read_schema(url, args.storage_options)
    elif is_local(url) and os.path.isfile(url):
        raise UsageError(
            f"{url}: expected a Parquet or Arrow file, a schema in JSON, or a ledger, found another file; to see the "
            "schema that a job would infer, use --dry-run, for example with ledgerbeam convert --to parquet"
        )
    else:
        job = open_store(url, args.storage_options, create=False, read_only=True).job()
        found = None if job is None else recorded_schema(job)
        if found is None:
            raise UsageError(
                f"ledger {url}: its job has no schema; use the ledger of a job with --to parquet or --to arrow"
            )
        schemas = found
    print(printable(json.dumps(schemas.as_json(), indent=2, ensure_ascii=False)))
    return 0
