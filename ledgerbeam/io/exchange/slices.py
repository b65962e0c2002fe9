"""Which slices of which run files make each bucket of an exchange: gathered from the footers, and looked up.

    <place>.runs      JSON: the layout of the run files, see `RunLayout`
    <place>.slices    for each area, in it for each bucket, and in that for each run, its entry of `run_file.ENTRY`

Both are written once, when all run files are there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from itertools import accumulate, groupby, pairwise
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ledgerbeam.errors import RunFileError
from ledgerbeam.io.exchange.merge import SliceOf, read_ranges
from ledgerbeam.io.exchange.partition import neighbours
from ledgerbeam.io.exchange.run_file import ENTRY, NO_TASK, parse_footer, tail_bytes
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.files import read_bytes
from ledgerbeam.io.storage.publish import publish, publish_bytes

RUNS, SLICES = ".runs", ".slices"
"""What the names of the two files end with."""

EARLIER = "\1"
"""Begins the names of run files that an earlier job has written elsewhere, of which the URLs follow, and the URLs of
their sources. Their records come before all others, are only compared with, and stay."""

_AT_ONCE = 1024  # footers

HELD_BYTES = 256 * 1024 * 1024
"""Entries of so many buckets are held at once."""


class SomeUrls(Sequence[str]):
    """Some texts that stand one behind the other among others, which are not copied.

    Args:
        all: The texts among which they stand.
        start: The first one.
        stop: Behind the last one.
    """

    __slots__ = ("all", "start", "stop")

    def __init__(self, all: Sequence[str], start: int, stop: int) -> None:  # noqa: A002
        self.all, self.start, self.stop = all, start, stop

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, item: Any) -> Any:
        return self.all[range(self.start, self.stop)[item]]

    @classmethod
    def of(cls, texts: Sequence[str]) -> Self:
        """Return texts as such a span."""
        return cls(texts, 0, len(texts))

    def followed_by(self, last: SomeUrls) -> SomeUrls:
        """Return all texts from the first one of these to the last one of others, which stand behind them."""
        return SomeUrls(self.all, self.start, last.stop)


class RunFile(NamedTuple):
    """A run file of an exchange.

    Attributes:
        name: Of the file, below the folder of all of them; `EARLIER` and its URL if it lies elsewhere.
        size: Of the file.
        sources: URLs of what its records are of: one, or the files of a pack, in order; of what was merged all from
            those of the first run to those of the last one.
        side: Which of the jobs that read the sources its records come from; negative if an earlier job has them.
        mark: Of the task that has written it.
    """

    name: str
    size: int
    sources: SomeUrls
    side: int = 0
    mark: bytes = NO_TASK

    def url(self, folder: str) -> str:
        """Return where it lies.

        Args:
            folder: Of those that do not lie elsewhere.
        """
        # The name of a source may begin with any character, and so that of its run file.
        if self.is_earlier and self.name.startswith(EARLIER):
            return self.name.removeprefix(EARLIER)
        return f"{folder}/{self.name}"

    @property
    def is_earlier(self) -> bool:
        """Whether its records are those of an earlier job."""
        return self.side < 0


class Area(NamedTuple):
    """Run files that have the same buckets, and how they are read.

    Attributes:
        runs: Positions of the run files.
        buckets: Positions of the buckets among those of all areas.
        groups: Of the run files that are read together, where each group begins among them, and what it is called;
            one without a name if all are read together.
    """

    runs: range
    buckets: range
    groups: Sequence[tuple[int, str]]


class Cell(NamedTuple):
    """What is read together: what a group of run files holds of a bucket.

    Attributes:
        bucket: The bucket.
        runs: Positions of the run files.
        place: Where their entries begin in the table of slices.
    """

    bucket: int
    runs: range
    place: int


def bucket_name(bucket: int, group: str = "") -> str:
    """Return the name of what a group of run files holds of a bucket."""
    return f"part-{bucket:06d}-{group}" if group else f"part-{bucket:06d}"


@dataclass(frozen=True)
class RunLayout:
    """The run files of a stage in their order, and what is read together.

    Attributes:
        runs: The run files.
        areas: Of them: with one round a single one, behind a merge one for each range of buckets that it kept apart.
    """

    runs: Sequence[RunFile]
    areas: Sequence[Area]

    @classmethod
    def of_one(cls, runs: Sequence[RunFile], buckets: int, fan: int | None = None) -> Self:
        """Return the layout of run files that all have the same buckets.

        Args:
            runs: All of them, in order.
            buckets: How many there are.
            fan: How many of the runs are to be merged, about; None if all are read together.
        """
        return cls(runs, [_area(runs, range(len(runs)), range(buckets), fan)])

    def merged(
        self, files: Iterable[Sequence[tuple[str, int, bytes]]], inner: Sequence[range], fan: int | None
    ) -> Self:
        """Return the layout of what was made of these run files.

        Args:
            files: Names, sizes and marks of the run files that each cell became, in order.
            inner: For each bucket which buckets those of it have, among those of all.
            fan: See `of_one`.
        """
        runs: list[RunFile] = []
        ends = [0] * len(inner)
        for cell, made in zip(self.cells.values(), files, strict=True):
            first, last = self.runs[cell.runs.start], self.runs[cell.runs.stop - 1]
            of = first.sources.followed_by(last.sources)
            runs += (RunFile(name, size, of, first.side, mark) for name, size, mark in made)
            ends[cell.bucket] = len(runs)
        bounds = pairwise(accumulate(ends, max, initial=0))  # a bucket without runs has no cell
        areas = [_area(runs, range(*some), buckets, fan) for some, buckets in zip(bounds, inner, strict=True)]
        return type(self)(runs, areas)

    @cached_property
    def cells(self) -> dict[str, Cell]:
        """What is read together, in order, by name."""
        found: dict[str, Cell] = {}
        place = 0
        for area in self.areas:
            starts = [start for start, _ in area.groups]
            for bucket in area.buckets:
                for (_, name), (start, stop) in zip(area.groups, pairwise([*starts, area.runs.stop]), strict=True):
                    at = place + (start - area.runs.start) * ENTRY.itemsize
                    found[bucket_name(bucket, name)] = Cell(bucket, range(start, stop), at)
                place += len(area.runs) * ENTRY.itemsize
        return found

    def encode(self) -> bytes:
        """Return it as JSON: the URLs of all sources once, however often they are named."""
        urls: list[str] = []
        places: dict[int, int] = {}
        runs = []
        for run in self.runs:
            span = run.sources
            if id(span.all) not in places:
                places[id(span.all)] = len(urls)
                urls += span.all
            first = places[id(span.all)]
            runs.append([run.name, first + span.start, first + span.stop, run.side])
        areas = [[*_ends(area.runs), *_ends(area.buckets), area.groups] for area in self.areas]
        found = {"urls": urls, "runs": runs, "areas": areas}
        return json.dumps(found, separators=(",", ":")).encode()  # names need not be UTF-8

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return what `encode` has written; the sizes of the files are 0, and their marks those of no task."""
        found = json.loads(data)
        urls = found["urls"]
        return cls(
            [RunFile(name, 0, SomeUrls(urls, start, stop), side) for name, start, stop, side in found["runs"]],
            [
                Area(range(*some[:2]), range(*some[2:4]), [(start, name) for start, name in some[4]])
                for some in found["areas"]
            ],
        )


