"""What the DoFns of one worker process share: the ledger, its group commit, and the marks of running tasks."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ledgerbeam.errors import LedgerbeamError
from ledgerbeam.io import canonical_url
from ledgerbeam.ledger import LedgerStore, Source, Task
from ledgerbeam.ledger.lmdb.publishing import publishing
from ledgerbeam.ledger.opening import open_mirror, open_sink, open_store
from ledgerbeam.ledger.worker.exit_callbacks import end_work
from ledgerbeam.ledger.worker.index_marks import wait_for_index
from ledgerbeam.ledger.worker.inflight import InflightMarks
from ledgerbeam.ledger.worker.reports import leave_error, leave_set_ups
from ledgerbeam.ledger.worker.stopwatch import leave_times
from ledgerbeam.ledger.worker.writer import MAX_ENTRIES, LedgerPlace, LedgerWriter, shared_writer
from ledgerbeam.user_code.instances import close_objects

_stores: dict[LedgerPlace, LedgerStore] = {}
_stores_lock = threading.Lock()


@dataclass(frozen=True)
class LedgerHandle:
    """How a worker reaches the ledger of its job. Cheap to pickle; everything is opened on first use.

    Attributes:
        url: The ledger, as given to `open_store`.
        job: Fingerprint that the ledger must have whenever something is committed; None does not check.
        flush_interval: Longest time that a completion waits for its commit, in seconds.
        flush_entries: Most completions of one commit.
        run_dir: Folder of the running local job in which workers leave marks of what they work on and the error
            that ended them; None where a runner of its own watches the workers.
        storage_options: How a remote ledger is reached; passed to fsspec untouched.
        run: The run that is recorded for, as `begin_run` of a remote ledger gave it; empty for the newest, which costs
            a request each commit to find out.
        modules: Hashes of the modules of user code when the job began, by their names.
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
        """Return the process's store of this ledger; a remote one as of when it was first asked for."""
        place = self._place
        with _stores_lock:
            store = _stores.get(place)
            if store is None:
                store = open_store(self.url, self.storage_options, create=False, job=self.job, run=self.run)
                _stores[place] = store
            return store

    def mirror(self) -> LedgerStore:
        """Return what this host knows of the ledger, as of when its launcher looked; the worker asks nobody."""
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
        """Yield which sources have been replaced since their tasks were planned, as far as this host knows.

        Another launcher may have listed them anew. The others are not replaced in the body, if the ledger is a local
        one. On other runners, where nobody looks for that, it yields none.
        """
        if self.run_dir is None:
            yield set()
            return
        asked, mirror = set(sources), self.mirror()
        with publishing(mirror.url, asked):
            yield asked - mirror.source_urls(asked).keys()

    def writer(self) -> LedgerWriter:
        """Return the process's group commit of this ledger, for this job and run."""
        return shared_writer(
            self._place,
            interval=self.flush_interval,
            max_entries=self.flush_entries,
            open_sink=lambda: open_sink(self.url, self.storage_options, job=self.job, run=self.run),
        )

    @contextmanager
    def working_on(self, tasks: Sequence[Task]) -> Iterator[None]:
        """Mark `tasks` as running in this process, so that a death in the body counts against them.

        Raises as `fatal_errors`: a mark that cannot be written ends the worker.
        """
        if self.run_dir is None:
            yield
            return
        self.note_times()
        with self.fatal_errors(), InflightMarks(self.run_dir).working_on(tasks):
            yield

    def wait_for_index(self, source: Source) -> None:
        """Wait while the launcher of a local run has the index of a source made ahead; raises as `fatal_errors`."""
        if self.run_dir is not None:
            wait_for_index(os.path.dirname(self.run_dir), source)

    @contextmanager
    def fatal_errors(self) -> Iterator[None]:
        """End the worker if the body raises a `LedgerbeamError`: what is finished is committed first.

        A worker of a local run leaves the error where the launcher finds it whole, and exits; between processes Beam
        would fold it into a traceback. Elsewhere the error passes to the runner.
        """
        try:
            yield
        except LedgerbeamError as error:
            with suppress(LedgerbeamError):  # often the very error that is passed on
                self.writer().flush()
            if self.run_dir is not None:
                leave_error(self.run_dir, error)
                close_objects()
                end_work()
                os._exit(1)
            raise

    def note_set_ups(self, seconds: Sequence[float]) -> None:
        """Tell the launcher of a local run how long the set-ups of user code in this process took."""
        if self.run_dir is not None and seconds:
            leave_set_ups(self.run_dir, seconds)

    def note_times(self, *, at_once: bool = False) -> None:
        """Tell the launcher of a local run where the time of this process went, if that is due, or at once."""
        if self.run_dir is not None:
            leave_times(self.run_dir, at_once=at_once)


def fatal_errors(ledger: LedgerHandle | None) -> AbstractContextManager[None]:
    """Return `LedgerHandle.fatal_errors`, or for a chain without a ledger a context that lets everything pass."""
    return nullcontext() if ledger is None else ledger.fatal_errors()
