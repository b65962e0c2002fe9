"""The sources of the suite, and what one clean run makes of them."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from blake3 import blake3

from ledgerbeam import Drop, Reject, Route
from ledgerbeam._base.names import REJECTS
from ledgerbeam.ledger.model.accounts import RecordCounts
from tests.fault.traced import result

SOURCES = 16
TASKS = 6
RECORDS = 8
LINE_BYTES = 96
BROKEN = 41  # the record of every other source that is no JSON: no function sees it
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


def calls_of(task: TaskName) -> int:
    """Return how many records of a task the function sees."""
    return sum(record is not None for record in _records(task.source)[task.ordinal * RECORDS :][:RECORDS])


def write_sources(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name in source_names():
        (folder / name).write_bytes(b"".join(map(_line, _records(name))))


@functools.cache
def _records(source: str) -> list[dict[str, Any] | None]:
    """Return the records of a source; None for one that is no JSON.

    Every other source has a task of which nothing is left, the others a record that is broken.
    """
    stem = source.partition(".")[0]
    is_odd = int(stem[1:]) % 2 == 1
    return [
        None if number == BROKEN and not is_odd else _record(stem, number, filtered=is_odd and number // RECORDS == 3)
        for number in range(TASKS * RECORDS)
    ]


def _record(stem: str, number: int, *, filtered: bool) -> dict[str, Any]:
    fates = {"drop": number % 11 == 2, "reject": number % 13 == 4, "raise": number % 17 == 6, "route": number % 5 == 1}
    fate = "" if filtered else next((fate for fate, due in fates.items() if due), "")
    copies = 0 if filtered or number % 7 == 3 else 1 + (number % 7 == 5)
    return {"id": f"{stem}-{number:04d}", "copies": copies, "fate": fate, "text": "text"}


def _line(record: dict[str, Any] | None) -> bytes:
    line = b'{"id": "broken' if record is None else orjson.dumps(record)
    return line + b" " * (LINE_BYTES - 1 - len(line)) + b"\n"


def content_of(path: Path, without: Path | None = None) -> Content | None:
    """Describe a file; None if there is none. In rejected records the path `without` is left out."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    if without is not None and path.parent.name == REJECTS:
        data = data.replace(str(without).encode(), b"")
    return Content(len(data), f"blake3:{blake3(data).hexdigest(16)}")


def contents_below(folder: Path) -> dict[str, Content]:
    """Describe every file below a folder, hidden ones too, but the marks of its owners, by relative name.

    Rejected records name their source by its whole path: they are described without that of the job.
    """
    paths = [path for path in folder.rglob("*") if path.is_file() and path.parent.name != "_ledgerbeam"]
    found = {str(path.relative_to(folder)): content_of(path, folder.parent) for path in paths}
    return {name: content for name, content in found.items() if content is not None}


@dataclass(frozen=True)
class Clean:
    """What a run that nobody disturbs leaves.

    Attributes:
        outputs: Everything below the output folder, by name.
        sources: Everything below the source folder, by name: sources and their indexes.
        counts: What became of the records of each source, by its file name.
        statistics: What the function observed, by the names of statistics; of distinct values their number.
    """

    outputs: dict[str, Content]
    sources: dict[str, Content]
    counts: dict[str, RecordCounts]
    statistics: dict[str, Any]

    @classmethod
    def of(cls, sources: Path, outputs: Path) -> Clean:
        for name in source_names():
            made = _made(name)
            for route in ("", "aside"):
                shards = sorted((outputs / route).glob(f"{name}*.jsonl"))
                if b"".join(shard.read_bytes() for shard in shards) != made.datasets.get(route, b""):
                    raise ValueError(
                        f"the clean run's outputs of {name} by the route {route!r} are not what the function makes of "
                        "its records"
                    )
            rows = [
                orjson.loads(line)
                for shard in sorted((outputs / REJECTS).glob(f"{name}*.jsonl"))
                for line in shard.read_bytes().splitlines()
            ]
            if [(row["record"], row["reason"]) for row in rows] != made.rejects:
                raise ValueError(f"the clean run's rejects of {name} are not those of its records")
        counts = {name: _made(name).counts for name in source_names()}
        return cls(contents_below(outputs), contents_below(sources), counts, _statistics())

    def outputs_of(self, source: str) -> dict[str, Content]:
        return {name: content for name, content in self.outputs.items() if Path(name).name.startswith(source)}


class _Made(NamedTuple):
    """What a source comes to: lines by route, numbers and reasons of rejected records, counts."""

    datasets: dict[str, bytes]
    rejects: list[tuple[int, str]]
    counts: RecordCounts


def _made(source: str) -> _Made:
    """Map a source as the job does, without the library."""
    datasets: dict[str, bytes] = {}
    rejects: list[tuple[int, str]] = []
    dropped, written = Counter[str](), Counter[str]()
    kept = 0
    for number, record in enumerate(_records(source)):
        try:
            made = Reject("not decoded") if record is None else result(record)
        except ValueError:
            made = Reject("ValueError")
        route = made.name if isinstance(made, Route) else ""
        match made:
            case Reject():
                rejects.append((number, made.reason))
                continue
            case None | Drop():
                dropped["returned nothing" if made is None else made.reason] += 1
                continue
            case Route():
                made = made.record
        rows = made if isinstance(made, list) else [made]
        kept += 1
        written[route] += len(rows)
        datasets[route] = datasets.get(route, b"") + b"".join(orjson.dumps(row) + b"\n" for row in rows)
    rejected = Counter(reason for _, reason in rejects)
    counts = RecordCounts(TASKS * RECORDS, kept, dict(dropped), dict(rejected), dict(written))
    return _Made(datasets, rejects, counts)


def _statistics() -> dict[str, Any]:
    ids = [record["id"] for name in source_names() for record in _records(name) if record is not None]
    numbers = [int(found.partition("-")[2]) for found in ids]
    return {
        "characters": sum(map(len, ids)),
        "number": {"count": len(ids), "min": min(numbers), "max": max(numbers), "mean": sum(numbers) / len(ids)},
        "ids": len(set(ids)),
    }
