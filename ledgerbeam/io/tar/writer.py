"""Write an archive sample by sample, with its index."""

from __future__ import annotations

import contextlib
import hashlib
from array import array
from types import TracebackType
from typing import Self

import numpy as np

from ledgerbeam.errors import RecordError
from ledgerbeam.io.index.file import write_index
from ledgerbeam.io.index.location import index_beside
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.publish import publish
from ledgerbeam.io.storage.urls import canonical_url
from ledgerbeam.io.tar.encode import encode_sample, end_marker
from ledgerbeam.io.tar.sample import Sample


class TarWriter:
    """Writes one archive, grouped by key, and `<url>.idx`.

    A context manager. When its body ends, the archive appears, then the index; if the body raises, neither appears. The
    bytes are the same as those of `encode_tar`. Memory: one sample, and 8 bytes for each sample written.

    Args:
        url: The archive.
        options: Storage options.
        md5: Whether to compute the MD5 sum of the archive.

    Attributes:
        url: The canonical URL.
        count: Number of samples so far.
        size: Bytes so far; at the end the size of the archive.
        md5: MD5 sum of the complete archive in hexadecimal, if requested.
    """

    def __init__(self, url: str, options: Options | None = None, *, md5: bool = False) -> None:
        self.url = canonical_url(url)
        self.count = 0
        self.size = 0
        self.md5: str | None = None
        self._options = options
        self._digest = hashlib.md5(usedforsecurity=False) if md5 else None
        self._starts = array("Q")
        self._key: str | None = None
        self._stack = contextlib.ExitStack()
        self._file = self._stack.enter_context(publish(self.url, options))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.abandon()
            return
        with self._stack:
            end = self.size
            self._write(end_marker(end))
        write_index(index_beside(self.url), np.array([*self._starts, end], np.uint64), self._options)
        self.md5 = None if self._digest is None else self._digest.hexdigest()

    def abandon(self) -> None:
        """End without publishing an archive."""
        error = RuntimeError(f"{self.url}: abandoned")
        self._stack.__exit__(RuntimeError, error, None)  # so that `publish` removes the partial file

    def add(self, sample: Sample) -> list[int]:
        """Write a sample.

        Args:
            sample: A sample of at least one member; the contents are bytes.

        Returns:
            The offset of the header of each member.

        Raises:
            RecordError: A sample that readers would group or name differently (see `encode_tar`), or with the key of
                the previous sample. Nothing of it was written.
            DiskFullError: No space is left; also StorageError.
        """
        try:
            data, starts = encode_sample(sample, self.count)
        except RecordError as error:
            raise RecordError(f"{self.url}: {error}") from error
        if sample.key == self._key:
            raise self._refused(sample, "has the key of the one before", "expected another key")
        start = self.size
        self._write(data)
        self._starts.append(start)
        self.count += 1
        self._key = sample.key
        return [start + offset for offset in starts]

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self.size += len(data)
        if self._digest is not None:
            self._digest.update(data)

    def _refused(self, sample: Sample, found: str, expected: str) -> RecordError:
        return RecordError(f"{self.url}: sample {self.count} ({sample.key!r}) {found}; {expected}")
