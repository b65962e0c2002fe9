"""Opening a ledger: other content in its place, and problems of the place."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
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
from ledgerbeam.ledger.lmdb.data_file import data_opened
from ledgerbeam.ledger.lmdb.files import open_environment
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.lmdb.tables import KEY_FORMAT, META
from ledgerbeam.ledger.opening import open_local_store
from tests.ledger.builders import leaf_of, plain
from tests.ledger.processes import run

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


def test_a_ledger_of_a_newer_version_is_an_error_that_says_both(tmp_path: Path) -> None:
    path = str(tmp_path / "ledger")
    store = LmdbStore(path)
    store.open(create=True)
    store._write(lambda txn: txn.put(META, KEY_FORMAT, b"7"))
    store.close()
    for read_only in (True, False):
        with pytest.raises(LedgerVersionError, match=r"format 7.*reads format 3"):
            open_local_store(path, create=False, read_only=read_only)


def test_stores_of_one_process_share_an_environment_until_the_last_is_closed(tmp_path: Path) -> None:
    path = str(tmp_path / "ledger")
    one = open_local_store(path, create=True)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "ledger")
    two = open_local_store(str(link), create=False)
    looking = open_local_store(path, create=False, read_only=True)
    one.register([plain()])
    one.close()
    two.commit([leaf_of(plain())])
    two.close()
    assert looking.completed_count() == 1
    looking.close()
    assert os.path.realpath(path) not in lmdb_environment._open


def test_looking_first_does_not_keep_from_writing(store: LmdbStore) -> None:
    store.close()
    looking = open_local_store(store.url, create=False, read_only=True)
    assert looking.completed_count() == 0
    store.register([plain()])
    store.commit([leaf_of(plain())])
    assert looking.completed_count() == 1
    looking.close()


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
    late = plain("late")
    store.register([late])
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


def test_what_is_opened_beside_a_ledger_while_that_is_opened_is_not_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_files_of_a_ledger_that_others_have_open_may_be_closed(tmp_path: Path) -> None:
    open_local_store(str(tmp_path / "ledger"), create=True).close()
    with (tmp_path / "ledger" / "data.mdb").open("rb"):
        store = open_local_store(str(tmp_path / "ledger"), create=False)
    store.register([plain()])
