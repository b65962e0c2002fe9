"""The second half of an exchange: `Gather`, and what is done with the merged records of a part of a bucket."""

from __future__ import annotations

import io
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import Any, ClassVar, Self

import numpy as np

from ledgerbeam import stats
from ledgerbeam._base.redaction import printable, refuse_secrets
from ledgerbeam.errors import (
    FunctionError,
    RunFileError,
    SourceError,
    StorageError,
    UnsupportedShapeError,
)
from ledgerbeam.io import Format, canonical_url
from ledgerbeam.io.conversion import VERSION, conversion_of
from ledgerbeam.io.exchange.by import By
from ledgerbeam.io.exchange.payloads import is_json_text, record_of
from ledgerbeam.io.lines.decode import JsonLines
from ledgerbeam.ledger import FailedTask, NoneTask, Source, Task
from ledgerbeam.ledger.model.job import Json
from ledgerbeam.results import Drop
from ledgerbeam.sources.buckets import GatheredRecords
from ledgerbeam.transforms.chain.match import MatchSources
from ledgerbeam.transforms.exchange.keys import RecordKeys
from ledgerbeam.transforms.mapping.function import ConvertRecords
from ledgerbeam.transforms.mapping.outcomes import Outcome
from ledgerbeam.transforms.mapping.recomputation import NotRecomputedError, Recomputed
from ledgerbeam.transforms.mapping.task_mapping import MappingRules, TaskFailedError, TaskMapping
from ledgerbeam.user_code.errors import describe_error, failed_by, message_of
from ledgerbeam.user_code.functions import made_of, reference_of
from ledgerbeam.user_code.guards import children, end_child
from ledgerbeam.user_code.instances import ReadyObject, UserObject
from ledgerbeam.user_code.loading import Reference
from ledgerbeam.user_code.objects import OF_A_GROUP


class Gather(MatchSources):
    """Lists the buckets of run files that `Scatter` has written: ``p | Gather("runs", ledger="scattered")``.

    It begins the chain of a second pipeline in the place of `MatchSources`: each bucket is a source, and a task is a
    part of one, of about the size that `PlanTasks` says. The records of a task come in the order of their keys, then of
    their sources, then of their places there.

    When the pipeline is run, the ledger of the first one must hold all of its sources as complete. A bucket of which a
    record has changed since is gathered again, and no other.

    Args:
        runs: Folder that `Scatter` has written to.
        ledger: URL of the ledger of the pipeline that has scattered.
        whole_keys: Whether all records of a key are in one task. If not, a key with many records is cut where a task
            is full, as ``ledgerbeam sort`` does.
        keep_runs: Whether the run files stay when all is gathered. If not, they are removed, and all sources are
            scattered again once one of them has changed.

    Raises:
        UsageError: If a URL cannot be one.
    """

    def __init__(self, runs: str, *, ledger: str, whole_keys: bool = True, keep_runs: bool = False) -> None:
        super().__init__()
        self.runs = refuse_secrets(canonical_url(runs), "a folder of run files").rstrip("/")
        self.ledger = canonical_url(ledger).rstrip("/")
        self.whole_keys = whole_keys
        self.keep_runs = keep_runs

    def display_data(self) -> dict[str, Any]:
        """Show the folder in a runner's console."""
        return {"sources": printable(self.runs)}


def gathered_records(task: Task, function: str) -> GatheredRecords:
    """Return the records of a part of a bucket.

    Args:
        task: The part.
        function: What takes them, for the message.

    Raises:
        UnsupportedShapeError: The records of the task are others.
    """
    if not isinstance(task.records, GatheredRecords):
        raise UnsupportedShapeError(
            f"{function} received a {type(task.records).__name__} for {task.name}: expected what ReadTasks reads of a "
            "bucket; begin the chain with Gather, and put it directly behind ReadTasks"
        )
    return task.records


