"""The log of a task's answers.

All processes that work on a task append to one log, so the first answer to a request counts for all of them: two hosts
may be at work on the same task. On a disk the log is a file, ``START-STOP-log.answers``. A process locks it, reads what
others have appended, appends a block and syncs it. On a store, block N is the object ``START-STOP-N.answers``, which
exactly one process can create; the others read it and try the next number.

All answers that come while a block is written are in the next one.
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import Future

from ledgerbeam._base.disk import make_folders, sync_folder
from ledgerbeam.errors import StorageError
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.io.storage.urls import is_local
from ledgerbeam.ledger.answer_files import ENDING, AnswersPlace, block_of, blocks_of, entries_in, overlaps, threads

_SECONDS = 0.01  # shortest time between the starts of two blocks
_HEAD_BYTES = 16  # of a file, by which it is recognized: it has a checksum of its first block


class TaskLog:
    """The stored answers to calls of one task.

    Args:
        source: ID of its source, in hexadecimal.
        start: First record of the task.
        stop: One past the last.

    Attributes:
        known: The answers by the keys of their requests, as of the last call of `load` or `append`.
    """

    def __init__(self, place: AnswersPlace, source: str, start: int, stop: int) -> None:
        self.known: dict[bytes, bytes] = {}
        self._place = place
        self._source = source
        self._span = start, stop
        self._beginning = f"{source}/{start:010d}-{stop:010d}-"
        self._number = 0  # of the last block on a store
        self._head, self._size = b"", 0  # first bytes of the file on a disk, and the number of its known bytes
        self._new: dict[bytes, bytes] = {}  # answers of the next block
        self._next: Future[None] | None = None  # its end
        self._changing, self._writing = threading.Lock(), threading.Lock()
        self._began = 0.0  # time of the start of the last block

    def load(self) -> bool:
        """Read the answers of all tasks that have records of this one. Return False if a file has just been packed."""
        files = self._place.files(self._source)
        chosen = {name: size for name, size in files.items() if overlaps(name, *self._span)}
        for name in chosen:
            if number := re.fullmatch(rf"{self._beginning}(\d+){ENDING}", name):
                self._number = max(self._number, int(number[1]))
        contents = dict(self._place.contents(chosen))
        for name, data in contents.items():
            self._merge(data or b"", name)
        return None not in contents.values()

    def store(self, key: bytes, answer: bytes) -> Future[None]:
        """Store an answer in the next block. When the future is done, `known` has the first stored answer."""
        with self._changing:
            self._new[key] = answer
            if self._next is None:
                self._next = threads().submit(self._write)
            return self._next

    def _write(self) -> None:
        with self._writing:
            time.sleep(max(0.0, self._began + _SECONDS - time.monotonic()))
            self._began = time.monotonic()
            with self._changing:
                entries, self._new, self._next = self._new, {}, None
            self._append(entries)

    def _append(self, entries: Mapping[bytes, bytes]) -> None:
        if is_local(self._place.folder):
            path = f"{self._place.folder}/{self._beginning}log{ENDING}"
            try:
                while not self._append_to_file(path, entries):
                    pass
            except OSError as error:
                raise StorageError(f"{path}: an answer cannot be stored ({error}); run again") from error
        else:
            self._append_objects(entries)

    def _unknown(self, entries: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        return {key: answer for key, answer in entries.items() if key not in self.known}

    def _merge(self, data: bytes, name: str) -> int:
        """Add the answers of blocks, and return the number of bytes up to the last complete block."""
        end = 0
        for at, size, plain in blocks_of(data, f"{self._place.folder}/{name}"):
            end = at + size
            for _, key, answer in entries_in(plain):
                self.known.setdefault(key, answer)
        return end

    def _append_to_file(self, path: str, entries: Mapping[bytes, bytes]) -> bool:
        """Append to the file; return False if another process has deleted it meanwhile."""
        folder = os.path.dirname(path)
        make_folders(folder)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except FileNotFoundError:  # another process has removed the empty folder
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            found = os.fstat(descriptor)
            if not found.st_nlink:
                return False
            head = os.pread(descriptor, _HEAD_BYTES, 0)
            if head != self._head:
                self._head, self._size = head, 0
            if found.st_size > self._size:
                data = os.pread(descriptor, found.st_size - self._size, self._size)
                self._size += self._merge(data, path)
                if found.st_size > self._size:  # a crash has cut the last block off
                    os.ftruncate(descriptor, self._size)
            if added := self._unknown(entries):
                block = block_of([*added.items()])
                if os.write(descriptor, block) < len(block):
                    raise OSError("the disk is full")
                os.fdatasync(descriptor)
                self._head = self._head or block[:_HEAD_BYTES]
                self._size += len(block)
                if not found.st_size:
                    sync_folder(folder)
                self.known.update(added)
        finally:
            os.close(descriptor)
        return True

    def _append_objects(self, entries: Mapping[bytes, bytes]) -> None:
        objects = ObjectFolder(self._place.folder, dict(self._place.options))
        while added := self._unknown(entries):
            self._number += 1
            number = f"{self._number:06d}" if objects.exclusive else uuid.uuid4().hex
            name = f"{self._beginning}{number}{ENDING}"
            if objects.create_new(name, block_of([*added.items()])):
                self.known.update(added)
                return
            (data,) = objects.read([name])  # of another process, or of this one if the response was lost
            self._merge(data or b"", name)
