"""Arguments of commands, built from the table of options."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn, get_args

from ledgerbeam.errors import UsageError
from ledgerbeam.pipelines.calls.call_spec import REQUIRED, Argument, CallSpec, Row, rows_of, words_of
from ledgerbeam.pipelines.calls.options import CONSOLE, FUNCTION, PYTHON, SOURCES

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


def add_base_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command."""
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")


def set_usage(parser: argparse.ArgumentParser) -> None:
    """Set the usage line to the required arguments; the full list of options is below it."""
    parser.usage = " ".join([parser.prog, *must_be_given(parser), "[OPTION ...]"])


def must_be_given(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the required arguments and options of a command."""
    for action in parser._actions:  # noqa: SLF001 - argparse has no public list of them
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            yield "|".join(action.choices)
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
        _add_option(parser, name, row, _Words(rows), default=row.read(name, row.option.default))


def add_call(parser: argparse.ArgumentParser, spec: CallSpec) -> None:
    """Add the arguments and options of a call. An option that is not given is absent: the call has its default."""
    parser.argument_default = argparse.SUPPRESS
    words = _Words(spec.rows, spec.arguments)
    groups: dict[str, Group] = {}

    def group_of(title: str) -> Group:
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        return groups[title]

    for one in spec.arguments:
        group = group_of(SOURCES) if one.name in _SOURCES else parser
        # The default keeps argparse from asking for a value.
        several: dict[str, Any] = {"nargs": "*", "default": argparse.SUPPRESS} if one.several else {}
        group.add_argument(one.name, metavar=one.metavar, help=words.help_of(one.text), **several)
    for name, row in spec.rows.items():
        if row.option.group != PYTHON:
            _add_option(group_of(row.option.group), name, row, words, default=argparse.SUPPRESS)
    for one in spec.arguments:
        if one.flag:
            more = words.help_of(one.flag_text)
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


def required_of(spec: CallSpec) -> Iterator[str]:
    """Yield the required arguments and options of a call, as `must_be_given` does for its parser."""
    for one in spec.arguments:
        several = f"{one.metavar}..." if one.name == "patterns" else f"[{one.metavar} ...]"
        yield several if one.several else one.metavar
    for name, row in spec.rows.items():
        if row.option.default is REQUIRED:
            yield f"{flag_of(name)} {row.option.metavar}"


def flag_of(name: str) -> str:
    """Return the flag of an option."""
    return f"--{name.rstrip('_').replace('_', '-')}"


class _Words:
    """Descriptions of options for help: names of options, in backquotes, become flags such as ``--to``."""

    def __init__(self, rows: Mapping[str, Row], arguments: tuple[Argument, ...] = ()) -> None:
        self._names = {name: flag_of(name) for name in rows} | {one.name: one.metavar for one in arguments}

    def help_of(self, text: str, default: str = "") -> str:
        """Return a description in the format of argparse."""
        whole = text + (default and f" (default: {default})")
        plain = _QUOTED.sub(lambda match: self._names.get(match[1], match[1]), whole)
        return plain.replace("%", "%%").replace("{choices}", "%(choices)s")


def _add_option(group: Group, name: str, row: Row, words: _Words, default: Any) -> None:
    hint, option = row
    kinds = get_args(hint) or (hint,)
    flag: dict[str, Any] = {"dest": name, "default": default, "help": words.help_of(option.text, option.default_text)}
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
