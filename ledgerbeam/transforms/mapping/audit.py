"""Audit of one finished task: compute its results again and compare them with its published outputs.

A restart ends with the same bytes only if the function of a job is pure. The audit calls it in a process that has
mapped nothing else, with the records in reverse order. A result that depends on earlier records, random numbers, the
clock or the process then differs.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, closing, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import zip_longest
from typing import Any

import orjson

from ledgerbeam._base.names import ASIDE
from ledgerbeam._base.redaction import without_secrets
from ledgerbeam.errors import LedgerbeamError
from ledgerbeam.io import Options, Reader, ShardEncoder
from ledgerbeam.io.any_source import open_any
from ledgerbeam.io.formats.format import is_columnar, json_value
from ledgerbeam.ledger import FailedTask, Output, Task
from ledgerbeam.ledger.answer_files import AnswersPlace
from ledgerbeam.ledger.answer_log import TaskLog
from ledgerbeam.ledger.answers import NoAnswerError, answers_beside
from ledgerbeam.ledger.model.identity import content_checksum
from ledgerbeam.ledger.selection import AuditAnswer, AuditRequest
from ledgerbeam.sources import Cut, Sources, TaskLimits
from ledgerbeam.transforms.chain.base import ChainValues
from ledgerbeam.transforms.chain.read import ReadStep
from ledgerbeam.transforms.chain.schedule import StreamedTasks
from ledgerbeam.transforms.mapping.function import FunctionOfTask
from ledgerbeam.transforms.mapping.outcomes import NotRecomputedError, Recomputed

SHOWN_CHARACTERS = 160  # longest excerpt of a result in a message
_BEFORE = 40  # characters of an excerpt before the first difference
_BYTES_PER_SECOND = 8e6  # estimated speed of a function, in bytes of records per second. Fast functions map more.
_SMALL_STREAM = 64 * 2**20  # maximum bytes of a stream whose last task is audited; of a larger one, the first tasks are
_NEIGHBOURS = 64  # number of following results that are searched for a result which one side lacks


@dataclass(frozen=True)
class AuditedWork:
    """The parts of a job that its audit needs. Picklable."""

    function: FunctionOfTask  # computes the results of a task
    encoder: ShardEncoder  # encodes the results as the files of a shard
    sources: Sources
    limits: TaskLimits  # the size of a task
    output: str  # URL of the folder of the outputs
    storage_options: Options  # passed to fsspec unchanged
    answers: AnswersPlace | None = None  # the stored answers of the job


def audit_task(work: AuditedWork, request: AuditRequest) -> AuditAnswer:
    """Audit one finished task of a source, if the source has any. LedgerbeamError: it cannot be divided into tasks."""
    source = request.source.source
    kind = work.sources.kind_of(source)
    cut = kind.cut(source, work.limits)
    done = [
        (number, task)
        for number, task in enumerate(cut.tasks())
        if task.node not in request.audited and (request.is_complete or request.source.has_done(task))
    ]
    if not done:
        return AuditAnswer()
    is_near = cut.stream is None or source.size <= _SMALL_STREAM  # a stream is read up to the task
    number, task = done[-1 if request.newest and is_near else 0]
    outputs = [output for output in request.outputs if output.first == task.start and output.route not in ASIDE]
    function = work.function.with_storage_options(work.storage_options)
    function = function.isolated() if request.isolated else function
    part = task if request.seconds is None or not kind.any_part else _last_part(cut, task, work, request.seconds)
    planned = part if cut.stream is None else StreamedTasks((part,), (cut.stream.places[number],), cut.stream.format)
    answers = replace(work.answers, replays=True) if work.answers is not None and function.is_async else None
    if function.is_async and (answers is None or not _are_stored(answers, task)):
        return AuditAnswer()  # a call may cost money
    values = ChainValues(sources=work.sources, in_blocks=function.takes_blocks)
    reading: Any = ReadStep("reject" if function.marks else "fail").make_work(values)
    try:
        with closing(reading.process(planned)) as tasks:
            read = next(tasks)
            if isinstance(read, FailedTask):
                return AuditAnswer(task.node, problem=f"{task.name}: {read.error}")
            with nullcontext() if answers is None else answers_beside(answers):
                recomputed = function.recomputed(read, _deadline(request.seconds))
            is_whole = part is task and recomputed.first == 0
            return AuditAnswer(task.node, _difference(work, recomputed, outputs, is_whole=is_whole))
    except NoAnswerError:
        if answers is None or not _are_stored(answers, task):  # the source was completed by another launcher
            return AuditAnswer()
        problem = f"{task.name}: {function.name} made a request that has no stored answer"
        return AuditAnswer(task.node, problem=f"{problem}: it depends on more than the record, or its call had failed")
    except NotRecomputedError as error:
        return AuditAnswer(task.node, problem=str(error))
    except LedgerbeamError as error:
        return AuditAnswer(task.node, problem=f"{task.name}: {error}")


def _are_stored(answers: AnswersPlace, task: Task) -> bool:
    """Return whether there may be stored answers to calls of a task."""
    log = TaskLog(answers, task.source.id.hex(), task.start, task.stop)
    return answers.is_kept or not log.load() or bool(log.known)


def _last_part(cut: Cut, task: Task, work: AuditedWork, seconds: float) -> Task:
    """Return the task, cut to as many last records as can be mapped in `seconds`; for a stream the whole task."""
    if cut.stream is not None:
        return task
    record = cut.source.size / cut.spans[-1][1]
    left_out = task.stop - task.start - int(seconds * _BYTES_PER_SECOND / max(record, 1.0)) - 1
    left_out -= left_out % work.function.step
    return task if left_out <= 0 else task.replace(start=task.start + left_out)


def _deadline(seconds: float | None) -> Callable[[], bool]:
    """Return a function that returns True once `seconds` have passed since its first call."""
    if seconds is None:
        return lambda: False
    end = cache(lambda: time.monotonic() + seconds)  # from the first call on
    return lambda: time.monotonic() >= end()


def _difference(work: AuditedWork, recomputed: Recomputed, outputs: Sequence[Output], *, is_whole: bool) -> str:
    """Return a message about the first difference between recomputed and published results; empty for no difference."""
    encoded = {route: work.encoder.encode(records) for route, records in recomputed.datasets.items()}
    if is_whole:
        checksums = [(route, content_checksum([file.data])) for route, files in encoded.items() for file in files]
        if Counter((output.route, output.checksum) for output in outputs) == Counter(checksums):
            return ""
    with tempfile.TemporaryDirectory(prefix="ledgerbeam-audit-") as folder:
        for route in sorted({output.route for output in outputs if output.records} | encoded.keys()):
            shards = [output for output in outputs if output.route == route and output.records]
            files = {file.ending: file for file in encoded.get(route, ()) if file.records}
            for file in encoded.get(route, ()):
                with open(os.path.join(folder, f"again{file.ending}"), "wb") as copy:
                    copy.write(file.data)
            for ending in {**dict.fromkeys(files), **{_ending(shard.name, files): None for shard in shards}}:
                shard = next((one for one in shards if _ending(one.name, files) == ending), None)
                url = f"{work.output}/{shard.name}" if shard else f"{work.output}/{route}".rstrip("/")
                try:
                    with ExitStack() as readers:
                        first = None if shard is None else _opened(url, work, readers)
                        copied = os.path.join(folder, f"again{ending}")
                        again = _opened(copied, work, readers) if ending in files else None
                        if _are_equal(first, again, is_whole=is_whole):
                            continue
                        sides = _records(first), _records(again)
                        found = _first_difference(*sides, route, recomputed, is_whole=is_whole)
                except LedgerbeamError as error:  # for example parts that were merged and removed
                    if not is_whole:
                        raise
                    found = f"its bytes differ from those that were recorded (its records cannot be read: {error})"
                if found:
                    name = work.function.name
                    return f"{without_secrets(url)}: {name} returned another result when it was audited: {found}"
    return ""


def _ending(name: str, endings: Collection[str]) -> str:
    """Return the longest known ending of a file name, or the whole name."""
    return max((ending for ending in endings if name.endswith(ending)), key=len, default=name)


@dataclass(frozen=True)
class _Record:
    """A record of a file of a shard. Two records are equal if their bytes are equal."""

    data: bytes  # bytes of the record, or the JSON of a row of columns
    text: Callable[[], str] = field(compare=False)  # returns the value of the record for a message


def _opened(url: str, work: AuditedWork, readers: ExitStack) -> Any:
    encoder: Any = getattr(work.encoder, "encoder", work.encoder)  # a compressing encoder wraps the encoder of records
    configured = (encoder,) if hasattr(encoder, "open") or is_columnar(encoder) else ()
    reader = open_any(url, storage_options=work.storage_options, indexed=True, configured=configured)
    return readers.enter_context(closing(reader))


def _are_equal(first: Any, again: Any, *, is_whole: bool) -> bool:
    """Return whether the recomputed results equal the last published ones. False can also mean that it is unknown."""
    records, number = (0 if reader is None else len(reader) for reader in (first, again))
    start = records - number
    if start < 0 or (is_whole and start):
        return False
    if not number:
        return True
    if hasattr(first, "read_batch"):
        from ledgerbeam.io.columns.encode import stream_bytes  # noqa: PLC0415 - imports pyarrow

        # `equals` of tables would take -0.0 for 0.0.
        return bool(stream_bytes(first.read_batch(start, records)) == stream_bytes(again.read_batch(0, number)))
    was, now = first.read_raw(start, records), again.read_raw(0, number)
    return all(one.data == other.data for one, other in zip(was, now, strict=True))


def _records(reader: Any) -> list[_Record]:
    """Return the records of a file, in order; none without a reader."""
    raws = () if reader is None else reader.read_raw(0, len(reader))
    return [_Record(raw.data, partial(_text_of, reader, number, raw.data)) for number, raw in enumerate(raws)]


def _text_of(reader: Reader, number: int, data: bytes) -> str:
    """Return a record as JSON if its format supports that, else its bytes as text."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = repr(data)[2:-1]
    with suppress(Exception), closing(reader):  # only the message needs it
        value = reader[number]
        text = orjson.dumps(json_value(value)).decode() if hasattr(type(value), "as_json") else text
    return without_secrets("".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text))


