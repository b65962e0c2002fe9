"""The files by which a wave's process and its launcher speak: they lie in the wave's folder."""

from __future__ import annotations

import os
import pickle
import stat
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

import orjson

from ledgerbeam._base.redaction import redact_streams, register_environment, register_secrets, without_secrets
from ledgerbeam.errors import StorageError
from ledgerbeam.ledger.selection import PendingSource
from ledgerbeam.ledger.worker.run_folders import written
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.jobs.transport import dump_job, load_job

STORAGE_OPTIONS = "LEDGERBEAM_STORAGE_OPTIONS"
"""Environment variable that carries the storage options, as JSON: they may hold credentials, which no file may."""

DIED = "worker-died"
"""Written when a thread of the runner failed: it raises there that a worker process died."""

DONE = "done"
"""Written when the wave has run to its end."""

STARTED = "started"
"""Written when the pipeline is handed to its workers."""

TRACEBACK = "traceback"
"""What ended the wave, if it was an exception that no worker had reported."""


def touch(run_dir: str, name: str, text: str = "") -> None:
    """Write one of the files, whole and without secrets.

    Raises:
        DiskFullError: There is no room for it.
        StorageError: It cannot be written.
    """
    path = os.path.join(run_dir, name)
    with written(path), open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(without_secrets(text))


def read_text(run_dir: str, name: str) -> str:
    """Return what one of the files holds; empty if it is not there."""
    path = os.path.join(run_dir, name)
    with written(path, "read"):
        try:
            with open(path, encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            return ""


def dump_job_file(path: str, job: JobSpec) -> None:
    """Write a job, for `load_job_file`, to a file that is not there yet."""
    with open(path, "xb") as file:
        file.write(dump_job(job))


def environment_of(job: JobSpec) -> dict[str, str]:
    """Return the environment of a process that calls `load_job_file`: this one, and the storage options of the job."""
    return {**os.environ, STORAGE_OPTIONS: orjson.dumps(job.storage_options).decode()}


def load_job_file(path: str) -> JobSpec:
    """Return the job of a file of the launcher; from now on the process shows no secret of it. Raises as `open_own`."""
    storage_options = orjson.loads(os.environ[STORAGE_OPTIONS])
    register_environment()
    register_secrets(storage_options)
    redact_streams()
    with written(path, "read"), open_own(path) as file:
        job = file.read()
    return load_job(job, storage_options)


def dump_sources(path: str, sources: Sequence[PendingSource]) -> None:
    """Write the sources of a wave, for `load_sources`, to a file that is not there yet."""
    with open(path, "xb") as file:
        pickle.dump(len(sources), file)
        for source in sources:
            pickle.dump(source, file)


def load_sources(path: str) -> Iterator[PendingSource]:
    """Yield the sources of a wave file. Raises as `open_own`."""
    with written(path, "read"), open_own(path) as file:
        for _ in range(pickle.load(file)):  # noqa: S301 - written by our own launcher, into its own folder
            yield pickle.load(file)  # noqa: S301


def dump_committed(path: str, committed: Iterable[Any]) -> None:
    """Add summaries of committed tasks to a file, for `load_committed`."""
    with open(path, "ab") as file:
        for summary in committed:
            pickle.dump(summary, file)


def load_committed(path: str) -> Iterator[Any]:
    """Yield what `dump_committed` wrote. Raises as `open_own`."""
    with written(path, "read"), open_own(path) as file:
        size = os.fstat(file.fileno()).st_size
        while file.tell() < size:
            yield pickle.load(file)  # noqa: S301 - written by our own launcher, into its own folder


def open_own(path: str) -> IO[bytes]:
    """Open a file that the launcher wrote.

    Raises:
        StorageError: If it cannot be read, or is not a file of this user: unpickling it would run whatever another one
            has put there.
    """
    with written(path, "read"):
        file = open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: SIM115
    found = os.fstat(file.fileno())
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        file.close()
        raise StorageError(f"{path}: expected a file of user {os.geteuid()}, found one of user {found.st_uid}")
    return file
