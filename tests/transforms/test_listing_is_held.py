"""A source that is not what was listed when its records are read is never complete in that run."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest

from ledgerbeam.errors import ChangedSourceError, IndexMismatchError
from ledgerbeam.io import write_index
from ledgerbeam.io.index.file import index_beside
from ledgerbeam.io.listing.pages import list_pages
from ledgerbeam.io.storage.stat import require_listed, stat
from ledgerbeam.ledger import Job, LedgerStore, Source, Task
from ledgerbeam.ledger.opening import open_local_store
from ledgerbeam.ledger.selection import PendingSource
from ledgerbeam.sources import FileSources, PackedFiles
from ledgerbeam.sources.kind import TaskReader
from ledgerbeam.transforms import CommitTasks, PlanTasks, ProcessTask, ReadTasks, WriteTasks
from ledgerbeam.transforms.chain.base import ChainValues, LedgerHandle, give_values

RECORDS = 40


def jsonl(text: str) -> bytes:
    return b"".join(json.dumps({"id": n, "text": text}).encode() + b"\n" for n in range(RECORDS))


def tar(text: str) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as file:
        for n in range(RECORDS):
            member = tarfile.TarInfo(f"{n:03d}.txt")
            member.size = len(text)
            file.addfile(member, io.BytesIO(text.encode()))
    return data.getvalue()


MAKE: dict[str, Callable[[str], bytes]] = {
    "a.jsonl": jsonl,
    "a.tar": tar,
    "a.jsonl.gz": lambda text: gzip.compress(jsonl(text), mtime=0),
}


def overwrite(path: str, data: bytes) -> None:
    """Write other content of the same size in place."""
    with open(path, "r+b") as file:
        file.write(data)


def replace(path: str, data: bytes) -> None:
    """Put another file in its place, of the same size and with the time of the first."""
    was = os.stat(path)
    with open(f"{path}.new", "wb") as file:
        file.write(data)
    os.utime(f"{path}.new", ns=(was.st_atime_ns, was.st_mtime_ns + 1_000_000))
    os.replace(f"{path}.new", path)


def append(path: str, data: bytes) -> None:
    """Add to it, and give it the time that it had."""
    was = os.stat(path)
    with open(path, "ab") as file:
        file.write(data)
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))


def remove(path: str, _: bytes) -> None:
    os.unlink(path)


class Meanwhile:
    """What happens to a file between planning and reading."""

    act: Callable[[], None] | None = None

    @classmethod
    def pass_on(cls, task: Any) -> Any:
        act, cls.act = cls.act, None
        if act is not None:
            act()
        return task


def pass_on(task: Any) -> Any:
    return Meanwhile.pass_on(task)


def keep(task: Task) -> Task:
    return task


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LedgerStore]:
    store = open_local_store(str(tmp_path / "ledger"), create=True)
    store.open_job(Job("test", {}))
    yield store
    store.close()


def run(folder: Path, sources: list[Source]) -> None:
    ledger = LedgerHandle(str(folder / "ledger"))
    with beam.Pipeline("FnApiRunner") as pipeline:
        (
            pipeline
            | beam.Create([PendingSource.of(source) for source in sources])
            | PlanTasks(task_records=10)
            | beam.Map(pass_on)
            | ReadTasks()
            | ProcessTask(keep)
            | WriteTasks(str(folder / "out"), "jsonl" if "jsonl" in sources[0].url else "tar")
            | CommitTasks()
        )
        give_values(pipeline, ChainValues(ledger, base=f"{folder}/"))


def listed(folder: Path, name: str) -> list[Source]:
    (page,) = list_pages([str(folder / name)])
    return [Source(*row) for row in zip(page.urls, page.sizes, page.versions, strict=True)]


@pytest.mark.parametrize("change", [None, overwrite, replace, append, remove])
@pytest.mark.parametrize(
    ("name", "packed"), [(name, packed) for name in MAKE for packed in (False, True) if not (packed and ".gz" in name)]
)
def test_a_source_that_changes_between_planning_and_reading_is_not_complete(
    tmp_path: Path, store: LedgerStore, name: str, change: Callable[[str, bytes], None] | None, packed: bool
) -> None:
    path = tmp_path / name
    path.write_bytes(MAKE[name]("first"))
    sources = listed(tmp_path, name)
    if packed:
        other = tmp_path / f"b{path.suffix}"
        other.write_bytes(MAKE[name]("other"))
        sources = [Source.pack([*sources, *listed(tmp_path, other.name)])]
    store.register(sources)
    Meanwhile.act = None if change is None else lambda: change(str(path), MAKE[name]("again"))
    run(tmp_path, sources)
    if change is None:
        assert store.status()["sources"] == {"complete": 1, "open": 0, "failed": 0}
        assert sum(row.output.records for row in store.outputs()) == RECORDS * (2 if packed else 1)
        return
    assert Meanwhile.act is None
    assert store.status()["sources"] == {"complete": 0, "open": 0, "failed": 1}
    assert list(store.outputs()) == []
    assert all(str(path) in row.error for row in store.failures())


def replace_unseen(path: str, data: bytes) -> None:
    """Put another file in its place, of the same size and time."""
    was = os.stat(path)
    replace(path, data)
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))


@pytest.mark.parametrize("name", MAKE)
def test_a_source_that_changes_unseen_between_planning_and_reading_is_not_complete(
    tmp_path: Path, store: LedgerStore, name: str
) -> None:
    path = tmp_path / name
    data = MAKE[name]("first")
    path.write_bytes(data)
    sources = listed(tmp_path, name)
    store.register(sources)
    Meanwhile.act = lambda: replace_unseen(str(path), data)
    run(tmp_path, sources)
    assert store.status()["sources"] == {"complete": 0, "open": 0, "failed": 1}


def test_a_pack_is_read_as_long_as_it_was_listed(tmp_path: Path) -> None:
    """Whatever the watch sees: a network's file system may tell an old size."""
    (tmp_path / "a.jsonl").write_bytes(jsonl("a"))
    (member,) = listed(tmp_path, "a.jsonl")
    longer = dataclasses.replace(member, size=member.size + 1)
    with pytest.raises(ChangedSourceError, match=r"a\.jsonl"):
        PackedFiles(FileSources()).open(Source.pack([longer])).read_span(0, 1)
    assert len(PackedFiles(FileSources()).open(Source.pack([member])).read_span(0, 1).listed()) == RECORDS


