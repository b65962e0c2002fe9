"""User functions of one record, as functions of one task: their mistakes named, their purity spot-checked."""

from __future__ import annotations

import copy
import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import orjson

from ledgerbeam.errors import FunctionError, NonDeterministicTaskError, RecordError
from ledgerbeam.io import Format, Sample, ShardFile
from ledgerbeam.io.conversion import CONVERSIONS
from ledgerbeam.io.formats.registry import format_named
from ledgerbeam.io.json_values import NanRule
from ledgerbeam.io.jsonl.lines import JsonLinesBuilder
from ledgerbeam.ledger import FailedTask, NoneTask, Task
from ledgerbeam.ledger.model.user_code import import_function
from ledgerbeam.ledger.model.user_errors import describe_error, failed_by, is_interrupt, message_of

__all__ = ["ConvertRecords", "MapRecords", "record_place"]

_CONVERTED = ("shar", "megatron")
"""Formats that only conversions write, which make a new value of each record."""

_OF_OBJECTS = ("jsonl", "tar")
"""Formats of which a record is an object, as a rule: a function that returns something else is hardly meant to."""

PURITY_CHECK_RECORDS = 16
PURITY_CHECK_SECONDS = 0.5
"""What of the first task of a process is mapped twice, at most: enough to see a coin tossed, and cheap for a model."""


class MapRecords:
    """A function of one record as a function of one task, for `ProcessTask`.

    The function takes a record (JSONL: the decoded value; tar: a mapping of extension to bytes) and returns a
    record, None (dropped) or a list of records. A task whose records are all dropped is filtered. Each result is
    encoded or copied before the next record is mapped: a function may return one object again and again.

    Args:
        reference: ``module:function``; imported on the worker.
        output_format: Format that the records are written in, or its name.
        check_purity: Whether the first records of each process, 16 of them and half a second at most, are mapped
            twice, and the job is ended if the results differ: a rerun could then not end with the same bytes.
        nan: What becomes of NaN and infinities in JSONL.
    """

    def __init__(
        self, reference: str, output_format: str | Format, *, check_purity: bool = True, nan: NanRule = "refuse"
    ) -> None:
        self.reference = reference
        self.output_format = output_format if isinstance(output_format, str) else output_format.name
        self._format = None if isinstance(output_format, str) else output_format
        self.nan: NanRule = nan
        self._unchecked = check_purity
        self._function: Callable[[Any], Any] | None = None

    def __repr__(self) -> str:
        return f"MapRecords({self.reference!r}, {self.output_format!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_function": None}

    def __call__(self, task: Task) -> Task | NoneTask | FailedTask:
        """Map the records of `task`.

        Raises:
            NonDeterministicTaskError: If the function gives another result for the same record.
        """
        outputs = self._collector()
        started = time.monotonic()
        for position, record in enumerate(task.records):
            twin = _twin(record) if self._unchecked else None
            try:
                added = self._map(record, task, position, outputs)
                again = None if twin is None else self._map(twin, task, position, self._collector())
            except BaseException as error:
                if is_interrupt(error):
                    raise
                return self._failed(error, task, position)
            if self._unchecked:
                if twin is not None and again != added:
                    raise self._impure(task, position)
                elapsed = time.monotonic() - started
                self._unchecked = elapsed < PURITY_CHECK_SECONDS and position + 1 < PURITY_CHECK_RECORDS
        self._unchecked = False
        try:
            records = outputs.finish()
        except RecordError as error:
            return FailedTask(task, type(error).__name__, f"{task.name}: {self.reference}: {error}")
        return task.replace(records=records) if len(records) else NoneTask(task)

    def _load(self) -> Callable[[Any], Any]:
        return import_function(self.reference)

    def _collector(self) -> _Outputs:
        if self.output_format == "jsonl":
            return JsonLinesBuilder(self.nan)
        if self.output_format == "tar":
            return _Samples()
        if self.output_format in _CONVERTED:
            return _Values()
        return _Copies(format_named(self.output_format) if self._format is None else self._format)

    def _map(self, record: Any, task: Task, position: int, outputs: _Outputs) -> list[Any]:
        """Call the function on one record, and have its results taken; return what stands for each."""
        if self._function is None:
            self._function = self._load()
        result = self._function(record)
        if result is None:
            return []
        results = result if issubclass(type(result), list) else [result]  # `isinstance` would ask the object, too
        for value in results:
            if type(value) is not dict:
                self._check(value, record)
        if self.output_format == "tar":
            results = _as_samples(results, record, task, position)
        return [outputs.add(value) for value in results]

    def _check(self, value: Any, record: Any) -> None:
        """Raise FunctionError for a result that is no record, or hardly meant to be one."""
        found = f"{self.reference} returned a {type(value).__name__}"
        expected = "expected a record, None or a list of records"
        if isinstance(value, tuple | set | Iterator):
            raise FunctionError(f"{found}: {expected}")
        if isinstance(value, bool | np.bool_) and not isinstance(record, bool):
            raise FunctionError(
                f"{found} ({value}): {expected}; to keep some records, `return record if ... else None`"
            )
        if self.output_format not in _OF_OBJECTS:
            return
        if _is_object(record) and not _is_object(value) and not isinstance(value, list):
            raise FunctionError(
                f"{found} for a record that is a {type(record).__name__}: {expected}; return the whole record, for "
                "example {**record, 'name': value}, and leave None out of a list"
            )

    def _failed(self, error: BaseException, task: Task, position: int) -> FailedTask:
        place = record_place(task, position)
        if type(error) in (FunctionError, RecordError):
            return failed_by(error, task, f"{place}: {message_of(error)}")
        return failed_by(error, task, f"{place}: {self.reference} raised {describe_error(error)}")

    def _impure(self, task: Task, position: int) -> NonDeterministicTaskError:
        return NonDeterministicTaskError(
            f"{record_place(task, position)}: {self.reference} returned two different results for the same record, "
            "so a restarted job could not end with the bytes of a clean one; make it a pure function of the record "
            "(seed its random numbers from the record, take no time stamps), or pass --no-purity-check"
        )


