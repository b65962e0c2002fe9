"""Parser and synopsis of the whole command line, with the table of all commands."""

from __future__ import annotations

import argparse
import textwrap
from functools import partial
from importlib import import_module
from itertools import chain

from ledgerbeam._base.redaction import command_without_secrets
from ledgerbeam._base.version import __version__
from ledgerbeam.errors import UsageError
from ledgerbeam.pipelines.calls import MODULES as CALL_MODULES
from ledgerbeam.pipelines.calls.call import spec_of
from ledgerbeam.pipelines.cli.arguments import (
    Command,
    Parser,
    add_base_options,
    add_call,
    must_be_given,
    required_of,
    set_usage,
)

_GROUPS = {
    "jobs (run again, they do only the missing tasks)": (
        *("index", "map", "annotate", "select", "decontaminate", "convert", "tokenize", "materialize", "split"),
    ),
    "exchanges (jobs of several stages; each can be restarted)": (
        *("sort", "shuffle", "repartition", "group", "join", "dedup"),
    ),
    "flows (jobs that read the outputs of earlier jobs)": ("plan", "run"),
    "many hosts": ("launch",),
    "datasets": ("merge", "publish"),
    "sources and their indexes": ("verify", "show", "schema"),
    "ledgers": ("ledger",),
    "shells": ("completion",),
}

_NAMES = tuple(chain.from_iterable(_GROUPS.values()))
_FULL_NAMES = {"verify": "index verify"}  # names of two words that help shows for commands
# Commands by their two words. The second word is not read as a source, because its name has no format.
_TWO_WORDS = {("index", "verify"): "verify"}
SHELLS = ("bash", "zsh", "tcsh")

# Metavars of values that a shell completes with names of files, or of folders.
_FILES = frozenset({"FILE", "PATTERN", "PREFIX", "SOURCE"})
_FOLDERS = frozenset({"LEDGER", "URL"})

_WIDTH = 54
_INDENT = 2


def build_parser(only: str | None = None, *, brief: bool = False) -> argparse.ArgumentParser:
    """Return the parser of the whole command line. Parsing raises `UsageError` instead of exiting.

    Args:
        only: The command to parse; None for all commands. Their parsers take longer to build than many commands run.
        brief: Whether commands will only be listed, not parsed. Then the commands of calls have no options.
    """
    parser = _TopParser(
        prog="ledgerbeam",
        description="Restartable batch jobs over JSONL, Parquet, tar and WARC.",
        epilog="ledgerbeam COMMAND --help lists the options of a command. Beam options follow '--', for example: "
        "ledgerbeam map ... -- --runner=PrismRunner",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"ledgerbeam {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    for name in _NAMES:
        if only not in (None, name):
            continue
        if brief and name in CALL_MODULES:
            commands.choices[name] = parser
            continue
        command = _command(name)
        text = command.summary
        added = commands.add_parser(
            name,
            prog=f"{parser.prog} {_FULL_NAMES.get(name, name)}",
            help=text,
            description=f"{text[0].upper()}{text[1:]}.",
            allow_abbrev=False,
        )
        add_base_options(added)
        added.set_defaults(run=command.run, behind_dashes=None, prog=added.prog)
        command.add_arguments(added)
        takes_patterns = any(action.dest == "patterns" for action in added._actions)  # noqa: SLF001 - no public list
        added.set_defaults(takes_patterns=takes_patterns)
        set_usage(added)
        parser.commands[name] = added
    return parser


def parse_words(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parse a command line without the program's name.

    Returns:
        The parsed arguments, and the words after ``--``: Beam options, or a command.
    """
    behind: list[str] = []
    if "--" in arguments:
        cut = arguments.index("--")
        arguments, behind = arguments[:cut], arguments[cut + 1 :]
    if tuple(arguments[:2]) in _TWO_WORDS:
        arguments = [_TWO_WORDS[arguments[0], arguments[1]], *arguments[2:]]
    named = arguments[0] if arguments and arguments[0] in _NAMES else None
    args, rest = build_parser(named, brief=not any(word in _NAMES for word in arguments)).parse_known_args(arguments)
    # argparse reads positionals from one place only, but patterns may be before and after options.
    if rest and (any(word.startswith("-") for word in rest) or not (args.takes_patterns or hasattr(args, "patterns"))):
        raise UsageError(f"unrecognized arguments: {' '.join(command_without_secrets(rest))}; see: {args.prog} --help")
    if rest:
        args.patterns = [*getattr(args, "patterns", ()), *rest]
    if behind and args.behind_dashes is None:
        raise UsageError(f"{args.prog}: the command runs no Beam pipeline; leave out '--' and the words after it")
    return args, behind


def synopsis() -> str:
    """Return the synopsis of help: a line for each command with its required arguments and summary, in groups."""
    parser = build_parser(brief=True)
    return parser.synopsis() if isinstance(parser, _TopParser) else ""


class _TopParser(Parser):
    """Parser of the whole command line. Its help shows the commands in groups."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self.commands: dict[str, argparse.ArgumentParser] = {}

    def format_help(self) -> str:
        description, epilog = (textwrap.fill(str(text), 100) for text in (self.description, self.epilog))
        usage = f"usage: {self.prog} [--help] [--version] COMMAND ..."
        return f"{usage}\n\n{description}\n\n{self.synopsis()}\n{epilog}\n"

    def synopsis(self) -> str:
        """Return the lines of all commands, in their groups."""
        lines: list[str] = []
        for title, members in _GROUPS.items():
            lines.append(f"{title}:")
            for name in members:
                command = self.commands.get(name)
                words = required_of(spec_of(name)) if command is None else must_be_given(command)
                prog = f"{self.prog} {_FULL_NAMES.get(name, name)}"
                shown, text = " " * _INDENT + " ".join([prog, *words]), _command(name).summary
                if len(shown) < _WIDTH:
                    lines.append(f"{shown:<{_WIDTH}}{text}")
                else:
                    lines += [shown, " " * _WIDTH + text]
            lines.append("")
        return "\n".join(lines)


def _command(name: str) -> Command:
    """Return a command; imports its module."""
    if name in CALL_MODULES:
        spec = spec_of(name)
        return Command(spec.summary, partial(add_call, spec=spec), partial(_run_call, name))
    if name == "completion":
        return Command("print the completion script of a shell", _add_completion, _print_completion)
    module = import_module(f"{__package__}.{name if name in ('launch', 'ledger') else 'commands'}")
    return module.COMMANDS[name]


def _run_call(name: str, args: argparse.Namespace, beam_args: list[str]) -> int:
    from ledgerbeam.pipelines.cli.call import run_call

    return run_call(name, args, beam_args)


def _add_completion(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(only_prints=True)
    parser.add_argument("shell", metavar="|".join(SHELLS), choices=SHELLS, help="shell of the script")
    parser.epilog = 'for example, in ~/.bashrc: eval "$(ledgerbeam completion bash)"'


def _print_completion(args: argparse.Namespace, _: list[str]) -> int:
    import shtab

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
