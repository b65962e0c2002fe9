"""Marks of the tasks that a worker is processing, so that its death can count against them.

Every worker process keeps one small file in a folder that all workers of a run share, and rewrites it when a task
starts or ends. The file is mapped memory: writing it takes no system call, at which other threads would run instead.
Nothing is flushed to disk: the page cache survives a killed process, and a power cut counts against no task. The file
is locked for as long as its process lives; a file that can be locked belongs to a dead worker. A lock, unlike a process
id, is never reused and means the same in every container on the host.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import re
import struct
import threading
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ledgerbeam.ledger.model.rows import Mark
from ledgerbeam.ledger.model.task import Task
from ledgerbeam.ledger.model.values import decode, identity, rows, text
from ledgerbeam.ledger.worker.run_folders import file_errors, is_locked, is_named, own_file

_SUFFIX = ".inflight"
_PID = re.compile("[0-9]{1,10}")
_MOST_BYTES = 64 << 20
_ROOM = mmap.PAGESIZE  # initial size of a file
_HEAD = struct.Struct("<II")  # length and CRC-32 of the JSON that follows; older bytes may follow the JSON


class DeadWorker(NamedTuple):
    """A worker process that ended without `InflightMarks.close`, and its marked tasks (maybe none)."""

    pid: int
    marks: list[Mark]


class _MarkFile:
    """The locked file of this process in one folder."""

    def __init__(self, folder: str) -> None:
        self._lock = threading.Lock()
        self._working: dict[int, str] = {}  # rows of JSON
        self._next = 0
        self._path = os.path.join(folder, f"{os.getpid()}-{os.urandom(4).hex()}{_SUFFIX}")
        with file_errors(folder):
            os.makedirs(folder, exist_ok=True)
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX)
        self._map = self._mapped(_ROOM)
        self._write()

    def _mapped(self, room: int) -> mmap.mmap:
        """Return the file as mapped memory, with all blocks allocated: a write to a missing block kills the process."""
        with file_errors(self._path):
            os.posix_fallocate(self._fd, 0, room)
            return mmap.mmap(self._fd, room)

    def start(self, tasks: Iterable[Task]) -> int:
        rows = json.dumps([(task.source.id.hex(), task.node.hex(), task.name) for task in tasks])[1:-1]
        with self._lock:
            self._next += 1
            self._working[self._next] = rows
            try:
                self._write()
            except BaseException:  # the task is not started
                del self._working[self._next]
                raise
            return self._next

    def end(self, token: int) -> None:
        with self._lock:
            del self._working[token]
            self._write()

    def _write(self) -> None:
        body = f"[{', '.join(filter(None, self._working.values()))}]".encode()
        size = _HEAD.size + len(body)
        if size > len(self._map):
            larger = self._mapped(2 * size)
            self._map.close()
            self._map = larger
        self._map[:size] = _HEAD.pack(len(body), zlib.crc32(body)) + body

    def close(self) -> None:
        if is_named(self._path, self._fd):
            os.unlink(self._path)
        self.abandon()

    def abandon(self) -> None:
        """Close the file without removing it. A forked process does this too, else it keeps the lock of its parent."""
        self._map.close()
        os.close(self._fd)


_files: dict[str, _MarkFile] = {}
_files_lock = threading.Lock()


class InflightMarks:
    """This process's marks in a folder. Thread-safe and picklable; a forked process starts without marks."""

    def __init__(self, folder: str) -> None:
        """Set the folder, normally ``<ledger>/run/<run>``, without creating or opening anything."""
        self.folder = os.path.abspath(folder)

    def register(self) -> None:
        """Create and lock this worker's file. The lock shows that the worker is alive. `working_on` does this too.

        Raises DiskFullError, StorageError.
        """
        self._file()

    @contextlib.contextmanager
    def working_on(self, tasks: Iterable[Task]) -> Iterator[None]:
        """Mark tasks as being processed while the body runs. Threads and nested calls add up.

        Raises like `register`.
        """
        file = self._file()
        token = file.start(tasks)
        try:
            yield
        finally:
            file.end(token)

    def close(self) -> None:
        """Remove this process's marks, at its regular end."""
        with _files_lock:
            file = _files.pop(self.folder, None)
        if file is not None:
            file.close()

    def _file(self) -> _MarkFile:
        with _files_lock:
            file = _files.get(self.folder)
            if file is None:
                file = _files[self.folder] = _MarkFile(self.folder)
            return file


def has_tasks_in_work(folder: str) -> bool:
    """Return whether a worker, dead or alive, has marked a task."""
    with contextlib.suppress(FileNotFoundError):  # no worker has created the folder yet
        for name in os.listdir(folder):
            if name.endswith(_SUFFIX):
                with own_file(os.path.join(folder, name)) as fd:
                    head = b"" if fd is None else os.pread(fd, _HEAD.size, 0)
                if len(head) == _HEAD.size and _HEAD.unpack(head)[0] > len("[]"):
                    return True
    return False


def dead_marks(folder: str) -> list[DeadWorker]:
    """Return the dead workers, by process id, with the marks of each."""
    found = []
    with contextlib.suppress(FileNotFoundError):  # no worker has created the folder yet
        for name in os.listdir(folder):
            pid, _, _ = name.partition("-")
            if name.endswith(_SUFFIX) and _PID.fullmatch(pid):
                path = os.path.join(folder, name)
                with own_file(path, os.O_RDWR) as fd:
                    if fd is not None and not is_locked(fd) and is_named(path, fd):
                        data = os.pread(fd, min(os.fstat(fd).st_size, _HEAD.size + _MOST_BYTES), 0)
                        found.append(DeadWorker(int(pid), _decode(data)))
    return sorted(found)


def _decode(data: bytes) -> list[Mark]:
    """Decode a mark file. A file that a kill left half-written, or that no worker wrote, has no marks."""
    if len(data) < _HEAD.size:
        return []
    length, checksum = _HEAD.unpack_from(data)
    body = data[_HEAD.size : _HEAD.size + length]
    if zlib.crc32(body) != checksum:  # also if it is shorter
        return []
    try:
        return [Mark(identity(source), identity(node), text(name)) for source, node, name in rows(decode(body))]
    except (ValueError, TypeError):
        return []


def _forget_after_fork() -> None:
    global _files_lock  # noqa: PLW0603 - the inherited lock may be held by a thread that does not exist here
    _files_lock = threading.Lock()
    for file in _files.values():
        file.abandon()
    _files.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
