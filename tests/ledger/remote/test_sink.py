"""A worker's sink: its checks of the ledger's job, and its segments."""

from __future__ import annotations

import os
import pickle
import time

import pytest

from ledgerbeam.errors import JobMismatchError, LedgerDamagedError
from ledgerbeam.ledger.remote import sink as remote_sink
from ledgerbeam.ledger.remote.controls import Control, encode_control
from ledgerbeam.ledger.remote.segment import create_own, decode_segment
from ledgerbeam.ledger.remote.sink import CHECK_SECONDS, RemoteSink
from tests.ledger.builders import ONE, TWO, failure_of, leaf_of, leaves_of_split, plain
from tests.ledger.remote.test_store import Hosts


class Clock:
    """The time since the host began, as a test sets it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, now: float) -> None:
        self.now = now
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


def controls(hosts: Hosts, count: int, taken_at: int = 0) -> None:
    """Create so many control objects; at a number the ledger is taken for another job."""
    for number in range(1, count + 1):
        taken = number == taken_at
        control = Control(number, "accept" if taken else "run", 1.0, "token", job=TWO if taken else None)
        assert hosts.objects.create(f"controls/{number:06d}.json", encode_control(control))


@pytest.mark.parametrize("booted", [0.5, 1000.0], ids=["just booted", "long up"])
def test_a_sink_of_a_run_looks_from_time_to_time(hosts: Hosts, monkeypatch: pytest.MonkeyPatch, booted: float) -> None:
    controls(hosts, 1)
    clock = Clock(monkeypatch, booted)
    sink = RemoteSink(hosts.objects, run="1")
    for wait, looked in ((0.0, 1), (0.9 * CHECK_SECONDS, 1), (0.2 * CHECK_SECONDS, 2), (0.1, 2)):
        clock.now += wait
        sink.commit([leaf_of(plain())])
        assert hosts.objects.listed == ["controls"] * looked


def test_a_sink_without_a_run_looks_at_each_commit(hosts: Hosts) -> None:
    controls(hosts, 1)
    hosts.objects.listed.clear()
    sink = RemoteSink(hosts.objects)
    for looked in (1, 2):
        sink.commit([leaf_of(plain())])
        assert hosts.objects.listed == ["controls"] * looked


@pytest.mark.parametrize("taken_at", [1, 64, 65, 130])
def test_a_sink_sees_that_the_ledger_was_taken_wherever_it_stands(hosts: Hosts, taken_at: int) -> None:
    controls(hosts, 130, taken_at)
    with pytest.raises(JobMismatchError, match=TWO.fingerprint):
        RemoteSink(hosts.objects, job=ONE.fingerprint).commit([leaf_of(plain())])
    assert hosts.objects.names("segments") == []
    for job in (None, TWO.fingerprint):
        RemoteSink(hosts.objects, job=job).commit([leaf_of(plain())])
    assert all(name.startswith("segments/000130/t-") for name in hosts.objects.names("segments"))


def test_a_sink_that_has_seen_another_job_records_nothing_any_more(hosts: Hosts) -> None:
    controls(hosts, 3, taken_at=2)
    sink = RemoteSink(hosts.objects, job=ONE.fingerprint, run="1")
    for _ in range(2):
        with pytest.raises(JobMismatchError, match=TWO.fingerprint):
            sink.commit([leaf_of(plain())])
    assert hosts.objects.names("segments") == []


def test_a_sink_does_not_go_back_to_the_jobs_of_before_its_run(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    controls(hosts, 3, taken_at=2)
    monkeypatch.setattr(remote_sink, "CHECK_SECONDS", -1.0)
    sink = RemoteSink(hosts.objects, job=ONE.fingerprint, run="3")
    for count in (1, 2, 3):  # nothing new is there when it looks
        sink.commit([leaf_of(plain())])
        assert len(hosts.objects.names("segments")) == count


def test_a_control_that_is_gone_when_a_sink_reads_it_is_told(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    controls(hosts, 2)
    real = hosts.objects.read
    monkeypatch.setattr(hosts.objects, "read", lambda names: [None, *real(names)[1:]])
    with pytest.raises(LedgerDamagedError, match=r"controls/000001\.json"):
        RemoteSink(hosts.objects, job=ONE.fingerprint).commit([leaf_of(plain())])
    assert hosts.objects.names("segments") == []


def test_a_commit_says_how_long_it_took(hosts: Hosts) -> None:
    store = hosts.launcher(plain(), runs=0)
    for committing in (RemoteSink(hosts.objects), store):
        began = time.monotonic()
        result = committing.commit([leaf_of(plain())])
        assert 0 < result.seconds <= time.monotonic() - began


def test_a_sink_asks_for_what_is_new_only(hosts: Hosts) -> None:
    controls(hosts, 3)
    sink = RemoteSink(hosts.objects)
    sink.commit([leaf_of(plain())])
    assert hosts.objects.reads == [f"controls/{number:06d}.json" for number in (1, 2, 3)]
    sink.commit([leaf_of(plain())])
    RemoteSink(hosts.objects, run="3").commit([leaf_of(plain())])
    assert len(hosts.objects.reads) == 3


def test_a_sink_counts_numbers_as_numbers_are_counted(hosts: Hosts) -> None:
    for number in (999_999, 1_000_000):
        control = Control(number, "run", 1.0, "token")
        assert hosts.objects.create(f"controls/{number:06d}.json", encode_control(control))
    RemoteSink(hosts.objects, run="999998").commit([leaf_of(plain())])
    (name,) = hosts.objects.names("segments")
    assert name.startswith("segments/999998/")


def test_a_number_that_follows_in_no_listing_is_refused(hosts: Hosts) -> None:
    controls(hosts, 3)
    hosts.objects.delete(["controls/000002.json"])
    hosts.objects.listed.clear()
    with pytest.raises(LedgerDamagedError, match=r"controls/000003\.json.*has number 3.*before it is 1"):
        RemoteSink(hosts.objects).commit([leaf_of(plain())])
    assert hosts.objects.listed == ["controls"] * 2
    assert hosts.objects.names("segments") == []


def test_a_control_that_one_listing_passed_is_in_the_next(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    controls(hosts, 3, taken_at=1)
    hosts.objects.listed.clear()
    whole = hosts.objects.names
    monkeypatch.setattr(hosts.objects, "names", lambda folder: whole(folder)[0 if hosts.objects.listed[1:] else 1 :])
    with pytest.raises(JobMismatchError):
        RemoteSink(hosts.objects, job=ONE.fingerprint).commit([leaf_of(plain())])
    assert hosts.objects.listed == ["controls"] * 2


def test_what_is_no_control_is_passed_over(hosts: Hosts) -> None:
    controls(hosts, 2)
    for name in ("readme.txt", "1.json", "000003.json.bak", "deep/000003.json"):
        hosts.objects.create(f"controls/{name}", b"not ours")
    RemoteSink(hosts.objects, job=ONE.fingerprint).commit([leaf_of(plain())])
    (name,) = hosts.objects.names("segments")
    assert name.startswith("segments/000002/")


def test_a_sink_says_for_which_job_and_when_it_recorded(hosts: Hosts) -> None:
    controls(hosts, 2)
    failed = failure_of(plain(), ((1, 2),))
    began = time.time()
    sink = pickle.loads(pickle.dumps(RemoteSink(hosts.objects, job=ONE.fingerprint, run="1")))
    result = sink.commit(leaves_of_split(plain(), 2)[:1], [failed])
    assert (result.completed, result.fresh) == ([], 1)
    assert 0 <= result.seconds < 60
    (name,) = hosts.objects.names("segments")
    segment = decode_segment(hosts.objects.read([name])[0] or b"", name)
    assert (segment.number, segment.job) == (1, ONE.fingerprint)
    assert began - 1 <= segment.at <= time.time() + 1
    assert (segment.leaves, segment.failures) == (leaves_of_split(plain(), 2)[:1], [failed])


def test_a_sink_in_a_forked_process_looks_and_names_for_itself(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    controls(hosts, 1)
    hosts.objects.listed.clear()
    sink = RemoteSink(hosts.objects, run="1")
    sink.commit([leaf_of(plain())])
    forked = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: forked)
    for _ in range(2):
        sink.commit([leaf_of(plain())])
    assert hosts.objects.listed == ["controls"] * 2
    writers = [name.rpartition("-")[0] for name in hosts.objects.names("segments")]
    assert sorted(writers.count(writer) for writer in set(writers)) == [1, 2]


def test_a_name_that_another_has_used_is_not_written_over(hosts: Hosts) -> None:
    for _ in range(2):  # as after an answer that was lost
        create_own(hosts.objects, "segments/a", b"own")
    with pytest.raises(LedgerDamagedError, match=r"ledger/segments/a: expected this name to be free"):
        create_own(hosts.objects, "segments/a", b"other")
    assert hosts.objects.read(["segments/a"]) == [b"own"]


def test_a_worker_killed_before_it_records_recorded_nothing(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    class KilledError(Exception):
        pass

    def kill(point: str) -> None:
        assert point == "flush.before_commit"
        raise KilledError

    monkeypatch.setattr(remote_sink, "fault_point", kill)
    with pytest.raises(KilledError):
        RemoteSink(hosts.objects).commit([leaf_of(plain())])
    assert hosts.objects.names("segments") == []
