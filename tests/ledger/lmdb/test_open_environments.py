"""Open environments: adopted, reopened, closed and forked."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ledgerbeam.errors import LedgerError, LedgerNotFoundError
from ledgerbeam.ledger.lmdb import environment as lmdb_environment
from ledgerbeam.ledger.lmdb.data_file import DataDescriptors, data_opened
from ledgerbeam.ledger.lmdb.environment import Environment, acquire, release
from ledgerbeam.ledger.lmdb.files import DATA_FILE, INITIAL_MAP_BYTES
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.lmdb.tables import META
from tests.ledger.builders import leaf_of, plain
from tests.ledger.lmdb.test_processes import SMALL_MAP, in_child

# Python 3.12 and later warn of every fork beside threads; forks are tested here.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def mapped_files() -> list[str]:
    """Return which files this process has mapped into its memory; one that was removed says so."""
    with open("/proc/self/maps", encoding="utf-8") as file:
        return [line.split(maxsplit=5)[5].strip() for line in file if len(line.split(maxsplit=5)) > 5]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[LmdbStore]:
    """A ledger whose map is soon full."""
    store = LmdbStore(str(tmp_path / "ledger"), map_bytes=SMALL_MAP)
    store.open(create=True)
    yield store
    store.close()


@pytest.mark.parametrize(
    ("look", "found"),
    [(LmdbStore.source_count, 9000), (lambda store: store.register([plain("one more")]), None)],
    ids=["read", "write"],
)
def test_who_finds_that_another_process_has_grown_the_map_takes_it_over(
    small: LmdbStore, look: Callable[[LmdbStore], int | None], found: int | None
) -> None:
    in_child(lambda: small.register([plain(f"s{n}") for n in range(9000)]))
    assert look(small) == found
    assert small._open().gate.is_empty()
    assert small._open()._env.info()["map_size"] > SMALL_MAP
    assert small.source_count() >= 9000


@pytest.mark.parametrize(
    "look", [LmdbStore.source_count, lambda store: store.register([plain()])], ids=["read", "write"]
)
def test_who_takes_over_the_map_of_another_process_keeps_nobody_out(
    small: LmdbStore, look: Callable[[LmdbStore], object]
) -> None:
    in_child(lambda: small._write(lambda txn: txn.put(META, b"large", bytes(2 * SMALL_MAP))))
    look(small)
    environment = small._open()
    assert environment.gate.is_empty()
    grown = environment._env.info()["map_size"]
    assert grown > 2 * SMALL_MAP
    environment.open_again(read_only=False)
    assert environment._env.info()["map_size"] == grown


def test_an_environment_that_is_opened_again_keeps_its_room_though_little_is_in_it(small: LmdbStore) -> None:
    environment = small._open()
    environment._grow_map(SMALL_MAP)
    environment.open_again(read_only=True)
    assert environment._env.info()["map_size"] == 2 * SMALL_MAP


def test_a_new_ledger_has_address_space_to_grow_in_and_takes_no_room_for_it(tmp_path: Path) -> None:
    store = LmdbStore(str(tmp_path / "ledger"))
    store.open(create=True)
    assert store._open()._env.info()["map_size"] == INITIAL_MAP_BYTES
    assert os.path.getsize(tmp_path / "ledger" / DATA_FILE) < INITIAL_MAP_BYTES / 1000
    store.close()


def test_a_read_that_cannot_begin_keeps_nobody_out(small: LmdbStore) -> None:
    environment = small._open()
    environment._env.close()
    with pytest.raises(LedgerError), environment.read():
        pass
    assert environment.gate.is_empty()


def test_an_environment_that_is_gone_is_not_made_by_opening_it_again(small: LmdbStore) -> None:
    environment = small._open()
    shutil.rmtree(small.url)
    with pytest.raises(LedgerNotFoundError):
        environment.open_again(read_only=False)
    assert not os.path.exists(small.url)


def test_a_forked_process_does_not_keep_the_files_of_its_parent_mapped(small: LmdbStore) -> None:
    path = os.path.realpath(os.path.join(small.url, "data.mdb"))
    assert path in mapped_files()

    def child() -> None:
        assert path not in mapped_files()

    in_child(child)
    assert path in mapped_files()


def test_a_process_that_is_forked_while_rows_are_read_opens_the_ledger_for_itself(small: LmdbStore) -> None:
    one, two = plain("a"), plain("b")
    small.register([one, two])
    small.commit([leaf_of(one)])
    rows = small.outputs()  # hold what their process has open
    assert next(rows).source_id == one.id

    def child() -> None:
        small.commit([leaf_of(two)])
        assert small.completed_count() == 2

    in_child(child)
    assert small.completed_count() == 2


def test_files_that_were_replaced_are_not_kept_open(small: LmdbStore) -> None:
    shutil.rmtree(small.url)
    anew = acquire(small.url, read_only=False, create=True)
    path = os.path.realpath(small.url)
    mapped = [name for name in mapped_files() if name.startswith(path)]
    assert sorted(mapped) == [os.path.join(path, name) for name in ("data.mdb", "lock.mdb")]
    release(anew)


def test_files_that_were_missing_for_a_while_are_opened_again(small: LmdbStore) -> None:
    aside = f"{small.url}-aside"
    os.rename(small.url, aside)
    with pytest.raises(LedgerNotFoundError):
        acquire(small.url, read_only=True, create=False)
    os.rename(aside, small.url)
    again = acquire(small.url, read_only=True, create=False)
    with again.read() as txn:
        assert txn.count(META)
    release(again)


def test_data_that_was_opened_beside_an_environment_is_closed(small: LmdbStore) -> None:
    with data_opened(small.url, os.O_RDONLY) as descriptor:
        os.fstat(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_data_that_was_opened_beside_an_environment_is_not_closed_while_that_is_opened(small: LmdbStore) -> None:
    """Its descriptor would have the number of one of the environment's own, which is recorded."""
    beside = ExitStack()
    beside.enter_context(data_opened(small.url, os.O_RDONLY))
    closing = threading.Thread(target=beside.close)
    with DataDescriptors(small.url).opening():
        closing.start()
        closing.join(0.2)
        assert closing.is_alive()
    closing.join(10)
    assert not closing.is_alive()


