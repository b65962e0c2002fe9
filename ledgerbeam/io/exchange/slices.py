"""The buckets of an exchange, and tables of the slices of run files that hold the records of each bucket.

    <place>.runs      JSON: the layout of the run files, see `RunLayout`
    <place>.slices    `run_file.ENTRY` of each slice: by area (run files with the same buckets), bucket, run file

Both files are written once, from the footers of the run files, when all run files exist.

Each part of a bucket reads a slice of each run file. If an exchange has too many slices, the run files of the first
stage have few wide ranges of buckets. A merge reads a cell, one range in a group of neighbouring run files, and
writes one run file that is divided into narrower ranges. The number and the size of the run files stay about the same,
but fewer have records of one range. After the last merge, a bucket is read only from the run files of its range.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from itertools import accumulate, groupby, pairwise
from typing import Any, NamedTuple, Self, TypeGuard, TypeVar
from zlib import crc32

import numpy as np
import orjson
from numpy.typing import NDArray

from ledgerbeam.errors import LedgerDamagedError, RunFileError
from ledgerbeam.io.exchange.merge import SliceOf, read_ranges
from ledgerbeam.io.exchange.run_file import BLOCK_BYTES, ENTRY, NO_TASK, Cuts, parse_footer, tail_bytes
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.files import read_bytes
from ledgerbeam.io.storage.publish import publish, publish_bytes

RUNS, SLICES = ".runs", ".slices"  # suffixes of the two files

EARLIER = "\1"
"""Prefix of the name of a run file that an earlier job wrote to another folder, and of the URLs of its sources; the URL
follows. The records of such files precede all others. They are compared with other records, and are not dropped."""

_AT_ONCE = 1024  # footers read together
HELD_BYTES = 256 * 1024 * 1024  # limit of the bytes of entries in memory


class SomeUrls(Sequence[str]):
    """A range `[start, stop)` of a list of URLs, without a copy of the list."""

    __slots__ = ("all", "start", "stop")

    def __init__(self, all: Sequence[str], start: int, stop: int) -> None:  # noqa: A002
        self.all, self.start, self.stop = all, start, stop

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, item: Any) -> Any:
        return self.all[range(self.start, self.stop)[item]]

    @classmethod
    def of(cls, texts: Sequence[str]) -> Self:
        """Return the range of a whole list."""
        return cls(texts, 0, len(texts))

    def followed_by(self, last: SomeUrls) -> SomeUrls:
        """Return the range from the start of this one to the end of `last`, a later one of the same list."""
        return SomeUrls(self.all, self.start, last.stop)


class RunFile(NamedTuple):
    """A run file of an exchange."""

    name: str  # name below the common folder; `EARLIER` and the URL if the file is in another folder
    size: int
    # URLs of the sources of its records: one, or the files of a pack, in order. After a merge, all sources from the
    # first to the last merged run.
    sources: SomeUrls
    side: int = 0  # position of the job that reads the sources, among the sides of a join; negative for an earlier job
    mark: bytes = NO_TASK  # mark of the task that has written the file

    def url(self, folder: str) -> str:
        """Return the URL of the file, given the common folder."""
        # The name of a source, and so of its run file, may begin with any character, also with `EARLIER`.
        if self.is_earlier and self.name.startswith(EARLIER):
            return self.name.removeprefix(EARLIER)
        return f"{folder}/{self.name}"

    @property
    def is_earlier(self) -> bool:
        """Whether the records of the file belong to an earlier job."""
        return self.side < 0


class _Area(NamedTuple):
    """Run files that have the same buckets, and the groups of neighbouring run files that are read together."""

    runs: range  # positions of the run files
    buckets: range  # positions of the buckets among the buckets of all areas
    # Position of the first run file and name of each group that is read together. A single group has no name.
    groups: Sequence[tuple[int, str]]


class _Cell(NamedTuple):
    """The records of one bucket in one group of run files. They are read together."""

    bucket: int  # position of the bucket
    runs: range  # positions of the run files
    place: int  # offset of their entries in the table of slices


def bucket_name(bucket: int, group: str = "") -> str:
    """Return the name of a cell: a bucket in a group of run files."""
    return f"part-{bucket:06d}-{group}" if group else f"part-{bucket:06d}"


@dataclass(frozen=True)
class RunLayout:
    """The run files that a stage reads, in order. `cells` divides their records by bucket and group of run files."""

    runs: Sequence[RunFile]
    areas: Sequence[_Area]  # one; after a merge one for each range of buckets of that merge

    @classmethod
    def of_one(cls, runs: Sequence[RunFile], buckets: int, fan: int | None = None) -> Self:
        """Return the layout of run files that all have the same buckets.

        About `fan` neighbouring run files are a group, which a merge reads together; all of them if `fan` is None.
        """
        return cls(runs, [_make_area(runs, range(len(runs)), range(buckets), fan)])

    def merged(
        self, files: Iterable[Sequence[tuple[str, int, bytes]]], inner: Sequence[range], fan: int | None
    ) -> Self:
        """Return the layout after a merge of these run files; see `of_one`.

        `files` has for each cell, in order, the names, sizes and marks of the run files that the merge wrote. `inner`
        has for each bucket its narrower buckets, as positions among all narrower buckets.
        """
        runs: list[RunFile] = []
        ends = [0] * len(inner)
        for cell, made in zip(self.cells.values(), files, strict=True):
            first, last = self.runs[cell.runs.start], self.runs[cell.runs.stop - 1]
            of = first.sources.followed_by(last.sources)
            runs += (RunFile(name, size, of, first.side, mark) for name, size, mark in made)
            ends[cell.bucket] = len(runs)
        bounds = pairwise(accumulate(ends, max, initial=0))  # a bucket without runs has no cell
        areas = [_make_area(runs, range(*some), buckets, fan) for some, buckets in zip(bounds, inner, strict=True)]
        return type(self)(runs, areas)

    @cached_property
    def cells(self) -> dict[str, _Cell]:
        """The cells by name, in order. The run files of a cell are read together."""
        found: dict[str, _Cell] = {}
        place = 0
        for area in self.areas:
            starts = [start for start, _ in area.groups]
            for bucket in area.buckets:
                for (_, name), (start, stop) in zip(area.groups, pairwise([*starts, area.runs.stop]), strict=True):
                    at = place + (start - area.runs.start) * ENTRY.itemsize
                    found[bucket_name(bucket, name)] = _Cell(bucket, range(start, stop), at)
                place += len(area.runs) * ENTRY.itemsize
        return found

    def encode(self) -> bytes:
        """Return the layout as JSON. It has the URL of each source once."""
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
        areas = [[*_bounds(area.runs), *_bounds(area.buckets), area.groups] for area in self.areas]
        found = {"urls": urls, "runs": runs, "areas": areas}
        return json.dumps(found, separators=(",", ":")).encode()  # names need not be UTF-8

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return the layout of `encode`, without sizes and marks of files: these are 0 and `NO_TASK`."""
        found = json.loads(data)
        urls = found["urls"]
        return cls(
            [RunFile(name, 0, SomeUrls(urls, start, stop), side) for name, start, stop, side in found["runs"]],
            [
                _Area(range(*some[:2]), range(*some[2:4]), [(start, name) for start, name in some[4]])
                for some in found["areas"]
            ],
        )


