"""Other files than sources that shape the outputs, identified by their checksums: a word list, a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ledgerbeam.errors import ChangedSourceError, SourceNotFoundError, UsageError
from ledgerbeam.io import Options, canonical_url
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.ledger.model.rows import content_checksum

__all__ = ["require_unchanged", "watched_checksums"]

READ_BYTES = 8 << 20
"""What is held in memory of a file, however large that is."""


def watched_checksums(urls: Iterable[str], options: Options | None = None) -> dict[str, str]:
    """Return the checksum of the whole content of each file, by its canonical URL.

    Raises:
        UsageError: One of them does not exist.
        StorageError: One cannot be read.
    """
    found: dict[str, str] = {}
    for url in map(canonical_url, urls):
        try:
            found[url] = _checksum(url, options)
        except SourceNotFoundError as error:
            raise UsageError(f"--watch-file {url}: there is no such file; name one that the function reads") from error
    return found


def require_unchanged(watched: Mapping[str, str], options: Options | None = None) -> None:
    """Check that files are what they were when the job was started.

    Raises:
        ChangedSourceError: One has another content, or is gone.
        StorageError: One cannot be read.
    """
    for url, expected in watched.items():
        try:
            found = _checksum(url, options)
        except SourceNotFoundError:
            found = "no file"
        if found != expected:
            raise ChangedSourceError(
                f"{url}: this watched file has changed since the job began: expected the checksum {expected}, found "
                f"{found}; put it back, or run the job again, which then is another one (--on-job-change)"
            )


def _checksum(url: str, options: Options | None) -> str:
    with RangeReader(url, options) as reader:
        return content_checksum(reader.blocks(READ_BYTES))