@pytest.mark.parametrize("closed", [0, 1], ids=["first", "last"])
def test_each_descriptor_of_the_data_that_leads_to_another_file_is_told(small: LmdbStore, closed: int) -> None:
    data = os.path.join(small.url, "data.mdb")
    ours = DataDescriptors(small.url)
    with ours.opening():
        opened = [os.open(data, os.O_RDONLY) for _ in range(2)]
    try:
        ours.check()
        with open(os.devnull, "rb") as other:
            os.dup2(other.fileno(), opened[closed])
        with pytest.raises(LedgerError, match="descriptors of its files were closed in this process by other code"):
            ours.check()
    finally:
        for descriptor in opened:
            os.close(descriptor)


def test_who_only_looks_keeps_an_environment_that_is_only_looked_at(small: LmdbStore) -> None:
    small.close()
    looking = [acquire(small.url, read_only=True, create=False) for _ in range(2)]
    assert looking[0] is looking[1]
    assert looking[0].read_only
    for one in looking:
        release(one)


def test_memory_that_maps_files_is_what_the_system_says() -> None:
    def said() -> int:
        with open("/proc/self/statm", encoding="utf-8") as file:
            return int(file.read().split()[2]) * os.sysconf("SC_PAGE_SIZE")

    before, found, after = said(), lmdb_environment._resident_file_bytes(), said()
    assert min(before, after) <= found <= max(before, after)


def test_memory_is_given_back_once_for_what_was_read_since(small: LmdbStore, monkeypatch: pytest.MonkeyPatch) -> None:
    held = [0]
    monkeypatch.setattr(lmdb_environment, "_resident_file_bytes", lambda: held[0])
    environment = small._open()

    def gives_back(resident: int) -> bool:
        held[0], before = resident, environment._env
        environment.trim()
        return environment._env is not before

    environment._resident = 0
    most = lmdb_environment._TRIM_BYTES
    assert [gives_back(resident) for resident in (most, most + 1, most + 1, 2 * most + 1, 2 * most + 2)] == [
        *(False, True, False),
        *(False, True),
    ]


def test_a_process_does_not_fork_within_a_transaction_of_a_thread(small: LmdbStore) -> None:
    environment: Environment = small._open()
    lmdb_environment._before_fork()
    try:
        assert environment.gate._shut
    finally:
        lmdb_environment._after_fork_in_parent()
    assert not environment.gate._shut
    assert small.source_count() == 0


def test_every_ledger_that_is_open_is_held_while_a_process_forks_and_is_of_use_behind_it(
    small: LmdbStore, tmp_path: Path
) -> None:
    other = LmdbStore(str(tmp_path / "other"))
    other.open(create=True)
    stores = (small, other)
    lmdb_environment._before_fork()
    try:
        assert all(store._open().gate._shut for store in stores)
    finally:
        lmdb_environment._after_fork_in_parent()
    assert not any(store._open().gate._shut for store in stores)
    assert [store.source_count() for store in stores] == [0, 0]
    other.close()
