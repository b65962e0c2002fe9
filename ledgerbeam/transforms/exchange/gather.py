"""`Gather`, the second half of an exchange, and functions over the merged records of a part of a bucket.

Between the two halves, `MergeRuns` merges a group of run files into one.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, ClassVar, Never

import numpy as np

from ledgerbeam._base.redaction import printable, refuse_secrets
from ledgerbeam.errors import FunctionError, RunFileError, SourceError, StorageError, UnsupportedShapeError
from ledgerbeam.io import Format, ShardFile
from ledgerbeam.io.conversion import VERSION, conversion_of
from ledgerbeam.io.exchange.order import By
from ledgerbeam.io.exchange.payloads import are_json_text, record_of
from ledgerbeam.io.exchange.run_file import LEVEL, SUFFIX, Cuts, encode_sorted, task_mark
from ledgerbeam.io.exchange.slices import Partition
from ledgerbeam.io.lines.jsonl import JsonLines
from ledgerbeam.io.lines.rows import ByteRows
from ledgerbeam.io.storage.urls import canonical_url
from ledgerbeam.ledger import FailedTask, NoneTask, Source, Task
from ledgerbeam.ledger.model.job import Json
from ledgerbeam.sources.buckets import GatheredRecords
from ledgerbeam.stats import Collected
from ledgerbeam.transforms.chain.plan import MatchStep
from ledgerbeam.transforms.exchange.keys import RecordKeys
from ledgerbeam.transforms.mapping.collectors import name_of
from ledgerbeam.transforms.mapping.function import ConvertRecords, FunctionOfTask, in_turn
from ledgerbeam.transforms.mapping.outcomes import Outcome
from ledgerbeam.transforms.mapping.stages import ReadyFunction
from ledgerbeam.transforms.mapping.task_mapping import MappingRules, TaskFailedError, TaskMapping
from ledgerbeam.user_code.functions import made_of, reference_of
from ledgerbeam.user_code.guards import children, describe_error, end_child, failed_by, is_interrupt, message_of
from ledgerbeam.user_code.loading import Reference
from ledgerbeam.user_code.objects import OF_A_GROUP, ReadyObject, UserObject


class GatherStep(MatchStep):
    """List the buckets in the run files that `Scatter` wrote: ``p | Gather("runs", ledger="scattered")``.

    Use it instead of `MatchSources`, at the start of a second pipeline. Each bucket is a source. A task is a part of a
    bucket, of about the size that `PlanTasks` sets. Its records come in the order of key, source and position.

    All sources must be complete in the ledger of the first pipeline when this one runs. If a record changes later, only
    its bucket is gathered again.

    Args:
        runs: Folder that `Scatter` wrote to.
        ledger: URL of the ledger of the pipeline with `Scatter`.
        whole_keys: Whether all records of a key are in one task. Otherwise a key with many records may continue in the
            next task, as in ``ledgerbeam sort``.
        keep_runs: Whether to keep the run files after all records are gathered. Otherwise they are removed, and after a
            change of any source all sources are scattered again.

    Raises:
        UsageError: If a URL is invalid.
    """

    def __init__(self, runs: str, *, ledger: str, whole_keys: bool = True, keep_runs: bool = False) -> None:
        super().__init__()
        self.runs = refuse_secrets(canonical_url(runs), "a folder of run files").rstrip("/")
        self.ledger = canonical_url(ledger).rstrip("/")
        self.whole_keys = whole_keys
        self.keep_runs = keep_runs

    def display_data(self) -> dict[str, Any]:
        return {"sources": printable(self.runs)}


@dataclass(frozen=True)
class KeepRecords:
    """A function of one task, for `ProcessTask`, that writes the gathered records in order.

    From JSONL to JSONL, records keep their bytes. Other records are converted as by ``ledgerbeam convert``.

    Attributes:
        output_format: Format of the outputs, or its name.
    """

    output_format: str | Format

    takes_blocks: ClassVar[bool] = True

    def identity(self) -> dict[str, Json]:
        """Return everything that affects the results."""
        return {"keep": name_of(self.output_format), "version": VERSION}

    def __call__(self, task: Task) -> Task | NoneTask | FailedTask:
        """Return the task with records for the format. UnsupportedShapeError: it has no records of a bucket."""
        gathered = gathered_records(task, "KeepRecords")
        if self.output_format == "jsonl":
            try:
                lines = lines_of(part.payloads for part in gathered.merged())
            except (SourceError, StorageError) as error:
                return failed_by(error, task, message_of(error))
            if lines is not None:
                return task.replace(records=lines) if len(lines) else NoneTask(task)
        convert = ConvertRecords(conversion_of(name_of(self.output_format)), self.output_format)
        return as_bucket(convert(as_part(task)), task)


class GroupRecords(FunctionOfTask):
    """A function of one task, for `ProcessTask`, that calls a user's function with each key and its records.

    Records are streamed: the records of a key need not fit into memory, and the function need not take them all.

    Args:
        reference: ``module:function`` or the function itself. It takes a key and an iterator of records and returns
            what a function of `MapRecords` returns. Each process makes one instance of a class.
        output_format: Format of the outputs, or its name.
        by: The key of `Scatter`.
    """

    def __init__(
        self, reference: Reference | Callable[..., Any], output_format: str | Format, *, by: By | RecordKeys
    ) -> None:
        self.by = by
        self.reference = reference_of(reference)
        self.output_format = name_of(output_format)
        self._object = UserObject(self.reference, given=OF_A_GROUP)
        self._keys = by if isinstance(by, RecordKeys) else RecordKeys.of_user(by, "hash")
        self._format = output_format

    def __repr__(self) -> str:
        return f"GroupRecords({str(self.reference)!r}, {self.output_format!r})"

    def identity(self) -> dict[str, Json]:
        """Return everything that affects the results: the function and the modules of its code."""
        return {"function": str(self.reference), **made_of(self.reference)}

    @property
    def name(self) -> str:
        """Name of the function, for messages."""
        return str(self.reference)

    def __call__(self, task: Task) -> Task | NoneTask | FailedTask:
        """Return the task with the results of its groups. UnsupportedShapeError: it has no records of a bucket."""
        gathered_records(task, repr(self))
        ready = self.set_up()
        with in_turn(ready):
            try:
                mapping = self._mapping_again(ready, task)
                mapping.run()
                return as_bucket(mapping.results({}), task)
            except TaskFailedError as failed:
                return as_bucket(failed.task, task)
            except (SourceError, StorageError) as error:
                return failed_by(error, task, message_of(error))

    def _load(self) -> tuple[ReadyObject, ...]:
        self._keys.set_up()
        return (self._object.ready(),)

    def _mapping_again(
        self, ready: tuple[ReadyObject, ...], task: Task, collected: Collected | None = None
    ) -> _GroupMapping:
        del collected  # the only function has no statistics of its own
        functions = [ReadyFunction(self.name, ready[0].call)]
        rules = MappingRules(functions, self._format, "refuse", rejects=False, placed=True)
        return _GroupMapping(rules, as_part(task), self._keys)


@dataclass(frozen=True)
class MergeRuns:
    """A function of one task, for `ProcessTask`, that merges its records into one run file."""

    partition: Partition  # division of the key range into buckets
    ordinal: int  # number of the merge, from 1
    level: int = LEVEL  # level of compression

    takes_blocks: ClassVar[bool] = True

    def __call__(self, task: Task) -> Task | NoneTask | FailedTask:
        """Return the task with `MergedRecords`. UnsupportedShapeError: it has no records of a bucket."""
        gathered = gathered_records(task, "MergeRuns")
        ranges, cuts = self._within
        inner = ranges[gathered.bucket]
        cuts, mark = cuts[inner.start : inner.stop - 1], task_mark(task.source.id, task.start)
        try:
            made = encode_sorted(gathered.renumbered(), cuts, self.partition.block_bytes, mark=mark, level=self.level)
        except (SourceError, StorageError) as error:
            return failed_by(error, task, message_of(error))
        found = MergedRecords(*made)
        return task.replace(records=found) if len(found) else NoneTask(task)

    @cached_property
    def _within(self) -> tuple[list[range], Cuts]:
        """The output ranges (neighbouring buckets) of each input range, and the keys at which output ranges start."""
        return self.partition.inner(self.ordinal), self.partition.cuts_of(self.ordinal + 1)


@dataclass(frozen=True)
class MergedRecords:
    """Merged records, already encoded as a run file."""

    data: bytes  # bytes of the run file
    records: int

    def __len__(self) -> int:
        return self.records


@dataclass(frozen=True)
class MergedEncoder:
    """A `ShardEncoder` that passes on `MergedRecords`, which are already encoded."""

    def encode(self, records: MergedRecords) -> list[ShardFile]:
        return [ShardFile(SUFFIX, records.data, len(records))]


def gathered_records(task: Task, function: str) -> GatheredRecords:
    """Return the records of the task, a part of a bucket. UnsupportedShapeError: the task has other records."""
    if not isinstance(task.records, GatheredRecords):
        raise UnsupportedShapeError(
            f"{function} received a {type(task.records).__name__} for {task.name}: expected records of a bucket; start "
            "the chain with Gather, and put the function directly after ReadTasks"
        )
    return task.records


def lines_of(parts: Iterable[Iterable[bytes]]) -> JsonLines | None:
    """Return payloads (records in the form of a run file) as lines of JSON; None if a payload is not JSON text."""
    data = io.BytesIO()
    sizes = [np.zeros(1, np.int64)]
    for part in parts:
        rows = ByteRows.of(part)
        if not are_json_text(rows.first_bytes()).all():
            return None
        lines = rows.joined(after=b"\n")
        if len(sizes) == 1:
            data = io.BytesIO(lines)  # copies them only if more follow
            data.seek(0, io.SEEK_END)
        else:
            data.write(lines)
        sizes.append(rows.lengths + 1)
    return JsonLines(data.getvalue(), np.cumsum(np.concatenate(sizes)).astype(np.uint64))


def as_part(task: Task) -> Task:
    """Return the task with a source whose URL names the part of the bucket: new samples are named after this URL."""
    source = task.source
    return task.replace(source=Source(f"{source.url}-{task.start:06d}", source.size, source.version), start=0, stop=0)


def as_bucket(done: Any, task: Task) -> Any:
    """Return a result for the task of `as_part` as a result for the original `task`."""
    if isinstance(done, Task):
        return done.replace(source=task.source, start=task.start, stop=task.stop)
    return replace(done, task=task)


class _GroupMapping(TaskMapping):
    """The mapping of the groups of one task: one call for each group. It counts records, not groups."""

    def __init__(self, rules: MappingRules, task: Task, keys: RecordKeys) -> None:
        super().__init__(rules, task)
        self._keys = keys
        self._key: Any = None
        self._first: Any = None
        self._keys_seen: dict[int, Any] = {}  # by position, for a recomputation

    def run(self) -> None:
        """Call the function with each group, in order."""
        for position, payloads in enumerate(_grouped(self._task.records)):
            size_before = self._read
            outcome = self._called(payloads, position)
            self._take(outcome, position, self._read - size_before)

    def _backwards(self) -> Iterator[tuple[int, Outcome]]:
        groups = list(map(list, _grouped(self._task.records)))
        for position in reversed(range(len(groups))):
            outcome = self._called(groups[position], position)
            self._keys_seen[position] = self._key
            yield position, outcome

    def _called(self, payloads: Iterable[bytes], position: int) -> Outcome:
        """Call the function with a group, and count its records."""
        call: Any = self._rules.functions[0].call  # takes a key and records
        records = self._counted(payloads)
        if children:
            end_child()
        try:
            self._first = next(records)
            self._key = self._keys.value(self._first)
            outcome = self._outcome(call(self._key, chain([self._first], records)), None, position)
            for _ in records:
                pass  # records that the function did not take
        except BaseException as error:  # noqa: BLE001 - every error is attributed to its group
            self._end_of(error, position, 0)
        return outcome

    def _counted(self, payloads: Iterable[bytes]) -> Iterator[Any]:
        for record in map(record_of, payloads):
            self._read += 1
            yield record

    def _place(self, position: int) -> str:
        return f"{self._task.name}, the key {self._keys_seen.get(position, self._key)!r:.200}"

    def _like(self, record: Any) -> Any:  # noqa: ARG002 - a group has no record of its own
        return self._first

    def _end_of(self, error: BaseException, position: int, function: int) -> Never:  # noqa: ARG002 - the key names it
        if is_interrupt(error) or type(error) is TaskFailedError:
            raise error
        message = message_of(error)
        if not issubclass(type(error), RunFileError | StorageError):  # `isinstance` could run the user's code
            what = message if type(error) is FunctionError else f"raised {describe_error(error)}"
            message = f"{self._task.name}: {self._name}: the key {self._key!r:.200}: {what}"
        raise TaskFailedError(failed_by(error, self._task, message)) from error


def _grouped(gathered: GatheredRecords) -> Iterator[Iterator[bytes]]:
    """Yield, for each key, an iterator of its payloads. The next key skips payloads that the caller has not taken."""
    keyed = chain.from_iterable(zip(part.keys, part.payloads, strict=True) for part in gathered.merged())
    for _, group in groupby(keyed, itemgetter(0)):
        yield map(itemgetter(1), group)
