"""Group commit: leaves of all threads of a process, recorded together.

A commit costs a disk flush, independent of its size. A writer gathers leaves and commits them before the oldest has
waited for `interval` seconds, when there are `max_entries`, or when `flush` is called. So a kill loses at most one
interval of work, also while a single task runs for hours.

While commits are fast, the thread that adds a leaf late in the interval makes the commit. In a background thread the
commit would take ten times as long: a store releases the interpreter's lock at each of its calls, and a busy thread
returns it only after a switch interval. The background thread commits if no leaf arrives in time, and if commits are
slow: over a network, to a busy disk, beside many other writers.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ledgerbeam.errors import NegativePendingCountError, NonDeterministicTaskError, UsageError
from ledgerbeam.ledger.model.faults import fault_point
from ledgerbeam.ledger.model.rows import CommitResult, Failure, Leaf
from ledgerbeam.ledger.model.store import LedgerSink
from ledgerbeam.ledger.opening import local_path

INTERVAL = 1.0  # default age, in seconds, at which an entry is committed

MAX_ENTRIES = 10_000
"""Default number of entries of a commit. Slow jobs reach the time limit first, and fast jobs get cheap commits."""

MAX_SKETCH_BYTES = 16 << 20
"""Size of waiting statistics that causes a commit, in bytes. A commit is held in memory, and is one object of a remote
ledger."""

_DUE = 0.75  # of the interval; after that the thread that adds a leaf commits
_QUICK = 0.02  # of the interval; longest commit that a worker should wait for
_SLOW_COMMITS = 64  # number of commits left to the background thread after a slow one


class LedgerWriter:
    """Gathers finished and failed tasks and commits them to a store. Thread-safe; it cannot be used after a fork."""

    def __init__(self, store: LedgerSink, interval: float = INTERVAL, max_entries: int = MAX_ENTRIES) -> None:
        """Start a writer and its background thread. The store stays open when the writer is closed.

        Raises UsageError unless the interval, in seconds, is > 0 and `max_entries` is >= 1.
        """
        if interval <= 0 or max_entries < 1:
            raise UsageError(
                f"a ledger writer needs interval > 0 and max_entries >= 1, found {interval} and {max_entries}"
            )
        self._store = store
        self._interval = interval
        self._max_entries = max_entries
        self._changed = threading.Condition()
        self._committing = threading.Lock()
        self._leaves: list[Leaf] = []
        self._failures: list[Failure] = []
        self._sketch_bytes = 0  # of the waiting leaves
        self._oldest = 0.0
        self._slow = 0  # commits that are still left to the background thread
        self._refused: BaseException | None = None  # error of a leaf; the others of its commit are recorded
        self._blocked: BaseException | None = None  # error of the last commit, if it recorded nothing
        self._pid = os.getpid()
        self._closed = False
        self._completed: list[bytes] = []
        self._fresh = 0
        self._seconds = 0.0
        self._thread = threading.Thread(target=self._flush_by_time, name="ledger-writer", daemon=True)
        self._thread.start()

    def add(self, row: Leaf | Failure) -> None:
        """Add a finished task, whose outputs are durable, or a failed one. Commit if there are `max_entries`.

        Raises LedgerError if a commit failed, here or earlier in the background; the row is kept. UsageError: the
        writer is closed.
        """
        self._check_process()
        with self._changed:
            if self._closed:
                raise UsageError("this ledger writer is closed; make a new one")
            # Select the lists here, under the lock: a commit of another thread replaces them.
            if isinstance(row, Leaf):
                self._leaves.append(row)
                self._sketch_bytes += row.sketch_bytes
            else:
                self._failures.append(row)
            waiting = len(self._leaves) + len(self._failures)
            is_full = waiting >= self._max_entries or self._sketch_bytes >= MAX_SKETCH_BYTES
            if waiting == 1:
                self._oldest = time.monotonic()
                self._changed.notify()
            failed = self._refused is not None or self._blocked is not None
            started = time.monotonic()
            is_due = not self._slow and started - self._oldest >= _DUE * self._interval
        if failed or is_due or is_full:
            self._flush()
            if is_due and time.monotonic() - started > _QUICK * self._interval:
                self._slow = _SLOW_COMMITS

    def flush(self) -> CommitResult:
        """Commit everything that was added before, durably; return the result of all commits since the last call.

        Raises LedgerError, and other errors of `LedgerStore.commit`, of this commit or of one in the background.
        Entries that were not recorded are kept, and committed by the next flush.
        """
        self._flush()
        with self._changed:
            result = CommitResult(self._completed, self._fresh, self._seconds)
            self._completed, self._fresh, self._seconds = [], 0, 0.0
        return result

    def close(self) -> None:
        """Flush, and stop the background thread. Raises like `flush`; closing again does nothing."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify()
        self._thread.join()
        self._flush()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise UsageError("a ledger writer cannot be used in a forked process; call shared_writer there")

    def _flush(self) -> None:
        self._check_process()
        self._commit()
        with self._changed:
            error = self._refused or self._blocked
            self._refused = None
        if error is not None:
            raise error

    def _commit(self) -> None:
        """Commit the waiting entries. An error is kept, and the next call of `_flush` raises it."""
        with self._committing:
            with self._changed:
                leaves, failures = self._leaves, self._failures
                self._leaves, self._failures, self._sketch_bytes = [], [], 0
            if not leaves and not failures:
                return
            fault_point("flush.begin")
            try:
                result = self._store.commit(leaves, failures)
            except (NonDeterministicTaskError, NegativePendingCountError) as error:
                # All other leaves were recorded; committing the refused leaf again would always fail.
                with self._changed:
                    self._refused, self._blocked = error, None
            except BaseException as error:  # noqa: BLE001 - raised by the next add, flush or close
                with self._changed:  # while blocked, the next entry causes a commit of all
                    self._leaves[:0], self._failures[:0] = leaves, failures
                    self._blocked = error
            else:
                fault_point("flush.after_commit")
                with self._changed:
                    self._blocked = None
                    self._completed += result.completed
                    self._fresh += result.fresh
                    self._seconds += result.seconds

    def _flush_by_time(self) -> None:
        while True:
            with self._changed:
                # Nothing is retried here while blocked: the next caller retries, and gets the error if it persists.
                while not self._closed and (self._blocked is not None or not (self._leaves or self._failures)):
                    self._changed.wait()
                if self._closed:
                    return
                rest = self._oldest + self._interval - time.monotonic()
                if rest > 0:
                    self._changed.wait(rest)
                    continue
            self._commit()
            self._slow = max(0, self._slow - 1)