def _ends(positions: range) -> tuple[int, int]:
    return positions.start, positions.stop


def _area(runs: Sequence[RunFile], some: range, buckets: range, fan: int | None) -> Area:
    """Return an area; see `RunLayout.of_one`.

    Args:
        runs: All run files.
        some: Which ones are in it.
        buckets: Of these.
        fan: How many of them are to be merged, about; None if all are read together.
    """
    if fan is None:
        return Area(some, buckets, [(some.start, "")])
    groups = []
    for _, side in groupby(some, key=lambda run: runs[run].side):  # whose records are told apart
        found = neighbours(((run, runs[run].name) for run in side), fan)
        groups += [(group[0], _name_of([runs[run] for run in group])) for group in found]
    return Area(some, buckets, groups)


def _name_of(runs: Sequence[RunFile]) -> str:
    """Return the name of a group: another one if a run, or its place among the sources of all, is another."""
    digest = blake2b(digest_size=8, person=b"lb.group")
    for run in runs:
        digest.update(b"%d;" % (run.sources.start - runs[0].sources.start))
        for text in (run.name, *run.sources):
            name = text.encode("utf-8", "surrogateescape")
            digest.update(b"%d:%s" % (len(name), name))
    return digest.hexdigest()


@dataclass(frozen=True)
class BucketRow:
    """A bucket as a source.

    Attributes:
        size: Bytes of its records, one more for each.
        records: How many it has.
        version: A hash of its slices: of the names of the run files, and the checksums of what they hold of it.
    """

    size: int
    records: int
    version: str


