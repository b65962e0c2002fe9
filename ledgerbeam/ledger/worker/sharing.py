"""Sharing a job between launchers through its ledger: the claims of each launcher, and the tasks left to the others.

A launcher that finds no other launcher lets its workers draw every element of the board: a task, or several that one
pass reads. Once it sees claims of another launcher, its workers draw only tasks that it has claimed before. It claims
enough of the remaining tasks to last until its next claims, but at most half of its fair share. So all launchers finish
at about the same time, on any machines.

If calls cost money, no two launchers may begin a task: workers draw only claimed tasks from the start, and a task can
be drawn once no other launcher claimed it at a look *after* the publication of the claims.

Claims expire by the clock of their reader. If a launcher is stopped or cannot publish claims, its workers draw no more
tasks once its claims are about to expire. At worst, the tasks that they have drawn are done twice.

The claims are in the run folders of a local ledger, and are objects of a remote one. Claims of dead launchers on this
host are removed with their run folders. Modules for remote ledgers are imported on first use.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from ledgerbeam._base.process import library_logger
from ledgerbeam.errors import LedgerbeamError
from ledgerbeam.ledger.lmdb.errors import translated
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.model.claims import (
    CLAIMS,
    MOST_BYTES,
    MOST_SPANS,
    ClaimPlace,
    Claims,
    Span,
    decode_claims,
    encode_claims,
    merged,
    rank,
)
from ledgerbeam.ledger.model.identity import run_order
from ledgerbeam.ledger.model.store import LedgerStore
from ledgerbeam.ledger.opening import run_folders
from ledgerbeam.ledger.worker.run_folders import RunFolder, RunFolders, own_file
from ledgerbeam.ledger.worker.task_board import Board, BoardTask, Instructions

if TYPE_CHECKING:
    from ledgerbeam.ledger.remote.store import RemoteStore

HOLD_SECONDS = 30.0  # time for which a claim is valid after it is first seen, if claims are published every ten seconds
_LEASE = 2 / 3  # part of this time in which workers may start claimed tasks, counted from before the publication
_LINGER_SECONDS = 15.0  # a finished task stays claimed until all launchers have seen that it is recorded
_AT_ONCE = 1000  # largest number of elements claimed in advance
_CROWD = 10  # number of launchers above which each publishes and reads less often
_LOOK_SECONDS = 1.0  # between two checks of a board from which nothing can be drawn
_SOON_SECONDS = 0.5  # between the claims of an exclusive launcher whose workers have nothing to draw

_log = library_logger(__name__)


@dataclass
class _SeenClaims:
    """The last claims of another launcher: their bytes, the time when these were first read, and the decoded claims."""

    data: bytes | None
    since: float
    claims: Claims | None


@dataclass(frozen=True)
class WaitingTasks:
    """Numbers of tasks that other launchers are processing, of these launchers, and of unclaimed elements."""

    tasks: int
    launchers: int
    free: int

    def text(self) -> str:
        """Return the numbers of tasks and launchers as text for people."""
        launchers = "1 other launcher is" if self.launchers == 1 else f"{self.launchers} other launchers are"
        return f"{launchers} processing {self.tasks:,} {'task' if self.tasks == 1 else 'tasks'}"


class Sharing:
    """Sharing of a job by one launcher with others.

    Args:
        exclusive: Whether no two launchers may begin a task.
        clock: The same clock for all processes of the host.
    """

    def __init__(
        self,
        store: LedgerStore,
        place: ClaimPlace,
        run: str,
        *,
        workers: int,
        exclusive: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._place = place
        self._run = run
        self._environment = store.environment_id()
        self._workers = workers
        self._exclusive = exclusive
        self._clock = clock
        self._seen_claims: dict[str, _SeenClaims] = {}
        self._own = Claims(run, self._environment, 0, HOLD_SECONDS)
        self._lease = 0.0  # time until which workers may start claimed tasks
        self._next_publish = self._next_soon = self._next_read = self._next_look = clock()
        self._drawn = 0

    # Claims of others

    def others(self) -> list[Claims]:
        """Return the valid claims of other launchers, after a read of those that may have changed."""
        now = self._clock()
        names = self._place.names()
        for gone in self._seen_claims.keys() - set(names):
            del self._seen_claims[gone]
        if names and (now >= self._next_read or not self._seen_claims.keys() >= set(names)):
            self._next_read = now + self._interval()
            self._read(names, now)
        valid = ((seen.claims, now - seen.since) for seen in self._seen_claims.values())
        return [
            claims
            for claims, age in valid
            if claims is not None
            and claims.spans
            and age < claims.seconds
            and not (claims.place == self._environment and self._place.has_died(claims))
        ]

    def _read(self, names: Sequence[str], now: float) -> None:
        try:
            found = self._place.read(names)
        except LedgerbeamError as error:  # claims are hints: work continues without them
            _log.debug("the claims of other launchers cannot be read: %s", error)
            return
        for name, data in zip(names, found, strict=True):
            seen = self._seen_claims.get(name)
            if seen is None or (data is not None and seen.data != data):
                self._seen_claims[name] = _SeenClaims(data, now, None if data is None else self._decoded(name, data))

    def _decoded(self, name: str, data: bytes) -> Claims | None:
        try:
            claims = decode_claims(data)
        except ValueError as error:
            _log.debug("%s: skipped, since it cannot be decoded as claims: %s", name, error)
            return None
        return claims if claims.run != self._run else None

    def _interval(self) -> float:
        return self._place.seconds * max(1.0, len(self._seen_claims) / _CROWD)

    # Own claims

    def begin(self, board: Board) -> None:
        """Set what workers may draw from a new board."""
        if self._exclusive:
            board.instruct(Instructions(shared=True, until=self._lease))

    def is_due(self, board: Board) -> bool:
        """Return whether claims are due to be published. If so, refresh the ledger before `turn`."""
        now = self._clock()
        if now >= self._next_publish:
            return bool(self._own.spans) or not board.is_empty()
        ready = self._workers if now < self._next_soon else len(board.ready(self._workers))
        return ready < self._workers and ready < board.left()

    def turn(self, board: Board) -> None:
        """Exchange claims and set what workers may draw, if due. Call it several times a second while workers draw."""
        now = self._clock()
        is_due = self.is_due(board)
        if is_due:
            self._next_read = min(self._next_read, now)  # read just before claiming
        others = self.others()
        if others and not board.instructions().shared:  # workers draw only claimed tasks from now on
            board.instruct(Instructions(shared=True, until=self._lease))
            board.hold(task.key for task in board.ready(board.left()) if not self._own.holds(task.span))
        elif not others and board.instructions().shared and not self._exclusive:
            board.instruct(Instructions())
            board.offer_all()
        if is_due:
            self._claim(board, others, now)
        elif others and now >= self._next_look and not board.ready(1):
            self._next_look = now + _LOOK_SECONDS
            _, is_left = self._free(board, others, 0)
            if board.instructions().over is is_left:
                board.instruct(board.instructions()._replace(over=not is_left))

    def _claim(self, board: Board, others: Sequence[Claims], now: float) -> None:
        interval = self._interval()
        holds = max(HOLD_SECONDS, 3 * interval)
        in_work = board.in_work(now - _LINGER_SECONDS)
        wanted = self._wanted(board, len(others))
        if others:
            self._leave_to_others(board, others, wanted)
        ready = board.ready(wanted)
        chosen, is_left = self._free(board, others, wanted - len(ready))
        spans = merged(task.span for task in (*in_work, *ready, *chosen))[:MOST_SPANS]
        self._next_publish = self._next_soon = now + interval
        if not self._publish(spans, holds):
            return
        self._lease = now + _LEASE * holds
        is_over = not (ready or chosen)
        if self._exclusive:
            self._next_soon = now + (_SOON_SECONDS if chosen or is_left or not others else interval)
            self._store.refresh()
            self._next_read = now
            others = self.others()
            chosen = [task for task in chosen if not any(claims.holds(task.span) for claims in others)]
        board.offer(task.key for task in chosen)
        if others or self._exclusive:
            board.instruct(Instructions(shared=True, until=self._lease, over=is_over))

    def _wanted(self, board: Board, others: int) -> int:
        """Return the number of elements to claim in advance: at most half of a fair share of the remaining ones."""
        drawn = board.drawn()
        recent, self._drawn = max(0, drawn - self._drawn), drawn
        share = -(-board.left() // (2 * (others + 1)))
        return max(self._workers, min(share, _AT_ONCE, 3 * recent + 8 * self._workers))

    def _leave_to_others(self, board: Board, others: Sequence[Claims], wanted: int) -> None:
        """Forbid workers to draw what another launcher claims with a lower `rank`, and all but `wanted` of the rest.

        An exclusive launcher, which may have stood still, leaves all that another one claims.
        """
        ready = board.ready(board.left())
        lost = []
        for task in ready:
            span = task.span
            own = 2**64 if self._exclusive else rank(self._run, span.source, span.start)
            if any(claims.holds(span) and rank(claims.run, span.source, span.start) < own for claims in others):
                lost.append(task.key)
        gone = set(lost)
        kept = [task.key for task in ready if task.key not in gone]
        board.hold([*lost, *kept[wanted:]])

    def _free(self, board: Board, others: Sequence[Claims], most: int) -> tuple[list[BoardTask], bool]:
        """Return at most `most` elements of `Board.waiting` that no other launcher claims, and whether there are more.

        Elements that are done elsewhere are removed from the board.
        """
        found: list[BoardTask] = []
        for page in board.waiting():
            finished = self._finished(page)
            board.drop(task.key for task, is_done in zip(page, finished, strict=True) if is_done)
            for task, is_done in zip(page, finished, strict=True):
                if is_done or any(claims.holds(task.span) for claims in others):
                    continue
                if len(found) >= most:
                    return found, True
                found.append(task)
        return found, False

    def _finished(self, tasks: Sequence[BoardTask]) -> list[bool]:
        found = iter(self._store.finished([one for task in tasks for one in task.tasks()]))
        return [False not in [*islice(found, len(task.lineages))] for task in tasks]

    def _publish(self, spans: Sequence[Span], holds: float) -> bool:
        claims = Claims(self._run, self._environment, self._own.number + 1, holds, spans)
        try:
            self._place.put(encode_claims(claims))
        except LedgerbeamError as error:  # tasks without a claim are not drawn here; others do them
            _log.debug("the claims of this launcher cannot be published: %s", error)
            return False
        self._own = claims
        return True

    # Work left to others

    def open_tasks(self, tasks: Iterable[BoardTask]) -> tuple[list[BoardTask], WaitingTasks]:
        """Return the unfinished elements among `tasks`, and how many of them other launchers are processing."""
        listed = list(tasks)
        left = [task for task, is_done in zip(listed, self._finished(listed), strict=True) if not is_done]
        others = self.others()
        held = [task for task in left if any(claims.holds(task.span) for claims in others)]
        launchers = sum(any(claims.holds(task.span) for task in held) for claims in others)
        return left, WaitingTasks(sum(len(task.lineages) for task in held), launchers, len(left) - len(held))

    def publish_idle(self) -> None:
        """Publish empty claims, because nothing is being processed any more. If this fails, the old claims expire."""
        if self._own.spans and self._clock() >= self._next_publish:
            self._next_publish = self._clock() + self._interval()
            self._publish([], HOLD_SECONDS)

    def close(self) -> None:
        """Remove the claims of this launcher."""
        if self._own.number:
            try:
                self._place.remove()
            except LedgerbeamError as error:  # the claims expire
                _log.debug("the claims of this launcher cannot be removed: %s", error)


_FILE = "claims.json"
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9.]+")


def claim_place(store: LedgerStore, folder: RunFolder, run: str) -> ClaimPlace:
    """Return the place where the launchers of a ledger exchange claims."""
    folders = run_folders(store)
    remote = as_remote(store)
    if remote is None:
        return FolderClaims(folders, folder, run)
    return ObjectClaims(remote, run, os.uname().nodename, folders.lives)


def read_claims(store: LedgerStore) -> list[Claims]:
    """Return the current claims of launchers, sorted by run. They are hints: a launcher may have died since.

    For a remote ledger, the objects found by the last `refresh` are read. Unreadable claims are skipped. Raises
    StorageError.
    """
    remote = as_remote(store)
    if remote is None:
        folders = run_folders(store)
        found = [_read_folder_claims(folders, launcher.run) for launcher in folders.launchers() if launcher.lives]
    else:
        found = remote.parts()[0].read(remote.claimed)
    claims: list[Claims] = []
    for data in found:
        with contextlib.suppress(ValueError, LedgerbeamError):
            claims += [] if data is None else [decode_claims(data)]
    return sorted(claims, key=lambda each: run_order(each.run))


def as_remote(store: LedgerStore) -> RemoteStore | None:
    """Return the store if its ledger is on an object store; None for a local ledger."""
    if type(store) is LmdbStore:
        return None
    from ledgerbeam.ledger.remote.store import RemoteStore  # noqa: PLC0415

    return store if isinstance(store, RemoteStore) else None


class FolderClaims:
    """Claims in the run folders of a local ledger; see `claims.ClaimPlace`."""

    seconds = 2.0

    def __init__(self, folders: RunFolders, folder: RunFolder, run: str) -> None:
        self._folders = folders
        self._folder = folder
        self._run = run

    def put(self, data: bytes) -> None:
        aside = os.path.join(self._folder.path, f".{secrets.token_hex(6)}")
        with translated(self._folder.path):
            with open(aside, "xb") as file:
                file.write(data)
            os.rename(aside, os.path.join(self._folder.path, _FILE))

    def names(self) -> Sequence[str]:
        """Return the runs of other live launchers."""
        return [found.run for found in self._folders.launchers() if found.lives and found.run != self._run]

    def read(self, names: Sequence[str]) -> list[bytes | None]:
        return [_read_folder_claims(self._folders, name) for name in names]

    def has_died(self, claims: Claims) -> bool:
        """Return False: `names` has only live launchers."""
        del claims
        return False

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self._folder.path, _FILE))


def _read_folder_claims(folders: RunFolders, run: str) -> bytes | None:
    """Return the claims of the launcher of a run; None if they cannot be read."""
    with contextlib.suppress(OSError), own_file(os.path.join(folders.path, run, _FILE)) as fd:
        return None if fd is None else os.pread(fd, MOST_BYTES + 1, 0)
    return None


class ObjectClaims:
    """Claims below ``claims/`` of a remote ledger; see `claims.ClaimPlace`.

    The listing of `RemoteStore.refresh` finds the other claims, without a request of its own.
    """

    seconds = 10.0

    def __init__(self, store: RemoteStore, run: str, host: str, lives: Callable[[str], bool]) -> None:
        self._store = store
        self._objects, _ = store.parts()
        self._lives = lives
        self._name = f"{CLAIMS}/{run}/{_NOT_IN_NAMES.sub('-', host)[:40]}.json"

    def put(self, data: bytes) -> None:
        self._objects.replace(self._name, data)

    def names(self) -> Sequence[str]:
        """Return the names of the objects of other launchers."""
        return [name for name in self._store.claimed if name != self._name]

    def read(self, names: Sequence[str]) -> list[bytes | None]:
        return self._objects.read(names)

    def has_died(self, claims: Claims) -> bool:
        """Return whether a launcher with the same sidecar as this one no longer holds the lock of its run."""
        return not self._lives(claims.run)

    def remove(self) -> None:
        self._objects.delete([self._name])
