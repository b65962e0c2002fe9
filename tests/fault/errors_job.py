"""A small real job in one process, whose every system call may be made to fail: the chain of a job's transforms.

``python -m tests.fault.errors_job SOCKET WARM`` runs it again and again, each time in a fork that waits for a signal,
so that strace can be attached in between and nothing but the job is met by what it injects.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from ledgerbeam.errors import LedgerbeamError
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.io.storage.publish import remove_stale_temporaries
from ledgerbeam.ledger import Job, compact
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.model.rows import CommitResult, Failure, Leaf
from ledgerbeam.ledger.model.store import LedgerSink
from ledgerbeam.ledger.remote.segment import Objects
from ledgerbeam.ledger.remote.sink import RemoteSink
from ledgerbeam.ledger.remote.store import RemoteStore
from ledgerbeam.ledger.worker.writer import LedgerPlace, LedgerWriter, close_shared_writers, shared_writer
from ledgerbeam.transforms.chain.base import LedgerHandle
from tests.fault.chain import Chain

JOB = Job("map", {"output": "out"})

SOURCES = 2
TASKS = 2
RECORDS = 4
START = signal.SIGUSR1  # what a fork waits for
Tell = Callable[[str], object]


@dataclass(frozen=True)
class Place:
    """The folders of a job."""

    folder: str
    remote: bool  # its ledger is made of objects, in a folder, and read through a sidecar

    def below(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def make(self) -> None:
        os.makedirs(self.below("in"))
        for number in range(SOURCES):
            lines = (orjson.dumps({"id": f"{number}-{row}", "text": "x" * row}) for row in range(TASKS * RECORDS))
            Path(self.below(f"in/{number}.jsonl")).write_bytes(b"\n".join([*lines, b""]))

    def objects(self) -> ObjectFolder:
        return ObjectFolder(self.below("objects"))

    def store(self, objects: Objects | None = None) -> LmdbStore:
        if self.remote:
            return RemoteStore(objects or self.objects(), self.below("sidecar"))
        return LmdbStore(self.below("ledger"))


@dataclass
class _Telling:
    """A sink that tells what it was acknowledged."""

    sink: LedgerSink
    tell: Tell

    def commit(self, leaves: Sequence[Leaf], failures: Sequence[Failure] = ()) -> CommitResult:
        result = self.sink.commit(leaves, failures)
        self.tell(json.dumps(["done", [[leaf.source_id.hex(), leaf.lineage] for leaf in leaves]]))
        return result

    def close(self) -> None:
        self.sink.close()


@dataclass(frozen=True)
class _Handle(LedgerHandle):
    """How the transforms reach a ledger that no URL leads to."""

    sink: Callable[[], LedgerSink] = field(default=lambda: LmdbStore(""))

    def writer(self) -> LedgerWriter:
        place = LedgerPlace.of(self.url, job=self.job, run=self.run)
        return shared_writer(place, interval=self.flush_interval, max_entries=3, open_sink=self.sink)


def run_job(place: Place, tell: Tell, objects: Objects | None = None) -> None:
    for folder in ("in", "out"):
        remove_stale_temporaries(place.below(folder))
    store = place.store(objects)
    try:
        store.open(create=True)
        store.open_job(JOB)
        run = store.begin_run({})
        sink: Callable[[], LedgerSink] = lambda: _Telling(  # noqa: E731
            RemoteSink(objects or place.objects(), job=JOB.fingerprint, run=run) if place.remote else store, tell
        )
        handle = _Handle(place.folder, JOB.fingerprint, 60.0, sink=sink)
        chain = Chain(
            place.below("in"), place.below("out"), "tests.fault.errors_job:work", handle, task_records=RECORDS
        )
        sources = list(chain.open_sources(store))
        for source in sources:
            for task in chain.plan(source):
                chain.do(task)
        chain.finish()
        store.refresh()
        store.note_listing(run, listed=SOURCES, finished=True)
        store.end_run(run, "done")
        if isinstance(store, RemoteStore):
            compact(store)
    finally:
        with suppress(LedgerbeamError):  # the error that ended the job is the one to report
            close_shared_writers()
        store.close()


def work(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "text": record["text"].upper()}


def outcome_of(place: Place, tell: Tell, objects: Objects | None = None) -> list[str]:
    """Run the job; return ``["ended"]``, or ``["raised", kind, message]`` with kind ``typed`` or ``untyped``."""
    try:
        run_job(place, tell, objects)
    except LedgerbeamError as error:
        return ["raised", "typed", f"{type(error).__name__}: {error}"]
    except BaseException as error:  # noqa: BLE001 - that it comes to this is what is looked for
        return ["raised", "untyped", f"{type(error).__name__}: {error}"]
    return ["ended"]


def main() -> None:
    """Serve runs: a line names the folder and says whether the ledger is remote; the fork's id is the answer."""
    messages = socket.socket(fileno=int(sys.argv[1]))
    for remote in (False, True):  # brings everything into memory that is loaded when it is used first
        place = Place(f"{sys.argv[2]}-{remote}", remote)
        place.make()
        run_job(place, len)
    signal.pthread_sigmask(signal.SIG_BLOCK, [START])
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            signal.sigwait([START])
            place = Place(*json.loads(line))
            # Sent, not written, because writes may be made to fail.
            messages.send(json.dumps(outcome_of(place, lambda text: messages.send(text.encode()))).encode())
            os._exit(0)
        print(pid, flush=True)
        print(os.waitpid(pid, 0)[1], flush=True)


if __name__ == "__main__":
    main()
