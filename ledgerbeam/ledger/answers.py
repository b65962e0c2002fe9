"""Answers of tasks: a worker stores those to its calls in files, which later workers load.

All answers that come while a block is written are in the next one. On a disk, a block is appended and synced; on a
store each block is an object.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from ledgerbeam._base.disk import make_folders, sync_folder
from ledgerbeam._base.lazy import asyncio
from ledgerbeam.answers import in_job
from ledgerbeam.errors import FunctionError, LedgerbeamError, StorageError
from ledgerbeam.io.storage.publish import publish_bytes
from ledgerbeam.io.storage.urls import canonical_url, is_local
from ledgerbeam.ledger.answer_files import ENDING, AnswersPlace, block_of, entries_of, overlaps
from ledgerbeam.ledger.answer_index import AnswerIndex, index_of
from ledgerbeam.ledger.model.task import Task
from ledgerbeam.ledger.opening import sidecar_folder

_SECONDS = 0.01  # shortest time between the starts of two blocks
_MOST_OPEN = 64  # files that stay open for more blocks

_asking: ContextVar[frozenset[bytes]] = ContextVar("ledgerbeam.ledger.asking", default=frozenset())
_place: ContextVar[AnswersPlace | None] = ContextVar("ledgerbeam.ledger.answers", default=None)


def sampled_place(ledger: str) -> AnswersPlace:
    """Return the place, on this host, of the answers to sampled records. They come before the ledger exists."""
    return AnswersPlace.of(sidecar_folder(f"answers://{canonical_url(ledger)}"), None, {})


def adopt(place: AnswersPlace, ledger: str) -> None:
    """Move the answers of `sampled_place` to the place of a job; also those beside its ledger, if others are kept."""
    sampled, beside = sampled_place(ledger), AnswersPlace.of(ledger, None, place.options)
    for other in (sampled, beside) if place.is_kept else (sampled,):
        files = {name: size for name, size in other.files().items() if other is sampled or other.is_idle(name)}
        for name, data in other.contents(files):
            if data is not None:
                publish_bytes(f"{place.folder}/{name}", data, dict(place.options))
        other.forget(files)


@contextmanager
def answers_beside(place: AnswersPlace) -> Iterator[None]:
    """Keep the answers of the calls of tasks in the body at this place."""
    token = _place.set(place)
    try:
        with in_job():
            yield
    finally:
        _place.reset(token)


def answers_of(task: Task) -> TaskAnswers | None:
    """Return the answers of a task; None outside of a job."""
    place = _place.get()
    return None if place is None else TaskAnswers(place, task.source.id, task.start, task.stop)


class _TaskFile(NamedTuple):
    """The files of one task."""

    place: AnswersPlace
    beginning: str  # of their URLs

    def __hash__(self) -> int:
        return hash(self.beginning)


class TaskAnswers:
    """The answers of one task.

    Args:
        source: ID of its source.
        start: First record of the task.
        stop: One past the last.

    Attributes:
        failure: Error of storing or loading answers; None while all went well.
    """

    def __init__(self, place: AnswersPlace, source: bytes, start: int, stop: int) -> None:
        self._place = place
        self._source = source.hex()
        self._span = start, stop
        self._file = _TaskFile(place, f"{place.folder}/{self._source}/{start:010d}-{stop:010d}-")
        self._index: AnswerIndex | None = index_of(place) if place.is_kept else None
        self._loading: asyncio.Task[dict[bytes, bytes]] | None = None
        self._asked: dict[bytes, asyncio.Future[None]] = {}
        self.failure: LedgerbeamError | None = None

    async def answer(self, key: bytes, call: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the stored answer of a request; without one, call, and return the answer once it is durable."""
        try:
            if key in _asking.get():
                raise FunctionError("ledgerbeam.remember: the call for a request remembers this request itself")
            known = await self._known()
            while key not in known and key in self._asked:
                await asyncio.wait([self._asked[key]])
            if key in known:
                return known[key]
            loop = asyncio.get_running_loop()
            asked = self._asked[key] = loop.create_future()
            token = _asking.set(_asking.get() | {key})
            stored: Future[None] | None = None
            try:
                if self._index is not None and (kept := await self._index.find(key)) is not None:
                    return kept
                answer = await call()
                stored = _writer().store(self._file, key, answer)
                stored.add_done_callback(lambda done: loop.call_soon_threadsafe(self._keep, key, answer, done))
                await asyncio.shield(asyncio.wrap_future(stored))
                return answer
            finally:
                _asking.reset(token)
                if stored is None:
                    self._asked.pop(key)
                    asked.set_result(None)
        except LedgerbeamError as error:
            if isinstance(error, StorageError):
                self.failure = error
            raise

    def _keep(self, key: bytes, answer: bytes, stored: Future[None]) -> None:
        """Keep an answer that is stored, also if its caller has been cancelled meanwhile."""
        if self._loading is not None and stored.exception() is None:
            self._loading.result()[key] = answer
        self._asked.pop(key).set_result(None)

    async def _known(self) -> dict[bytes, bytes]:
        if self._loading is None:
            self._loading = asyncio.ensure_future(asyncio.to_thread(self._load))
        return await asyncio.shield(self._loading)

    def _load(self) -> dict[bytes, bytes]:
        while True:
            files = self._place.files(self._source)
            chosen = {name: size for name, size in files.items() if overlaps(name, *self._span)}
            contents = dict(self._place.contents(chosen))
            if self._index is not None:  # last: of files that are packed meanwhile, it has the packed one
                self._index.update()
            if None not in contents.values():
                found: dict[bytes, bytes] = {}
                for name, data in contents.items():
                    found.update(entries_of(data or b"", f"{self._place.folder}/{name}"))
                return found