def _first_difference(
    first: Sequence[_Record], again: Sequence[_Record], route: str, recomputed: Recomputed, *, is_whole: bool
) -> str:
    """Return a message about the first difference found from the end, where partial recomputations start."""
    origins = recomputed.origins.get(route, ())[::-1]
    found = _compared(first[::-1], again[::-1], origins, recomputed, is_whole=is_whole)
    if found is None:
        return ""
    position, *sides = found
    was, now = _shown(*sides)
    return f"{without_secrets(recomputed.place(position))}\n  first: {was}\n  again: {now}"


def _compared(
    first: Sequence[_Record],
    again: Sequence[_Record],
    origins: Sequence[int],
    recomputed: Recomputed,
    *,
    is_whole: bool,
) -> tuple[int, _Record | None, _Record | None] | None:
    """Compare results, given from last to first. `origins` has the position of the record of each result in `again`.

    Return the position of the first record whose results differ, its first result, and the recomputed one.
    """
    leaves_out = len(again) != recomputed.records - recomputed.first or (is_whole and len(first) != recomputed.records)
    for number, (was, now) in enumerate(zip_longest(first, again)):
        if was == now:
            continue
        if now is None and not is_whole:  # all recomputed results are equal
            return None
        if now is None or (was is not None and _follows(now, first, number) and not _follows(was, again, number)):
            return _left_out(number, origins, recomputed.records), was, None
        is_added = was is None or (_follows(was, again, number) and not _follows(now, first, number))
        is_other = was is not None and leaves_out and not _alike(was.data, now.data)
        return origins[number], None if is_added or is_other else was, now
    return None


