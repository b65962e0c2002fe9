"""History of a ledger that many hosts write to: which run has recorded what, as every host sees it."""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.ledger.lmdb import jobs as lmdb_jobs
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.lmdb.tables import META, Transaction
from ledgerbeam.ledger.model.store import LedgerStore
from ledgerbeam.ledger.remote.compaction import compact
from ledgerbeam.ledger.remote.registration import KEY_NUMBER
from ledgerbeam.ledger.remote.sink import RemoteSink
from tests.ledger.builders import leaf_of, leaves_of_split, plain
from tests.ledger.conformance import JOB, failure_of
from tests.ledger.remote.test_store import Hosts

SOURCES = [plain(f"s{number:02d}") for number in range(13)]


def by_run(store: LedgerStore) -> dict[str | None, tuple[int, int]]:
    """Return tasks and failures by run."""
    found: dict[str | None, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for row in store.history():
        tasks, failures = found[row.run]
        found[row.run] = tasks + row.totals.tasks, failures + row.failures
    return dict(found)


def worked(hosts: Hosts) -> None:
    """Let workers of two runs, and one without a run, record in turn; a control object without a run comes between."""
    one, two = hosts.store(), hosts.store()
    one.open_job(JOB)
    one.register(SOURCES)
    runs = [one.begin_run({"host": "one"}), two.begin_run({"host": "two"})]
    assert runs == ["000001", "000002"]
    sinks = [RemoteSink(hosts.objects, run=run) for run in runs]
    one.forget(SOURCES[12].url)
    sinks[0].commit([leaf_of(SOURCES[0])])
    for number, source in enumerate(SOURCES[1:10]):
        sinks[number % 3 == 0].commit([leaf_of(source)])
    sinks[0].commit([leaf_of(SOURCES[2])], [failure_of(SOURCES[11], ())])
    RemoteSink(hosts.objects).commit([leaf_of(SOURCES[10])])  # for the newest number, of the forget event


EXPECTED = {"000001": (7, 1), "000002": (4, 0)}
"""Repeated commits count once; commits without a run count for the newest run."""


def test_all_hosts_know_which_run_has_recorded_what(hosts: Hosts) -> None:
    worked(hosts)
    reader, early = hosts.store(), hosts.store()
    assert by_run(reader) == by_run(early) == EXPECTED
    compact(reader)
    for store in (reader, early, hosts.store()):
        store.refresh()
        assert by_run(store) == EXPECTED


def test_what_open_sources_have_recorded_is_in_the_history_of_a_new_host_when_it_was(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = hosts.store()
    store.open_job(JOB)
    run = store.begin_run({})
    store.register(SOURCES[:2])
    store.commit([*leaves_of_split(SOURCES[0], 3)[:2], leaf_of(SOURCES[1])])
    recorded = store.history()
    later = time.time() + 1000
    monkeypatch.setattr(time, "time", lambda: later)
    compact(store)
    new = hosts.store()
    assert by_run(new) == {run: (3, 0)}
    assert (new.history(), new.durations()) == (recorded, store.durations())


def runs_about_a_million(store: Any) -> list[str]:
    """Start two runs of a ledger that had 999,999 runs; return the last of these and the two."""

    def jump(txn: Transaction) -> None:
        lmdb_jobs.add_run(txn, "999999", {}, 1.0)
        txn.put(META, KEY_NUMBER, b"999999")  # of a remote ledger

    store._write(jump)
    return ["999999", *(store.begin_run({}) for _ in range(2))]


@pytest.mark.parametrize("place", ["local", "remote"])
def test_the_million_and_first_run_is_the_last(hosts: Hosts, tmp_path: Path, place: str) -> None:
    store = hosts.store() if place == "remote" else LmdbStore(str(tmp_path / "local"))
    LmdbStore.open(store, create=True)
    store.open_job(JOB)
    runs = runs_about_a_million(store)
    assert runs == ["999999", "1000000", "1000001"]
    assert [run["id"] for run in store.runs()][-3:] == runs
    assert store.status()["last_run"]["id"] == runs[-1]
    store.end_run(runs[1], "done")
    assert [run["outcome"] for run in store.runs()][-3:] == [None, "done", None]
    source = plain()
    store.register([source])
    store.commit([leaf_of(source)])
    assert [row.run for row in store.history()] == runs[-1:]
