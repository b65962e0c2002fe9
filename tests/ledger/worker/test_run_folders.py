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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.errors import DiskFullError, StorageError
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.model.identity import node_id
from ledgerbeam.ledger.model.task import Source
from ledgerbeam.ledger.worker.inflight import InflightMarks
from ledgerbeam.ledger.worker.run_folders import (
    MARKER,
    CommitNotes,
    Launcher,
    RunFolders,
    TaskBudget,
    committed_notes,
    file_errors,
)
from ledgerbeam.pipelines.runners.job_files import load_rows, read_text, touch
from tests.disk import no_larger_than
from tests.ledger.builders import filtered_leaf, leaf_of, plain
from tests.ledger.stores import several

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


def marker_of(run: str, ledger: str = OURS, pid: object = 1) -> str:
    return json.dumps({"ledger": ledger, "run": run, "pid": pid})


def a_folder(entry: Path) -> Path:
    """Make a folder with a file of somebody; return where its marker would be."""
    entry.mkdir(parents=True)
    (entry / "mine").write_text("precious")
    return entry / MARKER


PLANTED: dict[str, Callable[[Path, Path], object]] = {
    "no marker": lambda entry, _: a_folder(entry),
    "a link": lambda entry, victim: entry.symlink_to(victim),
    "a file": lambda entry, _: entry.write_text("precious"),
    "another ledger's": lambda entry, _: a_folder(entry).write_text(marker_of(entry.name, OTHERS)),
    "another run's": lambda entry, _: a_folder(entry).write_text(marker_of("000077")),
    "a marker that is a link": lambda entry, victim: a_folder(entry).symlink_to(victim / MARKER),
    "a marker that is a fifo": lambda entry, _: os.mkfifo(a_folder(entry)),
    "a marker that is a folder": lambda entry, _: a_folder(entry).mkdir(),
    "garbage": lambda entry, _: a_folder(entry).write_bytes(b"[" * 3000),
    "a list": lambda entry, _: a_folder(entry).write_bytes(b"[]"),
}


@pytest.mark.parametrize("what", PLANTED)
def test_what_others_made_stays(folders: RunFolders, tmp_path: Path, what: str) -> None:
    victim = tmp_path / "victim"
    a_folder(victim).write_text(marker_of("000001"))
    runs = tmp_path / "run"
    runs.mkdir()
    PLANTED[what](runs / "000001", victim)
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
def test_a_launcher_whose_presence_was_removed_is_not_alone(folders: RunFolders, tmp_path: Path, gone: str) -> None:
    with folders.enter("000001") as folder:
        (tmp_path / gone).rename(tmp_path / "away")
        with pytest.raises(StorageError, match="removed or replaced during the run"):
            folder.check()
        with folder.alone() as alone:
            assert not alone
    assert (tmp_path / "away").exists(), "it is not the run's any more"


def test_a_run_removes_neither_its_moved_folder_nor_what_is_in_its_place(folders: RunFolders, tmp_path: Path) -> None:
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
    marker = a_folder(tmp_path / "run" / "000001")
    marker.write_text(marker_of("000001"))
    assert folders.launchers() == [Launcher("000001", 1, lives=False)]
    os.chown(marker, 65534, -1)
    assert folders.remove_dead() == []
    assert (tmp_path / "run" / "000001" / "mine").exists()


