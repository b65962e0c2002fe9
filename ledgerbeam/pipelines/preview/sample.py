"""Samples: records from all sources, and what the functions of a job return for each. Nothing is written."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, islice
from typing import Any

import orjson

from ledgerbeam.errors import (
    BudgetSpentError,
    IndexMismatchError,
    IndexNotFoundError,
    LedgerbeamError,
    NotIndexableError,
    RecordError,
    SourceError,
)
from ledgerbeam.io import Reader
from ledgerbeam.io.compression.streams import decompressed
from ledgerbeam.io.formats.base import FindEnds, RecordFormat, find_line_ends, record_ends
from ledgerbeam.io.formats.format import ColumnReader, StreamSpan
from ledgerbeam.io.formats.registry import format_named
from ledgerbeam.io.formats.streamed import split_source
from ledgerbeam.io.lines.formats import JsonlFormat
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.io.storage.files import read_bytes
from ledgerbeam.ledger import FailedTask, NoneTask, Source, Task
from ledgerbeam.ledger.model.accounts import NOTHING, Statistic
from ledgerbeam.pipelines.jobs.sources import listed_files
from ledgerbeam.results import Drop, Reject, Route
from ledgerbeam.sources import FileSources, Sources
from ledgerbeam.sources.forms import RecordForm, blocks_of, listed
from ledgerbeam.sources.kind import TaskLimits
from ledgerbeam.transforms.mapping.function import MapRecords
from ledgerbeam.transforms.mapping.outcomes import TaskResults
from ledgerbeam.user_code.functions_of_job import JobFunction
from ledgerbeam.user_code.guards import describe_error, is_interrupt, no_exit
from ledgerbeam.user_code.objects import ReadyObject, UserObject

MOST_WHOLE = 64 * 2**20
"""Maximum bytes of a source that is read as a whole, if its format cannot separate records without an index."""

GROUP_RECORDS = 32  # approximate number of records read from a row group before another row group is read

LEAST_GROUPS = 4  # number of row groups that a small sample is taken from


@dataclass(frozen=True)
class Sampled:
    """A record of the sample, or the error of reading it."""

    source: Source  # source of the record
    number: int  # number of the record in the source
    records: Any = None  # the record, in the form of the records of a task
    error: str = ""  # error of reading the record or its source; empty if it was read


@dataclass
class FunctionTrial:
    """The results of one of several functions for a record of a sample, or for the results of the function before."""

    function: str  # label of the function
    received: int = 0  # number of records that it was called with
    results: dict[str, list[Any]] = field(default_factory=dict)  # results by route, as JSON values
    dropped: dict[str, int] = field(default_factory=dict)  # number of dropped records by reason
    rejected: dict[str, int] = field(default_factory=dict)  # number of rejected records by reason
    error: str = ""  # description of the exception that it raised; empty if it raised none


@dataclass
class SampleRun:
    """Result of the function for a record of the sample."""

    sampled: Sampled
    outcome: str  # ``kept``, ``dropped``, ``failed`` or ``unreadable``
    # Results by route, as they are read back from the written file.
    results: dict[str, list[Any]] = field(default_factory=dict)
    reason: str = ""  # reason of a dropped or failed record
    error: str = ""  # error message of a failed or unreadable record
    seconds: float = 0.0  # time of the function and the encoding, in seconds
    statistics: Mapping[str, Statistic] = field(default_factory=dict)
    # What each of several functions did to the record, in order; empty for one function.
    trials: Sequence[FunctionTrial] = ()


def sample_places(sizes: Iterable[int], number: int) -> Iterator[tuple[int, list[float]]]:
    """Choose places evenly over the bytes of all sources. The same sizes and number give the same places.

    Yields:
        The position of a source, and its places as shares of the source from 0 to 1, ascending.
    """
    ends = list(accumulate(sizes))
    total = ends[-1] if ends else 0
    chosen: dict[int, list[float]] = {}
    for ordinal in range(number if total else 0):
        place = (ordinal + 0.5) * total / number
        source = min(bisect_right(ends, place), len(ends) - 1)
        begin = ends[source - 1] if source else 0
        chosen.setdefault(source, []).append(min((place - begin) / (ends[source] - begin), 1.0))
    yield from chosen.items()


def sampled_records(
    opened: Sources, pages: Iterable[Page], number: int, *, sources: int | None = None, most_bytes: int | None = None
) -> Iterator[Sampled]:
    """Read records from all sources of a job: by index, or from the start of a source without an index.

    Args:
        opened: The object with which workers of the job open its sources.
        number: Maximum number of records. Fewer are read if several places are in the same record.
        sources: Maximum number of sources. Each is read, also small ones. None takes records evenly from all bytes.
        most_bytes: Approximate maximum of the total bytes. At least one record is read from each source.
    """
    found = [*listed_files(pages)]
    if (group := getattr(opened, "group", None)) is not None:  # sources of several files each
        found = group(found)
    weights = [source.size for source in found]
    if sources is not None:
        found = [found[position] for position in _some_of(weights, sources)]
        # Weights are at least the mean and at most double the total, so each source gets at least half an equal share.
        mean = sum(source.size for source in found) // max(1, len(found))
        weights = [max(source.size, mean) for source in found]
    room = None if most_bytes is None else most_bytes // max(1, len(found))
    for position, shares in sample_places(weights, number):
        source = found[position]
        try:
            if isinstance(opened, FileSources):
                yield from _of_source(opened, source, shares, room)
            else:
                yield from _of_first_span(opened, source, len(shares))
        except LedgerbeamError as error:
            yield Sampled(source, 0, error=str(error))


def _some_of(sizes: Sequence[int], number: int) -> list[int]:
    """Choose non-empty sources evenly over their bytes. If places are in the same source, choose more sources."""
    chosen: set[int] = set()
    left = [position for position, size in enumerate(sizes) if size]
    while left and len(chosen) < number:
        places = sample_places([sizes[position] for position in left], number - len(chosen))
        chosen.update([left[place] for place, _ in places])
        left = [position for position in left if position not in chosen]
    return sorted(chosen)


def _of_first_span(opened: Sources, source: Source, number: int) -> Iterator[Sampled]:
    """Read the first records of a source that is not a file, such as a pass or shard of a graph."""
    kind = opened.kind_of(source)
    cut = kind.cut(source, TaskLimits(task_records=number))
    if not cut.spans:
        return
    start, stop = cut.spans[0]
    if cut.stream is not None:
        with kind.open_stream(cut.source, cut.stream.format) as stream:
            for place, record in enumerate(
                islice(chain.from_iterable(blocks_of(stream.read(cut.stream.places[0]))), number)
            ):
                yield Sampled(cut.source, start + place, [record])
        return
    with closing(kind.open(cut.source)) as reader:
        stop = min(stop, start + number)
        selected = getattr(reader, "numbers", None)  # of `SelectedSources`
        numbers = range(start, stop) if selected is None else selected(start, cut.spans[0][1]).tolist()[:number]
        for place, record in zip(numbers, reader.read_span(start, numbers[-1] + 1) if numbers else (), strict=False):
            yield Sampled(cut.source, place, [record])


def _of_source(files: FileSources, source: Source, shares: list[float], room: int | None) -> Iterator[Sampled]:
    columns = files.type_of(source.url).columns()
    if columns is not None:
        with closing(files.open_columns(source, columns)) as rows:
            yield from _of_groups(rows, source, len(_numbers(len(rows), source, shares, room)), files.form)
        return
    try:
        with closing(files.open_file(source)) as reader:
            numbers = _numbers(len(reader), source, shares, room)
            if files.form == "records":
                yield from list(_by_position(reader, source, numbers))
            else:
                yield from list(_one_by_one(files.kind_of(source).open(source).read_span, source, numbers))
    except (IndexNotFoundError, IndexMismatchError, NotIndexableError):
        yield from _from_beginning(files, source, len(shares), room)


def _numbers(count: int, source: Source, shares: list[float], room: int | None) -> list[int]:
    """Return the numbers of the records to read from `count` records, ascending. `room` limits their total bytes."""
    if not count:
        return []
    if room is not None:
        shares = shares[:: max(1, -(-len(shares) * source.size // max(1, count * room)))]
    return sorted({min(int(share * count), count - 1) for share in shares})


def _of_groups(reader: ColumnReader, source: Source, number: int, form: RecordForm) -> Iterator[Sampled]:
    """Read the first rows of some row groups, because reading one row costs as much as reading its neighbours too."""
    groups = [group for group, found in enumerate(reader.groups) if found.rows]
    firsts = list(accumulate((found.rows for found in reader.groups), initial=0))
    of_all = -(-number * len(groups) // max(1, len(reader)))
    some = min(len(groups), max(min(number, LEAST_GROUPS), -(-number // GROUP_RECORDS), of_all))
    for ordinal in range(some):
        group = groups[int((ordinal + 0.5) * len(groups) / some)]
        wanted = number * (ordinal + 1) // some - number * ordinal // some
        table = reader.first_rows(group, wanted)
        rows = [table.slice(place, 1) for place in range(len(table))]
        if form == "records":
            rows = [[record] for record in reader.decode_each(table, range(firsts[group], firsts[group] + len(table)))]
        for place, row in enumerate(rows, firsts[group]):
            error = row[0] if form == "records" and isinstance(row[0], RecordError) else None
            yield Sampled(source, place, row) if error is None else Sampled(source, place, error=str(error))


def _by_position(reader: Reader, source: Source, numbers: list[int]) -> Iterator[Sampled]:
    """Read records by number in few requests. If a record cannot be read, read the records one by one."""
    try:
        for number, record in zip(numbers, reader.read_many(numbers), strict=True):
            yield Sampled(source, number, [record])
    except RecordError:
        yield from _one_by_one(reader.read_span, source, numbers)


def _one_by_one(read: Callable[[int, int], Any], source: Source, numbers: list[int]) -> Iterator[Sampled]:
    for number in numbers:
        try:
            records = read(number, number + 1)
        except RecordError as error:
            yield Sampled(source, number, error=str(error))
        else:
            if len(records):
                yield Sampled(source, number, records)


def _from_beginning(files: FileSources, source: Source, number: int, room: int | None) -> Iterator[Sampled]:
    """Read the first records of a source without an index. The source is read in blocks, up to the last record.

    At least one record is read, and further records only while the total is at most `room` bytes.
    """
    kind = files.type_of(source.url).format
    options = files.storage_options
    if isinstance(kind, JsonlFormat):
        find_ends: FindEnds = find_line_ends
        ends_with_source = True
    elif isinstance(kind, RecordFormat):
        find_ends, ends_with_source = kind.find_ends, kind.ends_with_source
    elif source.size <= MOST_WHOLE:
        records = split_source(read_bytes(source.url, options), source.url, files.formats)
        if room is not None:
            number = min(number, max(1, len(records) * room // source.size))
        yield from (Sampled(source, place, [record]) for place, record in enumerate(records[:number]))
        return
    else:
        yield Sampled(source, 0, error=f"{source.url}: no index, and too large to read whole; index it first")
        return
    data = bytearray()

    def blocks() -> Iterator[bytes]:
        for block in decompressed(source.url, options):
            data.extend(block)
            yield block

    ends = chain.from_iterable(record_ends(find_ends, blocks(), source.url, ends_with_source=ends_with_source))
    found = begin = place = 0
    while found < number:
        try:
            end = int(next(ends, 0))
        except SourceError as error:  # records after a damaged record cannot be found
            yield Sampled(source, place, error=str(error))
            return
        if not end or (room is not None and found and end > room):
            return
        span = StreamSpan(place, 1, begin, end)
        try:
            records = listed(files.reading.split(kind, bytes(data[begin:end]), source.url, span))
            if len(records):
                yield Sampled(source, place, records)
                found += 1
        except RecordError as error:
            yield Sampled(source, place, error=str(error))
            found += 1
        begin, place = end, place + 1


def try_function(
    work: MapRecords,
    records: Iterable[Sampled],
    on_set_up: Callable[[float], None],
    answers: AbstractContextManager[None],
    *,
    to: str | None = None,
    tracer: Tracer | None = None,
) -> Iterator[SampleRun]:
    """Call the functions of a job with each record by itself, in this process.

    Args:
        work: The mapping function for a trial of the job, see `trial_work`.
        on_set_up: Called before the first record with the seconds of importing or building the functions.
        answers: Keeps their answers, see `ShardJob.answers_of_sample`.
        to: Each result is encoded in this format, and decoded again. None leaves it as it was returned.
        tracer: Tracer of the functions in `work`; None for no trace.

    Raises:
        BudgetSpentError: The budget of the job is spent.
    """
    with answers:
        started = time.perf_counter()
        with no_exit():
            work.set_up()
        on_set_up(time.perf_counter() - started)
        for sampled in records:
            if sampled.error:
                yield SampleRun(sampled, "unreadable", error=sampled.error)
                continue
            task = Task(sampled.source, sampled.number, sampled.number + 1, (), sampled.records)
            trials: dict[str, FunctionTrial] = {}
            if tracer is not None:
                tracer.trials = trials
            started = time.perf_counter()
            try:
                with no_exit():
                    done = work(task)
                run = _run_of(done, sampled, to)
            except BudgetSpentError:
                raise
            except LedgerbeamError as error:
                run = SampleRun(sampled, "failed", reason=type(error).__name__, error=str(error))
            run.seconds, run.trials = time.perf_counter() - started, [*trials.values()]
            yield run


def _run_of(done: Task | NoneTask | FailedTask, sampled: Sampled, to: str | None) -> SampleRun:
    match done:
        case FailedTask():
            return SampleRun(sampled, "failed", reason=done.reason, error=done.error)
        case NoneTask():
            reason = next(iter(done.counts.dropped), "") if done.counts else ""
            return SampleRun(sampled, "dropped", reason=reason, statistics=done.statistics)
    results: TaskResults = done.records
    shown = {route: _read_back(dataset, to) for route, dataset in results.datasets.items()}
    return SampleRun(sampled, "kept", shown, statistics=results.statistics)


def _read_back(records: Any, to: str | None) -> list[Any]:
    """Return results as they are read back from a file in a format; without one, as the function returned them."""
    if to is None:
        return list(records) if isinstance(records, Sequence) else [records]
    kind = format_named(to)
    data = kind.encode(records)[0].data
    return split_source(bytes(data), f"the results{kind.suffixes[0]}", [kind])


@dataclass
class Tracer:
    """Collects the results of the functions of a job in `trials`, by label and in order."""

    trials: dict[str, FunctionTrial] = field(default_factory=dict)

    def traced(self, function: JobFunction, form: RecordForm) -> JobFunction:
        """Return a function whose calls are recorded. Its argument has the form `form`."""

        @contextmanager
        def traced_call(argument: Any) -> Iterator[list[Any]]:
            """Record a call in the body, which appends its result."""
            trial = self.trials.setdefault(function.label, FunctionTrial(function.label))
            is_many = form == "arrow" or function.batch is not None
            trial.received += len(argument) if is_many else 1
            results: list[Any] = []
            try:
                yield results
            except BaseException as error:
                if not is_interrupt(error):
                    trial.error = describe_error(error)
                raise
            for result in results:
                if form == "arrow":
                    _add_rows(trial, result, len(argument))
                else:
                    for one in result if is_many and isinstance(result, (list, tuple)) else [result]:
                        _add(trial, one)

        def tracing(ready: ReadyObject) -> Callable[[Any], Any]:
            def called(argument: Any) -> Any:
                with traced_call(argument) as results:
                    results.append(ready.call(argument))
                return results[0]

            async def awaited(argument: Any) -> Any:
                with traced_call(argument) as results:
                    results.append(await ready.call(argument))
                return results[0]

            return awaited if ready.is_async else called

        return replace(function, object=_TracedObject(**vars(function.object), tracing=tracing))


@dataclass(frozen=True)
class _TracedObject(UserObject):
    tracing: Callable[[ReadyObject], Callable[[Any], Any]] = lambda ready: ready.call

    def ready(self) -> ReadyObject:
        found = super().ready()
        return replace(found, call=self.tracing(found))


def _add(trial: FunctionTrial, result: Any) -> None:
    """Add the result for one record to a trial. Results of a wrong form are added as they are."""
    match result:
        case Reject():
            _count(trial.rejected, str(result.reason))
            trial.error = trial.error or str(result.error)
        case Drop():
            _count(trial.dropped, str(result.reason))
        case _:
            kept = list(_routed(result))
            for route, value in kept:
                trial.results.setdefault(route, []).append(_as_json(value))
            if not kept:
                _count(trial.dropped, NOTHING)


def _count(counts: dict[str, int], reason: str, number: int = 1) -> None:
    counts[reason] = counts.get(reason, 0) + number


def _routed(result: Any, route: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the results in a list or a route, each with its route."""
    for one in result if isinstance(result, list) else [result]:
        if isinstance(one, Route):
            yield from _routed(one.record, str(one.name))
        elif one is not None:
            yield route, one