def _bounds(positions: range) -> tuple[int, int]:
    return positions.start, positions.stop


def _make_area(runs: Sequence[RunFile], some: range, buckets: range, fan: int | None) -> _Area:
    """Return the area of some of the run files and buckets; see `RunLayout.of_one`."""
    if fan is None:
        return _Area(some, buckets, [(some.start, "")])
    groups = []
    for _, side in groupby(some, key=lambda run: runs[run].side):  # records of different sides are not merged
        found = neighbours(((run, runs[run].name) for run in side), fan)
        groups += [(group[0], _group_name([runs[run] for run in group])) for group in found]
    return _Area(some, buckets, groups)


def _group_name(runs: Sequence[RunFile]) -> str:
    """Return the name of a group: a hash of the names of its run files, and of their sources and positions."""
    digest = blake2b(digest_size=8, person=b"lb.group")
    for run in runs:
        digest.update(b"%d;" % (run.sources.start - runs[0].sources.start))
        for text in (run.name, *run.sources):
            name = text.encode("utf-8", "surrogateescape")
            digest.update(b"%d:%s" % (len(name), name))
    return digest.hexdigest()


@dataclass(frozen=True)
class BucketRow:
    """The size and the version of a cell, which is a source of a later stage."""

    size: int  # bytes of its records, plus one for each record
    records: int
    version: str  # a hash of its slices: the names of the run files, and the checksums of their parts of the bucket


