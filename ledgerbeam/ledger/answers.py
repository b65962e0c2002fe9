"""Answers beside a ledger: files below ``work/answers/SOURCE/``, which a worker writes and later workers load.

A file has the answers to calls of one task, ``START-STOP-ID.answers``. It is a sequence of blocks: a head with sizes
and a checksum, then compressed entries, each with the key of its request, its size and its bytes. All answers that come
while a block is written are in the next one. On a disk, a block is appended and synced; on a store each block is an
object. A block at the end of a file that was cut off by a crash is ignored.
"""

from __future__ import annotations

import os
import re
import struct
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain
from typing import Any, NamedTuple

from ledgerbeam._base.disk import make_folders, sync_folder
from ledgerbeam._base.lazy import asyncio
from ledgerbeam._base.process import library_logger
from ledgerbeam.answers import Gate, in_job, waiting
from ledgerbeam.errors import BudgetSpentError, FunctionError, LedgerbeamError, StorageError
from ledgerbeam.io.storage.files import delete, read_bytes
from ledgerbeam.io.storage.objects import list_files
from ledgerbeam.io.storage.publish import publish_bytes
from ledgerbeam.io.storage.urls import canonical_url, is_local
from ledgerbeam.ledger.model.store import LedgerStore
from ledgerbeam.ledger.model.task import Task
from ledgerbeam.ledger.opening import local_path, sidecar_folder
from ledgerbeam.ledger.worker.limits import HostLimits, Limit, Meter

_log = library_logger(__name__)

_HEAD = struct.Struct("<8sII")  # a checksum of what follows; bytes of the compressed entries, and of the entries
_SIZES = struct.Struct("<II")
_ENTRY = struct.Struct("<16sI")  # key and bytes of an answer
_ENDING = ".answers"
# ID of the source, if its folder is in the name; first record of the task, and one past its last
_NAME = re.compile(r"(?:([0-9a-f]{32})/)?(\d+)-(\d+)-[^/]+\.answers")
_SECONDS = 0.01  # shortest time between the starts of two blocks
_MOST_OPEN = 64  # files that stay open for more blocks


@dataclass(frozen=True)
class AnswersPlace:
    """The answers of a job, beside its ledger, by source."""

    ledger: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        """URL of the folder of all answers."""
        return f"{self.ledger}/work/answers"

    def files(self) -> dict[bytes, list[str]]:
        """Return the URLs of the files of each source, by its ID."""
        found: dict[bytes, list[str]] = {}
        for page in list_files(self.folder, dict(self.options)):
            for name in page.names:
                if (named := _NAME.fullmatch(name)) and named[1]:
                    found.setdefault(bytes.fromhex(named[1]), []).append(f"{self.folder}/{name}")
        return found

    def entries(self) -> Iterator[tuple[bytes, bytes, bytes, int]]:
        """Yield source, key, answer and the stored bytes of its file, which are 0 for all but its first answer."""
        for source, urls in sorted(self.files().items()):
            for url in sorted(urls):
                data = read_bytes(url, dict(self.options))
                size = len(data)
                for key, answer in entries_of(data, url):
                    yield source, key, answer, size
                    size = 0

    def forget(self, sources: Mapping[bytes, Sequence[str]]) -> int:
        """Delete the files of sources, and return their number."""
        for urls in sources.values():
            for url in urls:
                delete(url, dict(self.options))
        return sum(map(len, sources.values()))

    def forget_complete(self, store: LedgerStore) -> int:
        """Delete the answers of the sources that are complete, and return the number of files."""
        files = self.files()
        ids = sorted(files)
        complete = [source for source, is_done in zip(ids, store.completed_mask(ids), strict=True) if is_done]
        return self.forget({source: files[source] for source in complete})


_asking: ContextVar[frozenset[bytes]] = ContextVar("ledgerbeam.ledger.asking", default=frozenset())
_place: ContextVar[AnswersPlace | None] = ContextVar("ledgerbeam.ledger.answers", default=None)


def sampled_place(ledger: str) -> AnswersPlace:
    """Return the place, on this host, of the answers to sampled records. They come before the ledger exists."""
    return AnswersPlace(sidecar_folder(f"answers://{canonical_url(ledger)}"))


@contextmanager
def answers_of_sample(ledger: str, limits: Sequence[Limit]) -> Iterator[None]:
    """Keep the answers of calls in the body at `sampled_place`."""
    place = sampled_place(ledger)
    if limits:
        Meter.make(meter_path(place.ledger)).grant_all(limits)
    with answers_beside(place):
        yield


def adopt_sampled(ledger: str, options: Mapping[str, Any]) -> None:
    """Move the answers of `sampled_place` beside the ledger, and what its calls have used of limits."""
    sampled, folder = sampled_place(ledger), AnswersPlace(ledger).folder
    if os.path.exists(meter := meter_path(sampled.ledger)):
        Meter.make(meter_path(ledger)).add(Meter(meter))
        os.unlink(meter)
    files = sampled.files()
    for url in chain.from_iterable(files.values()):
        source, name = url.split("/")[-2:]
        publish_bytes(f"{folder}/{source}/{name}", read_bytes(url), dict(options))
    sampled.forget(files)


@contextmanager
def answers_beside(place: AnswersPlace) -> Iterator[None]:
    """Keep the answers of the calls of tasks in the body at this place."""
    token = _place.set(place)
    try:
        with in_job():
            yield
    finally:
        _place.reset(token)


