"""A step of a flow: its table, checked, and the call that it asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, NamedTuple, NoReturn

from ledgerbeam._base.names import REJECTS
from ledgerbeam._base.redaction import without_secrets
from ledgerbeam.errors import LedgerbeamError, UsageError
from ledgerbeam.io.listing.patterns import canonical_pattern
from ledgerbeam.ledger.model.job import OnJobChange
from ledgerbeam.pipelines.calls.call import spec_of
from ledgerbeam.pipelines.calls.call_spec import REQUIRED
from ledgerbeam.pipelines.calls.option_types import expected_type, shown_value
from ledgerbeam.pipelines.outputs.owner import Existing
from ledgerbeam.pipelines.runners.prepared_call import PreparedCall
from ledgerbeam.sources.listing import RecordedOutputs

COMMANDS: Mapping[str, str | None] = {
    "map": "function",
    "convert": None,
    "tokenize": "tokenizer",
    "split": None,
    "sort": None,
    "shuffle": None,
    "repartition": None,
    "group": "function",
    "join": None,
    "dedup": None,
}
"""The commands that a step can be, each with the parameter of its call that the key of its name gives; None for none,
where the value is true."""

OF_A_RUN = (
    *("dry_run", "sample", "limit_tasks", "only_failed", "only_rejected", "on_job_change", "existing"),
    *("options", "progress", "profile", "debug"),
)
"""Parameters of calls that say how one run is done."""

_PATHS = ("sources_from", "output", "ledger", "index_root", "base", "schema", "watch_file", "batch_schema", "against")
"""Parameters that are paths or URLs."""

_BYTES = "bytes"
"""A tokenizer that is no file."""


class Place(NamedTuple):
    """Where a value stands, for messages.

    Attributes:
        flow: The file, or what stands for it.
        part: The step, or the table, in which the value stands; empty for the flow itself.
    """

    flow: str
    part: str = ""

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


ABSENT = _Absent()
"""What is found where a key is not given."""


class Upstream(NamedTuple):
    """What a step reads of an earlier one: the outputs without a route, or those of a route.

    Attributes:
        step: The name of that step.
        route: Of the route; empty for none.
    """

    step: str
    route: str = ""

    def __str__(self) -> str:
        return f"{self.step}/{self.route}" if self.route else self.step


class Side(NamedTuple):
    """What a step reads: all of it, or one side of a join.

    Attributes:
        patterns: Of files.
        upstream: What earlier steps have written, in place of patterns.
    """

    patterns: tuple[str, ...] = ()
    upstream: tuple[Upstream, ...] = ()


@dataclass(frozen=True)
class FlowStep:
    """A step of a flow.

    Attributes:
        name: Its name.
        command: What it does.
        main: The main argument of that: a function or a tokenizer; None if it has none.
        sides: What it reads: one, or the two of a join.
        options: Of the call.
        place: Where it stands.
    """

    name: str
    command: str
    main: Any
    sides: tuple[Side, ...]
    options: Mapping[str, Any]
    place: Place = field(compare=False)

    @property
    def upstream(self) -> list[Upstream]:
        """What it reads of earlier steps."""
        return [one for side in self.sides for one in side.upstream]

    @property
    def makes_dataset(self) -> bool:
        """Whether it makes one Megatron dataset of all that it writes."""
        return self.command == "tokenize" or self.options.get("to") == "megatron"

    @property
    def is_readable(self) -> bool:
        """Whether other steps can read its outputs."""
        return not self.makes_dataset and self.options.get("to") != "shar"

    def arguments(self, sides: Sequence[Sequence[Any]]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the values of the arguments and options of the call.

        Args:
            sides: The sources of each side, as the call takes them.
        """
        match COMMANDS[self.command]:
            case "function":
                return (self.main, *sides), {**self.options}
            case None:
                return (*sides,), {**self.options}
            case name:
                return (*sides,), {**self.options, name: self.main}


DEFAULTS = "defaults"
"""The table of a flow with options of all steps."""


def read_step(
    name: str, table: object, defaults: Mapping[str, Any], place: Place, below: Callable[[str], str]
) -> FlowStep:
    """Return a step by its table.

    Args:
        name: Of the step.
        table: Its keys and values.
        defaults: Options of all steps whose calls take them.
        place: Where it stands.
        below: Makes a path that is relative to the file's folder whole.

    Raises:
        UsageError: A key or a value cannot mean anything.
    """
    if not isinstance(table, Mapping):
        place.refuse("the step", "a table of a command and its options", table)
    named = [key for key in table if key in COMMANDS]
    if len(named) != 1:
        known = ", ".join(COMMANDS)
        found = ", ".join(named) if named else ABSENT
        place.refuse("the command", f"one key of {known}", found, 'such as map = "module:function" or sort = true')
    (command,) = named
    hints = step_options(command)
    taken = {key: value for key, value in defaults.items() if key in hints and (key == command or key not in table)}
    check_options(taken, hints, Place(place.flow, DEFAULTS))
    given = taken | {key: value for key, value in table.items() if key != command}
    # A plan and a run each go through the values.
    options = {key: [*value] if isinstance(value, Iterator) else value for key, value in given.items()}
    sides = tuple(_sides(command, options, place, below))
    check_options(options, hints, place)
    for key in _PATHS:
        if key in options:
            options[key] = _whole(key, options[key], below, place)
    for key, row in spec_of(command).rows.items():
        if row.option.default is REQUIRED and key in hints and key not in options and key != "output":
            place.refuse(key, f"a value, as of ledgerbeam {command}", ABSENT)
    return FlowStep(name, command, _main(command, table[command], place, below), sides, options, place)


