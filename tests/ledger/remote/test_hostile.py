"""Names, numbers and times in a remote ledger that no ledgerbeam wrote: refused by name, healed by deletion."""

from __future__ import annotations

import re
import time
from dataclasses import replace

import pytest

from ledgerbeam.errors import LedgerDamagedError
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.ledger.remote.compaction import compact
from ledgerbeam.ledger.remote.controls import Control, encode_control
from ledgerbeam.ledger.remote.replay import SnapshotManifest, encode_manifest, segment_name
from ledgerbeam.ledger.remote.segment import Segment, encode_segment
from ledgerbeam.ledger.remote.sink import RemoteSink
from ledgerbeam.ledger.worker.writer import LedgerWriter
from ledgerbeam.pipelines.report.data import report_data
from ledgerbeam.pipelines.report.state import job_progress, shown_runs
from tests.conftest import S3Server
from tests.ledger.builders import leaf_of, leaves_of_split, plain
from tests.ledger.conformance import JOB
from tests.ledger.remote.test_store import Hosts
from tests.ledger.views import picture

FAR = 999_999_999_999

SNAPSHOT = f"snapshots/{FAR}-{FAR}-abcdabcd"


def control(number: int) -> bytes:
    return encode_control(Control(number, "run", time.time(), "token"))


HOSTILE = {
    f"controls/{FAR}.json": control(FAR),
    "controls/000004.json": control(4),
    "controls/000004-ab.json": control(4),
    f"segments/{FAR}/t-enemy-000001.seg": encode_segment(Segment(FAR, 1.0, gone=[plain().id])),
    "segments/000001/t-enemy-000001.seg": encode_segment(Segment(FAR, 1.0, leaves=leaves_of_split(plain(), 2)[:1])),
    f"{SNAPSHOT}.json": encode_manifest(SnapshotManifest(SNAPSHOT, FAR, {}, [])),
}


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_an_object_whose_number_does_not_follow_is_refused_until_it_is_deleted(hosts: Hosts, name: str) -> None:
    launcher = hosts.store()
    launcher.open_job(JOB)
    launcher.begin_run({})
    launcher.begin_run({})
    launcher.register([plain()])
    known = hosts.store()
    before = picture(known)
    assert hosts.objects.create(name, HOSTILE[name])
    for _ in range(2):
        for store in (known, launcher):
            with pytest.raises(LedgerDamagedError, match=rf"{re.escape(name)}.*greatest.* is 2.*delete this object"):
                store.refresh()
        with pytest.raises(LedgerDamagedError, match=re.escape(name)):
            hosts.store()
    if name.startswith("controls"):
        with pytest.raises(LedgerDamagedError, match=re.escape(name)):
            RemoteSink(hosts.objects).commit([leaf_of(plain())])
    hosts.objects.delete([name])
    for store in (known, launcher, hosts.store()):
        store.refresh()
        assert picture(store) == before
    assert launcher.begin_run({}) == "000003"
    RemoteSink(hosts.objects).commit([leaf_of(plain())])
    known.refresh()
    assert all(known.completed_mask([plain().id]))


@pytest.mark.parametrize(
    "name", ["0000001", "00000000001", "\N{FULLWIDTH DIGIT ONE}" * 6, "-00001", "1", f"{FAR}0", "000001-xyz"]
)
def test_other_names_below_the_controls_are_no_controls(hosts: Hosts, name: str) -> None:
    store = hosts.store()
    store.open_job(JOB)
    hosts.objects.create(f"controls/{name}.json", b"anything")
    assert store.begin_run({}) == "000001"
    assert len(hosts.store().runs()) == 1


