"""The folders of a ledger's runs on this host: owners, whether the owners are alive, and files shared by processes.

``run/RUN/`` in the folder of a ledger, or of its sidecar, belongs to the launcher of one run. It is created for that
run alone, closed to other users, and has a marker. The marker names the ledger, and is locked for as long as the
launcher lives. A lock means the same in every container on the host; process ids and host names do not. Any process
with the same ledger may remove a folder whose marker is not locked. Nothing else in ``run`` is ever touched.

The folder ``run`` has a lock too, which all launchers share: a launcher that gets it exclusively is the only active
one.

The processes of a run share files in its folder:

- Notes of tasks: a note is the summary of a task that a worker is about to record, for the transforms after the chain.
  So no recorded task lacks its note when a worker dies. Notes of tasks that were not recorded are skipped.
- Marks of sources whose index is being built ahead of their wave. A worker waits for such an index, and does not build
  it again. The process that builds it holds a lock on the mark, so no worker waits for a dead process.
- The number of tasks that a wave may still start.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import shutil
import stat
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple, Self

from ledgerbeam._base.disk import NO_ROOM
from ledgerbeam.errors import DiskFullError, LedgerbeamError, StorageError
from ledgerbeam.ledger.lmdb.errors import translated
from ledgerbeam.ledger.model.identity import run_order
from ledgerbeam.ledger.model.store import LedgerStore
from ledgerbeam.ledger.model.values import decode, encode

RUNS = "run"  # folder of the run folders
MARKER = "ledgerbeam-run.json"  # the file that marks a folder as the folder of a run: ``{"ledger", "run", "pid"}``
# Name of the file in the folder of a local run that says which tasks call user code in another process, and its texts.
ISOLATION, CRASHED_TASKS, ALL_TASKS = "isolation", "crashed tasks", "all tasks"

_MARKER_BYTES = 4096
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ASIDE = ".marker"


@contextlib.contextmanager
def file_errors(path: str, done: str = "written") -> Iterator[None]:
    """Translate an OSError for `path` to DiskFullError or StorageError. `done` names the failed action for people."""
    try:
        yield
    except LedgerbeamError:
        raise
    except OSError as error:
        kind = DiskFullError if error.errno in NO_ROOM else StorageError
        raise kind(
            f"{path}: cannot be {done} ({error.strerror}); nothing that was recorded is lost. Remove the cause, and "
            "run the same command again"
        ) from error


class Launcher(NamedTuple):
    """The launcher of a run: the run's id, its process id (in a container, the container's), whether it is alive."""

    run: str
    pid: int
    lives: bool


class RunFolder:
    """The folder of a run of this process; see `RunFolders.enter`."""

    def __init__(self, path: str, runs: int, folder: int, marker: int) -> None:
        self.path = path  # absolute. The folder was created with only the marker in it; only this user can enter it
        self._runs, self._folder, self._marker = runs, folder, marker

    def is_in_place(self) -> bool:
        """Return whether the folder and its marker still exist; without them other processes take the run for dead."""
        return is_named(self.path, self._folder) and is_named(os.path.join(self.path, MARKER), self._marker)

    def check(self) -> None:
        """Check that the folder and its marker exist. Raises StorageError."""
        if not self.is_in_place():
            raise StorageError(
                f"{self.path}: the folder of this run was removed or replaced during the run; nothing that was "
                "recorded is lost. Run the same command again"
            )

    @contextlib.contextmanager
    def alone(self) -> Iterator[bool]:
        """Yield True if no other launcher on this host is active on the ledger: then none starts during the body.

        Enter it once, at the end of the run: if it yields False, it has released this launcher's shared lock.
        """
        try:
            fcntl.flock(self._runs, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # another launcher holds it; or locks do not work
            yield False
            return
        yield self.is_in_place() and is_named(os.path.dirname(self.path), self._runs)

    def close(self) -> None:
        """Remove the folder and release the locks. The next run removes what cannot be removed now."""
        if self.is_in_place():
            _remove(self._runs, os.path.basename(self.path), self._folder)
        for descriptor in (self._marker, self._folder, self._runs):
            os.close(descriptor)


class RunFolders:
    """The run folders of one ledger, in ``run`` below a parent folder."""

    def __init__(self, scratch: str, ledger_id: str) -> None:
        self.path = os.path.join(scratch, RUNS)  # of the folder that contains the run folders
        self._ledger_id = ledger_id

    @contextlib.contextmanager
    def enter(self, run: str) -> Iterator[RunFolder]:
        """Create the folder of a run that starts; remove it when the body ends. Raises StorageError, DiskFullError."""
        with translated(self.path), contextlib.ExitStack() as opened:
            with contextlib.suppress(FileExistsError):  # if it is a file, opening it raises the error
                os.makedirs(self.path)
            runs = self._open_runs()
            opened.callback(os.close, runs)
            fcntl.flock(runs, fcntl.LOCK_SH)  # waits while another launcher cleans up
            self._make(runs, run)
            folder = os.open(run, _FOLDER, dir_fd=runs)
            opened.callback(os.close, folder)
            marker = os.open(_ASIDE, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
            opened.callback(os.close, marker)
            fcntl.flock(marker, fcntl.LOCK_EX)
            os.write(marker, encode({"ledger": self._ledger_id, "run": run, "pid": os.getpid()}))
            # The marker is renamed after it is locked: others would take an unlocked marker for a dead run's.
            os.rename(_ASIDE, MARKER, src_dir_fd=folder, dst_dir_fd=folder)
            opened.pop_all()
        made = RunFolder(os.path.join(self.path, run), runs, folder, marker)
        try:
            yield made
        finally:
            made.close()

    def _make(self, runs: int, run: str) -> None:
        with contextlib.suppress(OSError):  # an empty folder was left by a launcher killed at this point
            os.rmdir(run, dir_fd=runs)
        try:
            os.mkdir(run, 0o700, dir_fd=runs)
        except FileExistsError:
            raise StorageError(
                f"{self.path}/{run}: this folder exists, although run {run} has not started; nothing was changed. "
                "Move it away, and run the same command again"
            ) from None

    def launchers(self) -> list[Launcher]:
        """Return the launchers with a marker of this ledger, dead or alive, by run. Raises StorageError."""
        with self._opened() as runs:
            return [] if runs is None else list(self._launchers(runs))

    def lives(self, run: str) -> bool:
        """Return whether the launcher of a run is known to be alive."""
        return any(found.lives for found in self.launchers() if found.run == run)

    def remove_dead(self) -> list[Launcher]:
        """Remove the folders of dead launchers; return the live launchers."""
        with self._opened() as runs:
            if runs is None:
                return []
            found = list(self._launchers(runs))
            for launcher in found:
                if not launcher.lives:
                    with contextlib.suppress(OSError), _folder_of(runs, launcher.run) as folder:
                        _remove(runs, launcher.run, folder)  # another launcher may remove it too
        return [launcher for launcher in found if launcher.lives]

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int | None]:
        with translated(self.path):
            if not os.path.lexists(self.path):
                yield None
                return
            runs = self._open_runs()
            try:
                yield runs
            finally:
                os.close(runs)

    def _open_runs(self) -> int:
        try:
            return os.open(self.path, _FOLDER)
        except OSError as error:
            if stat.S_ISDIR(os.lstat(self.path).st_mode):
                raise
            raise StorageError(
                f"{self.path}: expected a folder for the files of the ledger's runs, found a link or a file; nothing "
                "was changed. Move it away and run the same command again"
            ) from error

    def _launchers(self, runs: int) -> Iterator[Launcher]:
        for run in sorted(os.listdir(runs), key=run_order):
            with contextlib.suppress(OSError, ValueError), _folder_of(runs, run) as folder:
                yield self._launcher(run, folder)  # raises if it is no run folder, or was removed meanwhile

    def _launcher(self, run: str, folder: int) -> Launcher:
        """Read the marker of a folder. Raises OSError or ValueError if it has no marker of this ledger."""
        with own_file(MARKER, dir_fd=folder) as marker:
            if marker is None:
                raise ValueError("not a file of this user")
            says: Any = decode(os.pread(marker, _MARKER_BYTES, 0))
            if not isinstance(says, dict) or (says.get("ledger"), says.get("run")) != (self._ledger_id, run):
                raise ValueError("the marker of another ledger or run")
            pid = says.get("pid")
            return Launcher(run, pid if isinstance(pid, int) else 0, is_locked(marker))


@contextlib.contextmanager
def _folder_of(runs: int, run: str) -> Iterator[int]:
    folder = os.open(run, _FOLDER, dir_fd=runs)
    try:
        yield folder
    finally:
        os.close(folder)


def _remove(runs: int, run: str, folder: int) -> None:
    """Remove a folder, its marker last, so that a partly removed folder is recognized again."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if name == MARKER:
                continue
            if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                shutil.rmtree(name, dir_fd=folder, ignore_errors=True)
            else:
                os.unlink(name, dir_fd=folder)
        if os.listdir(folder) == [MARKER]:
            os.unlink(MARKER, dir_fd=folder)
            os.rmdir(run, dir_fd=runs)


