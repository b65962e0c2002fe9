"""One LMDB environment for each process and path: opening, transactions, growth, fork."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

import lmdb

from ledgerbeam.errors import LedgerNotFoundError
from ledgerbeam.ledger.lmdb.data_file import DataDescriptors
from ledgerbeam.ledger.lmdb.errors import translated
from ledgerbeam.ledger.lmdb.files import DATA_FILE, INITIAL_MAP_BYTES, open_environment
from ledgerbeam.ledger.lmdb.tables import PAGE_ROWS, Row, Transaction

_TRIM_BYTES = 32 << 20

_Result = TypeVar("_Result")


class _Gate:
    """A lock that many transactions share, or that one change of the memory map holds alone."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._shut = False

    def enter(self) -> None:
        with self._changed:
            while self._shut:
                self._changed.wait()
            self._inside += 1

    def leave(self) -> None:
        with self._changed:
            self._inside -= 1
            if not self._inside:
                self._changed.notify_all()

    def shut(self) -> None:
        with self._changed:
            while self._shut:
                self._changed.wait()
            self._shut = True
            while self._inside:
                self._changed.wait()

    def is_empty(self) -> bool:
        with self._changed:
            return not self._inside

    def reopen(self) -> None:
        with self._changed:
            self._shut = False
            self._changed.notify_all()

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        self.enter()
        try:
            yield
        finally:
            self.leave()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        self.shut()
        try:
            yield
        finally:
            self.reopen()


class Environment:
    """An open environment. Only `acquire` creates one, because LMDB forbids to open it twice in a process."""

    def __init__(self, path: str, *, read_only: bool, create: bool, map_bytes: int) -> None:
        self.path = path
        self.read_only = read_only
        self.users = 0
        self.gate = _Gate()
        self._map_bytes = map_bytes
        self._open(create=create, map_bytes=map_bytes)
        self._file = self._find_file()
        self._resident = _resident_file_bytes()

    def _open(self, *, create: bool, map_bytes: int) -> None:
        self._descriptors = DataDescriptors(self.path)
        with self._descriptors.opening():
            self._env, self._tables = open_environment(
                self.path, read_only=self.read_only, create=create, map_bytes=map_bytes
            )

    @contextlib.contextmanager
    def read(self) -> Iterator[Transaction]:
        """Yield a consistent view of the rows. The body must not start another transaction, or yield in a generator.

        Other threads and processes can read and write meanwhile. Until the view ends, the file grows with each write,
        and this process cannot enlarge its memory map.
        """
        txn = self._begin_read()
        try:
            with translated(self.path):
                yield Transaction(txn, self._tables)
        finally:
            txn.abort()
            self.gate.leave()

    def _begin_read(self) -> lmdb.Transaction[bytes]:
        while True:
            self.gate.enter()
            try:
                with translated(self.path):
                    return self._env.begin()
            except lmdb.MapResizedError:
                self.gate.leave()
                self._adopt_map()
            except BaseException:
                self.gate.leave()
                raise

    def write(self, change: Callable[[Transaction], _Result]) -> _Result:
        """Run a change in one durable transaction.

        If the memory map must grow, `change` runs again from the start: it must have no effect outside the transaction.
        """
        while True:
            size = 0
            try:
                with self.gate.entered(), translated(self.path):
                    self._check_file()
                    size = self._env.info()["map_size"]
                    with self._env.begin(write=True) as txn:
                        return change(Transaction(txn, self._tables))
            except lmdb.MapResizedError:
                self._adopt_map()
            except lmdb.MapFullError:
                self._grow_map(size)

    def _adopt_map(self) -> None:
        with self.gate.alone(), translated(self.path):
            self._env.set_mapsize(0)

    def _grow_map(self, size: int) -> None:
        with self.gate.alone(), translated(self.path):
            if self._env.info()["map_size"] <= size:  # else another thread was faster
                self._env.set_mapsize(2 * size)

    def trim(self) -> None:
        """Release the memory of mapped pages if there is much of it and no transaction is open.

        Pages that were read count as this process's memory until they are unmapped.
        """
        if self.gate.is_empty() and _resident_file_bytes() - self._resident > _TRIM_BYTES:
            self.open_again(read_only=self.read_only)

    def open_again(self, *, read_only: bool) -> None:
        """Close and reopen in the given mode, when no transaction is open."""
        with self.gate.alone():
            size = max(self._map_bytes, self._env.info()["map_size"])
            self._env.close()
            self.read_only = read_only
            self._open(create=False, map_bytes=size)
            self._resident = _resident_file_bytes()

    def close(self) -> None:
        """Close the environment, after the end of all open transactions."""
        with self.gate.alone():
            self._env.close()

    def abandon(self) -> None:
        """Close the environment in a forked process. The fork waited for all transactions, so none is inherited."""
        self._env.close()

    def _find_file(self) -> tuple[int, int] | None:
        try:
            found = os.stat(os.path.join(self.path, DATA_FILE))
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def is_in_place(self) -> bool:
        """Return whether the path still leads to the data file that this environment has open."""
        return self._find_file() == self._file

    def _check_file(self) -> None:
        if not self.is_in_place():
            raise LedgerNotFoundError(
                f"ledger {self.path}: its files were moved, removed or replaced while it was in use. If they were "
                "moved, put them back, and run the same command again. Else their content is lost: run the command "
                "with --existing replace, which starts a new ledger and replaces the outputs"
            )
        self._descriptors.check()