@dataclass(frozen=True)
class KeepRecords:
    """A function of one task, for `ProcessTask`, that writes the gathered records in their order.

    A record of JSONL that is written as JSONL stays as it was, byte for byte; every other one becomes what ``convert``
    makes of it.

    Attributes:
        output_format: Format that the records are written in, or its name.
    """

    output_format: str | Format

    takes_blocks: ClassVar[bool] = True

    def identity(self) -> dict[str, Json]:
        """Return what shapes the results."""
        return {"keep": self._format_name, "version": VERSION}

    def __call__(self, task: Task) -> Task | NoneTask | FailedTask:
        """Return the task with records of the format.

        Raises:
            UnsupportedShapeError: Its records are not those of a bucket.
        """
        gathered = gathered_records(task, "KeepRecords")
        if self.output_format == "jsonl":
            try:
                lines = lines_of(chain.from_iterable(part.payloads for part in gathered.merged()))
            except (SourceError, StorageError) as error:
                return failed_by(error, task, message_of(error))
            if lines is not None:
                return task.replace(records=lines) if len(lines) else NoneTask(task)
        convert = ConvertRecords(conversion_of(self._format_name), self.output_format)
        return as_bucket(convert(as_part(task)), task)

    @property
    def _format_name(self) -> str:
        return self.output_format if isinstance(self.output_format, str) else self.output_format.name


def lines_of(payloads: Iterable[bytes]) -> JsonLines | None:
    """Return records as lines of JSON; None if they are not all JSON as they are."""
    rest = iter(payloads)
    data, sizes = io.BytesIO(), array("Q")
    while some := list(islice(rest, _AT_ONCE)):
        if not is_json_text(min(some)):  # which begins with the least byte
            return None
        data.write(b"\n".join([*some, b""]))
        sizes.extend(map(len, some))
    offsets = np.zeros(len(sizes) + 1, np.uint64)
    np.cumsum(np.frombuffer(sizes, np.uint64) + np.uint64(1), out=offsets[1:])
    return JsonLines(data.getvalue(), offsets)


_AT_ONCE = 1024
"""Lines that are joined in one go."""


class GroupRecords:
    """A function of one task, for `ProcessTask`, that calls a user's function with each key and its records.

    The records are streamed: those of one key need not fit into memory, and the function need not take them all.

    Args:
        reference: ``module:function`` of a key and an iterator of records, or the function itself; it returns what a
            function of `MapRecords` may. A class is built once in each process.
        output_format: Format that the results are written in, or its name.
        by: The key by which they are scattered, as `Scatter` has it.
    """

    takes_blocks = True

    def __init__(
        self, reference: Reference | Callable[..., Any], output_format: str | Format, *, by: By | RecordKeys
    ) -> None:
        self.by = by
        self.reference = reference_of(reference)
        self.output_format = output_format if isinstance(output_format, str) else output_format.name
        self._object = UserObject(self.reference, given=OF_A_GROUP)
        self._keys = by if isinstance(by, RecordKeys) else RecordKeys.of_user(by, "hash")
        self._rules = partial(MappingRules, str(self.reference), output=output_format)
        self._ready: ReadyObject | None = None

    def __repr__(self) -> str:
        return f"GroupRecords({str(self.reference)!r}, {self.output_format!r})"

    def identity(self) -> dict[str, Json]:
        """Return what shapes the results: the function, and the user's modules that it is made of.

        Raises:
            FunctionError: If it cannot be imported.
        """
        return {"function": str(self.reference), **made_of(self.reference)}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ready": None}

    def set_up(self) -> ReadyObject:
        """Have the functions imported or built, unless this process has done so.

        Raises:
            FunctionError: One of them cannot be.
        """
        if self._ready is None:
            self._keys.set_up()
            self._ready = self._object.ready()
        return self._ready

    def __call__(self, task: Task) -> Task | NoneTask | FailedTask:
        """Return the task with what the function made of its groups.

        Raises:
            UnsupportedShapeError: Its records are not those of a bucket.
        """
        gathered_records(task, repr(self))
        ready = self.set_up()
        with ready.in_turn:
            try:
                mapping = self._mapping(ready, task)
                mapping.run()
                return as_bucket(mapping.results({}), task)
            except TaskFailedError as failed:
                return as_bucket(failed.task, task)
            except (SourceError, StorageError) as error:
                return failed_by(error, task, message_of(error))

    marks = False
    step = 1

    def with_storage_options(self, options: Mapping[str, Any]) -> Self:  # noqa: ARG002 - it reads no file
        """Return the function."""
        return self

    def recomputed(self, task: Task, is_late: Callable[[], bool]) -> Recomputed:
        """Call the function with the groups of a finished task again; see `Recomputable`."""
        ready = self.set_up()
        with ready.in_turn, stats.discarded():
            try:
                return self._mapping(ready, task).recomputed(is_late)
            except TaskFailedError as failed:
                raise NotRecomputedError(failed.task.error) from failed

    def _mapping(self, ready: ReadyObject, task: Task) -> _GroupMapping:
        rules = self._rules(call=ready.call, nan="refuse", rejects=False, invariant=True, placed=True)
        return _GroupMapping(rules, as_part(task), self._keys)


