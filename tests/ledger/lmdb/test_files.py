"""Files of a ledger: their creation, opening, remains, and sharing between processes."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest

from ledgerbeam.errors import (
    LedgerDamagedError,
    LedgerError,
    LedgerNotFoundError,
    LedgerVersionError,
    StorageError,
    UsageError,
)
from ledgerbeam.ledger import Source
from ledgerbeam.ledger.lmdb import environment as lmdb_environment
from ledgerbeam.ledger.lmdb import files as lmdb_files
from ledgerbeam.ledger.lmdb.environment import acquire, release, row_pages
from ledgerbeam.ledger.lmdb.files import filesystem_type, refuse_network_filesystem
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.lmdb.tables import FORMAT, KEY_FORMAT, META, SOURCES, TABLES, Transaction
from tests.cases import each
from tests.ledger.builders import failure_of, leaf_of, plain


def a_full_folder(path: Path) -> None:
    path.mkdir()
    (path / "file").touch()


def a_link_to_a_folder(path: Path) -> None:
    (path.parent.parent / "elsewhere").mkdir()
    path.symlink_to("../elsewhere")


@pytest.mark.parametrize(
    ("name", "make", "is_ours"),
    [
        ("lock.mdb", Path.touch, True),
        (".data.mdb.0123456789ab.lbtmp", Path.touch, True),
        ("run", Path.mkdir, True),
        ("work", Path.mkdir, True),
        ("run", a_full_folder, False),
        ("run", Path.touch, False),
        ("run", a_link_to_a_folder, False),
        ("runs", Path.mkdir, False),
        (".data.mdb.0123456789ab.lbtmp2", Path.touch, False),
        ("x.data.mdb.0123456789ab.lbtmp", Path.touch, False),
        (".data.mdb.0123456789a.lbtmp", Path.touch, False),
        ("mine.jsonl", Path.touch, False),
    ],
)
def test_a_ledger_wants_no_other_files(tmp_path: Path, name: str, make: Callable[[Path], None], is_ours: bool) -> None:
    path = tmp_path / "ledger"
    path.mkdir()
    make(path / name)
    store = LmdbStore(str(path))
    if is_ours:
        store.open(create=True)
        store.close()
        (path / "other").touch()  # a ledger exists now, so other files do not matter
        store.open(create=True)
        store.close()
    else:
        with pytest.raises(UsageError, match=rf"without data.mdb that holds {re.escape(name)};"):
            store.open(create=True)
        assert os.listdir(path) == [name]


@pytest.mark.parametrize("count", [5, 6])
def test_of_many_things_that_lie_there_some_are_named(tmp_path: Path, count: int) -> None:
    for number in range(count):
        (tmp_path / f"f{number}").touch()
    with pytest.raises(UsageError) as found:
        LmdbStore(str(tmp_path)).open(create=True)
    assert f"holds f0, f1, f2, f3, f4{', ...' if count > 5 else ''};" in str(found.value)


def is_of_mode(path: Path, mode: int) -> bool:
    """Return whether a file has a mode, without the bits that the mask of this process takes away."""
    mask = os.umask(0)
    os.umask(mask)
    return stat.S_IMODE(path.stat().st_mode) == mode & ~mask


def test_a_ledger_that_is_made_leaves_its_files_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "ledger"
    store = LmdbStore(str(path))
    store.open(create=True)
    assert sorted(os.listdir(path)) == ["data.mdb", "lock.mdb"]
    assert all(is_of_mode(path / name, 0o644) for name in ("data.mdb", "lock.mdb"))
    assert (path / "lock.mdb").stat().st_blocks * 512 >= (path / "lock.mdb").stat().st_size >= 1000 * 64
    store.close()


def failing(number: int) -> Callable[..., None]:
    def fail(*_: Any) -> None:
        raise OSError(number, "broken")

    return fail


def test_a_filesystem_without_links_can_hold_a_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", failing(errno.EPERM))
    store = LmdbStore(str(tmp_path / "ledger"))
    store.open(create=True)
    store.register([plain()])
    assert sorted(os.listdir(tmp_path / "ledger")) == ["data.mdb", "lock.mdb"]
    store.close()


def test_what_fails_while_a_ledger_is_made_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", failing(errno.EIO))
    with pytest.raises(StorageError, match="broken"):
        LmdbStore(str(tmp_path / "ledger")).open(create=True)
    assert os.listdir(tmp_path / "ledger") == []


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EACCES, r"no permission to create it \(.*\); give a folder that you can write to as --ledger$"),
        (errno.EIO, r"ledger: \[Errno 5\] broken"),
    ],
    ids=["permission", "other"],
)
def test_an_impossible_folder_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, said: str) -> None:
    with monkeypatch.context() as refused:
        refused.setattr(os, "mkdir", failing(number))
        with pytest.raises(StorageError, match=said):
            LmdbStore(str(tmp_path / "ledger")).open(create=True)
    assert list(tmp_path.iterdir()) == []


def test_two_that_make_a_ledger_at_once_make_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, link = tmp_path / "ledger", os.link
    other = LmdbStore(str(path))

    def late(source: str, target: str) -> None:
        monkeypatch.setattr(os, "link", link)
        lmdb_files._make_files(str(path), 1 << 20)  # another process is first
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    other.open(create=True)
    other.register([plain()])
    assert sorted(os.listdir(path)) == ["data.mdb", "lock.mdb"]
    other.close()


def opened_below(path: str) -> list[str]:
    """Return the files below a folder that this process has open."""
    places = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    return [os.path.basename(place) for place in places if place.startswith(path)]


@pytest.mark.parametrize("size", [0, 1 << 17])
def test_a_lock_file_with_holes_is_filled(store: LmdbStore, size: int) -> None:
    store.close()
    lock = Path(store.url, "lock.mdb")
    lock.unlink()
    with open(lock, "wb") as file:
        file.truncate(size)
    assert lock.stat().st_blocks == 0
    store.open()
    assert lock.stat().st_blocks * 512 >= lock.stat().st_size >= max(size, 1000 * 64)
    store.close()
    assert opened_below(store.url) == []


def test_a_data_file_is_named_once_it_is_whole_and_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, link = tmp_path / "ledger", os.link
    found: list[tuple[list[str], int]] = []

    def noted(source: str, target: str) -> None:
        opened = opened_below(str(path))
        with lmdb.open(source, subdir=False, lock=False, readonly=True) as environment:
            found.append((opened, environment.stat()["entries"]))
        link(source, target)

    monkeypatch.setattr(os, "link", noted)
    store = LmdbStore(str(path))
    store.open(create=True)
    store.close()
    assert found == [([], len(TABLES))]


def test_what_is_recorded_is_on_the_disk_when_that_is_said(store: LmdbStore) -> None:
    flags = store._open()._env.flags()
    assert (flags["sync"], flags["metasync"], flags["readonly"], flags["lock"]) == (True, True, False, True)


def test_a_copy_to_look_at_gets_a_lock_file_for_many_readers(store: LmdbStore, tmp_path: Path) -> None:
    store.register([plain()])
    store.close()
    (tmp_path / "copy").mkdir()
    shutil.copy(f"{store.url}/data.mdb", tmp_path / "copy")
    copy = LmdbStore(str(tmp_path / "copy"), read_only=True)
    copy.open()
    environment = copy._open()._env
    assert environment.flags()["readonly"]
    assert environment.info()["max_readers"] >= 1000
    assert copy.source_count() == 1
    copy.close()
    assert is_of_mode(tmp_path / "copy" / "lock.mdb", 0o644)


def test_a_data_file_that_was_cut_short_is_told_and_ends_no_process(store: LmdbStore) -> None:
    whole = store.status()
    store.close()
    path = Path(store.url, "data.mdb")
    content = path.read_bytes()
    for kept in (5000, 8192, len(content) // 2):
        path.write_bytes(content[:kept])
        command = [sys.executable, "-m", "ledgerbeam", "ledger", "status", store.url]
        read = subprocess.run(command, capture_output=True, text=True, check=False)
        assert read.returncode == 1, read.stderr
        assert f"data.mdb was cut short: expected {len(content):,} bytes, found {kept:,}" in read.stderr
    path.write_bytes(content)
    store.open()
    assert store.status() == whole


@pytest.mark.parametrize("is_damaged", [False, True], ids=["ends by a signal", "ends by an error"])
def test_opening_a_ledger_prints_nothing(store: LmdbStore, capfd: pytest.CaptureFixture[str], is_damaged: bool) -> None:
    store.register([Source(f"/in/{number}", 1, "1") for number in range(300)])
    store.close()
    path = Path(store.url, "data.mdb")
    content = bytearray(path.read_bytes())
    kept = len(content) - 4096 if is_damaged else 8192
    for page in range(2, len(content) // 4096 if is_damaged else 0):
        content[4096 * page + 10] ^= 0x0F  # what kind of page it is
    path.write_bytes(content[:kept])
    with pytest.raises(LedgerDamagedError, match=f"cut short: expected {len(content):,} bytes, found {kept:,};"):
        LmdbStore(store.url).open()
    assert capfd.readouterr() == ("", "")


def test_a_data_file_whose_last_pages_are_empty_is_whole(store: LmdbStore) -> None:
    pages: list[int] = []

    class Longer:
        """The environment of a file of which a page more was taken, and never written."""

        def info(self) -> dict[str, int]:
            pages.append(os.path.getsize(f"{store.url}/data.mdb") // 4096)
            return {"last_pgno": pages[-1]}

        def stat(self) -> dict[str, int]:
            return {"psize": 4096}

    lmdb_files._require_whole(Longer(), store.url)  # type: ignore[arg-type]
    assert pages


def test_an_environment_that_is_busy_is_tried_again(store: LmdbStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.close()
    real, tries = lmdb.open, [2]

    def busy(*arguments: Any, **settings: Any) -> lmdb.Environment:
        tries[0] -= 1
        if tries[0] >= 0:
            error = lmdb.LockError("busy")
            error.code = errno.EAGAIN  # type: ignore[misc]
            raise error
        return real(*arguments, **settings)

    monkeypatch.setattr(lmdb, "open", busy)
    assert store.source_count() == 0
    store.close()
    tries[0] = 10**9
    monkeypatch.setattr(lmdb_files, "_PATIENCE", 0.05)
    started = time.monotonic()
    with pytest.raises(LedgerError, match="busy"):
        store.source_count()
    assert time.monotonic() - started < 5


class Grown:
    """The environment of a file that another process has grown since it was opened."""

    def __init__(self, real: lmdb.Environment) -> None:
        self._real = real
        self.adopted: list[int] = []

    def begin(self, **settings: Any) -> Any:
        if not self.adopted:
            raise lmdb.MapResizedError("larger by now")
        return self._real.begin(**settings)

    def set_mapsize(self, size: int) -> None:
        self.adopted.append(size)
        self._real.set_mapsize(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def test_a_size_that_grows_while_it_opens_is_taken_over(store: LmdbStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.register([plain()])
    store.close()
    real, opened = lmdb.open, list[Grown]()

    def grown(*arguments: Any, **settings: Any) -> Any:
        opened.append(Grown(real(*arguments, **settings)))
        return opened[-1]

    monkeypatch.setattr(lmdb, "open", grown)
    assert store.source_count() == 1
    assert [environment.adopted for environment in opened] == [[0]], "0 is the size that the file has"
    store.close()


def test_a_size_that_is_never_agreed_on_is_told_and_closed(store: LmdbStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.register([plain()])
    store.close()
    real, opened = lmdb.open, list[lmdb.Environment]()

    class Growing(Grown):
        """The environment of a file whose size is different at each check."""

        def begin(self, **settings: Any) -> Any:
            raise lmdb.MapResizedError("larger by now")

    def growing(*arguments: Any, **settings: Any) -> Any:
        opened.append(real(*arguments, **settings))
        return Growing(opened[-1])

    monkeypatch.setattr(lmdb, "open", growing)
    with pytest.raises(LedgerDamagedError, match=r"first pages of data\.mdb disagree on the size of this file"):
        store.source_count()
    (environment,) = opened
    with pytest.raises(lmdb.Error, match="closed"):
        environment.info()


@pytest.mark.parametrize("leads_to", ["nothing", "file"])
def test_a_link_that_leads_to_no_folder_is_named(tmp_path: Path, leads_to: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "L").symlink_to(leads_to)
    for path in (tmp_path / "L", tmp_path / "L" / "below"):
        for create in (True, False):
            with pytest.raises(
                LedgerDamagedError, match=f"found a link that leads to no folder at {tmp_path}/L; .*restore"
            ):
                LmdbStore(str(path)).open(create=create)


@pytest.mark.parametrize("name", ["data.mdb", "lock.mdb"])
def test_a_file_of_a_ledger_that_is_a_link_is_refused(store: LmdbStore, tmp_path: Path, name: str) -> None:
    store.close()
    path = Path(store.url, name)
    path.rename(tmp_path / name)
    for target in (f"{tmp_path}/{name}", name):
        path.unlink(missing_ok=True)
        path.symlink_to(target)
        with pytest.raises(UsageError, match=f"found a link to {target};"):
            store.open()


def test_no_file_of_a_ledger_takes_the_place_of_a_standard_stream_that_is_closed(tmp_path: Path) -> None:
    kept = os.dup(0)
    os.close(0)
    try:
        store = LmdbStore(str(tmp_path / "ledger"))
        store.open(create=True)
        assert os.path.realpath("/proc/self/fd/0") == os.devnull
        store.close()
    finally:
        os.dup2(kept, 0)
        os.close(kept)


@pytest.mark.parametrize("read_only", [True, False])
def test_an_environment_that_lacks_an_old_table_is_of_another_program(store: LmdbStore, read_only: bool) -> None:
    store.close()
    with lmdb.open(store.url, max_dbs=len(TABLES)) as environment, environment.begin(write=True) as txn:
        txn.drop(environment.open_db(SOURCES.encode(), txn, create=False))
    for _ in range(2):
        with pytest.raises(LedgerDamagedError, match="another program"):
            LmdbStore(store.url, read_only=read_only).open()


def test_where_the_system_does_not_say_how_much_is_mapped_none_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lmdb_environment._resident_file_bytes() > 0
    monkeypatch.setattr("builtins.open", failing(errno.ENOENT))
    assert lmdb_environment._resident_file_bytes() == 0


@pytest.mark.parametrize("found", [b"", b"x", b"-1", b"1.0"])
def test_a_format_that_is_no_number_is_of_another_program(store: LmdbStore, found: bytes) -> None:
    store._write(lambda txn: txn.put(META, KEY_FORMAT, found))
    store.close()
    with pytest.raises(LedgerDamagedError, match="another program"):
        LmdbStore(store.url).open()


def test_a_ledger_that_is_refused_is_not_left_open(store: LmdbStore) -> None:
    store._write(lambda txn: txn.put(META, KEY_FORMAT, b"9999"))
    store.close()
    with pytest.raises(LedgerVersionError, match="format 9999") as found:
        LmdbStore(store.url).open()
    assert found.value.__traceback__ is not None  # which holds all that it had opened
    assert opened_below(store.url) == []


def test_a_ledger_of_an_older_format_is_refused_with_what_to_do(store: LmdbStore) -> None:
    def without_checksum(txn: Transaction) -> None:
        txn._txn.put(KEY_FORMAT, str(FORMAT - 1).encode(), db=txn._tables[META].handle)

    store._write(without_checksum)
    store.close()
    for read_only in (False, True):
        with pytest.raises(LedgerVersionError, match=r"an older version of ledgerbeam created it.*--existing replace"):
            LmdbStore(store.url, read_only=read_only).open()


def test_a_change_of_the_mapping_waits_for_readers_and_they_for_it(store: LmdbStore) -> None:
    environment = store._open()
    opened = threading.Thread(target=environment.open_again, kwargs={"read_only": False})
    with environment.read() as txn:
        opened.start()
        time.sleep(0.05)
        late = threading.Thread(target=store.source_count)
        late.start()
        late.join(0.05)
        assert opened.is_alive()
        assert late.is_alive(), "it has begun while somebody waits to change the mapping"
        assert txn.count(META) > 0
    for thread in (opened, late):
        thread.join(10)
        assert not thread.is_alive()
    assert store.source_count() == 0


def test_an_environment_grows_by_doubling_and_gives_what_it_was_given(tmp_path: Path) -> None:
    store = LmdbStore(str(tmp_path / "ledger"), map_bytes=1 << 18)
    store.open(create=True)
    environment = store._open()
    assert environment._env.info()["map_size"] == 1 << 18
    for change in (lambda: environment._grow_map(1 << 18), lambda: environment.open_again(read_only=False)):
        change()
        environment._grow_map(1 << 18)  # another thread was faster
        assert environment._env.info()["map_size"] == 1 << 19
    store.register([plain(f"s{n}") for n in range(9000)])
    assert environment._env.info()["map_size"] > 1 << 19
    assert store.source_count() == 9000
    store.close()


def test_a_map_is_neither_grown_nor_taken_over_under_who_reads(tmp_path: Path) -> None:
    store = LmdbStore(str(tmp_path / "ledger"), map_bytes=1 << 18)
    store.open(create=True)
    environment = store._open()
    for target, args in ((environment._adopt_map, ()), (environment._grow_map, (1 << 18,))):
        changing = threading.Thread(target=target, args=args)
        with environment.read():
            changing.start()
            changing.join(0.1)
            assert changing.is_alive()
            assert environment._env.info()["map_size"] == 1 << 18
        changing.join(10)
        assert not changing.is_alive()
    assert environment._env.info()["map_size"] == 1 << 19
    store.close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_reader_whose_process_has_ended_is_gone_once_a_ledger_is_opened_beside_others(store: LmdbStore) -> None:
    reading, writing = os.pipe()
    said, saying = os.pipe()
    alive = os.fork()
    if alive == 0:
        os.close(writing)
        with store._open().read():
            os.write(saying, b"reads")
            os.read(reading, 1)
            os._exit(0)
    assert os.read(said, 5) == b"reads"
    dead = os.fork()
    if dead == 0:
        with store._open().read():
            os._exit(0)
    os.waitpid(dead, 0)
    environment = store._open()
    before = environment._env.readers()
    environment.open_again(read_only=False)
    readers = environment._env.readers()
    os.close(writing)
    os.waitpid(alive, 0)
    for descriptor in (reading, said, saying):
        os.close(descriptor)
    assert [f"{pid} " in before for pid in (alive, dead)] == [True, True]
    assert [f"{pid} " in readers for pid in (alive, dead)] == [True, False]


def test_memory_of_pages_is_given_back_when_there_is_much(store: LmdbStore, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = store._open()
    first, resident = environment._env, environment._resident
    monkeypatch.setattr(lmdb_environment, "_resident_file_bytes", lambda: resident + (32 << 20))
    environment.trim()
    assert environment._env is first
    monkeypatch.setattr(lmdb_environment, "_resident_file_bytes", lambda: resident + (32 << 20) + 1)
    with environment.read():
        environment.trim()  # would wait forever
    assert environment._env is first
    environment.trim()
    assert environment._env is not first
    assert not environment.read_only
    store.register([plain()])
    assert store.commit([leaf_of(plain())]).completed == [plain().id]


def test_what_is_held_stays_as_it_was(store: LmdbStore) -> None:
    store.register([plain()])
    environment = store._open()
    with environment.read() as txn:
        store.register([plain("b")])
        assert [len(page) for page in txn.pages(SOURCES)] == [1]
        assert [len(page) for page in row_pages(environment, SOURCES)] == [2]
        assert txn.count(SOURCES) == 1
    environment.open_again(read_only=False)  # nothing is left that it would wait for


VIEWS: dict[str, Callable[[LmdbStore], object]] = {
    "failures": lambda store: list(store.failures()),
    "failed_mask": lambda store: store.failed_mask([plain().id]),
    "ordered outputs": lambda store: list(store.outputs()),
    "outputs": lambda store: list(store.outputs(ordered=False)),
    "sources": lambda store: list(store.sources()),
    "source ids": lambda store: list(store.source_ids()),
    "completed": lambda store: store.completed_mask([plain().id, plain("b").id]),
}


@pytest.mark.parametrize("view", VIEWS)
def test_large_reads_give_memory_back_as_they_go(store: LmdbStore, monkeypatch: pytest.MonkeyPatch, view: str) -> None:
    store.register([plain(), plain("b")])
    store.commit([leaf_of(plain("b"))], [failure_of(plain())])
    expected = VIEWS[view](store)
    monkeypatch.setattr(lmdb_environment, "_TRIM_BYTES", -(1 << 60))  # any memory is much
    environment = store._open()
    first = environment._env
    assert VIEWS[view](LmdbStore(store.url)) == expected
    assert environment._env is not first


def test_an_environment_stays_open_until_its_last_user_gives_it_back(tmp_path: Path) -> None:
    path = str(tmp_path / "ledger")
    with pytest.raises(LedgerNotFoundError):
        acquire(path, read_only=True, create=False)
    one = acquire(path, read_only=False, create=True)
    two = acquire(path, read_only=True, create=False)
    assert (two, one.read_only) == (one, False)
    release(one)
    with two.read() as txn:
        assert txn.count(META) > 0
    release(two)
    with pytest.raises(LedgerError, match="closed"), two.read():
        pass
    three = acquire(path, read_only=True, create=False)
    assert three is not one
    assert three.read_only
    assert acquire(path, read_only=False, create=False) is three
    assert not three.read_only
    for _ in range(2):
        release(three)


def test_a_store_of_an_environment_that_was_replaced_does_not_close_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    old, new = LmdbStore(str(path)), LmdbStore(str(path))
    old.open(create=True)
    path.rename(tmp_path / "away")
    new.open(create=True)
    old.close()
    new.register([plain()])
    assert new.source_count() == 1
    new.close()


MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:40 / /mnt/home rw shared:9 - nfs4 server:/home rw,vers=4.2
31 30 0:41 / /mnt/home/local rw - xfs /dev/vdb rw
32 22 0:42 / /mnt/with\\040space rw - fuse.sshfs host:/ rw
33 22 0:43 / /mnt/over rw - lustre mds:/fs rw
34 22 0:44 / /mnt/over rw - tmpfs tmpfs rw
broken line
"""


