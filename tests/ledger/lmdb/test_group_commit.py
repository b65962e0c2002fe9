"""Group commit: entries after a failure, and writers and sinks in a forked process."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from ledgerbeam.errors import DiskFullError, JobMismatchError, NonDeterministicTaskError, UsageError
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.lmdb.tables import Transaction
from ledgerbeam.ledger.model.rows import CommitResult, Failure, Leaf
from ledgerbeam.ledger.remote.sink import RemoteSink
from ledgerbeam.ledger.worker.writer import LedgerPlace, LedgerWriter, close_shared_writers, shared_writer
from tests.ledger.builders import filtered_leaf, leaf_of, leaves_of_split, plain
from tests.ledger.conformance_changes import ONE, TWO
from tests.ledger.remote.test_store import Hosts

NEVER = 3600.0

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    hosts = Hosts(tmp_path)
    yield hosts
    hosts.close()


def in_fork(act: Callable[[], object]) -> int:
    """Run a function in a forked process; gives its exit status, 0 if it returned."""
    child = os.fork()
    if child == 0:
        try:
            act()
            os._exit(0)
        except UsageError:
            os._exit(2)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class BusyStore(LmdbStore):
    """A store during whose commit something else happens, and which then may have no room."""

    full = False
    meanwhile: Callable[[], None] | None = None

    def commit(self, leaves: Sequence[Leaf], failures: Sequence[Failure] = ()) -> CommitResult:
        act, self.meanwhile = self.meanwhile, None
        if act is not None:
            act()
        if self.full:
            raise DiskFullError("no space")
        return super().commit(leaves, failures)


def test_results_of_several_commits_add_up_until_they_are_taken(store: LmdbStore) -> None:
    sources = [plain(name) for name in "abc"]
    store.register(sources)
    writer = LedgerWriter(store, interval=NEVER, max_entries=1)
    for source in sources:
        writer.add(leaf_of(source))
    result = writer.flush()
    assert result.completed == [source.id for source in sources]
    assert result.fresh == 3
    assert writer.flush() == CommitResult([])
    writer.close()


def test_an_error_of_the_background_is_raised_by_a_flush_and_by_a_close_too(store: LmdbStore) -> None:
    source = plain()
    store.register([source])
    store.commit([leaf_of(source, ((0, 2),))])
    for end in (LedgerWriter.flush, LedgerWriter.close):
        writer = LedgerWriter(store, interval=0.01)
        writer.add(leaf_of(source, ((0, 3),)))
        while writer._refused is None:
            time.sleep(0.005)
        with pytest.raises(NonDeterministicTaskError):
            end(writer)
        writer.close()


def test_all_shared_writers_are_closed_though_one_of_them_fails(store: LmdbStore) -> None:
    sources = [plain(name) for name in "abc"]
    store.register(sources)
    busy = BusyStore(store.url)
    busy.full = True
    stores = (store, busy, LmdbStore(store.url))
    places = [LedgerPlace.of(store.url, run=run) for run in ("1", "2", "3")]
    writers = []
    for place, sink, source in zip(places, stores, sources, strict=True):
        writers.append(shared_writer(place, interval=NEVER, open_sink=lambda sink=sink: sink))  # type: ignore[misc]
        writers[-1].add(leaf_of(source))
    with pytest.raises(DiskFullError):
        close_shared_writers()
    assert store.completed_mask([source.id for source in sources]) == [True, False, True]
    assert shared_writer(places[1], open_sink=lambda: store) is not writers[1]
    close_shared_writers()


def test_a_shared_writer_has_the_limits_that_its_first_user_gave(store: LmdbStore) -> None:
    sources = [plain(name) for name in "abc"]
    store.register(sources)
    for source in sources:
        shared_writer(store.url, interval=NEVER, max_entries=2).add(leaf_of(source))
    assert store.completed_count() == 2
    close_shared_writers()


def test_a_refused_task_after_a_full_disk_is_told_once(store: LmdbStore) -> None:
    source = plain()
    store.register([source])
    busy = BusyStore(store.url)
    writer = LedgerWriter(busy, interval=NEVER)
    busy.full = True
    writer.add(leaf_of(source, ((0, 2),)))
    with pytest.raises(DiskFullError):
        writer.flush()
    with pytest.raises(DiskFullError):
        writer.add(filtered_leaf(source, ((0, 2),)))
    busy.full = False
    with pytest.raises(NonDeterministicTaskError):
        writer.flush()
    assert writer.flush().completed == []
    writer.add(leaf_of(source, ((1, 2),)))
    assert writer.flush().completed == [source.id]
    writer.close()


def test_a_writer_is_refused_in_a_forked_process_which_gets_a_shared_one_of_its_own(store: LmdbStore) -> None:
    source = plain()
    store.register([source])
    writer = shared_writer(store.url, interval=NEVER)
    mine, its = leaves_of_split(source, 2)
    writer.add(mine)
    for use in (lambda: writer.add(its), writer.flush):
        assert in_fork(use) == 2

    def child() -> None:
        shared_writer(store.url, interval=NEVER).add(its)
        close_shared_writers()

    assert in_fork(child) == 0
    assert store.totals().tasks == 1  # the entries of the parent stay with the parent
    close_shared_writers()
    assert store.completed_count() == 1


def test_parent_and_child_record_with_one_sink_and_lose_nothing(hosts: Hosts) -> None:
    launcher = hosts.store()
    launcher.begin_run({})
    launcher.register([plain()])
    sink = RemoteSink(hosts.objects, run="1")
    first, second, third, fourth = leaves_of_split(plain(), 4)
    sink.commit([first])
    assert in_fork(lambda: sink.commit([second])) == 0
    sink.commit([third])
    sink.commit([fourth])
    launcher.refresh()
    assert launcher.completed_count() == 1


def test_parent_and_child_record_with_one_store_and_lose_nothing(hosts: Hosts) -> None:
    launcher = hosts.store()
    launcher.begin_run({})
    launcher.register([plain()])
    first, second, third = leaves_of_split(plain(), 3)
    launcher.commit([first])
    assert in_fork(lambda: launcher.commit([second])) == 0
    launcher.commit([third])
    assert launcher.completed_count() == 1


def test_a_ledger_that_is_taken_while_a_commit_begins_records_nothing(
    store: LmdbStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = store._open()
    store.open_job(ONE)
    store.register([plain()])

    def taken_first(change: Callable[[Transaction], object]) -> object:
        monkeypatch.undo()
        LmdbStore(store.url).open_job(TWO, "accept")
        return environment.write(change)

    monkeypatch.setattr(environment, "write", taken_first)
    with pytest.raises(JobMismatchError):
        store.commit([leaf_of(plain())])
    assert store.completed_count() == 0


def test_a_sink_in_two_threads_names_every_segment_anew(hosts: Hosts) -> None:
    launcher = hosts.store()
    launcher.begin_run({})
    launcher.register([plain()])
    sink = RemoteSink(hosts.objects, run="1")
    leaves = leaves_of_split(plain(), 40)
    threads = [
        threading.Thread(target=lambda part=part: [sink.commit([leaf]) for leaf in part])
        for part in (leaves[:20], leaves[20:])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    launcher.refresh()
    assert launcher.completed_count() == 1
