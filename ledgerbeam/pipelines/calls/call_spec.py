"""Specifications of calls: the options of a call, its signature, its reference and the check of its values."""

from __future__ import annotations

import inspect
import numbers
import operator
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from os import PathLike
from typing import Any, Literal, NamedTuple, Required, Union, get_args, get_origin

from ledgerbeam.errors import UsageError
from ledgerbeam.pipelines.calls.values import (
    OutputFormats,
    given,
    parse_columns,
    parse_count,
    parse_devices,
    parse_options,
    parse_seconds,
    parse_size,
    path,
    paths,
)

REQUIRED = inspect.Parameter.empty  # the default of an option that must be given

UNCHECKED = ("progress", "options")  # options whose types are checked where they are used: console and Beam options

# Functions that read values, by the name of the value in the help of a command.
_PARSERS: Mapping[str | None, Callable[[Any], Any]] = {
    "BYTES": parse_size,
    "ID,...": parse_devices,
    "JSON": parse_options,
    "N": parse_count,
    "NAME,...": parse_columns,
    "SECONDS": parse_seconds,
}

_REQUIRED: Any = Required
_WIDTH = 100  # characters of a line in the reference of a call

_JOB = "The same call again does only the remaining work. The command line with the same values runs the same job."
_JOB_RETURNS = "The result of the run. `Result.raise_for_failures` raises if tasks failed."
_JOB_RAISES = (
    "JobMismatchError: The ledger belongs to another job; the message lists the differences of the jobs.",
    "KeyboardInterrupt: Ctrl-C ended the run; its state is saved, and the same call resumes it.",
    "LedgerbeamError: The run ended early. Everything that was recorded stays recorded.",
    "UsageError: The options exclude each other, or a value is invalid.",
)

_SECRET = ("storage_options",)  # options whose values are never shown
_WORDS: Mapping[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    PathLike: "a path or a URL",
    Callable: "a function",
    Iterable: "a list",
    Sequence: "a list",
    Mapping: "a table",
}


class Option(NamedTuple):
    """One option of calls, commands and steps of flows."""

    group: str  # heading in the help of a command; empty for an option that the command line does not have
    metavar: str | None = None  # name of the value in the help of a command
    default: Any = None  # default value; `REQUIRED` for none
    unset: str = ""  # meaning of a default that is None or empty
    # Function that reads the value, if `metavar` and type do not decide; it raises `argparse.ArgumentTypeError`.
    parse: Callable[[Any], Any] | None = None
    more: str = ""  # sentences of the reference that the help of a command leaves out
    choices: OutputFormats | None = None  # accepted formats, of which other packages may add some
    const: Any = None  # value of the bare flag; None if the flag needs a value
    repeats: bool = False  # whether the flag may be given several times
    text: str = ""  # description, from the declaration

    @property
    def default_text(self) -> str:
        """Return the default for the help: `unset` for None, an empty value or a flag; empty for a required option."""
        if self.default in (None, (), "") or isinstance(self.default, bool):
            return self.unset
        if self.default is REQUIRED:
            return ""
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)


class Row(NamedTuple):
    """An option with its type."""

    hint: Any
    option: Option

    @property
    def parse(self) -> Callable[[Any], Any] | None:
        """The function that parses the value; None for a value that is used unchanged."""
        if self.option.parse is not None or self.option.metavar in _PARSERS:
            return self.option.parse or _PARSERS[self.option.metavar]
        kinds = [get_origin(kind) or kind for kind in get_args(self.hint)]
        if PathLike not in kinds:
            return None
        return (lambda value: paths([value])) if Iterable in kinds else path

    def read(self, name: str, value: Any) -> Any:
        """Parse a given value or a default. UsageError: it is invalid."""
        parse = self.parse
        if parse is None or (value is None and parse is not parse_options):
            return value
        return given(name, value, parse)


def rows_of(options: type, changes: Mapping[str, Mapping[str, Any]] | None = None) -> dict[str, Row]:
    """Return the options of a `TypedDict` by name and in order.

    Each field is `Annotated` with its description and an `Option`. The description is in lower case and without a full
    stop; names of options are in backquotes. `changes` replaces fields of an `Option`, by the name of the option.
    """
    rows = {}
    for name, annotated in options.__annotations__.items():
        hint, text, option = get_args(annotated)
        if get_origin(hint) is _REQUIRED:
            (hint,), option = get_args(hint), option._replace(default=REQUIRED)
        rows[name] = Row(hint, option._replace(**{"text": text, **(changes or {}).get(name, {})}))
    return rows


class Argument(NamedTuple):
    """A positional argument of a call and a command."""

    name: str
    hint: Any
    metavar: str  # name in the help of a command
    text: str  # description, as of an `Option`
    parse: Callable[[Any], Any]  # function that reads the value
    several: bool = False  # whether the argument takes any number of values
    more: str = ""  # sentences of the reference that the help of a command leaves out
    flag: str = ""  # option of a command for further values; a call takes them in a list; empty for none
    flag_text: str = ""  # description of this option


