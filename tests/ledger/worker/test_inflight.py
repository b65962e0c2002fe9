from __future__ import annotations

import fcntl
import json
import os
import pickle
import shutil
import signal
import stat
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgerbeam.errors import StorageError
from ledgerbeam.ledger.model.rows import Mark
from ledgerbeam.ledger.model.task import Task
from ledgerbeam.ledger.worker.inflight import DeadWorker, InflightMarks, dead_marks, has_tasks_in_work
from tests.disk import no_larger_than
from tests.ledger.builders import plain
from tests.ledger.processes import start

# Python 3.12 and later warn of every fork beside threads; forks are tested here.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

TASK = Task(plain("a"), 0, 10, ((0, 2),))
OTHER = Task(plain("b"), 5, 9, ((1, 3),))

WORKER = """
marks = InflightMarks(sys.argv[1])
marks.register()
print("registered", flush=True)
sys.stdin = None
with marks.working_on([Task(plain("b"), 5, 9, ((1, 3),))]):
    with marks.working_on([Task(plain("a"), 0, 10, ((0, 2),))]):
        print("working", flush=True)
        time.sleep(float(sys.argv[2]))
print("idle", flush=True)
time.sleep(60)
"""


def mark_of(task: Task) -> Mark:
    return Mark(task.source.id, task.node, task.name)


def live_pids(folder: str) -> list[int]:
    """Return the workers whose files are locked."""
    return sorted(int(path.name.partition("-")[0]) for path in Path(folder).glob("*.inflight") if is_locked(path))


def is_locked(path: Path) -> bool:
    if not stat.S_ISREG(path.lstat().st_mode):
        return False
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """The folder of a run."""
    (tmp_path / "run" / "000001").mkdir(parents=True)
    return str(tmp_path / "run" / "000001")


@pytest.fixture
def marks(folder: str) -> Iterator[InflightMarks]:
    """The marks of this process."""
    marks = InflightMarks(folder)
    marks.register()
    yield marks
    marks.close()


def plant(folder: str, pid: int, data: bytes) -> Path:
    """Write the file of a process, which is dead."""
    path = Path(folder, f"{pid}-00.inflight")
    path.write_bytes(data)
    return path


def test_a_folder_without_workers_has_no_marks(folder: str) -> None:
    for empty in (folder, f"{folder}/missing"):
        assert dead_marks(empty) == []
        assert not has_tasks_in_work(empty)


@pytest.mark.parametrize("working", [True, False])
def test_a_killed_worker_leaves_what_it_had_in_work(folder: str, working: bool) -> None:
    worker = start(WORKER, folder, "60" if working else "0")
    assert worker.stdout is not None
    for expected in ("registered", "working") if working else ("registered", "working", "idle"):
        assert worker.stdout.readline().strip() == expected
    assert (live_pids(folder), dead_marks(folder)) == ([worker.pid], [])
    worker.send_signal(signal.SIGKILL)
    worker.communicate()
    left = [DeadWorker(worker.pid, [mark_of(OTHER), mark_of(TASK)] if working else [])]
    assert live_pids(folder) == []
    assert dead_marks(folder) == dead_marks(folder) == left


def test_a_worker_that_closes_leaves_nothing(folder: str, marks: InflightMarks) -> None:
    assert live_pids(folder) == [os.getpid()]
    with pytest.raises(ValueError, match="broken"), marks.working_on([TASK]):
        raise ValueError("broken")
    assert not has_tasks_in_work(folder)
    marks.close()
    marks.close()
    assert os.listdir(folder) == []


def test_handles_of_one_process_share_a_file_and_threads_add_up(folder: str) -> None:
    ready, leave = threading.Barrier(3), threading.Event()

    def work(task: Task) -> None:
        with pickle.loads(pickle.dumps(InflightMarks(folder))).working_on([task]):
            ready.wait()
            leave.wait()

    def child() -> None:
        for task in (TASK, OTHER):
            threading.Thread(target=work, args=(task,)).start()
        ready.wait()
        os.kill(os.getpid(), signal.SIGKILL)

    pid = os.fork()
    if pid == 0:
        child()
    os.waitpid(pid, 0)
    ((found, marks),) = dead_marks(folder)
    assert (found, set(marks)) == (pid, {mark_of(TASK), mark_of(OTHER)})