@each(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/mnt/homework", "ext4"),
        ("/mnt/home", "nfs4"),
        ("/mnt/home/me/ledger", "nfs4"),
        ("/mnt/home/local/ledger", "xfs"),
        ("/mnt/with space/x", "fuse.sshfs"),
        ("/mnt/over/x", "tmpfs"),
    ],
)
def test_the_innermost_and_newest_mount_decides(path: str, kind: str) -> None:
    assert filesystem_type(path, MOUNTS) == kind


def test_the_innermost_mount_decides_in_whatever_order_they_are_listed() -> None:
    lines = MOUNTS.splitlines()[:2]
    assert {filesystem_type("/mnt/home/x", "\n".join(order)) for order in (lines, lines[::-1])} == {"nfs4"}
    assert filesystem_type("/x", "") is None


@each(
    ("line", "kind"),
    [
        ("1 2 3:4 / / rw - nfs4 server", "nfs4"),
        ("1 2 3:4 / / - nfs4 server", "nfs4"),
        ("1 2 3:4 / - nfs4 server", None),
        ("- nfs4 server", None),
        ("1 2 3:4 / / rw nfs4 server", None),
    ],
)
def test_a_line_that_does_not_say_what_is_mounted_where_is_passed_over(line: str, kind: str | None) -> None:
    assert filesystem_type("/x", line) == kind


def test_a_network_filesystem_is_refused_with_advice() -> None:
    for path in ("/mnt/home/me/ledger", "/mnt/with space/x"):
        with pytest.raises(UsageError, match=r"network filesystem \(.*local disk"):
            refuse_network_filesystem(path, MOUNTS)
    refuse_network_filesystem("/mnt/home/local/ledger", MOUNTS)
    refuse_network_filesystem("/tmp/ledger")


def test_where_nothing_says_what_is_mounted_nothing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmdb_files, "MOUNTINFO", str(tmp_path / "mountinfo"))
    refuse_network_filesystem("/")
    (tmp_path / "mountinfo").write_text("22 1 0:40 / / rw - nfs4 server:/ rw\n", encoding="utf-8")
    with pytest.raises(UsageError, match="nfs4"):
        refuse_network_filesystem("/")
    with pytest.raises(UsageError, match=f"ledger {tmp_path}/ledger: it is on a network filesystem"):
        LmdbStore(str(tmp_path / "ledger")).open(create=True)
    assert not (tmp_path / "ledger").exists()