def answers_of(task: Task, gate: Gate) -> TaskAnswers | None:
    """Return the answers of a task, whose calls pass a gate; None outside of a job."""
    place = _place.get()
    return None if place is None else TaskAnswers(place, task.source.id, task.start, task.stop, gate)


def meter_path(ledger: str) -> str:
    """Return the path of the meter of the calls of a job, on this host."""
    url = canonical_url(ledger)
    return f"{local_path(url) if is_local(url) else sidecar_folder(url)}/work/limits"


def host_limits(limits: Sequence[Limit]) -> HostLimits | None:
    """Return the limits of the calls of the job of the place; None if its calls are not counted."""
    place = _place.get()
    path = "" if place is None else meter_path(place.ledger)
    return HostLimits(Meter(path), limits) if limits or os.path.exists(path) else None


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
        gate: Admission of the calls of this process; None without limits.

    Attributes:
        failure: Error of storing or loading answers, or of a spent budget; None while all went well.
    """

    def __init__(self, place: AnswersPlace, source: bytes, start: int, stop: int, gate: Gate | None = None) -> None:
        self._place = place
        self._gate = gate or Gate()
        self._folder = f"{place.folder}/{source.hex()}"
        self._span = start, stop
        self._file = _TaskFile(place, f"{self._folder}/{start:010d}-{stop:010d}-")
        self._loading: asyncio.Task[dict[bytes, bytes]] | None = None
        self._asked: dict[bytes, asyncio.Future[None]] = {}
        self.failure: LedgerbeamError | None = None

    async def answer(self, key: bytes, call: Callable[[], Awaitable[bytes]], tokens: int | None = None) -> bytes:
        """Return the stored answer of a request; without one, call, and return the answer once it is durable."""
        try:
            if key in _asking.get():
                raise FunctionError("ledgerbeam.remember: the call for a request remembers this request itself")
            if self._gate.limits is not None:
                self._gate.limits.asked()
            with waiting():
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
                answer = await self._gate.call(call, tokens)
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
            if isinstance(error, (BudgetSpentError, StorageError)):
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
        start, stop = self._span
        names = [
            name
            for page in list_files(self._folder, dict(self._place.options))
            for name in page.names
            if (named := _NAME.fullmatch(name)) and int(named[2]) < stop and start < int(named[3])
        ]
        found: dict[bytes, bytes] = {}
        for name in sorted(names):
            url = f"{self._folder}/{name}"
            found.update(entries_of(read_bytes(url, dict(self._place.options)), url))
        return found


def _codec() -> Any:
    import pyarrow as pa  # noqa: PLC0415 - every run imports this module

    return pa.Codec("zstd")


def _block_of(entries: Sequence[tuple[bytes, bytes]]) -> bytes:
    plain = b"".join(_ENTRY.pack(key, len(answer)) + answer for key, answer in entries)
    data = _codec().compress(plain, asbytes=True)
    sizes = _SIZES.pack(len(data), len(plain))
    return _checksum(sizes + data) + sizes + data


def _checksum(data: bytes) -> bytes:
    return blake2b(data, digest_size=8).digest()


def entries_of(data: bytes, url: str) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and answers of a file. A damaged block is reported, and its calls are made again."""
    at = 0
    while at + _HEAD.size <= len(data):
        checksum, size, plain_size = _HEAD.unpack_from(data, at)
        stop = at + _HEAD.size + size
        block = data[at + _HEAD.size : stop]
        if _checksum(data[at + len(checksum) : stop]) != checksum:
            if stop < len(data):  # else cut off by a crash, before anyone saw the answers
                _log.warning("%s: damaged at byte %s; the calls whose answers were there are made again", url, at)
            return
        plain, place = _codec().decompress(block, plain_size, asbytes=True), 0
        while place < len(plain):
            key, length = _ENTRY.unpack_from(plain, place)
            place += _ENTRY.size + length
            yield key, plain[place - length : place]
        at += _HEAD.size + size


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
                    self._write(file, _block_of([(key, answer) for key, answer, _ in some]))
                except LedgerbeamError as failed:
                    error = failed
                for _, _, done in some:
                    if done.set_running_or_notify_cancel():
                        done.set_result(None) if error is None else done.set_exception(error)
            time.sleep(max(0.0, began + _SECONDS - time.monotonic()))

    def _write(self, file: _TaskFile, block: bytes) -> None:
        if not is_local(file.beginning):
            publish_bytes(f"{file.beginning}{uuid.uuid4().hex}{_ENDING}", block, dict(file.place.options))
            return
        try:
            descriptor = self._open.pop(file, None)
            if descriptor is not None and not os.fstat(descriptor).st_nlink:  # forgotten meanwhile
                os.close(descriptor)
                descriptor = None
            if descriptor is None:
                descriptor = _created(f"{file.beginning}{uuid.uuid4().hex}{_ENDING}")
            self._open[file] = descriptor
            if len(self._open) > _MOST_OPEN:
                os.close(self._open.popitem(last=False)[1])
            if os.write(descriptor, block) < len(block):
                raise OSError("the disk is full")
            os.fdatasync(descriptor)
        except OSError as error:
            self._open.pop(file, None)
            raise StorageError(f"{file.beginning}: an answer cannot be stored ({error}); run again") from error


def _created(path: str) -> int:
    folder = os.path.dirname(path)
    make_folders(folder)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
    sync_folder(folder)
    return descriptor


_known: tuple[int, AnswerWriter] | None = None


def _writer() -> AnswerWriter:
    global _known  # noqa: PLW0603 - one for the process
    if _known is None or _known[0] != os.getpid():
        _known = os.getpid(), AnswerWriter()
    return _known[1]