@dataclass(frozen=True)
class SliceTables:
    """Writes and reads the two files of this module, which describe the slices of an exchange."""

    folder: str  # the folder of the run files
    state: str  # prefix of the names of the two files; it identifies the set of run files
    storage_options: Mapping[str, Any] = field(default_factory=dict)  # passed to fsspec unchanged

    @property
    def place(self) -> str:
        """Prefix of the URLs of the two files."""
        return f"{self.folder}/{self.state}"

    def write(self, layout: RunLayout) -> list[BucketRow]:
        """Write both files, from the footers of all run files. Return a row for each cell, in order.

        RunFileError: a run file is damaged; also the errors of reading it.
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
                    entries = _read_entries(self.folder, runs, len(area.buckets), some, options)
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
        """Return the slices of a cell that have records, in the order of its runs. Runs are counted from 0 in the cell.

        RunFileError: the slices have another version than `version`.
        """
        cell, url = layout.cells[name], f"{self.place}{SLICES}"
        runs = layout.runs[cell.runs.start : cell.runs.stop]
        stop = cell.place + len(runs) * ENTRY.itemsize
        data = read_ranges([(url, cell.place, stop)], dict(self.storage_options))[0]
        entries = np.frombuffer(data, ENTRY)
        if _bucket_row(entries, runs).version != version:
            raise RunFileError(
                f"{url}: expected bucket {name} in version {version}, found another version; delete this file and run "
                "the same command again"
            )
        some = np.flatnonzero(entries["records"]).tolist()
        return [SliceOf(runs[run].url(self.folder), run, entries[run]) for run in some]


def _read_entries(
    folder: str, runs: Sequence[RunFile], buckets: int, some: slice, options: Options | None
) -> NDArray[np.void]:
    """Return the entries (`ENTRY`) of some buckets: a row for each bucket, with a column for each run file."""
    columns, tail = [np.zeros((len(range(buckets)[some]), 0), ENTRY)], tail_bytes(buckets)
    for first in range(0, len(runs), _AT_ONCE):
        part = runs[first : first + _AT_ONCE]
        footers = read_ranges([(run.url(folder), max(0, run.size - tail), run.size) for run in part], options)
        for run, data in zip(part, footers, strict=True):
            columns.append(parse_footer(data, run.size, buckets, run.url(folder), run.mark)[some, np.newaxis])
    return np.concatenate(columns, axis=1)


def _bucket_row(entries: NDArray[np.void], runs: Sequence[RunFile]) -> BucketRow:
    digest = blake2b(digest_size=16, person=b"lb.bucket")
    for run in np.flatnonzero(entries["records"]).tolist():
        name = runs[run].name.encode("utf-8", "surrogateescape")
        digest.update(b"%d:%s%s" % (len(name), name, entries["checksum"][run].tobytes()))
    records = int(entries["records"].sum())
    return BucketRow(int(entries["size"].sum()), records, digest.hexdigest() if records else "")


MOST_SLICES = 10_000_000  # default limit of the slices of run files that a stage reads
MOST_MERGES = 16

_Run = TypeVar("_Run")


@dataclass(frozen=True)
class Merges:
    """The merges of run files before the last stage of an exchange."""

    number: int = 0  # number of successive merges
    fan: int = 1  # ranges into which each merge divides a range of buckets; about as many run files become one


NO_MERGES = Merges()


def _group_sizes(fan: int) -> range:
    """Return the numbers of run files that a group may have, as a range."""
    least = max(2, -(-2 * fan // 3))
    return range(least, max(least, 4 * fan // 3) + 1)


def neighbours(runs: Iterable[tuple[_Run, str]], fan: int) -> Iterator[list[_Run]]:
    """Divide run files, given in order with their names, into groups of about `fan` neighbours. The last may be small.

    The names of run files decide where a group ends. So a run file that is added or removed changes only the groups
    around it.
    """
    sizes = _group_sizes(fan)
    group: list[_Run] = []
    for run, name in runs:
        group.append(run)
        ends = crc32(name.encode("utf-8", "surrogateescape")) % max(1, len(sizes) // 2) == 0
        if len(group) >= sizes.start and (ends or len(group) == sizes.stop - 1):
            yield group
            group = []
    if group:
        yield group


def slices_read(merges: Merges, runs: int, buckets: int, parts: int, sides: int = 1) -> Iterator[int]:
    """Yield the number of slices that each stage after the first one reads, at most, if records are spread evenly.

    `runs` is the number of run files of the first stage, `parts` the number of parts of all buckets together. Run files
    of different `sides` (jobs) are not merged with each other.
    """
    least = _group_sizes(merges.fan).start
    files = together = runs
    ranges = 1
    for _ in range(merges.number):
        yield files * merges.fan
        together = min(together, -(-together // least) + sides - 1)
        ranges = min(buckets, ranges * merges.fan)
        files = max(runs, ranges * together)
    yield parts * -(-files // ranges)


def plan_merges(runs: int, buckets: int, parts: int, most: int, sides: int = 1) -> Merges | None:
    """Return the plan with the fewest merges in which no stage reads more than `most` slices; None if there is none.

    Of several such plans, return the one that reads the fewest slices in all. For the arguments see `slices_read`.
    """
    if runs * parts <= most:
        return NO_MERGES
    for number in range(1, MOST_MERGES + 1):
        plans = (Merges(number, fan) for fan in range(2, min(runs, most // runs) + 1))
        read = ((list(slices_read(plan, runs, buckets, parts, sides)), plan) for plan in plans)
        if found := [(sum(slices), plan.fan, plan) for slices, plan in read if max(slices) <= most]:
            return min(found)[2]
    return None


MOST_BUCKETS = 10_000_000


@dataclass(frozen=True)
class Partition:
    """The division of keys, in their order, into buckets. This division belongs to the job."""

    buckets: int
    sampled: str = ""  # the cuts between buckets, packed; empty if keys start with a hash, whose values divide evenly
    block_bytes: int = BLOCK_BYTES  # size of blocks of run files; limits how finely a bucket can be divided into parts
    merges: Merges = NO_MERGES  # the merges of run files before the buckets are read

    @classmethod
    def of_cuts(cls, cuts: Cuts, block_bytes: int = BLOCK_BYTES) -> Self:
        """Return the partition with given cuts, in ascending order. Each cut is the least key of a bucket."""
        packed = zlib.compress(orjson.dumps([cut.hex() for cut in cuts]), 9)
        return cls(len(cuts) + 1, base64.b85encode(packed).decode(), block_bytes)

    @classmethod
    def recorded(cls, parameters: Mapping[str, Any]) -> Self | None:
        """Return the partition among the parameters of a job; None if they have no valid partition."""
        if not isinstance(found := parameters.get("partition"), Mapping):
            return None
        buckets, cuts, block_bytes = found.get("buckets"), found.get("cuts", ""), found.get("block_bytes", BLOCK_BYTES)
        if not _is_number(buckets) or not _is_number(block_bytes) or not isinstance(cuts, str):
            return None
        number, fan = found.get("merges", 0), found.get("fan", 1)
        if type(number) is not int or not 0 <= number <= MOST_MERGES or not _is_number(fan) or (number and fan < 2):
            return None
        return cls(buckets, cuts, block_bytes, Merges(number, fan))

    def parameters(self) -> dict[str, Any]:
        """Return the partition as parameters of a job; see `recorded`."""
        found: dict[str, Any] = {"buckets": self.buckets, "block_bytes": self.block_bytes}
        if self.merges.number:
            found |= {"merges": self.merges.number, "fan": self.merges.fan}
        return {"partition": found | ({"cuts": self.sampled} if self.sampled else {})}

    def ranges(self, level: int) -> list[int]:
        """Return the first bucket of each range of a level, and the end of the last range.

        The level of a run file is the number of times that its records were merged. A run file has records of one range
        of its level. It is divided by the ranges of the next level; after the last merge, by the buckets themselves.
        """
        ranges = min(self.buckets, self.merges.fan**level) if level <= self.merges.number else self.buckets
        return [place * self.buckets // ranges for place in range(ranges + 1)]

    def inner(self, level: int) -> list[range]:
        """Return for each range of a level its ranges of the next level; see `ranges`."""
        places = {bucket: place for place, bucket in enumerate(self.ranges(level + 1))}
        return [range(places[first], places[last]) for first, last in pairwise(self.ranges(level))]

    def cuts_of(self, level: int) -> Cuts:
        """Return the least key of each range of a level except the first; see `ranges`."""
        cuts = self.cuts()
        return [cuts[bucket - 1] for bucket in self.ranges(level)[1:-1]]

    def cuts(self) -> Cuts:
        """Return the least key of each bucket except the first. LedgerDamagedError: the keys cannot be decoded."""
        if not self.sampled:
            return [(bucket * 2**64 // self.buckets).to_bytes(8, "big") for bucket in range(1, self.buckets)]
        try:
            found = [bytes.fromhex(cut) for cut in orjson.loads(zlib.decompress(base64.b85decode(self.sampled)))]
            if len(found) != self.buckets - 1 or any(one >= other for one, other in pairwise(found)):
                raise ValueError(f"expected {self.buckets - 1:,} in ascending order, found {len(found):,} or disorder")
        except (ValueError, TypeError, zlib.error) as error:
            raise LedgerDamagedError(f"the cuts between the buckets of this job cannot be decoded: {error}") from error
        return found


def _is_number(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 < value <= MOST_BUCKETS
