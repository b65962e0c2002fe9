"""Source arguments of the command line as a listing of canonical URLs."""

from __future__ import annotations

import argparse

from ledgerbeam.io import SourceListing, canonical_url

__all__ = ["source_listing"]


def source_listing(args: argparse.Namespace) -> SourceListing:
    """Returns what the arguments of a command name.

    Raises:
        UsageError: If neither or both of patterns and a list are given, or one of them is no URL.
    """
    patterns = tuple(canonical_url(pattern) for pattern in args.patterns)
    sources_from = canonical_url(args.sources_from) if args.sources_from else None
    return SourceListing(patterns, sources_from, args.storage_options)
