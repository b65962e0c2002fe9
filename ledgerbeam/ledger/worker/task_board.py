"""The task board of a wave, from which the workers of its host draw one task after the other.

An element of the board is one task, or several tasks that one pass reads. A drawn element is being processed. A worker
draws the next one when it has finished one, so all workers end at about the same time. The launcher decides which
elements may be drawn: all of them while no other launcher shares the job, else only those that it has claimed
(`sharing`). This permission expires unless the launcher renews it: workers of a stopped launcher start nothing.

The board is an LMDB environment in the folder of the wave. It is never flushed, since only the running wave needs it.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

import lmdb
import orjson

from ledgerbeam._base.process import hold_standard_descriptors
from ledgerbeam.ledger.lmdb.data_file import DataDescriptors
from ledgerbeam.ledger.lmdb.errors import translated
from ledgerbeam.ledger.model.claims import Span
from ledgerbeam.ledger.model.identity import Lineage

_READY, _WAITING = b"r", b"w"
_MAP_BYTES = 1 << 26
_ENDED = struct.Struct("<d")
_COUNT = struct.Struct("<Q")
_PAGE = 1000
_PLANNING = struct.Struct("<QQQ")
_MOST_TAKEN = 64  # number of sources that a worker plans before it posts their tasks

_Result = TypeVar("_Result")


class BoardTask(NamedTuple):
    """An element of the board: its key, by which elements are ordered, its span, and the lineages of its tasks."""

    key: bytes
    span: Span
    lineages: tuple[Lineage, ...]

    def tasks(self) -> list[tuple[bytes, Lineage]]:
        """Return its tasks, for `LedgerStore.finished`."""
        return [(self.span.source, lineage) for lineage in self.lineages]


class Drawn(NamedTuple):
    """A drawn element, and the key with which a worker reports that it has finished it."""

    key: bytes
    element: bytes


class Instructions(NamedTuple):
    """The launcher's instructions to the workers."""

    shared: bool = False  # whether other launchers share the job, so that only claimed tasks may be drawn
    until: float | None = None  # time until which tasks may be drawn, by `time.monotonic`; None for no limit
    over: bool = False  # whether no more tasks will become available, as far as is known


