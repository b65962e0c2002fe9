"""A source is not replaced while something of it is published, and nothing else waits for that."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ledgerbeam.errors import StorageError
from ledgerbeam.ledger.lmdb.data_file import BeingPublishedError, Replacing, publishing
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.model.rows import Leaf
from ledgerbeam.ledger.model.task import Source
from tests.ledger.builders import plain

OLD, NEW, OTHER = plain("a", "1"), plain("a", "2"), plain("b", "1")
SOON = 0.5


def known(store: LmdbStore) -> set[bytes]:
    return set(store.source_urls([source.id for source in (OLD, NEW, OTHER)]))


@pytest.mark.parametrize(
    ("listing", "left"),
    [
        ([NEW, OTHER], {NEW.id, OTHER.id}),
        ([OLD, NEW], {NEW.id}),  # it changed while it was listed
        ([OLD, Source.pack([NEW, OTHER]), plain("b", "2")], set()),  # nobody keeps its file
    ],
)
def test_who_replaces_a_source_waits_until_it_is_published_and_who_records_does_not(
    store: LmdbStore, listing: list[Source], left: set[bytes]
) -> None:
    store.register([OLD])
    replacing = threading.Thread(target=store.register, args=(listing,))
    with publishing(store.url, [OLD.id]):
        replacing.start()
        replacing.join(SOON)
        assert known(store) == {OLD.id}
        store.commit([Leaf(OLD.id, (), "filtered")])
        store.register([OLD])
    replacing.join()
    assert (known(store), store.source_count()) == (left, len(left) or 1)


def test_a_long_wait_is_explained(
    store: LmdbStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store.register([OLD])
    said = rf"{store.url}: waiting for a worker that is publishing .* resume or end it"
    for seconds, lines in ((60.0, 0), (0.0, 1)):
        monkeypatch.setattr("ledgerbeam.ledger.lmdb.data_file._SILENT_SECONDS", seconds)
        with Replacing(store.url) as replacing:
            with publishing(store.url, [OLD.id]):
                with pytest.raises(BeingPublishedError):
                    replacing.hold([OLD.id])
                waiting = threading.Thread(target=replacing.wait)
                waiting.start()
                waiting.join(SOON)
            waiting.join()
        assert len(re.findall(said, caplog.text)) == lines
        for timer in [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]:
            timer.join(10)
            assert not timer.is_alive()  # it has nothing to say any more


def test_registering_a_changed_source_says_that_it_waits(
    store: LmdbStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store.register([OLD])
    monkeypatch.setattr("ledgerbeam.ledger.lmdb.data_file._SILENT_SECONDS", 0.01)
    replacing = threading.Thread(target=store.register, args=([NEW],))
    with publishing(store.url, [OLD.id]):
        replacing.start()
        until = time.monotonic() + 10
        while not caplog.messages and time.monotonic() < until:
            time.sleep(0.002)
    replacing.join()
    (said,) = caplog.messages
    assert said.startswith(f"{store.url}: waiting for a worker that is publishing outputs of a changed source; ")


def test_who_has_waited_says_nothing_behind_that(store: LmdbStore) -> None:
    store.register([OLD])
    with Replacing(store.url) as replacing:
        replacing.hold([OLD.id])
        replacing.wait()  # nothing is locked
    timers = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    assert all(timer.finished.is_set() for timer in timers)


def test_nobody_waits_for_what_is_published_of_another_source(store: LmdbStore) -> None:
    store.register([OLD, OTHER])
    with publishing(store.url, [OTHER.id]), publishing(store.url, [OTHER.id]):
        store.register([NEW])
    assert known(store) == {NEW.id, OTHER.id}


def test_nothing_is_published_while_its_source_is_being_replaced(store: LmdbStore) -> None:
    store.register([OLD])
    begun = threading.Event()

    def publish() -> None:
        with publishing(store.url, [OTHER.id, OLD.id]):
            begun.set()

    worker = threading.Thread(target=publish)
    with Replacing(store.url) as replacing:
        replacing.hold([OLD.id])
        worker.start()
        assert not begun.wait(SOON)
        with publishing(store.url, [OTHER.id]):
            pass
    worker.join()
    assert begun.is_set()


def test_who_has_waited_holds_what_it_waited_for(store: LmdbStore) -> None:
    store.register([OLD])
    with Replacing(store.url) as replacing, Replacing(store.url) as other:
        replacing.wait()  # for nothing
        with publishing(store.url, [OLD.id]), pytest.raises(BeingPublishedError):
            replacing.hold([OLD.id, OTHER.id])
        replacing.wait()
        for source in (OLD, OTHER):
            with pytest.raises(BeingPublishedError):
                other.hold([source.id])
        replacing.hold([OLD.id, OTHER.id])  # is there already


def ids(*places: int) -> list[bytes]:
    """Return ids of sources with different lock bytes."""
    return [place.to_bytes(16) for place in places]


def test_sources_of_places_side_by_side_do_not_wait_for_each_other(store: LmdbStore) -> None:
    store.register([OLD])
    with publishing(store.url, ids(7)), Replacing(store.url) as replacing:
        replacing.hold(ids(6, 8))


def test_several_sources_are_locked_in_one_order_so_no_two_wait_for_each_other(store: LmdbStore) -> None:
    store.register([OLD])
    below, above = (900, 3, 77), (1000, 911, 999)

    def publish() -> None:
        with publishing(store.url, ids(*above, 910, *below)):
            pass

    worker = threading.Thread(target=publish)
    with Replacing(store.url) as replacing:
        replacing.hold(ids(910))
        worker.start()
        worker.join(SOON)
        with Replacing(store.url) as other:
            for place in below:
                with pytest.raises(BeingPublishedError):
                    other.hold(ids(place))
            other.hold(ids(*above))
    worker.join()


def test_who_waits_for_a_source_keeps_no_later_one_from_being_published(store: LmdbStore) -> None:
    store.register([OLD])
    with Replacing(store.url) as replacing:
        replacing.hold(ids(9))
        with publishing(store.url, ids(5)):
            with pytest.raises(BeingPublishedError):
                replacing.hold(ids(5, 9))
            waiting = threading.Thread(target=replacing.wait)
            waiting.start()
            waiting.join(SOON)
            with publishing(store.url, ids(9)):  # publishing with source 5 may be waiting for it
                pass
        waiting.join()


def test_a_worker_that_dies_keeps_nobody_waiting(store: LmdbStore) -> None:
    store.register([OLD])
    script = (
        "import sys\n"
        "from ledgerbeam.ledger.lmdb.data_file import publishing\n"
        "with publishing(sys.argv[1], [bytes.fromhex(sys.argv[2])]):\n"
        "    print('in', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, store.url, OLD.id.hex()], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"in\n"
        with Replacing(store.url) as replacing, pytest.raises(BeingPublishedError):
            replacing.hold([OLD.id])
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        store.register([NEW])
    assert known(store) == {NEW.id}


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_process_that_was_forked_while_something_was_published_keeps_nobody_waiting(store: LmdbStore) -> None:
    store.register([OLD])
    reading, writing = os.pipe()
    with publishing(store.url, [OLD.id]):
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
    store.register([NEW])
    assert known(store) == {NEW.id}
    os.close(writing)
    os.waitpid(child, 0)
    os.close(reading)


def test_an_error_of_the_body_is_not_one_of_the_ledger(store: LmdbStore) -> None:
    with pytest.raises(ValueError, match="of the body"), publishing(store.url, [OLD.id]):
        raise ValueError("of the body")


def test_a_ledger_that_is_gone_is_told(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="No such file"), publishing(str(tmp_path / "gone"), [OLD.id]):
        pass
    with pytest.raises(StorageError, match="No such file"), Replacing(str(tmp_path / "gone")) as replacing:
        replacing.hold([OLD.id])