def test_a_reader_that_is_held_open_is_of_the_file_that_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(jsonl("first"))
    (source,) = listed(tmp_path, "a.jsonl")
    kind, reader = FileSources(), TaskReader(FileSources())
    kind.load_index(source)
    assert reader.read(Task(source, 0, 1)).listed()[0]["text"] == "first"
    replace_unseen(str(path), jsonl("again"))
    assert (
        reader.read(Task(source, 0, 1)).listed()[0]["text"] == "again"
    )  # as listed, and no task of the former is planned


@pytest.mark.parametrize("name", ["a.jsonl", "a.tar"])
def test_the_index_of_a_source_that_has_changed_is_made_anew(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(MAKE[name]("first"))
    (source,) = listed(tmp_path, name)
    kind = FileSources()
    offsets = kind.load_index(source)
    stale = offsets.copy()
    stale[1] += 1
    write_index(index_beside(source.url), stale, not_before_ns=os.stat(path).st_mtime_ns)
    assert kind.load_index(source).tolist() == stale.tolist()
    with pytest.raises(IndexMismatchError, match="may belong to the old content"):
        FileSources(build_index=False).load_index(source, changed=True)
    assert kind.load_index(source, changed=True).tolist() == offsets.tolist()
    assert kind.load_index(source).tolist() == offsets.tolist()


def test_what_is_asked_for_is_what_was_listed(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(jsonl("first"))
    found = stat(str(path))
    assert require_listed(found) == found
    for other in (dataclasses.replace(found, size=1), dataclasses.replace(found, version="1")):
        with pytest.raises(ChangedSourceError, match=r"a\.jsonl"):
            require_listed(other)
    path.unlink()
    with pytest.raises(ChangedSourceError, match="found none"):
        require_listed(found)
