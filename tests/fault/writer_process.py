"""What one forked writer does: the chain of a job's transforms, element by element, without a runner."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ledgerbeam.errors import UsageError
from ledgerbeam.io import SourceListing
from ledgerbeam.ledger import (
    Job,
    LedgerStore,
    OpenSource,
    RemoteStore,
    close_shared_writers,
    compact,
    open_sources,
    source_ids,
    with_progress,
)
from ledgerbeam.ledger.faults import arm
from ledgerbeam.ledgers import open_ledger
from ledgerbeam.transforms import LedgerHandle, MapRecords, SourceFormat
from ledgerbeam.transforms.commit import _Commit
from ledgerbeam.transforms.plan import _Plan
from ledgerbeam.transforms.process import _Process
from ledgerbeam.transforms.read import _Read
from ledgerbeam.transforms.shards import FormatShards
from ledgerbeam.transforms.write import _Write
from tests.fault.corpus import TASK_BYTES
from tests.fault.findings import JobFiles

FLUSH_SECONDS = 0.02
FLUSH_ENTRIES = 6

JOB = Job("map", {"output": "out"})


@dataclass(frozen=True)
class Writer:
    """One writer of a start.

    Attributes:
        files: Of the job.
        rank: Which of the writers it is.
        writers: How many there are.
        shared: Part of the tasks of other writers that it does too, as when a bundle is retried while its worker lives.
        seed: Of the order of its work.
        fault: Where it kills itself; empty for nowhere.
        cache: Local folder in which it keeps what it reads of a remote ledger: its host.
    """

    files: JobFiles
    rank: int
    writers: int
    shared: float
    seed: int
    fault: str
    cache: str

    def run(self) -> None:
        """Does its share of whatever the ledger holds as open. Rank 0 also records the run."""
        os.environ["LEDGERBEAM_CACHE"] = self.cache
        arm(self.fault)
        store = open_ledger(self.files.ledger, create=True)
        store.open_job(JOB)
        run = store.begin_run({"pid": os.getpid()}) if self.rank == 0 else ""
        handle = LedgerHandle(self.files.ledger, JOB.fingerprint, FLUSH_SECONDS, FLUSH_ENTRIES, run=run)
        chain = _Chain(self.files, handle)
        choice = random.Random(self.seed)
        tasks = [
            task for source in self._open_sources(store) for task in chain.plan(source) if self._is_mine(task, choice)
        ]
        choice.shuffle(tasks)
        for task in tasks:
            chain.do(task)
        chain.finish()
        if run:
            store.end_run(run, "done")

    def compact(self) -> None:
        """Compacts the ledger, if it is remote."""
        os.environ["LEDGERBEAM_CACHE"] = self.cache
        arm(self.fault)
        store = open_ledger(self.files.ledger, create=False)
        if not isinstance(store, RemoteStore):
            raise UsageError(f"{self.files.ledger} is not remote")
        compact(store)

    def _open_sources(self, store: LedgerStore) -> list[OpenSource]:
        found: list[OpenSource] = []
        for page in SourceListing((f"{self.files.sources}/*.jsonl",), None, {}).pages():
            ids = source_ids(page.urls, page.sizes, page.versions)
            found += with_progress(open_sources(ids, page.urls, page.sizes, page.versions, store), store)
        return found

    def _is_mine(self, task: Any, choice: random.Random) -> bool:
        mine = sum(task.node) % self.writers == self.rank if hasattr(task, "node") else self.rank == 0
        return mine or choice.random() < self.shared


class _Chain:
    def __init__(self, files: JobFiles, handle: LedgerHandle) -> None:
        source_format = SourceFormat()
        self._plan = _Plan(handle, source_format, TASK_BYTES, None)
        self._commit = _Commit(handle)
        self._steps: list[Any] = [
            _Read(source_format, handle),
            _Process(MapRecords("tests.fault.traced:quick", "jsonl", check_purity=False), handle),
            _Write(str(files.outputs), FormatShards("jsonl"), f"{files.sources}/", {}, handle),
        ]

    def plan(self, source: OpenSource) -> Iterator[Any]:
        return self._plan.process(source)

    def do(self, task: Any) -> None:
        elements = [task]
        for step in self._steps:
            elements = [result for element in elements for result in step.process(element)]
        for element in elements:
            self._commit.process(element)

    def finish(self) -> None:
        self._commit.finish_bundle()
        close_shared_writers()