@contextlib.contextmanager
def own_file(path: str, flags: int = os.O_RDONLY, dir_fd: int | None = None) -> Iterator[int | None]:
    """Open a file. Yield its descriptor; None if it cannot be opened, or is not a regular file of this user."""
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd)
    except OSError:
        yield None
        return
    try:
        found = os.fstat(descriptor)
        yield descriptor if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() else None
    finally:
        os.close(descriptor)


def is_locked(descriptor: int) -> bool:
    """Return whether the process that a file belongs to holds its lock. Several processes may ask at the same time."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def is_named(path: str, descriptor: int) -> bool:
    """Return whether a path still leads to the open file or folder `descriptor`."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except OSError:
        return False


_NOTES_SUFFIX = ".committed"


class CommitNotes:
    """File with the notes (summaries) of tasks that a process is about to record. Creating it raises like `add`."""

    def __init__(self, run_dir: str) -> None:
        self._path = os.path.join(run_dir, f"{os.getpid()}-{os.urandom(4).hex()}{_NOTES_SUFFIX}")
        with file_errors(self._path):
            self._file = open(self._path, "xb", buffering=0)  # noqa: SIM115 - for as long as the process works

    def add(self, source_id: bytes, node: bytes, summary: Any) -> None:
        """Write the note of a task that is about to be recorded. Raises DiskFullError, StorageError."""
        data = memoryview(pickle.dumps((source_id, node, summary)))
        with file_errors(self._path):
            while data:
                data = data[self._file.write(data) :]

    def close(self) -> None:
        self._file.close()


