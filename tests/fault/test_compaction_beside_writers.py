"""Compactions beside fifty writers at work: nothing is lost or counted twice, and no writer waits or asks for more."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.ledger import compact
from ledgerbeam.ledger.model.job import Job
from ledgerbeam.ledger.model.rows import Leaf
from ledgerbeam.ledger.remote.compaction import Compaction
from ledgerbeam.ledger.remote.sink import RemoteSink
from ledgerbeam.ledger.remote.store import RemoteStore
from tests.fault.replay_judge import broken_sums
from tests.ledger.builders import leaves_of_split, plain
from tests.ledger.stores import picture
from tests.servers.s3_proxy import S3Proxy

pytestmark = [pytest.mark.s3, pytest.mark.slow]

JOB = Job("map", {"to": "jsonl"})
WRITERS = 50
AT_ONCE = 4
SOURCES = [plain(f"s{number}") for number in range(400)]
LEAVES = [leaf for source in SOURCES for leaf in leaves_of_split(source, 5)]


class Work:
    """Leaves dealt to writers, a tenth of them to two, and the compactions that run until all are written."""

    def __init__(self, proxy: S3Proxy, folder: Path) -> None:
        url = f"s3://{proxy.server.bucket()}/ledger"
        self.seen = ObjectFolder(url, proxy.options)
        self.direct = ObjectFolder(url, proxy.server.options)
        self.done = threading.Event()
        self._folder = folder
        self._hosts = 0

    def host(self) -> RemoteStore:
        """Return the ledger, seen by a host that is new to it."""
        self._hosts += 1
        return RemoteStore(self.direct, str(self._folder / f"host-{self._hosts}"))

    def begin(self) -> str:
        store = self.host()
        store.open(create=True)
        store.open_job(JOB)
        run = store.begin_run({})
        store.register(SOURCES)
        store.close()
        return run

    def deal(self) -> list[list[list[Leaf]]]:
        choice = random.Random(18)
        shuffled = choice.sample(LEAVES, len(LEAVES))
        hands = [shuffled[rank::WRITERS] for rank in range(WRITERS)]
        hands = [hand + hands[rank - 1][: len(hand) // 10] for rank, hand in enumerate(hands)]
        return [[hand[first : first + AT_ONCE] for first in range(0, len(hand), AT_ONCE)] for hand in hands]

    def write(self, run: str, commits: Sequence[Sequence[Leaf]]) -> None:
        sink = RemoteSink(self.seen, job=JOB.fingerprint, run=run)
        for leaves in commits:
            sink.commit(leaves)
            time.sleep(0.05)

    def compact(self) -> Iterator[Compaction]:
        """Compact again and again, until there is nothing more to come."""
        store = self.host()
        store.open()
        while not self.done.is_set():
            yield compact(store)
        store.close()

    def look(self) -> None:
        """Look at the ledger all the time, as launchers do, and see in the end what a new host sees."""
        store, fresh = self.host(), self.host()
        store.open()
        while not self.done.is_set():
            store.refresh()
            assert store.totals().tasks <= len(LEAVES)
        store.refresh()
        fresh.open()
        assert picture(store) == picture(fresh)
        store.close()
        fresh.close()

    def check(self) -> None:
        """Asserts that a host that is new to the ledger finds each leaf once."""
        store = self.host()
        store.open()
        totals = store.totals()
        assert (totals.tasks, totals.records) == (len(LEAVES), sum(leaf.records for leaf in LEAVES))
        assert all(store.completed_mask([source.id for source in SOURCES]))
        outputs = Counter(row.output.name for row in store.outputs())
        assert outputs == Counter(output.name for leaf in LEAVES for output in leaf.outputs)
        assert list(broken_sums(store)) == []
        store.close()


def test_compactions_beside_fifty_writers(faulty_s3: S3Proxy, tmp_path: Path) -> None:
    work = Work(faulty_s3, tmp_path)
    run, hands = work.begin(), work.deal()
    commits = sum(map(len, hands))
    with ThreadPoolExecutor(WRITERS) as writers, ThreadPoolExecutor(3) as others:
        compacting = [others.submit(list, work.compact()) for _ in range(2)]
        looking = others.submit(work.look)
        writing = [writers.submit(work.write, run, hand) for hand in hands]
        try:
            for written in writing:
                written.result()
        finally:
            work.done.set()
        found = [each for done in compacting for each in done.result()]
        looking.result()
    assert sum(each.replaced > 0 for each in found) >= 2  # else nothing was beside anything
    assert faulty_s3.count("PUT", "*segments/*") == commits  # one request a commit, as without a compaction
    looks = [asked for asked in faulty_s3.requests if asked.method != "PUT"]
    assert all("controls" in f"{asked.key} {asked.query}" for asked in looks)  # to see whose the ledger is by now
    work.check()
    store = work.host()
    store.open()
    compact(store)
    store.close()
    assert work.direct.names("segments") == []
    work.check()