@dataclass(frozen=True)
class CallSpec:
    """One call, and the command of the same name."""

    name: str
    summary: str
    options: type  # `TypedDict` of options, see `rows_of`
    arguments: tuple[Argument, ...]  # positional arguments, in order
    is_job: bool = True  # whether the call runs a job, which a ledger makes restartable
    # Fields of `Option` that differ from the shared declaration, by option.
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    raises: tuple[str, ...] = ()  # further errors, in the form ``Error: Reason.``
    epilog: str = ""  # last line of the command's help

    @cached_property
    def rows(self) -> dict[str, Row]:
        """The options by name, in the order of their declaration."""
        return rows_of(self.options, self.changes)

    @property
    def runs_beam(self) -> bool:
        """Whether the call takes options of Beam."""
        return "options" in self.rows

    @cached_property
    def signature(self) -> inspect.Signature:
        """The signature of the call."""
        kinds = inspect.Parameter
        positional = [
            kinds(one.name, kinds.VAR_POSITIONAL if one.several else kinds.POSITIONAL_OR_KEYWORD, annotation=one.hint)
            for one in self.arguments
        ]
        named = [
            kinds(name, kinds.KEYWORD_ONLY, annotation=row.hint, default=row.option.default)
            for name, row in self.rows.items()
        ]
        return inspect.Signature([*positional, *named], return_annotation="Result")

    def reference(self, text: str) -> str:
        """Return the docstring of the call: its own text, its arguments, its result and its errors.

        `text` is the docstring as written, which may end with the sections Returns and Raises.
        """
        own, cut, sections = inspect.cleandoc(text).partition("\n\nReturns:")
        parts = [own, *([_JOB] if self.is_job else []), "Args:\n" + "\n".join(self._entries())]
        if self.is_job:
            parts += [_section("Returns", (_JOB_RETURNS,)), _section("Raises", (*self.raises, *_JOB_RAISES))]
        return "\n\n".join(parts) + cut + sections

    def _entries(self) -> Iterator[str]:
        for one in self.arguments:
            yield _entry(f"{one.name}: {sentence(one.text)} {one.more}")
        for name, (_, option) in self.rows.items():
            default = option.default_text if option.default in (None, (), "") else ""
            meaning = f" ({'None' if option.default is None else 'empty'}: {default})" if default else ""
            text = option.text.replace("{choices}", "" if option.choices is None else option.choices.shown)
            yield _entry(f"{name}: {sentence(text, meaning)} {option.more}")

    def check(self, options: Mapping[str, Any]) -> None:
        """Check the types of given values, by the name of their option. UsageError: one has another type."""
        for name, value in options.items():
            if name not in UNCHECKED and (expected := expected_type(value, self.rows[name].hint)):
                raise UsageError(f"{name}: expected {expected}, found {shown_value(name, value)}")

    def parse(self, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parsed values of all arguments and options by name; an option not given has its default."""
        values = {one.name: one.parse(value) for one, value in zip(self.arguments, arguments, strict=True)}
        for name, row in self.rows.items():
            values[name] = row.read(name, options.get(name, row.option.default))
        return values


def sentence(text: str, end: str = "") -> str:
    """Return the description of an option as a sentence."""
    return f"{text[0].upper()}{text[1:]}{end}."


def _section(title: str, entries: tuple[str, ...]) -> str:
    return "\n".join([f"{title}:", *map(_entry, entries)])


@lru_cache(None)
def _entry(text: str) -> str:
    return textwrap.fill(text.rstrip(), _WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8)


def words_of(hint: Any) -> tuple[Any, ...]:
    """Return the values of a `Literal` type, and None if the type allows it; an empty tuple for other types."""
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    values = [value for kind in kinds if get_origin(kind) is Literal for value in get_args(kind)]
    return (*values, *([None] if values and types.NoneType in kinds else []))


def expected_type(value: Any, hint: Any) -> str | None:
    """Return a description of a type, such as "a text", if a value is not of this type; None if it is."""
    return None if _fits(value, hint) else _shown(hint)


def shown_value(name: str, value: object) -> str:
    """Return the value of an option as messages show it."""
    return f"a {type(value).__name__}, not shown: it may be secret" if name in _SECRET else f"{value!r:.80}"


def _fits(value: Any, hint: Any) -> bool:
    origin, parts = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return isinstance(value, str) and value in parts
    kind = origin or hint
    if kind is int:
        return not isinstance(value, bool) and _is_whole(value)
    if kind is float:
        return not isinstance(value, bool) and isinstance(value, numbers.Real)
    if kind is types.NoneType:
        return value is None
    if kind is Callable:
        return callable(value)
    if kind in (Iterable, Sequence):
        if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, kind):
            return False
        return isinstance(value, Iterator) or all(_fits(one, parts[0]) for one in value)
    if kind is Mapping:
        return isinstance(value, Mapping) and all(
            _fits(key, parts[0]) and _fits(one, parts[1]) for key, one in value.items()
        )
    return isinstance(value, kind)


def _is_whole(value: Any) -> bool:
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def _shown(hint: Any) -> str:
    if values := words_of(hint):
        return f"one of {', '.join(map(repr, values))}"
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    kinds = [get_origin(part) or part for part in parts]
    if PathLike in kinds:  # text or not
        kinds.remove(str)
    return " or ".join(dict.fromkeys(_WORDS[kind] for kind in kinds if kind in _WORDS))