def test_a_forked_process_marks_for_itself_and_keeps_no_parent_alive(folder: str, marks: InflightMarks) -> None:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        with marks.working_on([TASK]):
            if os.fork() == 0:
                os.read(read_end, 1)  # outlives its parent, whose file it must not hold
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    last = time.monotonic() + 10
    while not dead_marks(folder) and time.monotonic() < last:
        time.sleep(0.01)  # the grandchild lets go of the file as soon as it runs
    assert dead_marks(folder) == [DeadWorker(pid, [mark_of(TASK)])]
    assert live_pids(folder) == [os.getpid()]
    os.write(write_end, b"x")
    os.close(read_end)
    os.close(write_end)


def test_a_worker_that_ends_while_it_is_looked_at_has_not_died(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    marks, real = InflightMarks(folder), fcntl.flock
    marks.register()

    def ends_first(descriptor: int, operation: int) -> None:
        if operation & fcntl.LOCK_SH:
            marks.close()
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", ends_first)
    assert dead_marks(folder) == []


def test_nobody_has_died_while_one_ends(folder: str, marks: InflightMarks, monkeypatch: pytest.MonkeyPatch) -> None:
    real, found = os.unlink, list[list[DeadWorker]]()

    def looked_at_first(path: str) -> None:
        found.append(dead_marks(folder))
        real(path)

    monkeypatch.setattr(os, "unlink", looked_at_first)
    marks.close()
    assert (found, os.listdir(folder)) == ([[]], [])


def test_a_half_written_mark_blames_nobody(folder: str) -> None:
    Path(folder, "12345-00ff.inflight").write_bytes(b"\x40\0\0\0\1\2\3\4[[")
    Path(folder, "12346-00ff.inflight").touch()
    Path(folder, "12347-00ff.inflight").write_bytes(b"\2\0\0\0\1\2\3\4[[")
    Path(folder, "notes.txt").touch()
    assert dead_marks(folder) == [DeadWorker(12345, []), DeadWorker(12346, []), DeadWorker(12347, [])]


def test_shorter_marks_replace_longer_ones(folder: str) -> None:
    pid = os.fork()
    if pid == 0:
        marks = InflightMarks(folder)
        with marks.working_on([TASK, OTHER] * 50):
            pass
        with marks.working_on([OTHER]):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert dead_marks(folder) == [DeadWorker(pid, [mark_of(OTHER)])]


def sealed(body: bytes) -> bytes:
    return struct.pack("<II", len(body), zlib.crc32(body)) + body


GARBAGE = [
    b"",
    b"null",
    b"{}",
    b"[1]",
    b'[["00", "11", "x"]]',
    b'[["%s", "%s", 5]]' % (b"00" * 16, b"00" * 16),
    b"[[null, null, null]]",
    b"[" * 100_000,
    b"\xff\xfe",
]


def test_marks_that_are_not_what_was_written_blame_nobody(folder: str) -> None:
    mark = mark_of(TASK)
    whole = sealed(json.dumps([(mark.source_id.hex(), mark.node.hex(), mark.name)]).encode())
    plant(folder, 1, whole + b"older bytes")
    plant(folder, 2, whole.replace(b"a.jsonl", b"b.jsonl"))
    plant(folder, 3, whole[:-1])
    assert dead_marks(folder) == [DeadWorker(1, [mark]), DeadWorker(2, []), DeadWorker(3, [])]


def test_marks_that_no_worker_wrote_blame_nobody(folder: str) -> None:
    for number, body in enumerate(GARBAGE):
        plant(folder, number + 1, sealed(body))
    with open(Path(folder, "77-00.inflight"), "wb") as file:
        file.write(struct.pack("<II", 2**32 - 1, 0))
        file.truncate(2**40)  # sparse
    assert {worker.pid for worker in dead_marks(folder)} == {*range(1, len(GARBAGE) + 1), 77}
    assert all(worker.marks == [] for worker in dead_marks(folder))


def test_what_is_no_file_is_no_mark(folder: str, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(sealed(b"[]"))
    os.mkfifo(Path(folder, "1-00.inflight"))
    Path(folder, "2-00.inflight").symlink_to(victim)
    Path(folder, "3-00.inflight").mkdir()
    others = ("12-00.inflight2", "12-00", "12.json", "x12-00.inflight")
    for name in others:
        Path(folder, name).write_bytes(sealed(b"[]"))
    Path(folder, f"{'9' * 5000}"[:200] + "-00.inflight").touch()
    Path(folder, os.fsdecode("\u0665-00.inflight".encode())).touch()  # a digit of another script, in any locale
    assert (live_pids(folder), dead_marks(folder)) == ([], [])
    assert victim.exists()
    assert len(os.listdir(folder)) == 5 + len(others)


def test_marks_that_were_removed_are_not_missed(folder: str, marks: InflightMarks) -> None:
    shutil.rmtree(folder)


def test_marks_come_and_go_with_what_is_in_work(folder: str) -> None:
    marks = InflightMarks(folder)

    def working() -> list[str]:
        (name,) = os.listdir(folder)
        data = Path(folder, name).read_bytes()
        length, checksum = struct.unpack_from("<II", data)
        assert zlib.crc32(data[8 : 8 + length]) == checksum
        return [row[2] for row in json.loads(data[8 : 8 + length])]

    marks.register()
    assert working() == []
    with marks.working_on([TASK, OTHER]):
        with InflightMarks(folder).working_on([TASK]):
            assert working() == [TASK.name, OTHER.name, TASK.name]
        assert working() == [TASK.name, OTHER.name]
    assert working() == []
    marks.close()


def marks_of_a_dead_copy(folder: str) -> list[Mark]:
    """Return the marks of the only worker, as its death at this moment would leave them."""
    (name,) = os.listdir(folder)
    copy = Path(folder, "1-00.inflight")
    shutil.copyfile(Path(folder, name), copy)
    ((pid, marks),) = dead_marks(folder)
    assert pid == 1
    copy.unlink()
    return marks


def test_marks_take_as_much_room_as_they_need(folder: str) -> None:
    """A task's name may be long, and a pass over a compressed source has many tasks."""
    tasks = [Task(plain("x" * length), 0, 10, ((0, 2),)) for length in (10, 3_000, 200_000, 50)]
    marks = InflightMarks(folder)
    before = len(os.listdir("/proc/self/fd"))
    for task in tasks:
        with marks.working_on([task]):
            assert marks_of_a_dead_copy(folder) == [mark_of(task)]
    assert not has_tasks_in_work(folder)
    marks.close()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_marks_for_which_there_is_no_room_are_refused_before_the_task_begins(folder: str, marks: InflightMarks) -> None:
    """A page of a mapped file that has no block on the disk would end the process."""
    task = Task(plain("x" * 200_000), 0, 10, ((0, 2),))
    with no_larger_than(100_000):
        with pytest.raises(StorageError, match="inflight: cannot be written"):
            marks.working_on([task]).__enter__()
        with marks.working_on([TASK]):
            assert marks_of_a_dead_copy(folder) == [mark_of(TASK)]


def test_workers_are_listed_by_their_numbers(folder: str) -> None:
    marks = {pid: [mark_of(TASK)] * (pid % 3) for pid in (5, 40, 300, 7, 12, 33, 8, 91, 64, 3, 1000, 2)}
    for pid, found in marks.items():
        rows = [(mark.source_id.hex(), mark.node.hex(), mark.name) for mark in found]
        plant(folder, pid, sealed(json.dumps(rows).encode()))
    assert dead_marks(folder) == [DeadWorker(pid, marks[pid]) for pid in sorted(marks)]
    held = []
    for pid in (40, 5, 300, 64, 33, 1000):
        held.append(os.open(Path(folder, f"{pid}-00.inflight"), os.O_RDWR))
        fcntl.flock(held[-1], fcntl.LOCK_EX)
    assert live_pids(folder) == [5, 33, 40, 64, 300, 1000]
    assert [worker.pid for worker in dead_marks(folder)] == [2, 3, 7, 8, 12, 91]
    for descriptor in held:
        os.close(descriptor)


def test_what_is_no_mark_hides_none(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(folder, "1-00.inflight").mkdir()
    plant(folder, 2, sealed(b"[]"))
    listed = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: sorted(listed(path)))
    assert dead_marks(folder) == [DeadWorker(2, [])]


def test_a_forked_process_holds_no_marks_of_its_parent_in_any_folder(folder: str, tmp_path: Path) -> None:
    every = [InflightMarks(name) for name in (folder, str(tmp_path / "other"))]
    for marks in every:
        marks.register()
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        links = (os.readlink(link.path) for link in os.scandir("/proc/self/fd") if os.path.islink(link.path))
        os.write(write_end, b"%d" % sum(link.endswith(".inflight") for link in links))
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read_end, 10) == b"0"
    for descriptor in (read_end, write_end):
        os.close(descriptor)
    for marks in every:
        marks.close()


def test_marks_are_for_their_user_alone(folder: str, marks: InflightMarks) -> None:
    (name,) = os.listdir(folder)
    assert stat.S_IMODE(Path(folder, name).stat().st_mode) == 0o600
    assert name.startswith(f"{os.getpid()}-")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_marks_of_another_user_blame_nobody_and_stay(folder: str) -> None:
    path = plant(folder, 7, sealed(b"[]"))
    assert dead_marks(folder) == [DeadWorker(7, [])]
    os.chown(path, 65534, -1)
    assert (live_pids(folder), dead_marks(folder)) == ([], [])
    assert path.exists()


def test_what_lies_in_place_of_marks_that_were_removed_stays(folder: str, marks: InflightMarks) -> None:
    (name,) = os.listdir(folder)
    os.unlink(Path(folder, name))
    Path(folder, name).write_bytes(b"another's")
    marks.close()
    assert Path(folder, name).read_bytes() == b"another's"


def test_a_worker_marks_anew_after_it_has_closed(folder: str) -> None:
    marks = InflightMarks(folder)
    for _ in range(2):
        with marks.working_on([TASK]):
            assert live_pids(folder) == [os.getpid()]
        marks.close()
        assert os.listdir(folder) == []


def test_marks_leave_nothing_open(folder: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    marks = InflightMarks(folder)
    marks.register()
    assert live_pids(folder) == [os.getpid()]
    assert len(os.listdir("/proc/self/fd")) <= before + 2  # the file and its map; one of another object may be closed
    marks.close()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_it_is_seen_whether_any_worker_has_a_task(folder: str, tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    marks = InflightMarks(folder)
    marks.register()
    assert not has_tasks_in_work(folder)
    with marks.working_on([TASK]):
        assert has_tasks_in_work(folder)
        Path(folder, "apart").mkdir()
        (mark,) = (name for name in os.listdir(folder) if name.endswith(".inflight"))
        assert not has_tasks_in_work(f"{folder}/apart")
        shutil.copyfile(Path(folder, mark), Path(folder, "apart", mark))  # of a worker that died
        assert has_tasks_in_work(f"{folder}/apart")
        os.rename(Path(folder, "apart", mark), Path(folder, "apart", "of-another-name"))
        assert not has_tasks_in_work(f"{folder}/apart")
    assert not has_tasks_in_work(folder)
    plant(folder, 1, struct.pack("<II", 100, 0)[:7])  # cut short
    Path(folder, "2-00.inflight").symlink_to(Path(folder, "apart", "of-another-name"))
    Path(folder, "3-00.inflight").mkdir()
    os.mkfifo(Path(folder, "4-00.inflight"))
    assert not has_tasks_in_work(folder)
    marks.close()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_two_that_look_at_once_do_not_take_each_other_for_the_worker(folder: str) -> None:
    plant(folder, 7, sealed(b"[]"))
    with open(Path(folder, "7-00.inflight"), "rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        assert dead_marks(folder) == [DeadWorker(7, [])]


def test_a_link_to_marks_is_no_mark(folder: str, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(sealed(b"[]"))
    Path(folder, "7-00.inflight").symlink_to(tmp_path / "elsewhere")
    with open(tmp_path / "elsewhere", "rb") as held:
        for how in (fcntl.LOCK_EX, fcntl.LOCK_SH):
            fcntl.flock(held, how)
            assert (live_pids(folder), dead_marks(folder)) == ([], [])
    assert os.listdir(folder) == ["7-00.inflight"]
