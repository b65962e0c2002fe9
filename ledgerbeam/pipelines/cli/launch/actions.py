"""``ledgerbeam launch ...``: print a script or manifest that starts a command on many hosts, which share its ledger."""

from __future__ import annotations

import argparse

from ledgerbeam.pipelines.cli.arguments import Parser, add_base_options, set_usage
from ledgerbeam.pipelines.cli.launch import kubernetes, slurm, ssh

SUMMARY = "print a script to start a job on many hosts"

_WAYS = {"slurm": slurm, "kubernetes": kubernetes, "ssh": ssh}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the launchers with their options."""
    parser.set_defaults(only_prints=True)
    ways = parser.add_subparsers(dest="way", metavar="WAY", required=True, parser_class=Parser)
    for name, way in _WAYS.items():
        text = f"{way.TEXT[0].upper()}{way.TEXT[1:]}."
        added = ways.add_parser(name, help=way.TEXT, description=text, allow_abbrev=False)
        add_base_options(added)
        way.add_arguments(added)
        added.epilog = "The command follows '--', for example: -- ledgerbeam map ... --ledger s3://bucket/progress"
        set_usage(added)
        added.usage = f"{added.usage} -- COMMAND"
    parser.set_defaults(behind_dashes="command")


def run(args: argparse.Namespace, words: list[str]) -> int:
    """Print the script or the manifest. Returns 0."""
    from ledgerbeam.pipelines.cli.launch.command import check_command

    check_command(words)
    print(_WAYS[args.way].text(args, words), end="")
    return 0
