"""Which slices of which run files make each bucket of an exchange: gathered from the footers, and looked up.

    <place>.runs      JSON: for each run the name of its file, and the URLs of the sources that it is of
    <place>.slices    for each bucket, and in it for each run, its entry of `run_file.ENTRY`

Both are written once, when all run files are there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ledgerbeam.errors import RunFileError
from ledgerbeam.io.exchange.merge import SliceOf, read_ranges
from ledgerbeam.io.exchange.run_file import ENTRY, parse_footer, tail_bytes
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.files import read_bytes
from ledgerbeam.io.storage.publish import publish, publish_bytes

__all__ = ["EARLIER", "RUNS", "SLICES", "BucketRow", "RunFile", "SliceTables"]

RUNS, SLICES = ".runs", ".slices"
"""What the names of the two files end with."""

EARLIER = "\1"
"""Begins the names of run files that an earlier job has written elsewhere, of which the URLs follow, and the URLs of
their sources. Their records come before all others, are only compared with, and stay."""

_AT_ONCE = 1024  # footers

HELD_BYTES = 256 * 1024 * 1024
"""Entries of so many buckets are held at once."""


class RunFile(NamedTuple):
    """A run file of an exchange.

    Attributes:
        name: Of the file, below the folder of all of them; `EARLIER` and its URL if it lies elsewhere.
        size: Of the file.
        sources: URLs of what its records are of: one, or the files of a pack, in order.
    """

    name: str
    size: int
    sources: tuple[str, ...]

    def url(self, folder: str) -> str:
        """Return where it lies.

        Args:
            folder: Of those that do not lie elsewhere.
        """
        return self.name.removeprefix(EARLIER) if self.is_earlier else f"{folder}/{self.name}"

    @property
    def is_earlier(self) -> bool:
        """Whether an earlier job has written it."""
        return self.name.startswith(EARLIER)


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

    def write(self, runs: Sequence[RunFile], buckets: int) -> list[BucketRow]:
        """Read the footers of all run files, and write which slices make each bucket.

        Args:
            runs: All of them, in order.
            buckets: How many there are.

        Returns:
            The buckets.

        Raises:
            RunFileError: A run file is damaged; also the errors of reading it.
        """
        options = dict(self.storage_options)
        named = json.dumps([[run.name, run.sources] for run in runs], separators=(",", ":"))  # perhaps not in UTF-8
        publish_bytes(f"{self.place}{RUNS}", named.encode(), options)
        at_once = max(1, HELD_BYTES // (ENTRY.itemsize * max(1, len(runs))))
        found: list[BucketRow] = []
        with publish(f"{self.place}{SLICES}", options) as file:
            for first in range(0, buckets, at_once):
                entries = _entries(self.folder, runs, buckets, slice(first, first + at_once), options)
                file.write(entries.tobytes())
                found += [_bucket_row(row, runs) for row in entries]
        return found

    def runs(self) -> list[RunFile]:
        """Return all runs, in order."""
        data = read_bytes(f"{self.place}{RUNS}", dict(self.storage_options))
        return [RunFile(name, 0, tuple(urls)) for name, urls in json.loads(data)]

    def slices(self, runs: Sequence[RunFile], bucket: int, version: str) -> list[SliceOf]:
        """Return the slices of a bucket that have records, in the order of the runs.

        Args:
            runs: All of them, as of `runs`.
            bucket: Its number.
            version: That it must have.

        Raises:
            RunFileError: The tables say something else than when they were written.
        """
        size, url = len(runs) * ENTRY.itemsize, f"{self.place}{SLICES}"
        data = read_ranges([(url, bucket * size, (bucket + 1) * size)], dict(self.storage_options))[0]
        entries = np.frombuffer(data, ENTRY)
        if _bucket_row(entries, runs).version != version:
            raise RunFileError(
                f"{url}: expected bucket {bucket} of version {version}, found other slices; delete this file and run "
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
        columns.append(parse_footer(data, run.size, buckets, run.url(folder))[some])
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
    records = int(entries["records"].sum(dtype=np.uint64))
    return BucketRow(int(entries["size"].sum(dtype=np.uint64)), records, digest.hexdigest() if records else "")