class ConvertRecords(MapRecords):
    """A conversion of one record as a function of one task, for `ProcessTask`.

    Args:
        conversion: Its name in `io.conversion.CONVERSIONS`.
        output_format: Name of the format that the records are written in.
    """

    def __init__(self, conversion: str, output_format: str) -> None:
        super().__init__(f"convert:{conversion}", output_format, check_purity=False)
        self._conversion = conversion

    def _load(self) -> Callable[[Any], Any]:
        return CONVERSIONS[self._conversion]


class _Outputs(Protocol):
    """Takes results as they are at that moment; the function may change them afterwards."""

    def add(self, value: Any) -> Any:
        """Take a result; return what stands for it when results are compared."""

    def finish(self) -> Any:
        """Return what was taken, as the records of a task."""


class _Samples:
    def __init__(self) -> None:
        self._samples: list[Sample] = []

    def add(self, value: Sample) -> Any:
        self._samples.append(value)
        return value.key, list(value.items())

    def finish(self) -> list[Sample]:
        return self._samples


class _Values:
    """Takes results of conversions, which make a new value of each record."""

    def __init__(self) -> None:
        self._values: list[Any] = []

    def add(self, value: Any) -> Any:
        self._values.append(value)
        return value

    def finish(self) -> list[Any]:
        return self._values


class _Copies:
    """Takes copies of results, which the format encodes at the end."""

    def __init__(self, kind: Format) -> None:
        self._format = kind
        self._values: list[Any] = []

    def add(self, value: Any) -> Any:
        copied = copy.deepcopy(value)
        self._values.append(copied)
        return _AsWritten(self._format, copied)

    def finish(self) -> list[Any]:
        return self._values


class _AsWritten:
    """A result that is compared by the bytes that it is written as: equality of any other kind may be anything."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, kind: Format, value: Any) -> None:
        self._format = kind
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _AsWritten) and self._encoded() == other._encoded()

    def _encoded(self) -> list[ShardFile] | None:
        try:
            return self._format.encode([self._value])
        except Exception:  # noqa: BLE001 - `WriteTasks` reports what cannot be encoded
            return None


def _twin(record: Any) -> Any:
    """Return a copy of a record, None of one that is nested too deeply to be copied."""
    try:
        return copy.deepcopy(record)
    except RecursionError:
        return None


def _is_object(value: Any) -> bool:
    return isinstance(value, Mapping | orjson.Fragment) or dataclasses.is_dataclass(value)


def _as_samples(results: list[Any], record: Any, task: Task, position: int) -> list[Sample]:
    key = record.key if isinstance(record, Sample) else _record_key(task, position)
    if len(results) == 1:
        return [_as_sample(results[0], key, key)]
    return [_as_sample(value, key, f"{key}-{ordinal}") for ordinal, value in enumerate(results)]


def _as_sample(value: Any, origin: str, default_key: str) -> Sample:
    """Return a mapping of extension to bytes as a sample of its own; text is encoded as UTF-8.

    Its key is what it names as ``__key__``, else its own if it is a sample of another key than its `origin`.
    """
    if not isinstance(value, Mapping):
        raise FunctionError(f"expected a mapping of extension to bytes, found {type(value).__name__}")
    own = value.key if isinstance(value, Sample) and value.key != origin else default_key
    key = value.get("__key__", own)
    members: dict[str, bytes] = {}
    for extension, content in value.items():
        if extension == "__key__":
            continue
        data = content.encode() if isinstance(content, str) else content
        if not isinstance(data, bytes | bytearray | memoryview):
            raise FunctionError(f"extension {extension!r}: expected bytes, found {type(content).__name__}")
        members[str(extension)] = bytes(data)
    return Sample(str(key), members)


def _record_key(task: Task, position: int) -> str:
    """Name a sample that came from a format without keys, by its source and its place in it."""
    stem = os.path.basename(task.source.url).partition(".")[0]
    return f"{stem}-{task.start + position:09d}"


def record_place(task: Task, position: int) -> str:
    """Name a record for an error: exactly, unless blank lines before it were left out."""
    exact = not task.source.members and len(task.records) == task.stop - task.start
    return f"{task.source.url}, record {task.start + position}" if exact else f"{task.name}, its record {position}"