class Board:
    """The board of one wave. Thread-safe; `task_board` returns the one board of each process."""

    def __init__(self, path: str) -> None:
        hold_standard_descriptors()
        self.path = path
        self._lock = threading.RLock()
        with translated(path):
            os.makedirs(path, mode=0o700, exist_ok=True)
            self._descriptors = DataDescriptors(path)
            with self._descriptors.opening():
                self._env = lmdb.open(
                    path, map_size=_MAP_BYTES, max_dbs=4, sync=False, metasync=False, max_readers=1000
                )
            names = (b"queue", b"bodies", b"work", b"says")
            self._queue, self._bodies, self._work, self._says = map(self._env.open_db, names)

    def close(self) -> None:
        """Close the board in this process."""
        with self._lock:
            _boards.pop((os.getpid(), self.path), None)
            self._env.close()

    def _run(self, body: Callable[[lmdb.Transaction[bytes]], _Result], *, write: bool = True) -> _Result:
        """Run a transaction; repeat it from the start if the map had to grow."""
        with self._lock:
            while True:
                if write:
                    self._descriptors.check()
                try:
                    with translated(self.path), self._env.begin(write=write) as txn:
                        return body(txn)
                except lmdb.MapFullError:
                    self._env.set_mapsize(2 * self._env.info()["map_size"])
                except lmdb.MapResizedError:
                    self._env.set_mapsize(0)

    # For workers

    def take_sources(self, workers: int) -> range:
        """Take the next sources to plan, fewer each time, so that all workers end together. Return their positions."""

        def change(txn: lmdb.Transaction[bytes]) -> range:
            sources, taken, planned = self._planning(txn)
            share = min(_MOST_TAKEN, -(-(sources - taken) // (2 * workers)))
            txn.put(b"planning", _PLANNING.pack(sources, taken + share, planned), db=self._says)
            return range(taken, taken + share)

        return self._run(change)

    def end_sources(self, number: int) -> None:
        """Add `number` to the number of planned sources, whose tasks are on the board."""

        def change(txn: lmdb.Transaction[bytes]) -> None:
            sources, taken, planned = self._planning(txn)
            txn.put(b"planning", _PLANNING.pack(sources, taken, planned + number), db=self._says)

        self._run(change)

    def _planning(self, txn: lmdb.Transaction[bytes]) -> tuple[int, int, int]:
        """Return the numbers of sources of `plan`, of those that workers have taken, and of those they have planned."""
        said = txn.get(b"planning", db=self._says)
        return _PLANNING.unpack(said) if said else (0, 0, 0)

    def post(self, tasks: Sequence[tuple[BoardTask, bytes]]) -> None:
        """Put elements on the board. Existing ones stay as they are.

        If any is new, set `Instructions.over` to false: workers may get more to draw.
        """

        def change(txn: lmdb.Transaction[bytes]) -> None:
            instructions = self._instructions(txn)
            state = _WAITING if instructions.shared else _READY
            is_more = False
            for task, body in tasks:
                if txn.put(task.key, body, db=self._bodies, overwrite=False):
                    txn.put(state + task.key, _pack(task), db=self._queue)
                    is_more = True
            if instructions.over and is_more:
                self._put_instructions(txn, instructions._replace(over=False))

        self._run(change)

    def draw(self, most: int = 1, *, ended: Iterable[bytes] = (), leaving: int = 0) -> list[Drawn]:
        """Take the next elements that may be started, at most `most`, in order; none if none may be started now.

        `ended` has the keys of drawn elements that are finished. They stay claimed for a while, until other launchers
        can see that they are recorded. `leaving` is the number of elements that must stay for other workers.
        """

        def change(txn: lmdb.Transaction[bytes]) -> list[Drawn]:
            for key in ended:
                about = txn.get(key, db=self._work)
                if about is not None:
                    txn.put(key, _ENDED.pack(time.monotonic()) + about[_ENDED.size :], db=self._work)
            may_take = min(most, txn.stat(self._queue)["entries"] - leaving)
            if may_take <= 0 or not self._may_begin(txn):
                return []
            with txn.cursor(self._queue) as cursor:
                taken = list(islice(cursor.iternext(), may_take))  # elements that may be started sort first
            found: list[Drawn] = []
            for name, about in taken:
                body = txn.pop(name[1:], db=self._bodies) if name.startswith(_READY) else None
                if body is not None:
                    txn.delete(name, db=self._queue)
                    txn.put(name[1:], _ENDED.pack(0.0) + about, db=self._work)
                    found.append(Drawn(name[1:], body))
            drawn = txn.get(b"drawn", db=self._says)
            txn.put(b"drawn", _COUNT.pack(len(found) + (_COUNT.unpack(drawn)[0] if drawn else 0)), db=self._says)
            return found

        return self._run(change)

    def may_begin(self) -> bool:
        """Return whether tasks may be started now: the launcher's instructions are still valid."""
        return self._run(self._may_begin, write=False)

    def _may_begin(self, txn: lmdb.Transaction[bytes]) -> bool:
        until = self._instructions(txn).until
        return until is None or until >= time.monotonic()

    def is_done(self) -> bool:
        """Return whether workers can stop: all sources are planned, and no element may be drawn, now or later."""

        def look(txn: lmdb.Transaction[bytes]) -> bool:
            sources, _, planned = self._planning(txn)
            if planned < sources:
                return False
            with txn.cursor(self._queue) as cursor:
                if not cursor.first():
                    return True
                return self._instructions(txn).over and not cursor.key().startswith(_READY)

        return self._run(look, write=False)

    # For the launcher

    def plan(self, sources: int) -> None:
        """Set the number of sources that workers plan. Without this call, the runner plans in another way."""
        self._run(lambda txn: txn.put(b"planning", _PLANNING.pack(sources, 0, 0), db=self._says))

    def instructions(self) -> Instructions:
        return self._run(self._instructions, write=False)

    def instruct(self, instructions: Instructions) -> None:
        self._run(lambda txn: self._put_instructions(txn, instructions))

    def _put_instructions(self, txn: lmdb.Transaction[bytes], instructions: Instructions) -> None:
        txn.put(b"facts", orjson.dumps(list(instructions)), db=self._says)

    def _instructions(self, txn: lmdb.Transaction[bytes]) -> Instructions:
        said = txn.get(b"facts", db=self._says)
        return Instructions() if said is None else Instructions(*orjson.loads(said))

    def drawn(self) -> int:
        """Return the number of elements drawn so far."""
        said = self._run(lambda txn: txn.get(b"drawn", db=self._says), write=False)
        return int(_COUNT.unpack(said)[0]) if said else 0

    def is_empty(self) -> bool:
        """Return whether the board has no elements, drawn or not."""
        return not self._run(
            lambda txn: txn.stat(self._queue)["entries"] + txn.stat(self._work)["entries"], write=False
        )

    def left(self) -> int:
        """Return the number of elements that are not drawn yet."""
        return int(self._run(lambda txn: txn.stat(self._queue)["entries"], write=False))

    def ready(self, most: int) -> list[BoardTask]:
        """Return the next elements that workers may draw, at most `most`."""
        return self._page(_READY, b"", most)

    def waiting(self) -> Iterator[list[BoardTask]]:
        """Yield the elements that workers may not draw yet, in order, in pages."""
        start = b""
        while page := self._page(_WAITING, start, _PAGE):
            yield page
            start = page[-1].key + b"\0"

    def undrawn(self) -> list[BoardTask]:
        """Return all elements that no worker has drawn."""
        return [*self.ready(self.left()), *(task for page in self.waiting() for task in page)]

    def _page(self, state: bytes, start: bytes, most: int) -> list[BoardTask]:
        def look(txn: lmdb.Transaction[bytes]) -> list[BoardTask]:
            found: list[BoardTask] = []
            with txn.cursor(self._queue) as cursor:
                if cursor.set_range(state + start):
                    for name, about in cursor.iternext():
                        if len(found) == most or not name.startswith(state):
                            break
                        found.append(_unpack(name[1:], about))
            return found

        return self._run(look, write=False)

    def in_work(self, ended_before: float) -> list[BoardTask]:
        """Return the drawn elements. Those finished before the time `ended_before` are removed, and not returned."""

        def change(txn: lmdb.Transaction[bytes]) -> list[BoardTask]:
            found, gone = [], []
            with txn.cursor(self._work) as cursor:
                for key, about in cursor.iternext():
                    ended = _ENDED.unpack_from(about)[0]
                    if ended and ended < ended_before:
                        gone.append(key)
                    else:
                        found.append(_unpack(key, about[_ENDED.size :]))
            for key in gone:
                txn.delete(key, db=self._work)
            return found

        return self._run(change)

    def offer(self, keys: Iterable[bytes]) -> None:
        """Allow workers to draw waiting elements."""
        self._move(keys, _WAITING, _READY)

    def hold(self, keys: Iterable[bytes]) -> None:
        """Forbid workers to draw elements until `offer`. Elements that are drawn already stay drawn."""
        self._move(keys, _READY, _WAITING)

    def offer_all(self) -> None:
        """Allow workers to draw all elements."""
        self._move([task.key for page in self.waiting() for task in page], _WAITING, _READY)

    def _move(self, keys: Iterable[bytes], state: bytes, to: bytes) -> None:
        moving = list(keys)

        def change(txn: lmdb.Transaction[bytes]) -> None:
            for key in moving:
                about = txn.pop(state + key, db=self._queue)
                if about is not None:
                    txn.put(to + key, about, db=self._queue)

        if moving:
            self._run(change)

    def drop(self, keys: Iterable[bytes]) -> None:
        """Remove elements that are done elsewhere."""
        gone = list(keys)

        def change(txn: lmdb.Transaction[bytes]) -> None:
            for key in gone:
                if txn.delete(_WAITING + key, db=self._queue):
                    txn.delete(key, db=self._bodies)

        if gone:
            self._run(change)


def _pack(task: BoardTask) -> bytes:
    return orjson.dumps([task.span.source.hex(), task.span.start, task.span.stop, task.lineages])


def _unpack(key: bytes, about: bytes) -> BoardTask:
    source, start, stop, lineages = orjson.loads(about)
    found = tuple(tuple((ordinal, count) for ordinal, count in lineage) for lineage in lineages)
    return BoardTask(key, Span(bytes.fromhex(source), start, stop), found)


_boards: dict[tuple[int, str], Board] = {}  # a forked process never touches its parent's boards
_boards_lock = threading.Lock()


class BoardPlace(NamedTuple):
    """The place of a wave's board: folder, number of workers, and the run, by which the tasks are ordered."""

    run_dir: str
    run: str
    workers: int


def task_board(run_dir: str) -> Board:
    """Return this process's board of a wave, from the wave's folder."""
    path = os.path.join(run_dir, "board")
    with _boards_lock:
        board = _boards.get((os.getpid(), path))
        if board is None:
            board = _boards[os.getpid(), path] = Board(path)
        return board


def _forget_after_fork() -> None:
    global _boards_lock  # noqa: PLW0603 - the inherited lock may be held by a thread that does not exist here
    _boards_lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_after_fork)
