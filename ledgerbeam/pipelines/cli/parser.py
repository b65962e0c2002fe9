"""Parser and synopsis of the whole command line: the table of all commands, and arguments from the table of options."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from itertools import chain
from typing import Any, NamedTuple, NoReturn, get_args

from ledgerbeam._base.redaction import command_without_secrets
from ledgerbeam._base.version import __version__
from ledgerbeam.errors import UsageError
from ledgerbeam.pipelines.calls import MODULES as CALL_MODULES
from ledgerbeam.pipelines.calls.call import spec_of
from ledgerbeam.pipelines.calls.call_spec import REQUIRED, Argument, CallSpec, Row, rows_of, words_of
from ledgerbeam.pipelines.calls.options import CONSOLE, FUNCTION, PYTHON, SOURCES

_GROUPS = {
    "jobs (run again, they do only the missing tasks)": (
        *("index", "map", "annotate", "select", "decontaminate", "convert", "tokenize", "pack", "materialize"),
        "split",
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

Group = argparse._ArgumentGroup | argparse.ArgumentParser  # noqa: SLF001 - the type of a group has no public name

_QUOTED = re.compile(r"`([^`]+)`")
_SOURCES = ("patterns", "left", "right")  # positional arguments that help shows among the options of sources


class Command(NamedTuple):
    """A command. Its module imports its dependencies when it runs, so that help is fast."""

    summary: str  # as help shows it
    add_arguments: Callable[[argparse.ArgumentParser], None]  # sets `only_prints` for a command that only prints
    run: Callable[[argparse.Namespace, list[str]], int]  # called with the words after ``--``; returns the exit status


class Parser(argparse.ArgumentParser):
    """Parser that raises `UsageError`, so that one place prints errors and chooses the exit status."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError."""
        raise UsageError(f"{message}; see: {self.prog} --help")


def add_parser(commands: Any, name: str, text: str, **more: Any) -> argparse.ArgumentParser:
    """Add the parser of a command that `text` describes to the parsers of commands, with the options of every one."""
    description = f"{text[0].upper()}{text[1:]}."
    added: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=description, allow_abbrev=False, **more
    )
    added.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return added


def set_usage(parser: argparse.ArgumentParser) -> None:
    """Set the usage line to the required arguments; the full list of options is below it."""
    parser.usage = " ".join([parser.prog, *must_be_given(parser), "[OPTION ...]"])


_NAMED = 6  # most actions of a command that its usage names