def test_the_marker_is_removed_last(folders: RunFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        a_folder(tmp_path / "run" / run).write_text(marker_of(run, pid=pid))
    assert folders.launchers() == [Launcher("000001", 0, lives=False), Launcher("000002", 7, lives=False)]
    with open(tmp_path / "run" / "000001" / MARKER, "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert folders.launchers()[0] == Launcher("000001", 0, lives=True)
        assert folders.remove_dead() == [Launcher("000001", 0, lives=True)]


def test_two_that_look_at_once_do_not_take_each_other_for_a_launcher(folders: RunFolders, tmp_path: Path) -> None:
    marker = a_folder(tmp_path / "run" / "000001")
    marker.write_text(marker_of("000001"))
    with open(marker, "rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        assert not folders.lives("000001")


def test_failed_removals_keep_a_marker(folders: RunFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    a_folder(tmp_path / "run" / "000003")
    for _ in range(3):
        with folders.enter("000001"):
            folders.lives("000001")
            folders.remove_dead()
        with pytest.raises(StorageError), folders.enter("000003"):
            pass
    assert len(os.listdir("/proc/self/fd")) <= before  # one of another object may have been closed meanwhile


def test_a_missing_folder_is_no_other(folders: RunFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    kill(start(tmp_path / "elsewhere", "000001"))
    monkeypatch.chdir(tmp_path / "elsewhere" / "run")
    assert folders.launchers() == []
    assert folders.remove_dead() == []
    assert os.listdir() == ["000001"]


def test_launchers_are_listed_as_their_runs_began(folders: RunFolders, tmp_path: Path) -> None:
    runs = ["1000000", "999999", "000002", "000010", "000009"]
    for run in runs:
        a_folder(tmp_path / "run" / run).write_text(marker_of(run))
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


def refuse(*_: object, **__: object) -> None:
    raise OSError(errno.EIO, "broken")


def test_a_folder_that_cannot_be_made_leaves_nothing_open(folders: RunFolders, monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refuse)
        with pytest.raises(StorageError), folders.enter("000001"):
            pass
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_broken_folder_is_no_link(folders: RunFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


RUN = "run"


def note(folder: Path, *tasks: tuple[Source, int]) -> Path:
    """Note tasks as one process; returns its file."""
    folder.mkdir(exist_ok=True)
    before = set(folder.iterdir())
    notes = CommitNotes(str(folder))
    for source, ordinal in tasks:
        notes.add(source.id, node_id(source.id, ((ordinal, 3),)), f"{source.url} {ordinal}")
    notes.close()
    (made,) = set(folder.iterdir()) - before
    return made


@pytest.fixture
def sources(store: LmdbStore) -> list[Source]:
    return several(store, *"abc")


def test_a_note_without_a_record_is_passed_over(tmp_path: Path, store: LmdbStore, sources: list[Source]) -> None:
    whole, part, none = sources
    everything = [(source, ordinal) for source in (whole, part, none, whole, part) for ordinal in range(3)]
    note(tmp_path / RUN, *dict.fromkeys(everything))
    store.commit([leaf_of(whole, ((ordinal, 3),)) for ordinal in range(3)])
    store.commit([leaf_of(part, ((0, 3),)), filtered_leaf(part, ((2, 3),))])
    found = list(committed_notes(str(tmp_path / RUN), store))
    assert found == [f"{whole.url} {ordinal}" for ordinal in range(3)] + [f"{part.url} {n}" for n in (0, 2)]


def test_notes_of_sources_and_processes_all_count(tmp_path: Path, store: LmdbStore, sources: list[Source]) -> None:
    one, other, _ = sources
    note(tmp_path / RUN, (one, 0), (other, 0), (one, 1), (other, 1))
    note(tmp_path / RUN, (one, 2), (other, 2))
    store.commit([leaf_of(source, ((ordinal, 3),)) for source in (one, other) for ordinal in (0, 2)])
    expected = {f"{source.url} {ordinal}" for source in (one, other) for ordinal in (0, 2)}
    found = list(committed_notes(str(tmp_path / RUN), store))
    assert (set(found), len(found)) == (expected, len(expected))


def test_notes_of_a_replaced_source_are_passed_over(tmp_path: Path, store: LmdbStore, sources: list[Source]) -> None:
    note(tmp_path / RUN, (sources[0], 0), (sources[1], 0))
    store.commit([leaf_of(source, ((0, 3),)) for source in sources[:2]])
    store.register([plain("a", "2")])
    assert list(committed_notes(str(tmp_path / RUN), store)) == [f"{sources[1].url} 0"]


def test_notes_come_in_the_order_of_their_files(
    tmp_path: Path, store: LmdbStore, sources: list[Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {note(tmp_path / RUN, (sources[0], ordinal)).name: f"{sources[0].url} {ordinal}" for ordinal in range(3)}
    store.commit([leaf_of(sources[0], ((ordinal, 3),)) for ordinal in range(3)])
    for names in (sorted(made), sorted(made, reverse=True)):
        monkeypatch.setattr(os, "listdir", lambda _, names=names: names)
        assert list(committed_notes(str(tmp_path / RUN), store)) == [made[name] for name in sorted(made)]


def test_a_task_that_was_noted_again_is_told_of_once(tmp_path: Path, store: LmdbStore, sources: list[Source]) -> None:
    whole, part, _ = sources
    note(tmp_path / RUN, (whole, 0), (whole, 1), (part, 0), (whole, 0), (part, 0))
    note(tmp_path / RUN, (whole, 1), (part, 0))
    store.commit([leaf_of(whole, ((ordinal, 3),)) for ordinal in range(3)])
    store.commit([leaf_of(part, ((0, 3),))])
    found = sorted(committed_notes(str(tmp_path / RUN), store))
    assert found == [f"{whole.url} 0", f"{whole.url} 1", f"{part.url} 0"]


def test_a_note_that_a_kill_cut_short_anywhere_is_none(tmp_path: Path, store: LmdbStore, sources: list[Source]) -> None:
    path = note(tmp_path / RUN, (sources[0], 0), (sources[0], 1))
    store.commit([leaf_of(sources[0], ((0, 3),))])
    data = path.read_bytes()
    first = len(data) // 2  # both are of the same length
    for length in range(len(data)):
        path.write_bytes(data[:length])
        assert list(committed_notes(str(tmp_path / RUN), store)) == [f"{sources[0].url} 0"] * (length >= first)


def test_a_note_that_is_written_in_pieces_is_whole(tmp_path: Path, store: LmdbStore, sources: list[Source]) -> None:
    class Slow:
        """A file that takes a few bytes at a time."""

        def __init__(self, path: Path) -> None:
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - closed by the notes

        def write(self, data: memoryview) -> int:
            return self._file.write(data[:7])

        def close(self) -> None:
            self._file.close()

    path = note(tmp_path / RUN)
    notes = CommitNotes(str(tmp_path / RUN))
    notes.close()
    notes._file = Slow(path)  # type: ignore[assignment]
    notes.add(sources[0].id, node_id(sources[0].id, ((0, 3),)), "x" * 1000)
    notes.close()
    store.commit([leaf_of(sources[0], ((0, 3),))])
    assert list(committed_notes(str(tmp_path / RUN), store)) == ["x" * 1000]


def test_a_note_is_in_its_file_before_the_call_returns(tmp_path: Path, store: LmdbStore, sources: list[Source]) -> None:
    (tmp_path / RUN).mkdir()
    notes = CommitNotes(str(tmp_path / RUN))
    notes.add(sources[0].id, node_id(sources[0].id, ((0, 3),)), "noted")
    store.commit([leaf_of(sources[0], ((0, 3),))])
    assert list(committed_notes(str(tmp_path / RUN), store)) == ["noted"]
    notes.close()
    notes.close()


def test_other_files_are_no_notes_and_notes_are_not_shared(
    tmp_path: Path, store: LmdbStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = note(tmp_path / RUN)
    assert path.name.startswith(f"{os.getpid()}-")
    (tmp_path / RUN / "1.inflight").write_bytes(b"no pickle")
    assert list(committed_notes(str(tmp_path / RUN), store)) == []
    monkeypatch.setattr(os, "urandom", lambda count: bytes.fromhex(path.stem.partition("-")[2]))
    with pytest.raises(StorageError, match=r"\.committed: cannot be written"):
        CommitNotes(str(tmp_path / RUN))


def test_notes_that_cannot_be_read_are_named(tmp_path: Path, store: LmdbStore) -> None:
    (tmp_path / RUN / "1.committed").mkdir(parents=True)
    with pytest.raises(StorageError, match=r"1\.committed: cannot be read .*run the same command"):
        list(committed_notes(str(tmp_path / RUN), store))


ONE, OTHER = (Source(f"/in/{name}.jsonl", 1, "1") for name in "ab")


def test_workers_take_what_is_left_and_no_more(tmp_path: Path) -> None:
    budget = TaskBudget.below(str(tmp_path))
    budget.make(1200)
    assert budget.left() == 1200
    assert [budget.claim(tasks) for tasks in (1000, 150, 0, 60, 1)] == [1000, 150, 0, 50, 0]
    assert budget.left() == 0


def test_a_budget_is_made_once(tmp_path: Path) -> None:
    budget = TaskBudget.below(str(tmp_path))
    budget.make(3)
    with pytest.raises(StorageError, match="task-budget: cannot be written"):
        budget.make(4)
    assert budget.left() == 3


def test_two_workers_do_not_take_the_same_task(tmp_path: Path) -> None:
    budget, granted = TaskBudget.below(str(tmp_path)), list[int]()
    budget.make(1)
    with open(budget.path, "r+b") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        thread = threading.Thread(target=lambda: granted.append(budget.claim(1)))
        thread.start()
        thread.join(0.1)
        assert granted == []
        other.write(bytes(8))
    thread.join()
    assert granted == [0]


def write_note(folder: Path) -> None:
    notes = CommitNotes(str(folder))
    try:
        notes.add(b"s", b"n", "summary")
    finally:
        notes.close()


WRITERS: dict[str, Callable[[Path], object]] = {
    r"run/\d+-\w+\.inflight": lambda folder: InflightMarks(str(folder)).register(),
    r"run/\d+-\w+\.committed": write_note,
    "run/task-budget": lambda folder: TaskBudget.below(str(folder)).make(3),
    "run/traceback": lambda folder: touch(str(folder), "traceback", "text"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_that_cannot_be_written_is_named_with_a_remedy(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with no_larger_than(0), pytest.raises(StorageError, match=rf"{name}: cannot be written \(File too.*run the same"):
        WRITERS[name](folder)


IN_NO_FOLDER: dict[str, Callable[[Path], object]] = {
    r"file/\d+-\w+\.committed: cannot be written": lambda folder: CommitNotes(str(folder)),
    "file: cannot be written": lambda folder: InflightMarks(str(folder)).register(),
    "file/task-budget: cannot be written": lambda folder: TaskBudget.below(str(folder)).claim(1),
    "file/task-budget: cannot be read": lambda folder: TaskBudget.below(str(folder)).left(),
    "file/wave: cannot be read": lambda folder: list(load_rows(str(folder / "wave"))),
    "file/done: cannot be read": lambda folder: read_text(str(folder), "done"),
}


@pytest.mark.parametrize("message", IN_NO_FOLDER)
def test_a_folder_that_is_none_is_an_error_of_the_file_that_is_needed(tmp_path: Path, message: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=rf"{message} \(.*run the same command"):
        IN_NO_FOLDER[message](tmp_path / "file")
