"""The folders of runs: only folders that the ledger created and marked are removed, and locks show live runs."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.errors import DiskFullError, StorageError
from ledgerbeam.ledger.worker.run_folders import MARKER, Launcher, RunFolders, file_errors

OURS, OTHERS = "ab" * 16, "cd" * 16

LAUNCHER = """
import sys, time
from ledgerbeam.ledger.worker.run_folders import RunFolders

with RunFolders(sys.argv[1], sys.argv[2]).enter(sys.argv[3]) as folder:
    open(folder.path + "/left", "w").close()
    print("entered", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def folders(tmp_path: Path) -> RunFolders:
    return RunFolders(str(tmp_path), OURS)


def start(folder: Path, run: str, ledger: str = OURS) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", LAUNCHER, str(folder), ledger, run]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "entered\n"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_a_run_has_a_folder_for_itself_while_it_lasts(folders: RunFolders, tmp_path: Path) -> None:
    with folders.enter("000001") as folder:
        path = Path(folder.path)
        assert path == tmp_path / "run" / "000001"
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert [entry.name for entry in path.iterdir()] == [MARKER]
        (path / "pass").mkdir()
        (path / "pass" / "file").touch()
        (path / "link").symlink_to(tmp_path)
        assert folders.lives("000001")
        assert folders.remove_dead() == [Launcher("000001", os.getpid(), lives=True)]
        folder.check()
    assert list((tmp_path / "run").iterdir()) == []
    assert tmp_path.is_dir()
    assert not folders.lives("000001")


def test_a_dead_launcher_is_told_by_its_lock_and_what_it_left_is_removed(folders: RunFolders, tmp_path: Path) -> None:
    dead, alive = start(tmp_path, "000001"), start(tmp_path, "000002")
    kill(dead)
    assert folders.launchers() == [Launcher("000001", dead.pid, lives=False), Launcher("000002", alive.pid, lives=True)]
    assert folders.remove_dead() == [Launcher("000002", alive.pid, lives=True)]
    assert [entry.name for entry in (tmp_path / "run").iterdir()] == ["000002"]
    kill(alive)


def no_marker(entry: Path, _: Path) -> None:
    entry.mkdir()
    (entry / "mine").write_text("precious")


def link(entry: Path, victim: Path) -> None:
    entry.symlink_to(victim)


def a_file(entry: Path, _: Path) -> None:
    entry.write_text("precious", encoding="utf-8")


def another_ledgers(entry: Path, _: Path) -> None:
    no_marker(entry, entry)
    (entry / MARKER).write_text(json.dumps({"ledger": OTHERS, "run": entry.name, "pid": 1}))


def another_runs(entry: Path, _: Path) -> None:
    no_marker(entry, entry)
    (entry / MARKER).write_text(json.dumps({"ledger": OURS, "run": "000077", "pid": 1}))


def linked_marker(entry: Path, victim: Path) -> None:
    no_marker(entry, entry)
    (entry / MARKER).symlink_to(victim / MARKER)


def fifo_marker(entry: Path, _: Path) -> None:
    no_marker(entry, entry)
    os.mkfifo(entry / MARKER)


def folder_marker(entry: Path, _: Path) -> None:
    no_marker(entry, entry)
    (entry / MARKER).mkdir()


def garbage_marker(entry: Path, _: Path) -> None:
    no_marker(entry, entry)
    (entry / MARKER).write_bytes(b"[" * 3000)


def list_marker(entry: Path, _: Path) -> None:
    no_marker(entry, entry)
    (entry / MARKER).write_bytes(b"[]")


PLANTED = [no_marker, link, a_file, another_ledgers, another_runs, linked_marker, fifo_marker, folder_marker]
PLANTED += [garbage_marker, list_marker]


@pytest.mark.parametrize("make", PLANTED)
def test_nothing_is_removed_that_the_ledger_did_not_make(
    folders: RunFolders, tmp_path: Path, make: Callable[[Path, Path], None]
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "mine").write_text("precious")
    (victim / MARKER).write_text(json.dumps({"ledger": OURS, "run": "000001", "pid": 1}))
    runs = tmp_path / "run"
    runs.mkdir()
    make(runs / "000001", victim)
    os.utime(runs / "000001", (0, 0), follow_symlinks=False)
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    assert folders.remove_dead() == []
    with pytest.raises(StorageError, match=r"000001.*nothing was changed"), folders.enter("000001"):
        pass
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before
    with folders.enter("000002"):  # and it does not stand in the way of others
        pass


@pytest.mark.parametrize("what", ["link", "file"])
def test_the_folder_of_all_runs_is_a_folder(folders: RunFolders, tmp_path: Path, what: str) -> None:
    with RunFolders(str(tmp_path / "victim"), OURS).enter("000001"):
        kill(start(tmp_path / "victim", "000002"))
    if what == "link":
        (tmp_path / "run").symlink_to(tmp_path / "victim" / "run")
    else:
        (tmp_path / "run").touch()
    with pytest.raises(StorageError, match="found a link or a file"):
        folders.remove_dead()
    with pytest.raises(StorageError, match="found a link or a file"), folders.enter("000003"):
        pass
    assert (tmp_path / "victim" / "run" / "000002" / "left").exists()


def test_an_empty_folder_that_a_killed_launcher_left_is_taken(folders: RunFolders, tmp_path: Path) -> None:
    (tmp_path / "run" / "000001").mkdir(parents=True)
    with folders.enter("000001") as folder:
        assert folder.is_in_place()


def test_a_launcher_is_alone_once_all_others_have_ended(folders: RunFolders, tmp_path: Path) -> None:
    other = start(tmp_path, "000001", OTHERS)  # an invisible marker, like a marker of another user
    with folders.enter("000002") as folder, folder.alone() as alone:
        assert not alone
    kill(other)
    with folders.enter("000003") as folder, folder.alone() as alone:
        assert alone
        late = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, str(tmp_path), OURS, "000004"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        time.sleep(1)
        assert not (tmp_path / "run" / "000004").exists(), "it has begun while another one tidies up"
    assert late.stdout is not None
    assert late.stdout.readline() == "entered\n"
    kill(late)


def test_a_launcher_is_alone_if_none_of_another_ledger_is_at_work_either(folders: RunFolders, tmp_path: Path) -> None:
    with folders.enter("000001") as folder, RunFolders(str(tmp_path), OTHERS).enter("000002"), folder.alone() as alone:
        assert not alone
    with folders.enter("000003") as folder, folder.alone() as alone:
        assert alone


def test_none_begins_while_another_one_tidies_up(folders: RunFolders, tmp_path: Path) -> None:
    begun = threading.Event()

    def begin() -> None:
        with RunFolders(str(tmp_path), OURS).enter("000002"):
            begun.set()

    late = threading.Thread(target=begin)
    with folders.enter("000001") as folder, folder.alone() as alone:
        assert alone
        late.start()
        assert not begun.wait(0.1)
    late.join(10)
    assert begun.is_set()


@pytest.mark.parametrize("gone", ["run", "run/000001", f"run/000001/{MARKER}"])
def test_a_launcher_whose_presence_was_removed_cannot_say_that_it_is_alone(
    folders: RunFolders, tmp_path: Path, gone: str
) -> None:
    with folders.enter("000001") as folder:
        (tmp_path / gone).rename(tmp_path / "away")
        with pytest.raises(StorageError, match="removed or replaced during the run"):
            folder.check()
        with folder.alone() as alone:
            assert not alone
    assert (tmp_path / "away").exists(), "it is not the run's any more"


def test_a_run_removes_neither_its_folder_that_was_moved_nor_what_lies_in_its_place(
    folders: RunFolders, tmp_path: Path
) -> None:
    with folders.enter("000001") as folder:
        path = Path(folder.path)
        (path / "left").touch()
        path.rename(tmp_path / "moved")
        path.mkdir()
    assert (tmp_path / "moved" / "left").exists()
    assert path.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_no_permission_is_a_typed_error(folders: RunFolders, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StorageError, match="no permission"), folders.enter("000001"):
            pass
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_a_marker_of_another_user_is_not_ours(folders: RunFolders, tmp_path: Path) -> None:
    no_marker(tmp_path / "run", tmp_path)
    no_marker(tmp_path / "run" / "000001", tmp_path)
    marker = tmp_path / "run" / "000001" / MARKER
    marker.write_text(json.dumps({"ledger": OURS, "run": "000001", "pid": 1}))
    assert folders.launchers() == [Launcher("000001", 1, lives=False)]
    os.chown(marker, 65534, -1)
    assert folders.remove_dead() == []
    assert (tmp_path / "run" / "000001" / "mine").exists()


def test_a_removal_that_is_cut_short_leaves_the_marker(
    folders: RunFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill(start(tmp_path, "000001"))
    listdir, real, removed = os.listdir, os.unlink, []

    def marker_first(folder: Any) -> list[str]:
        return sorted(listdir(folder), key=lambda name: name != MARKER)

    def unlink(name: str, **where: Any) -> None:
        removed.append(name)
        real(name, **where)

    monkeypatch.setattr(os, "listdir", marker_first)
    monkeypatch.setattr(os, "unlink", unlink)
    folders.remove_dead()
    assert removed == ["left", MARKER]


def test_a_marker_says_whose_it_is_and_is_for_its_user_alone(folders: RunFolders) -> None:
    with folders.enter("000001") as folder:
        marker = Path(folder.path, MARKER)
        assert stat.S_IMODE(marker.stat().st_mode) == 0o600
        assert json.loads(marker.read_bytes()) == {"ledger": OURS, "run": "000001", "pid": os.getpid()}


def test_nobody_sees_a_marker_that_is_not_locked(folders: RunFolders, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    rename = os.rename

    def renamed(*names: Any, **folders_of: Any) -> None:
        rename(*names, **folders_of)
        seen.extend(folders.launchers())

    monkeypatch.setattr(os, "rename", renamed)
    with folders.enter("000001"):
        assert [found.lives for found in seen] == [True]


def test_each_of_several_launchers_is_told_apart(folders: RunFolders) -> None:
    assert (folders.launchers(), folders.remove_dead(), folders.lives("000001")) == ([], [], False)
    with folders.enter("000003"), folders.enter("000001"), folders.enter("000002"):
        assert [launcher.run for launcher in folders.launchers()] == ["000001", "000002", "000003"]
        assert [folders.lives(run) for run in ("000001", "000003", "000004")] == [True, True, False]
        assert len(folders.remove_dead()) == 3
    assert folders.launchers() == []


def test_a_marker_without_a_number_is_of_a_launcher_all_the_same(folders: RunFolders, tmp_path: Path) -> None:
    for run, pid in (("000001", "x"), ("000002", 7)):
        (tmp_path / "run" / run).mkdir(parents=True)
        (tmp_path / "run" / run / MARKER).write_text(json.dumps({"ledger": OURS, "run": run, "pid": pid}))
    assert folders.launchers() == [Launcher("000001", 0, lives=False), Launcher("000002", 7, lives=False)]
    with open(tmp_path / "run" / "000001" / MARKER, "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert folders.launchers()[0] == Launcher("000001", 0, lives=True)
        assert folders.remove_dead() == [Launcher("000001", 0, lives=True)]


def test_two_that_look_at_once_do_not_take_each_other_for_a_launcher(folders: RunFolders, tmp_path: Path) -> None:
    (tmp_path / "run" / "000001").mkdir(parents=True)
    marker = tmp_path / "run" / "000001" / MARKER
    marker.write_text(json.dumps({"ledger": OURS, "run": "000001", "pid": 1}))
    with open(marker, "rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        assert not folders.lives("000001")


def test_what_cannot_be_removed_keeps_the_marker_for_the_next_run(
    folders: RunFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill(start(tmp_path, "000001"))
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        (tmp_path / "run" / "000001" / "stays").mkdir()
        assert folders.remove_dead() == []
        assert [launcher.run for launcher in folders.launchers()] == ["000001"]
    assert folders.remove_dead() == []
    assert os.listdir(tmp_path / "run") == []


def test_a_folder_of_runs_leaves_nothing_open(folders: RunFolders, tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    kill(start(tmp_path, "000002"))
    no_marker(tmp_path / "run" / "000003", tmp_path)
    for _ in range(3):
        with folders.enter("000001"):
            folders.lives("000001")
            folders.remove_dead()
        with pytest.raises(StorageError), folders.enter("000003"):
            pass
    assert len(os.listdir("/proc/self/fd")) <= before  # one of another object may have been closed meanwhile


def test_no_folder_of_runs_is_no_other_folder(
    folders: RunFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    kill(start(tmp_path / "elsewhere", "000001"))
    monkeypatch.chdir(tmp_path / "elsewhere" / "run")
    assert folders.launchers() == []
    assert folders.remove_dead() == []
    assert os.listdir() == ["000001"]


def test_launchers_are_listed_as_their_runs_began(folders: RunFolders, tmp_path: Path) -> None:
    runs = ["1000000", "999999", "000002", "000010", "000009"]
    for run in runs:
        (tmp_path / "run" / run).mkdir(parents=True)
        (tmp_path / "run" / run / MARKER).write_text(json.dumps({"ledger": OURS, "run": run, "pid": 1}))
    assert [found.run for found in folders.launchers()] == ["000002", "000009", "000010", "999999", "1000000"]


def test_a_launcher_is_not_alone_in_a_folder_of_runs_that_was_replaced(folders: RunFolders, tmp_path: Path) -> None:
    with folders.enter("000001") as folder:
        (tmp_path / "other").mkdir()
        os.rename(tmp_path / "run" / "000001", tmp_path / "other" / "000001")
        (tmp_path / "run").rmdir()
        os.rename(tmp_path / "other", tmp_path / "run")
        assert folder.is_in_place()
        with folder.alone() as is_alone:
            assert not is_alone


def test_what_fails_while_a_folder_is_made_leaves_nothing_open(
    folders: RunFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "broken")

    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refuse)
        with pytest.raises(StorageError), folders.enter("000001"):
            pass
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_folder_that_cannot_be_opened_is_not_called_a_link(
    folders: RunFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "broken")

    (tmp_path / "run").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(StorageError) as caught:
            folders.launchers()
    assert "link" not in str(caught.value)


@pytest.mark.parametrize(
    ("number", "expected"), [(errno.ENOSPC, DiskFullError), (errno.EDQUOT, DiskFullError), (errno.EIO, StorageError)]
)
def test_what_a_disk_refuses_is_told_with_the_file(number: int, expected: type[StorageError]) -> None:
    with pytest.raises(StorageError, match="a/b: cannot be read") as caught, file_errors("a/b", "read"):
        raise OSError(number, "refused")
    assert type(caught.value) is expected
