"""Steps of a flow: reading and checking the table of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, NamedTuple, NoReturn

from ledgerbeam._base.names import ASIDE
from ledgerbeam._base.redaction import without_secrets
from ledgerbeam.errors import LedgerbeamError, UsageError
from ledgerbeam.io.listing.patterns import canonical_pattern
from ledgerbeam.ledger.model.job import OnJobChange
from ledgerbeam.pipelines.calls.call import spec_of
from ledgerbeam.pipelines.calls.call_spec import REQUIRED, expected_type, shown_value
from ledgerbeam.pipelines.outputs.owner import Existing
from ledgerbeam.pipelines.runners.stage_loop import PreparedCall
from ledgerbeam.sources.listing import RecordedOutputs

# The commands of steps. The value of a command's key is this parameter of its call; with None it is true.
COMMANDS: Mapping[str, str | None] = {
    "map": "function",
    "annotate": "function",
    "select": None,
    "decontaminate": None,
    "convert": None,
    "tokenize": "tokenizer",
    "pack": None,
    "split": None,
    "sort": None,
    "shuffle": None,
    "repartition": None,
    "group": "function",
    "join": None,
    "dedup": None,
}

_SEVERAL = ("map", "annotate")  # commands that take a list of functions
# Parameters of calls that concern one run, not the outputs.
RUN_OPTIONS = (
    *("dry_run", "sample", "limit_tasks", "only_failed", "only_rejected", "on_job_change", "existing"),
    *("options", "progress", "profile", "debug"),
)

# Parameters with paths or URLs.
_PATHS = (
    *("sources_from", "output", "ledger", "index_root", "base", "schema", "watch_file", "batch_schema", "against"),
    *("with_", "answers"),
)

WITH = "with_from"  # steps whose outputs are columns beside the sources, as ``with_`` names folders
_BYTES = "bytes"  # a built-in tokenizer, not a file


class Place(NamedTuple):
    """The place of a value in a flow, for messages."""

    flow: str  # path of the file, or title of the flow
    part: str = ""  # the step or table that contains the value; empty for the flow itself

    def __str__(self) -> str:
        return f"{self.flow}: {self.part}" if self.part else self.flow

    def refuse(self, key: str, expected: str, found: object, remedy: str = "") -> NoReturn:
        """Raise UsageError for the value of a key."""
        shown = found if isinstance(found, _Absent) else shown_value(key, found)
        message = f"{self}: {key}: expected {expected}, found {shown}{remedy and '; '}{remedy}"
        raise UsageError(without_secrets(message))


class _Absent:
    def __str__(self) -> str:
        return "nothing"


ABSENT = _Absent()  # the value of a missing key, in messages


class Upstream(NamedTuple):
    """A reference to the outputs of an earlier step."""

    step: str  # name of the step
    route: str = ""  # name of a route; empty for the outputs without a route

    def __str__(self) -> str:
        return f"{self.step}/{self.route}" if self.route else self.step


class Side(NamedTuple):
    """The sources of a step, or of one side of a join: patterns, or outputs of earlier steps."""

    patterns: tuple[str, ...] = ()  # patterns of files
    upstream: tuple[Upstream, ...] = ()  # outputs of earlier steps


@dataclass(frozen=True)
class FlowStep:
    """A step of a flow."""

    name: str  # name of the step
    command: str  # its command
    main: Any  # main argument of the command: a function, a list of functions or a tokenizer; None if it has none
    sides: tuple[Side, ...]  # its sources; two sides for a join
    options: Mapping[str, Any]  # options of the call
    place: Place = field(compare=False)  # its place, for messages
    columns: tuple[str, ...] = ()  # names of the steps whose outputs are columns beside its sources

    @property
    def upstream(self) -> list[Upstream]:
        """The outputs of earlier steps that the step reads."""
        return [*(one for side in self.sides for one in side.upstream), *map(Upstream, self.columns)]

    @property
    def makes_dataset(self) -> bool:
        """Whether all its outputs become one Megatron dataset."""
        return self.command == "tokenize" or self.options.get("to") == "megatron"

    def arguments(self, sides: Sequence[Sequence[Any]]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return positional arguments and options for the call. `sides` are the sources; a join has two sides."""
        match COMMANDS[self.command]:
            case "function":
                return (self.main, *sides), {**self.options}
            case None:
                return (*sides,), {**self.options}
            case name:
                return (*sides,), {**self.options, name: self.main}