def test_a_control_that_is_listed_before_its_predecessor_is_waited_for(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher, host = hosts.store(), hosts.store()
    launcher.open_job(JOB)
    host.refresh()
    launcher.begin_run({})
    launcher.begin_run({})
    real = hosts.objects.names
    passed: list[str] = []

    def names(folder: str) -> list[str]:
        found = real(folder)
        passed.append(folder)
        return [name for name in found if len(passed) > 1 or not name.endswith("000001.json")]

    monkeypatch.setattr(hosts.objects, "names", names)
    host.refresh()
    assert len(host.runs()) == 2
    passed.clear()
    RemoteSink(hosts.objects).commit([leaf_of(plain())])
    assert passed == ["controls", "controls"]


def test_a_time_in_the_future_does_no_harm(hosts: Hosts) -> None:
    launcher = hosts.store()
    launcher.open_job(JOB)
    launcher.begin_run({})
    launcher.register([plain("a"), plain("b")])
    launcher.commit([leaf_of(plain("a"))])
    far = 32_000_000_000.0  # in the year 2984
    name = segment_name(Segment(1, far), 1, "clock", 1)
    hosts.objects.create(name, encode_segment(Segment(1, far, leaves=[leaf_of(plain("b"))])))
    ahead = replace(Control(2, "run", far, "token"), info={"host": "ahead"})
    hosts.objects.create("controls/000002.json", encode_control(ahead))
    launcher.refresh()
    new = hosts.store()
    assert picture(new) == picture(launcher)
    for store in (launcher, new):
        assert store.completed_count() == 2
        now = time.time()
        assert all(row.time <= now for row in store.history())
        assert sum(row.totals.tasks for row in store.history()) == 2
        assert len(report_data(store).steps) < 300
        progress = job_progress(store, store.status(), shown_runs(store))
        assert progress.run is None or progress.run["tasks"] >= 0
    assert launcher.begin_run({}) == "000003"
    compact(launcher)
    assert picture(hosts.store()) == picture(launcher)


def taken_names(sink: RemoteSink, count: int) -> list[str]:
    """Return the names that the next segments of a sink will have."""
    segment = Segment(sink._seen, 0.0, leaves=[leaf_of(plain())])
    return [segment_name(segment, sink._seen, sink._writer, sink._sequence + n) for n in range(1, count + 1)]


def check_taken_names(objects: ObjectFolder) -> None:
    sink = RemoteSink(objects)
    names = taken_names(sink, 2)
    for name in names:
        assert objects.create(name, encode_segment(Segment(0, 1.0)))
    writer = LedgerWriter(sink, interval=1000)
    writer.add(leaf_of(plain()))
    for name in names:
        with pytest.raises(LedgerDamagedError, match=re.escape(name)):
            writer.flush()
    assert writer.flush().fresh == 1
    writer.close()


def test_leaves_are_kept_until_a_name_is_free(hosts: Hosts) -> None:
    store = hosts.store()
    store.open_job(JOB)
    store.register([plain()])
    check_taken_names(hosts.objects)
    store.refresh()
    assert all(store.completed_mask([plain().id]))


@pytest.mark.s3
def test_leaves_are_kept_until_a_name_is_free_on_s3(s3: S3Server) -> None:
    check_taken_names(ObjectFolder(f"s3://{s3.bucket()}/a/ledger", s3.options))


def test_a_repeated_creation_of_the_same_bytes_is_a_success(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = RemoteSink(hosts.objects)
    real = hosts.objects.create

    def twice(name: str, data: bytes) -> bool:
        real(name, data)  # whose answer was lost
        return real(name, data)

    monkeypatch.setattr(hosts.objects, "create", twice)
    assert sink.commit([leaf_of(plain())]).fresh == 1


def test_a_store_whose_name_is_taken_changes_nothing(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    store = hosts.store()
    store.open_job(JOB)
    store.register([plain()])
    before = picture(store)
    with monkeypatch.context() as patched:
        patched.setattr(hosts.objects, "create", lambda name, data: False)
        with pytest.raises(LedgerDamagedError, match="found other content"):
            store.commit([leaf_of(plain())])
        with pytest.raises(LedgerDamagedError, match="found other content"):
            compact(store)
    assert picture(store) == before
    store.commit([leaf_of(plain())])
    assert picture(hosts.store()) == picture(store)
