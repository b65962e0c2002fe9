"""User functions of one record, as functions of one task: their mistakes named, their purity spot-checked."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ledgerbeam.errors import FunctionError, NonDeterministicTaskError, RecordError
from ledgerbeam.io import FORMATS, Sample
from ledgerbeam.ledger import FailedTask, NoneTask, Task, import_function, last_frame

__all__ = ["MapRecords", "record_place"]

PURITY_CHECK_RECORDS = 16
PURITY_CHECK_SECONDS = 0.5
"""What of the first task of a process is mapped twice, at most: enough to see a coin tossed, and cheap for a model."""


class MapRecords:
    """A function of one record as a function of one task, for `ProcessTask`.

    The function takes a record (JSONL: the decoded value; tar: a mapping of extension to bytes) and returns a
    record, None (dropped) or a list of records. A task whose records are all dropped is filtered.

    Args:
        reference: ``module:function``; imported on the worker.
        output_format: Name of the format that the records are written in.
        check_purity: Whether the first records of each process, 16 of them and half a second at most, are mapped
            twice, and the job is ended if the results differ: a rerun could then not end with the same bytes.
    """

    def __init__(self, reference: str, output_format: str, *, check_purity: bool = True) -> None:
        self.reference = reference
        self.output_format = output_format
        self._unchecked = check_purity
        self._function: Callable[[Any], Any] | None = None

    def __repr__(self) -> str:
        return f"MapRecords({self.reference!r}, {self.output_format!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_function": None}

    def __call__(self, task: Task) -> Task | NoneTask | FailedTask:
        """Maps the records of `task`.

        Raises:
            NonDeterministicTaskError: If the function gives another result for the same record.
        """
        outputs: list[Any] = []
        started = time.monotonic()
        for position, record in enumerate(task.records):
            twin = copy.deepcopy(record) if self._unchecked else None
            try:
                mapped = self._map(record, task, position)
            except (FunctionError, RecordError) as error:
                return FailedTask(task, type(error).__name__, f"{record_place(task, position)}: {error}")
            except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever user code raises fails the task, not the job
                message = f"{record_place(task, position)}: {self.reference} raised {type(error).__name__}: {error}"
                return FailedTask(task, type(error).__name__, f"{message} (at {last_frame(error)})")
            if self._unchecked:
                self._check_purity(mapped, twin, task, position)
                elapsed = time.monotonic() - started
                self._unchecked = elapsed < PURITY_CHECK_SECONDS and position + 1 < PURITY_CHECK_RECORDS
            outputs.extend(mapped)
        self._unchecked = False
        return task.replace(records=outputs) if outputs else NoneTask(task)

    def _map(self, record: Any, task: Task, position: int) -> list[Any]:
        """Calls the function on one record and returns the records that it made."""
        if self._function is None:
            self._function = import_function(self.reference)
        result = self._function(record)
        if result is None:
            return []
        results = result if isinstance(result, list) else [result]
        if self.output_format == "tar":
            key = record.key if isinstance(record, Sample) else _record_key(task, position)
            if len(results) == 1:
                return [_as_sample(results[0], key, key)]
            return [_as_sample(value, key, f"{key}-{ordinal}") for ordinal, value in enumerate(results)]
        for value in results:
            if isinstance(value, tuple | set | Iterator):
                raise FunctionError(
                    f"{self.reference} returned a {type(value).__name__}: expected a record, None or a list of records"
                )
        return results

    def _check_purity(self, mapped: list[Any], twin: Any, task: Task, position: int) -> None:
        again = self._map(twin, task, position)
        encode = FORMATS[self.output_format].encode
        try:
            same = encode(mapped)[0] == encode(again)[0]
        except RecordError:
            return  # the wrong shape is reported when the task is written
        if not same:
            raise NonDeterministicTaskError(
                f"{record_place(task, position)}: {self.reference} returned two different results for the same record, "
                "so a restarted job could not end with the bytes of a clean one; make it a pure function of the record "
                "(seed its random numbers from the record, take no time stamps), or pass --no-purity-check"
            )


def _as_sample(value: Any, origin: str, default_key: str) -> Sample:
    """Returns a mapping of extension to bytes as a sample; text is encoded as UTF-8.

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
    """Names a sample that came from a format without keys, by its source and its place in it."""
    stem = os.path.basename(task.source.url).partition(".")[0]
    return f"{stem}-{task.start + position:09d}"


def record_place(task: Task, position: int) -> str:
    """Names a record for an error: exactly, unless blank lines before it were left out."""
    exact = not task.source.members and len(task.records) == task.stop - task.start
    return f"{task.source.url}, record {task.start + position}" if exact else f"{task.name}, its record {position}"