DEFAULTS = "defaults"  # the table with options for all steps


def read_step(
    name: str, table: object, defaults: Mapping[str, Any], place: Place, below: Callable[[str], str]
) -> FlowStep:
    """Read the table of a step; UsageError if a key or a value is invalid. `below` makes a path absolute.

    `defaults` are options for all steps whose calls have them.
    """
    if not isinstance(table, Mapping):
        place.refuse("the step", "a table with a command and its options", table)
    # `pack` is also an option of other commands, with a size.
    named = [key for key in table if key in COMMANDS and (key != "pack" or table[key] is True)]
    if len(named) != 1:
        known = ", ".join(COMMANDS)
        found = ", ".join(named) if named else ABSENT
        place.refuse("the command", f"one key of {known}", found, 'such as map = "module:function" or sort = true')
    (command,) = named
    hints = step_options(command)
    kept = {"to"} if table.get("mark") else set()  # columns have one format
    taken = {
        key: value
        for key, value in defaults.items()
        if key in hints.keys() - kept and (key == command or key not in table)
    }
    check_options(taken, hints, Place(place.flow, DEFAULTS))
    given = taken | {key: value for key, value in table.items() if key != command}
    # A plan and a run each iterate over the values.
    options = {key: [*value] if isinstance(value, Iterator) else value for key, value in given.items()}
    sides = tuple(_sides(command, options, place, below))
    columns = _texts(WITH, options.pop(WITH, ()), place) if "with_" in hints else ()
    if len({*columns}) < len(columns):
        place.refuse(WITH, "each step once", list(columns))
    check_options(options, hints, place)
    for key in _PATHS:
        if key in options:
            options[key] = _absolute(key, options[key], below, place)
    for key, row in spec_of(command).rows.items():
        if row.option.default is REQUIRED and key in hints and key not in options and key != "output":
            place.refuse(key, "a value", ABSENT, f"ledgerbeam {command} needs this option")
    return FlowStep(name, command, _main(command, table[command], place, below), sides, options, place, columns)


def _main(command: str, value: Any, place: Place, below: Callable[[str], str]) -> Any:
    argument = COMMANDS[command]
    if argument is None:
        if value is not True:
            place.refuse(command, "true", value, "give sources and options as other keys of the step")
        return None
    if argument == "function":
        listed = command in _SEVERAL and isinstance(value, (list, tuple)) and value
        for one in value if listed else [value]:
            if not (callable(one) or (isinstance(one, str) and ":" in one)):
                place.refuse(
                    command, "module:function" + (" or a list of functions" if command in _SEVERAL else ""), one
                )
        return value
    if not isinstance(value, (str, PathLike)):
        place.refuse(command, f"the path of a {argument}", value)
    return value if value == _BYTES else below(str(value))


def _sides(command: str, options: dict[str, Any], place: Place, below: Callable[[str], str]) -> Iterator[Side]:
    """Remove the keys of the sources from the options, and yield the sources of each side."""
    if command == "join":
        for side in ("left", "right"):
            yield _side(options, side, f"{side}_from", place, below)
    elif "sources_from" in options:
        for key in {"sources", "from"} & options.keys():
            place.refuse(key, "no such key with sources_from", options[key], "leave one of the two out")
        yield Side()
    else:
        yield _side(options, "sources", "from", place, below)


def _side(options: dict[str, Any], patterns: str, upstream: str, place: Place, below: Callable[[str], str]) -> Side:
    given = [key for key in (patterns, upstream) if key in options]
    if len(given) != 1:
        found = " and ".join(given) if given else ABSENT
        place.refuse(patterns, f"{patterns} = [patterns] or {upstream} = a step (one of the two)", found)
    texts = _texts(given[0], options.pop(given[0]) or None, place)
    if given[0] == patterns:
        return Side(patterns=tuple(_pattern(one, below) for one in texts))
    read = tuple(Upstream(*one.split("/", 1)) for one in texts)
    for one in read:
        if one.route in ASIDE:
            place.refuse(
                given[0], "a step or one of its routes", str(one), "a step cannot read rejected or dropped records"
            )
    if len({*read}) < len(read):
        place.refuse(given[0], "each step or route once", list(texts))
    return Side(upstream=read)