class AnswerWriter:
    """Stores the answers of this process, in a thread."""

    def __init__(self) -> None:
        self._waiting: dict[_TaskFile, list[tuple[bytes, bytes, Future[None]]]] = {}
        self._is_waiting = threading.Condition()
        self._open: OrderedDict[_TaskFile, int] = OrderedDict()  # descriptors, the last used ones last
        threading.Thread(target=self._run, name="ledgerbeam-answers", daemon=True).start()

    def store(self, file: _TaskFile, key: bytes, answer: bytes) -> Future[None]:
        """Store an answer; the future ends when it is durable, or has the error."""
        done: Future[None] = Future()
        with self._is_waiting:
            self._waiting.setdefault(file, []).append((key, answer, done))
            self._is_waiting.notify()
        return done

    def _run(self) -> None:
        while True:
            with self._is_waiting:
                self._is_waiting.wait_for(lambda: self._waiting)
                waiting, self._waiting = self._waiting, {}
            began = time.monotonic()
            for file, some in waiting.items():
                error: LedgerbeamError | None = None
                try:
                    self._write(file, block_of([(key, answer) for key, answer, _ in some]))
                except LedgerbeamError as failed:
                    error = failed
                for _, _, done in some:
                    if done.set_running_or_notify_cancel():
                        done.set_result(None) if error is None else done.set_exception(error)
            time.sleep(max(0.0, began + _SECONDS - time.monotonic()))

    def _write(self, file: _TaskFile, block: bytes) -> None:
        if not is_local(file.beginning):
            publish_bytes(f"{file.beginning}{uuid.uuid4().hex}{ENDING}", block, dict(file.place.options))
            return
        try:
            descriptor = self._open.pop(file, None)
            if descriptor is not None and not os.fstat(descriptor).st_nlink:  # forgotten meanwhile
                os.close(descriptor)
                descriptor = None
            if descriptor is None:
                descriptor = _created(f"{file.beginning}{uuid.uuid4().hex}{ENDING}")
            self._open[file] = descriptor
            if len(self._open) > _MOST_OPEN:
                os.close(self._open.popitem(last=False)[1])
            if os.write(descriptor, block) < len(block):
                raise OSError("the disk is full")
            os.fdatasync(descriptor)
        except OSError as error:
            self._open.pop(file, None)
            raise StorageError(f"{file.beginning}: an answer cannot be stored ({error}); run again") from error


def _created(path: str, tries: int = 9) -> int:
    """Create a file and lock it. While it is locked, its answers are not packed."""
    folder = os.path.dirname(path)
    try:
        make_folders(folder)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except FileNotFoundError:  # another process has removed the empty folder
        if not tries:
            raise
        return _created(path, tries - 1)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    sync_folder(folder)
    return descriptor


_known: tuple[int, AnswerWriter] | None = None


def _writer() -> AnswerWriter:
    global _known  # noqa: PLW0603 - one for the process
    if _known is None or _known[0] != os.getpid():
        _known = os.getpid(), AnswerWriter()
    return _known[1]
