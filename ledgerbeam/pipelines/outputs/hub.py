"""Publication to the Hugging Face Hub: upload missing files, then update the folder in one commit.

A note in the same commit, `.ledgerbeam/<ledger id>.json`, lists the files of this ledger and their checksums. A later
publication need not read these files again. It replaces or removes only files in the note that are still unchanged on
the Hub. All other files belong to others.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ledgerbeam.errors import PublicationError, StorageError, UsageError
from ledgerbeam.io import Options
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import stat_many
from ledgerbeam.io.storage.urls import is_local
from ledgerbeam.ledger import OutputShard
from ledgerbeam.ledger.model.faults import fault_point
from ledgerbeam.ledger.model.identity import ContentDigest
from ledgerbeam.ledger.model.values import decode, encode
from ledgerbeam.pipelines.console.run_progress import count

if TYPE_CHECKING:
    from ledgerbeam.io.storage.hub_dataset import HubDataset, HubFile, Upload


CARD = "README.md"  # name of the dataset card, in the root folder. People edit it on the Hub.
FORMAT = 1  # version of the note format
MOST_IN_COMMIT = 256 * 1024 * 1024  # maximum size of the regular files in one commit, in bytes
_TRIES = 5  # attempts to commit while others commit
_SENT_AT_ONCE = 64 * 1024 * 1024  # bytes of small files in one upload with Xet: a kill repeats at most one upload
_MOST_AT_ONCE = 256
_BLOCK = 8 * 1024 * 1024
_LARGEST_REGULAR = 16 * 1024 * 1024  # larger files are always in large file storage and need no Git hash
_MOST_NAMED = 5


@dataclass(frozen=True)
class LocalFile:
    """A file to publish."""

    name: str  # name relative to the folder on the Hub
    url: str
    size: int
    # Checksum in the ledger, see `ledger.model.identity`; None for files that the ledger does not record.
    checksum: str | None = None


@dataclass(frozen=True)
class HubPublication:
    """The result of a publication."""

    url: str  # URL of the folder on the Hub
    commit: str | None  # commit of the publication; None if nothing has changed
    added: list[str]  # files that the folder did not have
    replaced: list[str]  # files that the folder had with another content
    removed: list[str]  # files of an earlier publication of this ledger that are no longer in the dataset
    same: int  # number of files that the folder had with the same content
    kept: list[str]  # files of an earlier publication that others have changed. They stay


@dataclass(frozen=True)
class _Content:
    """Hashes of the content of a file: SHA-256, the Git hash (None for large files), and the ledger's checksum."""

    sha256: str
    git: str | None
    checksum: str

    def is_that_of(self, file: HubFile | None) -> bool:
        return file is not None and file.version in (self.sha256, self.git)


@dataclass
class _Changes:
    """Changes of one commit, by file, and the files that it does not change."""

    added: list[LocalFile] = field(default_factory=list)
    replaced: list[LocalFile] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    same: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)  # existing files with content that the ledger has not published


def files_of(shards: Sequence[OutputShard], root: str, made: Sequence[str], options: Options) -> list[LocalFile]:
    """Return the files of a dataset, with names relative to the output folder."""
    others = [f"{root}/{shard.index}" for shard in shards if shard.index is not None] + list(made)
    data = [LocalFile(shard.name, f"{root}/{shard.name}", shard.size, shard.checksum) for shard in shards]
    return data + [LocalFile(info.url[len(root) + 1 :], info.url, info.size) for info in stat_many(others, options)]


def publish_to_hub(
    url: str,
    files: Sequence[LocalFile],
    *,
    ledger_id: str,
    options: Options,
    overwrite: bool = False,
    on_file: Callable[[int, int], None] | None = None,
) -> HubPublication:
    """Update a folder of the Hub to hold these files: upload missing files, then make one commit.

    After a kill, the next call uploads only the files that the Hub does not have. Nothing is visible before the commit.

    Args:
        url: `hf://datasets/OWNER/NAME[@BRANCH][/FOLDER]`; the dataset and the branch exist.
        ledger_id: ID of the ledger, with the route if the dataset is a route.
        options: Storage options of the files; for local files, endpoint and token of the Hub (default: environment).
        overwrite: Whether to replace files that this ledger has not published.
        on_file: Called after each upload with the number of files (1) and their size in bytes.

    Raises:
        PublicationError: Every attempt collided with another commit.
    """
    from ledgerbeam.io.storage.hub_dataset import HubDataset  # noqa: PLC0415 - an optional package

    place = HubDataset(url, options if all(is_local(file.url) for file in files) else {})
    if place.folder and any(file.name == CARD for file in files):
        raise UsageError(f"{url}: the dataset card {CARD} must be in the root folder; leave /{place.folder} out")
    return _Publisher(place, files, f".ledgerbeam/{ledger_id}.json", options, on_file).run(overwrite=overwrite)