def _texts(key: str, value: Any, place: Place) -> tuple[str, ...]:
    """Return a text, or the texts of a list. UsageError: the value is neither."""
    texts = [value] if isinstance(value, (str, PathLike)) else value
    if not isinstance(texts, (list, tuple)) or not all(isinstance(one, (str, PathLike)) for one in texts):
        place.refuse(key, "a text or a list of texts", value)
    return tuple(map(str, texts))


def _pattern(text: str, below: Callable[[str], str]) -> str:
    whole = below(text)
    if whole != text:
        canonical_pattern(text, below("").rstrip("/"))  # the folder is no pattern
    return whole


def _absolute(key: str, value: Any, below: Callable[[str], str], place: Place) -> Any:
    """Return a path or a list of paths as absolute paths, and None as None."""
    if value is None:
        return None
    if not isinstance(value, (str, PathLike)):
        return [_absolute(key, one, below, place) for one in value]
    if not str(value):
        place.refuse(key, "a path or a URL", value)
    return below(str(value))


def step_options(command: str) -> dict[str, Any]:
    """Return the options that a step of a command may have, with their types."""
    taken = {COMMANDS[command], *RUN_OPTIONS}
    return {key: row.hint for key, row in spec_of(command).rows.items() if key not in taken}


def check_defaults(defaults: Mapping[str, Any], place: Place) -> None:
    """Raise UsageError for a default that no command has as an option. Each step checks the values that it uses."""
    hints: dict[str, Any] = {}
    for command in COMMANDS:
        for key, hint in step_options(command).items():
            hints[key] = hints.get(key, hint) | hint
    check_options(defaults, hints, Place(place.flow, DEFAULTS))


def check_options(options: Mapping[str, Any], hints: Mapping[str, Any], place: Place) -> None:
    """Raise UsageError for an unknown key, or for a value of a wrong type."""
    for key, value in options.items():
        if key in RUN_OPTIONS:
            place.refuse(
                key,
                "no such key",
                value,
                "a step cannot have it; for the options of a whole flow see ledgerbeam run --help",
            )
        if key in COMMANDS.values():
            place.refuse(key, "no such key", value, "give it as the value of the command")
        if key not in hints:
            place.refuse(key, f"one of {', '.join(sorted(hints))}", key)
        if expected := expected_type(value, hints[key]):
            place.refuse(key, expected, value)


@dataclass(frozen=True, kw_only=True)
class FlowRunOptions:
    """Options of a run of a flow. None leaves the value to the step."""

    on_job_change: OnJobChange = "restart"  # what happens to completed work of a step whose function or options changed
    existing: Existing | None = None  # what to do with foreign shards in the output folders; None refuses them
    workers: int | None = None  # number of local worker processes
    log_level: str | None = None  # lowest level of the log messages of functions that are shown
    options: tuple[str, ...] = ()  # Beam options
    debug: bool = False  # whether errors have complete tracebacks

    def given(self) -> dict[str, Any]:
        """Return the given options, by their names in calls."""
        found = {"workers": self.workers, "log_level": self.log_level, "existing": self.existing}
        fixed = {"on_job_change": self.on_job_change, "options": self.options, "debug": self.debug}
        return {**{key: value for key, value in found.items() if value is not None}, **fixed}


@dataclass(frozen=True)
class PreparedStep:
    """A checked step with its call, which has not run yet."""

    step: FlowStep  # the step
    call: PreparedCall  # its call
    # The names of the steps that it reads, by their outputs.
    reads: Mapping[RecordedOutputs, str] = field(default_factory=dict)
    # Makes the call again, when the columns exist that earlier steps write; None for a step without such columns.
    again: Callable[[], PreparedCall] | None = None
    problem: UsageError | None = None  # the error of columns that are not there yet, for which the call has no columns

    @property
    def waits_for(self) -> list[str]:
        """The names of the steps that must be complete before this one starts."""
        return [one.step for one in self.step.upstream]

    @property
    def reads_files_of(self) -> set[str]:
        """The names of the steps whose files it reads without their ledgers: columns, or a dataset."""
        return {*self.waits_for} - {*self.reads.values()}

    @property
    def name(self) -> str:
        """The name of the step."""
        return self.step.name


@contextmanager
def errors_at(place: Place) -> Iterator[None]:
    """Put the place in front of the messages of errors that the body raises."""
    try:
        yield
    except LedgerbeamError as error:
        if error.args and not str(error.args[0]).startswith(str(place)):
            error.args = (without_secrets(f"{place}: {error.args[0]}"), *error.args[1:])
        raise
