"""Opening a ledger: other content in its place, and problems of the place."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import lmdb
import pytest

from ledgerbeam.errors import (
    DiskFullError,
    LedgerDamagedError,
    LedgerError,
    LedgerNotFoundError,
    LedgerVersionError,
    StorageError,
)
from ledgerbeam.ledger.lmdb import environment as lmdb_environment
from ledgerbeam.ledger.lmdb.data_file import DataDescriptors, data_opened
from ledgerbeam.ledger.lmdb.environment import acquire, release
from ledgerbeam.ledger.lmdb.files import DATA_FILE, INITIAL_MAP_BYTES, open_environment
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.lmdb.tables import KEY_FORMAT, META
from ledgerbeam.ledger.opening import open_local_store
from tests.ledger.builders import leaf_of, leaves_of_split, plain
from tests.ledger.processes import finish, run, start
from tests.ledger.stores import in_threads, is_complete, numbered, registered, several

# Python 3.12 and later warn of every fork beside threads; forks are tested here.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a tmpfs or changes the user: needs root")


def test_a_missing_ledger_is_an_error_that_names_it(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(LedgerNotFoundError, match=str(path)):
            open_local_store(str(path), create=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "use",
    [LmdbStore.open, LmdbStore.completed_count, lambda store: store.register([plain()])],
    ids=["open", "look", "write"],
)
def test_who_uses_a_ledger_that_is_not_there_makes_none(tmp_path: Path, use: Callable[[LmdbStore], object]) -> None:
    with pytest.raises(LedgerNotFoundError, match=str(tmp_path)):
        use(LmdbStore(str(tmp_path / "missing")))
    assert list(tmp_path.iterdir()) == []


def test_an_environment_that_was_killed_while_it_was_made_is_none_and_can_be_made(tmp_path: Path) -> None:
    lmdb.open(str(tmp_path / "bare"), lib_version=0).close()
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "data.mdb").touch()
    for name in ("bare", "empty"):
        path = str(tmp_path / name)
        for read_only in (True, False):
            with pytest.raises(LedgerNotFoundError):
                open_local_store(path, create=False, read_only=read_only)
        store = open_local_store(path, create=True)
        store.register([plain()])
        store.close()


def test_two_ledgers_have_different_ids_and_a_copy_has_the_same(tmp_path: Path) -> None:
    one, two = (open_local_store(str(tmp_path / name), create=True) for name in "ab")
    assert one.ledger_id() != two.ledger_id()
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    assert open_local_store(str(tmp_path / "copy"), create=False, read_only=True).ledger_id() == one.ledger_id()


def test_a_file_is_not_a_ledger(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("text")
    for where in (path, path / "below" / "it"):
        for create in (True, False):
            with pytest.raises(LedgerDamagedError, match=r"found a file at .*; give another path$"):
                open_local_store(str(where), create=create)


@pytest.mark.parametrize("content", [b"text", os.urandom(32768)])
@pytest.mark.parametrize("read_only", [True, False])
def test_bytes_that_are_no_ledger_are_an_error(tmp_path: Path, content: bytes, read_only: bool) -> None:
    (tmp_path / "data.mdb").write_bytes(content)
    with pytest.raises(LedgerDamagedError, match="not a ledger"):
        open_local_store(str(tmp_path), create=False, read_only=read_only)
    assert (tmp_path / "data.mdb").read_bytes() == content


def test_a_file_of_the_other_engine_is_an_error(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path / "x"), lib_version=1) as environment, environment.begin(write=True) as txn:
        txn.put(b"key", b"value")
    for create in (True, False):
        with pytest.raises(LedgerDamagedError, match="not a ledger"):
            open_local_store(str(tmp_path / "x"), create=create)


@pytest.mark.parametrize("read_only", [True, False])
def test_the_data_of_another_program_is_an_error(tmp_path: Path, read_only: bool) -> None:
    for name, table in (("plain", None), ("tables", b"theirs"), ("alike", b"meta")):
        path = str(tmp_path / name)
        with lmdb.open(path, max_dbs=2, lib_version=0) as environment:
            database = environment.open_db(table)
            with environment.begin(write=True) as txn:
                txn.put(b"key", b"value", db=database)
        with pytest.raises(LedgerDamagedError, match="another program"):
            open_local_store(path, create=not read_only, read_only=read_only)


def test_a_ledger_of_a_newer_version_is_an_error_that_says_both(store: LmdbStore) -> None:
    store._write(lambda txn: txn.put(META, KEY_FORMAT, b"7"))
    store.close()
    for read_only in (True, False):
        with pytest.raises(LedgerVersionError, match=r"format 7.*reads format 3"):
            open_local_store(store.url, create=False, read_only=read_only)


def test_stores_of_one_process_share_an_environment_until_the_last_is_closed(store: LmdbStore, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(store.url)
    two = open_local_store(str(link), create=False)
    looking = open_local_store(store.url, create=False, read_only=True)
    store.register([plain()])
    store.close()
    two.commit([leaf_of(plain())])
    two.close()
    assert looking.completed_count() == 1
    looking.close()
    assert os.path.realpath(store.url) not in lmdb_environment._open


def test_a_ledger_that_was_removed_in_use_is_an_error_and_can_be_made_anew(store: LmdbStore) -> None:
    store.register([plain()])
    shutil.rmtree(store.url)
    with pytest.raises(LedgerNotFoundError, match="removed or replaced"):
        store.commit([leaf_of(plain())])
    anew = open_local_store(store.url, create=True)
    anew.register([plain()])
    assert anew.commit([leaf_of(plain())]).completed == [plain().id]
    anew.close()
    store.close()


def test_an_environment_reopened_to_give_back_memory_goes_on(store: LmdbStore) -> None:
    store.register([plain("a"), plain("b")])
    rows = store.outputs()
    store.commit([leaf_of(plain("a"))])
    store._open().open_again(read_only=False)
    assert store.completed_count() == 1
    store.commit([leaf_of(plain("b"))])
    assert len(list(rows)) == 2


@needs_root
def test_no_permission_is_an_error_with_advice() -> None:
    program = """
