"""The stages of an exchange in this process, without Beam and a ledger: what their tasks do, on small data."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ledgerbeam.io.exchange.run_file import Cuts, task_mark
from ledgerbeam.io.exchange.slices import NO_MERGES, Merges, Partition, RunFile, RunLayout, SliceTables, SomeUrls
from ledgerbeam.io.index.file import IndexLocation
from ledgerbeam.io.storage.stat import stat
from ledgerbeam.ledger import FailedTask, NoneTask, Source, Task
from ledgerbeam.ledger.model.identity import content_checksum
from ledgerbeam.ledger.model.task import pack_sources
from ledgerbeam.sources import FileSources, Sources
from ledgerbeam.sources.buckets import BucketSources, bucket_page
from ledgerbeam.sources.kind import TaskLimits, TaskReader
from ledgerbeam.sources.listed import ListedSpan, file_key
from ledgerbeam.transforms.dedup.duplicates import HashedRecords
from ledgerbeam.transforms.dedup.marks import WriteMarks
from ledgerbeam.transforms.exchange.gather import MergedEncoder, MergeRuns
from ledgerbeam.transforms.exchange.keys import RecordKeys
from ledgerbeam.transforms.exchange.scatter import RunEncoder, ScatterRecords
from ledgerbeam.transforms.mapping.outcomes import TaskResults
from tests.pipelines.conftest import Workspace

Place = tuple[str, int]  # URL of a source, and number of a record
Marks = dict[Place, tuple[Place | None, str | None]]  # place of the record that stays, and name of the cluster


def write_jsonl(path: Path, rows: Sequence[Any]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def moved_of(done: Task) -> Any:
    """Return the records of a task that go on, whether or not some were counted that do not."""
    results: Any = done.records
    return results.datasets[""] if isinstance(results, TaskResults) else results


def listed(urls: Sequence[str]) -> list[Source]:
    """Return files as sources, in the order of their names."""
    return [Source(found.url, found.size, found.version) for found in map(stat, sorted(urls))]


def placed_files(folder: Path) -> FileSources:
    """Return sources whose records come with their places, and whose indexes lie in the folder."""
    return FileSources(index=IndexLocation(root=str(folder / "indexes")), form="placed")


def source_tasks(opened: Sources, sources: Iterable[Source], task_records: int | None) -> Iterator[Task]:
    """Yield the tasks of a first stage, with their records."""
    reader = TaskReader(opened)
    for source in sources:
        cut = opened.kind_of(source).cut(source, TaskLimits(task_records=task_records))
        for start, stop in cut.spans:
            task = Task(cut.source, start, stop)
            yield task.replace(records=reader.read(task))


def bucket_tasks(layout: RunLayout, sources: BucketSources) -> Iterator[Task]:
    """Yield the tasks of a stage that reads run files, with their records."""
    rows = sources.tables.write(layout)
    page = bucket_page([row.size for row in rows], [row.version for row in rows], layout.cells)
    for bucket in map(Source, page.urls, page.sizes, page.versions):
        kind = sources.kind_of(bucket)
        for start, stop in kind.cut(bucket, TaskLimits()).spans:
            task = Task(bucket, start, stop, ((start, stop),))
            yield task.replace(records=kind.open(bucket).read_span(start, stop))


@dataclass(frozen=True)
class Stages:
    """An exchange in a folder."""

    folder: Path
    keys: RecordKeys
    cuts: Cuts
    part_bytes: int = 300
    task_records: int | None = 4
    within_keys: bool = True
    score: RecordKeys | None = None
    beside: int = 0
    merges: Merges = NO_MERGES
    runs: list[RunFile] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)
    sides: dict[str, int] = field(default_factory=dict)

    def scatter(
        self, urls: Sequence[str], *, pack_bytes: int | None = None, keys: RecordKeys | None = None, folder: str = ""
    ) -> None:
        """Write the run files of some files, in the order of their names, to the folder or one below it."""
        by = keys or self.keys
        side = self.sides.setdefault(folder, len(self.sides))
        (self.folder / folder).mkdir(exist_ok=True)
        sources = pack_sources(listed(urls), target_bytes=pack_bytes) if pack_bytes else listed(urls)
        for task in source_tasks(placed_files(self.folder), sources, self.task_records):
            done = ScatterRecords(by, by.scheme != "digest", self.score)(task)
            if isinstance(done, FailedTask):
                raise AssertionError(done.error)
            if isinstance(done, NoneTask):
                continue
            (file,) = RunEncoder(self.partition.cuts_of(1), 150).encode(moved_of(done))
            name = f"{folder}{len(self.runs):04d}.run"
            (self.folder / name).write_bytes(file.data)
            self.urls.extend(task.source.urls)
            of = SomeUrls(self.urls, len(self.urls) - len(task.source.urls), len(self.urls))
            self.runs.append(RunFile(name, len(file.data), of, side))

    @property
    def partition(self) -> Partition:
        """How the order is cut."""
        return replace(Partition.of_cuts(self.cuts, 150), merges=self.merges)

    def tasks(self) -> Iterator[Task]:
        """Yield the tasks of the last stage, with their records."""
        fans = [*[self.merges.fan] * self.merges.number, None]
        inner = self.partition.inner
        layout = RunLayout.of_one(self.runs, inner(0)[0].stop, fans[0])
        for ordinal in range(1, self.merges.number + 1):
            made: dict[str, list[tuple[str, int, bytes]]] = {name: [] for name in layout.cells}
            for task in bucket_tasks(layout, BucketSources(SliceTables(str(self.folder), str(ordinal)), 200)):
                done = MergeRuns(self.partition, ordinal)(task)
                assert isinstance(done, Task), done
                (file,) = MergedEncoder().encode(moved_of(done))
                name = f"{ordinal}-{sum(map(len, made.values())):04d}.run"
                (self.folder / name).write_bytes(file.data)
                made[task.source.url.rpartition("/")[2]].append(
                    (name, len(file.data), task_mark(task.source.id, task.start))
                )
            layout = layout.merged(made.values(), inner(ordinal), fans[ordinal])
        tables = SliceTables(str(self.folder), "state")
        yield from bucket_tasks(layout, BucketSources(tables, self.part_bytes, self.within_keys, self.beside))

    def gather(self, work: Callable[[Task], Any]) -> list[Any]:
        """Return what becomes of the tasks of the second stage."""
        return [work(task) for task in self.tasks()]

    def records(self) -> list[Any]:
        """Return all records in the order of the exchange."""
        return [record for task in self.tasks() for record in task.records.listed()]


def run_again(
    workspace: Workspace, command: Sequence[str], expected: Callable[[Workspace], list[Any]]
) -> dict[str, int]:
    """Run a command that must write these records; return how many tasks of each stage it has done."""
    ran = workspace.succeed(*command, "--json")
    assert workspace.records("out") == expected(workspace)
    return {name: stage["done"]["tasks"] for name, stage in ran.json["stages"].items()}


def by_file(folder: Path, files: Mapping[str, Sequence[Any]]) -> list[str]:
    """Write files of JSON lines; return their names."""
    return [write_jsonl(folder / f"{name}.jsonl", rows) for name, rows in files.items()]


def spoil(run: Path, kind: str) -> None:
    """Damage a run file, or remove it if that is the kind of damage: `damaged`, `gone`."""
    if kind == "gone":
        run.unlink()
    else:
        run.write_bytes(bytes(run.stat().st_size))


def in_sources(root: Path, folder: str = "in") -> dict[Place, dict[str, Any]]:
    """Return the records of the sources by their places, in order, without blank lines."""
    return {
        (str(path), number): json.loads(line)
        for path in sorted((root / folder).glob("*.jsonl"))
        for number, line in enumerate(path.read_text().splitlines())
        if line
    }


def _rows(table: pa.Table) -> list[tuple[Place | None, str | None]]:
    columns = (table[name].to_pylist() for name in ("duplicate_of", "cluster"))
    return [(of and (of["source"], of["record"]), cluster) for of, cluster in zip(*columns, strict=True)]


def marks_in(folder: Path) -> Marks:
    """Return the marks of all records in an output folder, whose catalog must name its files and current sources."""
    rows = pa.ipc.open_file((folder / "_columns.arrow").read_bytes()).read_all().to_pylist()
    catalog = [{**row, "source": os.fsdecode(row["source"]), "file": os.fsdecode(row["file"])} for row in rows]
    names = [str(path.relative_to(folder)) for path in folder.rglob("*.parquet")]
    assert sorted(row["file"] for row in catalog) == sorted(names)
    found: Marks = {}
    for row in catalog:
        checksum = content_checksum([(folder / row["file"]).read_bytes()])
        assert (row["checksum"], row["version"]) == (checksum, stat(row["source"]).version)
        table = pq.ParquetFile(folder / row["file"]).read()
        facts = json.loads(table.schema.metadata[b"ledgerbeam.columns"])
        assert facts["source"] == row["source"]
        for number, marks in enumerate(_rows(table), facts["first"]):
            assert found.setdefault((row["source"], number), marks) is marks, "two rows for a record"
    return found


def listed_places(records: HashedRecords, urls: Iterable[str]) -> list[Place]:
    """Return the places of the records of a list."""
    by_key = {file_key(url): url for url in urls}
    halves = zip(*(lane.tolist() for lane in records.hashes), strict=True)
    keys = [high.to_bytes(8, "big") + low.to_bytes(8, "big") for high, low in halves]
    return list(zip(map(by_key.__getitem__, keys), records.numbers.tolist(), strict=True))


def listed_marks(records: HashedRecords, urls: Iterable[str]) -> Marks:
    """Return the marks of the records of a list."""
    span = ListedSpan(len(records), np.arange(len(records)), list(records.payloads or ()))
    table: Any = WriteMarks()(Task(Source("/", 1, "1"), 0, len(records)).replace(records=span)).records
    return dict(zip(listed_places(records, urls), _rows(table), strict=True))


def gone_in(marks: Marks) -> dict[Place, Place]:
    """Return the record that stays in the place of each record that goes."""
    return {place: of for place, (of, _) in marks.items() if of is not None}


def clusters_in(marks: Marks) -> set[frozenset[Place]]:
    """Return the records of each cluster."""
    found: dict[str, set[Place]] = defaultdict(set)
    for place, (_, name) in marks.items():
        if name is not None:
            assert len(bytes.fromhex(name)) == 16
            found[name].add(place)
    return set(map(frozenset, found.values()))


def require_marks(marks: Marks, places: Iterable[Place], stays: Mapping[Place, Place]) -> None:
    """Check the marks of all places. `stays` has for each record that goes the one that stays."""
    assert marks.keys() == set(places)
    assert gone_in(marks) == stays
    clusters: dict[Place, set[Place]] = defaultdict(set)
    for place, stay in stays.items():
        clusters[stay] |= {place, stay}
    assert clusters_in(marks) == set(map(frozenset, clusters.values()))


def portable_marks(root: Path) -> dict[str, Any]:
    """Return the marks in `out` with the records of clusters, in place of names that depend on the folder."""
    marks = marks_in(root / "out")
    members = {place: cluster for cluster in clusters_in(marks) for place in cluster}

    def name(place: Place) -> str:
        return f"{Path(place[0]).name} {place[1]}"

    return {
        name(place): (of and name(of), sorted(map(name, members.get(place, ())))) for place, (of, _) in marks.items()
    }
