"""What was made of all outputs of a job, noted beside its ledger, so that a rerun makes it only of others."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from ledgerbeam.errors import SourceNotFoundError
from ledgerbeam.io import Options, publish_bytes
from ledgerbeam.io.storage.files import delete, read_bytes
from ledgerbeam.io.storage.stat import stat
from ledgerbeam.ledger import OutputShard
from ledgerbeam.ledger.model.values import decode, encode
from ledgerbeam.pipelines.outputs.removal import require_own_folder


class OutputStamp:
    """The note of one thing that is made of a job's shards: of which, and which files it is.

    Args:
        work: The work folder of the job's ledger.
        name: Of the note.
        fingerprint: Of the job.
        shards: All shards of the job, in the order of its dataset manifest.
        options: Storage options.
    """

    def __init__(self, work: str, name: str, fingerprint: str, shards: Iterable[OutputShard], options: Options) -> None:
        self._work = work
        self._url = f"{work}/{name}.json"
        self._options = options
        self._of = _digest(fingerprint, shards)

    def noted(self) -> dict[str, Any] | None:
        """Return what was noted if it was made of these very shards, whatever became of its files."""
        note = self._load()
        return note if note.get("of") == self._of and isinstance(note.get("files"), dict) else None

    def latest(self) -> dict[str, Any]:
        """Return what was noted, whichever shards it was made of; nothing if that does not read."""
        return self._load()

    def forget(self) -> None:
        """Remove the note."""
        delete(self._url, self._options)

    def read(self) -> dict[str, Any] | None:
        """Return what was noted if it was made of these very shards, and its files have the sizes they had."""
        note = self.noted()
        if note is None:
            return None
        try:
            changed = any(stat(url, self._options).size != size for url, size in note["files"].items())
        except SourceNotFoundError:
            return None
        return None if changed else note

    def begin(self) -> bool:
        """Note that it is being made: until it is whole, nothing may take it for that of other shards.

        Returns:
            Whether making it was begun before, and did not end.
        """
        unfinished = self._load().get("of", "") is None
        self._write({"of": None})
        return unfinished

    def end(self, files: Iterable[str], **facts: Any) -> None:
        """Note that it is made.

        Args:
            files: URLs of all that it is.
            **facts: What else `noted` and `read` are to give.
        """
        sizes = {url: stat(url, self._options).size for url in files}
        self._write({"of": self._of, "files": sizes, **facts})

    def _load(self) -> dict[str, Any]:
        """Return the note; one that does not read is as good as none, since it is made again."""
        require_own_folder(self._work)
        try:
            note = decode(read_bytes(self._url, self._options))
        except (SourceNotFoundError, ValueError):
            return {}
        return note if isinstance(note, dict) else {}

    def _write(self, note: dict[str, Any]) -> None:
        publish_bytes(self._url, encode(note), self._options)


def _digest(fingerprint: str, shards: Iterable[OutputShard]) -> str:
    """Name the shards: their order, names and content, and what job they are of."""
    digest = hashlib.blake2b(fingerprint.encode(), digest_size=16)
    for shard in shards:
        digest.update(f"\n{shard.name}\t{shard.checksum}".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
