"""Files of answers: their names, their blocks, and the folder that holds them.

``SOURCE/START-STOP-ID.answers`` has the answers to calls of one task, in the order of the calls. If answers are kept
across jobs, a run packs all files at its end into ``packed/HASH.answers``.

A file is a sequence of blocks: a head with sizes and a checksum, then compressed entries, each with the key of its
request, its size and its bytes. A block at the end of a local file that was cut off by a crash is ignored.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from itertools import chain, compress
from typing import Any

from ledgerbeam._base.process import library_logger
from ledgerbeam.io.storage.objects import ObjectFolder, list_files
from ledgerbeam.io.storage.publish import TEMPORARY_SUFFIX, publish_bytes, remove_stale_temporaries
from ledgerbeam.io.storage.urls import is_local
from ledgerbeam.ledger.model.faults import fault_point
from ledgerbeam.ledger.model.store import LedgerStore
from ledgerbeam.ledger.worker.limits import Limit

_log = library_logger(__name__)

ENDING = ".answers"
PACKED = "packed"  # folder of packed files
ENTRY = struct.Struct("<16sI")  # key and bytes of an answer
DAMAGED = "%s: damaged at byte %s; the calls whose answers were there are made again"
_HEAD = struct.Struct("<8sII")  # a checksum of what follows; bytes of the compressed entries, and of the entries
_SIZES = struct.Struct("<II")
_MOST_BYTES = 2**29  # of a block; a larger size in a head is damage, or text of another file
# ID of the source, first record of the task and one past its last; or the hash of a packed file
_NAME = re.compile(rf"(?:([0-9a-f]{{32}})/(\d+)-(\d+)-|{PACKED}/)[0-9A-Za-z-]+\.answers")

_THREADS = 16
_READ_FILES, _READ_BYTES = 64, 64 * 2**20  # most files and bytes that are read at once
_BLOCK_BYTES = 2**20  # of the entries in a block of a packed file
_PACK_BYTES, _LAST_BLOCK = 64 * 2**20, 2**21  # size of a packed file, and room that its last block needs
_MERGED, _MERGED_BYTES = 16, 16 * 2**20  # this many packed files below this size become larger ones


def source_of(name: str) -> bytes:
    """Return the ID of the source of a file; empty for a packed file."""
    named = _NAME.fullmatch(name)
    return bytes.fromhex(named[1] or "") if named else b""


def overlaps(name: str, start: int, stop: int) -> bool:
    """Return whether a file has answers of a task with one of these records."""
    named = _NAME.fullmatch(name)
    return named is not None and int(named[2]) < stop and start < int(named[3])


@dataclass(frozen=True)
class AnswersPlace:
    """The folder with the answers of a job, by source; or of several jobs, which keep them there."""

    folder: str  # its URL
    options: Mapping[str, Any] = field(default_factory=dict)
    is_kept: bool = False  # whether answers stay when their source is complete
    run: str = ""  # run that uses them
    ledger: str = ""  # URL of the ledger of the job
    replays: bool = False  # whether stored answers are used only, and no call is made
    limits: Sequence[Limit] = ()  # of the calls of the job
    is_indexed: bool = False  # whether the launcher of the run has indexed them on this host

    @classmethod
    def of(cls, ledger: str, kept: str | None, options: Mapping[str, Any], **more: Any) -> AnswersPlace:
        """Return the place of a job: the folder `kept`, or if it is None, a folder beside its ledger."""
        return cls(kept or f"{ledger}/work/answers", options, kept is not None, ledger=ledger, **more)

    def files(self, below: str = "") -> dict[str, int]:
        """Return the sizes in bytes of the files of answers, by name. `below` is a subfolder.

        Packed files are listed last: of answers that are packed meanwhile, at least one file is found.
        """
        return {name: size for name, size in self._listed(below) if _NAME.fullmatch(name)}

    def _listed(self, below: str) -> Iterator[tuple[str, int]]:
        for part in ("", PACKED) if self.is_kept and not below else (below,):
            for page in list_files(f"{self.folder}/{part}".rstrip("/"), dict(self.options)):
                for name, size in zip(page.names, page.sizes, strict=True):
                    yield f"{part}/{name}".lstrip("/"), size

    def contents(self, files: Mapping[str, int]) -> Iterator[tuple[str, bytes | None]]:
        """Yield names and bytes of files, in order; None for a file that was packed or forgotten meanwhile."""
        group: list[str] = []
        for name in sorted(files):
            if len(group) == _READ_FILES or (group and sum(map(files.__getitem__, [*group, name])) > _READ_BYTES):
                yield from self._read(group)
                group = []
            group.append(name)
        yield from self._read(group)

    def _read(self, names: Sequence[str]) -> Iterator[tuple[str, bytes | None]]:
        return zip(names, ObjectFolder(self.folder, dict(self.options)).read(names), strict=True)

    def entries(self) -> Iterator[tuple[bytes, bytes, bytes, int]]:
        """Yield source, key, answer and the stored bytes of its file, which are 0 for all but its first answer."""
        for name, data in self.contents(self.files()):
            size = len(data or b"")
            for key, answer in entries_of(data or b"", f"{self.folder}/{name}"):
                yield source_of(name), key, answer, size
                size = 0

    def forget(self, files: Mapping[str, bytes | None]) -> int:
        """Delete files, and the local folders that are empty then. Return the number of files.

        A local log is deleted only if its content has the given digest: another process may have changed it meanwhile.
        None deletes any content.
        """
        if not is_local(self.folder):
            ObjectFolder(self.folder, dict(self.options)).delete(files)
            return len(files)
        deleted = sum(_delete(f"{self.folder}/{name}", content) for name, content in files.items())
        for folder in {os.path.dirname(name) for name in files}:
            with suppress(OSError):  # another file is there, or another launcher was faster
                os.rmdir(f"{self.folder}/{folder}")
        return deleted

    def forget_complete(self, store: LedgerStore) -> None:
        """Delete the files of the sources that are complete."""
        files = self.files()
        ids = sorted({source for name in files if (source := source_of(name))})
        complete = {*compress(ids, store.completed_mask(ids))}
        self.forget(dict.fromkeys(name for name in files if source_of(name) in complete))

    def pack(self) -> None:
        """Replace the logs, and small packed files, by larger packed files."""
        for name, _ in self._listed(""):
            if not _NAME.fullmatch(name) and not name.endswith((TEMPORARY_SUFFIX, "/")):
                text = "%s: expected a folder of answers, found another file, %s; give --answers a folder of its own"
                _log.warning(text, self.folder, name)
                break
        remove_stale_temporaries(f"{self.folder}/{PACKED}")
        files = self.files()
        small = {name: size for name, size in files.items() if not source_of(name) and size < _MERGED_BYTES}
        logs = {name: size for name, size in files.items() if source_of(name)}
        packing = _Packing(self)
        for some in (small if len(small) >= _MERGED else {}, logs):
            for name, data in self.contents(some):
                if data is not None:
                    packing.add(name, data)
        packing.publish()


def _delete(path: str, content: bytes | None) -> bool:
    """Delete a local log with content of this digest, while no process writes to it."""
    try:
        with open(path, "rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            is_same = content is None or digest_of(file.read()) == content
            if is_same:
                os.unlink(path)
            return is_same
    except FileNotFoundError:
        return False


def digest_of(data: bytes) -> bytes:
    """Return a digest of the content of a file."""
    return blake2b(data, digest_size=16).digest()


class _Packing:
    """Answers on their way from small files to packed files."""

    def __init__(self, place: AnswersPlace) -> None:
        self._place = place
        self._begin()

    def _begin(self) -> None:
        self._entries: dict[bytes, bytes] = {}  # of the next block
        self._plain = self._size = 0  # bytes of these entries, and of the blocks
        self._blocks: list[bytes] = []
        self._keys: set[bytes] = set()
        self._files: dict[str, bytes | None] = {}  # digests of the files whose answers all are here

    def add(self, name: str, data: bytes) -> None:
        """Add the answers of a file. A file with damage is left as it is."""
        blocks = [plain for _, _, plain in blocks_of(data, f"{self._place.folder}/{name}")]
        if None in blocks:
            return
        for _, key, answer in chain.from_iterable(map(entries_in, blocks)):
            if key not in self._keys:
                self._keys.add(key)
                self._entries[key] = answer
                self._plain += ENTRY.size + len(answer)
                if self._plain >= _BLOCK_BYTES:
                    self._cut()
                    if self._size > _PACK_BYTES - _LAST_BLOCK:
                        self.publish()
        self._files[name] = digest_of(data)

    def _cut(self) -> None:
        if self._entries:
            self._blocks.append(block_of([*self._entries.items()]))
            self._size += len(self._blocks[-1])
            self._entries, self._plain = {}, 0

    def publish(self) -> None:
        """Publish the packed file, and delete the files that it replaces."""
        self._cut()
        data = b"".join(self._blocks)
        name = f"{PACKED}/{digest_of(data).hex()}{ENDING}"
        if data:
            fault_point("answers.pack")
            publish_bytes(f"{self._place.folder}/{name}", data, dict(self._place.options))
            fault_point("answers.packed")
        self._place.forget({one: digest for one, digest in self._files.items() if one != name})
        self._begin()


def threads() -> ThreadPoolExecutor:
    """Return the threads of this process that read and write answers."""
    return _threads(os.getpid())


@cache
def _threads(_: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, "ledgerbeam-answers")


def _codec() -> Any:
    import pyarrow as pa  # noqa: PLC0415 - every run imports this module

    return pa.Codec("zstd")


def block_of(entries: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return a block with keys and answers."""
    plain = b"".join(ENTRY.pack(key, len(answer)) + answer for key, answer in entries)
    data = _codec().compress(plain, asbytes=True)
    sizes = _SIZES.pack(len(data), len(plain))
    return _checksum(sizes + data) + sizes + data


