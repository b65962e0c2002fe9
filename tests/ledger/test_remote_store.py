"""The remote ledger: the conformance class on one host, and what several hosts see of each other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.io import ObjectFolder
from ledgerbeam.ledger.compaction import compact
from ledgerbeam.ledger.remote_store import RemoteStore
from ledgerbeam.ledger.store import LedgerStore
from tests.ledger.conformance import LedgerStoreConformance


class Hosts:
    """Hosts that share nothing but the objects of one ledger."""

    def __init__(self, folder: Path) -> None:
        self.objects = ObjectFolder(str(folder / "ledger"))
        self._folder = folder
        self._stores: list[RemoteStore] = []

    def store(self, **settings: Any) -> RemoteStore:
        """The ledger as a host sees it that has never seen it before."""
        store = RemoteStore(self.objects, str(self._folder / f"host-{len(self._stores)}"), **settings)
        self._stores.append(store)
        store.open(create=True)
        return store

    def close(self) -> None:
        for store in self._stores:
            store.close()


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    hosts = Hosts(tmp_path)
    yield hosts
    hosts.close()


def picture(store: LedgerStore) -> dict[str, Any]:
    """Everything that a ledger says of its sources and tasks."""
    ids = [source for page in store.source_ids() for source in page]
    job = store.job()
    status = store.status()
    return {
        "job": None if job is None else job.as_dict(),
        "sources": {name: status["sources"][name] for name in ("complete", "open", "failed")},
        "tasks": status["tasks"],
        "gone": status["gone"],
        "rows": [row._replace(completed=0) for row in store.sources()],
        "totals": store.totals(),
        "progress": store.progress(ids),
        "pending": [store.pending(source) for source in ids],
        "outputs": list(store.outputs()),
        "failures": [(row.source_id, row.node, row.reason, row.quarantined) for row in store.failures()],
        "stale": store.stale_outputs(),
        "runs": [(run["id"], run["outcome"], run["listed"]) for run in store.runs()],
    }


class TestRemoteStore(LedgerStoreConformance):
    """The conformance tests on objects. After each of them every other way to read the ledger must say the same."""

    @pytest.fixture
    def store(self, hosts: Hosts) -> Iterator[RemoteStore]:
        store = hosts.store()
        yield store
        expected = picture(store)
        assert picture(hosts.store()) == expected
        before = hosts.store()
        compact(hosts.store())
        before.refresh()
        assert picture(before) == expected
        assert picture(hosts.store()) == expected
        compact(hosts.store())
        assert picture(hosts.store()) == expected
