"""Notes beside a ledger that record files made from all outputs of a job, so that a rerun makes only changed ones.

Functions compare files with recorded sizes and checksums.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from ledgerbeam.errors import LedgerbeamError, SourceNotFoundError
from ledgerbeam.io import Options, publish_bytes
from ledgerbeam.io.storage.files import delete, read_bytes
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import stat
from ledgerbeam.ledger import OutputShard
from ledgerbeam.ledger.model.identity import content_checksum
from ledgerbeam.ledger.model.values import decode, encode
from ledgerbeam.pipelines.outputs.recorded import require_own_folder

READ_BYTES = 4 * 2**20  # size of the blocks that a thread reads, in bytes


class OutputStamp:
    """The note of a product of a job's shards: the digest of the shards, and the files of the product.

    Args:
        shards: All shards of the job, in the order of its dataset manifest.
    """

    def __init__(self, work: str, name: str, fingerprint: str, shards: Iterable[OutputShard], options: Options) -> None:
        self._work = work
        self._url = f"{work}/{name}.json"
        self._options = options
        self._of = _digest(fingerprint, shards)

    def noted(self) -> dict[str, Any] | None:
        """Return the note if it records the same shards, without a check of its files; else None."""
        note = self._load()
        return note if note.get("of") == self._of and isinstance(note.get("files"), dict) else None

    def latest(self) -> dict[str, Any]:
        """Return the note, for any shards; empty if it is missing or unreadable."""
        return self._load()

    def forget(self) -> None:
        """Remove the note."""
        delete(self._url, self._options)

    def read(self) -> dict[str, Any] | None:
        """Return the note if it records the same shards and its files have their recorded sizes; else None."""
        note = self.noted()
        if note is None:
            return None
        try:
            changed = any(stat(url, self._options).size != size for url, size in note["files"].items())
        except SourceNotFoundError:
            return None
        return None if changed else note

    def begin(self) -> bool:
        """Record that the product is being made, so that a partial product is never taken for a complete one.

        Returns:
            Whether an earlier attempt was started and not finished.
        """
        unfinished = self._load().get("of", "") is None
        self._write({"of": None})
        return unfinished

    def end(self, files: Iterable[str], **facts: Any) -> None:
        """Record that the product is complete."""
        sizes = {url: stat(url, self._options).size for url in files}
        self._write({"of": self._of, "files": sizes, **facts})

    def _load(self) -> dict[str, Any]:
        """Return the note; empty if it is missing or unreadable, since the product can be made again."""
        require_own_folder(self._work)
        try:
            note = decode(read_bytes(self._url, self._options))
        except (SourceNotFoundError, ValueError):
            return {}
        return note if isinstance(note, dict) else {}

    def _write(self, note: dict[str, Any]) -> None:
        publish_bytes(self._url, encode(note), self._options)


def _digest(fingerprint: str, shards: Iterable[OutputShard]) -> str:
    """Return a digest of the shards: their order, names, contents and job."""
    digest = hashlib.blake2b(fingerprint.encode(), digest_size=16)
    for shard in shards:
        digest.update(f"\n{shard.name}\t{shard.checksum}".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def checksum_at(url: str, options: Options) -> str:
    """Return the checksum of a file."""
    with RangeReader(url, options) as reader:
        return content_checksum(reader.blocks(READ_BYTES))


def size_problem(url: str, size: int, options: Options) -> str | None:
    """Return the problem with a file's size or existence, without reading the file; else None."""
    try:
        found = stat(url, options).size
    except SourceNotFoundError:
        return f"expected {size} bytes, found no such file or object"
    except LedgerbeamError as error:
        return str(error)
    return None if found == size else f"expected {size} bytes, found {found}"


def content_problem(
    url: str, size: int, checksum: str, options: Options, span: tuple[int, int] | None = None
) -> str | None:
    """Return the problem with a file's size or content, else None. A file of another size is not read.

    Args:
        span: First byte to read and the byte after the last, the range of the checksum; None for the whole file.
    """
    start, stop = span or (0, size)
    try:
        with RangeReader(url, options) as reader:
            if reader.size != size:
                return f"expected {size} bytes, found {reader.size}"
            found = content_checksum(reader.blocks(READ_BYTES, start=start, stop=stop), like=checksum)
    except SourceNotFoundError:
        return f"expected {size} bytes, found no such file or object"
    except LedgerbeamError as error:
        return str(error)
    if found == checksum:
        return None
    where = "" if span is None else f"bytes {start} to {stop}: "
    return f"{where}expected the checksum {checksum}, found {found}"