def committed_notes(run_dir: str, store: LedgerStore) -> Iterator[Any]:
    """Yield the summaries in the notes of recorded tasks, one for each. The run's processes must have ended."""
    seen: set[bytes] = set()  # a task may have several notes, because earlier steps may repeat it
    for name in sorted(os.listdir(run_dir)):
        if name.endswith(_NOTES_SUFFIX):
            # The tasks of a source are mostly consecutive, so its entries are read once.
            for source_id, notes in groupby(_read_notes(os.path.join(run_dir, name)), key=itemgetter(0)):
                recorded = None if store.completed_mask([source_id])[0] else store.applied(source_id)
                for _, node, summary in notes:
                    if node not in seen and (recorded is None or node in recorded):
                        seen.add(node)
                        yield summary


def _read_notes(path: str) -> Iterator[tuple[bytes, bytes, Any]]:
    with file_errors(path, "read"), open(path, "rb") as file:
        while True:
            try:
                yield pickle.load(file)  # noqa: S301 - written by our own workers, into the run's own folder
            except (EOFError, pickle.UnpicklingError):  # the end, or a note truncated by a kill before the commit
                return


@dataclass(frozen=True)
class TaskBudget:
    """The number of tasks that a wave may still start, in a file that its processes share.

    Its methods raise DiskFullError or StorageError if the file cannot be used.
    """

    path: str

    @classmethod
    def below(cls, run_dir: str) -> Self:
        """Return the budget of a wave, from its folder."""
        return cls(os.path.join(run_dir, "task-budget"))

    def make(self, tasks: int) -> None:
        """Create the file."""
        with file_errors(self.path), open(self.path, "xb") as file:
            array("Q", [min(tasks, 2**64 - 1)]).tofile(file)

    def left(self) -> int:
        """Return the number of tasks that may still be started."""
        with file_errors(self.path, "read"), open(self.path, "rb") as file:
            return array("Q", file.read())[0]

    def claim(self, tasks: int) -> int:
        """Take at most `tasks` from the budget; return the number taken."""
        with file_errors(self.path), open(self.path, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            numbers = array("Q", file.read())
            granted = min(tasks, numbers[0])
            numbers[0] -= granted
            file.seek(0)
            numbers.tofile(file)
        return granted