def _add_rows(trial: FunctionTrial, result: Any, rows: int) -> None:
    from ledgerbeam.io.columns.values import to_records  # noqa: PLC0415 - only jobs of Arrow batches import it
    from ledgerbeam.transforms.mapping.arrow_batches import rows_outcome  # noqa: PLC0415

    try:
        outcome: Any = rows_outcome(result, rows, trial.function)
    except LedgerbeamError:  # the job finds this mistake, too, and reports it
        return
    for route, table, _ in outcome.by_route():
        trial.results.setdefault(route, []).extend(map(_as_json, to_records(table)))
    for reason, number in outcome.dropped.items():
        _count(trial.dropped, reason, number)
    for _, end in outcome.rejected:
        _count(trial.rejected, end.reason)
        trial.error = trial.error or end.error


def _as_json(value: Any) -> Any:
    """Return a copy of a result as JSON. Parts that JSON cannot hold become text."""
    options = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
    try:
        return orjson.loads(orjson.dumps(without_contents(value), _text, options))
    except (TypeError, ValueError):
        return _text(value)


def _text(value: Any) -> str:
    return f"{value!r:.200}"


def without_contents(value: Any) -> Any:
    """Return the sizes of the members of a sample of a tar, by name; any other result unchanged."""
    if isinstance(value, Mapping) and any(isinstance(part, bytes) for part in value.values()):
        return {name: len(part) for name, part in value.items()}
    return value
