"""Shards of samples: a writer of shards of limited size, their descriptions, and ranges for lists of numbered names."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

from ledgerbeam.errors import RecordError, UsageError
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.urls import canonical_url
from ledgerbeam.io.tar.sample import Sample
from ledgerbeam.io.tar.writer import TarWriter

MAX_SAMPLES = 100_000  # default number of samples in a shard, as in webdataset
MAX_BYTES = 3_000_000_000  # default size in bytes after which a shard takes no more samples, as in webdataset
_NUMBER = re.compile(r"%(0\d+)?d")


class ShardWriter:
    """Writes samples to shards `<pattern with a number>`, and an index beside each shard.

    Use it as a context manager. A shard and its index appear when the shard is full, the last one when the body ends.
    If the body raises, the full shards stay, and the unfinished one is not written. Without samples no shard appears.

    Args:
        pattern: Path or URL with one `%d` or `%06d` for the number.
        max_samples: Limit of samples of a shard.
        max_bytes: Size in bytes after which a shard takes no more samples; so a shard may be larger by one sample.
        start: Number of the first shard.
        md5: Also compute the MD5 sum of each shard.

    Attributes:
        root: The canonical URL of the folder that holds all shards.
        shards: The complete shards, named relative to `root`.

    Raises:
        UsageError: The pattern does not have exactly one place for a number, or a limit is below 1.
    """

    def __init__(
        self,
        pattern: str,
        options: Options | None = None,
        *,
        max_samples: int = MAX_SAMPLES,
        max_bytes: int = MAX_BYTES,
        start: int = 0,
        md5: bool = False,
    ) -> None:
        pattern = canonical_url(pattern)
        if len(places := list(_NUMBER.finditer(pattern))) != 1:
            raise UsageError(f"{pattern}: expected one place for the number of a shard, such as %06d")
        if max_samples < 1 or max_bytes < 1 or start < 0:
            raise UsageError(
                f"{pattern}: expected limits of at least 1 and a first number of at least 0, found max_samples="
                f"{max_samples}, max_bytes={max_bytes}, start={start}"
            )
        self.root = pattern[: places[0].start()].rpartition("/")[0]
        self.shards: list[Shard] = []
        self._pattern = pattern
        self._width = int(places[0][1] or 0)
        self._options = options
        self._limits = max_samples, max_bytes
        self._number = start
        self._md5 = md5
        self._open: TarWriter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        shard, self._open = self._open, None
        if shard is not None:
            if error is not None or not shard.count:  # without samples: all were refused
                shard.abandon()
            else:
                shard.__exit__(None, None, None)
                self.shards.append(Shard(self._name(shard), shard.count, shard.size, shard.md5))

    @property
    def is_full(self) -> bool:
        """Whether the next sample starts a new shard."""
        shard = self._open
        return shard is not None and (shard.count >= self._limits[0] or shard.size >= self._limits[1])

    def write(self, sample: Sample | Mapping[str, Any]) -> None:
        """Write a sample.

        Args:
            sample: Members by extension, with content as bytes; or a mapping as for webdataset's writer, with the key
                under `__key__`. Other names that start with two underscores are left out.

        Raises:
            RecordError: Readers would group or name the sample differently; see `TarWriter.add`. Nothing of the sample
                was written, and the writer can still be used.
            DiskFullError: No space is left; also StorageError.
        """
        if not isinstance(sample, Sample):
            key = sample.get("__key__") if isinstance(sample, Mapping) else None
            if not isinstance(key, str):
                expected = "a Sample or a mapping with the key under '__key__'"
                raise RecordError(f"{self._pattern}: expected {expected}, found {sample!r:.80}")
            sample = Sample(key, {name: sample[name] for name in sample if not str(name).startswith("__")})
        self.place(sample)

    def place(self, sample: Sample) -> tuple[str, list[int]]:
        """Write a sample; return the name of its shard, and the offset of the header of each member."""
        if self.is_full:
            self.__exit__(None, None, None)
        if (shard := self._open) is None:
            url = _NUMBER.sub(f"{self._number:0{self._width}d}", self._pattern)
            shard = self._open = TarWriter(url, self._options, md5=self._md5)
            self._number += 1
        return self._name(shard), shard.add(sample)

    def _name(self, shard: TarWriter) -> str:
        return shard.url[len(self.root) :].lstrip("/")


_NUMBERED = re.compile(r"([0-9]+)")


def collapse_names(names: Iterable[str]) -> list[str]:
    """Return names with ranges instead of neighbours that count up: `a-0.tar`, `a-1.tar` become `a-{0..1}.tar`.

    `expand_braces` of all results returns the original names in order. The ranges are the same as in Energon 7.4.1.
    """
    found: list[str] = []
    run: list[list[str]] = []
    place = -1
    for name in names:
        parts = _NUMBERED.split(name)
        step = _counting_position(run[-1], parts) if run else -1
        if step >= 0 and (len(run) == 1 or step == place):
            run.append(parts)
            place = step
            continue
        found += _format_run(run, place)
        run, place = [parts], -1
    return found + _format_run(run, place)


def _counting_position(before: list[str], after: list[str]) -> int:
    """Return the position of the only part that differs, a number that is 1 higher with as many digits; else -1."""
    if len(before) != len(after):
        return -1
    changed = [at for at, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    if len(changed) != 1 or changed[0] % 2 == 0:
        return -1
    old, new = before[changed[0]], after[changed[0]]
    return changed[0] if len(old) == len(new) and int(new) == int(old) + 1 else -1


def _format_run(run: list[list[str]], place: int) -> list[str]:
    if len(run) < 2:
        return ["".join(parts) for parts in run]
    parts = list(run[0])
    parts[place] = f"{{{parts[place]}..{run[-1][place]}}}"
    return ["".join(parts)]


class ShardLike(Protocol):
    """A shard in the manifest of a job, or a `Shard`, which describes the attributes."""

    @property
    def name(self) -> str: ...
    @property
    def records(self) -> int: ...
    @property
    def size(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard of a dataset.

    Attributes:
        name: Path relative to the root of the dataset.
        records: Number of samples.
        size: Size in bytes.
        md5: MD5 sum of its bytes in hexadecimal, if known.
    """

    name: str
    records: int
    size: int
    md5: str | None = None


def filled(shards: Iterable[ShardLike], root: str) -> Iterator[ShardLike]:
    """Yield the shards that have samples. UsageError if a name is empty, a duplicate, or not below the root."""
    seen = set()
    for shard in shards:
        name = shard.name
        if not name or name in seen or "://" in name or posixpath.normpath(f"/./{name}") != f"/{name}":
            found = "a second time" if name in seen else "as the name of a shard"
            raise UsageError(
                f"{root}: found {name!r} {found}; expected the path of each shard once, relative to the root"
            )
        seen.add(name)
        if shard.records:
            yield shard
