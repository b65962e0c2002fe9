"""Flows: steps that read the outputs of earlier steps. A flow comes from a TOML file or is built in Python."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from os import PathLike
from typing import Any, NamedTuple, Self, Unpack, cast

from ledgerbeam._base.names import check_root
from ledgerbeam._base.redaction import refuse_secrets, register_environment, register_secrets
from ledgerbeam.errors import ColumnsNotFoundError, UsageError
from ledgerbeam.io.listing.patterns import Pattern, expand_braces, parse
from ledgerbeam.io.storage.files import read_bytes
from ledgerbeam.io.storage.urls import canonical_url
from ledgerbeam.pipelines.calls.call import begin, interruptible, prepare, public, spec_of
from ledgerbeam.pipelines.calls.call_spec import Argument, CallSpec
from ledgerbeam.pipelines.calls.options import FLOW_ARGUMENTS, FlowOptions
from ledgerbeam.pipelines.calls.values import parse_shares, texts
from ledgerbeam.pipelines.flows.plan import FlowPlan, forecast
from ledgerbeam.pipelines.flows.run import FlowRun, run_steps
from ledgerbeam.pipelines.flows.step import (
    ABSENT,
    DEFAULTS,
    WITH,
    FlowRunOptions,
    FlowStep,
    Place,
    PreparedStep,
    Upstream,
    check_defaults,
    errors_at,
    read_step,
)
from ledgerbeam.pipelines.jobs.one_stage import DatasetParts
from ledgerbeam.pipelines.runners.stage_loop import PreparedCall
from ledgerbeam.sources.listing import RecordedOutputs

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_KEYS = ("root", "steps", DEFAULTS)

OUTPUT, LEDGER = "output", "ledger"  # folders below ROOT/STEP


class Flow:
    """Steps that read the outputs of earlier steps.

        flow = Flow("flow", {
            "clean": {"map": squeeze_spaces, "sources": ["texts/*.jsonl"], "to": "jsonl"},
            "tokens": {"tokenize": "tokenizer.json", "from": "clean"},
        })
        print(flow.plan())
        flow.run().raise_for_failures()

    Relative paths start at the folder of the file, or at the working folder.

    Args:
        root: Folder or URL. The ledger of a step is ``ROOT/STEP/ledger``. Its outputs are in ``ROOT/STEP/output``,
            unless the step has the option ``output``.
        steps: A table for each step, by name. Its keys are the command (``map``, ``convert``, ``tokenize``, ``split``,
            ``sort``, ``shuffle``, ``repartition``, ``group``, ``join`` or ``dedup``) with its main argument or True;
            ``sources`` or ``from``; and options of the Python call of that name.
        defaults: Options for all steps whose commands have them.
        title: Name of the flow in messages.
        folder: Start of relative paths; None for the working folder.

    Attributes:
        root: Canonical URL of the folder.
        steps: The steps by name, each after the steps that it reads.
        title: Name of the flow in messages.

    Raises:
        UsageError: A value is invalid, or steps contradict each other. The message names the step and the key.
    """

    def __init__(
        self,
        root: str | PathLike[str],
        steps: Mapping[str, Mapping[str, Any]],
        *,
        defaults: Mapping[str, Any] | None = None,
        title: str = "the flow",
        folder: str | None = None,
    ) -> None:
        self.title = title
        self._folder = folder or os.getcwd()
        place = Place(title)
        register_environment()
        given = {} if defaults is None else _table(defaults, DEFAULTS, place)
        if not _table(steps, "steps", place):
            place.refuse("steps", "a table of steps", steps)
        for options in (given, *(one for one in steps.values() if isinstance(one, Mapping))):
            if isinstance(options.get("storage_options"), Mapping):
                register_secrets(options["storage_options"])
        if not isinstance(root, (str, PathLike)) or not str(root):
            place.refuse("root", "a folder or a URL", root)
        refuse_secrets(str(root), "the root of a flow")
        self.root = canonical_url(self._below(str(root))).rstrip("/")
        check_root(self.root)
        check_defaults(given, place)
        found = {}
        for name, table in steps.items():
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                place.refuse("steps", "names of letters, digits, _, - and .", name)
            found[name] = read_step(name, table, given, Place(title, f"step {name}"), self._below)
        self.steps: Mapping[str, FlowStep] = {name: found[name] for name in _ordered(found)}

    @classmethod
    def from_file(cls, path: str | PathLike[str]) -> Self:
        """Read a flow from the path or URL of a TOML file.

        Raises:
            UsageError: The file is not a valid flow. The message names the file, the step and the key.
            SourceError: The file cannot be read; also StorageError.
        """
        shown = os.fspath(path)
        refuse_secrets(shown, "a flow")
        url = canonical_url(shown)
        try:
            found = tomllib.loads(read_bytes(url).decode())
        except (ValueError, RecursionError) as error:  # also of numbers too long for Python
            raise UsageError(f"{shown}: invalid TOML: {error}; correct the file") from None
        place = Place(shown)
        for key in found:
            if key not in _KEYS:
                place.refuse(key, f"one of {', '.join(_KEYS)}", key, "a step is a table [steps.NAME]")
        for key in ("root", "steps"):
            if key not in found:
                place.refuse(key, "a value", ABSENT)
        folder = url.rpartition("/")[0] or "/"
        return cls(found["root"], found["steps"], defaults=found.get(DEFAULTS), title=shown, folder=folder)

    def _below(self, path: str) -> str:
        """Return a path of the flow as an absolute path, and a URL unchanged."""
        return path if "://" in path or os.path.isabs(path) else f"{self._folder}/{path}"

    def __repr__(self) -> str:
        return f"<Flow {self.title}: {', '.join(self.steps)}>"

    def plan(self, *steps: str) -> FlowPlan:
        """Return the work of the next run; see `ledgerbeam.plan_flow`."""
        return plan_flow(self, *steps)

    def run(self, *steps: str, **options: Unpack[FlowOptions]) -> FlowRun:
        """Bring the outputs of all steps up to date; see `ledgerbeam.run_flow`."""
        return run_flow(self, *steps, **options)

    def needed(self, names: Iterable[str]) -> list[str]:
        """Return the names of steps and of all steps that they read, in order. Without names, return all steps.

        Raises:
            UsageError: A name is unknown.
        """
        wanted = {*names}
        for name in wanted - self.steps.keys():
            Place(self.title).refuse("the steps", f"some of {', '.join(self.steps)}", name)
        for name in reversed([*self.steps]):
            if name in wanted:
                wanted.update(one.step for one in self.steps[name].upstream)
        return [name for name in self.steps if not wanted or name in wanted]

    def prepared(self, names: Iterable[str], how: FlowRunOptions, **more: Any) -> list[PreparedStep]:
        """Check all steps, and return the `needed` ones in order, with their calls and `more` options for each call."""
        found: dict[str, PreparedStep] = {}
        for name, step in self.steps.items():
            with errors_at(step.place):
                found[name] = self._prepared(step, found, {**how.given(), **more})
        self._check_places(found)
        return [found[name] for name in self.needed(names)]

    def _prepared(self, step: FlowStep, before: Mapping[str, PreparedStep], given: Mapping[str, Any]) -> PreparedStep:
        reads: dict[RecordedOutputs, str] = {}
        sides: list[list[Any]] = []
        for side in step.sides:
            outputs: list[Any] = []
            for one in side.upstream:
                job = before[one.step].call.job
                _check_readable(before[one.step].step, one, step)
                if step.command == "pack":
                    outputs += cast(DatasetParts, job.product()).prefixes
                    continue
                outputs.append(RecordedOutputs(job.ledger, str(job.output), one.route, f"step {one}"))
                reads[outputs[-1]] = one.step
            sides.append([*side.patterns, *outputs])
        args, options = step.arguments(sides)
        folder = f"{self.root}/{step.name}"
        output = f"{folder}/{OUTPUT}/{step.name}" if step.makes_dataset else f"{folder}/{OUTPUT}"
        named = {"output": output, "ledger": f"{folder}/{LEDGER}", **options, **given}

        def made() -> PreparedCall:
            columns = [*texts(options.get("with_", ())), *(str(before[name].call.job.output) for name in step.columns)]
            return _withdrawing(step.command, args, {**named, "with_": columns} if step.columns else named)

        if not step.columns:
            return PreparedStep(step, made(), reads)
        for name in step.columns:
            if not before[name].call.job.writes_columns:
                step.place.refuse(WITH, "steps that write columns", name)
        try:
            return PreparedStep(step, made(), reads, made)
        except ColumnsNotFoundError as error:
            # The columns may not be there yet. Until then, all records stand for those that they will select.
            rest = {key: value for key, value in named.items() if key not in ("with_", "where", "cut")}
            call = _withdrawing("convert" if step.command == "select" else step.command, args, rest)
            return PreparedStep(step, call, reads, made, error)

    def _check_places(self, found: Mapping[str, PreparedStep]) -> None:
        """Raise UsageError for two steps with a common folder, or patterns that match the outputs of a step."""
        written = []
        for step in found.values():
            for key, url in ((OUTPUT, str(step.call.job.output)), (LEDGER, step.call.job.ledger)):
                written.append(_Written(step, key, url, _as_folder(url)))
        above: list[_Written] = []  # each folder is inside the one before it
        for place in sorted(written, key=lambda place: place.folder):
            while above and not place.folder.startswith(above[-1].folder):
                above.pop()
            for other in above:
                if other.step is not place.step:
                    self._refuse_one_place(place, other)
            above.append(place)
        outputs = [place for place in written if place.key == OUTPUT]
        for one in found.values():
            for text in (pattern for side in one.step.sides for pattern in side.patterns):
                plain = [parse(expanded) for expanded in expand_braces(text)]
                for place in outputs:
                    if any(_may_match(pattern, place.folder) for pattern in plain):
                        one.step.place.refuse(
                            "sources",
                            "patterns that match no outputs of steps",
                            text,
                            f"step {place.step.name} writes below {place.shown}; to read its outputs, give "
                            f'from = "{place.step.name}"',
                        )

    def _refuse_one_place(self, *places: _Written) -> None:
        order = [*self.steps]
        first, second = sorted(places, key=lambda place: order.index(place.step.name))
        second.step.step.place.refuse(
            second.key, f"a folder apart from {first.shown}, the {first.key} of step {first.step.name}", second.shown
        )


_FLOW = Argument("flow", Any, "FILE", "flow, or its TOML file", lambda value: value)
_RUN = CallSpec("run_flow", "", FlowOptions, (_FLOW, FLOW_ARGUMENTS[1]), is_job=False)


@public(_RUN)
def run_flow(flow: Flow | str | PathLike[str], *steps: str, **options: Unpack[FlowOptions]) -> FlowRun:
    """Bring the outputs of all steps of a flow up to date.

    A run processes new and changed sources, steps with a changed function or changed options, and sources whose outputs
    are missing. It removes the outputs of sources that are gone. After a crash, the same call resumes the run.

    Returns:
        The run, with the `Result` of each step.

    Raises:
        FlowInterrupt: Ctrl-C ended the run; its state is saved. The attribute ``run`` has the results so far.
        LedgerbeamError: A step is invalid, or ended with an error after all steps that do not read its outputs.
    """
    values, console = begin(_RUN, (flow, steps), options)
    how = FlowRunOptions(**{name: getattr(values, name) for name in _RUN.rows if name != "progress"})
    found = as_flow(flow)
    made = run_steps(found.title, found.prepared(steps, how), how, console)
    for error in made.errors.values():
        raise error
    return made


@interruptible
def plan_flow(flow: Flow | str | PathLike[str], *steps: str) -> FlowPlan:
    """Return the work of the next run of a flow, with reasons. Nothing is written.

    Args:
        flow: The flow, or its file.
        steps: Names of steps. The steps that they read are included. Without names, all steps.

    Returns:
        For each step the number of sources to process, by reason: ``new``, ``changed``, ``upstream`` (an earlier step
        has written the source, or will write it), ``code`` (the function changed), ``options`` (options changed),
        ``failed``, ``open`` (started and not complete), ``lost`` (an output is missing). Also the numbers of complete
        and of withdrawn sources.

    Raises:
        LedgerbeamError: A step is invalid, or its sources cannot be listed. The message names the step.
    """
    found = as_flow(flow)
    return forecast(found.title, found.prepared(steps, FlowRunOptions()))


def as_flow(flow: Flow | str | PathLike[str]) -> Flow:
    """Return a flow, or read it from its file."""
    return flow if isinstance(flow, Flow) else Flow.from_file(flow)


def _withdrawing(command: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> PreparedCall:
    """Return a call that removes the outputs of sources that are gone."""
    call = cast(PreparedCall, prepare(spec_of(command), args, options))
    return replace(call, how=replace(call.how, withdraws=True))


def _table(value: object, key: str, place: Place) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        place.refuse(key, "a table", value)
    return value


def _ordered(steps: Mapping[str, FlowStep]) -> Iterator[str]:
    """Yield the names of steps in the given order, except that each step comes after the steps that it reads."""
    done: set[str] = set()
    for name in steps:
        path = {name: iter(steps[name].upstream)}  # each step reads the next one
        while path:
            last = next(reversed(path))
            one = next((one for one in path[last] if one.step not in done), None)
            if one is None:
                del path[last]
                if last not in done:
                    done.add(last)
                    yield last
                continue
            place = steps[last].place
            key = WITH if one.step in steps[last].columns else "from"
            if one.step not in steps:
                place.refuse(key, f"one of the steps {', '.join(steps)}", str(one))
            if one.step in path:
                names = [*path]
                circle = " -> ".join([*names[names.index(one.step) :], one.step])
                place.refuse(key, "steps without a cycle", circle, "remove one of these references")
            path[one.step] = iter(steps[one.step].upstream)


def _check_readable(step: FlowStep, one: Upstream, reader: FlowStep) -> None:
    place = reader.place
    if reader.command == "pack":
        if one.route or not step.makes_dataset:
            place.refuse("from", "a step that writes a Megatron dataset, such as tokenize", str(one))
        return
    if step.makes_dataset or step.options.get("to") == "shar":
        what = "a Megatron dataset" if step.makes_dataset else "a Shar dataset"
        place.refuse("from", "a step that another step can read", str(one), f"step {step.name} writes {what}")
    if step.command == "split":
        parts = [name for name, _ in parse_shares(step.options["parts"])]
        if one.route not in parts:
            place.refuse("from", f"a part of step {step.name}", str(one), f'give one, such as "{step.name}/{parts[0]}"')


class _Written(NamedTuple):
    """An output or ledger folder of a step."""

    step: PreparedStep
    key: str  # `OUTPUT` or `LEDGER`
    shown: str  # the folder in messages
    folder: str  # its canonical URL, with a slash at the end


def _as_folder(url: str) -> str:
    return f"{canonical_url(url).rstrip('/')}/"


def _may_match(pattern: Pattern, folder: str) -> bool:
    base = _as_folder(pattern.base)
    if base.startswith(folder):
        return True
    if pattern.is_plain or not folder.startswith(base):
        return False
    levels = folder[len(base) : -1].split("/")
    for level, part in zip(levels, pattern.parts[:-1], strict=False):
        if part.any_depth:
            return True
        if not fnmatchcase(level, part.text):
            return False
    last = pattern.parts[-1]
    return len(levels) < len(pattern.parts) or last.any_depth