@dataclass(eq=False)
class _Publisher:
    """One publication. Uploads and hashes are kept when another commit forces a retry."""

    place: HubDataset
    files: Sequence[LocalFile]
    note: str
    options: Options
    on_file: Callable[[int, int], None] | None
    _contents: dict[str, _Content] = field(default_factory=dict)
    _uploads: dict[str, Upload] = field(default_factory=dict)

    def run(self, *, overwrite: bool) -> HubPublication:
        with tempfile.TemporaryDirectory(prefix="ledgerbeam-hub-") as scratch:
            for _ in range(_TRIES):
                done = self._try(self.place.head(), scratch, overwrite=overwrite)
                if done is not None:
                    return done
        raise PublicationError(
            f"{self.place.url}: another commit was made during each of {_TRIES} attempts; run the same command "
            "again: the files are uploaded already"
        )

    def _try(self, head: str, scratch: str, *, overwrite: bool) -> HubPublication | None:
        """Publish on top of the commit `head`; return None if another commit was made on top of it meanwhile."""
        there = self.place.files(head)
        noted = self._noted(head, there)
        plan = self._plan(there, noted, overwrite=overwrite)
        if plan.strangers:
            raise UsageError(
                f"{self.place.url}: {_named(plan.strangers)} there with content that this ledger has not published; "
                "publish to another folder, or replace such files with --overwrite"
            )
        for batch in _batches([file for file in (*plan.added, *plan.replaced) if file.name not in self._uploads]):
            self._send(batch, scratch)
        kept = {name: noted[name] for name in plan.kept if name == CARD}
        others = (file for file in self.files if file.name not in kept)
        note = kept | {file.name: self._content(file, noted.get(file.name)) for file in others}
        if note == noted and not (plan.added or plan.replaced or plan.removed):
            return self._done(plan, None)
        uploads = [self._uploads[file.name] for file in (*plan.added, *plan.replaced)]
        self._require_small(uploads)
        fault_point("hub.commit")
        uploads += self.place.send({self.note: _encoded(note)}).values()
        made = self.place.commit(uploads, plan.removed, head, _title(plan))
        fault_point("hub.committed")
        return None if made is None else self._done(plan, made)

    def _done(self, plan: _Changes, commit: str | None) -> HubPublication:
        added, replaced = ([file.name for file in files] for files in (plan.added, plan.replaced))
        return HubPublication(self.place.url, commit, added, replaced, plan.removed, len(plan.same), plan.kept)

    def _noted(self, head: str, there: Mapping[str, HubFile]) -> dict[str, _Content]:
        """Return the files in the note of the last publication of this ledger, with the hashes of their contents."""
        if self.note not in there:
            return {}
        try:
            note = decode(self.place.read(self.note, head))
            if note["format"] != FORMAT:
                raise ValueError(f"format {note['format']}")
            return {name: _Content(*names) for name, names in note["files"].items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StorageError(
                f"{self.place.url}/{self.note}: expected the list of published files, found another file ({error}); "
                "use the version of ledgerbeam that wrote it, or delete it on the Hub and use --overwrite"
            ) from error

    def _plan(self, there: Mapping[str, HubFile], noted: Mapping[str, _Content], *, overwrite: bool) -> _Changes:
        plan = _Changes()
        for file in self.files:
            found, before = there.get(file.name), noted.get(file.name)
            if found is None:
                plan.added.append(file)
            elif self._content(file, before).is_that_of(found):
                plan.same.append(file.name)
            elif before is not None and before.is_that_of(found):
                plan.replaced.append(file)
            elif file.name == CARD and before is not None and self._content(file, before) == before:
                plan.kept.append(file.name)
            elif overwrite:
                plan.replaced.append(file)
            else:
                plan.strangers.append(file.name)
        ours = {file.name for file in self.files}
        for name, before in noted.items():
            if name not in ours and name in there:
                (plan.removed if before.is_that_of(there[name]) else plan.kept).append(name)
        return plan

    def _content(self, file: LocalFile, before: _Content | None) -> _Content:
        """Return the hashes of a file's content, without reading it if the last publication had the same content."""
        if before is not None and file.checksum == before.checksum:
            return before
        if file.name not in self._contents:
            self._contents[file.name] = _content_of(file, _blocks(file, self.options))
        return self._contents[file.name]

    def _send(self, batch: Sequence[LocalFile], scratch: str) -> None:
        """Upload the large files of a batch, remote ones from a local copy. The commit will upload the small files."""
        paths = {file.name: self._local(file, scratch) for file in batch}
        fault_point("hub.send")
        uploads = self.place.send(paths)
        fault_point("hub.sent")
        for file in batch:
            upload = uploads[file.name]
            if upload.sha256 is not None:
                if upload.sha256 != self._contents[file.name].sha256:
                    raise StorageError(f"{file.url}: it changed during its upload; run the same command again")
                if paths[file.name] != file.url:
                    os.unlink(paths[file.name])
            self._uploads[file.name] = upload
            if self.on_file is not None:
                self.on_file(1, upload.size)

    def _require_small(self, uploads: Sequence[Upload]) -> None:
        """Raise UsageError if files that the Hub stores in Git are too large for one commit, which is one request."""
        held = [upload.size for upload in uploads if upload.sha256 is None]
        if sum(held) > MOST_IN_COMMIT:
            raise UsageError(
                f"{self.place.url}: expected at most {MOST_IN_COMMIT:,} bytes of files that the Hub stores in Git, "
                f"found {count(len(held), 'file')} with {sum(held):,} bytes; make larger shards, or list large files "
                "in .gitattributes of the dataset (*.jsonl filter=lfs diff=lfs merge=lfs -text)"
            )

    def _local(self, file: LocalFile, scratch: str) -> str:
        """Return the path of a local file, or of a new copy of a remote file. Store the hashes of the content."""
        if is_local(file.url):
            self._content(file, None)
            return file.url
        descriptor, path = tempfile.mkstemp(dir=scratch)
        with open(descriptor, "wb") as copy:
            self._contents[file.name] = _content_of(file, _copied(_blocks(file, self.options), copy))
        return path


def _batches(files: Sequence[LocalFile]) -> Iterator[list[LocalFile]]:
    """Split files into batches. The client sends one request per batch to get the method of upload."""
    batch: list[LocalFile] = []
    size = 0
    for file in files:
        if batch and (size + file.size > _SENT_AT_ONCE or len(batch) == _MOST_AT_ONCE):
            yield batch
            batch, size = [], 0
        batch.append(file)
        size += file.size
    if batch:
        yield batch


def _blocks(file: LocalFile, options: Options) -> Iterator[bytes]:
    with RangeReader(file.url, options) as reader:
        yield from reader.blocks(_BLOCK)


def _copied(blocks: Iterator[bytes], copy: Any) -> Iterator[bytes]:
    for block in blocks:
        copy.write(block)
        yield block


def _content_of(file: LocalFile, blocks: Iterator[bytes]) -> _Content:
    sha256, checksum = hashlib.sha256(), ContentDigest(file.checksum)
    small: bytes | None = b""
    for block in blocks:
        sha256.update(block)
        checksum.update(block)
        small = None if small is None or len(small) + len(block) > _LARGEST_REGULAR else small + block
    if file.checksum not in (None, checksum.checksum):
        raise StorageError(
            f"{file.url}: expected the recorded content with checksum {file.checksum}, found "
            f"{checksum.checksum}; nothing was published; to check all files: ledgerbeam ledger verify LEDGER"
        )
    git_name = None
    if small is not None:
        git_name = hashlib.sha1(b"blob %d\0" % len(small) + small, usedforsecurity=False).hexdigest()
    return _Content(sha256.hexdigest(), git_name, checksum.checksum)


def _encoded(note: Mapping[str, _Content]) -> bytes:
    files = {name: [one.sha256, one.git, one.checksum] for name, one in sorted(note.items())}
    return encode({"format": FORMAT, "files": files})


def _title(plan: _Changes) -> str:
    done = [
        f"{verb} {count(len(files), 'file')}"
        for verb, files in (("add", plan.added), ("replace", plan.replaced), ("remove", plan.removed))
        if files
    ]
    return f"ledgerbeam publish: {', '.join(done) or 'note of what is here'}"


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MOST_NAMED])
    more = f" and {count(len(names) - _MOST_NAMED, 'other')}" if len(names) > _MOST_NAMED else ""
    return f"{shown}{more} {'is' if len(names) == 1 else 'are'}"
