"""``ledgerbeam merge``: Megatron datasets joined in the order given."""

from __future__ import annotations

import argparse
from typing import Any

from ledgerbeam.io import canonical_url, expand_braces, list_pages
from ledgerbeam.io.megatron import merge_megatron
from ledgerbeam.io.megatron.layout import dataset_prefix
from ledgerbeam.pipelines.console import count, print_json

__all__ = ["main"]


def main(args: argparse.Namespace, _: list[str]) -> int:
    """Joins datasets and prints what the result holds. Returns 0."""
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
    """Returns the prefixes that one argument names: those of each alternative of its braces, sorted."""
    prefix = pattern.removesuffix(".bin").removesuffix(".idx")
    return [
        url.removesuffix(".bin")
        for alternative in expand_braces(canonical_url(prefix))
        for url in sorted(url for page in list_pages([f"{alternative}.bin"], options) for url in page.urls)
    ]
