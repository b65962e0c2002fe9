"""Answers of tasks: each is stored in the log of its task, or found among those that are kept."""

from __future__ import annotations

import os
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from ledgerbeam._base.lazy import asyncio
from ledgerbeam.answers import Gate, Limits, in_job, waiting
from ledgerbeam.errors import BudgetSpentError, FunctionError, LedgerbeamError, ServiceError, StorageError
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.publish import publish_bytes
from ledgerbeam.io.storage.urls import canonical_url, is_local
from ledgerbeam.ledger.answer_files import ENDING, AnswersPlace, digest_of
from ledgerbeam.ledger.answer_index import AnswerIndex, index_of
from ledgerbeam.ledger.answer_log import TaskLog
from ledgerbeam.ledger.model.task import Task
from ledgerbeam.ledger.opening import local_path, sidecar_folder
from ledgerbeam.ledger.worker.limits import HostLimits, Limit, Meter

_LOOK_SECONDS = 0.1  # between two looks at the calls in progress

_asking: ContextVar[frozenset[bytes]] = ContextVar("ledgerbeam.ledger.asking", default=frozenset())
_place: ContextVar[AnswersPlace | None] = ContextVar("ledgerbeam.ledger.answers", default=None)


def sampled_place(ledger: str, options: Options, **more: Any) -> AnswersPlace:
    """Return the place of the answers to sampled records. They come before the ledger exists."""
    url = canonical_url(ledger)
    beside = sidecar_folder(f"answers://{url}") if is_local(url) else f"{url}/work/sampled"
    return AnswersPlace.of(beside, None, options, **more)


@contextmanager
def answers_of_sample(ledger: str, kept: str | None, options: Options, limits: Sequence[Limit]) -> Iterator[None]:
    """Keep the answers of calls in the body at `sampled_place`, or in the folder `kept`."""
    place = sampled_place(ledger, options, limits=limits)
    Meter.make(meter_path(place.ledger)).grant_all(limits)
    if kept is not None:
        place = AnswersPlace.of(place.ledger, kept, options, limits=limits, run=uuid.uuid4().hex)
    with answers_beside(place):
        yield


def adopt(place: AnswersPlace, ledger: str) -> None:
    """Move the answers of `sampled_place` to the place of a job; also those beside its ledger, if others are kept.

    The counts of the meter of the samples are added to the meter of the job.
    """
    sampled, beside = sampled_place(ledger, place.options), AnswersPlace.of(ledger, None, place.options)
    if os.path.exists(meter := meter_path(sampled.ledger)):
        Meter.make(meter_path(ledger)).add(Meter(meter))
        os.unlink(meter)
    for other in (sampled, beside) if place.is_kept else (sampled,):
        files = other.files()
        for name, data in other.contents(files):
            if data is not None:
                moved = f"{place.folder}/{name.rpartition('-')[0]}-{uuid.uuid4().hex}{ENDING}"
                publish_bytes(moved, data, dict(place.options))
                other.forget({name: digest_of(data)})


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


class NoAnswerError(FunctionError):
    """An audited function made a request that has no stored answer."""


def host_limits() -> Limits | None:
    """Return the limits of the calls of the job of the place; None if its calls are not counted."""
    place = _place.get()
    if place is None or not (place.limits or os.path.exists(meter_path(place.ledger))):
        return None
    return HostLimits(Meter(meter_path(place.ledger)), place.limits)


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
        self._gate = gate or Gate()
        self._log = TaskLog(place, source.hex(), start, stop)
        self._index: AnswerIndex | None = index_of(place) if place.is_kept else None
        self._replays = place.replays
        self._loading: asyncio.Task[dict[bytes, bytes]] | None = None
        self._turns = WeakValueDictionary[bytes, asyncio.Lock]()  # of requests
        self._stored: dict[bytes, Future[None]] = {}
        self._calling: set[asyncio.Task[Any]] = set()  # that have called
        self._is_settled = False
        self.failure: LedgerbeamError | None = None

    async def answer(self, key: bytes, call: Callable[[], Awaitable[bytes]], tokens: int | None = None) -> bytes:
        """Return the stored answer of a request; without one, call, and return the answer once it is durable."""
        try:
            if key in _asking.get():
                raise FunctionError("ledgerbeam.remember: the call for a request remembers this request itself")
            with waiting():
                known = await self._known()
            turn = self._turns.setdefault(key, asyncio.Lock())
            with waiting():
                await turn.acquire()
            try:
                if key not in known and key not in self._stored:
                    with waiting():
                        kept = None if self._index is None else await self._index.find(key)
                    if kept is not None:
                        return kept
                    if self._replays:
                        raise NoAnswerError("ledgerbeam.remember: this request was not made when the task ran")
                    token = _asking.set(_asking.get() | {key})
                    try:
                        answer = await self._gate.call(partial(self._asked, call), tokens)
                        self._stored[key] = self._log.store(key, answer)
                    finally:
                        _asking.reset(token)
                if key not in known:
                    with waiting():
                        await asyncio.shield(asyncio.wrap_future(self._stored[key]))
                return known[key]
            finally:
                turn.release()
        except LedgerbeamError as error:
            if isinstance(error, (BudgetSpentError, NoAnswerError, ServiceError, StorageError)):
                self.failure = error
            raise

    async def _asked(self, call: Callable[[], Awaitable[bytes]]) -> bytes:
        if self._is_settled:
            raise asyncio.CancelledError
        task: Any = asyncio.current_task()
        self._calling.add(task)
        task.add_done_callback(self._calling.discard)
        try:
            return await call()
        except BaseException:  # a refused call waits for its turn again
            self._calling.discard(task)
            raise

    async def settle(self) -> None:
        """Begin no call any more, and wait until the answers of those in progress are stored."""
        self._is_settled = True
        while self._calling:
            await asyncio.wait(self._calling, timeout=_LOOK_SECONDS)

    async def _known(self) -> dict[bytes, bytes]:
        if self._loading is None:
            if self._gate.limits is not None:
                self._gate.limits.asked()
            self._loading = asyncio.ensure_future(asyncio.to_thread(self._load))
        return await asyncio.shield(self._loading)

    def _load(self) -> dict[bytes, bytes]:
        is_stale = True
        while is_stale:
            is_stale = not self._log.load()
            if self._index is not None:  # last: of files that are packed meanwhile, it has the packed one
                self._index.update()
        return self._log.known
