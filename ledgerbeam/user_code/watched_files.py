"""Watched files: files besides the sources that affect the outputs, such as a word list, identified by checksums."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b

from ledgerbeam.errors import ChangedSourceError, SourceNotFoundError, UsageError
from ledgerbeam.io import Options
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.urls import canonical_url
from ledgerbeam.ledger.model.part_texts import LONGEST, note_text

READ_BYTES = 8 << 20
"""Bytes of a file that are held in memory at once."""


def watched_checksums(urls: Iterable[str], options: Options | None = None) -> dict[str, str]:
    """Return the checksum of the content of each file, by its canonical URL.

    Raises:
        UsageError: A file does not exist.
        StorageError: A file cannot be read.
    """
    found: dict[str, str] = {}
    for url in map(canonical_url, urls):
        try:
            found[url] = _checksum(url, options)
        except SourceNotFoundError as error:
            raise UsageError(f"--watch-file {url}: there is no such file; name one that the function reads") from error
    return found


def require_unchanged(watched: Mapping[str, str], options: Options | None = None) -> None:
    """Check that files did not change since the job was created.

    Raises:
        ChangedSourceError: A file has another content or was deleted.
        StorageError: A file cannot be read.
    """
    for url, expected in watched.items():
        try:
            found = _checksum(url, options)
        except SourceNotFoundError:
            found = "no file"
        if found != expected:
            raise ChangedSourceError(
                f"{url}: this watched file has changed since the job was created: expected the checksum {expected}, "
                f"found {found}; restore it, or run the command again as another job (--on-job-change)"
            )


def _checksum(url: str, options: Options | None) -> str:
    digest = blake2b(digest_size=16)  # part of the job's identity: another algorithm would change every job
    text = b""
    with RangeReader(url, options) as reader:
        for block in reader.blocks(READ_BYTES):
            digest.update(block)
            text += block if len(text) <= LONGEST else b""
    if len(text) <= LONGEST:
        note_text(digest.hexdigest(), text.decode, is_code=False)
    return digest.hexdigest()
