"""Writing samples to numbered shards of limited size."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from ledgerbeam.errors import RecordError, UsageError
from ledgerbeam.io.datasets.webdataset.shards import Shard
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.urls import canonical_url
from ledgerbeam.io.tar.sample import Sample
from ledgerbeam.io.tar.writer import TarWriter

MAX_SAMPLES = 100_000
"""Default number of samples in a shard, as in webdataset."""

MAX_BYTES = 3_000_000_000
"""Default number of bytes after which a shard takes no more samples, as in webdataset."""

_NUMBER = re.compile(r"%(0\d+)?d")


class ShardWriter:
    """Writes samples to `<pattern with a number>` and an index beside each shard.

    A context manager. A shard and its index appear when the shard is full, the last one when the body ends. If the body
    raises, the full shards stay, and the unfinished one is not written. Without samples there are no shards.

    Args:
        pattern: Path or URL with one `%d` or `%06d` in it for the number.
        options: Storage options.
        max_samples: A shard takes no more samples than this.
        max_bytes: A shard that has reached this size takes no more samples; so it may be larger by one sample.
        start: Number of the first shard.
        md5: Also compute the MD5 sum of each shard.

    Attributes:
        root: The canonical URL of the folder below which the names of shards vary.
        shards: The shards that are complete, named relative to `root`.

    Raises:
        UsageError: The pattern has not exactly one place for a number, or a limit is below 1.
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
        places = list(_NUMBER.finditer(pattern))
        if len(places) != 1:
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shard, self._open = self._open, None
        if shard is not None:
            if error is not None or not shard.count:  # none: what was given to it was refused
                shard.abandon()
            else:
                shard.__exit__(None, None, None)
                self._note(shard)

    @property
    def is_full(self) -> bool:
        """Whether the next sample begins another shard than the present one."""
        shard = self._open
        return shard is not None and (shard.count >= self._limits[0] or shard.size >= self._limits[1])

    def write(self, sample: Sample | Mapping[str, Any]) -> None:
        """Write a sample.

        Args:
            sample: Its members by extension, content as bytes; or a mapping as webdataset's writer takes it, with the
                key under `__key__`, of which other names that begin with two underscores are left out.

        Raises:
            RecordError: A sample that readers would group or name otherwise; see `TarWriter.add`. Nothing of it was
                written, and the writer may go on.
            DiskFullError: No space is left; also StorageError.
        """
        self.place(sample_of(sample, self._pattern))

    def place(self, sample: Sample) -> tuple[str, list[int]]:
        """Write a sample and return its place.

        Returns:
            The name of its shard, and the byte at which the header of each member begins.
        """
        if self.is_full:
            self.__exit__(None, None, None)
        shard = self._open
        if shard is None:
            url = _NUMBER.sub(f"{self._number:0{self._width}d}", self._pattern)
            shard = self._open = TarWriter(url, self._options, md5=self._md5)
            self._number += 1
        return self._name(shard), shard.add(sample)

    def _note(self, shard: TarWriter) -> None:
        self.shards.append(Shard(self._name(shard), shard.count, shard.size, shard.md5))

    def _name(self, shard: TarWriter) -> str:
        return shard.url[len(self.root) :].lstrip("/")


def sample_of(sample: Sample | Mapping[str, Any], place: str) -> Sample:
    """Take a sample as it is, or make one of a mapping with `__key__`.

    Args:
        sample: As in `ShardWriter.write`.
        place: Where it goes, for messages.

    Raises:
        RecordError: There is no key.
    """
    if isinstance(sample, Sample):
        return sample
    key = sample.get("__key__") if isinstance(sample, Mapping) else None
    if not isinstance(key, str):
        raise RecordError(f"{place}: expected a Sample or a mapping with the key under '__key__', found {sample!r:.80}")
    return Sample(key, {name: sample[name] for name in sample if not str(name).startswith("__")})