def _follows(result: _Record, results: Sequence[_Record], number: int) -> bool:
    """Return whether a result is equal to one of the 64 results from `number` on."""
    return result in results[number : number + _NEIGHBOURS]


def _left_out(number: int, origins: Sequence[int], records: int) -> int:
    """Return the position of the record without a result, next to the record of result `number` - 1, which is equal."""
    after = origins[number - 1] if number else records
    before = origins[number] if number < len(origins) else -1
    return after - 1 if after - 1 > before else max(before, after) if number else max(before, 0)


def _alike(one: bytes, other: bytes) -> bool:
    """Return whether at least half of the bytes of two results are equal: they probably come from one record."""
    ahead = _common(one, other)
    behind = _common(one[ahead:][::-1], other[ahead:][::-1])
    return 2 * (ahead + behind) >= min(len(one), len(other))


def _common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return the length of the common prefix."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((number for number, (a, b) in pairs if a != b), min(len(one), len(other)))


def _shown(first: _Record | None, again: _Record | None) -> tuple[str, str]:
    """Return excerpts of two results around their first difference."""
    was, now = ("" if one is None else one.text() for one in (first, again))
    start = 0 if first is None or again is None else max(0, _common(was, now) - _BEFORE)
    return _cut(was, start, first), _cut(now, start, again)


def _cut(text: str, start: int, result: _Record | None) -> str:
    if result is None:
        return "no result"
    shown = text[start : start + SHOWN_CHARACTERS]
    return f"{'...' if start else ''}{shown}{'...' if start + SHOWN_CHARACTERS < len(text) else ''}"
