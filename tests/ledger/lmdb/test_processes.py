"""Several processes, forks, and growth."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.worker.writer import shared_writer
from tests.ledger.builders import leaf_of, leaves_of_split, plain
from tests.ledger.processes import finish, start

# Python 3.12 and later warn of every fork beside threads; forks are tested here.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

SMALL_MAP = 1 << 18

WRITE_SHARE = """
path, mine, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
store = LmdbStore(path, map_bytes=1 << 18)
sources = [plain(f"s{n}") for n in range(count)]
for source in sources:  # both writers finish every source together, and each sends one leaf of the other again
    leaves = leaves_of_split(source, 4)
    store.commit([leaves[mine], leaves[mine + 2]])
    store.commit([leaves[1 - mine]] if mine else [leaves[mine]])
"""


def in_child(body: Callable[[], object]) -> None:
    """Run a body in a forked process, which must end well."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            body()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_two_processes_finish_the_same_sources_together(store: LmdbStore) -> None:
    sources = [plain(f"s{n}") for n in range(200)]
    store.register(sources)
    writers = [start(WRITE_SHARE, store.url, str(mine), "200") for mine in (0, 1)]
    for writer in writers:
        finish(writer)
    assert all(store.completed_mask([source.id for source in sources]))
    assert store.totals().tasks == 800
    assert sum(1 for _ in store.outputs()) == 800


def test_the_map_grows_in_two_processes_at_once(tmp_path: Path) -> None:
    store = LmdbStore(str(tmp_path / "ledger"), map_bytes=SMALL_MAP)
    store.open(create=True)
    sources = [plain(f"s{n}") for n in range(300)]
    store.register(sources)
    writers = [start(WRITE_SHARE, store.url, str(mine), "300") for mine in (0, 1)]
    while any(writer.poll() is None for writer in writers):
        store.totals()  # this process adopts the size of the map that the others have grown
    for writer in writers:
        finish(writer)
    assert os.path.getsize(tmp_path / "ledger" / "data.mdb") > SMALL_MAP
    assert all(store.completed_mask([source.id for source in sources]))
    assert store.totals().tasks == 1200
    store.close()


def test_the_map_grows_under_threads_that_read_and_write(tmp_path: Path) -> None:
    store = LmdbStore(str(tmp_path / "ledger"), map_bytes=SMALL_MAP)
    store.open(create=True)
    sources = [plain(f"s{n}") for n in range(400)]
    store.register(sources)
    errors: list[BaseException] = []

    def write(mine: int) -> None:
        try:
            for source in sources:
                store.commit(leaves_of_split(source, 2)[mine : mine + 1])
                store.status()
        except BaseException as error:  # noqa: BLE001 - shown by the test
            errors.append(error)

    threads = [threading.Thread(target=write, args=(mine,)) for mine in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert store.completed_count() == 400
    store.close()


def test_a_reader_sees_whole_commits_while_another_process_writes(store: LmdbStore) -> None:
    store.register([plain(f"s{n}") for n in range(300)])
    program = """
store = LmdbStore(sys.argv[1])
for n in range(0, 300, 10):
    store.commit([leaf for m in range(n, n + 10) for leaf in leaves_of_split(plain(f"s{m}"), 3)])
"""
    writer = start(program, store.url)
    looking = LmdbStore(store.url, read_only=True)
    seen = []
    while writer.poll() is None:
        status = looking.status()
        assert status["tasks"]["done"] == 3 * status["sources"]["complete"]
        assert status["sources"]["complete"] % 10 == 0
        assert all(row.complete for row in looking.outputs())
        seen.append(status["sources"]["complete"])
    finish(writer)
    assert seen == sorted(seen)
    assert looking.completed_count() == 300
    looking.close()


def test_forked_processes_write_and_the_parent_goes_on(store: LmdbStore) -> None:
    sources = [plain(f"s{n}") for n in range(40)]
    store.register(sources)
    stop = threading.Event()

    def read_all_the_time() -> None:
        while not stop.is_set():
            list(store.outputs())

    reader = threading.Thread(target=read_all_the_time)
    reader.start()
    try:
        for n in range(0, 40, 2):
            in_child(lambda n=n: store.commit([leaf_of(sources[n])]))  # type: ignore[misc]
            store.commit([leaf_of(sources[n + 1])])
    finally:
        stop.set()
        reader.join()
    assert all(store.completed_mask([source.id for source in sources]))


def test_a_forked_process_may_fork_again(store: LmdbStore) -> None:
    one, two, three = sources = [plain(name) for name in "abc"]
    store.register(sources)

    def child() -> None:
        store.commit([leaf_of(one)])
        in_child(lambda: store.commit([leaf_of(two)]))
        store.commit([leaf_of(three)])

    in_child(child)
    assert store.completed_count() == 3


def test_a_forked_process_gets_a_writer_of_its_own(store: LmdbStore) -> None:
    one, two = plain("a"), plain("b")
    store.register([one, two])
    writer = shared_writer(store.url)
    writer.add(leaf_of(one))

    def child() -> None:
        with pytest.raises(ValueError, match="forked"):
            writer.add(leaf_of(two))
        own = shared_writer(store.url)
        assert own is not writer
        own.add(leaf_of(two))
        own.flush()

    in_child(child)
    writer.close()
    assert store.completed_count() == 2
