"""From source arguments to a listing of canonical URLs, and from listed files to sources."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from ledgerbeam.io import SourceListing, canonical_url, group_shards
from ledgerbeam.ledger import Source

__all__ = ["shar_sources", "source_listing"]


def source_listing(args: argparse.Namespace) -> SourceListing:
    """Returns what the arguments of a command name.

    Raises:
        UsageError: If neither or both of patterns and a list are given, or one of them is no URL.
    """
    patterns = tuple(canonical_url(pattern) for pattern in args.patterns)
    sources_from = canonical_url(args.sources_from) if args.sources_from else None
    return SourceListing(patterns, sources_from, args.storage_options)


def shar_sources(files: Iterable[Source]) -> list[Source]:
    """Makes one source of the files of each shard of Shar datasets: a change of any of them is a change of the shard.

    Args:
        files: All files of the datasets' folders; those that are no shards are passed over.

    Raises:
        SourceError: A shard lacks a file; see `io.group_shards`.
        SourceNotFoundError: There is no shard.
    """
    by_url = {file.url: file for file in files}
    return [Source.pack([by_url[url] for url in urls]) for urls in group_shards(by_url)]
