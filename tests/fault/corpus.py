"""The sources of the suite, and what one clean run makes of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from tests.fault.traced import result

SOURCES = 16
TASKS = 6
RECORDS = 8
LINE_BYTES = 96

TASK_BYTES = RECORDS * LINE_BYTES
"""Lines are equally long, so that this cuts each source into exactly `TASKS` tasks of `RECORDS` records."""


class TaskName(NamedTuple):
    """A task of the suite: the file name of its source and its ordinal."""

    source: str
    ordinal: int


class Content(NamedTuple):
    """What a file holds: size in bytes and BLAKE2b, 16 bytes in hexadecimal."""

    size: int
    checksum: str


def source_names() -> list[str]:
    return [f"s{number:02d}.jsonl" for number in range(SOURCES)]


def task_of(record_id: str) -> TaskName:
    """Name the task that holds a record, by the record's id."""
    source, _, number = record_id.partition("-")
    return TaskName(f"{source}.jsonl", int(number) // RECORDS)


def write_sources(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name in source_names():
        (folder / name).write_bytes(b"".join(map(_line, _records(name))))


def _records(source: str) -> Iterator[dict[str, Any]]:
    """Yield the records of a source; every other source has a task of which nothing is left."""
    stem = source.partition(".")[0]
    for number in range(TASKS * RECORDS):
        filtered = int(stem[1:]) % 2 and number // RECORDS == TASKS // 2
        copies = 0 if filtered or number % 7 == 3 else 1 + (number % 7 == 5)
        yield {"id": f"{stem}-{number:04d}", "copies": copies, "text": "text"}


def _line(record: dict[str, Any]) -> bytes:
    line = orjson.dumps(record)
    return line + b" " * (LINE_BYTES - 1 - len(line)) + b"\n"


def content_of(path: Path) -> Content | None:
    """Describe a file; None if there is none."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    return Content(len(data), hashlib.blake2b(data, digest_size=16).hexdigest())


def contents_below(folder: Path) -> dict[str, Content]:
    """Describe every file below a folder, hidden ones too, but the marks of its owners, by relative name."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.parent.name != "_ledgerbeam"]
    found = {str(path.relative_to(folder)): content_of(path) for path in paths}
    return {name: content for name, content in found.items() if content is not None}


@dataclass(frozen=True)
class Clean:
    """What a run that nobody disturbs leaves.

    Attributes:
        outputs: Everything below the output folder, by name.
        sources: Everything below the source folder, by name: sources and their indexes.
    """

    outputs: dict[str, Content]
    sources: dict[str, Content]

    @classmethod
    def of(cls, sources: Path, outputs: Path) -> Clean:
        """Describe a run that has ended.

        Raises:
            ValueError: If the outputs are not what the user function makes of the sources.
        """
        for name in source_names():
            shards = sorted(outputs.glob(f"{name}*.jsonl"))
            made = b"".join(shard.read_bytes() for shard in shards)
            if made != b"".join(_mapped(record) for record in _records(name)):
                raise ValueError(f"the clean run's outputs of {name} are not what the function makes of its records")
        return cls(contents_below(outputs), contents_below(sources))

    def outputs_of(self, source: str) -> dict[str, Content]:
        return {name: content for name, content in self.outputs.items() if name.startswith(source)}


def _mapped(record: dict[str, Any]) -> bytes:
    made = result(record)
    rows = made if isinstance(made, list) else [] if made is None else [made]
    return b"".join(orjson.dumps(row) + b"\n" for row in rows)
