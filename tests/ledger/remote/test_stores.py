"""The remote ledger on emulators of GCS and Azure: the conformance class, and what hosts see of each other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.ledger.remote.compaction import compact
from ledgerbeam.ledger.remote.sink import RemoteSink
from ledgerbeam.ledger.remote.store import RemoteStore
from tests.conftest import AzureServer, GcsServer
from tests.ledger.builders import begin_at_once, leaf_of, plain
from tests.ledger.conformance import JOB, LedgerStoreConformance
from tests.ledger.views import picture

pytestmark = pytest.mark.stores


@pytest.fixture(params=["gcs", "azure"])
def objects(request: pytest.FixtureRequest) -> ObjectFolder:
    server: GcsServer | AzureServer = request.getfixturevalue(request.param)
    return ObjectFolder(f"{server.place()}/a/ledger", server.options)


class TestRemoteStores(LedgerStoreConformance):
    """The conformance tests on objects of either store, which then say the same to a host that is new to them."""

    @pytest.fixture
    def store(self, objects: ObjectFolder, tmp_path: Path) -> Iterator[RemoteStore]:
        store = RemoteStore(objects, str(tmp_path / "host"))
        store.open(create=True)
        yield store
        other = RemoteStore(objects, str(tmp_path / "other"))
        other.open(create=True)
        assert picture(other) == picture(store)
        for host in (store, other):
            host.close()


def test_hosts_and_workers_share_a_ledger(objects: ObjectFolder, tmp_path: Path) -> None:
    one, two, three = (RemoteStore(objects, str(tmp_path / name)) for name in ("one", "two", "three"))
    one.open(create=True)
    one.open_job(JOB)
    one.begin_run({})
    sources = [plain(f"s{n}") for n in range(50)]
    one.register(sources)
    worker = RemoteSink(objects, job=JOB.fingerprint, run="1")
    worker.commit([leaf_of(source) for source in sources[:30]])
    worker.commit([leaf_of(source) for source in sources[30:]])
    two.open()
    assert two.completed_count() == 50
    compact(two)
    assert [name for name in objects.names("segments") if "/t-" in name] == []
    one.refresh()
    three.open()
    assert picture(one) == picture(two) == picture(three)
    for host in (one, two, three):
        host.close()


def test_runs_that_begin_at_once_have_numbers_of_their_own(objects: ObjectFolder, tmp_path: Path) -> None:
    stores = [RemoteStore(objects, str(tmp_path / f"host-{n}")) for n in range(3)]
    for store in stores:
        store.open(create=True)
        store.open_job(JOB)
    assert sorted(begin_at_once(stores, 4)) == [f"{n:06d}" for n in range(1, 13)]
    for store in stores:
        store.close()