def _checksum(data: bytes) -> bytes:
    return blake2b(data, digest_size=8).digest()


def plain_of(block: bytes) -> bytes | None:
    """Return the entries of a block; None without its checksum."""
    if len(block) < _HEAD.size or block[:8] != _checksum(block[8:]):
        return None
    plain: bytes = _codec().decompress(memoryview(block)[_HEAD.size :], _HEAD.unpack_from(block)[2], asbytes=True)
    return plain


def _is_journal(url: str) -> bool:
    """Return whether the end of a file may be missing."""
    return is_local(url) and os.path.basename(os.path.dirname(url)) != PACKED


def blocks_of(data: bytes, url: str) -> Iterator[tuple[int, int, bytes | None]]:
    """Yield offset, size and entries of the blocks of a file; None for a damaged one. Damage is reported once."""
    at, has_warned = 0, False
    while at < len(data):
        _, size, _ = _HEAD.unpack(data[at : at + _HEAD.size].ljust(_HEAD.size, b"\0"))
        block = data[at : at + _HEAD.size + size]
        if at + _HEAD.size + size > len(data) and size < _MOST_BYTES and _is_journal(url):
            return  # cut off by a crash before anyone saw its answers, or not written yet
        if (plain := plain_of(block)) is None and not has_warned:
            has_warned = True
            _log.warning(DAMAGED, url, at)
        yield at, len(block), plain
        at += _HEAD.size + size


def entries_in(plain: bytes | None) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield the place, key and answer of each entry of a block."""
    place = 0
    while plain and place < len(plain):
        key, length = ENTRY.unpack_from(plain, place)
        stop = place + ENTRY.size + length
        yield place, key, plain[stop - length : stop]
        place = stop


def entries_of(data: bytes, url: str) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and answers of a file. A damaged block is reported, and its calls are made again."""
    for _, _, plain in blocks_of(data, url):
        for _, key, answer in entries_in(plain):
            yield key, answer
