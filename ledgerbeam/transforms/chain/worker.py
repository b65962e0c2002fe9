"""Shared state of the DoFns of a worker process: the ledger, its group commit, and marks of running tasks."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ledgerbeam.errors import LedgerbeamError
from ledgerbeam.io.storage.urls import canonical_url
from ledgerbeam.ledger import LedgerStore, Source, Task
from ledgerbeam.ledger.lmdb.data_file import publishing
from ledgerbeam.ledger.opening import open_mirror, open_sink, open_store
from ledgerbeam.ledger.worker.inflight import InflightMarks
from ledgerbeam.ledger.worker.reports import end_work, report_error, report_set_ups
from ledgerbeam.ledger.worker.run_folders import wait_for_index
from ledgerbeam.ledger.worker.stopwatch import report_times
from ledgerbeam.ledger.worker.writer import MAX_ENTRIES, LedgerPlace, LedgerWriter, shared_writer
from ledgerbeam.user_code.objects import close_objects

_stores: dict[LedgerPlace, LedgerStore] = {}
_stores_lock = threading.Lock()


@dataclass(frozen=True)
class LedgerHandle:
    """Access to the ledger of a job from a worker. Cheap to pickle; the ledger is opened on first use.

    Attributes:
        url: URL of the ledger.
        job: Fingerprint that the ledger must have at each commit. None does not check.
        flush_interval: Maximum time that a completion waits for its commit, in seconds.
        flush_entries: Maximum number of completions in one commit.
        run_dir: Folder of the local run. Workers write marks of running tasks and their last error there. None if the
            runner watches its workers itself.
        storage_options: Passed to fsspec unchanged.
        run: ID of the run, from `begin_run` of a remote ledger. Empty for the newest run, which costs one request per
            commit.
        modules: Hashes of the modules of user code at the start of the job, by module name.
    """

    url: str
    job: str | None = None
    flush_interval: float = 1.0
    flush_entries: int = MAX_ENTRIES
    run_dir: str | None = None
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    run: str = ""
    modules: Mapping[str, str] = field(default_factory=dict)

    def store(self) -> LedgerStore:
        """Return the store of this process. A remote ledger is read once, at the first call."""
        place = self._place
        with _stores_lock:
            store = _stores.get(place)
            if store is None:
                store = open_store(self.url, self.storage_options, create=False, job=self.job, run=self.run)
                _stores[place] = store
            return store

    def mirror(self) -> LedgerStore:
        """Return the local copy of the ledger, as of the last refresh by the launcher. Makes no request."""
        place = self._mirror_place
        with _stores_lock:
            store = _stores.get(place)
            if store is None:
                store = _stores[place] = open_mirror(self.url)
            return store

    @cached_property
    def _place(self) -> LedgerPlace:
        return LedgerPlace.of(canonical_url(self.url), job=self.job, run=self.run, options=self.storage_options)

    @cached_property
    def _mirror_place(self) -> LedgerPlace:
        return LedgerPlace.of(canonical_url(self.url), run="mirror")

    @contextmanager
    def publishing(self, sources: Iterable[bytes]) -> Iterator[set[bytes]]:
        """Yield the sources that were replaced since their tasks were planned, as far as this host knows.

        Another launcher may have listed a new version. With a local ledger, the remaining sources are not replaced
        while the body runs. Runners other than the local one do not check, and yield an empty set.
        """
        if self.run_dir is None:
            yield set()
            return
        asked, mirror = set(sources), self.mirror()
        with publishing(mirror.url, asked):
            yield asked - mirror.source_urls(asked).keys()

    def writer(self) -> LedgerWriter:
        """Return the writer of this process for this ledger, job and run. It commits in groups."""
        return shared_writer(
            self._place,
            interval=self.flush_interval,
            max_entries=self.flush_entries,
            open_sink=lambda: open_sink(self.url, self.storage_options, job=self.job, run=self.run),
        )

    @contextmanager
    def working_on(self, tasks: Sequence[Task]) -> Iterator[None]:
        """Mark `tasks` as running in this process, so that a crash in the body counts against them.

        A mark that cannot be written ends the worker, as in `fatal_errors`.
        """
        if self.run_dir is None:
            yield
            return
        self.note_times()
        with self.fatal_errors(), InflightMarks(self.run_dir).working_on(tasks):
            yield

    def wait_for_index(self, source: Source) -> None:
        """Wait until the launcher of a local run has built the index of a source in advance, if it does so."""
        if self.run_dir is not None:
            wait_for_index(os.path.dirname(self.run_dir), source)

    @contextmanager
    def fatal_errors(self) -> Iterator[None]:
        """End the worker if the body raises a `LedgerbeamError`. Finished tasks are committed first.

        A worker of a local run writes the error to a file for the launcher and exits, because Beam would turn it into
        text of a traceback. On other runners the error propagates.
        """
        try:
            yield
        except LedgerbeamError as error:
            with suppress(LedgerbeamError):  # often the same error
                self.writer().flush()
            if self.run_dir is not None:
                report_error(self.run_dir, error)
                close_objects()
                end_work()
                os._exit(1)
            raise

    def note_set_ups(self, seconds: Sequence[float]) -> None:
        """Record the durations of the set-ups of user code in this process, for the launcher of a local run."""
        if self.run_dir is not None and seconds:
            report_set_ups(self.run_dir, seconds)

    def note_times(self, *, at_once: bool = False) -> None:
        """Record the work times of this process for the launcher of a local run, if they are due, or at once."""
        if self.run_dir is not None:
            report_times(self.run_dir, at_once=at_once)


def fatal_errors(ledger: LedgerHandle | None) -> AbstractContextManager[None]:
    """Return `LedgerHandle.fatal_errors`. For a chain without a ledger, return a context that does nothing."""
    return nullcontext() if ledger is None else ledger.fatal_errors()