_open: dict[str, Environment] = {}
_open_lock = threading.Lock()


def acquire(path: str, *, read_only: bool, create: bool, map_bytes: int = INITIAL_MAP_BYTES) -> Environment:
    """Return this process's environment of a ledger, opened if necessary. Call `release` after use.

    Raises like `files.open_environment`.
    """
    key = os.path.realpath(path)
    with _open_lock:
        environment = _open.get(key)
        if environment is not None and not environment.is_in_place():
            del _open[key]
            environment.close()
            environment = None
        if environment is None:
            environment = Environment(path, read_only=read_only, create=create, map_bytes=map_bytes)
            _open[key] = environment
        elif environment.read_only and not read_only:
            environment.open_again(read_only=False)
        environment.users += 1
        return environment


def release(environment: Environment) -> None:
    """Release an environment; it is closed when it has no users left."""
    with _open_lock:
        environment.users -= 1
        key = os.path.realpath(environment.path)
        if environment.users <= 0 and _open.get(key) is environment:  # else it was forked, or replaced
            del _open[key]
            environment.close()


def _resident_file_bytes() -> int:
    """Return the file-mapped resident memory of this process, in bytes; 0 if it is unknown (proc(5), statm)."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[2]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _before_fork() -> None:
    # A transaction that a forked process inherits would free the parent's reader slot. So all must end first.
    _open_lock.acquire()
    for environment in _open.values():
        environment.gate.shut()


def _after_fork_in_parent() -> None:
    for environment in _open.values():
        environment.gate.reopen()
    _open_lock.release()


def _after_fork_in_child() -> None:
    global _open_lock  # noqa: PLW0603 - the inherited lock belongs to a thread of the parent
    _open_lock = threading.Lock()
    for environment in _open.values():
        environment.abandon()
    _open.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


def row_pages(
    environment: Environment, table: str, most_bytes: int | None = None, rows: int = PAGE_ROWS
) -> Iterator[list[Row]]:
    """Yield all rows of a table in key order, in pages of `rows`. A page ends at the row that reaches `most_bytes`.

    Each page is consistent in itself. A row that is written or deleted meanwhile may be included or not. The pages of
    `Transaction.pages` are consistent with each other.
    """
    start, seen, first = b"", 0, -1
    while True:
        with environment.read() as txn:
            page = txn.page(table, start, rows, most_bytes)
            first = txn.moment if first < 0 else first
            seen += len(page)
            is_last = not (page and txn.page(table, page[-1][0] + b"\0", 1))
            if is_last and txn.moment == first:  # nothing was written meanwhile, so no row may be missing
                txn.require_all(table, seen)
        if not page:
            return
        yield page
        start = page[-1][0] + b"\0"  # the least key after the last one
        environment.trim()


def key_pages(environment: Environment, table: str, rows: int = PAGE_ROWS) -> Iterator[list[bytes]]:
    """Yield all keys of a table in order, in pages of `rows`; see `row_pages`."""
    for page in row_pages(environment, table, rows=rows):
        yield [key for key, _ in page]