os.setgid(65534); os.setuid(65534)
for arguments in ({"create": False}, {"create": False, "read_only": True}, {"create": True}):
    try:
        open_local_store(sys.argv[1], **arguments)
    except Exception as error:
        print(type(error).__name__, "permission" in str(error))
try:
    open_local_store(sys.argv[1] + "/inner", create=True)
except Exception as error:
    print(type(error).__name__, "no permission to create it" in str(error))
"""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        path = os.path.join(folder, "ledger")
        open_local_store(path, create=True).close()
        assert run(program, path).splitlines() == [f"{StorageError.__name__} True"] * 4


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mounted = tmp_path / "disk"
    mounted.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", mounted], check=False, capture_output=True)
    if done.returncode:
        pytest.skip(f"cannot mount a tmpfs: {done.stderr.decode().strip()}")
    yield mounted
    subprocess.run(["umount", "--lazy", mounted], check=True)  # a test that failed may still hold a file open


@needs_root
def test_a_full_disk_is_an_error_that_loses_nothing_and_work_goes_on_with_room(small_disk: Path) -> None:
    store = open_local_store(str(small_disk / "ledger"), create=True)
    filler = small_disk / "filler"
    filler.write_bytes(bytes(300_000))
    done: list[bytes] = []

    def fill_the_disk() -> None:
        while True:
            batch = [plain(f"{len(done)}-{n}") for n in range(10)]
            store.register(batch)
            store.commit([leaf_of(source) for source in batch])
            done.extend(source.id for source in batch)

    with pytest.raises(DiskFullError, match=r"no space.*Nothing that was recorded is lost"):
        fill_the_disk()
    assert done
    assert all(store.completed_mask(done))
    filler.unlink()
    late = registered(store, "late")
    store.commit([leaf_of(late)])
    store.close()
    again = open_local_store(str(small_disk / "ledger"), create=False)
    assert all(again.completed_mask([*done, late.id]))
    again.close()


@needs_root
def test_a_ledger_cannot_be_made_on_a_full_disk(small_disk: Path) -> None:
    with pytest.raises(OSError, match="No space"):
        (small_disk / "filler").write_bytes(bytes(2 << 20))
    with pytest.raises(DiskFullError):
        open_local_store(str(small_disk / "ledger"), create=True)


def test_a_store_that_was_closed_under_an_iterator_is_an_error(store: LmdbStore) -> None:
    store.register([plain()])
    rows = store.outputs()
    store.close()
    with pytest.raises(LedgerError, match="closed"):
        list(rows)


def descriptors_of(folder: Path) -> list[int]:
    def place(name: str) -> str:
        try:
            return os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the descriptor of the listing itself
            return ""

    return [int(name) for name in os.listdir("/proc/self/fd") if place(name).startswith(f"{folder}/")]


@pytest.mark.parametrize("how", ["closed", "taken by another file"])
def test_a_ledger_does_not_write_where_its_descriptors_lead_no_longer(tmp_path: Path, how: str) -> None:
    """A function that closed all descriptors, and then opened a file, had pages of the ledger written into the file."""
    store = open_local_store(str(tmp_path / "ledger"), create=True)
    store.register([plain()])
    other = tmp_path / "other"
    with other.open("w+") as mine:
        mine.write("mine")
        mine.flush()
        found = descriptors_of(tmp_path / "ledger")
        assert found
        for descriptor in found:
            if how == "closed":
                os.close(descriptor)
            else:
                os.dup2(mine.fileno(), descriptor)
        with pytest.raises(LedgerError, match=f"{tmp_path}/ledger: .*descriptors .* were closed") as refused:
            store.commit([leaf_of(plain())])
        assert not isinstance(refused.value, LedgerDamagedError)
        assert other.read_text() == "mine"
        store.close()
    reopened = open_local_store(str(tmp_path / "ledger"), create=False)
    reopened.commit([leaf_of(plain())])
    assert reopened.completed_count() == 1


def test_what_is_opened_beside_a_ledger_is_not_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "ledger")
    open_local_store(path, create=True).close()
    opened, done = threading.Event(), threading.Event()

    def publish() -> None:
        with data_opened(path, os.O_RDONLY):
            opened.set()
            done.wait(20)

    def opens(*args: Any, **more: Any) -> Any:
        thread.start()
        opened.wait(0.2)
        return open_environment(*args, **more)

    thread = threading.Thread(target=publish)
    monkeypatch.setattr(lmdb_environment, "open_environment", opens)
    store = open_local_store(path, create=False)
    assert opened.wait(20)
    done.set()
    thread.join()
    store.register([plain()])
    store.close()


def test_files_of_a_ledger_that_others_have_open_may_be_closed(store: LmdbStore) -> None:
    store.close()
    with open(f"{store.url}/data.mdb", "rb"):
        store.open()
    store.register([plain()])


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
    "look", [LmdbStore.source_count, lambda store: store.register([plain()])], ids=["read", "write"]
)
def test_taking_over_a_grown_map_keeps_nobody_out(small: LmdbStore, look: Callable[[LmdbStore], object]) -> None:
    in_child(lambda: small._write(lambda txn: txn.put(META, b"large", bytes(2 * SMALL_MAP))))
    look(small)
    environment = small._open()
    assert environment.gate.is_empty()
    grown = environment._env.info()["map_size"]
    assert grown > 2 * SMALL_MAP
    environment.open_again(read_only=False)
    assert environment._env.info()["map_size"] == grown


def test_a_new_ledger_has_address_space_to_grow_in_and_takes_no_room_for_it(store: LmdbStore) -> None:
    assert store._open()._env.info()["map_size"] == INITIAL_MAP_BYTES
    assert os.path.getsize(f"{store.url}/{DATA_FILE}") < INITIAL_MAP_BYTES / 1000


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
    one, two = several(small, "a", "b")
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


def test_every_open_ledger_is_held_while_a_process_forks_and_usable_after(small: LmdbStore, tmp_path: Path) -> None:
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
    sources = numbered(store, 200)
    writers = [start(WRITE_SHARE, store.url, str(mine), "200") for mine in (0, 1)]
    for writer in writers:
        finish(writer)
    assert all(store.completed_mask([source.id for source in sources]))
    assert store.totals().tasks == 800
    assert sum(1 for _ in store.outputs()) == 800


def test_the_map_grows_in_two_processes_at_once(small: LmdbStore) -> None:
    sources = numbered(small, 300)
    writers = [start(WRITE_SHARE, small.url, str(mine), "300") for mine in (0, 1)]
    while any(writer.poll() is None for writer in writers):
        small.totals()  # this process adopts the size of the map that the others have grown
    for writer in writers:
        finish(writer)
    assert os.path.getsize(f"{small.url}/data.mdb") > SMALL_MAP
    assert is_complete(small, *sources)
    assert small.totals().tasks == 1200


def test_the_map_grows_under_threads_that_read_and_write(small: LmdbStore) -> None:
    sources = numbered(small, 400)
    errors: list[BaseException] = []

    def write(mine: int) -> None:
        try:
            for source in sources:
                small.commit(leaves_of_split(source, 2)[mine : mine + 1])
                small.status()
        except BaseException as error:  # noqa: BLE001 - shown by the test
            errors.append(error)

    in_threads(lambda: write(0), lambda: write(1))
    assert errors == []
    assert small.completed_count() == 400


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
    sources = numbered(store, 40)
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


def test_task_lookups_give_memory_back_after_each_thousand(store: LmdbStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmdb_environment, "_TRIM_BYTES", -(1 << 60))  # any memory is much
    store.register([plain()])
    environment = store._open()

    def gives_back(tasks: int) -> bool:
        before = environment._env
        assert store.finished([(plain().id, ())] * tasks) == [False] * tasks
        return environment._env is not before

    assert [gives_back(tasks) for tasks in (1, 999, 1, 1000, 1, 1001, 1000)] == [
        *(False, False, True),
        *(False, True, True, False),
    ]


def test_a_forked_process_waits_for_no_lock_that_a_thread_of_its_parent_held(store: LmdbStore) -> None:
    store.register([plain()])
    store.commit([leaf_of(plain())])

    def child() -> None:
        signal.alarm(10)
        assert all(store.completed_mask([plain().id]))

    with store._lock, store._completed._lock:
        in_child(child)
    assert all(store.completed_mask([plain().id]))