def must_be_given(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the required arguments and options of a command."""
    for action in parser._actions:  # noqa: SLF001 - argparse has no public list of them
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            names = list(action.choices)
            yield "|".join(names if len(names) <= _NAMED else [*names[:_NAMED], "..."])
            yield from must_be_given(next(iter(action.choices.values())))
        elif not action.option_strings:
            several = {"*": f"[{action.metavar} ...]", "+": f"{action.metavar}..."}.get(str(action.nargs))
            is_sources = action.dest == "patterns"  # which a list can replace
            yield f"{action.metavar}..." if is_sources else several or str(action.metavar)
    for action in parser._actions:  # noqa: SLF001
        if action.option_strings and action.required:
            yield f"{action.option_strings[0]} {action.metavar}"


def add_json(parser: Group, text: str = "print one JSON object") -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", default=False, help=text)


def add_options(parser: argparse.ArgumentParser, options: type) -> None:
    """Add the options of a `TypedDict` to a command that has no call, with their defaults."""
    rows = rows_of(options)
    for name, row in rows.items():
        _add_option(parser, name, row, _names_of(rows), default=row.read(name, row.option.default))


def add_call(parser: argparse.ArgumentParser, spec: CallSpec) -> None:
    """Add the arguments and options of a call. An option that is not given is absent: the call has its default."""
    parser.argument_default = argparse.SUPPRESS
    names = _names_of(spec.rows, spec.arguments)
    groups: dict[str, Group] = {}

    def group_of(title: str) -> Group:
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        return groups[title]

    for one in spec.arguments:
        group = group_of(SOURCES) if one.name in _SOURCES else parser
        # The default keeps argparse from asking for a value.
        several: dict[str, Any] = {"nargs": "*", "default": argparse.SUPPRESS} if one.several else {}
        group.add_argument(one.name, metavar=one.metavar, help=_help_of(one.text, names), **several)
    for name, row in spec.rows.items():
        if row.option.group != PYTHON:
            _add_option(group_of(row.option.group), name, row, names, default=argparse.SUPPRESS)
    for one in spec.arguments:
        if one.flag:
            more = _help_of(one.flag_text, names)
            group_of(FUNCTION).add_argument(one.flag, action="append", dest=one.flag, metavar=one.metavar, help=more)
    console = group_of(CONSOLE)
    if spec.runs_beam:
        add_json(console, "print one JSON object at the end")
        console.add_argument("--quiet", action="store_true", default=False, help="no progress")
        parser.set_defaults(behind_dashes="beam options")
    else:
        add_json(console)
    beam = "Beam options follow '--', for example: -- --runner=PrismRunner" if spec.runs_beam else ""
    parser.epilog = " ".join(filter(None, [spec.epilog, beam]))


def flag_of(name: str) -> str:
    """Return the flag of an option."""
    return f"--{name.rstrip('_').replace('_', '-')}"


def _names_of(rows: Mapping[str, Row], arguments: tuple[Argument, ...] = ()) -> dict[str, str]:
    """Return what help shows in place of names of options and arguments: flags such as ``--to``, and metavars."""
    return {name: flag_of(name) for name in rows} | {one.name: one.metavar for one in arguments}


def _help_of(text: str, names: Mapping[str, str]) -> str:
    """Return a description, which has names in backquotes, in the format of argparse."""
    plain = _QUOTED.sub(lambda match: names.get(match[1], match[1]), text)
    return plain.replace("%", "%%").replace("{choices}", "%(choices)s")


def _add_option(group: Group, name: str, row: Row, names: Mapping[str, str], default: Any) -> None:
    hint, option = row
    kinds = get_args(hint) or (hint,)
    text = option.text + (option.default_text and f" (default: {option.default_text})")
    flag: dict[str, Any] = {"dest": name, "default": default, "help": _help_of(text, names)}
    if bool in kinds and option.const is None:
        flag["action"] = argparse.BooleanOptionalAction if option.default is True else "store_true"
    elif choices := [word for word in words_of(hint) if word is not None]:
        flag |= {"choices": choices, "metavar": option.metavar}
    else:
        flag["metavar"] = option.metavar
        if option.choices is not None:
            flag["choices"] = option.choices
        if option.repeats:
            flag["action"] = "append"
        else:
            flag["type"] = row.parse
        if option.const is not None:
            flag |= {"nargs": "?", "const": option.const}
    group.add_argument(flag_of(name), required=option.default is REQUIRED, **flag)


def build_parser(only: str | None = None) -> _TopParser:
    """Return the parser of the whole command line. Parsing raises `UsageError` instead of exiting.

    Args:
        only: The command to parse; None for all commands. Their parsers take longer to build than many commands run.
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
        command = _command(name)
        added = add_parser(commands, name, command.summary, prog=f"{parser.prog} {_FULL_NAMES.get(name, name)}")
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
    args, rest = build_parser(named).parse_known_args(arguments)
    # argparse reads positionals from one place only, but patterns may be before and after options.
    if rest and (any(word.startswith("-") for word in rest) or not (args.takes_patterns or hasattr(args, "patterns"))):
        raise UsageError(f"unrecognized arguments: {' '.join(command_without_secrets(rest))}; see: {args.prog} --help")
    if rest:
        args.patterns = [*getattr(args, "patterns", ()), *rest]
    if behind and args.behind_dashes is None:
        raise UsageError(f"{args.prog}: the command runs no Beam pipeline; leave out '--' and the words after it")
    return args, behind


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
                command = self.commands[name]
                shown, text = " " * _INDENT + " ".join([command.prog, *must_be_given(command)]), _command(name).summary
                if len(shown) < _WIDTH:
                    lines.append(f"{shown:<{_WIDTH}}{text}")
                else:
                    lines += [shown, " " * _WIDTH + text]
            lines.append("")
        return "\n".join(lines)


def _command(name: str) -> Command:
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
