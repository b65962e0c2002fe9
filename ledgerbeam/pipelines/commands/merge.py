"""``ledgerbeam merge``: Megatron datasets joined in the given order."""

from __future__ import annotations

import argparse
from typing import Any

from ledgerbeam.pipelines.commands.arguments import add_json, add_storage

__all__ = ["SUMMARY", "add_arguments", "run"]

SUMMARY = "join Megatron datasets in the order given"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument(
        "patterns", metavar="PREFIX", nargs="*", help="prefixes, with *, ? and {a,b}; what one matches is sorted"
    )
    parser.add_argument("--output", required=True, metavar="PREFIX", help="prefix of the result")
    add_storage(parser)
    add_json(parser)


def run(args: argparse.Namespace, _: list[str]) -> int:
    """Join datasets and print what the result holds. Returns 0."""
    from ledgerbeam.io.megatron import merge_megatron
    from ledgerbeam.io.megatron.layout import dataset_prefix
    from ledgerbeam.pipelines.console import count, print_json

    prefixes = [prefix for pattern in args.patterns for prefix in _matches(pattern, args.storage_options)]
    layout = merge_megatron(prefixes, args.output, args.storage_options)
    output = dataset_prefix(args.output)
    facts = {"dtype": layout.dtype.name, "sequences": layout.sequences, "documents": layout.documents}
    if args.json:
        print_json({"output": output, "merged": len(prefixes), **facts})
    else:
        print(
            f"{count(len(prefixes), 'dataset')} merged -> {output}: {count(layout.documents, 'document')}, "
            f"{count(layout.sequences, 'sequence')}, {layout.dtype.name}"
        )
    return 0


def _matches(pattern: str, options: dict[str, Any]) -> list[str]:
    """Return the prefixes that one argument names: those of each alternative of its braces, sorted."""
    from ledgerbeam.io import canonical_url
    from ledgerbeam.io.listing.pages import list_pages
    from ledgerbeam.io.listing.patterns import expand_braces

    prefix = pattern.removesuffix(".bin").removesuffix(".idx")
    return [
        url.removesuffix(".bin")
        for alternative in expand_braces(canonical_url(prefix))
        for url in sorted(url for page in list_pages([f"{alternative}.bin"], options) for url in page.urls)
    ]