class _GroupMapping(TaskMapping):
    """The mapping of the groups of one task: a key and its records are in the place of a record.

    What is counted as read is the records, not the groups.
    """

    def __init__(self, rules: MappingRules, task: Task, keys: RecordKeys) -> None:
        super().__init__(rules, task)
        self._keys = keys
        self._key: Any = None
        self._first: Any = None
        self._keys_seen: dict[int, Any] = {}  # by position, of a recomputation

    def run(self) -> None:
        """Call the function with one group after the other."""
        call: Any = self._rules.call  # of a key and records
        for position, group in enumerate(_groups(self._task.records)):
            size_before = self._read
            if children:
                end_child()
            try:
                first = next(group)
                self._read += 1
                self._set_first(first)
                outcome = self._outcome(call(self._key, chain([first], self._counted(group))), None, position)
                for _ in self._counted(group):
                    pass  # what the function has left
                if isinstance(outcome.end, Drop):
                    self._tally.drop(outcome.end.reason, self._read - size_before)
                else:
                    self._take(outcome, position)
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is attributed to the group
                self._blame(error, position)

    def _backwards(self) -> Iterator[tuple[int, Outcome]]:
        call: Any = self._rules.call
        groups = list(map(list, _grouped(self._task.records)))
        for position in range(len(groups) - 1, -1, -1):
            if children:
                end_child()
            try:
                self._set_first(record_of(groups[position][0]))
                outcome = self._outcome(call(self._key, map(record_of, groups[position])), None, position)
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is attributed to the group
                outcome = self._as_reject(error, position)
            self._keys_seen[position] = self._key
            yield position, outcome

    def _set_first(self, record: Any) -> None:
        self._first = record
        self._key = self._keys.value(record)

    def _place(self, position: int) -> str:
        return f"{self._task.name}, the key {self._keys_seen[position]!r:.200}"

    def _like(self, record: Any) -> Any:  # noqa: ARG002 - none stands for a group
        return self._first

    def _counted(self, group: Iterator[Any]) -> Iterator[Any]:
        for record in group:
            self._read += 1
            yield record

    def _failed(self, error: BaseException, position: int) -> FailedTask:
        del position  # of the group: its key says more
        if issubclass(type(error), RunFileError | StorageError):  # `isinstance` would ask the object, too
            return failed_by(error, self._task, message_of(error))
        said = message_of(error) if type(error) is FunctionError else f"raised {describe_error(error)}"
        return failed_by(error, self._task, f"{self._task.name}: {self._name}: the key {self._key!r:.200}: {said}")


def _groups(gathered: GatheredRecords) -> Iterator[Iterator[Any]]:
    """Yield the records of each key; those of one that are left are passed over."""
    yield from (map(record_of, payloads) for payloads in _grouped(gathered))


def _grouped(gathered: GatheredRecords) -> Iterator[Iterator[bytes]]:
    """Yield the payloads of each key; those of one that are left are passed over."""
    keyed = chain.from_iterable(zip(part.keys, part.payloads, strict=True) for part in gathered.merged())
    for _, group in groupby(keyed, itemgetter(0)):
        yield map(itemgetter(1), group)


def as_part(task: Task) -> Task:
    """Return a part of a bucket as a task of its own, for names that its records are given."""
    source = task.source
    apart = Source(f"{source.url}-{task.start:06d}", source.size, source.version)
    return task.replace(source=apart, start=0, stop=0)


def as_bucket(done: Any, task: Task) -> Any:
    """Return what became of a part as what became of the task that it is."""
    if isinstance(done, Task):
        return done.replace(source=task.source, start=task.start, stop=task.stop)
    return replace(done, task=task)