@dataclass(frozen=True)
class SliceTables:
    """The tables of the slices of an exchange.

    Attributes:
        folder: Of the run files.
        state: What the names of the two files begin with: it names the run files that there are.
        storage_options: Passed to fsspec unchanged.
    """

    folder: str
    state: str
    storage_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """What the URLs of the two files begin with."""
        return f"{self.folder}/{self.state}"

    def write(self, layout: RunLayout) -> list[BucketRow]:
        """Read the footers of all run files, and write which slices make each bucket.

        Args:
            layout: Of the run files.

        Returns:
            What is read together, in order.

        Raises:
            RunFileError: A run file is damaged; also the errors of reading it.
        """
        options = dict(self.storage_options)
        publish_bytes(f"{self.place}{RUNS}", layout.encode(), options)
        found: list[BucketRow] = []
        with publish(f"{self.place}{SLICES}", options) as file:
            for area in layout.areas:
                runs = layout.runs[area.runs.start : area.runs.stop]
                groups = [start - area.runs.start for start, _ in area.groups]
                groups.append(len(runs))
                at_once = max(1, HELD_BYTES // (ENTRY.itemsize * max(1, len(runs))))
                for first in range(0, len(area.buckets), at_once):
                    some = slice(first, first + at_once)
                    entries = _entries(self.folder, runs, len(area.buckets), some, options)
                    file.write(entries.tobytes())
                    found += [
                        _bucket_row(row[start:stop], runs[start:stop])
                        for row in entries
                        for start, stop in pairwise(groups)
                    ]
        return found

    def layout(self) -> RunLayout:
        """Return the layout of the run files."""
        return RunLayout.decode(read_bytes(f"{self.place}{RUNS}", dict(self.storage_options)))

    def slices(self, layout: RunLayout, name: str, version: str) -> list[SliceOf]:
        """Return the slices of a cell that have records, in the order of its runs, which they count from 0.

        Args:
            layout: Of the run files, as of `layout`.
            name: Of the cell.
            version: That it must have.

        Raises:
            RunFileError: The tables say something else than when they were written.
        """
        cell, url = layout.cells[name], f"{self.place}{SLICES}"
        runs = layout.runs[cell.runs.start : cell.runs.stop]
        stop = cell.place + len(runs) * ENTRY.itemsize
        data = read_ranges([(url, cell.place, stop)], dict(self.storage_options))[0]
        entries = np.frombuffer(data, ENTRY)
        if _bucket_row(entries, runs).version != version:
            raise RunFileError(
                f"{url}: expected bucket {name} of version {version}, found other slices; delete this file and run "
                "the same command again"
            )
        some = np.flatnonzero(entries["records"]).tolist()
        return [SliceOf(runs[run].url(self.folder), run, entries[run]) for run in some]


def _entries(
    folder: str, runs: Sequence[RunFile], buckets: int, some: slice, options: Options | None
) -> NDArray[np.void]:
    """Return the entries of some buckets: a row for each bucket, with a column for each run."""
    columns = []
    tail = tail_bytes(buckets)
    for run, data in zip(runs, _tails(folder, runs, tail, options), strict=True):
        columns.append(parse_footer(data, run.size, buckets, run.url(folder), run.mark)[some])
    rows = len(range(buckets)[some])
    return np.stack(columns, axis=1) if columns else np.zeros((rows, 0), ENTRY)


def _tails(folder: str, runs: Sequence[RunFile], tail: int, options: Options | None) -> Iterator[bytes]:
    for first in range(0, len(runs), _AT_ONCE):
        some = runs[first : first + _AT_ONCE]
        ranges = [(run.url(folder), max(0, run.size - tail), run.size) for run in some]
        yield from read_ranges(ranges, options)


def _bucket_row(entries: NDArray[np.void], runs: Sequence[RunFile]) -> BucketRow:
    digest = blake2b(digest_size=16, person=b"lb.bucket")
    for run in np.flatnonzero(entries["records"]).tolist():
        name = runs[run].name.encode("utf-8", "surrogateescape")
        digest.update(b"%d:%s%s" % (len(name), name, entries["checksum"][run].tobytes()))
    records = int(entries["records"].sum())
    return BucketRow(int(entries["size"].sum()), records, digest.hexdigest() if records else "")
