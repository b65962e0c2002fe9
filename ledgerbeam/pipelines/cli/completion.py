"""``ledgerbeam completion``: the script by which a shell completes the command line."""

from __future__ import annotations

import argparse

SUMMARY = "print the completion script of a shell"

SHELLS = ("bash", "zsh", "tcsh")

_FILES = frozenset({"FILE", "PATTERN", "PREFIX", "SOURCE"})
_FOLDERS = frozenset({"LEDGER", "URL"})
"""Metavars of values that a shell completes with names of files, or of folders."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.set_defaults(only_prints=True)
    parser.add_argument("shell", metavar="|".join(SHELLS), choices=SHELLS, help="shell of the script")
    parser.epilog = 'for example, in ~/.bashrc: eval "$(ledgerbeam completion bash)"'


def run(args: argparse.Namespace, _: list[str]) -> int:
    """Print the script. Returns 0."""
    import shtab

    from ledgerbeam.pipelines.cli.parser import build_parser

    parser = build_parser()
    _complete_names(parser)
    print(shtab.complete(parser, args.shell))
    return 0


def _complete_names(parser: argparse.ArgumentParser) -> None:
    import shtab

    for action in parser._actions:  # noqa: SLF001 - argparse has no public list of them; shtab reads this one
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for inner in action.choices.values():
                _complete_names(inner)
        elif action.metavar in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar in _FOLDERS:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
