"""The remote ledger: the conformance class on one host, and what several hosts see of each other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.io import ObjectFolder
from ledgerbeam.ledger.compaction import compact
from ledgerbeam.ledger.remote_store import RemoteStore
from tests.ledger.conformance import LedgerStoreConformance
from tests.ledger.views import picture


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
