"""A ledger on a real S3 server, behind a network that loses answers, resets connections and cuts bodies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ledgerbeam.errors import StorageError
from ledgerbeam.io.storage import client as remote
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.ledger import compact
from ledgerbeam.ledger.model.job import Job
from ledgerbeam.ledger.remote.sink import RemoteSink
from ledgerbeam.ledger.remote.store import RemoteStore
from tests.fault.replay_judge import broken_sums
from tests.ledger.builders import leaves_of_split, plain
from tests.servers.s3_proxy import Fault, S3Proxy, expired, throttled

pytestmark = pytest.mark.s3

JOB = Job("map", {"to": "jsonl"})
SOURCES = [plain(f"s{number}") for number in range(4)]
LEAVES = [leaf for source in SOURCES for leaf in leaves_of_split(source, 3)]


class Line:
    """A ledger seen through a proxy, and past it."""

    def __init__(self, proxy: S3Proxy, folder: Path) -> None:
        self.proxy = proxy
        self._folder = folder
        self._url = f"s3://{proxy.server.bucket()}/ledger"
        self._sidecars = 0
        options = proxy.options
        patience = {"connect_timeout": 2, "read_timeout": 2}
        self.objects = ObjectFolder(self._url, {**options, "config_kwargs": {**options["config_kwargs"], **patience}})
        self.direct = ObjectFolder(self._url, proxy.server.options)

    def store(self, objects: ObjectFolder) -> RemoteStore:
        """Return the ledger, seen by a host that is new to it."""
        self._sidecars += 1
        return RemoteStore(objects, str(self._folder / f"sidecar-{self._sidecars}"))

    def check(self, recorded: int, *, segments: int) -> None:
        """Asserts that a new host, past the proxy, finds so many tasks, in so many segments."""
        self.proxy.clear()
        store = self.store(self.direct)
        store.open()
        assert store.totals().tasks == recorded
        assert list(broken_sums(store)) == []
        assert len(self.direct.names("segments")) == segments
        store.commit(LEAVES)
        assert all(store.completed_mask([source.id for source in SOURCES]))
        assert len(list(store.outputs())) == len(LEAVES)
        store.close()


@pytest.fixture
def line(faulty_s3: S3Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Line:
    monkeypatch.setattr(remote, "PAUSE_SECONDS", 0.02)
    line = Line(faulty_s3, tmp_path)
    store = line.store(line.direct)
    store.open(create=True)
    store.open_job(JOB)
    store.begin_run({})
    store.register(SOURCES)
    store.close()
    return line


def lost(key: str, times: int = 1) -> Fault:
    """Return a conditional put that the server does, and of which the answer never comes."""
    return Fault("lost", frozenset({"PUT"}), f"*{key}*", times)


def test_a_put_whose_answer_is_lost_counts_once_and_is_a_success(line: Line) -> None:
    sink = RemoteSink(line.objects, job=JOB.fingerprint)
    line.proxy.faults.append(lost("segments"))
    assert sink.commit(LEAVES[:5]).fresh == 5
    assert line.proxy.count("PUT", "*segments*") == 2  # the second was told that the name is taken
    line.check(5, segments=2)


def test_a_control_whose_answer_is_lost_is_one_run(line: Line) -> None:
    store = line.store(line.objects)
    store.open()
    line.proxy.faults.append(lost("controls"))
    assert store.begin_run({}) == "000002"
    assert [run["id"] for run in store.runs()] == ["000001", "000002"]
    store.close()
    assert len(line.direct.names("controls")) == 2


def test_of_two_jobs_that_take_a_new_ledger_the_one_whose_answer_was_lost_may_win(
    faulty_s3: S3Proxy, tmp_path: Path
) -> None:
    line = Line(faulty_s3, tmp_path)
    mine, other = line.store(line.objects), line.store(line.direct)
    for store in (mine, other):
        store.open(create=True)
    line.proxy.faults.append(lost("job.json"))
    mine.open_job(JOB)
    other.open_job(JOB)
    assert mine.job() == other.job() == JOB
    mine.close()
    other.close()


def test_a_commit_that_never_gets_an_answer_is_an_error_and_repeating_it_counts_once(line: Line) -> None:
    sink = RemoteSink(line.objects, job=JOB.fingerprint)
    line.proxy.faults.append(Fault("lost", frozenset({"PUT"}), "*segments*"))
    line.proxy.faults.append(Fault("reset", frozenset({"GET"}), "*segments*"))
    with pytest.raises(StorageError, match=r"segments.*cannot"):
        sink.commit(LEAVES[:5])
    line.proxy.clear()
    sink.commit(LEAVES[:5])
    line.check(5, segments=3)  # both are there, and say the same


FAULTS: dict[str, Callable[[], Fault]] = {
    "500": lambda: Fault("status", times=4, status=500, code="InternalError"),
    "503": lambda: throttled(times=4),
    "reset": lambda: Fault("reset", times=4),
    "reset after": lambda: Fault("lost", times=4),
    "truncated": lambda: Fault("truncated", times=4),
    "every third": lambda: throttled(every=3),
    "silent": lambda: Fault("silent", times=1, seconds=4.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_new_host_reads_the_whole_ledger_through_faults_that_pass(line: Line, fault: str) -> None:
    sink = RemoteSink(line.direct, job=JOB.fingerprint)
    for start in range(0, 10, 2):
        sink.commit(LEAVES[start : start + 2])
    line.proxy.faults.append(FAULTS[fault]())
    store = line.store(line.objects)
    store.open()
    assert line.proxy.faults[0].hits > 0
    assert store.totals().tasks == 10
    assert len(list(store.outputs())) == 10
    store.close()
    line.check(10, segments=6)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_recording_and_compacting_go_on_through_faults_that_pass(line: Line, fault: str) -> None:
    store = line.store(line.objects)
    store.open()
    line.proxy.faults.append(FAULTS[fault]())
    store.commit(LEAVES[:7])
    compact(store)
    assert line.proxy.faults[0].hits > 0
    store.close()
    line.check(7, segments=0)


@pytest.mark.parametrize("methods", [{"GET"}, {"PUT"}, {"POST"}, {"GET", "PUT", "POST", "DELETE", "HEAD"}])
def test_a_store_that_stays_away_is_an_error_and_loses_nothing(line: Line, methods: set[str]) -> None:
    store = line.store(line.objects)
    store.open()
    store.commit(LEAVES[:3])
    line.proxy.faults.append(expired(methods=frozenset(methods)))
    if methods == {"POST"}:  # S3's way of deleting many keys
        store.commit(LEAVES[3:7])
        with pytest.raises(StorageError, match="ledger"):
            compact(store)
    else:
        with pytest.raises(StorageError, match="ledger"):
            store.commit(LEAVES[3:7])
    store.close()
    line.proxy.clear()
    found = line.store(line.direct)
    found.open()
    assert found.totals().tasks == (7 if methods == {"POST"} else 3)
    assert list(broken_sums(found)) == []
    found.close()
