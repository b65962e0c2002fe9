"""What one forked writer does: the chain of a job's transforms, element by element, without a runner."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from typing import Any

from ledgerbeam.errors import UsageError
from ledgerbeam.ledger import Job, compact
from ledgerbeam.ledger.model.faults import arm
from ledgerbeam.ledger.opening import open_store
from ledgerbeam.ledger.remote.store import RemoteStore
from ledgerbeam.transforms.chain.base import LedgerHandle
from tests.fault.chain import Chain
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
        """Do its share of whatever the ledger holds as open. Rank 0 also records the run."""
        os.environ["LEDGERBEAM_CACHE"] = self.cache
        arm(self.fault)
        store = open_store(self.files.ledger, create=True)
        store.open_job(JOB)
        run = store.begin_run({"pid": os.getpid()}) if self.rank == 0 else ""
        handle = LedgerHandle(self.files.ledger, JOB.fingerprint, FLUSH_SECONDS, FLUSH_ENTRIES, run=run)
        chain = Chain(self.files.sources, self.files.outputs, "tests.fault.traced:quick", handle, task_bytes=TASK_BYTES)
        choice = random.Random(self.seed)
        sources = list(chain.open_sources(store))
        tasks = [task for source in sources for task in chain.plan(source) if self._is_mine(task, choice)]
        choice.shuffle(tasks)
        for task in tasks:
            chain.do(task)
        chain.finish()
        if run:
            store.end_run(run, "done")

    def compact(self) -> None:
        os.environ["LEDGERBEAM_CACHE"] = self.cache
        arm(self.fault)
        store = open_store(self.files.ledger, create=False)
        if not isinstance(store, RemoteStore):
            raise UsageError(f"{self.files.ledger} is not remote")
        compact(store)

    def _is_mine(self, task: Any, choice: random.Random) -> bool:
        mine = sum(task.node) % self.writers == self.rank if hasattr(task, "node") else self.rank == 0
        return mine or choice.random() < self.shared
