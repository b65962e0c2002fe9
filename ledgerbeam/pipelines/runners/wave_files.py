"""Files for communication between a wave's process and its launcher, in the wave's folder."""

from __future__ import annotations

import os
import pickle
import site
import stat
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import IO, Any

import orjson

from ledgerbeam._base.redaction import redact_streams, register_environment, register_secrets, without_secrets
from ledgerbeam.errors import StorageError
from ledgerbeam.ledger.selection import PendingSource
from ledgerbeam.ledger.worker.run_folders import file_errors
from ledgerbeam.pipelines.console.run_console import RunConsole
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.jobs.transport import dump_job, load_job

STORAGE_OPTIONS = "LEDGERBEAM_STORAGE_OPTIONS"
"""Environment variable with the storage options, as JSON. They may hold credentials, which must not be in a file."""

DIED = "worker-died"
"""Written when a thread of the runner failed, as it does when a worker process dies."""

DONE = "done"
"""Written when the wave has run to its end."""

STARTED = "started"
"""Written when the pipeline is given to its workers."""

TRACEBACK = "traceback"
"""The traceback that ended the wave, if no worker had reported the error."""


def touch(run_dir: str, name: str, text: str = "") -> None:
    """Write one of the files, whole and without secrets.

    Raises:
        DiskFullError: The disk is full.
        StorageError: The file cannot be written.
    """
    path = os.path.join(run_dir, name)
    with file_errors(path), open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(without_secrets(text))


def read_text(run_dir: str, name: str) -> str:
    """Return the content of one of the files; empty if it does not exist."""
    path = os.path.join(run_dir, name)
    with file_errors(path, "read"):
        try:
            with open(path, encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            return ""


def launched_job(job: JobSpec, run: str, console: RunConsole, run_dir: str | None = None) -> JobSpec:
    """Return the job to send to other processes.

    Args:
        job: The job.
        run: ID of the run.
        console: Console of the run. If a program called the job, other processes find modules where the program does.
        run_dir: Folder of the local run; None keeps the folder in the job.
    """
    is_program = console.command is None
    path = tuple(dict.fromkeys(os.path.abspath(folder) for folder in sys.path)) if is_program else ()
    return replace(job, run=run, run_dir=run_dir or job.run_dir, import_path=path)


def take_import_path(folders: Iterable[str]) -> None:
    """Add the launcher's module folders to the path: after Python's own, so that none hides it, before installed ones.

    Args:
        folders: `JobSpec.import_path` of a launched job.
    """
    installed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()}
    known = {os.path.abspath(folder) for folder in sys.path}
    place = next((number for number, folder in enumerate(sys.path) if folder in installed), len(sys.path))
    sys.path[place:place] = [folder for folder in folders if folder not in known]


def dump_job_file(path: str, job: JobSpec) -> None:
    """Write a job, for `load_job_file`, to a new file."""
    with open(path, "xb") as file:
        file.write(dump_job(job))


def environment_of(job: JobSpec) -> dict[str, str]:
    """Return the environment for a process that calls `load_job_file`: this one, plus the job's storage options."""
    return {**os.environ, STORAGE_OPTIONS: orjson.dumps(job.storage_options).decode()}


def load_job_file(path: str) -> JobSpec:
    """Return the job of a launcher's file, and redact its secrets in this process from now on; see `open_own`."""
    storage_options = orjson.loads(os.environ[STORAGE_OPTIONS])
    register_environment()
    register_secrets(storage_options)
    redact_streams()
    with file_errors(path, "read"), open_own(path) as file:
        job = file.read()
    return load_job(job, storage_options)


def dump_sources(path: str, sources: Sequence[PendingSource]) -> None:
    """Write the sources of a wave, for `load_sources`, to a new file."""
    with open(path, "xb") as file:
        pickle.dump(len(sources), file)
        for source in sources:
            pickle.dump(source, file)


def load_sources(path: str) -> Iterator[PendingSource]:
    """Yield the sources of a wave file; raises like `open_own`."""
    with file_errors(path, "read"), open_own(path) as file:
        for _ in range(pickle.load(file)):  # noqa: S301 - written by our launcher, in its folder
            yield pickle.load(file)  # noqa: S301


def dump_committed(path: str, committed: Iterable[Any]) -> None:
    """Add summaries of committed tasks to a file, for `load_committed`."""
    with open(path, "ab") as file:
        for summary in committed:
            pickle.dump(summary, file)


def load_committed(path: str) -> Iterator[Any]:
    """Yield what `dump_committed` wrote; raises like `open_own`."""
    with file_errors(path, "read"), open_own(path) as file:
        size = os.fstat(file.fileno()).st_size
        while file.tell() < size:
            yield pickle.load(file)  # noqa: S301 - written by our launcher, in its folder


def open_own(path: str) -> IO[bytes]:
    """Open a file that the launcher wrote.

    Raises:
        StorageError: The file cannot be read, or does not belong to this user: unpickling a foreign file could run any
            code.
    """
    with file_errors(path, "read"):
        file = open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: SIM115
    found = os.fstat(file.fileno())
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        file.close()
        raise StorageError(f"{path}: expected a file of user {os.geteuid()}, found one of user {found.st_uid}")
    return file