def _main(command: str, value: Any, place: Place, below: Callable[[str], str]) -> Any:
    argument = COMMANDS[command]
    if argument is None:
        if value is not True:
            place.refuse(command, "true", value, "its sources and options have keys of their own")
        return None
    if argument == "function":
        if not (callable(value) or (isinstance(value, str) and ":" in value)):
            place.refuse(command, "module:function", value)
        return value
    if not isinstance(value, (str, PathLike)):
        place.refuse(command, f"the path of a {argument}", value)
    return value if value == _BYTES else below(str(value))


def _sides(command: str, options: dict[str, Any], place: Place, below: Callable[[str], str]) -> Iterator[Side]:
    """Take what is read out of the options, and yield it by side."""
    if command == "join":
        for side in ("left", "right"):
            yield _side(options, side, f"{side}_from", place, below)
    elif "sources_from" in options:
        for key in {"sources", "from"} & options.keys():
            place.refuse(key, "no such key beside sources_from", options[key], "leave one of them out")
        yield Side()
    else:
        yield _side(options, "sources", "from", place, below)


def _side(options: dict[str, Any], patterns: str, upstream: str, place: Place, below: Callable[[str], str]) -> Side:
    given = [key for key in (patterns, upstream) if key in options]
    if len(given) != 1:
        found = " and ".join(given) if given else ABSENT
        place.refuse(patterns, f"{patterns} = [patterns] or {upstream} = a step (one of the two)", found)
    value = options.pop(given[0])
    texts = [value] if isinstance(value, (str, PathLike)) else value
    if not isinstance(texts, (list, tuple)) or not texts or not all(isinstance(one, (str, PathLike)) for one in texts):
        place.refuse(given[0], "a text or a list of texts", value)
    if given[0] == patterns:
        return Side(patterns=tuple(_pattern(str(one), below) for one in texts))
    read = tuple(Upstream(*str(one).split("/", 1)) for one in texts)
    for one in read:
        if one.route == REJECTS:
            place.refuse(given[0], "a step or one of its routes", str(one), "rejected records are no dataset")
    if len({*read}) < len(read):
        place.refuse(given[0], "each step or route once", value)
    return Side(upstream=read)


def _pattern(text: str, below: Callable[[str], str]) -> str:
    whole = below(text)
    if whole != text:
        canonical_pattern(text, below("").rstrip("/"))  # the folder is no pattern
    return whole


def _whole(key: str, value: Any, below: Callable[[str], str], place: Place) -> Any:
    """Return a path, or several, as `below` makes them whole; None stays."""
    if value is None:
        return None
    if not isinstance(value, (str, PathLike)):
        return [_whole(key, one, below, place) for one in value]
    if not str(value):
        place.refuse(key, "a path or a URL", value)
    return below(str(value))


def step_options(command: str) -> dict[str, Any]:
    """Return the options of a command that a step may give, with their types."""
    taken = {COMMANDS[command], *OF_A_RUN}
    return {key: row.hint for key, row in spec_of(command).rows.items() if key not in taken}


def check_defaults(defaults: Mapping[str, Any], place: Place) -> None:
    """Raise UsageError for a default that no command takes; those that steps take are checked with each step."""
    hints: dict[str, Any] = {}
    for command in COMMANDS:
        for key, hint in step_options(command).items():
            hints[key] = hints.get(key, hint) | hint
    check_options(defaults, hints, Place(place.flow, DEFAULTS))


def check_options(options: Mapping[str, Any], hints: Mapping[str, Any], place: Place) -> None:
    """Raise UsageError for a key that is no option, or a value that is not of the type of its option.

    Args:
        options: Values by key.
        hints: The types of all options, by key.
        place: Where the keys stand.
    """
    for key, value in options.items():
        if key in OF_A_RUN:
            place.refuse(key, "no such key", value, "it is of a run: see ledgerbeam run --help")
        if key in COMMANDS.values():
            place.refuse(key, "no such key", value, "the key of the command has it")
        if key not in hints:
            place.refuse(key, f"one of {', '.join(sorted(hints))}", key)
        if expected := expected_type(value, hints[key]):
            place.refuse(key, expected, value)


@dataclass(frozen=True, kw_only=True)
class FlowRunOptions:
    """How the steps of a flow are run: what is None is left to the step.

    Attributes:
        on_job_change: What becomes of what a step has done once its function or its options are others.
        existing: What to do with shards of others in the output folders; None refuses them.
        workers: Local worker processes.
        log_level: Show log messages of functions from this level on.
        options: Beam options.
        debug: Whether errors carry whole tracebacks.
    """

    on_job_change: OnJobChange = "restart"
    existing: Existing | None = None
    workers: int | None = None
    log_level: str | None = None
    options: tuple[str, ...] = ()
    debug: bool = False

    def given(self) -> dict[str, Any]:
        """Return those that were given, by the names of the calls."""
        found = {"workers": self.workers, "log_level": self.log_level, "existing": self.existing}
        fixed = {"on_job_change": self.on_job_change, "options": self.options, "debug": self.debug}
        return {**{key: value for key, value in found.items() if value is not None}, **fixed}


@dataclass(frozen=True)
class PreparedStep:
    """A step with the call that it asks for, checked.

    Attributes:
        step: The step.
        call: What it asks for; not done yet.
        reads: Of each step that it reads, what.
    """

    step: FlowStep
    call: PreparedCall
    reads: Mapping[RecordedOutputs, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the step."""
        return self.step.name


@contextmanager
def said_of(place: Place) -> Iterator[None]:
    """Name the step in errors of the body."""
    try:
        yield
    except LedgerbeamError as error:
        if error.args and not str(error.args[0]).startswith(str(place)):
            error.args = (without_secrets(f"{place}: {error.args[0]}"), *error.args[1:])
        raise