class LedgerPlace(NamedTuple):
    """A ledger, and the job and run for which a process writes to it. Equal places share an open store."""

    url: str
    job: str | None = None  # fingerprint that the ledger must have; None does not check
    run: str = ""  # id of the run whose work is recorded; empty for the newest
    options: str = "{}"

    @classmethod
    def of(
        cls, url: str, *, job: str | None = None, run: str = "", options: Mapping[str, Any] | None = None
    ) -> LedgerPlace:
        """Return the place of a ledger; `url` is a URL with its scheme, or a path in any form."""
        scheme, separator, _ = url.partition("://")
        is_remote = separator and scheme != "file"
        where = url.rstrip("/") if is_remote else local_path(url)
        return cls(where, job, run, json.dumps(options or {}, sort_keys=True, default=repr))


_shared: dict[LedgerPlace, LedgerWriter] = {}
_shared_lock = threading.Lock()


def shared_writer(
    place: LedgerPlace,
    open_sink: Callable[[], LedgerSink],
    *,
    interval: float = INTERVAL,
    max_entries: int = MAX_ENTRIES,
) -> LedgerWriter:
    """Return this process's writer for a ledger. A forked process gets its own.

    The first call opens the ledger with `open_sink`, and sets the limits.
    """
    with _shared_lock:
        writer = _shared.get(place)
        if writer is None:
            writer = _shared[place] = LedgerWriter(open_sink(), interval, max_entries)
        return writer


def close_shared_writers() -> None:
    """Flush and close every shared writer of this process; the next `shared_writer` creates a new one.

    Raises the first error of `LedgerWriter.close`, after all were closed.
    """
    with _shared_lock:
        writers = list(_shared.values())
        _shared.clear()
    errors: list[BaseException] = []
    for writer in writers:
        try:
            writer.close()
        except BaseException as error:  # noqa: BLE001 - raised below, after the others were closed
            errors.append(error)
    if errors:
        raise errors[0]


def _forget_after_fork() -> None:
    global _shared_lock  # noqa: PLW0603 - the inherited lock may be held by a thread that does not exist here
    _shared_lock = threading.Lock()
    _shared.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
