"""The parser of the whole command line, and its synopsis: every command is in the table here."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator
from typing import Protocol

from ledgerbeam import __version__
from ledgerbeam.pipelines.commands import (
    completion,
    convert,
    index,
    map,  # noqa: A004 - as the command is called
    materialize,
    merge,
    publish,
    schema,
    show,
    tokenize,
    verify,
)
from ledgerbeam.pipelines.commands.arguments import Parser, add_base_options, must_be_given, set_usage
from ledgerbeam.pipelines.commands.ledger import actions as ledger

__all__ = ["build_parser", "synopsis"]


class Command(Protocol):
    """A module of a command. What it runs with it imports when it runs: help must not wait for that."""

    SUMMARY: str

    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None:
        """Add the options of the command."""

    def run(self, args: argparse.Namespace, beam_args: list[str], /) -> int:
        """Run it. Returns the exit status."""


_GROUPS: dict[str, dict[str, Command]] = {
    "jobs (the same command again does only what is left)": {
        "index": index,
        "map": map,
        "convert": convert,
        "tokenize": tokenize,
        "materialize": materialize,
    },
    "datasets": {"merge": merge, "publish": publish},
    "sources and their indexes": {"verify": verify, "show": show, "schema": schema},
    "ledgers": {"ledger": ledger},
    "shells": {"completion": completion},
}

_FULL_NAMES = {"verify": "index verify"}
"""Commands with a name in two words, which `cli` takes as well, and help shows."""

_WIDTH = 54
_INDENT = 2


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line. Parsing raises `UsageError` instead of exiting."""
    parser = _TopParser(
        prog="ledgerbeam",
        description="Index, process and restart: batch jobs over manifests and shards that lose nothing when they die.",
        epilog="ledgerbeam COMMAND --help lists the options of a command. Beam options follow '--', for example: "
        "ledgerbeam map ... -- --runner=PrismRunner",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"ledgerbeam {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    for name, command in _commands():
        text = command.SUMMARY
        added = commands.add_parser(
            name,
            prog=f"{parser.prog} {_FULL_NAMES.get(name, name)}",
            help=text,
            description=f"{text[0].upper()}{text[1:]}.",
            allow_abbrev=False,
        )
        add_base_options(added)
        added.set_defaults(run=command.run, runs_beam=False, prog=added.prog, whole_parser=parser)
        command.add_arguments(added)
        takes_patterns = any(action.dest == "patterns" for action in added._actions)  # noqa: SLF001 - no public list
        added.set_defaults(takes_patterns=takes_patterns)
        set_usage(added)
        parser.commands[name] = added
    return parser


def synopsis() -> str:
    """Return a line for each command: what it must be given, and what it does; grouped, as help shows it."""
    parser = build_parser()
    return parser.synopsis() if isinstance(parser, _TopParser) else ""


class _TopParser(Parser):
    """The parser of the whole command line, whose help shows the commands in groups."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self.commands: dict[str, argparse.ArgumentParser] = {}

    def format_help(self) -> str:
        """Return the help of the whole command line."""
        description, epilog = (textwrap.fill(str(text), 100) for text in (self.description, self.epilog))
        usage = f"usage: {self.prog} [--help] [--version] COMMAND ..."
        return f"{usage}\n\n{description}\n\n{self.synopsis()}\n{epilog}\n"

    def synopsis(self) -> str:
        """Return the lines of all commands, in their groups."""
        lines: list[str] = []
        for title, members in _GROUPS.items():
            lines.append(f"{title}:")
            for name in members:
                usage = " ".join([self.commands[name].prog, *must_be_given(self.commands[name])])
                shown, text = " " * _INDENT + usage, members[name].SUMMARY
                if len(shown) < _WIDTH:
                    lines.append(f"{shown:<{_WIDTH}}{text}")
                else:
                    lines += [shown, " " * _WIDTH + text]
            lines.append("")
        return "\n".join(lines)


def _commands() -> Iterator[tuple[str, Command]]:
    for members in _GROUPS.values():
        yield from members.items()
