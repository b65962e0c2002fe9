"""``ledgerbeam merge``: Megatron datasets joined in the given order."""

from __future__ import annotations

import argparse

from ledgerbeam.pipelines.cli.arguments import add_json, add_storage, take_defaults_of_call

SUMMARY = "join Megatron datasets in the order given"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    take_defaults_of_call(parser)
    parser.add_argument(
        "patterns",
        metavar="PREFIX",
        nargs="*",
        default=parser.argument_default,  # else argparse asks for some where others are missing
        help="prefixes, with *, ? and {a,b}; what one matches is sorted",
    )
    parser.add_argument("--output", required=True, metavar="PREFIX", help="prefix of the result")
    add_storage(parser)
    add_json(parser)


def run(args: argparse.Namespace, _: list[str]) -> int:
    """Join datasets and print what the result holds. Returns 0."""
    from ledgerbeam.pipelines.calls.merge import merge as call
    from ledgerbeam.pipelines.cli.job import call_with
    from ledgerbeam.pipelines.console.reporter import print_json
    from ledgerbeam.pipelines.console.run_progress import count

    result = call_with(call, args)
    facts = result.summary
    if args.json:
        print_json(facts)
    else:
        held = f"{count(facts['documents'], 'document')}, {count(facts['sequences'], 'sequence')}, {facts['dtype']}"
        print(f"{count(facts['merged'], 'dataset')} merged -> {facts['output']}: {held}")
    return 0
